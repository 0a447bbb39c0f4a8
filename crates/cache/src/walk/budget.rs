//! How many bytes guesses may bring that nobody has used.
//!
//! A reader at random must not pay for guesses: they may bring a twentieth of what readers have asked for,
//! and a first allowance. Bytes of guesses that were used are worth twice as many further guesses, so a walk
//! soon has as much as it needs. The account forgets wrong guesses by and by.

use std::time::Duration;

use tokio::time::Instant;

/// What may be guessed before anything is known, in bytes.
const ALLOWANCE_BYTES: u64 = 128 << 10;
/// One byte in so many that readers have asked for may be guessed in vain.
const SHARE_OF_DEMAND: u64 = 20;
/// After this time, everything counts half as much.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// The account of guessed bytes.
#[derive(Debug, Default)]
pub struct Budget {
    /// Guessed, and not used so far.
    unused: u64,
    /// Guessed and used.
    used: u64,
    /// Asked for by readers.
    demanded: u64,
    /// The bytes that readers had asked for when it was last told.
    counted: u64,
    halved: Option<Instant>,
}

impl Budget {
    /// Readers have asked for so many bytes since the start of the process.
    pub fn demand(&mut self, total: u64, now: Instant) {
        self.demanded += total.saturating_sub(self.counted);
        self.counted = self.counted.max(total);
        let halved = *self.halved.get_or_insert(now);
        let times = now.saturating_duration_since(halved).as_secs() / HALF_LIFE.as_secs();
        if times > 0 {
            self.halved = Some(now);
            for sum in [&mut self.unused, &mut self.used, &mut self.demanded] {
                *sum >>= times.min(63);
            }
        }
    }

    /// How many more bytes may be guessed, if at most `max` bytes may be unused.
    pub fn left(&self, max: u64) -> u64 {
        let earned = ALLOWANCE_BYTES + self.demanded / SHARE_OF_DEMAND + 2 * self.used;
        earned.min(max).saturating_sub(self.unused)
    }

    /// A guess brings so many bytes.
    pub fn guess(&mut self, bytes: u64) {
        self.unused += bytes;
    }

    /// A guess did not bring so many bytes as was thought.
    pub fn take_back(&mut self, bytes: u64) {
        self.unused = self.unused.saturating_sub(bytes);
    }

    /// A guess of so many bytes was used.
    pub fn spend(&mut self, bytes: u64) {
        self.unused = self.unused.saturating_sub(bytes);
        self.used += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 64 << 20;

    #[test]
    fn guesses_in_vain_are_a_twentieth_of_what_is_asked_for() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        let mut asked = 0;
        for _ in 0..10_000 {
            asked += 4096;
            budget.demand(asked, now);
            budget.guess(budget.left(MAX).min(4096));
        }
        assert!(budget.unused <= ALLOWANCE_BYTES + asked / SHARE_OF_DEMAND, "{budget:?}");
        assert!(budget.unused >= asked / SHARE_OF_DEMAND, "{budget:?}");
    }

    #[test]
    fn a_wrong_guess_is_forgotten_in_the_end() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        budget.demand(0, now);
        budget.guess(ALLOWANCE_BYTES);
        assert_eq!(budget.left(MAX), 0);
        budget.demand(0, now + HALF_LIFE);
        assert_eq!(budget.left(MAX), ALLOWANCE_BYTES / 2);
    }

    #[test]
    fn a_walk_that_uses_its_guesses_soon_has_as_much_as_it_needs() {
        let mut budget = Budget::default();
        for _ in 0..8 {
            let bytes = budget.left(MAX);
            budget.guess(bytes);
            budget.spend(bytes);
        }
        assert_eq!(budget.left(MAX), MAX);
    }
}
