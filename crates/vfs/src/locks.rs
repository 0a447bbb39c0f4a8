//! The byte ranges of a file that owners have locked, by the rules of POSIX.
//!
//! Pure values. An owner that locks a range again changes the kind of the bytes in it. An owner that unlocks
//! the middle of a range keeps both ends. Adjacent ranges of one owner and kind are one range, whatever LOCKs
//! they came with. Ranges of different owners conflict if they share a byte and either is exclusive.
//!
//! Offsets and lengths are in bytes. An end is the offset behind the last byte, and `u64::MAX` is the end of
//! the file, however far it grows. The number of ranges is not bounded here: that is up to the user.

use crate::open::{Lock, LockKind, Owner};

/// May LOCK, LOCKU or LOCKT name these bytes? Not if there are none, or if they go beyond the largest offset
/// (RFC 8881, section 18.10.3).
pub fn is_range(offset: u64, length: u64) -> bool {
    length > 0 && (length == u64::MAX || offset.checked_add(length).is_some())
}

/// Locked bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// The offset behind the last byte; `u64::MAX` if the range has no end.
    pub end: u64,
    /// Shared or exclusive.
    pub kind: LockKind,
}

impl LockRange {
    /// The bytes of a lock.
    pub fn of(lock: &Lock) -> LockRange {
        LockRange { start: lock.offset, end: lock.end(), kind: lock.kind }
    }

    /// The number of bytes, as LOCK encodes it: `u64::MAX` if the range has no end.
    pub fn length(&self) -> u64 {
        if self.end == u64::MAX { u64::MAX } else { self.end - self.start }
    }

    /// This range as a lock of an owner.
    pub fn lock(&self, owner: &Owner) -> Lock {
        Lock { owner: owner.clone(), kind: self.kind, offset: self.start, length: self.length() }
    }

    fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// The part between these offsets. It is empty if there is none.
    fn cut(&self, start: u64, end: u64) -> LockRange {
        LockRange { start: self.start.max(start), end: self.end.min(end), kind: self.kind }
    }
}

/// The locked ranges of one owner on one file: ascending and disjoint, and adjacent ranges differ in kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockRanges(Vec<LockRange>);

impl LockRanges {
    /// Locks a range. Its bytes get its kind, whatever they had before.
    pub fn lock(&mut self, range: LockRange) {
        self.set(range.start, range.end, Some(range));
    }

    /// Unlocks all bytes from `start` up to but excluding `end`.
    pub fn unlock(&mut self, start: u64, end: u64) {
        self.set(start, end, None);
    }

    fn set(&mut self, start: u64, end: u64, new: Option<LockRange>) {
        // Adjacent ranges are included, so that they can merge.
        let first = self.0.partition_point(|range| range.end < start);
        let behind = first + self.0[first..].partition_point(|range| range.start <= end);
        let touched = &self.0[first..behind];
        let before = touched.iter().map(|range| range.cut(0, start));
        let after = touched.iter().map(|range| range.cut(end, u64::MAX));
        let mut pieces: Vec<LockRange> = Vec::with_capacity(3);
        for piece in before.chain(new).chain(after).filter(|piece| !piece.is_empty()) {
            match pieces.last_mut() {
                Some(last) if last.end == piece.start && last.kind == piece.kind => last.end = piece.end,
                _ => pieces.push(piece),
            }
        }
        self.0.splice(first..behind, pieces);
    }

    /// The locked parts of a range, in order. They have the kinds of their locks.
    pub fn within(&self, of: LockRange) -> impl Iterator<Item = LockRange> {
        let first = self.0.partition_point(|range| range.end <= of.start);
        let near = self.0[first..].iter().take_while(move |range| range.start < of.end);
        near.map(move |range| range.cut(of.start, of.end)).filter(|part| !part.is_empty())
    }

    /// The parts of a range that are not locked, in order. They have its kind.
    pub fn gaps(&self, of: LockRange) -> Vec<LockRange> {
        let mut gaps = Vec::new();
        let mut start = of.start;
        for range in self.within(of) {
            gaps.push(LockRange { start, end: range.start, ..of });
            start = range.end;
        }
        gaps.push(LockRange { start, ..of });
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// The first range that conflicts with a lock of another owner.
    pub fn conflict(&self, lock: &Lock) -> Option<LockRange> {
        let first = self.0.partition_point(|range| range.end <= lock.offset);
        let mut near = self.0[first..].iter().take_while(|range| range.start < lock.end());
        let exclusive = |kind| kind == LockKind::Exclusive;
        near.find(|range| exclusive(range.kind) || exclusive(lock.kind)).copied()
    }

    /// All locked ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = LockRange> {
        self.0.iter().copied()
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Is nothing locked?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<LockRange> for LockRanges {
    /// Locks one range after the other.
    fn from_iter<I: IntoIterator<Item = LockRange>>(all: I) -> LockRanges {
        let mut ranges = LockRanges::default();
        all.into_iter().for_each(|range| ranges.lock(range));
        ranges
    }
}

/// The lock of an owner other than that of `lock` that conflicts with it and begins first. If several begin
/// there, it is that of the least owner. `of_owners` are the locks of all owners on the file.
pub fn first_conflict<'a>(
    of_owners: impl IntoIterator<Item = (&'a Owner, &'a LockRanges)>,
    lock: &Lock,
) -> Option<Lock> {
    let others = of_owners.into_iter().filter(|(owner, _)| **owner != lock.owner);
    let conflicts = others.filter_map(|(owner, ranges)| Some((owner, ranges.conflict(lock)?)));
    let (owner, range) = conflicts.min_by_key(|(owner, range)| (range.start, *owner))?;
    Some(range.lock(owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    /// Bytes of the model. The last one stands for all bytes to the end of the file.
    const BYTES: usize = 40;

    type Model = [Option<LockKind>; BYTES];

    fn kind(exclusive: bool) -> LockKind {
        if exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }

    fn owner(n: u8) -> Owner {
        Owner(Bytes::copy_from_slice(&[n]))
    }

    fn lock(n: u8, exclusive: bool, offset: u64, length: u64) -> Lock {
        Lock { owner: owner(n), kind: kind(exclusive), offset, length }
    }

    /// The bytes of a range in the model.
    fn bytes(start: u64, end: u64) -> std::ops::Range<usize> {
        let end = if end == u64::MAX { BYTES } else { end as usize };
        start as usize..end.max(start as usize)
    }

    /// A range that is empty now and then, or has no end.
    fn range() -> impl Strategy<Value = (u64, u64)> {
        let last = BYTES as u64 - 1;
        (0..last)
            .prop_flat_map(move |start| (Just(start), prop_oneof![4 => start..last, 1 => Just(u64::MAX)]))
    }

    #[test]
    fn a_lock_to_the_end_of_the_file_has_no_end() {
        let mut ranges = LockRanges::default();
        ranges.lock(LockRange::of(&lock(1, true, 10, u64::MAX)));
        ranges.unlock(20, 25);
        let told: Vec<Lock> = ranges.iter().map(|range| range.lock(&owner(1))).collect();
        assert_eq!(told, [lock(1, true, 10, 10), lock(1, true, 25, u64::MAX)]);
        let gaps = |ranges: &LockRanges, offset| {
            let gaps = ranges.gaps(LockRange::of(&lock(1, false, offset, u64::MAX)));
            gaps.iter().map(|gap| gap.lock(&owner(1))).collect::<Vec<Lock>>()
        };
        assert_eq!(gaps(&ranges, 0), [lock(1, false, 0, 10), lock(1, false, 20, 5)]);
        ranges.unlock(30, u64::MAX);
        assert_eq!(gaps(&ranges, 28), [lock(1, false, 30, u64::MAX)]);
    }

    #[test]
    fn ranges_that_make_no_sense_are_none() {
        for (offset, length) in [(0, 0), (u64::MAX, 0), (2, u64::MAX - 1)] {
            assert!(!is_range(offset, length), "{offset} {length}");
        }
        assert!(is_range(2, u64::MAX - 2) && is_range(u64::MAX, u64::MAX) && is_range(0, 1));
    }

    #[test]
    fn the_first_conflict_is_that_with_the_lowest_offset_and_then_of_the_least_owner() {
        let ranges = |lock: Lock| (lock.owner.clone(), [LockRange::of(&lock)].into_iter().collect());
        let all: Vec<(Owner, LockRanges)> =
            vec![ranges(lock(3, true, 5, 1)), ranges(lock(1, true, 7, 9)), ranges(lock(2, false, 5, 2))];
        let first = |wanted: Lock| first_conflict(all.iter().map(|(owner, ranges)| (owner, ranges)), &wanted);
        assert_eq!(first(lock(9, true, 0, u64::MAX)), Some(lock(2, false, 5, 2)));
        assert_eq!(first(lock(9, false, 0, u64::MAX)), Some(lock(3, true, 5, 1)));
        assert_eq!(first(lock(3, false, 0, u64::MAX)), Some(lock(1, true, 7, 9)));
        assert_eq!(first(lock(9, true, 0, 5)), None);
    }

    /// Whether the ranges say of every byte what the model says, and nothing twice.
    fn agrees(ranges: &LockRanges, model: &Model) {
        let mut told: Model = [None; BYTES];
        let all: Vec<LockRange> = ranges.iter().collect();
        for range in &all {
            assert!(range.start < range.end);
            told[bytes(range.start, range.end)].fill(Some(range.kind));
        }
        assert_eq!(told, *model);
        for two in all.windows(2) {
            let apart = two[0].end < two[1].start;
            assert!(apart || (two[0].end == two[1].start && two[0].kind != two[1].kind), "{all:?}");
        }
        assert_eq!((ranges.len(), ranges.is_empty()), (all.len(), all.is_empty()));
        assert_eq!(ranges.iter().collect::<LockRanges>(), *ranges);
    }

    proptest! {
        /// Every sequence of steps gives what the same steps give on an array of bytes.
        #[test]
        fn ranges_are_what_every_byte_says(
            steps in prop::collection::vec((range(), 0..3u8), 1..60), asked in range(),
        ) {
            let (mut ranges, mut model): (LockRanges, Model) = (LockRanges::default(), [None; BYTES]);
            for ((start, end), step) in steps {
                let kind = (step < 2).then(|| kind(step == 1));
                match kind {
                    Some(kind) => ranges.lock(LockRange { start, end, kind }),
                    None => ranges.unlock(start, end),
                }
                model[bytes(start, end)].fill(kind);
                agrees(&ranges, &model);
            }
            let (start, end) = asked;
            let of = LockRange { start, end, kind: LockKind::Shared };
            let mut within: Model = [None; BYTES];
            ranges.within(of).for_each(|part| within[bytes(part.start, part.end)].fill(Some(part.kind)));
            let mut free = [false; BYTES];
            ranges.gaps(of).iter().for_each(|gap| free[bytes(gap.start, gap.end)].fill(true));
            for (at, byte) in model.iter().enumerate() {
                let inside = bytes(start, end).contains(&at);
                prop_assert_eq!(within[at], byte.filter(|_| inside));
                prop_assert_eq!(free[at], inside && byte.is_none());
            }
        }

        /// Locks of several owners, where a lock that conflicts is not entered.
        #[test]
        fn the_first_conflict_is_what_every_byte_says(
            steps in prop::collection::vec((0..3u8, any::<bool>(), range()), 1..40),
        ) {
            let mut all: Vec<(Owner, LockRanges)> =
                (0..3).map(|n| (owner(n), LockRanges::default())).collect();
            let mut model = [[None; BYTES]; 3];
            for (who, exclusive, (start, end)) in steps.into_iter().filter(|(_, _, (start, end))| start < end) {
                let length = if end == u64::MAX { u64::MAX } else { end - start };
                let wanted = lock(who, exclusive, start, length);
                let excludes = |held: Option<LockKind>| held.is_some_and(|held| exclusive || held == LockKind::Exclusive);
                let denied = |other: &u8| bytes(start, end).any(|at| excludes(model[usize::from(*other)][at]));
                let others: Vec<u8> = (0..3).filter(|other| *other != who).filter(denied).collect();
                let found = first_conflict(all.iter().map(|(owner, ranges)| (owner, ranges)), &wanted);
                prop_assert_eq!(found.is_some(), !others.is_empty());
                if let Some(found) = found {
                    prop_assert!(found.conflicts(&wanted));
                    // No byte before it conflicts.
                    let before = bytes(start, found.offset.max(start));
                    let free = |other: &u8| before.clone().all(|at| !excludes(model[usize::from(*other)][at]));
                    prop_assert!(others.iter().all(free));
                } else {
                    all[usize::from(who)].1.lock(LockRange::of(&wanted));
                    model[usize::from(who)][bytes(start, end)].fill(Some(kind(exclusive)));
                }
            }
        }
    }
}
