//! Read-ahead: which bytes will a sequential reader want next?
//!
//! A kernel client sends the READs of one sequential reader in parallel, so they arrive slightly out of
//! order. A READ belongs to a stream if it starts near the position of the stream. From the second such READ
//! on, a window opens ahead of the stream. The window doubles while the reader follows. It grows up to twice
//! the bandwidth-delay product of the link to the origin, as measured, and up to the bound of the options.
//!
//! This module is pure: the caller fetches the ranges that it returns.

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

/// Readers that are followed per file.
const STREAMS_MAX: usize = 4;
/// The smallest first window.
const WINDOW_MIN_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The position of the reader.
    next: u64,
    /// The end of the bytes that were requested ahead.
    ahead: u64,
    window: u64,
    reads: u32,
    used: u64,
}

/// The sequential readers of one file.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    clock: u64,
}

impl Streams {
    /// A reader asks for `range` of a file of `size` bytes. Returns the range to fetch ahead of it, if any.
    /// The range ends at a complete chunk, and no window grows beyond `window_max`.
    pub fn on_read(
        &mut self,
        range: &Range<u64>,
        size: u64,
        window_max: u64,
        chunk: u64,
    ) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        let length = range.end - range.start;
        let near = |stream: &Stream| {
            let slack = stream.window.max(length * 4);
            range.start <= stream.next.saturating_add(slack)
                && stream.next <= range.start.saturating_add(slack)
        };
        let Some(stream) = self.streams.iter_mut().find(|stream| near(stream)) else {
            self.begin(range, clock);
            return None;
        };
        stream.used = clock;
        if range.end <= stream.next {
            return None;
        }
        // A reader that reads about the same place again is not sequential.
        stream.reads += u32::from(range.start >= stream.next);
        stream.next = range.end;
        if stream.reads < 2 || window_max == 0 {
            return None;
        }
        stream.extend(size, length, window_max, chunk)
    }

    fn begin(&mut self, range: &Range<u64>, clock: u64) {
        if self.streams.len() == STREAMS_MAX
            && let Some(oldest) = self.streams.iter().position_min(|stream| stream.used)
        {
            self.streams.swap_remove(oldest);
        }
        self.streams.push(Stream { next: range.end, ahead: range.end, window: 0, reads: 1, used: clock });
    }
}

impl Stream {
    fn extend(&mut self, size: u64, length: u64, window_max: u64, chunk: u64) -> Option<Range<u64>> {
        self.ahead = self.ahead.max(self.next);
        if self.window > 0 && self.ahead - self.next > self.window / 2 {
            return None;
        }
        let first = WINDOW_MIN_BYTES.max(length * 2);
        self.window = if self.window == 0 { first } else { self.window * 2 }.min(window_max);
        let end = self
            .next
            .saturating_add(self.window)
            .checked_next_multiple_of(chunk.max(1))
            .unwrap_or(size)
            .min(size);
        if end <= self.ahead {
            return None;
        }
        let start = std::mem::replace(&mut self.ahead, end);
        Some(start..end)
    }
}

trait PositionMin: Iterator {
    fn position_min<K: Ord>(self, key: impl Fn(&Self::Item) -> K) -> Option<usize>;
}

impl<I: Iterator> PositionMin for I {
    fn position_min<K: Ord>(self, key: impl Fn(&Self::Item) -> K) -> Option<usize> {
        self.map(|item| key(&item)).enumerate().min_by(|a, b| a.1.cmp(&b.1)).map(|(at, _)| at)
    }
}

/// The capacity of the link to the origin, as measured by its traffic.
#[derive(Debug, Default)]
pub struct Pace {
    /// The shortest round trip lately.
    round_trip: Option<Duration>,
    /// The best throughput lately, in bytes per second.
    rate: f64,
    since: Option<Instant>,
    bytes: u64,
}

impl Pace {
    /// A small call was answered after this time.
    pub fn on_round_trip(&mut self, took: Duration) {
        // The shortest time counts. It rises slowly, so that a longer path is noticed in the end.
        let least = self.round_trip.map_or(took, |least| took.min(least + least / 64));
        self.round_trip = Some(least);
    }

    /// A READ brought so many bytes.
    pub fn on_bytes(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        if elapsed < self.round_trip.unwrap_or_default().max(Duration::from_millis(20)) {
            return;
        }
        let rate = self.bytes as f64 / elapsed.as_secs_f64();
        self.rate = rate.max(self.rate * 0.9);
        self.since = Some(now);
        self.bytes = 0;
    }

    /// Twice the bandwidth-delay product, in bytes.
    pub fn window_bytes(&self) -> u64 {
        let round_trip = self.round_trip.unwrap_or(Duration::from_millis(10));
        (2.0 * self.rate * round_trip.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads the ranges one after the other. Returns the ranges to fetch ahead.
    fn ahead(reads: impl Iterator<Item = Range<u64>>, size: u64) -> Vec<Range<u64>> {
        let mut streams = Streams::default();
        reads.filter_map(|range| streams.on_read(&range, size, 8 * MIB, MIB)).collect()
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let offsets = [5u64, 900, 17, 333, 60, 700, 123];
        let reads = offsets.into_iter().map(|at| at * MIB..at * MIB + 4096);
        assert_eq!(ahead(reads, 1000 * MIB), []);
    }

    #[test]
    fn a_sequential_reader_is_kept_ahead_of_without_gaps() {
        let size = 20 * MIB + 77;
        let reads =
            (0..).map(|n| n * 65536..((n + 1) * 65536).min(size)).take_while(|range| range.start < size);
        let ahead = ahead(reads, size);
        assert_eq!(ahead[0].start, 2 * 65536);
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "{ahead:?}");
        assert_eq!(ahead.last().unwrap().end, size);
        assert!(ahead.len() < 12, "{ahead:?}");
    }

    #[test]
    fn parallel_reads_out_of_order_are_one_stream() {
        let order = [0u64, 2, 1, 3, 5, 4, 7, 6, 8, 9];
        let ahead = ahead(order.into_iter().map(|n| n * MIB..(n + 1) * MIB), 100 * MIB);
        assert!(!ahead.is_empty());
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "{ahead:?}");
    }

    #[test]
    fn the_window_follows_the_link() {
        let mut pace = Pace::default();
        let start = Instant::now();
        pace.on_round_trip(Duration::from_millis(100));
        pace.on_bytes(0, start);
        pace.on_bytes(10 * MIB, start + Duration::from_secs(1));
        assert_eq!(pace.window_bytes(), 2 * MIB);
    }
}
