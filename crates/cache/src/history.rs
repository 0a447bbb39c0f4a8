//! The chain of our own changes of one object: which changes does weak cache consistency data explain?
//!
//! Each of our operations comes back as an edge from the state before it to the state after it. Replies of parallel
//! operations arrive in any order, so edges wait until they link: the known state, an edge that starts there, an edge
//! that starts where that one ends, and so on. When nothing of ours is under way any more, every edge has been linked
//! and every state that was seen meanwhile lies on the way, then all changes were ours. Otherwise somebody else
//! changed the object too. An operation that brought no state before it explains nothing: the chain is *blind*.
//!
//! Version 3 tells the states at both ends of an edge. Version 4 tells their change attributes (`change_info4`), and
//! attributes of some later moment: of changes that overlap, the last one's are those of its end. The known state goes
//! as far along the chain as there are attributes.
//!
//! Promise: own-changes

mod edge;
#[cfg(test)]
mod model;

use std::collections::VecDeque;

use vfs::{Attributes, Wcc, WccAttributes};

use edge::{Edge, Point};

/// How many of the states passed are remembered, to recognise late answers.
const PASSED_MAX: usize = 64;
/// Most edges and seen states that wait. More means that the first one will never link.
const WAITING_MAX: usize = 1024;

/// The last of the states that operations of ours have told, as far as can be said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latest {
    /// The one with the latest ctime, if any was told.
    pub attributes: Option<Attributes>,
    /// All operations have told one, and it is in no respect older than any of the others, or than what was known: if nobody
    /// else changes the object, this is its state.
    pub certain: bool,
}

/// What the end of an operation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Others are under way, and not all fits yet. If some of the chain was linked, this is how far it got.
    Waiting(Option<Attributes>),
    /// All changes were ours; the state is now this. `None` if it is the one that was known.
    Explained(Option<Attributes>),
    /// Some operation did not say what was before it: whatever changed, nothing proves that it was us alone.
    Blind(Latest),
    /// Somebody else changed the object.
    Foreign(Latest),
}

/// The operations of ours on one object that are under way, and what the finished ones left.
#[derive(Clone, Debug, Default)]
pub struct ChangeHistory {
    under_way: u32,
    blind: bool,
    /// Some operation has told no state at all.
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

    /// Is one under way?
    pub fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// While operations of ours are under way, attributes came in that are not the known ones.
    pub fn observe(&mut self, attributes: &Attributes) {
        if !self.has_passed(&attributes.wcc()) {
            self.remember_seen(*attributes);
        }
    }

    /// Has something been seen or told that does not fit yet? Then nothing cached may be used until it does: a change by
    /// somebody else may lie behind it.
    pub fn is_suspect(&self) -> bool {
        self.blind || !self.seen.is_empty() || !self.edges.is_empty()
    }

    /// Was this a state on the way to the known one?
    pub fn has_passed(&self, state: &WccAttributes) -> bool {
        self.is_passed(&Point::ObjectState(*state))
    }

    /// An operation ended, well or not, with what it told. `known` is the state that everything cached belongs to.
    pub fn end(&mut self, known: Option<&Attributes>, wcc: &Wcc) -> Verdict {
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

    /// An operation failed without having changed anything, and told the object's attributes or nothing.
    pub fn end_unchanged(&mut self, known: Option<&Attributes>, attributes: Option<&Attributes>) -> Verdict {
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

    /// The latest state that has been told yet, if all that are known can be put in order.
    pub fn latest<'a>(&'a self, known: &'a Attributes) -> Option<&'a Attributes> {
        let shown = self.edges.iter().filter_map(|edge| edge.shown.as_ref());
        let states = || shown.clone().chain(&self.seen).chain(std::iter::once(known));
        let full = self.edges.len() >= WAITING_MAX || self.seen.len() >= WAITING_MAX;
        let last = states().max_by_key(|state| (state.ctime, state.change))?;
        let certain = !self.untold && !full && states().all(|state| is_no_older(last, state));
        certain.then_some(last)
    }

    /// Follows the edges from `known`; gives the attributes where they end, if anywhere else. Edges beyond the last state
    /// of which there are attributes wait on.
    fn link(&mut self, known: &Attributes) -> Option<Attributes> {
        let mut at = Point::ObjectState(known.wcc());
        let mut way = Vec::new();
        // So many of them lead to these attributes.
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
        self.seen.retain(|seen| !passed.iter().any(|point| point.is(&Point::ObjectState(seen.wcc()))));
        self.passed = passed;
        shown.map(|_| attributes)
    }

    /// The edge that starts there. A change within one granule that leaves the size is a circle: it goes first, or it would
    /// be left over.
    fn take_next(&mut self, at: &Point) -> Option<Edge> {
        let links = |edge: &Edge| edge.before.is(at);
        let circles = |edge: &Edge| links(edge) && edge.is_circle();
        let next = self.edges.iter().position(circles).or_else(|| self.edges.iter().position(links))?;
        Some(self.edges.swap_remove(next))
    }

    fn seen_at(&self, at: &Point) -> Option<Attributes> {
        self.seen.iter().find(|seen| at.is(&Point::ObjectState(seen.wcc()))).copied()
    }

    /// Nothing is under way any more: judges, and starts afresh.
    fn conclude(&mut self, linked: Option<Attributes>, known: Option<&Attributes>) -> Verdict {
        // A circle whose reply came after that of the change that followed it.
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

/// Of two states that overlapping changes of ours have left, may `last` be the later one, whatever is looked at? Then it is,
/// unless the origin's clock has been set back between them. Two that were stamped in one granule and differ tell nothing.
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

    /// WRITEs over version 4 tell no state before.
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
        /// Our own writes are explained in whatever order their replies come; with one foreign write among them they
        /// never are. Some writes fall into one granule and change no attribute.
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
