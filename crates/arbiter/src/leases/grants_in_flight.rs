//! Opens in flight at the layer below. Their replies may name leases about which other news has arrived
//! meanwhile.

use std::collections::BTreeSet;

/// An open in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantInFlight {
    pub(super) number: u64,
    /// The number of changes that had ended when it began.
    pub(super) changes: u64,
}

impl GrantInFlight {
    /// This many changes that end meanwhile are the open's own.
    pub fn allow(&mut self, changes: u64) {
        self.changes += changes;
    }
}

/// All opens in flight.
#[derive(Debug, Default)]
pub(super) struct GrantsInFlight {
    next: u64,
    in_flight: BTreeSet<u64>,
}

/// A point in time: it separates earlier opens from later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(u64);

impl GrantsInFlight {
    pub(super) fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.in_flight.insert(number);
        number
    }

    pub(super) fn end(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next)
    }

    /// Have all opens ended that were in flight at that time?
    pub(super) fn have_ended(&self, mark: Mark) -> bool {
        self.in_flight.first().is_none_or(|oldest| *oldest >= mark.0)
    }
}

/// News about a lease from below that no reply has named yet, or that a reply may name again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was recalled; a reply in flight may grant it.
    Recalled(Mark),
    /// It was revoked.
    Revoked(Mark),
    /// The arbiter is returning it.
    GivingBack,
    /// The arbiter has returned it; an older reply that names it is ignored.
    GaveBack(Mark),
}
