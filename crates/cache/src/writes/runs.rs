//! Bytes of a file that are not durable at the origin: disjoint runs, each with a tag that names the
//! writer.
//!
//! A run never crosses a multiple of the chunk size. One WRITE takes at most a chunk, so a run is one
//! WRITE.
//!
//! Promise: local-visibility

use std::collections::BTreeMap;
use std::ops::{Deref, Range};

use bytes::{Bytes, BytesMut};

/// Bytes that can be cut in two without being copied.
pub trait Payload: Deref<Target = [u8]> {
    /// Splits at `at`: keeps what is before, returns the rest.
    fn split_off(&mut self, at: usize) -> Self;
}

impl Payload for Bytes {
    fn split_off(&mut self, at: usize) -> Bytes {
        Bytes::split_off(self, at)
    }
}

impl Payload for BytesMut {
    fn split_off(&mut self, at: usize) -> BytesMut {
        BytesMut::split_off(self, at)
    }
}

/// Consecutive bytes with their tag.
#[derive(Clone, Debug)]
pub struct Run<B, T> {
    /// Never empty.
    pub bytes: B,
    /// The writer of the bytes, and the time of the earliest write.
    pub tag: T,
}

/// Disjoint runs, by the offset of their first byte.
#[derive(Clone, Debug)]
pub struct Runs<B, T> {
    runs: BTreeMap<u64, Run<B, T>>,
    bytes: u64,
}

impl<B, T> Default for Runs<B, T> {
    fn default() -> Runs<B, T> {
        Runs { runs: BTreeMap::new(), bytes: 0 }
    }
}

impl<B: Payload, T: Clone> Runs<B, T> {
    /// Adds a run. No other run may overlap it.
    pub fn insert(&mut self, at: u64, bytes: B, tag: T) {
        if bytes.is_empty() {
            return;
        }
        self.bytes += bytes.len() as u64;
        self.runs.insert(at, Run { bytes, tag });
    }

    /// Removes and returns the run that begins at this offset.
    pub fn take(&mut self, at: u64) -> Option<Run<B, T>> {
        let run = self.runs.remove(&at)?;
        self.bytes -= run.bytes.len() as u64;
        Some(run)
    }

    /// Drops the bytes of a range. Runs that cross its edges are split.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        let gone: Vec<u64> = self.runs.range(range.clone()).map(|(at, _)| *at).collect();
        for at in gone {
            self.take(at);
        }
    }

    /// Removes and returns everything from `end` on.
    pub fn take_from(&mut self, end: u64) -> Runs<B, T> {
        self.split_at(end);
        let runs = self.runs.split_off(&end);
        let bytes = runs.values().map(|run| run.bytes.len() as u64).sum();
        self.bytes -= bytes;
        Runs { runs, bytes }
    }

    /// The parts of a range that are in no run, in order.
    pub fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for (start, run) in self.over(range) {
            if at < start {
                missing.push(at..start);
            }
            at = at.max(start + run.bytes.len() as u64);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// The bytes of a range that are in runs, in order.
    pub fn present(&self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        let clipped = |(start, run): (u64, &Run<B, T>)| {
            let from = range.start.max(start);
            let to = range.end.min(start + run.bytes.len() as u64);
            let bytes = run.bytes.get((from - start) as usize..(to - start) as usize)?;
            Some((from, Bytes::copy_from_slice(bytes)))
        };
        self.over(range).filter_map(clipped).collect()
    }

    /// All runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Run<B, T>)> {
        self.runs.iter().map(|(at, run)| (*at, run))
    }

    /// Consumes this set and returns its runs, in order.
    pub fn into_runs(self) -> impl Iterator<Item = (u64, Run<B, T>)> {
        self.runs.into_iter()
    }

    /// The offset behind the last byte.
    pub fn end(&self) -> Option<u64> {
        self.runs.last_key_value().map(|(at, run)| at + run.bytes.len() as u64)
    }

    /// The gaps between neighbouring runs in the same chunk that could be one run, each with the tag of its
    /// left neighbour.
    pub fn gaps(&self, chunk: u64) -> Vec<(Range<u64>, T)>
    where
        T: Joins,
    {
        let mut gaps = Vec::new();
        let mut before: Option<(u64, &Run<B, T>)> = None;
        for (start, run) in self.iter() {
            if let Some((at, left)) = before.replace((start, run)) {
                let end = at + left.bytes.len() as u64;
                if at / chunk == start / chunk && end < start && left.tag.joins(&run.tag) {
                    gaps.push((end..start, left.tag.clone()));
                }
            }
        }
        gaps
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Is there no run?
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The number of bytes in all runs.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The runs that overlap a range.
    fn over(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Run<B, T>)> {
        let before = self.runs.range(..range.start).next_back();
        let before = before.filter(|(at, run)| *at + run.bytes.len() as u64 > range.start);
        let within = self.runs.range(range.start..range.end.max(range.start));
        before.into_iter().chain(within).map(|(at, run)| (*at, run))
    }

    fn split_at(&mut self, at: u64) {
        let Some((start, run)) = self.runs.range_mut(..at).next_back() else { return };
        let length = (at - start) as usize;
        if length >= run.bytes.len() {
            return;
        }
        let bytes = run.bytes.split_off(length);
        let tag = run.tag.clone();
        self.runs.insert(at, Run { bytes, tag });
    }
}

/// The outcome of a write into the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// All bytes went into runs that existed before.
    pub merged: bool,
    /// At least one run that took bytes is as long as a chunk.
    pub filled: bool,
}

/// Tags of runs that may merge.
pub trait Joins {
    /// May the bytes of both be one run?
    fn joins(&self, other: &Self) -> bool;
    /// Combines the other tag into this one.
    fn join(&mut self, other: &Self);
}

impl<T: Clone + Joins> Runs<BytesMut, T> {
    /// Writes bytes, replacing those that are there. `chunk` is in bytes.
    pub fn write(&mut self, offset: u64, data: &[u8], tag: &T, chunk: u64) -> Wrote {
        let mut wrote = Wrote { merged: true, filled: false };
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let capacity = chunk - at % chunk;
            let (piece, more) = rest.split_at(rest.len().min(capacity as usize));
            wrote.merged &= self.write_piece(at, piece, tag, chunk);
            let full =
                self.runs.get(&(at / chunk * chunk)).is_some_and(|run| run.bytes.len() as u64 == chunk);
            wrote.filled |= full;
            at += piece.len() as u64;
            rest = more;
        }
        wrote
    }

    /// The same, within one chunk. Returns true if a run that existed before took the bytes.
    fn write_piece(&mut self, at: u64, data: &[u8], tag: &T, chunk: u64) -> bool {
        let end = at + data.len() as u64;
        let reaches = |(start, run): &(&u64, &mut Run<BytesMut, T>)| {
            let near = *start / chunk == at / chunk && *start + run.bytes.len() as u64 >= at;
            near && run.tag.joins(tag)
        };
        let left = self.runs.range_mut(..=at).next_back().filter(reaches);
        let Some(start) = left.map(|(start, _)| *start) else {
            self.remove(&(at..end));
            self.insert(at, BytesMut::from(data), tag.clone());
            let joined = self.join_next(at, chunk);
            // A run of the same writer that other writers had cut off from these bytes may merge now.
            let before = self.runs.range(..at).next_back().map(|(start, _)| *start);
            return before.is_some_and(|start| self.ends_at(start, at) && self.join_next(start, chunk))
                || joined;
        };
        // The run grows over bytes of other writers: replace those.
        let grown_from = self.runs.get(&start).map_or(at, |run| start + run.bytes.len() as u64);
        self.remove(&(grown_from..end));
        if let Some(run) = self.runs.get_mut(&start) {
            let common = (run.bytes.len() - (at - start) as usize).min(data.len());
            let from = (at - start) as usize;
            let (old, new) = data.split_at(common);
            if let Some(there) = run.bytes.get_mut(from..from + common) {
                there.copy_from_slice(old);
            }
            run.bytes.extend_from_slice(new);
            run.tag.join(tag);
            self.bytes += new.len() as u64;
        }
        self.join_next(start, chunk);
        true
    }

    fn ends_at(&self, start: u64, end: u64) -> bool {
        self.runs.get(&start).is_some_and(|run| start + run.bytes.len() as u64 == end)
    }

    /// Merges the run that follows this one directly. Returns true if there was one that may merge.
    fn join_next(&mut self, start: u64, chunk: u64) -> bool {
        let Some(run) = self.runs.get(&start) else { return false };
        let end = start + run.bytes.len() as u64;
        let joins = |next: &Run<BytesMut, T>| end / chunk == start / chunk && run.tag.joins(&next.tag);
        if !self.runs.get(&end).is_some_and(joins) {
            return false;
        }
        let Some(next) = self.runs.remove(&end) else { return false };
        if let Some(run) = self.runs.get_mut(&start) {
            run.bytes.extend_from_slice(&next.bytes);
            run.tag.join(&next.tag);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPAN: usize = 96;
    const CHUNK: u64 = 16;

    /// The writer, and the earliest write in a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Tag(u8, u64);

    impl Joins for Tag {
        fn joins(&self, other: &Tag) -> bool {
            self.0 == other.0
        }

        fn join(&mut self, other: &Tag) {
            self.1 = self.1.min(other.1);
        }
    }

    /// The value of each byte, and its last writer.
    type Model = [Option<(u8, u8)>; SPAN];

    fn check(runs: &Runs<BytesMut, Tag>, model: &Model) {
        let mut found: Model = [None; SPAN];
        let mut last_end = 0;
        let mut last: Option<(u64, Tag)> = None;
        for (at, run) in runs.iter() {
            assert!(!run.bytes.is_empty() && at >= last_end, "overlap");
            let end = at + run.bytes.len() as u64;
            assert_eq!(at / CHUNK, (end - 1) / CHUNK, "a run crosses a chunk");
            if let Some((start, tag)) = last.filter(|_| at == last_end) {
                let apart = start / CHUNK != at / CHUNK || !tag.joins(&run.tag);
                assert!(apart, "neighbours that could be one");
            }
            for (n, byte) in run.bytes.iter().enumerate() {
                found[at as usize + n] = Some((*byte, run.tag.0));
            }
            (last_end, last) = (end, Some((at, run.tag)));
        }
        assert_eq!(&found, model);
        assert_eq!(runs.bytes(), model.iter().flatten().count() as u64);
        assert_eq!(runs.end().map_or(0, |end| end as usize), last_of(model));
    }

    fn last_of(model: &Model) -> usize {
        model.iter().rposition(Option::is_some).map_or(0, |at| at + 1)
    }

    proptest! {
        /// Writes of three writers in any order leave the same bytes as in an array, in as few runs as
        /// possible.
        #[test]
        fn equals_an_array(steps in prop::collection::vec((0..4u8, 0..3u8, 0..SPAN, 1..40usize), 1..60)) {
            let mut runs = Runs::<BytesMut, Tag>::default();
            let mut model: Model = [None; SPAN];
            for (number, (step, writer, at, length)) in steps.into_iter().enumerate() {
                let end = (at + length).min(SPAN);
                let byte = number as u8;
                match step {
                    0 | 1 => {
                        runs.write(at as u64, &vec![byte; end - at], &Tag(writer, number as u64), CHUNK);
                        model[at..end].fill(Some((byte, writer)));
                    }
                    2 => {
                        let range = at as u64..end as u64;
                        let there: usize = runs.present(&range).iter().map(|(_, bytes)| bytes.len()).sum();
                        let missing: u64 = runs.missing(&range).iter().map(|part| part.end - part.start).sum();
                        prop_assert_eq!(there as u64 + missing, range.end - range.start);
                        // This leaves holes in the middle of runs.
                        runs.remove(&range);
                        model[at..end].fill(None);
                    }
                    _ => {
                        let tail = runs.take_from(at as u64);
                        prop_assert_eq!(tail.bytes() as usize, model[at..].iter().flatten().count());
                        model[at..].fill(None);
                    }
                }
                check(&runs, &model);
            }
        }
    }

    #[test]
    fn appends_are_one_run_with_the_earliest_mark() {
        let mut runs = Runs::<BytesMut, Tag>::default();
        assert!(!runs.write(0, b"abc", &Tag(0, 5), 1 << 20).merged);
        let wrote = runs.write(3, b"def", &Tag(0, 6), 6);
        assert_eq!(wrote, Wrote { merged: true, filled: true });
        let (at, run) = runs.iter().next().unwrap();
        assert_eq!((at, &run.bytes[..], run.tag, runs.len()), (0, &b"abcdef"[..], Tag(0, 5), 1));
    }
}
