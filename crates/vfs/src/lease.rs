//! The lease: what NFSv4 delegations, NQNFS leases, attribute timeouts and Linux file leases have in common.
//!
//! A lease says what may be cached, until when, at which change of the file, and how it is taken back. A layer gets
//! leases from the layer below and gives leases to the layer above.

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::caller::{HolderId, Principal};
use crate::handle::Handle;
use crate::open::{Lock, OpenId, Owner, Share};
use crate::time::Timestamp;

/// Names a lease between two layers. Never reused within a process, nor, by a layer that goes on with what an earlier
/// process held ([`Adopted`]), for another lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// What the holder may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Attributes (and what they vouch for) until the term ends; a change by somebody else is not announced.
    Timeout,
    /// Reads and opens for reading; a change by somebody else is announced first.
    Read,
    /// Reads, writes, opens and locks; any use by somebody else is announced first.
    Write,
}

/// What an opener would like to have along with the open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Want {
    /// Whatever the layer below finds useful.
    #[default]
    Any,
    /// No lease.
    None,
    /// A read lease.
    Read,
    /// A write lease.
    Write,
}

/// A promise about one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name between the two layers.
    pub id: LeaseId,
    /// What it allows.
    pub kind: LeaseKind,
    /// When it ends by itself; `None` if it lasts until recalled.
    pub until: Option<Instant>,
    /// The file's change attribute that it vouches for.
    pub change: u64,
    /// Up to which size of the file, in bytes, the layer below has set space aside (`nfs_space_limit4`):
    /// [`Lease::NO_SPACE_LIMIT`] if it promises nothing.
    pub space_limit: u64,
}

impl Lease {
    /// What servers answer that set nothing aside.
    pub const NO_SPACE_LIMIT: u64 = u64::MAX;
}

/// A layer below asks for a lease back. The holder flushes, stops using it and calls `FileSystem::returned`.
///
/// A recall may arrive before the reply that grants: a holder that does not know the id waits for its grants in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Which lease.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// What may be kept after it: `None` for nothing.
    pub keep: Option<LeaseKind>,
    /// When it will be revoked, if not returned.
    pub deadline: Instant,
}

/// What the holder of a write lease alone knows (CB_GETATTR, RFC 8881, section 20.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedAttributes {
    /// The holder has changes of the file that the layer below does not know yet.
    pub modified: bool,
    /// Size in bytes.
    pub size: u64,
    /// Its times as the holder has them, if it says.
    pub times: Option<Times>,
}

/// The times of a file. If a holder that has modified the file knows them, `ctime` is later than any that the layer below
/// has told; one that does not know repeats what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

/// A question to the holder of a write lease; the answer is wanted until `deadline`. Dropping `answer` is "I cannot
/// say", and then the lease is recalled.
#[derive(Debug)]
pub struct Query {
    /// Which lease.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// The change attribute that the lease was granted with.
    pub change: u64,
    /// Whether the times of the answer are shown to the requester. If not, a holder that keeps times back cannot say.
    pub times: bool,
    /// Where to.
    pub answer: oneshot::Sender<DelayedAttributes>,
    /// Until when.
    pub deadline: Instant,
}

/// What a layer says to the one above it without having been asked: the callbacks of RFC 8881, section 20.
#[derive(Debug)]
pub enum Callback {
    /// CB_RECALL: give a lease back.
    Recall(Recall),
    /// CB_GETATTR: what have you made of the file?
    Getattr(Query),
    /// CB_RECALL_ANY: keep no more than this many leases of those that this holder (or everybody) has.
    RecallAny {
        /// Whose; everybody's, if `None`.
        holder: Option<HolderId>,
        /// How many may be kept.
        keep: u32,
    },
    /// CB_NOTIFY_LOCK: a lock that was denied, with `wait` set, would be granted now.
    NotifyLock {
        /// Who waits.
        holder: HolderId,
        /// For what owner.
        owner: Owner,
        /// On which file.
        handle: Handle,
    },
    /// A recall was not answered in time, or what vouched for the lease was lost: it is no more.
    Revoked {
        /// Which lease.
        id: LeaseId,
        /// Of which file.
        handle: Handle,
    },
}

/// The stream of callbacks from a layer to the one above it. Bounded; a layer that cannot deliver waits.
pub type Callbacks = mpsc::Receiver<Callback>;

/// What a layer still holds below from before the process was started, for the layer above to take over.
///
/// It was held without a break: nobody else was given what it excludes.
#[derive(Clone, Debug, Default)]
pub struct Adopted {
    /// Opens, with what is locked through them.
    pub opens: Vec<AdoptedOpen>,
    /// Leases, under the names that they had.
    pub leases: Vec<AdoptedLease>,
}

/// An open from before the process was started.
#[derive(Clone, Debug)]
pub struct AdoptedOpen {
    /// Its name, as it was.
    pub id: OpenId,
    /// Of which file.
    pub handle: Handle,
    /// What it does.
    pub access: Share,
    /// What others may not do meanwhile.
    pub deny: Share,
    /// What each of the OPENs asked for, of access and deny, that made it what it is.
    pub had: Vec<(Share, Share)>,
    /// As whom it was made.
    pub principal: Principal,
    /// What is locked through it.
    pub locks: Vec<Lock>,
}

/// A lease from before the process was started.
#[derive(Clone, Copy, Debug)]
pub struct AdoptedLease {
    /// Its name, as it was.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// What it allows.
    pub kind: LeaseKind,
}
