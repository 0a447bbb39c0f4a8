//! The locked ranges of one owner on a file: sorted and disjoint, with adjacent ranges of one kind merged.

use vfs::{Lock, LockKind};

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    /// The byte after the last; `u64::MAX` if the range has no end.
    pub(super) end: u64,
    pub(super) kind: LockKind,
}

/// The ranges. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range>);

impl Ranges {
    /// Locks all bytes from `start` to `end` in this way, or unlocks them.
    pub(super) fn set(&mut self, start: u64, end: u64, kind: Option<LockKind>) {
        // Adjacent ranges are included, so that they can merge.
        let first = self.0.partition_point(|range| range.end < start);
        let behind = first + self.0[first..].partition_point(|range| range.start <= end);
        let mut pieces: Vec<Range> = Vec::with_capacity(3);
        let mut push = |piece: Range| match pieces.last_mut() {
            _ if piece.start >= piece.end => {}
            Some(last) if last.end == piece.start && last.kind == piece.kind => last.end = piece.end,
            _ => pieces.push(piece),
        };
        let touched = &self.0[first..behind];
        for range in touched.iter().filter(|range| range.start < start) {
            push(Range { end: range.end.min(start), ..*range });
        }
        if let Some(kind) = kind {
            push(Range { start, end, kind });
        }
        for range in touched.iter().filter(|range| range.end > end) {
            push(Range { start: range.start.max(end), ..*range });
        }
        self.0.splice(first..behind, pieces);
    }

    /// The ranges within `start` and `end`.
    pub(super) fn within(&self, start: u64, end: u64) -> Ranges {
        let clip = |range: &Range| Range { start: range.start.max(start), end: range.end.min(end), ..*range };
        Ranges(self.0.iter().filter(|range| range.start < end && start < range.end).map(clip).collect())
    }

    /// The first range that conflicts with a lock of another owner.
    pub(super) fn conflict(&self, lock: &Lock) -> Option<Range> {
        let first = self.0.partition_point(|range| range.end <= lock.offset);
        let near = self.0[first..].iter().take_while(|range| range.start < lock.end());
        near.copied().find(|range| range.kind == LockKind::Exclusive || lock.kind == LockKind::Exclusive)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
