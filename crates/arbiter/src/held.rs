//! What is held, for whoever looks after the server.

use std::time::Duration;

use vfs::{Handle, HolderId, LeaseId, LeaseKind};

/// What is held at one moment, in numbers, and what has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Opens.
    pub opens: usize,
    /// Opens that deny something to others.
    pub denying_opens: usize,
    /// Ranges locked.
    pub locks: usize,
    /// Denied locks that somebody waits for.
    pub lock_waiters: usize,
    /// Read leases on files out.
    pub read_leases: usize,
    /// Write leases out.
    pub write_leases: usize,
    /// Leases on directories out.
    pub directory_leases: usize,
    /// Leases granted so far.
    pub granted: u64,
    /// Leases recalled so far.
    pub recalls: u64,
    /// Of these, returned in time.
    pub returned: u64,
    /// Leases revoked so far.
    pub revoked: u64,
    /// Time from recall to return or revocation, all together.
    pub recall_time: Duration,
    /// The longest of these times.
    pub recall_time_max: Duration,
    /// Questions to holders of write leases so far (CB_GETATTR).
    pub questions: u64,
}

/// One lease that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// Its name.
    pub id: LeaseId,
    /// Who has it.
    pub holder: HolderId,
    /// On which file.
    pub handle: Handle,
    /// What it allows.
    pub kind: LeaseKind,
    /// For how long it has been recalled and not returned.
    pub recalled: Option<Duration>,
}
