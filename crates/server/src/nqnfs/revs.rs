//! `modifyrev`: never zero, higher after each modification, and never back, over a restart or a clock that jumps.
//!
//! A file system's change attribute is made of the time of day, here and at most origins, so it goes back when the clock
//! does. A pure machine holds what was given out against the clock: `modifyrev` is the change attribute and an offset,
//! which grows by what the clock loses, and by a margin, so that what is modified after a jump is above all that was
//! given before. A file that was not modified gets a higher one too, once: who has it cached fetches it again.
//!
//! The offset and how far the shifted clock has come are durable, the latter a little ahead of time. After a restart of
//! less than that while the clock went on, nothing is shifted: the caches of clients stay good.
//!
//! Assumed: a jump is noticed within [`MARGIN`], which is to say that somebody asks for a `modifyrev` so often, or that
//! what was modified in between was not cached anywhere; and the clock did not jump before anybody ever asked.

/// By how much more than it must the offset grows: one hour in nanoseconds.
const MARGIN: u64 = 3_600_000_000_000;
/// How far ahead the durable mark is: ten seconds in nanoseconds.
const AHEAD: u64 = 10_000_000_000;

/// See the module. Times are nanoseconds since 1970.
#[derive(Clone, Debug)]
pub(super) struct Revs {
    offset: u64,
    /// The highest that the clock and the offset of its time have been.
    reached: u64,
    /// What the record says: offset, and a time that `reached` is not beyond.
    stored: (u64, u64),
}

impl Revs {
    /// After a start at `now`, with what the record says: zeros, if there is none.
    pub(super) fn new(now: u64, offset: u64, stored: u64) -> Revs {
        // The mark was ahead of time by so much at most, so that a clock before that has gone back.
        let reached = stored.saturating_sub(AHEAD);
        let mut revs = Revs { offset, reached, stored: (offset, stored) };
        revs.advance(now);
        revs
    }

    /// `modifyrev` of a file with this change attribute, at `now`.
    pub(super) fn of(&mut self, now: u64, change: u64) -> u64 {
        self.advance(now);
        // From before a jump, and above what the next modification gets: until the clock has come so far, the file has a
        // higher one each time, and is not taken for unchanged.
        let change = if self.offset > 0 { change.min(now) } else { change };
        change.saturating_add(self.offset).max(1)
    }

    /// What must be durable before the last answer is given out, if it is not.
    pub(super) fn to_be_stored(&self) -> Option<(u64, u64)> {
        let (offset, reached) = self.stored;
        (self.offset != offset || self.reached > reached)
            .then_some((self.offset, self.reached.saturating_add(AHEAD)))
    }

    /// It is durable.
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
            // A jump from before anybody asked is not seen.
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
