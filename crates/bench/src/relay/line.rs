//! One direction of the network: when bytes arrive, and how many have arrived.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::random::Random;

/// The random part of a line's delay.
#[derive(Debug)]
pub(super) struct Jitter {
    pub(super) most: Duration,
    pub(super) random: Random,
}

impl Jitter {
    fn next(&mut self) -> Duration {
        // Without jitter no random number is drawn: other users of the sequence are not disturbed.
        if self.most.is_zero() { Duration::ZERO } else { self.most.mul_f64(self.random.fraction()) }
    }
}

/// A wire. Bytes enter it one after the other at its bandwidth, and leave after the delay and the jitter.
///
/// The bytes of one connection stay in order: its queue sends nothing before an earlier chunk has left, so a
/// late chunk holds up those behind it.
#[derive(Debug)]
pub(super) struct Line {
    delay: Duration,
    bytes_per_second: Option<NonZeroU64>,
    entrance: Mutex<Entrance>,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Entrance {
    /// When the last byte accepted so far has entered, or will have.
    free_at: Option<Instant>,
    jitter: Jitter,
}

impl Line {
    pub(super) fn new(delay: Duration, bytes_per_second: Option<NonZeroU64>, jitter: Jitter) -> Line {
        let entrance = Mutex::new(Entrance { free_at: None, jitter });
        Line { delay, bytes_per_second, entrance, bytes: AtomicU64::new(0) }
    }

    /// When the last of `bytes` bytes that arrive `now` leaves the other end.
    pub(super) fn due(&self, now: Instant, bytes: usize) -> Instant {
        let mut entrance = self.entrance.lock();
        let entered = match self.bytes_per_second {
            None => now,
            Some(rate) => {
                let entering = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
                entrance.free_at.map_or(now, |free| free.max(now)) + entering
            }
        };
        entrance.free_at = Some(entered);
        entered + self.delay + entrance.jitter.next()
    }

    /// The most bytes to read at once, so that the bandwidth is kept in steps of a few milliseconds.
    pub(super) fn step_bytes(&self, most: usize) -> usize {
        self.bytes_per_second.map_or(most, |rate| ((rate.get() / 500) as usize).clamp(1500.min(most), most))
    }

    /// Counts bytes that have left.
    pub(super) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All bytes counted.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(delay: Duration, rate: Option<NonZeroU64>) -> Line {
        jittery(delay, rate, Duration::ZERO, 0)
    }

    fn jittery(delay: Duration, rate: Option<NonZeroU64>, most: Duration, seed: u64) -> Line {
        Line::new(delay, rate, Jitter { most, random: Random::new(seed) })
    }

    #[test]
    fn jitter_stays_within_its_bound_and_repeats_with_its_seed() {
        let now = Instant::now();
        let delays = |seed| -> Vec<Duration> {
            let line = jittery(20 * MS, None, 10 * MS, seed);
            (0..1000).map(|_| line.due(now, 100) - now).collect()
        };
        let (first, again, other) = (delays(5), delays(5), delays(6));
        assert!(first.iter().all(|delay| (20 * MS..30 * MS).contains(delay)));
        let mean = first.iter().sum::<Duration>() / 1000;
        assert!((24 * MS..26 * MS).contains(&mean), "{mean:?}");
        assert!(first == again && first != other);
    }

    #[test]
    fn jitter_takes_no_bandwidth() {
        let now = Instant::now();
        let line = jittery(20 * MS, NonZeroU64::new(1_000_000), 10 * MS, 1);
        let last = (0..100).map(|_| line.due(now, 1000) - now).last();
        // 100 kB at 1 MB/s, and then the delay.
        assert!(last.is_some_and(|last| (120 * MS..130 * MS).contains(&last)), "{last:?}");
    }

    #[test]
    fn without_a_cap_only_the_delay_counts() {
        let line = line(20 * MS, None);
        let now = Instant::now();
        assert_eq!(line.due(now, 1 << 30), now + 20 * MS);
        assert_eq!(line.due(now, 1), now + 20 * MS);
    }

    #[test]
    fn bytes_queue_for_the_bandwidth() {
        let line = line(20 * MS, NonZeroU64::new(1_000_000));
        let now = Instant::now();
        assert_eq!(line.due(now, 1000), now + 21 * MS);
        assert_eq!(line.due(now, 2000), now + 23 * MS);
        // An idle wire accumulates no credit.
        assert_eq!(line.due(now + 100 * MS, 1000), now + 121 * MS);
    }

    #[test]
    fn steps_suit_the_bandwidth() {
        let step = |rate| line(MS, NonZeroU64::new(rate)).step_bytes(65_536);
        assert_eq!([step(0), step(1), step(10_000_000), step(u64::MAX)], [65_536, 1500, 20_000, 65_536]);
    }
}
