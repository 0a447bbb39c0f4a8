//! Opens under way below, whose answers may name leases that something else has been heard of meanwhile.

use std::collections::BTreeSet;

/// An open under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantInFlight {
    pub(super) number: u64,
    /// Changes that had ended when it began.
    pub(super) changes: u64,
}

impl GrantInFlight {
    /// So many changes that end meanwhile are the open's own.
    pub fn allow(&mut self, changes: u64) {
        self.changes += changes;
    }
}

/// All opens under way.
#[derive(Debug, Default)]
pub(super) struct GrantsInFlight {
    next: u64,
    in_flight: BTreeSet<u64>,
}

/// A point in time: between the opens that began before and those that began after.
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

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next)
    }

    /// Have all opens landed that were under way then?
    pub(super) fn have_ended(&self, mark: Mark) -> bool {
        self.in_flight.first().is_none_or(|oldest| *oldest >= mark.0)
    }
}

/// What has been heard of a lease from below that no open's answer has named, or that may be named once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was recalled; the answer that grants it may be one of those under way.
    Recalled(Mark),
    /// It was revoked.
    Revoked(Mark),
    /// We are giving it back.
    GivingBack,
    /// We have given it back; an answer from before that means nothing.
    GaveBack(Mark),
}
