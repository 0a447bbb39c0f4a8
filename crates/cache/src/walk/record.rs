//! How the guesses of one kind have fared: are they made, or only noted?
//!
//! A program that looks for names in many places takes few of the entries that come next. After some wrong
//! guesses its walk only **notes** what it would have asked for, which costs nothing. It makes guesses again
//! once those would have been right.

/// So many guesses may be wrong at first.
const WRONG_MAX: u32 = 4;
/// One guess in so many may be wrong.
const WRONG_SHARE: u32 = 12;
/// After so many right guesses, all count half as much.
const RIGHT_MAX: u32 = 512;
/// So many guesses that were only noted have to be right. Each wrong one makes half as many of them count.
const NOTED_MIN: u32 = 12;

/// The outcome of the last guesses of one kind.
#[derive(Debug, Default)]
pub struct Record {
    right: u32,
    wrong: u32,
    notes: bool,
}

impl Record {
    /// Are guesses only noted now?
    pub fn only_notes(&self) -> bool {
        self.notes
    }

    /// The reader has come to what was guessed.
    pub fn right(&mut self) {
        self.right += 1;
        if self.notes && self.right >= NOTED_MIN {
            *self = Record::default();
        } else if self.right >= RIGHT_MAX {
            (self.right, self.wrong) = (self.right / 2, self.wrong / 2);
        }
    }

    /// The reader has passed so many guesses.
    pub fn wrong(&mut self, guesses: u32) {
        if self.notes {
            self.right = self.right.checked_shr(guesses).unwrap_or(0);
            return;
        }
        self.wrong = self.wrong.saturating_add(guesses);
        if self.wrong > WRONG_MAX + self.right / WRONG_SHARE {
            *self = Record { notes: true, ..Record::default() };
        }
    }

    /// The reader has come back to what it had passed.
    pub fn right_after_all(&mut self) {
        // The record may have begun anew meanwhile.
        self.wrong = self.wrong.saturating_sub(1);
        self.right();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_wrong_guesses_a_walk_only_notes_them_until_they_would_be_right() {
        let mut record = Record::default();
        record.wrong(WRONG_MAX);
        assert!(!record.only_notes());
        record.wrong(1);
        assert!(record.only_notes());
        for _ in 0..NOTED_MIN - 1 {
            record.right();
            assert!(record.only_notes());
        }
        record.right();
        assert!(!record.only_notes());
    }

    #[test]
    fn a_twelfth_may_be_wrong() {
        let mut record = Record::default();
        for round in 0..10_000 {
            if round % (WRONG_SHARE + 1) == 0 {
                record.wrong(1);
            } else {
                record.right();
            }
            assert!(!record.only_notes(), "round {round}");
        }
        record.wrong(WRONG_MAX + RIGHT_MAX / WRONG_SHARE);
        assert!(record.only_notes());
        for _ in 0..10 * NOTED_MIN {
            record.right();
            record.wrong(1);
        }
        assert!(record.only_notes(), "every other one is right");
    }

    #[test]
    fn what_the_reader_comes_back_to_was_right() {
        let mut record = Record::default();
        for _ in 0..100 {
            record.wrong(WRONG_MAX);
            (0..WRONG_MAX).for_each(|_| record.right_after_all());
        }
        assert!(!record.only_notes());
    }
}
