//! The line of one peer's calls, and its token buckets. Pure: the caller passes the time, in microseconds
//! since a moment of its choice.

use std::collections::VecDeque;

use super::Rates;

/// A bucket holds what its rate brings in this time.
const BURST_US: u64 = 100_000;
/// A bucket holds at least one operation, or this many bytes.
const BURST_MIN_BYTES: u64 = 64 << 10;
/// The unit of a bucket's level is a millionth, so that a rate is what comes in a microsecond.
const PARTS: i64 = 1_000_000;

/// A call that has begun, for [`Line::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    generation: u64,
    cost: u32,
}

/// What [`Line::next`] finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<W> {
    /// The first in line has left it, and its call has begun.
    Begin(W, Begun),
    /// The first in line waits until this time, or until a call ends.
    NotBefore(u64),
    /// Nobody waits.
    Nobody,
}

/// See the module. `W` is a call that waits.
#[derive(Debug)]
pub(super) struct Line<W> {
    running: Running,
    waiting: VecDeque<Waiting<W>>,
    buckets: Buckets,
}

/// The token buckets of a peer.
#[derive(Debug)]
pub(super) struct Buckets {
    operations: Bucket,
    bytes: Bucket,
}

impl Buckets {
    /// Full ones.
    pub(super) fn new(rates: Rates) -> Buckets {
        Buckets {
            operations: Bucket::new(rates.operations, 1),
            bytes: Bucket::new(rates.bytes, BURST_MIN_BYTES),
        }
    }

    /// Are both full?
    pub(super) fn are_full(&mut self, now: u64) -> bool {
        self.open_at(now);
        [&self.operations, &self.bytes].into_iter().all(|it| it.rate == 0 || it.level == it.most)
    }

    /// When both have something left.
    fn open_at(&mut self, now: u64) -> u64 {
        self.operations.fill(now);
        self.bytes.fill(now);
        self.operations.open_at(now).max(self.bytes.open_at(now))
    }
}

#[derive(Debug)]
struct Waiting<W> {
    waiter: W,
    cost: u32,
    bytes: i64,
}

/// Calls in progress, by the generation in which they began. Only those of two generations count.
#[derive(Debug)]
struct Running {
    /// Microseconds of a generation.
    hold: u64,
    generation: u64,
    now: u32,
    before: u32,
}

impl Running {
    fn advance(&mut self, now: u64) {
        let generation = now / self.hold;
        if generation > self.generation {
            self.before = if generation == self.generation + 1 { self.now } else { 0 };
            (self.generation, self.now) = (generation, 0);
        }
    }

    fn cost(&self) -> u32 {
        self.now.saturating_add(self.before)
    }
}

/// A token bucket. Its level may fall below zero, because a call is charged for what it has moved.
#[derive(Debug)]
struct Bucket {
    /// Units a second; 0 is no limit.
    rate: i64,
    level: i64,
    most: i64,
    at: u64,
}

impl Bucket {
    fn new(rate: Option<u64>, burst_min: u64) -> Bucket {
        let rate = rate.map_or(0, |rate| i64::try_from(rate).unwrap_or(i64::MAX));
        let least = i64::try_from(burst_min).unwrap_or(i64::MAX).saturating_mul(PARTS);
        let most = rate.saturating_mul(BURST_US as i64).max(least);
        Bucket { rate, level: most, most, at: 0 }
    }

    fn fill(&mut self, now: u64) {
        let passed = i64::try_from(now.saturating_sub(self.at)).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(self.rate.saturating_mul(passed)).min(self.most);
        self.at = self.at.max(now);
    }

    /// When the level is above zero. The bucket was filled at `now`.
    fn open_at(&self, now: u64) -> u64 {
        if self.rate == 0 || self.level > 0 { now } else { now + (-self.level / self.rate) as u64 + 1 }
    }

    fn take(&mut self, units: i64) {
        if self.rate > 0 {
            self.level = self.level.saturating_sub(units.saturating_mul(PARTS)).min(self.most);
        }
    }
}

impl<W> Line<W> {
    /// An empty line with these buckets. A call counts for at least `hold` microseconds, and twice that at
    /// most.
    pub(super) fn new(hold: u64, buckets: Buckets) -> Line<W> {
        Line {
            running: Running { hold, generation: 0, now: 0, before: 0 },
            waiting: VecDeque::new(),
            buckets,
        }
    }

    /// Takes the buckets out, at the end of the line.
    pub(super) fn take_buckets(&mut self) -> Buckets {
        std::mem::replace(&mut self.buckets, Buckets::new(Rates::default()))
    }

    /// What counts of the calls in progress.
    pub(super) fn running(&self) -> u32 {
        self.running.cost()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// May a call begin that does not wait? `part` is what may be in progress.
    pub(super) fn may_begin(&mut self, now: u64, part: u32) -> bool {
        self.waiting.is_empty() && self.open_at(now, part) <= now
    }

    /// When a call may begin, if none ends before.
    fn open_at(&mut self, now: u64, part: u32) -> u64 {
        self.running.advance(now);
        let next_generation = (self.running.generation + 1).saturating_mul(self.running.hold);
        let window = if self.running.cost() < part { now } else { next_generation };
        window.max(self.buckets.open_at(now))
    }

    /// Counts a call that begins.
    pub(super) fn begin(&mut self, now: u64, cost: u32) -> Begun {
        self.running.advance(now);
        self.running.now = self.running.now.saturating_add(cost);
        Begun { generation: self.running.generation, cost }
    }

    /// A call has ended. It may not count any more.
    pub(super) fn end(&mut self, begun: &Begun) {
        let running = &mut self.running;
        if begun.generation == running.generation {
            running.now = running.now.saturating_sub(begun.cost);
        } else if begun.generation + 1 == running.generation {
            running.before = running.before.saturating_sub(begun.cost);
        }
    }

    /// Takes operations and bytes out of the buckets.
    pub(super) fn charge(&mut self, operations: i64, bytes: i64) {
        self.buckets.operations.take(operations);
        self.buckets.bytes.take(bytes);
    }

    /// A call enters the end of the line.
    pub(super) fn enter(&mut self, waiter: W, cost: u32, bytes: i64) {
        self.waiting.push_back(Waiting { waiter, cost, bytes });
    }

    /// Takes the first out of the line if its turn has come. Calls that were given up (`is_gone`) leave the
    /// line, and count nothing.
    pub(super) fn next(&mut self, now: u64, part: u32, is_gone: impl Fn(&W) -> bool) -> Next<W> {
        self.waiting.retain(|waiting| !is_gone(&waiting.waiter));
        if self.waiting.is_empty() {
            return Next::Nobody;
        }
        let at = self.open_at(now, part);
        if at > now {
            return Next::NotBefore(at);
        }
        let Some(Waiting { waiter, cost, bytes }) = self.waiting.pop_front() else {
            return Next::Nobody;
        };
        self.charge(1, bytes);
        Next::Begin(waiter, self.begin(now, cost))
    }
}
