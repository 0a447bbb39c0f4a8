//! One change of ours: from which state to which.

use vfs::{Attributes, ChangeInfo, Wcc, WccAttributes};

/// A state at one end of a change, as far as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// All that weak cache consistency compares.
    ObjectState(WccAttributes),
    /// Its change attribute.
    Change(u64),
}

impl Point {
    fn change(&self) -> u64 {
        match self {
            Point::ObjectState(state) => state.change,
            Point::Change(change) => *change,
        }
    }

    /// The same state, as far as both tell?
    pub(super) fn is(&self, other: &Point) -> bool {
        match (self, other) {
            (Point::ObjectState(one), Point::ObjectState(other)) => one == other,
            (one, other) => one.change() == other.change(),
        }
    }
}

/// A change between two states, with nothing else in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) before: Point,
    pub(super) after: Point,
    /// Attributes of the state after, if they came along.
    pub(super) shown: Option<Attributes>,
}

impl Edge {
    /// What an operation has told, if it is enough to say where it began and ended.
    pub(super) fn told(wcc: &Wcc) -> Option<Edge> {
        if let Some((before, after)) = wcc.before.zip(wcc.after) {
            let (before, shown) = (Point::ObjectState(before), Some(after));
            return Some(Edge { before, after: Point::ObjectState(after.wcc()), shown });
        }
        let ChangeInfo { before, after } = wcc.change?;
        let shown = wcc.after.filter(|attributes| attributes.change == after);
        Some(Edge { before: Point::Change(before), after: Point::Change(after), shown })
    }

    /// Does it leave no trace in what is compared?
    pub(super) fn is_circle(&self) -> bool {
        self.before.is(&self.after)
    }
}
