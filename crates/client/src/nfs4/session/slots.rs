//! The slot table of a session (RFC 8881, section 2.10.6), without I/O: which slot a request takes, with which sequence
//! id, and what becomes of the slot when the reply comes, or does not.
//!
//! A slot whose request was given up without a reply is in doubt: the server may have seen the sequence id or not. It
//! is used for nothing else until a probe with the same sequence id has been answered.

/// What a request is for. Some slots are kept for what ends recalls, which everything else may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Anything else.
    Ordinary,
    /// Returning delegations, flushing for it, renewing, recovering.
    Recall,
}

/// A slot, taken for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// The highest slot in use, this one included.
    pub(crate) highest: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server took the sequence id.
    Taken,
    /// The server refused SEQUENCE itself: the sequence id is still the next one.
    Refused,
    /// Nobody knows.
    Doubt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Busy,
    Doubt,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    sequence: u32,
    state: State,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// So many may be used at present.
    usable: usize,
}

/// Of a session with at least four times as many slots, so many are kept for [`Work::Recall`].
const RESERVED_MAX: usize = 4;

impl Slots {
    /// A table of at least one slot.
    pub(crate) fn new(count: u32) -> Slots {
        let count = count.max(1) as usize;
        Slots { slots: vec![Slot { sequence: 1, state: State::Free }; count], usable: count }
    }

    /// How many may be used at present.
    #[cfg(test)]
    pub(crate) fn usable(&self) -> usize {
        self.usable
    }

    /// Takes the lowest free slot, if there is one for this work.
    pub(crate) fn acquire(&mut self, work: Work) -> Option<Grant> {
        let reserved = match work {
            Work::Ordinary => (self.usable / 4).min(RESERVED_MAX),
            Work::Recall => 0,
        };
        let free =
            self.slots.iter().take(self.usable - reserved).position(|slot| slot.state == State::Free)?;
        let slot = self.slots.get_mut(free)?;
        slot.state = State::Busy;
        let sequence = slot.sequence;
        let highest = self.slots.iter().rposition(|slot| slot.state != State::Free).unwrap_or(free);
        Some(Grant { slot: free as u32, sequence, highest: highest as u32 })
    }

    /// Is no request under way?
    pub(crate) fn are_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.state != State::Busy)
    }

    /// The request of a slot has ended.
    pub(crate) fn release(&mut self, slot: u32, end: End) {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return };
        match end {
            End::Taken => {
                slot.sequence = slot.sequence.wrapping_add(1);
                slot.state = State::Free;
            }
            End::Refused => slot.state = State::Free,
            End::Doubt => slot.state = State::Doubt,
        }
    }

    /// The slot in doubt with the lowest number, taken for a probe with the sequence id that is in doubt.
    pub(crate) fn probe(&mut self) -> Option<Grant> {
        let index = self.slots.iter().position(|slot| slot.state == State::Doubt)?;
        let slot = self.slots.get_mut(index)?;
        slot.state = State::Busy;
        let sequence = slot.sequence;
        let highest = self.slots.iter().rposition(|slot| slot.state != State::Free).unwrap_or(index);
        Some(Grant { slot: index as u32, sequence, highest: highest as u32 })
    }

    /// The server says which slots are to be used: `highest_slotid` is a bound, `target_highest_slotid` a wish.
    pub(crate) fn limit(&mut self, highest: u32, target: u32) {
        self.usable = (highest.min(target) as usize).saturating_add(1).min(self.slots.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn some_slots_are_kept_for_recalls() {
        let mut slots = Slots::new(8);
        let ordinary = std::iter::from_fn(|| slots.acquire(Work::Ordinary)).count();
        assert_eq!(ordinary, 6);
        let recall = std::iter::from_fn(|| slots.acquire(Work::Recall)).count();
        assert_eq!(recall, 2);
        let mut one = Slots::new(0);
        assert_eq!(one.acquire(Work::Ordinary), Some(Grant { slot: 0, sequence: 1, highest: 0 }));
        assert_eq!(one.acquire(Work::Recall), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Acquire(bool),
        Probe,
        Release(usize, u8),
        Limit(u32, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<bool>().prop_map(Step::Acquire),
            Just(Step::Probe),
            (0usize..8, 0u8..3).prop_map(|(which, end)| Step::Release(which, end)),
            (0u32..12, 0u32..12).prop_map(|(highest, target)| Step::Limit(highest, target)),
        ]
    }

    proptest! {
        /// Against a server that knows of each slot the last sequence id that it took: none of its ids is skipped, none
        /// comes twice but by a probe, and no slot has two requests.
        #[test]
        fn sequence_ids_follow_each_other(steps in proptest::collection::vec(step(), 0..200)) {
            let mut slots = Slots::new(8);
            let mut taken = BTreeMap::<u32, u32>::new();
            let mut busy = Vec::<Grant>::new();
            let mut doubt = BTreeMap::<u32, u32>::new();
            for step in steps {
                match step {
                    Step::Acquire(recall) => {
                        let work = if recall { Work::Recall } else { Work::Ordinary };
                        if let Some(grant) = slots.acquire(work) {
                            prop_assert!(busy.iter().all(|other| other.slot != grant.slot));
                            prop_assert!(!doubt.contains_key(&grant.slot));
                            prop_assert_eq!(grant.sequence, taken.get(&grant.slot).copied().unwrap_or(0) + 1);
                            prop_assert!(grant.highest >= grant.slot);
                            prop_assert!(busy.iter().all(|other| other.slot <= grant.highest));
                            prop_assert!((grant.slot as usize) < slots.usable());
                            busy.push(grant);
                        }
                    }
                    Step::Probe => {
                        if let Some(grant) = slots.probe() {
                            prop_assert_eq!(doubt.remove(&grant.slot), Some(grant.sequence));
                            busy.push(grant);
                        }
                    }
                    Step::Release(which, end) if which < busy.len() => {
                        let grant = busy.swap_remove(which);
                        let end = match end {
                            0 => {
                                taken.insert(grant.slot, grant.sequence);
                                End::Taken
                            }
                            1 => End::Refused,
                            _ => {
                                doubt.insert(grant.slot, grant.sequence);
                                End::Doubt
                            }
                        };
                        slots.release(grant.slot, end);
                    }
                    Step::Release(..) => {}
                    Step::Limit(highest, target) => slots.limit(highest, target),
                }
            }
        }
    }
}
