//! How the guesses of one kind have fared: are they made, or only noted?
//!
//! A program that looks for names in many places takes few of the entries that come next. After some wrong
//! guesses its walk only **notes** what it would have asked for, which costs nothing. It makes guesses again
//! once those would have been right.
//!
//! The reader's steps are the clock. A guess is wrong if the reader has gone elsewhere many times more than
//! there were guesses: each time to an object of which no guess was made. As long as it comes to what was
//! guessed, it may still come to the others, which lie deeper in the tree or further away. A guess is also
//! wrong some steps after the reader has passed it: a reader may look into a directory first, and then at the
//! files beside it. A guess that would have needed no call is not counted. Nobody can say that of a note.

use std::collections::{HashMap, VecDeque};

use vfs::Handle;

/// So many guesses may be wrong at first.
const WRONG_MAX: u32 = 4;
/// One guess in so many may be wrong.
const WRONG_SHARE: u32 = 12;
/// After so many right guesses, all count half as much.
const RIGHT_MAX: u32 = 512;
/// So many more guesses that were only noted have to be right than wrong.
const NOTED_MIN: u32 = 12;
/// The largest number of notes that wait for the reader.
const NOTES_MAX: usize = 8;
/// A guess is wrong after so many strays, and so many more for each guess that was open.
const STRAYS: u64 = 16;
const STRAYS_FOR_EACH: u64 = 4;
/// A note is wrong after so many steps.
const NOTE_STEPS: u64 = 10;
/// Several readers may take turns: a step at one of the last objects is no new one.
const RECENT: usize = 16;

/// The outcome of the last guesses of one kind.
#[derive(Debug)]
pub struct Record {
    /// The guesses or notes that wait for the reader.
    open: HashMap<Handle, Open>,
    recent: VecDeque<Handle>,
    steps: u64,
    /// Steps to objects of which no guess was made.
    strays: u64,
    /// Steps after which a guess is wrong that the reader has passed.
    patience: u64,
    right: u32,
    wrong: u32,
    notes: bool,
}

/// When a guess or note is wrong.
#[derive(Clone, Copy, Debug)]
struct Open {
    strays: u64,
    steps: u64,
}

/// What a step says about the guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing was guessed about this object.
    Nothing,
    /// A guess or note about it was right.
    Right,
    /// The same, and from now on guesses are made again.
    Resumed,
}

impl Record {
    /// The record of a reader that may come back within so many steps to a guess that it has passed.
    pub fn new(patience: u64) -> Record {
        Record {
            open: HashMap::new(),
            recent: VecDeque::new(),
            steps: 0,
            strays: 0,
            patience,
            right: 0,
            wrong: 0,
            notes: false,
        }
    }

    /// Are guesses only noted now?
    pub fn only_notes(&self) -> bool {
        self.notes
    }

    /// May another guess or note be open, if a window of so many guesses is? Guesses far ahead of a reader
    /// that follows stay open for long.
    pub fn is_open(&self, window: usize) -> bool {
        self.open.len() < if self.notes { NOTES_MAX } else { 2 * window + self.right as usize }
    }

    /// Is the object one that the reader is expected to come to?
    pub fn expects(&self, handle: &Handle) -> bool {
        self.open.contains_key(handle)
    }

    /// A guess about an object is made, or noted.
    pub fn expect(&mut self, handle: Handle) {
        let strays = self.strays + STRAYS + STRAYS_FOR_EACH * self.open.len() as u64;
        let steps = if self.notes { self.steps + NOTE_STEPS } else { u64::MAX };
        self.open.insert(handle, Open { strays, steps });
    }

    /// A guess was not needed, or has failed.
    pub fn withdraw(&mut self, handle: &Handle) {
        self.open.remove(handle);
    }

    /// The reader has passed these objects.
    pub fn pass<'h>(&mut self, handles: impl Iterator<Item = &'h Handle>) {
        let soon = self.steps + self.patience;
        for handle in handles {
            if let Some(open) = self.open.get_mut(handle) {
                open.steps = soon.min(open.steps);
            }
        }
    }

    /// The reader takes a step at an object.
    pub fn step(&mut self, handle: &Handle) -> Said {
        let expected = self.open.remove(handle).is_some();
        if !self.recent.contains(handle) {
            self.steps += 1;
            self.strays += u64::from(!expected);
            self.recent.truncate(RECENT - 1);
            self.recent.push_front(*handle);
            self.judge();
        }
        if !expected {
            return Said::Nothing;
        }
        self.right += 1;
        if self.notes && self.right >= NOTED_MIN {
            self.open.clear();
            (self.right, self.wrong, self.notes) = (0, 0, false);
            return Said::Resumed;
        }
        if self.right >= RIGHT_MAX {
            (self.right, self.wrong) = (self.right / 2, self.wrong / 2);
        }
        Said::Right
    }

    /// Counts guesses as wrong that the reader has not come to.
    fn judge(&mut self) {
        let before = self.open.len();
        self.open.retain(|_, open| open.steps > self.steps && open.strays > self.strays);
        let wrong = u32::try_from(before - self.open.len()).unwrap_or(u32::MAX);
        if self.notes {
            self.right = self.right.saturating_sub(wrong);
            return;
        }
        self.wrong = self.wrong.saturating_add(wrong);
        if self.wrong > WRONG_MAX + self.right / WRONG_SHARE {
            // The guesses that are open may turn out right all the same.
            (self.right, self.wrong, self.notes) = (0, 0, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: usize = 8;

    /// A reader of numbered objects.
    struct Reader {
        record: Record,
        next: u32,
        made: u32,
    }

    impl Reader {
        fn new() -> Reader {
            Reader { record: Record::new(0), next: 0, made: 0 }
        }

        /// Guesses as many of the next objects as there may be.
        fn guess(&mut self) {
            while self.record.is_open(WINDOW) {
                self.record.expect(handle(self.next));
                self.made += u32::from(!self.record.only_notes());
                self.next += 1;
            }
        }

        /// Takes so many steps to objects that nobody guesses.
        fn stray(&mut self, steps: u32) {
            for _ in 0..steps {
                let steps = u32::try_from(self.record.steps).unwrap();
                assert_eq!(self.record.step(&handle(u32::MAX - steps)), Said::Nothing);
            }
        }
    }

    fn handle(n: u32) -> Handle {
        Handle::new(&n.to_be_bytes()).unwrap()
    }

    #[test]
    fn guesses_of_a_reader_that_goes_elsewhere_are_only_noted_until_it_follows() {
        let mut reader = Reader::new();
        for _ in 0..100 {
            reader.guess();
            reader.stray(10);
        }
        assert!(reader.record.only_notes() && reader.next > 100, "{} were noted", reader.next);
        assert!(reader.made <= 4 * WINDOW as u32, "{} were made", reader.made);
        reader.stray(100);
        for n in 1_000_000..1_000_000 + NOTED_MIN {
            assert!(reader.record.only_notes());
            reader.record.expect(handle(n));
            let said = reader.record.step(&handle(n));
            assert_eq!(said, if n + 1 < 1_000_000 + NOTED_MIN { Said::Right } else { Said::Resumed });
        }
        assert!(!reader.record.only_notes() && reader.record.open.is_empty());
    }

    #[test]
    fn a_reader_that_follows_may_pass_one_in_twelve() {
        let mut reader = Reader::new();
        for round in 0..10_000 {
            reader.guess();
            if round % (WRONG_SHARE + 1) == 0 {
                reader.record.pass([handle(round)].iter());
            } else {
                assert_eq!(reader.record.step(&handle(round)), Said::Right, "round {round}");
            }
            assert!(!reader.record.only_notes(), "round {round}");
        }
    }

    #[test]
    fn every_other_note_that_is_right_is_too_little() {
        let mut record = Record::new(0);
        record.notes = true;
        for n in 0..1000 {
            record.expect(handle(2 * n));
            record.expect(handle(2 * n + 1));
            record.pass([handle(2 * n)].iter());
            record.step(&handle(2 * n + 1));
            assert!(record.only_notes());
        }
    }

    #[test]
    fn a_reader_may_come_back_to_what_it_has_passed() {
        let mut record = Record::new(6);
        for n in 0..100 {
            let passed: Vec<Handle> = (0..6).map(|at| handle(10 * n + at)).collect();
            passed.iter().for_each(|handle| record.expect(*handle));
            record.pass(passed.iter());
            for handle in passed.iter().rev() {
                assert_eq!(record.step(handle), Said::Right);
            }
            assert!(!record.only_notes());
        }
    }

    #[test]
    fn guesses_that_are_open_when_others_were_wrong_count_if_they_are_used() {
        let mut record = Record::new(0);
        (0..40).for_each(|n| record.expect(handle(n)));
        let passed: Vec<Handle> = (0..5).map(handle).collect();
        record.pass(passed.iter());
        assert_eq!(record.step(&handle(5)), Said::Right);
        assert!(record.only_notes());
        let resumed = (6..40).position(|n| record.step(&handle(n)) == Said::Resumed);
        assert_eq!(resumed, Some(NOTED_MIN as usize - 2));
    }

    #[test]
    fn a_guess_that_needed_no_call_is_not_wrong_when_only_notes_are_made() {
        let mut record = Record::new(0);
        (0..6).for_each(|n| record.expect(handle(n)));
        let passed: Vec<Handle> = (0..5).map(handle).collect();
        record.pass(passed.iter());
        record.step(&handle(100));
        assert!(record.only_notes() && record.expects(&handle(5)));
        record.withdraw(&handle(5));
        assert!(!record.expects(&handle(5)));
    }

    #[test]
    fn readers_that_take_turns_at_a_few_objects_take_no_steps() {
        let mut record = Record::new(0);
        record.expect(handle(1000));
        for n in 0..1000 {
            record.step(&handle(n % 8));
        }
        assert!(record.expects(&handle(1000)));
    }
}
