//! Checksums of the data on the local disk: they tell damaged data from good data.
//!
//! Each stored range has the CRC32C of its bytes, taken while they are still in memory. Adjacent ranges are
//! merged up to a limit, which doubles when there are many sums, so that a record stays small. A range that
//! is overwritten loses its sum and gets that of the new bytes. A range of which a part is no longer valid
//! cannot be checked any more: the data file is never truncated, and the remaining bytes were never summed
//! alone.
//!
//! Promise: checksums

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ranges::RangeSet;

/// The first limit of merged ranges, in bytes.
const SUM_MIN_BYTES: u64 = 1 << 20;
/// From this number of sums on, the limit doubles.
const COARSER_FROM: usize = 1024;
/// The largest number of sums of one file. A further range has none.
const SUMS_MAX: usize = 8192;

/// The checksum of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The bytes.
    pub range: Range<u64>,
    /// Their CRC32C.
    pub crc: u32,
}

/// The checksums of one file: disjoint, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Start → end and sum.
    sums: BTreeMap<u64, (u64, u32)>,
    sum_max_bytes: u64,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums { sums: BTreeMap::new(), sum_max_bytes: SUM_MIN_BYTES }
    }
}

impl Sums {
    /// The sums as the index has them. If they are out of order or overlap, there are none.
    pub fn restored(stored: impl Iterator<Item = Sum>) -> Sums {
        let mut sums = Sums::default();
        let mut end = 0;
        for Sum { range, crc } in stored.take(SUMS_MAX) {
            if range.start < end || range.is_empty() {
                return Sums::default();
            }
            end = range.end;
            sums.sums.insert(range.start, (range.end, crc));
        }
        let longest = sums.sums.iter().map(|(start, (end, _))| end - start).max();
        sums.sum_max_bytes = longest.unwrap_or_default().max(SUM_MIN_BYTES);
        sums
    }

    /// Records the checksum of bytes that were stored.
    pub fn put(&mut self, range: Range<u64>, crc: u32) {
        if range.is_empty() {
            return;
        }
        self.forget(&range);
        let Range { start, end } = range;
        let left = self.sums.range(..start).next_back().map(|(at, sum)| (*at, *sum));
        match left {
            Some((at, (left_end, left_crc))) if left_end == start && end - at <= self.sum_max_bytes => {
                let crc = crc32c::crc32c_combine(left_crc, crc, (end - start) as usize);
                self.sums.insert(at, (end, crc));
            }
            _ if self.sums.len() < SUMS_MAX => {
                self.sums.insert(start, (end, crc));
            }
            _ => {}
        }
        if self.sums.len() > COARSER_FROM && self.sum_max_bytes < 1 << 40 {
            self.sum_max_bytes *= 2;
            self.coarsen();
        }
    }

    /// Removes the sum of each range that overlaps these bytes.
    pub fn forget(&mut self, range: &Range<u64>) {
        while let Some((at, _)) =
            self.sums.range(..range.end).next_back().filter(|(_, (end, _))| *end > range.start)
        {
            let at = *at;
            self.sums.remove(&at);
        }
    }

    /// Forgets all sums.
    pub fn clear(&mut self) {
        *self = Sums::default();
    }

    /// The sums of the ranges that are valid to the last byte.
    pub fn of(&self, valid: &RangeSet) -> Vec<Sum> {
        self.iter().filter(|sum| valid.contains(&sum.range)).collect()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Sum> + '_ {
        self.sums.iter().map(|(start, (end, crc))| Sum { range: *start..*end, crc: *crc })
    }

    /// The number of sums.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Merges adjacent ranges up to the limit.
    fn coarsen(&mut self) {
        let mut coarse: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let mut last: Option<(u64, u64, u32)> = None;
        for (start, (end, crc)) in std::mem::take(&mut self.sums) {
            last = match last {
                Some((at, last_end, sum)) if last_end == start && end - at <= self.sum_max_bytes => {
                    Some((at, end, crc32c::crc32c_combine(sum, crc, (end - start) as usize)))
                }
                other => {
                    if let Some((at, end, crc)) = other {
                        coarse.insert(at, (end, crc));
                    }
                    Some((start, end, crc))
                }
            };
        }
        if let Some((at, end, crc)) = last {
            coarse.insert(at, (end, crc));
        }
        self.sums = coarse;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: usize = 256;

    #[derive(Clone, Debug)]
    enum Step {
        Store(Range<u64>, u8),
        Forget(Range<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..BYTES as u64, 1..64u64).prop_map(|(at, long)| at..(at + long).min(BYTES as u64));
        prop_oneof![
            4 => (range.clone(), any::<u8>()).prop_map(|(range, fill)| Step::Store(range, fill)),
            1 => range.prop_map(Step::Forget),
        ]
    }

    proptest! {
        /// A sum is always that of the bytes stored last, whatever was stored, merged or forgotten.
        #[test]
        fn sums_are_those_of_the_bytes(steps in prop::collection::vec(step(), 1..60)) {
            let (mut sums, mut file) = (Sums::default(), vec![0u8; BYTES]);
            let mut summed = RangeSet::default();
            for step in steps {
                match step {
                    Step::Store(range, fill) => {
                        let (start, end) = (range.start as usize, range.end as usize);
                        for (at, byte) in file[start..end].iter_mut().enumerate() {
                            *byte = fill.wrapping_add(at as u8);
                        }
                        sums.put(range.clone(), crc32c::crc32c(&file[start..end]));
                        summed.insert(range);
                    }
                    Step::Forget(range) => {
                        sums.forget(&range);
                        summed.remove(range);
                    }
                }
                let mut last = 0;
                for Sum { range, crc } in sums.iter() {
                    prop_assert!(range.start >= last && range.start < range.end);
                    last = range.end;
                    prop_assert_eq!(crc, crc32c::crc32c(&file[range.start as usize..range.end as usize]));
                    prop_assert!(summed.contains(&range), "nothing is summed that was not stored");
                }
                prop_assert_eq!(&Sums::restored(sums.iter()).sums, &sums.sums);
            }
        }
    }

    #[test]
    fn a_large_file_has_few_sums() {
        let mut sums = Sums::default();
        let block = vec![7u8; 4096];
        let crc = crc32c::crc32c(&block);
        for number in 0..600_000u64 {
            sums.put(number * 4096..(number + 1) * 4096, crc);
        }
        assert!(sums.len() <= COARSER_FROM, "{}", sums.len());
        let complete: u64 = sums.iter().map(|sum| sum.range.end - sum.range.start).sum();
        assert_eq!(complete, 600_000 * 4096);
        let mut valid = RangeSet::default();
        valid.insert(0..complete - 1);
        assert_eq!(sums.of(&valid).len(), sums.len() - 1, "the last one reaches beyond what is valid");
    }
}
