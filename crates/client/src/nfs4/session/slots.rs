//! The slot table of a session (RFC 8881, section 2.10.6), without I/O. It decides which slot and sequence id
//! a request takes, and what becomes of the slot with or without a reply.
//!
//! If a request was given up without a reply, its slot is in doubt: the server may or may not have seen the
//! sequence id. The slot is not used again until the server has answered a probe with the same sequence id.

/// The purpose of a request. Some slots are reserved for requests that end recalls, because all other
/// requests may wait for those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Any other request.
    Ordinary,
    /// Returning delegations, flushing data for that, renewing, recovering.
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
    /// Unknown.
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
    table: Vec<Slot>,
    /// Number of slots that may be used now.
    usable: usize,
    /// One more than the highest slot that is not free.
    taken_end: usize,
}

/// Most slots reserved for [`Work::Recall`]. A session reserves a quarter of its usable slots, up to this
/// number.
const RESERVED_MAX: usize = 4;

impl Slots {
    /// A table of at least one slot.
    pub(crate) fn new(count: u32) -> Slots {
        let count = count.max(1) as usize;
        Slots { table: vec![Slot { sequence: 1, state: State::Free }; count], usable: count, taken_end: 0 }
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> u32 {
        self.table.len() as u32
    }

    /// Number of slots that may be used now.
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
            self.table.iter().take(self.usable - reserved).position(|slot| slot.state == State::Free)?;
        let slot = self.table.get_mut(free)?;
        slot.state = State::Busy;
        let sequence = slot.sequence;
        self.taken_end = self.taken_end.max(free + 1);
        Some(Grant { slot: free as u32, sequence, highest: self.taken_end as u32 - 1 })
    }

    /// Is no request in flight?
    pub(crate) fn are_idle(&self) -> bool {
        self.taken().iter().all(|slot| slot.state != State::Busy)
    }

    /// Notes the end of a slot's request.
    pub(crate) fn release(&mut self, slot: u32, end: End) {
        let Some(slot) = self.table.get_mut(slot as usize) else { return };
        match end {
            End::Taken => {
                slot.sequence = slot.sequence.wrapping_add(1);
                slot.state = State::Free;
            }
            End::Refused => slot.state = State::Free,
            End::Doubt => slot.state = State::Doubt,
        }
        let highest = self.taken().iter().rposition(|slot| slot.state != State::Free);
        self.taken_end = highest.map_or(0, |highest| highest + 1);
    }

    /// The slots up to the highest that is not free.
    fn taken(&self) -> &[Slot] {
        self.table.get(..self.taken_end).unwrap_or_default()
    }

    /// Takes the lowest slot in doubt, for a probe with the sequence id in doubt.
    pub(crate) fn probe(&mut self) -> Option<Grant> {
        let index = self.taken().iter().position(|slot| slot.state == State::Doubt)?;
        let slot = self.table.get_mut(index)?;
        slot.state = State::Busy;
        Some(Grant { slot: index as u32, sequence: slot.sequence, highest: self.taken_end as u32 - 1 })
    }

    /// Applies the server's limits: `highest_slotid` is a bound, and `target_highest_slotid` a request.
    pub(crate) fn limit(&mut self, highest: u32, target: u32) {
        self.usable = (highest.min(target) as usize).saturating_add(1).min(self.table.len());
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
        /// Runs against a model of a server that knows the last sequence id of each slot. The table skips no
        /// id, repeats one only for a probe, and never puts two requests into one slot.
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
