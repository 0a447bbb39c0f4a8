//! The history of our own changes of one object: which changes does weak cache consistency data explain?
//!
//! The reply to each of our operations gives an edge from the state before it to the state after it. Replies
//! of parallel operations arrive in any order, so edges wait until they link into a chain. The chain starts
//! at the known state, and each edge starts where the one before it ends.
//!
//! When no operation of ours is in flight any more, the history is judged. If every edge is linked, and every
//! state that was seen meanwhile lies on the chain, all changes were ours. Otherwise another client changed
//! the object too. An operation whose reply lacks the state before it explains nothing: the history is
//! *blind*.
//!
//! NFSv3 reports the attributes at both ends of an edge. NFSv4 reports the change attributes at both ends
//! (`change_info4`), and the attributes of some later moment. If changes overlap, only the last one's
//! attributes are those of its end. The known state advances along the chain as far as attributes are known.
//!
//! Promise: own-changes

mod edge;
#[cfg(test)]
mod model;

use std::collections::VecDeque;

use vfs::{Attributes, Wcc, WccAttributes};

use edge::{Edge, Point};

/// The number of passed states that are remembered, to recognise late replies.
const PASSED_MAX: usize = 64;
/// The largest number of waiting edges, and of seen states. If more wait, the first edge will never link.
const WAITING_MAX: usize = 1024;

/// The last of the states that our operations have reported, as far as they can be put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latest {
    /// The state with the latest ctime, if any was reported.
    pub attributes: Option<Attributes>,
    /// Every operation has reported a state, and `attributes` is in no respect older than any of them or than
    /// the known state. If no other client changes the object, `attributes` is its state.
    pub certain: bool,
}

/// The judgement after an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Other operations are in flight, and not everything fits yet. Carries the state that the chain has
    /// reached, if an edge was linked.
    Waiting(Option<Attributes>),
    /// All changes were ours. Carries the current state, or `None` if it is the known one.
    Explained(Option<Attributes>),
    /// Some operation did not report the state before it: nothing proves that all changes were ours.
    Blind(Latest),
    /// Another client changed the object.
    Foreign(Latest),
}

/// Our operations on one object that are in flight, and the reports of the finished ones.
#[derive(Clone, Debug, Default)]
pub struct ChangeHistory {
    under_way: u32,
    blind: bool,
    /// Some operation has reported no attributes after it.
    untold: bool,
    edges: Vec<Edge>,
    seen: Vec<Attributes>,
    passed: VecDeque<Point>,
}

impl ChangeHistory {
    /// An operation is about to be sent.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// Number of operations in flight.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Is an operation in flight?
    pub fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Takes note of attributes that differ from the known ones while operations of ours are in flight.
    pub fn observe(&mut self, attributes: &Attributes) {
        if !self.has_passed(&attributes.wcc()) {
            self.remember_seen(*attributes);
        }
    }

    /// Has a state been seen or reported that does not fit yet? Until it fits, no cached value may be used:
    /// the state may be the result of another client's change.
    pub fn is_suspect(&self) -> bool {
        self.blind || !self.seen.is_empty() || !self.edges.is_empty()
    }

    /// Was this a state on the chain that led to the known one?
    pub fn has_passed(&self, state: &WccAttributes) -> bool {
        self.is_passed(&Point::State(*state))
    }

    /// An operation has ended, successfully or not, and its reply brought `wcc`. Everything cached belongs to
    /// the state `known`.
    pub fn end(&mut self, known: Option<&Attributes>, wcc: &Wcc) -> Verdict {
        debug_assert!(self.under_way > 0, "an operation ends that did not begin");
        self.under_way = self.under_way.saturating_sub(1);
        match Edge::told(wcc) {
            Some(edge) if self.edges.len() < WAITING_MAX => {
                self.untold |= wcc.after.is_none();
                if let Some(later) = wcc.after.filter(|_| edge.shown.is_none()) {
                    self.remember_seen(later);
                }
                self.edges.push(edge);
            }
            _ => {
                self.blind = true;
                self.untold |= wcc.after.is_none();
                wcc.after.into_iter().for_each(|after| self.remember_seen(after));
            }
        }
        self.judge(known)
    }

    /// An operation failed without changing anything. Its reply brought the object's attributes or nothing.
    pub fn end_unchanged(&mut self, known: Option<&Attributes>, attributes: Option<&Attributes>) -> Verdict {
        debug_assert!(self.under_way > 0, "an operation ends that did not begin");
        self.under_way = self.under_way.saturating_sub(1);
        let same = |attributes: &Attributes| known.is_some_and(|known| known.wcc() == attributes.wcc());
        if let Some(attributes) = attributes.filter(|attributes| !same(attributes)) {
            self.observe(attributes);
        }
        self.judge(known)
    }

    fn judge(&mut self, known: Option<&Attributes>) -> Verdict {
        let linked = known.and_then(|known| self.link(known));
        if self.under_way > 0 {
            return Verdict::Waiting(linked);
        }
        self.conclude(linked, known)
    }

    /// The latest state reported so far, if all reported states and the known one can be put in order.
    pub fn latest<'a>(&'a self, known: &'a Attributes) -> Option<&'a Attributes> {
        let shown = self.edges.iter().filter_map(|edge| edge.shown.as_ref());
        let states = || shown.clone().chain(&self.seen).chain(std::iter::once(known));
        let full = self.edges.len() >= WAITING_MAX || self.seen.len() >= WAITING_MAX;
        let last = states().max_by_key(|state| (state.ctime, state.change))?;
        let certain = !self.untold && !full && states().all(|state| is_no_older(last, state));
        certain.then_some(last)
    }

    /// Follows the edges from `known`. Returns the attributes where they end, if that is another state. Edges
    /// beyond the last state with known attributes keep waiting.
    fn link(&mut self, known: &Attributes) -> Option<Attributes> {
        let mut at = Point::State(known.wcc());
        let mut way = Vec::new();
        // The number of edges that lead to the last state with known attributes, and these attributes.
        let mut shown = None;
        while let Some(edge) = self.take_next(&at) {
            at = edge.after;
            way.push(edge);
            if let Some(attributes) = edge.shown.or_else(|| self.seen_at(&at)) {
                shown = Some((way.len(), attributes));
            }
        }
        let (length, attributes) = shown.unwrap_or((0, *known));
        self.edges.extend(way.drain(length..));
        for edge in way {
            self.pass(edge.before);
            self.pass(edge.after);
        }
        let passed = std::mem::take(&mut self.passed);
        self.seen.retain(|seen| !passed.iter().any(|point| point.is(&Point::State(seen.wcc()))));
        self.passed = passed;
        shown.map(|_| attributes)
    }

    /// The edge that starts at `at`. A change within one timestamp granularity that keeps the size ends where
    /// it started: its edge is a circle. A circle goes first, or it would be left over.
    fn take_next(&mut self, at: &Point) -> Option<Edge> {
        let links = |edge: &Edge| edge.before.is(at);
        let circles = |edge: &Edge| links(edge) && edge.is_circle();
        let next = self.edges.iter().position(circles).or_else(|| self.edges.iter().position(links))?;
        Some(self.edges.swap_remove(next))
    }

    fn seen_at(&self, at: &Point) -> Option<Attributes> {
        self.seen.iter().find(|seen| at.is(&Point::State(seen.wcc()))).copied()
    }

    /// No operation is in flight any more: judges the history and starts it anew.
    fn conclude(&mut self, linked: Option<Attributes>, known: Option<&Attributes>) -> Verdict {
        // Drop a circle whose reply arrived after that of the change that followed it.
        let mut edges = std::mem::take(&mut self.edges);
        edges.retain(|edge| !edge.is_circle() || !self.is_passed(&edge.before));
        self.edges = edges;
        let verdict = if self.is_suspect() {
            let told = self.edges.iter().filter_map(|edge| edge.shown).chain(self.seen.iter().copied());
            let last = told.chain(linked).max_by_key(|state| (state.ctime, state.change));
            let base = linked.as_ref().or(known).or(last.as_ref());
            let certain = base.and_then(|base| self.latest(base)).is_some_and(|latest| Some(*latest) == last);
            let latest = Latest { attributes: last, certain };
            if self.blind { Verdict::Blind(latest) } else { Verdict::Foreign(latest) }
        } else {
            Verdict::Explained(linked)
        };
        (self.blind, self.untold) = (false, false);
        self.edges.clear();
        self.seen.clear();
        verdict
    }

    fn is_passed(&self, point: &Point) -> bool {
        self.passed.iter().any(|passed| passed.is(point))
    }

    fn pass(&mut self, point: Point) {
        if self.passed.back() == Some(&point) {
            return;
        }
        if self.passed.len() == PASSED_MAX {
            self.passed.pop_front();
        }
        self.passed.push_back(point);
    }

    fn remember_seen(&mut self, attributes: Attributes) {
        if self.seen.len() < WAITING_MAX {
            self.seen.push(attributes);
        }
    }
}

/// May `last` be the later one of two states that our overlapping changes have left, by every attribute? Then
/// it is the later one, unless the origin's clock was set back between them. Two different states with the
/// same ctime and change attribute cannot be put in order.
fn is_no_older(last: &Attributes, other: &Attributes) -> bool {
    if (last.ctime, last.change) == (other.ctime, other.change) {
        return last == other;
    }
    let times = last.ctime >= other.ctime && last.mtime >= other.mtime;
    times && last.change >= other.change && last.size >= other.size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::attributes;
    use proptest::prelude::*;

    /// The n-th state of a file.
    fn state(n: u64) -> Attributes {
        attributes(n, n as i64)
    }

    fn edge(from: u64, to: u64) -> Wcc {
        Wcc::around(state(from).wcc(), Some(state(to)))
    }

    fn latest(n: u64) -> Latest {
        Latest { attributes: Some(state(n)), certain: true }
    }

    fn run(edges: &[Wcc]) -> Verdict {
        let mut history = ChangeHistory::default();
        let mut known = state(0);
        edges.iter().for_each(|_| history.begin());
        let mut verdict = Verdict::Explained(None);
        for wcc in edges {
            verdict = history.end(Some(&known), wcc);
            if let Verdict::Waiting(Some(at)) | Verdict::Explained(Some(at)) = verdict {
                known = at;
            }
        }
        if let Verdict::Explained(None) = verdict { Verdict::Explained(Some(known)) } else { verdict }
    }

    #[test]
    fn one_write_is_ours_or_not() {
        assert_eq!(run(&[edge(0, 1)]), Verdict::Explained(Some(state(1))));
        assert_eq!(run(&[edge(1, 2)]), Verdict::Foreign(latest(2)));
        assert_eq!(run(&[Wcc::seen(Some(state(1)))]), Verdict::Blind(latest(1)));
        assert_eq!(run(&[Wcc::default()]), Verdict::Blind(Latest::default()));
    }

    #[test]
    fn a_state_seen_meanwhile_must_lie_on_the_way() {
        for (seen, ours) in [(1, true), (2, true), (3, false)] {
            let mut history = ChangeHistory::default();
            history.begin();
            history.begin();
            history.observe(&state(seen));
            assert!(history.is_suspect());
            let verdict = history.end(Some(&state(0)), &edge(1, 2));
            assert_eq!(verdict, Verdict::Waiting(None));
            let verdict = history.end(Some(&state(0)), &edge(0, 1));
            assert_eq!(
                matches!(verdict, Verdict::Explained(Some(at)) if at == state(2)),
                ours,
                "{verdict:?}"
            );
            assert!(!history.is_suspect());
        }
    }

    #[test]
    fn failures_explain_nothing_and_change_nothing() {
        let mut history = ChangeHistory::default();
        history.begin();
        assert_eq!(history.end_unchanged(Some(&state(0)), Some(&state(0))), Verdict::Explained(None));
        history.begin();
        assert_eq!(history.end_unchanged(Some(&state(0)), Some(&state(1))), Verdict::Foreign(latest(1)));
    }

    /// NFSv4 WRITEs report no state before them.
    // Promise: own-changes-under-a-lease
    #[test]
    fn of_blind_changes_the_one_that_is_older_in_nothing_came_last() {
        let run = |states: &[Attributes]| {
            run(&states.iter().map(|state| Wcc::seen(Some(*state))).collect::<Vec<_>>())
        };
        assert_eq!(run(&[state(2), state(3), state(1)]), Verdict::Blind(latest(3)));
        let cut = Attributes { size: 0, ..state(3) };
        let unclear = Latest { attributes: Some(cut), certain: false };
        assert_eq!(run(&[cut, state(2)]), Verdict::Blind(unclear), "one of them grew, one is later");
        let Verdict::Blind(of_one_granularity) = run(&[cut, state(3)]) else { panic!("both are blind") };
        assert!(!of_one_granularity.certain, "their stamps are one, and they differ");
        let mut history = ChangeHistory::default();
        history.begin();
        history.begin();
        history.end(Some(&state(0)), &Wcc::default());
        let untold = Latest { certain: false, ..latest(1) };
        assert_eq!(history.end(Some(&state(0)), &Wcc::seen(Some(state(1)))), Verdict::Blind(untold));
    }

    proptest! {
        /// Our own writes are explained in whatever order their replies arrive. With one foreign write among
        /// them, they never are. Some writes fall into one timestamp granularity and change no attribute.
        #[test]
        fn order_does_not_matter(
            steps in prop::collection::vec(any::<bool>(), 1..12),
            order in prop::collection::vec(any::<u32>(), 12),
            foreign in prop::option::of(0..12usize),
        ) {
            let mut edges = Vec::new();
            let mut at = 0;
            for (n, moves) in steps.iter().enumerate() {
                if foreign == Some(n) {
                    at += 1;
                }
                let to = at + u64::from(*moves);
                edges.push((order[n], edge(at, to)));
                at = to;
            }
            let hidden = foreign.is_some_and(|n| n < steps.len());
            edges.sort_by_key(|(key, _)| *key);
            let edges: Vec<Wcc> = edges.into_iter().map(|(_, wcc)| wcc).collect();
            match run(&edges) {
                Verdict::Explained(Some(end)) => {
                    prop_assert!(!hidden);
                    prop_assert_eq!(end, state(at));
                }
                Verdict::Foreign(_) => prop_assert!(hidden),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
