//! The state of one file.

use tokio::time::Instant;
use vfs::{Lease, LeaseId};

/// The lease from below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Under {
    pub(super) lease: Lease,
    /// It must be returned as soon as all leases under it have ended.
    pub(super) recalled: bool,
    /// The order of the last use.
    pub(super) used: u64,
}

/// The state of one file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) under: Option<Under>,
    pub(super) grants: Vec<LeaseId>,
    /// Number of changes in flight.
    pub(super) changing: u32,
    /// Number of requesters that wait for the return of leases.
    pub(super) claims: u32,
    /// The end of the quiet period after a conflict; until then no lease is granted.
    pub(super) quiet_until: Option<Instant>,
    /// The file is in the queue of quiet files.
    pub(super) hushed: bool,
}

impl File {
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        self.under.is_none()
            && self.grants.is_empty()
            && self.changing == 0
            && self.claims == 0
            && !self.hushed
            && self.quiet_until.is_none_or(|until| until <= now)
    }
}
