//! Read-ahead: which bytes will a sequential reader want next?
//!
//! A kernel client sends the READs of one sequential reader in parallel, so they arrive slightly out of
//! order. A READ belongs to a stream if it starts near the position of the stream. From the second such READ
//! on, a window opens ahead of the stream. The window grows while the reader follows, up to the
//! window of the link to the origin ([`crate::pace`]), and up to the bound of the options.
//!
//! This module is pure: the caller fetches the ranges that it returns.

use std::ops::Range;

/// Readers that are followed per file.
const STREAMS_MAX: usize = 4;
/// The largest distance from the position of a stream at which a READ belongs to it, unless it is long.
const SLACK_MAX_BYTES: u64 = 16 << 20;
/// The smallest first window.
const WINDOW_MIN_BYTES: u64 = 256 << 10;
/// A window grows by this factor when the reader has gone through half of it.
const GROWTH: u64 = 4;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The position of the reader.
    next: u64,
    /// The end of the bytes that were requested ahead.
    ahead: u64,
    window: u64,
    /// The position of the reader when the window was set.
    grown_at: u64,
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
    /// The range ends at a complete chunk, unless it would be longer than `free` bytes. No window grows
    /// beyond `window_max` bytes.
    pub fn on_read(
        &mut self,
        range: &Range<u64>,
        size: u64,
        (window_max, free): (u64, u64),
        chunk: u64,
    ) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        let length = range.end - range.start;
        let near = |stream: &Stream| {
            let slack = stream.window.min(SLACK_MAX_BYTES).max(length * 4);
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
        stream.extend(size, length, (window_max, free), chunk)
    }

    fn begin(&mut self, range: &Range<u64>, clock: u64) {
        if self.streams.len() == STREAMS_MAX
            && let Some(oldest) = self.streams.iter().position_min(|stream| stream.used)
        {
            self.streams.swap_remove(oldest);
        }
        self.streams.push(Stream {
            next: range.end,
            ahead: range.end,
            window: 0,
            grown_at: 0,
            reads: 1,
            used: clock,
        });
    }
}

impl Stream {
    fn extend(
        &mut self,
        size: u64,
        length: u64,
        (window_max, free): (u64, u64),
        chunk: u64,
    ) -> Option<Range<u64>> {
        self.ahead = self.ahead.max(self.next);
        if self.window == 0 {
            // A sixteenth of what the link holds is little to bring in vain.
            let first = WINDOW_MIN_BYTES.max(length * 2).max(window_max / 16);
            (self.window, self.grown_at) = (first, self.next);
        } else if self.next - self.grown_at >= self.window / 2 {
            (self.window, self.grown_at) = (self.window * GROWTH, self.next);
        }
        self.window = self.window.min(window_max);
        // A link is full only if the window is. So it is filled again as soon as an eighth of it is free.
        if self.ahead - self.next > self.window - self.window / 8 {
            return None;
        }
        let end = self
            .next
            .saturating_add(self.window)
            .checked_next_multiple_of(chunk.max(1))
            .unwrap_or(size)
            .min(size)
            .min(self.ahead.saturating_add(free));
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads the ranges one after the other. Returns the ranges to fetch ahead.
    fn ahead(reads: impl Iterator<Item = Range<u64>>, size: u64) -> Vec<Range<u64>> {
        let mut streams = Streams::default();
        reads.filter_map(|range| streams.on_read(&range, size, (8 * MIB, u64::MAX), MIB)).collect()
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
        assert!(ahead.len() < 40, "{ahead:?}");
    }

    #[test]
    fn what_has_no_capacity_is_fetched_ahead_later() {
        let mut streams = Streams::default();
        let mut read =
            |n: u64, free| streams.on_read(&(n * MIB..(n + 1) * MIB), 100 * MIB, (8 * MIB, free), MIB);
        assert_eq!(read(0, 0), None);
        assert_eq!(read(1, 0), None);
        assert_eq!(read(2, MIB), Some(3 * MIB..4 * MIB));
        assert_eq!(read(3, u64::MAX), Some(4 * MIB..12 * MIB));
    }

    #[test]
    fn parallel_reads_out_of_order_are_one_stream() {
        let order = [0u64, 2, 1, 3, 5, 4, 7, 6, 8, 9];
        let ahead = ahead(order.into_iter().map(|n| n * MIB..(n + 1) * MIB), 100 * MIB);
        assert!(!ahead.is_empty());
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "{ahead:?}");
    }
}
