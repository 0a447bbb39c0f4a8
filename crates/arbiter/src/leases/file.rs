//! What is known of one file.

use tokio::time::Instant;
use vfs::{Lease, LeaseId};

/// The lease from below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Under {
    pub(super) lease: Lease,
    /// It is to go back as soon as ours have come back.
    pub(super) recalled: bool,
    /// Orders them by last use.
    pub(super) used: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) under: Option<Under>,
    pub(super) grants: Vec<LeaseId>,
    /// Changes under way.
    pub(super) changing: u32,
    /// Askers who wait until something is returned.
    pub(super) claims: u32,
    /// Nothing is granted until then: the file changes hands.
    pub(super) quiet_until: Option<Instant>,
    /// It is in the queue of quiet files.
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
