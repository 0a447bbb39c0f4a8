//! The delayed writes of one file, and the next call to send.
//!
//! This is pure bookkeeping: its input is writes, replies and time, and it says which WRITE or COMMIT is
//! due. Every write has a number, and a run has the number of its earliest write. A flush of "everything up
//! to now" therefore ends even while others go on writing. These rules keep the order right:
//! - Bytes in flight never change. Newer bytes of the same range wait for the reply.
//! - Only the newest bytes of a range are sent. Older bytes that are not in flight are dropped.
//! - A truncation **holds** the file: nothing new is sent until the truncation is done. Dirty bytes behind
//!   the new end are put aside. They come back only if the origin refuses the truncation.
//! - Attributes are set when all earlier writes are durable. While that SETATTR is in flight, no WRITE and
//!   no truncation is sent, because one that arrived first would have its mtime undone. A SETATTR that the
//!   origin answered with DELAY is not in flight.
//! - A revoked lease **suspends** the file: it is held until the origin has been asked whether another client
//!   has changed it.
//!
//! A WRITE asks for FILE_SYNC if it carries all that is delayed and a flush demands it: one call instead of
//! two, as Linux does. Otherwise it asks for UNSTABLE, and one COMMIT follows all of them. A full chunk is
//! sent at once unless it is the only run. Anything else is sent on demand.
//!
//! Assemblers and linkers leave small gaps for alignment, which nobody ever writes. If the origin's file is
//! known to hold nothing behind some byte, a gap behind that byte is zeros like any other. The cache sends
//! it with its neighbours: one WRITE instead of several. A gap that holds an entire block stays a hole.

mod committing;
mod errors;
mod kept;
mod remaining;
mod stamping;
mod suspended;
mod version;

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;
use vfs::{Caller, Stability, Status, Timestamp, Verifier};

use self::kept::Kept;
pub use self::suspended::{Revoked, Suspended};
pub use self::version::Version;
use super::flush::Level;
use super::pending::Pending;
use super::restoring::RestoredWrites;
use super::runs::{Joins, Runs};
use crate::journal::Journaled;
use crate::ranges::overlap;

/// Overhead of a run, in bytes. It counts against the limits.
const RUN_BYTES: u64 = 256;

/// The allocation unit of file systems. A gap without an entire block is no hole there.
const BLOCK_BYTES: u64 = crate::data::BLOCK_BYTES;
/// Bytes of zeros that one call may put into the gaps of a file, even if fewer bytes of data wait.
const FILL_BYTES: u64 = 64 << 10;

/// The writer of a run, and the earliest write in it.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The caller in whose name the run is sent.
    pub writer: Caller,
    /// The number of the earliest write.
    pub first: u64,
    /// The time of that write.
    pub since: Instant,
}

impl Joins for Mark {
    fn joins(&self, other: &Mark) -> bool {
        self.writer.principal == other.writer.principal
    }

    fn join(&mut self, other: &Mark) {
        self.first = self.first.min(other.first);
        self.since = self.since.min(other.since);
    }
}

/// A WRITE that is under way.
#[derive(Clone, Debug)]
pub struct WriteInFlight {
    /// Names this WRITE within the file.
    pub ticket: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// The data.
    pub bytes: Bytes,
    /// The writer, and the earliest write in the data.
    pub mark: Mark,
    /// The stability that the WRITE asks for.
    pub stability: Stability,
}

impl WriteInFlight {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// How a WRITE ended.
#[derive(Clone, Copy, Debug)]
pub enum WriteAnswer {
    /// The origin took the bytes, or the first part of them.
    Taken {
        /// Bytes taken: at least one.
        count: u32,
        /// The stability that the origin granted.
        stability: Stability,
        /// The write verifier: it names the origin's incarnation.
        verifier: Verifier,
    },
    /// The origin refused.
    Refused(Status),
}

/// Bytes that the origin has and may lose in a crash.
#[derive(Clone, Debug)]
struct Unstable {
    mark: Mark,
    verifier: Verifier,
    /// The number of the reply.
    answered: u64,
}

/// What a waiter has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing: everything it asked for is done.
    Done,
    /// Wait: WRITEs, a COMMIT, a SETATTR or a truncation are in flight, or will be sent.
    Wait,
    /// Start a COMMIT.
    Commit,
    /// Set the pending attributes.
    SetPending,
}

/// The delayed writes of one file.
#[derive(Debug)]
pub struct Writes {
    chunk: u64,
    dirty: Runs<BytesMut, Mark>,
    in_flight: Vec<WriteInFlight>,
    unstable: Runs<Bytes, Unstable>,
    /// Dirty bytes behind the end that the truncation in flight will set.
    aside: Runs<BytesMut, Mark>,
    /// That end, in bytes.
    cut: Option<u64>,
    /// Counts writes, tickets, replies and COMMITs. Each takes the next number.
    events: u64,
    /// Writes up to this number are to be sent.
    urgent: u64,
    /// The number of the COMMIT in flight. It covers all earlier replies.
    committing: Option<u64>,
    pending: Option<Pending>,
    /// A task is responsible for setting the pending attributes.
    setting: bool,
    /// A SETATTR is in flight.
    stamping: bool,
    holds: u32,
    suspended: Option<Suspended>,
    /// The only dirty run is a full chunk. It becomes due with the next write.
    full: bool,
    /// Something may be due.
    ripe: bool,
    /// A task is sending.
    draining: bool,
    version: Version,
    /// How many times bytes were lost.
    losses: u32,
    /// The origin's clock at the latest write, by estimate.
    modified: Option<Timestamp>,
    error: Option<Status>,
    /// The error concerns bytes that a close reported as safe.
    lost: bool,
    kept: Option<Kept>,
    strict: bool,
    doubtful: bool,
    /// The file is removed: the replies that are still to come do not matter.
    gone: bool,
    /// The file is in the queue by age, or the background writer is sending it.
    pub queued: bool,
    /// A task is flushing the file because much of it is delayed.
    pub pressed: bool,
    /// The file's place in the journal, if it has one.
    pub journaled: Option<Journaled>,
    /// The number of the last write that could not be entered there. Until it is durable at the origin, no
    /// write may wait.
    pub unentered: Option<u64>,
    /// Writes of an earlier process, until they are durable at the origin or kept elsewhere.
    pub restored: Option<Box<RestoredWrites>>,
}

impl Writes {
    /// Starts with nothing delayed. A WRITE takes at most `chunk` bytes. Numbers start at `first`. It must
    /// be beyond all numbers that were used for the file before, because a waiter may still hold one of
    /// them. One client alone reads the file here, unless `version` says otherwise.
    pub fn new(chunk: u64, first: u64, version: Version) -> Writes {
        Writes {
            chunk: chunk.max(1),
            dirty: Runs::default(),
            in_flight: Vec::new(),
            unstable: Runs::default(),
            aside: Runs::default(),
            cut: None,
            events: first,
            urgent: 0,
            committing: None,
            pending: None,
            setting: false,
            stamping: false,
            holds: 0,
            suspended: None,
            full: false,
            ripe: false,
            draining: false,
            version,
            losses: 0,
            modified: None,
            error: None,
            lost: false,
            kept: None,
            strict: false,
            doubtful: false,
            gone: false,
            queued: false,
            pressed: false,
            journaled: None,
            unentered: None,
            restored: None,
        }
    }

    /// Takes in the bytes of a WRITE. Returns true if all of them merged into runs that were dirty already.
    pub fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        writer: &Caller,
        (now, stamp): (Instant, Timestamp),
    ) -> bool {
        let range = offset..offset + data.len() as u64;
        self.events += 1;
        self.version.step();
        self.gone = false;
        self.unstable.remove(&range);
        let mark = Mark { writer: writer.clone(), first: self.events, since: now };
        let wrote = self.dirty.write(offset, data, &mark, self.chunk);
        self.modified = self.modified.max(Some(stamp));
        self.forget_mtime();
        // Without a demand, only a full chunk is sent, and only if it is not the only run.
        self.ripe |= wrote.filled || self.full;
        wrote.merged
    }

    /// Demands everything written so far. Returns the number of the latest write.
    pub fn demand(&mut self) -> u64 {
        self.urgent = self.events;
        self.ripe = true;
        self.events
    }

    /// Fills small gaps between dirty runs with zeros, so that one WRITE can carry them. The caller knows
    /// that the origin has nothing behind `from`, and that only this process writes there. Nothing is
    /// filled during a truncation, or where bytes of ours may lie.
    pub fn fill_gaps(&mut self, from: u64) {
        if self.holds > 0 || self.dirty.len() < 2 {
            return;
        }
        let mut left = self.dirty.bytes().max(FILL_BYTES);
        for (gap, mark) in self.dirty.gaps(self.chunk) {
            let length = gap.end - gap.start;
            let holds_block = gap.start.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES <= gap.end;
            let free = gap.start >= from && self.unstable.missing(&gap) == [gap.clone()];
            let in_flight = self.in_flight.iter().any(|write| overlap(&write.range(), &gap));
            if !holds_block && free && !in_flight && length <= left {
                self.dirty.write(gap.start, &vec![0; length as usize], &mark, self.chunk);
                left -= length;
            }
        }
    }

    /// The next step until all writes up to the number `upto` have reached `level`.
    pub fn progress(&self, upto: u64, level: Level) -> Progress {
        let dirty = self.dirty.iter().chain(self.aside.iter()).any(|(_, run)| run.tag.first <= upto);
        if dirty || self.in_flight.iter().any(|write| write.mark.first <= upto) {
            return Progress::Wait;
        }
        if level == Level::Sent {
            return Progress::Done;
        }
        if self.unstable.iter().any(|(_, run)| run.tag.mark.first <= upto) {
            return if self.committing.is_some() { Progress::Wait } else { Progress::Commit };
        }
        if level == Level::Durable {
            return Progress::Done;
        }
        let waits = self.pending.as_ref().is_some_and(|pending| pending.first <= upto);
        match waits {
            // The SETATTR in flight may set a time that a newer write made void. Wait for its reply: it
            // must not reach the origin after the next SETATTR or WRITE.
            _ if self.stamping => Progress::Wait,
            true if self.setting || self.cut.is_some() => Progress::Wait,
            true => Progress::SetPending,
            false => Progress::Done,
        }
    }

    /// Should the caller start a task that sends? The task calls `next` until that returns None.
    pub fn begin_draining(&mut self) -> bool {
        let begin = self.ripe && !self.draining && self.holds == 0 && !self.stamping;
        self.draining |= begin;
        begin
    }

    /// The next WRITE to send, with at most `in_flight_max` in flight. If None, the sending task must stop.
    pub fn next(&mut self, in_flight_max: usize) -> Option<WriteInFlight> {
        let write = self.due(in_flight_max);
        self.draining = write.is_some();
        write
    }

    fn due(&mut self, in_flight_max: usize) -> Option<WriteInFlight> {
        if self.holds > 0 || self.stamping || self.in_flight.len() >= in_flight_max {
            return None;
        }
        let alone = self.in_flight.is_empty() && self.unstable.is_empty() && self.dirty.len() == 1;
        let (urgent, chunk) = (self.urgent, self.chunk);
        let wanted = |first: u64, length: usize| first <= urgent || (length as u64 == chunk && !alone);
        let mut blocked = false;
        let due = self.dirty.iter().find(|(at, run)| {
            let range = *at..at + run.bytes.len() as u64;
            let wanted = wanted(run.tag.first, run.bytes.len());
            let free = !self.in_flight.iter().any(|write| overlap(&write.range(), &range));
            blocked |= wanted && !free;
            wanted && free
        });
        let Some(at) = due.map(|(at, _)| at) else {
            // A full chunk that is the only run becomes due with the next write.
            self.full = alone && self.dirty.iter().any(|(_, run)| run.bytes.len() as u64 == chunk);
            self.ripe = blocked;
            return None;
        };
        let run = self.dirty.take(at)?;
        let stability = if alone && run.tag.first <= urgent && self.committing.is_none() {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        self.events += 1;
        let write = WriteInFlight {
            ticket: self.events,
            offset: at,
            bytes: run.bytes.freeze(),
            mark: run.tag,
            stability,
        };
        self.in_flight.push(write.clone());
        Some(write)
    }

    /// The reply to a WRITE has come.
    pub fn answered(&mut self, ticket: u64, answered: WriteAnswer) {
        let Some(at) = self.in_flight.iter().position(|write| write.ticket == ticket) else { return };
        let write = self.in_flight.swap_remove(at);
        self.events += 1;
        if !self.gone {
            self.settle_landing(&write, answered);
        }
        // After a short write, the rest of the bytes is dirty again.
        self.ripe |= !self.dirty.is_empty();
    }

    fn settle_landing(&mut self, write: &WriteInFlight, answered: WriteAnswer) {
        match answered {
            WriteAnswer::Taken { count, stability, verifier } => {
                let (taken, rest) = write.bytes.split_at(write.bytes.len().min(count as usize));
                let end = write.offset + taken.len() as u64;
                self.put_back(end, rest, &write.mark);
                if stability == Stability::Unstable {
                    self.keep_unstable(write, end, verifier);
                }
            }
            WriteAnswer::Refused(status) => self.fail(status),
        }
    }

    /// Keeps the bytes that the origin took until they are durable, except where newer bytes are dirty.
    fn keep_unstable(&mut self, write: &WriteInFlight, end: u64, verifier: Verifier) {
        for part in self.dirty.missing(&(write.offset..end)) {
            let slice = (part.start - write.offset) as usize..(part.end - write.offset) as usize;
            let tag = Unstable { mark: write.mark.clone(), verifier, answered: self.events };
            self.unstable.remove(&part);
            self.unstable.insert(part.start, write.bytes.slice(slice), tag);
        }
    }

    /// Makes bytes that the origin does not have dirty again, except where newer bytes are. Bytes behind
    /// the end of a truncation in flight are put aside, because the truncation is newer.
    fn put_back(&mut self, offset: u64, bytes: &[u8], mark: &Mark) {
        let end = offset + bytes.len() as u64;
        let cut = self.cut.map_or(end, |cut| cut.clamp(offset, end));
        let (kept, cut_off) = bytes.split_at((cut - offset) as usize);
        write_under(&mut self.dirty, offset, kept, mark, self.chunk);
        write_under(&mut self.aside, cut, cut_off, mark, self.chunk);
    }

    /// Bytes that the origin has and may lose in a crash.
    pub fn unstable_bytes(&self) -> u64 {
        self.unstable.bytes()
    }

    /// Nothing new is sent until `release`.
    pub fn hold(&mut self) {
        self.holds += 1;
    }

    /// Ends a `hold`.
    pub fn release(&mut self) {
        debug_assert!(self.holds > 0, "a file is released that was not held");
        self.holds = self.holds.saturating_sub(1);
        self.ripe |= !self.dirty.is_empty();
    }

    /// The caller is about to truncate the file to `end` bytes. Holds the file. Only one truncation may be
    /// in flight.
    pub fn begin_cut(&mut self, end: u64) {
        self.version.step();
        self.hold();
        self.cut = Some(end);
        self.aside = self.dirty.take_from(end);
    }

    /// May a truncation to `end` bytes be sent? Not while a WRITE in flight would extend the file behind
    /// that end again, or a SETATTR in flight would undo the mtime of the truncation.
    pub fn is_clear_from(&self, end: u64) -> bool {
        !self.stamping && self.in_flight.iter().all(|write| write.range().end <= end)
    }

    /// The truncation to `end` bytes has ended. `done` says whether the origin carried it out.
    pub fn end_cut(&mut self, end: u64, done: bool) {
        let aside = std::mem::take(&mut self.aside);
        self.version.step();
        self.cut = None;
        if done {
            self.unstable.take_from(end);
            self.forget_mtime();
        } else {
            for (at, run) in aside.into_runs() {
                // These bytes are newer than those that reached the origin since.
                self.unstable.remove(&(at..at + run.bytes.len() as u64));
                self.put_back(at, &run.bytes, &run.tag);
            }
        }
        self.release();
    }

    /// The file is removed. Drops what was not sent, and any error with it.
    pub fn discard(&mut self) {
        self.version.step();
        self.dirty = Runs::default();
        self.unstable = Runs::default();
        self.aside = Runs::default();
        self.pending = None;
        self.error = None;
        self.lost = false;
        self.gone = true;
    }

    /// Records that the proof is gone: another client may have changed the unstable bytes at the origin, or
    /// the origin may have lost them.
    pub fn doubt(&mut self) {
        self.doubtful = !self.unstable.is_empty();
    }

    /// Must the unstable bytes be committed before anything is answered about the file?
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// The bytes of `range` that are not durable at the origin, oldest first. Where pieces overlap, the
    /// later one counts.
    pub fn overlay(&self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        let mut pieces = self.unstable.present(range);
        for write in self.in_flight.iter().filter(|write| overlap(&write.range(), range)) {
            let (from, to) = (range.start.max(write.offset), range.end.min(write.range().end));
            let slice = (from - write.offset) as usize..(to - write.offset) as usize;
            pieces.push((from, write.bytes.slice(slice)));
        }
        pieces.extend(self.aside.present(range));
        pieces.extend(self.dirty.present(range));
        pieces
    }

    /// A lower bound for the file's size, from the bytes that are not durable at the origin.
    pub fn end(&self) -> Option<u64> {
        let in_flight = self.in_flight.iter().map(|write| write.range().end).max();
        in_flight.max(self.unstable.end()).max(self.aside.end()).max(self.dirty.end())
    }

    /// The change attribute to show, if the origin's is `known`.
    pub fn change(&self, known: u64) -> u64 {
        self.version.change(known)
    }

    /// A number of this state that nobody else has. `None` if one client alone reads here.
    pub fn salt(&self) -> Option<u64> {
        self.version.salt()
    }

    /// The time of the latest write, if some written bytes are not at the origin yet.
    pub fn modified(&self) -> Option<Timestamp> {
        self.modified.filter(|_| self.unsent() > 0 || !self.in_flight.is_empty())
    }

    /// Bytes that are not durable at the origin: dirty, in flight or unstable.
    pub fn bytes(&self) -> u64 {
        let in_flight: u64 = self.in_flight.iter().map(|write| write.bytes.len() as u64).sum();
        self.unsent() + in_flight + self.unstable.bytes()
    }

    /// Bytes that are dirty or put aside.
    pub fn unsent(&self) -> u64 {
        self.dirty.bytes() + self.aside.bytes()
    }

    /// Bytes that count against the limits: the data and the overhead of its runs.
    pub fn cost(&self) -> u64 {
        let runs = self.dirty.len() + self.unstable.len() + self.aside.len() + self.in_flight.len();
        self.bytes() + (runs + usize::from(self.sets())) as u64 * RUN_BYTES
    }

    /// Since when the oldest byte or attribute has been waiting.
    pub fn oldest(&self) -> Option<Instant> {
        let waiting = self.dirty.iter().chain(self.aside.iter()).map(|(_, run)| run.tag.since);
        let in_flight = self.in_flight.iter().map(|write| write.mark.since);
        let unstable = self.unstable.iter().map(|(_, run)| run.tag.mark.since);
        waiting.chain(in_flight).chain(unstable).chain(self.pending.iter().map(|pending| pending.since)).min()
    }

    /// Is everything durable at the origin, and set there?
    pub fn is_clean(&self) -> bool {
        self.cost() == 0
    }

    /// May this record be dropped? Not while a task uses it or an error is to be reported.
    pub fn is_idle(&self) -> bool {
        let busy = self.draining
            || self.queued
            || self.pressed
            || self.setting
            || self.holds > 0
            || self.restored.is_some()
            || self.committing.is_some();
        self.is_clean() && !busy && self.error.is_none() && !self.strict
    }
}

/// Writes bytes only where `runs` has none.
fn write_under(runs: &mut Runs<BytesMut, Mark>, offset: u64, bytes: &[u8], mark: &Mark, chunk: u64) {
    for part in runs.missing(&(offset..offset + bytes.len() as u64)) {
        let slice = (part.start - offset) as usize..(part.end - offset) as usize;
        if let Some(bytes) = bytes.get(slice) {
            runs.write(part.start, bytes, mark, chunk);
        }
    }
}

#[cfg(test)]
mod tests;
