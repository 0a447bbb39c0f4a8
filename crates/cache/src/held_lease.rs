//! A lease from the layer below: what it vouches for.
//!
//! While a lease is held, no other client changes the file unless the lease is recalled first. The lease
//! vouches for the known attributes and data of the file. It also vouches for the names that lead to the
//! file, because removing or renaming a name of the file changes the file too.
//!
//! A lease does not vouch for an answer that was requested before the grant and arrived after it. It does not
//! vouch for access rights either: the origin decides them for each credential. A lease on a directory
//! vouches for all names in it ([`ObjectState::names_epoch`](crate::object::ObjectState::names_epoch)).

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Lease, LeaseId, LeaseKind};

/// A lease that is held on one file or directory.
#[derive(Clone, Debug)]
pub struct HeldLease {
    /// Its id in the layer below.
    pub id: LeaseId,
    /// Its kind: for reading or for writing.
    pub kind: LeaseKind,
    /// Its id in the layer above.
    pub above: LeaseId,
    /// The layer above holds it.
    pub given: bool,
    /// It is being recalled or returned. It still vouches, but nothing new may rely on it.
    pub recalled: bool,
    /// It has been held since before this process started.
    pub adopted: bool,
    /// Calls sent at or after this event were answered under it.
    pub since: u64,
    /// It vouches for attributes requested at or after this event. Those of the grant itself are among them,
    /// if they are the known ones.
    pub vouches_from: u64,
    /// Up to which size of the file, in bytes, the layer below has reserved space.
    pub space_limit: u64,
    until: Option<Instant>,
    /// Notified when the layer above has returned the lease.
    pub returned: Arc<Notify>,
}

impl HeldLease {
    /// A lease that was granted at the event `since`.
    pub fn granted(lease: &Lease, above: LeaseId, since: u64, vouches_from: u64) -> HeldLease {
        HeldLease {
            id: lease.id,
            kind: lease.kind,
            above,
            given: false,
            recalled: false,
            adopted: false,
            since,
            vouches_from,
            space_limit: lease.space_limit,
            until: lease.until,
            returned: Arc::default(),
        }
    }

    /// When its term ends, if it has one.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Is its term still running?
    pub fn is_valid(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    /// May something new rely on it?
    pub fn is_free(&self) -> bool {
        self.is_valid() && !self.recalled
    }

    /// May the holder grant locks without telling the origin?
    pub fn keeps_locks(&self) -> bool {
        self.kind == LeaseKind::Write && self.is_free()
    }
}
