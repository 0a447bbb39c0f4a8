//! The change history against a model of an origin. Our changes take effect in any order. Their replies
//! arrive in any order and may show later states. Strangers, which are other clients, change the object in
//! between. The history always notices a change by a stranger, and never takes one of our own changes for a
//! stranger's.
//!
//! Promise: own-changes

use proptest::prelude::*;
use vfs::{Attributes, ChangeInfo, Wcc};

use super::{ChangeHistory, Verdict};
use crate::testing::attributes;

/// The next event. A number selects one of the changes in flight.
#[derive(Clone, Debug)]
enum Step {
    Send,
    /// A change takes effect. The flag tells whether a compared attribute moves.
    Take(usize, bool),
    /// The reply to a change arrives. With the flag it may show the attributes of now, not those right after
    /// the change.
    Tell(usize, bool),
    /// Another client changes the object.
    Stranger,
    /// We send a GETATTR.
    Look,
}

/// A change of ours that is in flight.
#[derive(Clone, Copy)]
enum Change {
    Sent,
    Taken { before: usize, after: usize },
}

/// The n-th state.
fn state(n: usize) -> Attributes {
    attributes(n as u64, n as i64)
}

struct Model {
    version4: bool,
    history: ChangeHistory,
    /// The state that the cache knows, and the one that it began with.
    known: usize,
    base: usize,
    /// The latest state that was reported or seen.
    told: usize,
    /// For each change from one state to the next: was it made by a stranger?
    strange: Vec<bool>,
    under_way: Vec<Change>,
}

impl Model {
    fn now(&self) -> usize {
        self.strange.len()
    }

    fn is_strange(&self, to: usize) -> bool {
        self.strange[self.base..to].iter().any(|strange| *strange)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send => {
                self.history.begin();
                self.under_way.push(Change::Sent);
            }
            Step::Take(which, moves) => self.take(which, moves),
            Step::Tell(which, late) => self.tell(which, late),
            Step::Stranger => self.strange.push(true),
            Step::Look => self.look(),
        }
        if !self.history.is_suspect() {
            assert!(!self.is_strange(self.known), "a stranger's change is taken for ours");
        }
    }

    fn take(&mut self, which: usize, moves: bool) {
        let before = self.now();
        let mut sent = self.under_way.iter_mut().filter(|change| matches!(change, Change::Sent));
        if let Some(change) = sent.nth(which) {
            self.strange.extend(moves.then_some(false));
            *change = Change::Taken { before, after: before + usize::from(moves) };
        }
    }

    fn tell(&mut self, which: usize, late: bool) {
        let Some(Change::Taken { before, after }) = self.under_way.get(which).copied() else { return };
        self.under_way.remove(which);
        let shows = if late && self.version4 { self.now() } else { after };
        self.told = self.told.max(shows);
        let wcc = if self.version4 {
            let change = ChangeInfo { before: before as u64, after: after as u64 };
            Wcc { change: Some(change), ..Wcc::seen(Some(state(shows))) }
        } else {
            Wcc::around(state(before).wcc(), Some(state(shows)))
        };
        match self.history.end(Some(&state(self.known)), &wcc) {
            Verdict::Waiting(to) => self.go(to),
            Verdict::Explained(to) => {
                self.go(to);
                assert_eq!(self.known, self.told, "explained, but not to the end");
            }
            Verdict::Foreign(latest) => {
                assert!(self.is_strange(self.told), "nobody else was there");
                self.begin_at(latest.attributes.expect("states were told").change as usize);
            }
            Verdict::Blind(_) => panic!("all was told"),
        }
    }

    fn go(&mut self, to: Option<Attributes>) {
        if let Some(to) = to {
            self.known = to.change as usize;
        }
    }

    fn look(&mut self) {
        if self.known == self.now() {
            return;
        }
        if self.history.is_under_way() {
            self.told = self.now();
            self.history.observe(&state(self.told));
        } else {
            assert!(self.is_strange(self.now()), "ours would be known");
            self.begin_at(self.now());
        }
    }

    fn begin_at(&mut self, state: usize) {
        (self.known, self.base, self.told) = (state, state, state);
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Send),
        4 => (0..4usize, prop::bool::weighted(0.9)).prop_map(|(which, moves)| Step::Take(which, moves)),
        4 => (0..4usize, any::<bool>()).prop_map(|(which, late)| Step::Tell(which, late)),
        1 => Just(Step::Stranger),
        1 => Just(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn strangers_are_always_noticed(version4: bool, steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model {
            version4,
            history: ChangeHistory::default(),
            known: 0,
            base: 0,
            told: 0,
            strange: Vec::new(),
            under_way: Vec::new(),
        };
        steps.iter().for_each(|step| model.step(step));
        // The remaining changes complete. Afterwards everything is known, or a stranger's change was noticed.
        while !model.under_way.is_empty() {
            model.step(&Step::Take(0, true));
            model.step(&Step::Tell(0, false));
        }
        prop_assert!(!model.history.is_suspect());
    }
}
