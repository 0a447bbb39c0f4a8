//! Opens in flight at the layer below. Their replies may name leases about which other news has arrived
//! meanwhile.

use vfs::grants::{GrantNumber, Grants};

/// An open in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantInFlight {
    pub(super) number: GrantNumber,
    /// The number of changes that had ended when it began.
    pub(super) changes: u64,
}

impl GrantInFlight {
    /// This many changes that end meanwhile are the open's own.
    pub fn allow(&mut self, changes: u64) {
        self.changes += changes;
    }
}

/// The opens in flight, with the news about leases from below that arrived out of order. There is never more
/// news than leases of the layer below, which has a limit of its own.
pub(super) type GrantsInFlight = Grants<Seen, { usize::MAX }>;

/// News about a lease from below that no reply has named yet, or that a reply may name again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was recalled; a reply in flight may grant it.
    Recalled,
    /// It was revoked.
    Revoked,
    /// The arbiter is returning it.
    GivingBack,
    /// The arbiter has returned it; an older reply that names it is ignored.
    GaveBack,
}
