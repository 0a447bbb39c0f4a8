//! One change of ours, from one state to the next.

use vfs::{Attributes, ChangeInfo, Wcc, WccAttributes};

/// A state at one end of a change, as far as the reply describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// All attributes that weak cache consistency compares.
    State(WccAttributes),
    /// The change attribute alone.
    Change(u64),
}

impl Point {
    fn change(&self) -> u64 {
        match self {
            Point::State(state) => state.change,
            Point::Change(change) => *change,
        }
    }

    /// Are these the same state, as far as both points describe it?
    pub(super) fn is(&self, other: &Point) -> bool {
        match (self, other) {
            (Point::State(one), Point::State(other)) => one == other,
            (one, other) => one.change() == other.change(),
        }
    }
}

/// A change from one state to the next, with no other change in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) before: Point,
    pub(super) after: Point,
    /// The attributes of the state after the change, if the reply carried them.
    pub(super) shown: Option<Attributes>,
}

impl Edge {
    /// The edge that a reply describes, if it tells where the change began and ended.
    pub(super) fn told(wcc: &Wcc) -> Option<Edge> {
        if let Some((before, after)) = wcc.before.zip(wcc.after) {
            let (before, shown) = (Point::State(before), Some(after));
            return Some(Edge { before, after: Point::State(after.wcc()), shown });
        }
        let ChangeInfo { before, after } = wcc.change?;
        let shown = wcc.after.filter(|attributes| attributes.change == after);
        Some(Edge { before: Point::Change(before), after: Point::Change(after), shown })
    }

    /// Does the change leave all compared attributes as they were?
    pub(super) fn is_circle(&self) -> bool {
        self.before.is(&self.after)
    }
}
