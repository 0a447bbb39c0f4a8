//! One direction of the network: how long bytes take, and how many have come through.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A wire: bytes enter it one after the other at its bandwidth, and each is out after the delay.
#[derive(Debug)]
pub(super) struct Line {
    delay: Duration,
    bytes_per_second: Option<NonZeroU64>,
    /// When the last byte that is known of has entered.
    free_at: Mutex<Option<Instant>>,
    bytes: AtomicU64,
}

impl Line {
    pub(super) fn new(delay: Duration, bytes_per_second: Option<NonZeroU64>) -> Line {
        Line { delay, bytes_per_second, free_at: Mutex::new(None), bytes: AtomicU64::new(0) }
    }

    /// When the last of `bytes` that want to enter `now` is out at the other end.
    pub(super) fn due(&self, now: Instant, bytes: usize) -> Instant {
        let Some(rate) = self.bytes_per_second else { return now + self.delay };
        let entering = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
        let mut free_at = self.free_at.lock();
        let entered = free_at.map_or(now, |free| free.max(now)) + entering;
        *free_at = Some(entered);
        entered + self.delay
    }

    /// The most bytes to be taken at once, so that the bandwidth is kept in steps of a few milliseconds.
    pub(super) fn step_bytes(&self, most: usize) -> usize {
        self.bytes_per_second.map_or(most, |rate| ((rate.get() / 500) as usize).clamp(1500.min(most), most))
    }

    /// Counts bytes that have come out.
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

    #[test]
    fn without_a_cap_only_the_delay_counts() {
        let line = Line::new(20 * MS, None);
        let now = Instant::now();
        assert_eq!(line.due(now, 1 << 30), now + 20 * MS);
        assert_eq!(line.due(now, 1), now + 20 * MS);
    }

    #[test]
    fn bytes_queue_for_the_bandwidth() {
        let line = Line::new(20 * MS, NonZeroU64::new(1_000_000));
        let now = Instant::now();
        assert_eq!(line.due(now, 1000), now + 21 * MS);
        assert_eq!(line.due(now, 2000), now + 23 * MS);
        // An idle wire saves nothing up.
        assert_eq!(line.due(now + 100 * MS, 1000), now + 121 * MS);
    }

    #[test]
    fn steps_suit_the_bandwidth() {
        let step = |rate| Line::new(MS, NonZeroU64::new(rate)).step_bytes(65_536);
        assert_eq!([step(0), step(1), step(10_000_000), step(u64::MAX)], [65_536, 1500, 20_000, 65_536]);
    }
}
