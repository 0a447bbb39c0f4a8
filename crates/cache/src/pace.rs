//! The pace of the link to the origin: its round trip and its bandwidth, as the traffic shows them.
//!
//! The bandwidth of a link shows only if enough bytes are in flight. So a window is a multiple of the product
//! of bandwidth and delay: four times, as long as each sample shows more bandwidth than the ones before, and
//! twice when that ends. In this way the window finds any bandwidth within a few round trips, and then keeps
//! at most one round trip's bytes in the queue before the bottleneck.
//!
//! This module is pure.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time over which bandwidth is measured.
const SAMPLE_MIN: Duration = Duration::from_millis(20);
/// A READ or WRITE of so many bytes is bulk data.
const BULK_BYTES: u64 = 64 << 10;
/// So long after the last bulk data, a small call finds the queues of the link empty.
const ALONE_AFTER: Duration = Duration::from_secs(3);
/// The round trip that is assumed before the first small call is answered.
const ROUND_TRIP: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug, Default)]
pub struct Pace {
    /// The shortest round trip lately.
    round_trip: Option<Duration>,
    /// When bulk data last went one way or the other.
    bulk: Option<Instant>,
    read: Bandwidth,
    written: Bandwidth,
}

/// The bandwidth in one direction.
#[derive(Debug, Default)]
struct Bandwidth {
    /// The best throughput lately, in bytes per second.
    best: f64,
    /// The last sample was a quarter better than any before.
    grows: bool,
    since: Option<Instant>,
    bytes: u64,
}

impl Pace {
    /// A small call was answered after this time.
    pub fn on_round_trip(&mut self, took: Duration, now: Instant) {
        // The shortest time counts. It rises slowly, so that a longer path is noticed in the end. Beside bulk
        // data it does not rise: the call has waited in a queue, and the window would follow its own queue.
        let beside_bulk = self.bulk.is_some_and(|at| now.saturating_duration_since(at) < ALONE_AFTER);
        let raised = |least: Duration| if beside_bulk { least } else { least + least / 64 };
        self.round_trip = Some(self.round_trip.map_or(took, |least| took.min(raised(least))));
    }

    /// A READ brought so many bytes. Returns the window for reading, in bytes.
    pub fn on_read(&mut self, bytes: u64, now: Instant) -> u64 {
        self.bulk = (bytes >= BULK_BYTES).then_some(now).or(self.bulk);
        let round_trip = self.round_trip.unwrap_or(ROUND_TRIP);
        self.read.on_bytes(bytes, now, round_trip);
        self.read.window_bytes(round_trip)
    }

    /// The origin has taken so many bytes of a WRITE. Returns the window for writing, in bytes.
    pub fn on_written(&mut self, bytes: u64, now: Instant) -> u64 {
        self.bulk = (bytes >= BULK_BYTES).then_some(now).or(self.bulk);
        let round_trip = self.round_trip.unwrap_or(ROUND_TRIP);
        self.written.on_bytes(bytes, now, round_trip);
        self.written.window_bytes(round_trip)
    }
}

impl Bandwidth {
    fn on_bytes(&mut self, bytes: u64, now: Instant, round_trip: Duration) {
        self.bytes += bytes;
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        if elapsed < round_trip.max(SAMPLE_MIN) {
            return;
        }
        let rate = self.bytes as f64 / elapsed.as_secs_f64();
        self.grows = rate > self.best * 1.25;
        self.best = rate.max(self.best * 0.9);
        self.since = Some(now);
        self.bytes = 0;
    }

    fn window_bytes(&self, round_trip: Duration) -> u64 {
        let gain = if self.grows { 4.0 } else { 2.0 };
        (gain * self.best * round_trip.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ROUND_TRIP: Duration = Duration::from_millis(200);

    /// A reader that always has a window in flight, on a link of this bandwidth. Returns the window after
    /// each round trip.
    fn windows(bytes_per_second: f64, first: u64, rounds: u32) -> Vec<u64> {
        let mut pace = Pace::default();
        let start = Instant::now();
        pace.on_round_trip(ROUND_TRIP, start);
        pace.on_read(0, start);
        let (mut window, mut now, mut windows) = (first, start, Vec::new());
        for _ in 0..rounds {
            // A window beyond the bandwidth takes longer than a round trip.
            let took = (window as f64 / bytes_per_second).max(ROUND_TRIP.as_secs_f64());
            now += Duration::from_secs_f64(took);
            window = pace.on_read(window, now).max(first);
            windows.push(window);
        }
        windows
    }

    #[test]
    fn the_window_finds_the_bandwidth_in_a_few_round_trips() {
        let product = 60_000_000;
        let windows = windows(300e6, 4 * MIB, 8);
        let filled = windows.iter().position(|window| *window >= product).unwrap();
        assert!(filled <= 2, "{windows:?}");
        assert!(
            windows[5..].iter().all(|window| (product..=2 * product + 1).contains(window)),
            "{windows:?}"
        );
    }

    #[test]
    fn a_slow_link_has_a_small_window() {
        let windows = windows(1e6, 4 * MIB, 4);
        assert_eq!(windows, [4 * MIB; 4], "the product is 200 kB");
    }

    #[test]
    fn the_window_does_not_follow_its_own_queue() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        pace.on_round_trip(ROUND_TRIP / 100, now);
        let mut window = 0;
        for _ in 0..1000 {
            now += ROUND_TRIP / 10;
            window = pace.on_read(2 * MIB, now);
            // Small calls wait behind the bytes in flight.
            pace.on_round_trip(ROUND_TRIP, now);
        }
        assert!(window < MIB, "{window}");
        // A longer path shows when nothing else is on it.
        now += ALONE_AFTER;
        (0..1000).for_each(|_| pace.on_round_trip(ROUND_TRIP, now));
        assert_eq!(pace.round_trip, Some(ROUND_TRIP));
    }

    #[test]
    fn less_traffic_lowers_the_window_slowly() {
        let mut pace = Pace::default();
        let start = Instant::now();
        pace.on_round_trip(Duration::from_millis(100), start);
        pace.on_written(0, start);
        let full = pace.on_written(10 * MIB, start + Duration::from_secs(1));
        assert_eq!(full, 4 * MIB);
        let less = pace.on_written(MIB, start + Duration::from_secs(2));
        assert_eq!(less, 9 * MIB / 5);
    }
}
