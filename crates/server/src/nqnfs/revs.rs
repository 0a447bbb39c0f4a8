//! `modifyrev`: never zero, higher after each modification, and never going back after a restart or a clock
//! jump.
//!
//! Here and at most origins, the change attribute is derived from the time of day, so it goes back with the
//! clock. A pure state machine compares the values given out with the clock. `modifyrev` is the change
//! attribute plus an offset. The offset grows by the time that the clock loses, and by a margin. So a
//! modification after a jump gets a value above all earlier ones. A file that was not modified gets a
//! higher value once too, and clients fetch it again.
//!
//! The offset and the highest shifted time are durable, the latter a little ahead of time. If a restart
//! takes less than that and the clock went on, nothing is shifted and the caches of clients stay valid.
//!
//! Assumptions: a jump is noticed within [`MARGIN`]. That holds if clients ask for a `modifyrev` often
//! enough, or if no client cached the files that were modified in between. And the clock did not jump
//! before the first request.

/// The extra growth of the offset: one hour in nanoseconds.
const MARGIN: u64 = 3_600_000_000_000;
/// How far the durable mark is ahead: ten seconds in nanoseconds.
const AHEAD: u64 = 10_000_000_000;

/// See the module. Times are nanoseconds since 1970.
#[derive(Clone, Debug)]
pub(super) struct Revs {
    offset: u64,
    /// The highest sum of the clock and the offset so far.
    reached: u64,
    /// The contents of the record: the offset, and a time that `reached` has not passed.
    stored: (u64, u64),
}

impl Revs {
    /// The state after a start at `now`, with the contents of the record: zeros if there is none.
    pub(super) fn new(now: u64, offset: u64, stored: u64) -> Revs {
        // The mark was at most this far ahead. If the clock is before the rest, it has gone back.
        let reached = stored.saturating_sub(AHEAD);
        let mut revs = Revs { offset, reached, stored: (offset, stored) };
        revs.advance(now);
        revs
    }

    /// The `modifyrev` of a file with this change attribute, at `now`.
    pub(super) fn of(&mut self, now: u64, change: u64) -> u64 {
        self.advance(now);
        // A change attribute from before a jump is ahead of the clock, and above the value of the next
        // modification. Until the clock has caught up, the file gets a higher value each time, so that
        // clients do not take it as unchanged.
        let change = if self.offset > 0 { change.min(now) } else { change };
        change.saturating_add(self.offset).max(1)
    }

    /// The values that must be durable before the last answer is sent, if they are not yet.
    pub(super) fn to_be_stored(&self) -> Option<(u64, u64)> {
        let (offset, reached) = self.stored;
        (self.offset != offset || self.reached > reached)
            .then_some((self.offset, self.reached.saturating_add(AHEAD)))
    }

    /// The values are durable.
    pub(super) fn stored(&mut self, offset: u64, reached: u64) {
        if (offset, reached) > self.stored {
            self.stored = (offset, reached);
        }
    }

    fn advance(&mut self, now: u64) {
        let shifted = now.saturating_add(self.offset);
        if shifted < self.reached {
            self.offset = self.offset.saturating_add(self.reached - shifted).saturating_add(MARGIN);
        }
        self.reached = self.reached.max(now.saturating_add(self.offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: u64 = 1_700_000_000_000_000_000;

    #[test]
    fn it_is_the_change_attribute_while_the_clock_goes_on() {
        let mut revs = Revs::new(START, 0, 0);
        assert_eq!(revs.of(START + 5, START), START);
        assert_eq!(revs.of(START + 6, 0), 1, "never zero");
        let (offset, reached) = revs.to_be_stored().unwrap();
        revs.stored(offset, reached);
        assert_eq!(revs.to_be_stored(), None);
        // A restart within the mark's advance, and one long after.
        for later in [7, 1 << 50] {
            assert_eq!(Revs::new(START + later, offset, reached).of(START + later, START), START);
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Modify,
        Look,
        Pass(u64),
        Back(u64),
        Restart,
    }

    proptest! {
        /// One file whose change attribute is the time of its last modification.
        #[test]
        fn it_grows_with_every_modification_whatever_the_clock_does(steps in prop::collection::vec(prop_oneof![
            4 => Just(Step::Modify), 4 => Just(Step::Look),
            4 => (1u64..MARGIN / 100).prop_map(Step::Pass),
            1 => (AHEAD..1 << 60).prop_map(Step::Back),
            1 => Just(Step::Restart),
        ], 1..80)) {
            let mut now = START;
            let mut revs = Revs::new(now, 0, 0);
            let (mut change, mut modified) = (now, true);
            let mut last = 0;
            // A jump before the first request is not noticed, so look once first.
            for step in std::iter::once(Step::Look).chain(steps) {
                match step {
                    Step::Modify => {
                        now += 1;
                        (change, modified) = (now, true);
                    }
                    Step::Look => {
                        let rev = revs.of(now, change);
                        if let Some((offset, reached)) = revs.to_be_stored() {
                            revs.stored(offset, reached);
                        }
                        prop_assert!(rev > last || (rev == last && !modified), "{rev} after {last}");
                        (last, modified) = (rev, false);
                    }
                    Step::Pass(time) => now += time,
                    Step::Back(time) => now = now.checked_sub(time).filter(|then| *then > START / 4).unwrap_or(now),
                    Step::Restart => revs = Revs::new(now, revs.stored.0, revs.stored.1),
                }
            }
        }
    }
}
