//! Sets of byte ranges: which parts of a file are on this disk (Badros' page bitmap, to the byte).
//!
//! The ranges are sorted, disjoint and not adjacent. Their number is bounded, so that a client that touches
//! every other byte cannot make a record grow without end. A range beyond the bound is not remembered.

use std::ops::Range;

/// The largest number of ranges in a set. At sixteen bytes each, a record stays below half a megabyte.
const RANGES_MAX: usize = 16_384;
/// Cached data starts and ends at multiples of this, except at the end of the file.
pub const BLOCK_BYTES: u64 = 4096;

/// A set of bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u64>>,
}

impl RangeSet {
    /// Adds a range. False if the set already has the largest number of ranges; then nothing is added.
    pub fn insert(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let first = self.ranges.partition_point(|there| there.end < range.start);
        let last = self.ranges.partition_point(|there| there.start <= range.end);
        if first == last {
            if self.ranges.len() >= RANGES_MAX {
                return false;
            }
            self.ranges.insert(first, range);
            return true;
        }
        let start = self.ranges[first].start.min(range.start);
        let end = self.ranges[last - 1].end.max(range.end);
        self.ranges[first] = start..end;
        self.ranges.drain(first + 1..last);
        true
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|there| there.end <= range.start);
        let last = self.ranges.partition_point(|there| there.start < range.end);
        if first >= last {
            return;
        }
        let before = self.ranges[first].start..range.start;
        let after = range.end..self.ranges[last - 1].end;
        let rest = [before, after].into_iter().filter(|rest| rest.start < rest.end);
        self.ranges.splice(first..last, rest);
    }

    /// Removes everything that is in `other`.
    pub fn subtract(&mut self, other: &RangeSet) {
        for range in &other.ranges {
            self.remove(range.clone());
        }
    }

    /// Removes everything from `end` on.
    #[cfg(test)]
    pub fn clip(&mut self, end: u64) {
        self.remove(end..u64::MAX);
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Is all of the range in the set?
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.over(range).first().is_some_and(|there| covers(there, range))
    }

    /// Is any of the range in the set?
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && !self.over(range).is_empty()
    }

    /// The parts of `range` that are not in the set, in order.
    pub fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for there in self.over(range) {
            if at < there.start {
                missing.push(at..there.start);
            }
            at = at.max(there.end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// The parts of `range` that are in the set, in order.
    pub fn present(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let clipped = |there: &Range<u64>| there.start.max(range.start)..there.end.min(range.end);
        self.over(range).iter().map(clipped).filter(|part| !part.is_empty()).collect()
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of bytes in the set.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.ranges.iter()
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges that share a byte with `range`.
    fn over(&self, range: &Range<u64>) -> &[Range<u64>] {
        let first = self.ranges.partition_point(|there| there.end <= range.start);
        let last = self.ranges.partition_point(|there| there.start < range.end);
        self.ranges.get(first..last).unwrap_or_default()
    }
}

/// Do the ranges share a byte?
pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Is all of `inner` in `outer`?
pub fn covers(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPAN: usize = 64;

    fn bitmap(set: &RangeSet) -> [bool; SPAN] {
        std::array::from_fn(|byte| set.contains(&(byte as u64..byte as u64 + 1)))
    }

    proptest! {
        /// Every sequence of inserts, removals and clips gives what the same steps give on a bitmap.
        #[test]
        fn equals_a_bitmap(steps in prop::collection::vec((0..3u8, 0..SPAN, 0..SPAN), 1..40)) {
            let mut set = RangeSet::default();
            let mut model = [false; SPAN];
            for (step, a, b) in steps {
                let (start, end) = (a.min(b), a.max(b));
                match step {
                    0 => { set.insert(start as u64..end as u64); model[start..end].fill(true); }
                    1 => { set.remove(start as u64..end as u64); model[start..end].fill(false); }
                    _ => { set.clip(end as u64); model[end..].fill(false); }
                }
                prop_assert_eq!(bitmap(&set), model);
                prop_assert!(set.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(set.bytes() as usize, model.iter().filter(|there| **there).count());
                let asked = start as u64..end as u64;
                let mut pieces = set.missing(&asked);
                pieces.extend(set.present(&asked));
                pieces.sort_by_key(|piece| piece.start);
                let covered: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
                prop_assert_eq!(covered, asked.end - asked.start);
                prop_assert_eq!(set.intersects(&asked), model[start..end].iter().any(|there| *there));
            }
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut set = RangeSet::default();
        for at in 0..RANGES_MAX as u64 {
            assert!(set.insert(at * 2..at * 2 + 1));
        }
        assert!(!set.insert(1 << 40..(1 << 40) + 1));
        assert!(set.insert(1..2), "what joins two ranges still fits");
        assert_eq!(set.len(), RANGES_MAX - 1);
    }
}
