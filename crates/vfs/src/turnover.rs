//! Which leases a full table recalls so that it can grant others.
//!
//! Pure bookkeeping. A recall for each grant would be a storm: the holder of the recalled lease asks for it
//! again at its next open, and the next recall follows. Three rules bound the recalls of a table of `max`
//! leases:
//!
//! - A lease that was used within `idle_min` is not recalled to grant another lease. The grant is refused
//!   instead. So at most `max` leases are recalled in any time of `idle_min`.
//! - Leases are recalled in batches of at most [`BATCH_MAX`], so that most grants recall nothing.
//! - A batch follows only when all leases of the batch before have been returned or revoked.
//!
//! Promise: recalls-for-capacity

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::LeaseId;

/// Limit of leases that are recalled at one time.
pub const BATCH_MAX: usize = 256;
/// A batch is recalled when less than this part of the table is free.
const RESERVE_DIVISOR: usize = 16;
/// Times of use are known to this part of `idle_min`.
const GRAINS: u32 = 16;

/// The bookkeeping of one table. Each use of a lease has a stamp, which grows with every use.
#[derive(Debug)]
pub struct Turnover {
    max: usize,
    idle_min: Duration,
    last: Option<Mark>,
    /// Points in time, the oldest first. All but the first are younger than `idle_min`.
    marks: VecDeque<Mark>,
    /// The batch that was recalled and has not ended.
    recalled: HashSet<LeaseId>,
}

/// All uses with a smaller stamp were made by this time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    stamp: u64,
}

impl Turnover {
    /// For a table of at most `max` leases.
    pub fn new(max: usize, idle_min: Duration) -> Turnover {
        Turnover { max, idle_min, last: None, marks: VecDeque::new(), recalled: HashSet::new() }
    }

    /// Number of leases in the reserve of the table: a batch is recalled when it is touched.
    pub fn reserve(&self) -> usize {
        (self.max / RESERVE_DIVISOR).max(1)
    }

    /// May no lease be added to a table of `held` leases?
    pub fn is_full(&self, held: usize) -> bool {
        held >= self.max
    }

    /// Is the reserve of a table of `held` leases touched?
    pub fn is_nearly_full(&self, held: usize) -> bool {
        held >= self.max.saturating_sub(self.reserve())
    }

    /// A lease is used, with this stamp.
    pub fn used(&mut self, now: Instant, stamp: u64) {
        let grain = self.idle_min / GRAINS;
        if let Some(last) = self.last
            && self.marks.back().is_none_or(|mark| now.saturating_duration_since(mark.at) >= grain)
        {
            self.marks.push_back(last);
        }
        self.last = Some(Mark { at: now, stamp: stamp.saturating_add(1) });
        while self.marks.get(1).is_some_and(|mark| self.is_old(now, mark)) {
            self.marks.pop_front();
        }
    }

    /// The leases to recall now from a table of `held` leases. `by_use` yields the leases that may be
    /// recalled, with the stamp of the last use, the least recently used first. They count as recalled until
    /// [`Turnover::ended`].
    pub fn batch(
        &mut self,
        now: Instant,
        held: usize,
        by_use: impl Iterator<Item = (u64, LeaseId)>,
    ) -> Vec<LeaseId> {
        if !self.is_nearly_full(held) || !self.recalled.is_empty() {
            return Vec::new();
        }
        let Some(idle) = self.idle_before(now) else { return Vec::new() };
        let high = self.max.saturating_sub(self.reserve());
        let count = (held + self.reserve()).saturating_sub(high).clamp(1, BATCH_MAX);
        let oldest = by_use.take(count).take_while(|(stamp, _)| *stamp < idle);
        let batch: Vec<LeaseId> = oldest.map(|(_, id)| id).collect();
        self.recalled.extend(&batch);
        batch
    }

    /// A lease has ended, or its holder keeps it after all.
    pub fn ended(&mut self, id: LeaseId) {
        self.recalled.remove(&id);
    }

    /// Uses with a smaller stamp are older than `idle_min`.
    fn idle_before(&self, now: Instant) -> Option<u64> {
        let mut known = self.last.iter().chain(self.marks.iter().rev());
        known.find(|mark| self.is_old(now, mark)).map(|mark| mark.stamp)
    }

    fn is_old(&self, now: Instant, mark: &Mark) -> bool {
        now.saturating_duration_since(mark.at) >= self.idle_min
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    /// A table that grants whenever it may. Its holders return what is recalled when they are told to.
    struct Table {
        turnover: Turnover,
        by_use: BTreeMap<u64, LeaseId>,
        out: Vec<LeaseId>,
        now: Instant,
        stamp: u64,
        recalls: usize,
    }

    impl Table {
        fn new(max: usize) -> Table {
            let turnover = Turnover::new(max, IDLE);
            let (now, by_use) = (Instant::now(), BTreeMap::new());
            Table { turnover, by_use, out: Vec::new(), now, stamp: 0, recalls: 0 }
        }

        fn grant(&mut self) -> bool {
            self.stamp += 1;
            let held = self.by_use.len() + self.out.len();
            let batch = self.turnover.batch(self.now, held, self.by_use.iter().map(|(at, id)| (*at, *id)));
            // The batch are the first ones.
            for _ in &batch {
                self.by_use.pop_first();
            }
            self.recalls += batch.len();
            self.out.extend(batch);
            if self.turnover.is_full(held) {
                return false;
            }
            self.turnover.used(self.now, self.stamp);
            self.by_use.insert(self.stamp, LeaseId(self.stamp));
            true
        }

        fn give_back(&mut self) {
            self.out.drain(..).for_each(|id| self.turnover.ended(id));
        }
    }

    #[test]
    fn what_was_used_lately_is_not_recalled_for_another() {
        let mut table = Table::new(1000);
        let granted = (0..5000).filter(|_| table.grant()).count();
        assert_eq!((granted, table.recalls), (1000, 0));
        table.now += Duration::from_millis(29_999);
        assert!(!table.grant());
        assert_eq!(table.recalls, 0);
        table.now += Duration::from_millis(1);
        assert!(!table.grant());
        assert_eq!(table.recalls, 124, "the reserve of 62, twice");
    }

    #[test]
    fn a_batch_follows_when_the_one_before_has_ended() {
        let mut table = Table::new(100_000);
        (0..100_000).for_each(|_| assert!(table.grant()));
        table.now += IDLE;
        let granted = (0..5000).filter(|_| table.grant()).count();
        assert_eq!((granted, table.recalls), (0, BATCH_MAX), "the table is full until they are back");
        let last = table.out.pop().unwrap();
        table.give_back();
        table.out.push(last);
        let granted = (0..5000).filter(|_| table.grant()).count();
        assert_eq!((granted, table.recalls), (BATCH_MAX - 1, BATCH_MAX));
        table.give_back();
        let granted = (0..5000).filter(|_| table.grant()).count();
        assert_eq!((granted, table.recalls), (1, 2 * BATCH_MAX));
    }

    #[test]
    fn a_walk_through_many_files_recalls_each_idle_lease_once_and_no_other() {
        let mut table = Table::new(1000);
        let mut granted = 0;
        for _ in 0..600 {
            for _ in 0..100 {
                granted += usize::from(table.grant());
                table.give_back();
            }
            table.now += Duration::from_millis(100);
        }
        // A minute, 60,000 files: in any half minute at most the table once.
        assert!(table.recalls <= 2000, "{} recalls", table.recalls);
        assert!(granted <= 1000 + table.recalls && granted >= 1900, "{granted} of 60,000");
    }

    #[test]
    fn the_past_takes_little_memory() {
        let mut table = Table::new(1 << 20);
        for _ in 0..100_000 {
            table.grant();
            table.now += Duration::from_millis(7);
        }
        assert!(table.turnover.marks.len() <= GRAINS as usize + 2, "{}", table.turnover.marks.len());
    }
}
