//! Statistics and listings of what is held, for administrators.

use std::time::Duration;

use vfs::{Handle, HolderId, LeaseId, LeaseKind};

/// Numbers of what is held now, and counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Opens.
    pub opens: usize,
    /// Opens that deny access to others.
    pub denying_opens: usize,
    /// Locked ranges.
    pub locks: usize,
    /// Denied locks with a waiter.
    pub lock_waiters: usize,
    /// Read leases held on files.
    pub read_leases: usize,
    /// Write leases held.
    pub write_leases: usize,
    /// Leases held on directories.
    pub directory_leases: usize,
    /// Opens and changes in flight, and requesters that wait for leases.
    pub in_flight: usize,
    /// Leases granted so far.
    pub granted: u64,
    /// Leases recalled so far.
    pub recalls: u64,
    /// Of these, returned in time.
    pub returned: u64,
    /// Leases revoked so far.
    pub revoked: u64,
    /// Total time from recall to return or revocation.
    pub recall_time: Duration,
    /// The longest of these times.
    pub recall_time_max: Duration,
    /// Questions to holders of write leases so far (CB_GETATTR).
    pub questions: u64,
}

impl Holdings {
    /// Is nothing held, and nothing in flight?
    pub fn is_empty(&self) -> bool {
        let opens = self.opens + self.locks + self.lock_waiters;
        let leases = self.read_leases + self.write_leases + self.directory_leases;
        opens + leases + self.in_flight == 0
    }
}

/// A lease that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// Its id.
    pub id: LeaseId,
    /// Its holder.
    pub holder: HolderId,
    /// Its file.
    pub handle: Handle,
    /// What it allows.
    pub kind: LeaseKind,
    /// Its file is a directory.
    pub directory: bool,
    /// Time since its recall, if it was recalled and not returned.
    pub recalled: Option<Duration>,
}
