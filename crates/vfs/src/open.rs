//! Opens, share reservations and byte-range locks, for the stateful protocols.
//!
//! Versions 2 and 3 have none of these: their READ and WRITE use [`StateidBasis::Anonymous`].

use async_trait::async_trait;
use bitflags::bitflags;
use bytes::Bytes;

use crate::attributes::{Attributes, SetAttributes, Wcc};
use crate::caller::{AccessMask, Caller};
use crate::error::Result;
use crate::handle::Handle;
use crate::lease::{Lease, Want};
use crate::name::Name;
use crate::results::{CreateHow, DirectoryLease, Read};
use crate::shares::Shares;

bitflags! {
    /// A share: the access of an open, or the access that it denies to others (RFC 8881, section 9.7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Share: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
    }
}

/// The owner of an open or a lock, as the front encodes it: a v4 owner string with its client id, an NLM
/// holder, a FUSE lock owner. The layers below only compare it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub Bytes);

/// Names an open between two layers. A layer never uses one twice within a process. A layer that takes over
/// the opens of an earlier process ([`crate::Adopted`]) does not use their ids for other opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// The state under which a READ or WRITE is done (RFC 8881, section 8.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateidBasis {
    /// No open, as in versions 2 and 3.
    Anonymous,
    /// Under this open.
    Open(OpenId),
}

/// An OPEN.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// The directory of `name`, or the file itself if `name` is `None`.
    pub handle: Handle,
    /// The name to open in the directory `handle`.
    pub name: Option<Name>,
    /// The owner of the open.
    pub owner: Owner,
    /// The access of the open.
    pub access: Share,
    /// The access that the open denies to others.
    pub deny: Share,
    /// Make the file if it does not exist.
    pub create: Option<(CreateHow, SetAttributes)>,
    /// The lease on the file that the caller would like.
    pub want: Want,
    /// The caller would also like a lease on the directory of `name`, if that costs no further call. Only an
    /// open that creates nothing brings one.
    pub want_directory_lease: bool,
    /// Offset and count of a READ under the open, if that costs no further call. Only an open that creates
    /// nothing brings the bytes.
    pub read_first: Option<(u64, u32)>,
    /// The holder had this open before this server restarted, and reclaims it in the grace period.
    pub reclaim: bool,
}

impl OpenRequest {
    /// An open that asks for nothing besides the open: no lease, no creation, no READ.
    ///
    /// `handle` is the directory of `name`, or the file itself if `name` is `None`.
    pub fn new(handle: Handle, name: Option<Name>, owner: Owner, access: Share) -> OpenRequest {
        OpenRequest {
            handle,
            name,
            owner,
            access,
            deny: Share::empty(),
            create: None,
            want: Want::None,
            want_directory_lease: false,
            read_first: None,
            reclaim: false,
        }
    }

    /// The access of the open, and the access that it denies to others.
    pub fn shares(&self) -> Shares {
        Shares { access: self.access, deny: self.deny }
    }
}

/// The result of an OPEN, atomic with the open.
///
/// A second open of a file by the same holder and owner is an upgrade. It returns the id of the first open,
/// which then has the union of both shares, and one `close` ends both (RFC 8881, section 9.11).
#[derive(Clone, Debug)]
pub struct Opened {
    /// The open.
    pub id: OpenId,
    /// The file.
    pub handle: Handle,
    /// Its attributes at the open.
    pub attributes: Attributes,
    /// The lease on the file, if the layer below granted one.
    pub lease: Option<Lease>,
    /// The directory before and after, if the request had a name.
    pub directory: Wcc,
    /// This open made the file.
    pub created: bool,
    /// Which of READ, MODIFY, EXTEND and EXECUTE the caller has, if the reply says it.
    pub granted: Option<AccessMask>,
    /// The lease on the directory, if the request wanted one and the reply brought it.
    pub directory_lease: Option<Box<DirectoryLease>>,
    /// The READ of [`OpenRequest::read_first`], if the layer below did it and it succeeded. Its bytes are at
    /// least as new as `attributes`. If the open brought a lease, the bytes were read under that lease.
    pub read: Option<Box<Read>>,
}

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// A read lock.
    Shared,
    /// A write lock.
    Exclusive,
}

/// A byte-range lock, held or requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its owner.
    pub owner: Owner,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. `u64::MAX` means to the end of the file, however far it grows.
    pub length: u64,
}

impl Lock {
    /// The offset behind the last byte; `u64::MAX` if the range has no end.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Whether one of the two locks excludes the other.
    pub fn conflicts(&self, other: &Lock) -> bool {
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        exclusive && self.owner != other.owner && self.offset < other.end() && other.offset < self.end()
    }

    /// Which of two conflicting locks `F_GETLK` and LOCKT report: the one with the lower offset. With equal
    /// offsets it is `ours`, which has the owner as this layer knows it.
    pub fn first(ours: Option<Lock>, theirs: Option<Lock>) -> Option<Lock> {
        ours.into_iter().chain(theirs).min_by_key(|lock| lock.offset)
    }

    /// Whether another lock that conflicts with `self` can begin before `found`. If not, `found` covers the
    /// first byte of `self`.
    pub fn may_meet_earlier(&self, found: Option<&Lock>) -> bool {
        found.is_none_or(|found| found.offset > self.offset)
    }
}

/// A LOCK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock.
    pub lock: Lock,
    /// If the lock is denied, notify the holder when it would be granted (`Callback::NotifyLock`).
    pub wait: bool,
    /// The holder had this lock before this server restarted, and reclaims it in the grace period.
    pub reclaim: bool,
}

/// The result of a LOCK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked {
    /// The owner holds the lock.
    Granted,
    /// This lock of another owner conflicts.
    Denied(Lock),
}

/// Opens, share reservations and byte-range locks.
#[async_trait]
pub trait Opens {
    /// Opens a file. The creation, the grant of a lease and the reading of attributes are atomic with the
    /// open.
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened>;

    /// Gives up part of an open's share. `access` and `deny` must be a combination that the open once had
    /// (RFC 8881, section 18.18.3).
    async fn downgrade(&self, caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()>;

    /// Stores delayed writes as `close` would, and reports their errors, but keeps the open: a program has
    /// closed one of several descriptors. `NotSupp` if the layer delays no writes; the caller then uses
    /// COMMIT.
    async fn flush(&self, caller: &Caller, open: OpenId) -> Result<()>;

    /// Ends an open. The open has ended even if the result is an error, which is that of a delayed write.
    async fn close(&self, caller: &Caller, open: OpenId) -> Result<()>;

    /// Takes a byte-range lock, without waiting. Where the owner holds part of the range already, that part
    /// changes its kind.
    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked>;

    /// Gives up all locks of `owner` within a range (first byte, offset behind the last byte).
    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()>;

    /// The lock that conflicts with this one, if there is one.
    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>>;

    /// Whether `owner` holds a lock on the open's file. No call to the origin.
    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool;

    /// An operation failed with `Resource`. The layer recalls unused state from the layers above, and waits
    /// until some of it has been returned, at most until the caller's deadline. True if the caller should try
    /// again.
    async fn free_capacity(&self, caller: &Caller) -> bool;
}
