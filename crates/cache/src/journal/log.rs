//! The segments of the journal on disk.
//!
//! ```text
//! DIR/writeback/N   segment N: a header, then frames
//! ```
//!
//! All files of a cache write to the last segment. A file's part of a segment begins with an entry that names
//! the file. When all of the part is durable at the origin, that entry is marked as dead, in place. This
//! needs no space, so it also works on a full disk. A segment without a live entry is removed.

#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod header;
mod reading;
mod syncing;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::entry::{self, Begin, Entry, LIVE_AT};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzing::read_any;
use header::{HEADER_BYTES, Header};
pub use reading::Restored;
use syncing::Syncing;

/// At this size a segment is full, and a new one begins.
const SEGMENT_BYTES: u64 = 32 << 20;
/// A segment without an entry that counts is emptied when it has this part of that size.
const EMPTIED_FROM: u64 = 32;
/// What entries that no longer count may take, besides the delayed writes themselves.
const SLACK_BYTES: u64 = 6 * SEGMENT_BYTES;

/// The place of a file in the journal, from its first delayed write until nothing of it is delayed.
#[derive(Debug)]
pub struct Journaled {
    file: u64,
    /// What each part begins with.
    begin: Box<Begin>,
    parts: Vec<Part>,
}

/// What a file has in one segment.
#[derive(Debug)]
struct Part {
    segment: u64,
    /// Where it begins in the segment, in bytes.
    at: u64,
    /// The number of its last write, in the order of the file's writes.
    last: u64,
}

/// The journal of one cache.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    boot: u64,
    max_bytes: u64,
    segment_bytes: u64,
    on: bool,
    syncing: Syncing,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    segments: BTreeMap<u64, Segment>,
    /// The number of the last file that began.
    files: u64,
    /// The number of the last segment that was made.
    last: u64,
    /// An earlier process's segments are being taken over.
    taken_over: bool,
    /// The last change that made a segment.
    made: u64,
}

#[derive(Debug)]
struct Segment {
    file: Arc<File>,
    bytes: u64,
    /// Files with entries in it that count.
    live: usize,
    /// The last change to it.
    changed: u64,
    /// The change that marked its last entry that counted.
    over: u64,
    /// Made by this process, which may write to it.
    own: bool,
}

impl Journal {
    /// A journal in this directory, which is made with the first entry. It may take twice the `delayed_max`
    /// bytes that may be delayed. Unless it is `on`, no file begins in it. If it is `durable`, what is synced
    /// counts after a restart of the machine.
    pub fn new(directory: PathBuf, boot: u64, delayed_max: u64, on: bool, durable: bool) -> Journal {
        let max_bytes = delayed_max.saturating_mul(2).saturating_add(SLACK_BYTES);
        let (segment_bytes, syncing) = (SEGMENT_BYTES, Syncing::new(on && durable));
        Journal { directory, boot, max_bytes, segment_bytes, on, syncing, log: Mutex::default() }
    }

    /// May a file begin in it?
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.log.lock().segments.values().map(|segment| segment.bytes).sum()
    }

    /// A file whose first entry is about to be written.
    pub fn begin(&self, begin: Box<Begin>) -> Journaled {
        let mut log = self.log.lock();
        log.files += 1;
        Journaled { file: log.files, begin, parts: Vec::new() }
    }

    /// Writes an entry of a file. `number` is that of the file's last write.
    ///
    /// # Errors
    /// Those of the disk. `StorageFull` if the journal is as large as it may be. The entry is not written
    /// then.
    pub fn append(&self, journaled: &mut Journaled, entry: &Entry, number: u64) -> io::Result<()> {
        let mut log = self.log.lock();
        let segment = self.segment(&mut log)?;
        if journaled.parts.last().is_none_or(|part| part.segment != segment) {
            let begin = Entry::Begin(journaled.begin.clone());
            let at = self.write(&mut log, segment, journaled.file, &begin)?;
            log.segments.get_mut(&segment).into_iter().for_each(|segment| segment.live += 1);
            journaled.parts.push(Part { segment, at, last: number });
        }
        self.write(&mut log, segment, journaled.file, entry)?;
        journaled.parts.last_mut().into_iter().for_each(|part| part.last = number);
        Ok(())
    }

    /// All writes of the file before the number `oldest` are durable at the origin.
    pub fn release(&self, journaled: &mut Journaled, oldest: u64) {
        let count = journaled.parts.iter().take_while(|part| part.last < oldest).count();
        if count > 0 {
            self.drop_parts(journaled.parts.drain(..count).collect());
        }
    }

    /// Nothing of the file counts any more.
    pub fn end(&self, journaled: Journaled) {
        self.drop_parts(journaled.parts);
    }

    /// The file of `earlier` is entered anew as `journaled`, completely.
    pub fn replace(&self, journaled: &mut Journaled, mut earlier: Journaled) {
        if self.syncing.is_careful() {
            // The earlier entries are marked with the new ones: now they may reach the disk before these do.
            earlier.parts.append(&mut journaled.parts);
            journaled.parts = earlier.parts;
        } else {
            self.end(earlier);
        }
    }

    fn drop_parts(&self, parts: Vec<Part>) {
        let mut log = self.log.lock();
        for Part { segment: number, at, .. } in parts {
            let Some(segment) = log.segments.get_mut(&number) else { continue };
            if let Err(error) = segment.file.write_all_at(&[0], at + LIVE_AT) {
                tracing::error!(
                    "journal of delayed writes {}: {error}; remove this file before the next start",
                    self.path(number).display()
                );
            }
            debug_assert!(segment.live > 0, "more parts end in a segment than began");
            segment.live = segment.live.saturating_sub(1);
            let mark = self.change(&mut log, number);
            log.segments.get_mut(&number).into_iter().for_each(|segment| segment.over = mark);
        }
        self.tidy(&mut log);
    }

    /// Writes a frame at the end of the segment. Returns its offset.
    fn write(&self, log: &mut Log, number: u64, file: u64, entry: &Entry) -> io::Result<u64> {
        let (frame, data) = entry::encode(file, entry);
        let total: u64 = log.segments.values().map(|segment| segment.bytes).sum();
        let length = (frame.len() + data.len()) as u64;
        if total + length > self.max_bytes {
            return Err(ErrorKind::StorageFull.into());
        }
        let segment = log.segments.get_mut(&number).ok_or(ErrorKind::NotFound)?;
        let at = segment.bytes;
        if let Err(error) = write_both(&segment.file, at, &frame, data) {
            // If this fails, the next frame is written over the torn one.
            let _ = segment.file.set_len(at);
            return Err(error);
        }
        segment.bytes += length;
        self.change(log, number);
        Ok(at)
    }

    /// The segment to write to.
    fn segment(&self, log: &mut Log) -> io::Result<u64> {
        let last = log.segments.last_key_value();
        let may = |segment: &Segment| segment.own && segment.bytes < self.segment_bytes;
        if let Some((number, _)) = last.filter(|(_, segment)| may(segment)) {
            return Ok(*number);
        }
        let number = last.map_or(0, |(number, _)| *number).max(log.last) + 1;
        if last.is_none() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        }
        let mut options = OpenOptions::new();
        // A segment that was not read may be there. It is never overwritten.
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(self.path(number))?;
        let header = Header { boot: self.boot, synced: 0, durable: self.syncing.is_careful() };
        if let Err(error) = file.write_all_at(&header.encode(), 0) {
            self.remove(number);
            return Err(error);
        }
        let segment =
            Segment { file: Arc::new(file), bytes: HEADER_BYTES, live: 0, changed: 0, over: 0, own: true };
        log.segments.insert(number, segment);
        log.last = number;
        log.made = self.change(log, number);
        self.tidy(log);
        Ok(number)
    }

    /// Removes segments that hold nothing, and empties the last one. If the rules of [`syncing`] apply, first
    /// the marks must be on the disk: a later segment may hold what replaces an entry of an earlier one.
    fn tidy(&self, log: &mut Log) {
        let careful = self.syncing.is_careful();
        if careful && log.taken_over {
            return;
        }
        let last = log.segments.keys().next_back().copied();
        let is_over = |segment: &Segment| segment.live == 0 && !self.syncing.holds_back(segment.over);
        log.segments
            .retain(|number, segment| !is_over(segment) || Some(*number) == last || !self.remove(*number));
        let Some(mut last) = log.segments.last_entry() else { return };
        let segment = last.get_mut();
        // So that a process that is not durable itself soon needs the rules no more.
        let small = if self.syncing.is_leaving() { 0 } else { self.segment_bytes / EMPTIED_FROM };
        if !is_over(segment) || segment.bytes <= HEADER_BYTES + small {
            return;
        }
        if careful || !segment.own {
            // Its header would say more than it has.
            if self.remove(*last.key()) {
                last.remove();
            }
        } else if segment.file.set_len(HEADER_BYTES).is_ok() {
            segment.bytes = HEADER_BYTES;
        }
        if log.segments.is_empty() {
            self.syncing.leave();
        }
    }

    fn remove(&self, number: u64) -> bool {
        let path = self.path(number);
        let removed = std::fs::remove_file(&path);
        removed.inspect_err(|error| tracing::warn!("remove {}: {error}", path.display())).is_ok()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }
}

impl Drop for Journal {
    /// Removes the segments that hold nothing.
    fn drop(&mut self) {
        if self.unsynced().is_some_and(|upto| self.sync(upto).is_err()) {
            return;
        }
        let mut log = self.log.lock();
        log.segments.retain(|number, segment| segment.live > 0 || !self.remove(*number));
    }
}

impl Journaled {
    /// Its number in this journal.
    pub fn number(&self) -> u64 {
        self.file
    }

    /// The file.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// Takes note of an entry that later parts begin with.
    pub fn learn(&mut self, entry: &Entry) {
        if let Entry::Change(change) = entry {
            self.begin.change = Some(*change);
        }
    }

    /// What an earlier process has entered counts as written before this number.
    pub fn restored_before(&mut self, number: u64) {
        self.parts.iter_mut().for_each(|part| part.last = number);
    }

    /// Does the file have entries in several segments?
    pub fn is_long(&self) -> bool {
        self.parts.len() > 1
    }
}

fn write_both(file: &File, at: u64, frame: &[u8], data: &[u8]) -> io::Result<()> {
    let both = [IoSlice::new(frame), IoSlice::new(data)];
    let written = rustix::io::pwritev(file, &both, at)?;
    // Both are complete unless the disk is full or a signal came.
    if let Some(rest) = frame.get(written..).filter(|rest| !rest.is_empty()) {
        file.write_all_at(rest, at + written as u64)?;
        return file.write_all_at(data, at + frame.len() as u64);
    }
    let rest = data.get(written - frame.len()..).unwrap_or_default();
    file.write_all_at(rest, at + written as u64)
}

#[cfg(test)]
mod tests;
