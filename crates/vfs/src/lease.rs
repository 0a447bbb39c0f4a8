//! The lease: the common form of NFSv4 delegations, NQNFS leases, attribute timeouts and Linux file leases.
//!
//! A lease says what its holder may cache, until when, at which change of the file, and how the grantor
//! recalls it. A layer gets leases from the layer below and grants leases to the layer above.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::caller::{AccessMask, Caller, HolderId, Principal};
use crate::error::Result;
use crate::handle::Handle;
use crate::open::{Lock, OpenId, Owner};
use crate::results::Delegated;
use crate::shares::{Combinations, Shares};
use crate::time::Timestamp;

/// Names a lease between two layers. A layer never uses one twice within a process. A later lease of a file
/// has a greater id, so that the layer above knows a late reply. A layer that takes over the leases of an
/// earlier process ([`Adopted`]) does not use their ids for other leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// The kind of a lease: what its holder may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Attributes, and data that they confirm, until the term ends. The grantor announces no change by
    /// others.
    Timeout,
    /// Reads and opens for reading. The grantor recalls the lease before others change the file.
    Read,
    /// Reads, writes, opens and locks. The grantor recalls the lease before others use the file.
    Write,
}

/// The lease that a requester would like with the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Want {
    /// Any kind; the layer below chooses.
    #[default]
    Any,
    /// No lease.
    None,
    /// A read lease.
    Read,
    /// A write lease.
    Write,
}

/// A lease on one file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name between the two layers.
    pub id: LeaseId,
    /// Its kind.
    pub kind: LeaseKind,
    /// When it ends by itself; `None` if it lasts until recalled.
    pub until: Option<Instant>,
    /// The file's change attribute at the grant.
    pub change: u64,
    /// The file size in bytes up to which the layer below has reserved space (`nfs_space_limit4`).
    /// [`Lease::NO_SPACE_LIMIT`] if it has reserved none.
    pub space_limit: u64,
}

impl Lease {
    /// The `space_limit` of a server that reserves no space.
    pub const NO_SPACE_LIMIT: u64 = u64::MAX;
}

/// The layer below wants a lease back. The holder stores its delayed writes, stops using the lease and calls
/// [`Leases::returned`].
///
/// A recall may arrive before the reply that grants the lease. A holder that does not know the id waits for
/// its grants in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Which lease.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// The kind that the holder may keep; `None` for no lease at all.
    pub keep: Option<LeaseKind>,
    /// When the grantor revokes the lease, unless the holder returns it.
    pub deadline: Instant,
}

/// Attributes that only the holder of a write lease knows (CB_GETATTR, RFC 8881, section 20.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedAttributes {
    /// The holder has delayed changes of the file.
    pub modified: bool,
    /// Size in bytes.
    pub size: u64,
    /// The times as the holder has them, if it reports them.
    pub times: Option<Times>,
}

/// The times of a file. If the holder has modified the file and knows the times, `ctime` is later than any
/// ctime that the layer below has reported. A holder that does not know the times repeats those that the
/// layer below reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

/// A question to the holder of a write lease, to be answered before `deadline`. If the holder drops `answer`,
/// it cannot say, and the grantor recalls the lease.
#[derive(Debug)]
pub struct Query {
    /// Which lease.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// The change attribute at the grant.
    pub change: u64,
    /// Whether the requester sees the times of the answer. If not, a holder with delayed times drops the
    /// question.
    pub times: bool,
    /// Takes the answer.
    pub answer: oneshot::Sender<DelayedAttributes>,
    /// The latest time for the answer.
    pub deadline: Instant,
}

/// A call from a layer to the layer above it: the callbacks of RFC 8881, section 20.
#[derive(Debug)]
pub enum Callback {
    /// CB_RECALL: return a lease.
    Recall(Recall),
    /// CB_GETATTR: report the delayed attributes of a file.
    Getattr(Query),
    /// CB_RECALL_ANY: keep no more than `keep` leases.
    RecallAny {
        /// The holder whose leases count; `None` means all holders.
        holder: Option<HolderId>,
        /// How many leases may stay.
        keep: u32,
    },
    /// CB_NOTIFY_LOCK: a lock that was denied with `wait` set would be granted now.
    NotifyLock {
        /// The waiter.
        holder: HolderId,
        /// The owner that the waiter wants the lock for.
        owner: Owner,
        /// On which file.
        handle: Handle,
    },
    /// The lease has ended: its holder did not return it in time, or the layer below lost the lease that it
    /// rested on.
    Revoked {
        /// Which lease.
        id: LeaseId,
        /// Of which file.
        handle: Handle,
    },
}

/// The stream of callbacks from a layer to the layer above. It is bounded; a layer that cannot deliver waits.
pub type Callbacks = mpsc::Receiver<Callback>;

/// State that a layer holds below since before this process started, for the layer above to take over.
///
/// It was held without a break: the origin granted nothing that conflicts with it.
#[derive(Clone, Debug, Default)]
pub struct Adopted {
    /// Opens, with the locks taken through them.
    pub opens: Vec<AdoptedOpen>,
    /// Leases, with the ids that they had.
    pub leases: Vec<AdoptedLease>,
}

/// An open from before this process started.
#[derive(Clone, Debug)]
pub struct AdoptedOpen {
    /// The id that it had.
    pub id: OpenId,
    /// Of which file.
    pub handle: Handle,
    /// Its access, and the access that it denies to others.
    pub shares: Shares,
    /// The shares of the OPENs that made or widened it.
    pub had: Combinations,
    /// The principal of the OPEN.
    pub principal: Principal,
    /// The locks taken through it.
    pub locks: Vec<Lock>,
}

/// A lease from before this process started.
#[derive(Clone, Copy, Debug)]
pub struct AdoptedLease {
    /// The id that it had.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// Its kind.
    pub kind: LeaseKind,
}

/// Leases: what a layer grants to the layer above, how it takes them back, and what outlives a restart.
#[async_trait]
pub trait Leases {
    /// The stream of callbacks about leases of this layer. There is one, and only its first caller gets it.
    /// `None` if the layer sends no callbacks, or if the stream has been taken.
    fn callbacks(&self) -> Option<Callbacks>;

    /// State that this layer holds below since before this process started. The layer above asks once, after
    /// it has taken [`callbacks`](Leases::callbacks) and before any other call. It then holds that state as
    /// if it had asked for it in this process.
    fn adopted(&self) -> Adopted;

    /// Reclaiming is over (RFC 8881, section 8.4.2): the layer gives up what it adopted and no client
    /// reclaimed. The front calls this once. Until then the layer grants a reclaim of an open or lock that
    /// the adopted state covers.
    async fn end_reclaim(&self);

    /// The holder returns a lease, recalled or not.
    async fn returned(&self, caller: &Caller, lease: LeaseId) -> Result<()>;

    /// Grants or renews a lease with a term, without an open (NQNFS, section 4).
    ///
    /// The lease ends by itself `term` after the call. Until it has ended or the holder has returned it, no
    /// other client gets a conflicting access. `None` if others use the file too, or if the layer below
    /// grants no lease.
    ///
    /// # Errors
    /// `Delay` if conflicting leases did not come back in time, or if the table of leases is full.
    async fn lease(
        &self,
        caller: &Caller,
        handle: &Handle,
        kind: LeaseKind,
        term: Duration,
    ) -> Result<Option<Lease>>;

    /// ACCESS of a directory together with a lease on it, if there is one to be had (GET_DIR_DELEGATION, RFC
    /// 8881, section 18.39).
    ///
    /// The lease covers all names in the directory, absent names included, and its attributes. If another
    /// client makes, removes or renames a name there, or changes the directory itself, it waits until the
    /// lease has been returned. The lease does not cover the *targets* of the names. Its holder may change
    /// the directory under it.
    ///
    /// # Errors
    /// Those of ACCESS.
    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated>;
}
