//! The chain of our own changes of one object: which changes does weak cache consistency data explain?
//!
//! Each of our operations comes back as an edge from the state before it to the state after it. Replies of parallel
//! operations arrive in any order, so edges wait until they link: the known state, an edge that starts there, an edge
//! that starts where that one ends, and so on. When nothing of ours is under way any more, every edge has been linked
//! and every state that was seen meanwhile lies on the way, then all changes were ours. Otherwise somebody else
//! changed the object too. An operation that brought no state before it explains nothing: the chain is *blind*.

use std::collections::VecDeque;

use vfs::{Attributes, Wcc, WccAttributes};

/// How many of the states passed are remembered, to recognise late answers.
const PASSED_MAX: usize = 32;
/// Most edges and seen states that wait. More means that the first one will never link.
const WAITING_MAX: usize = 1024;

/// What the end of an operation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Others are under way, and not all fits yet. If some of the chain was linked, this is how far it got.
    Waiting(Option<Attributes>),
    /// All changes were ours; the state is now this. `None` if it is the one that was known.
    Explained(Option<Attributes>),
    /// Some operation did not say what was before it: whatever changed, nothing proves that it was us alone. The
    /// latest state seen, if any was.
    Blind(Option<Attributes>),
    /// Somebody else changed the object. The latest state seen.
    Foreign(Option<Attributes>),
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    before: WccAttributes,
    after: Attributes,
}

/// The operations of ours on one object that are under way, and what the finished ones left.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    under_way: u32,
    blind: bool,
    edges: Vec<Edge>,
    seen: Vec<Attributes>,
    passed: VecDeque<WccAttributes>,
}

impl Chain {
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
        self.passed.contains(state)
    }

    /// An operation ended, well or not, with what it told. `known` is the state that everything cached belongs to.
    pub fn end(&mut self, known: Option<&Attributes>, wcc: &Wcc) -> Verdict {
        self.under_way = self.under_way.saturating_sub(1);
        match (wcc.before, wcc.after) {
            (Some(before), Some(after)) if self.edges.len() < WAITING_MAX => {
                self.edges.push(Edge { before, after });
            }
            (_, Some(after)) => {
                self.blind = true;
                self.remember_seen(after);
            }
            (_, None) => self.blind = true,
        }
        let linked = known.and_then(|known| self.link(*known));
        if self.under_way > 0 {
            return Verdict::Waiting(linked);
        }
        self.conclude(linked)
    }

    /// An operation failed without having changed anything, and told the object's attributes or nothing.
    pub fn end_unchanged(&mut self, known: Option<&Attributes>, attributes: Option<&Attributes>) -> Verdict {
        self.under_way = self.under_way.saturating_sub(1);
        let same = |attributes: &Attributes| known.is_some_and(|known| known.wcc() == attributes.wcc());
        if let Some(attributes) = attributes.filter(|attributes| !same(attributes)) {
            self.observe(attributes);
        }
        let linked = known.and_then(|known| self.link(*known));
        if self.under_way > 0 { Verdict::Waiting(linked) } else { self.conclude(linked) }
    }

    /// Follows the edges from `known`; where they end, if anywhere else.
    fn link(&mut self, known: Attributes) -> Option<Attributes> {
        let mut at = known;
        let mut moved = false;
        loop {
            let here = at.wcc();
            let links = |edge: &Edge| edge.before == here;
            let circles = |edge: &Edge| links(edge) && edge.after.wcc() == here;
            // A change within one granule that leaves the size is a circle: it goes first, or it would be left over.
            let Some(next) =
                self.edges.iter().position(circles).or_else(|| self.edges.iter().position(links))
            else {
                break;
            };
            self.pass(here);
            at = self.edges.swap_remove(next).after;
            moved = true;
        }
        if !moved {
            return None;
        }
        self.pass(at.wcc());
        let passed = &self.passed;
        self.seen.retain(|seen| !passed.contains(&seen.wcc()));
        Some(at)
    }

    /// Nothing is under way any more: judges, and starts afresh.
    fn conclude(&mut self, linked: Option<Attributes>) -> Verdict {
        let mut edges = std::mem::take(&mut self.edges);
        // A circle whose reply came after that of the change that followed it.
        edges.retain(|edge| edge.before != edge.after.wcc() || !self.has_passed(&edge.before));
        let seen = std::mem::take(&mut self.seen);
        let blind = std::mem::take(&mut self.blind);
        if edges.is_empty() && seen.is_empty() && !blind {
            return Verdict::Explained(linked);
        }
        let states = linked.into_iter().chain(seen).chain(edges.into_iter().map(|edge| edge.after));
        let latest = states.max_by_key(|state| state.ctime);
        if blind { Verdict::Blind(latest) } else { Verdict::Foreign(latest) }
    }

    fn pass(&mut self, state: WccAttributes) {
        if self.passed.back() == Some(&state) {
            return;
        }
        if self.passed.len() == PASSED_MAX {
            self.passed.pop_front();
        }
        self.passed.push_back(state);
    }

    fn remember_seen(&mut self, attributes: Attributes) {
        if self.seen.len() < WAITING_MAX {
            self.seen.push(attributes);
        }
    }
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
        Wcc { before: Some(state(from).wcc()), after: Some(state(to)) }
    }

    fn run(edges: &[Wcc]) -> Verdict {
        let mut chain = Chain::default();
        let mut known = state(0);
        edges.iter().for_each(|_| chain.begin());
        let mut verdict = Verdict::Explained(None);
        for wcc in edges {
            verdict = chain.end(Some(&known), wcc);
            if let Verdict::Waiting(Some(at)) | Verdict::Explained(Some(at)) = verdict {
                known = at;
            }
        }
        if let Verdict::Explained(None) = verdict { Verdict::Explained(Some(known)) } else { verdict }
    }

    #[test]
    fn one_write_is_ours_or_not() {
        assert_eq!(run(&[edge(0, 1)]), Verdict::Explained(Some(state(1))));
        assert_eq!(run(&[edge(1, 2)]), Verdict::Foreign(Some(state(2))));
        assert_eq!(run(&[Wcc { before: None, after: Some(state(1)) }]), Verdict::Blind(Some(state(1))));
        assert_eq!(run(&[Wcc::default()]), Verdict::Blind(None));
    }

    #[test]
    fn a_state_seen_meanwhile_must_lie_on_the_way() {
        for (seen, ours) in [(1, true), (2, true), (3, false)] {
            let mut chain = Chain::default();
            chain.begin();
            chain.begin();
            chain.observe(&state(seen));
            assert!(chain.is_suspect());
            let verdict = chain.end(Some(&state(0)), &edge(1, 2));
            assert_eq!(verdict, Verdict::Waiting(None));
            let verdict = chain.end(Some(&state(0)), &edge(0, 1));
            assert_eq!(
                matches!(verdict, Verdict::Explained(Some(at)) if at == state(2)),
                ours,
                "{verdict:?}"
            );
            assert!(!chain.is_suspect());
        }
    }

    #[test]
    fn failures_explain_nothing_and_change_nothing() {
        let mut chain = Chain::default();
        chain.begin();
        assert_eq!(chain.end_unchanged(Some(&state(0)), Some(&state(0))), Verdict::Explained(None));
        chain.begin();
        assert_eq!(chain.end_unchanged(Some(&state(0)), Some(&state(1))), Verdict::Foreign(Some(state(1))));
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
