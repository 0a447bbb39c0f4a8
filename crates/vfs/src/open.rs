//! Opens, share reservations and byte-range locks, for the stateful protocols.
//!
//! v2 and v3 do without: their READ and WRITE come [`StateidBasis::Anonymous`].

use bitflags::bitflags;
use bytes::Bytes;

use crate::attributes::{Attributes, SetAttributes, Wcc};
use crate::caller::AccessMask;
use crate::filesystem::CreateHow;
use crate::handle::Handle;
use crate::lease::{Lease, Want};
use crate::name::Name;

bitflags! {
    /// A share: what an open reads and writes, or what it denies to others (RFC 8881, section 9.7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Share: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
    }
}

/// Who holds an open or a lock, in words of the front: a v4 owner string with its client id, an NLM holder, a FUSE
/// lock owner. Opaque below.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub Bytes);

/// Names an open between two layers. Never reused within a process, nor, by a layer that goes on with what an earlier
/// process held ([`crate::Adopted`]), for another open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// On what ground a READ or WRITE comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateidBasis {
    /// Without an open, as v2 and v3 do.
    Anonymous,
    /// Under this open.
    Open(OpenId),
}

/// An OPEN.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// By name in a directory, or the file itself if `name` is `None`.
    pub handle: Handle,
    /// The name to open in the directory `handle`.
    pub name: Option<Name>,
    /// Who will hold it.
    pub owner: Owner,
    /// What it will do.
    pub access: Share,
    /// What others may not do meanwhile.
    pub deny: Share,
    /// Make the file, if it is not there.
    pub create: Option<(CreateHow, SetAttributes)>,
    /// What lease would be welcome.
    pub want: Want,
    /// The holder had this open before we were restarted, and reclaims it in the period of grace.
    pub reclaim: bool,
}

/// What an OPEN gives, atomically.
///
/// A second open of one file by the same holder and owner is an upgrade: it gives the id of the first, which from then
/// on has the union of both shares, and one `close` ends both (RFC 8881, section 9.11).
#[derive(Clone, Debug)]
pub struct Opened {
    /// The open.
    pub id: OpenId,
    /// The file.
    pub handle: Handle,
    /// Its attributes at the open.
    pub attributes: Attributes,
    /// A lease, if one was granted.
    pub lease: Option<Lease>,
    /// The directory before and after, if a name was opened.
    pub directory: Wcc,
    /// The file was made by this open.
    pub created: bool,
    /// Which of READ, MODIFY, EXTEND and EXECUTE the caller has, if that came along.
    pub granted: Option<AccessMask>,
}

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// A read lock.
    Shared,
    /// A write lock.
    Exclusive,
}

/// A byte-range lock, held or asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who.
    pub owner: Owner,
    /// How.
    pub kind: LockKind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; `u64::MAX` is to the end of the file, however far it grows.
    pub length: u64,
}

impl Lock {
    /// The byte behind the last; `u64::MAX` if there is no last.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Would one of these keep the other from being taken?
    pub fn conflicts(&self, other: &Lock) -> bool {
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        exclusive && self.owner != other.owner && self.offset < other.end() && other.offset < self.end()
    }

    /// Which of two conflicting locks `F_GETLK` and LOCKT name: the one that begins first. Equal offsets: `ours`, which
    /// has the owner as this layer knows it.
    pub fn first(ours: Option<Lock>, theirs: Option<Lock>) -> Option<Lock> {
        ours.into_iter().chain(theirs).min_by_key(|lock| lock.offset)
    }

    /// Can another lock in conflict with `self` begin before `found`? Both meet the first byte if it cannot.
    pub fn may_meet_earlier(&self, found: Option<&Lock>) -> bool {
        found.is_none_or(|found| found.offset > self.offset)
    }
}

/// A LOCK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock.
    pub lock: Lock,
    /// If it is denied, tell the holder when it no longer would be (`Callback::NotifyLock`).
    pub wait: bool,
    /// The holder had this lock before we were restarted, and reclaims it in the period of grace.
    pub reclaim: bool,
}

/// What comes of a LOCK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It is held now.
    Granted,
    /// This one is in the way.
    Denied(Lock),
}
