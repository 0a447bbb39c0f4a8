//! The bytes of a file that one owner has locked, and the kinds of lock. They are kept to reclaim them, and
//! to know whether there are any.
//!
//! NFSv4 has the POSIX rules: locking a range again changes its kind, and unlocking removes what it covers.

use vfs::LockKind;

/// Locked bytes from `start` up to but excluding `end`. An `end` of `u64::MAX` means the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: LockKind,
}

impl Range {
    /// The length as LOCK encodes it.
    pub(crate) fn length(&self) -> u64 {
        if self.end == u64::MAX { u64::MAX } else { self.end - self.start }
    }

    /// The parts that no range of `covered` covers. `covered` must lie within this range, disjoint and
    /// ascending.
    pub(crate) fn without(self, covered: &[Range]) -> Vec<Range> {
        let mut gaps = Vec::new();
        let mut from = self.start;
        for range in covered {
            gaps.push(Range { start: from, end: range.start, kind: self.kind });
            from = range.end;
        }
        gaps.push(Range { start: from, end: self.end, kind: self.kind });
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }
}

/// The locks of one owner on one file: disjoint, ascending, with neighbours of one kind merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    /// Are there no locks?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All locked ranges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range> {
        self.0.iter().copied()
    }

    /// The locked ranges inside `of`, cut to it.
    pub(crate) fn within(&self, of: Range) -> Vec<Range> {
        let cut =
            |range: Range| Range { start: range.start.max(of.start), end: range.end.min(of.end), ..range };
        self.iter().map(cut).filter(|range| range.start < range.end).collect()
    }

    /// Locks `length` bytes at `offset` with this kind.
    pub(crate) fn lock(&mut self, offset: u64, length: u64, kind: LockKind) {
        self.unlock(offset, length);
        let end = offset.saturating_add(length);
        if end == offset {
            return;
        }
        self.0.push(Range { start: offset, end, kind });
        self.0.sort_unstable_by_key(|range| range.start);
        self.0.dedup_by(|next, range| {
            let one = range.end == next.start && range.kind == next.kind;
            if one {
                range.end = next.end;
            }
            one
        });
    }

    /// Unlocks `length` bytes at `offset`.
    pub(crate) fn unlock(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        if end == offset {
            return;
        }
        let parts = self.0.iter().flat_map(|range| {
            let before = Range { end: range.end.min(offset), ..*range };
            let behind = Range { start: range.start.max(end), ..*range };
            [before, behind]
        });
        self.0 = parts.filter(|range| range.start < range.end).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_what_bytes_say(
            steps in proptest::collection::vec((0u64..40, 0u64..40, 0u8..3), 0..60),
        ) {
            let mut ranges = Ranges::default();
            let mut bytes = [None; 80];
            for (offset, length, what) in steps {
                let kind = match what {
                    0 => Some(LockKind::Shared),
                    1 => Some(LockKind::Exclusive),
                    _ => None,
                };
                match kind {
                    Some(kind) => ranges.lock(offset, length, kind),
                    None => ranges.unlock(offset, length),
                }
                bytes[offset as usize..(offset + length) as usize].fill(kind);
                let mut told = [None; 80];
                for range in ranges.iter() {
                    prop_assert!(range.start < range.end);
                    let part = &mut told[range.start as usize..range.end as usize];
                    prop_assert!(part.iter().all(Option::is_none));
                    part.fill(Some(range.kind));
                }
                prop_assert_eq!(&told[..], &bytes[..]);
                let joined = ranges.0.windows(2).all(|two| two[0].end < two[1].start || two[0].kind != two[1].kind);
                prop_assert!(joined);
                prop_assert_eq!(ranges.is_empty(), bytes.iter().all(Option::is_none));
                let all = Range { start: 3, end: 70, kind: LockKind::Shared };
                let within = ranges.within(all);
                let mut parts: Vec<Range> = within.iter().copied().chain(all.without(&within)).collect();
                parts.sort_by_key(|range| range.start);
                prop_assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
                prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (3, 70));
                for gap in all.without(&within) {
                    prop_assert!(bytes[gap.start as usize..gap.end as usize].iter().all(Option::is_none));
                }
            }
        }
    }

    #[test]
    fn to_the_end_of_the_file_is_to_the_end() {
        let mut ranges = Ranges::default();
        ranges.lock(10, u64::MAX, LockKind::Exclusive);
        ranges.unlock(20, 5);
        let told: Vec<_> = ranges.iter().map(|range| (range.start, range.length())).collect();
        assert_eq!(told, [(10, 10), (25, u64::MAX)]);
    }
}
