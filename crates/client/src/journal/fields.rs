//! Fields that several records in a journal have: users, ranges of locks, and bytes with bounds. Every value
//! is XDR with bounds, so that any file yields records or an error.

use std::sync::Arc;

use bytes::Bytes;
use vfs::locks::LockRange;
use vfs::{Credential, LockKind, Principal};
use xdr::{List, Opaque, Xdr};

/// An object cannot be recorded because it is larger than the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// A principal. `None` is the machine.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub(crate) struct Who {
    unix: Option<Unix>,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct Unix {
    uid: u32,
    gid: u32,
    groups: List<u32, 1024>,
}

/// Locked bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub(crate) struct RangeRecord {
    start: u64,
    end: u64,
    exclusive: bool,
}

impl Who {
    pub(crate) fn of(principal: &Principal) -> Result<Who, TooLarge> {
        let unix = match principal {
            Principal::Machine => None,
            Principal::Unix(credential) => Some(Unix {
                uid: credential.uid,
                gid: credential.gid,
                groups: List::new(credential.groups.clone()).ok_or(TooLarge)?,
            }),
        };
        Ok(Who { unix })
    }

    pub(crate) fn principal(self) -> Principal {
        match self.unix {
            None => Principal::Machine,
            Some(Unix { uid, gid, groups }) => {
                Principal::Unix(Arc::new(Credential { uid, gid, groups: groups.into_vec() }))
            }
        }
    }
}

impl RangeRecord {
    pub(crate) fn of(range: LockRange) -> RangeRecord {
        RangeRecord { start: range.start, end: range.end, exclusive: range.kind == LockKind::Exclusive }
    }

    /// `None` if it is empty.
    pub(crate) fn range(self) -> Option<LockRange> {
        let kind = if self.exclusive { LockKind::Exclusive } else { LockKind::Shared };
        (self.start < self.end).then_some(LockRange { start: self.start, end: self.end, kind })
    }
}

pub(crate) fn opaque<const MAX: usize>(bytes: &[u8]) -> Result<Opaque<MAX>, TooLarge> {
    Opaque::new(Bytes::copy_from_slice(bytes)).ok_or(TooLarge)
}

pub(crate) fn encoded<T: xdr::Encode>(value: &T) -> Result<Vec<u8>, TooLarge> {
    xdr::to_bytes(value).map(Vec::from).map_err(|_| TooLarge)
}
