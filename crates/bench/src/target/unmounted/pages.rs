//! Cached pages of files, and unsent writes: plain state without I/O.
//!
//! Pages are valid for the change attribute that they were fetched under. Over the bound, the least recently
//! used file loses all of its pages. If there is only one file, it loses its first pages.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use vfs::Handle;

/// Bytes in a page.
pub(super) const PAGE_BYTES: u64 = 4096;

/// The pages of all files.
#[derive(Debug)]
pub(super) struct Pages {
    files: HashMap<Handle, FilePages>,
    bytes: usize,
    bytes_max: usize,
    clock: u64,
}

#[derive(Debug, Default)]
struct FilePages {
    change: u64,
    /// By page number. Only the last page of a file may be short.
    pages: BTreeMap<u64, Bytes>,
    used: u64,
}

impl Pages {
    pub(super) fn new(bytes_max: usize) -> Pages {
        Pages { files: HashMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    /// Notes the current change attribute of a file, and drops pages of any other one.
    pub(super) fn seen(&mut self, handle: &Handle, change: u64) {
        if self.files.get(handle).is_some_and(|file| file.change != change) {
            self.drop_file(handle);
        }
    }

    /// Notes that this client's own writes have led to this change attribute: the cached pages stay valid.
    pub(super) fn adopt(&mut self, handle: &Handle, change: u64) {
        if let Some(file) = self.files.get_mut(handle) {
            file.change = change;
        }
    }

    pub(super) fn drop_file(&mut self, handle: &Handle) {
        if let Some(file) = self.files.remove(handle) {
            self.bytes -= file.pages.len() * PAGE_BYTES as usize;
        }
    }

    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.bytes = 0;
    }

    /// Copies cached bytes from `offset` up to the first byte that is not cached. Returns the number of
    /// bytes.
    pub(super) fn copy(&mut self, handle: &Handle, offset: u64, buffer: &mut [u8]) -> usize {
        self.clock += 1;
        let clock = self.clock;
        let Some(file) = self.files.get_mut(handle) else { return 0 };
        file.used = clock;
        let mut copied = 0;
        while copied < buffer.len() {
            let at = offset + copied as u64;
            let Some(page) = file.pages.get(&(at / PAGE_BYTES)) else { break };
            let from = (at % PAGE_BYTES) as usize;
            let Some(rest) = page.get(from..).filter(|rest| !rest.is_empty()) else { break };
            let count = rest.len().min(buffer.len() - copied);
            buffer[copied..copied + count].copy_from_slice(&rest[..count]);
            copied += count;
        }
        copied
    }

    /// Caches the result of a READ. `offset` is the start of a page. A short page is kept only if it is the
    /// last of the file.
    pub(super) fn keep(&mut self, handle: &Handle, change: u64, offset: u64, data: &Bytes, eof: bool) {
        self.clock += 1;
        if self.files.get(handle).is_some_and(|file| file.change != change) {
            self.drop_file(handle);
        }
        let file = self.files.entry(*handle).or_default();
        (file.change, file.used) = (change, self.clock);
        let first = offset / PAGE_BYTES;
        for (index, start) in (0..data.len()).step_by(PAGE_BYTES as usize).enumerate() {
            let page = data.slice(start..data.len().min(start + PAGE_BYTES as usize));
            if page.len() < PAGE_BYTES as usize && !eof {
                break;
            }
            if file.pages.insert(first + index as u64, page).is_none() {
                self.bytes += PAGE_BYTES as usize;
            }
        }
        self.shrink(handle);
    }

    /// Applies this client's own write: keeps the pages that it covers completely, and drops those that it
    /// touches in part.
    pub(super) fn overwrite(&mut self, handle: &Handle, change: u64, offset: u64, data: &Bytes, size: u64) {
        let Some(first_complete) = offset.checked_next_multiple_of(PAGE_BYTES) else { return };
        let end = offset + data.len() as u64;
        if let Some(file) = self.files.get_mut(handle) {
            for page in offset / PAGE_BYTES..=end / PAGE_BYTES {
                if file.pages.remove(&page).is_some() {
                    self.bytes -= PAGE_BYTES as usize;
                }
            }
        }
        if first_complete < end {
            let rest = data.slice((first_complete - offset) as usize..);
            self.keep(handle, change, first_complete, &rest, end == size);
        }
    }

    fn shrink(&mut self, current: &Handle) {
        while self.bytes > self.bytes_max {
            let others = self.files.iter().filter(|(handle, _)| *handle != current);
            let oldest = others.min_by_key(|(_, file)| file.used).map(|(handle, _)| *handle);
            if let Some(handle) = oldest {
                self.drop_file(&handle);
            } else if self.files.get_mut(current).and_then(|file| file.pages.pop_first()).is_some() {
                self.bytes -= PAGE_BYTES as usize;
            } else {
                return;
            }
        }
    }
}

/// Unsent writes of one file: pieces by offset, which neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct Dirty(BTreeMap<u64, Vec<u8>>);

impl Dirty {
    /// Adds a write. It merges with the pieces that it overlaps or touches.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        // The usual case: the next piece of a file that is written from the beginning.
        if let Some((start, last)) = self.0.range_mut(..=offset).next_back()
            && start + last.len() as u64 == offset
        {
            let start = *start;
            last.extend_from_slice(data);
            return self.join_behind(start);
        }
        let touching: Vec<u64> = self
            .0
            .range(..=end)
            .rev()
            .take_while(|(start, piece)| *start + piece.len() as u64 >= offset)
            .map(|(start, _)| *start)
            .collect();
        let mut start = offset;
        let mut joined = data.to_vec();
        for at in touching {
            let Some(piece) = self.0.remove(&at) else { continue };
            let piece_end = at + piece.len() as u64;
            if piece_end > start + joined.len() as u64 {
                let tail = (start + joined.len() as u64 - at) as usize;
                joined.extend_from_slice(&piece[tail..]);
            }
            if at < start {
                let mut head = piece[..(start - at) as usize].to_vec();
                head.extend_from_slice(&joined);
                (start, joined) = (at, head);
            }
        }
        self.0.insert(start, joined);
    }

    /// Merges the piece at `start` with later pieces that it touches or overlaps. Where they overlap, the
    /// bytes of the piece at `start` are newer.
    fn join_behind(&mut self, start: u64) {
        let Some(end) = self.0.get(&start).map(|piece| start + piece.len() as u64) else { return };
        let behind: Vec<u64> = self.0.range(start + 1..=end).map(|(at, _)| *at).collect();
        for at in behind {
            let Some(piece) = self.0.remove(&at) else { continue };
            if let Some(ours) = self.0.get_mut(&start) {
                let from = (start + ours.len() as u64 - at) as usize;
                ours.extend_from_slice(piece.get(from..).unwrap_or_default());
            }
        }
    }

    /// Copies unsent bytes over the data that was read at `offset`.
    pub(super) fn lay_over(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset + buffer.len() as u64;
        for (&start, piece) in self.0.range(..end) {
            let piece_end = start + piece.len() as u64;
            if piece_end <= offset {
                continue;
            }
            let (from, to) = (start.max(offset), piece_end.min(end));
            let source = &piece[(from - start) as usize..(to - start) as usize];
            buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
    }

    /// True if the unsent writes cover the entire range.
    pub(super) fn covers(&self, offset: u64, length: u64) -> bool {
        let before = self.0.range(..=offset).next_back();
        before.is_some_and(|(start, piece)| start + piece.len() as u64 >= offset + length)
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// The offset after the last byte.
    pub(super) fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(start, piece)| start + piece.len() as u64)
    }

    /// The pieces, split into parts of at most `most` bytes.
    pub(super) fn into_parts(self, most: usize) -> Vec<(u64, Bytes)> {
        let mut parts = Vec::new();
        for (start, piece) in self.0 {
            let piece = Bytes::from(piece);
            for from in (0..piece.len()).step_by(most.max(1)) {
                parts.push((start + from as u64, piece.slice(from..piece.len().min(from + most))));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle(name: u8) -> Handle {
        Handle::new(&[name]).unwrap()
    }

    #[test]
    fn pages_go_with_their_change_and_the_bound() {
        let mut pages = Pages::new(4 * PAGE_BYTES as usize);
        let data = Bytes::from(vec![1; 2 * PAGE_BYTES as usize + 10]);
        pages.keep(&handle(1), 5, 0, &data, true);
        let mut buffer = vec![0; 10_000];
        assert_eq!(pages.copy(&handle(1), 100, &mut buffer), data.len() - 100);
        pages.keep(&handle(2), 1, PAGE_BYTES, &data, false);
        // Five pages are one too many; file 1 is the least recently used one.
        assert_eq!(pages.copy(&handle(1), 0, &mut buffer), 0);
        assert_eq!(pages.copy(&handle(2), PAGE_BYTES, &mut buffer), 2 * PAGE_BYTES as usize);
        pages.seen(&handle(2), 2);
        assert_eq!((pages.copy(&handle(2), PAGE_BYTES, &mut buffer), pages.bytes), (0, 0));
    }

    proptest! {
        #[test]
        fn dirty_pieces_are_a_file(
            writes in proptest::collection::vec((0u64..200, 1usize..60, 1u8..255), 1..30),
        ) {
            let (mut dirty, mut file) = (Dirty::default(), vec![0u8; 300]);
            let mut written = vec![false; 300];
            for (offset, length, byte) in writes {
                dirty.write(offset, &vec![byte; length]);
                file[offset as usize..offset as usize + length].fill(byte);
                written[offset as usize..offset as usize + length].fill(true);
            }
            let mut read = vec![0; 300];
            dirty.lay_over(0, &mut read);
            prop_assert_eq!(&read, &file);
            prop_assert_eq!(dirty.bytes(), written.iter().filter(|it| **it).count());
            prop_assert_eq!(dirty.end() as usize, written.iter().rposition(|it| *it).unwrap() + 1);
            for at in 0..250usize {
                prop_assert_eq!(dirty.covers(at as u64, 40), written[at..at + 40].iter().all(|it| *it));
            }
            let parts = dirty.into_parts(16);
            let touching = parts.windows(2).filter(|pair| pair[0].1.len() < 16 && pair[0].0 + pair[0].1.len() as u64 == pair[1].0);
            prop_assert_eq!(touching.count(), 0);
        }
    }
}
