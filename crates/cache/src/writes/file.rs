//! What is delayed of one file, and what is to be sent next.
//!
//! Pure bookkeeping: it is told of writes, replies and time, and says which WRITE or COMMIT is due. Every write has a
//! number; a run has that of the earliest write in it, so that "everything up to now" ends even while others go on
//! writing. These rules keep the order right:
//! - What is in flight is never changed; newer bytes of its range wait until it has landed.
//! - The newest bytes of a range are the only ones that are sent: older ones that are not on their way are dropped.
//! - A truncation **holds** the file: nothing new is sent until it is done. What is dirty behind the new end is put
//!   aside, and comes back only if the origin refuses.
//! - Attributes are set when all that was written before is durable, and while they are on their way no WRITE and no
//!   truncation is: one that came first would have its time undone. What the origin puts off is not on its way.
//!
//! A WRITE asks for FILE_SYNC if it is all there is and somebody wants it sent: one call in the place of two, as Linux
//! does. Else it asks for UNSTABLE, and one COMMIT follows them all. A full chunk goes as soon as it is not the only
//! one, anything else when it is asked for.
//!
//! An assembler or a linker leaves small gaps for alignment, which nobody ever writes. Where the origin's file is known to
//! have nothing behind some byte, such a gap is zeros like any other, and is sent with what is around it: one WRITE in
//! the place of several. A gap that holds a whole block is left a hole.

mod kept;

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;
use vfs::{Caller, Stability, Status, Timestamp, Verifier};

use self::kept::Kept;
use super::flush::Level;
use super::pending::Pending;
use super::runs::{Joins, Runs};
use crate::ranges::overlap;

/// What a run costs besides its bytes, counted against the limits.
const RUN_BYTES: u64 = 256;

/// What file systems allocate at a time: a gap without a whole one of these is no hole there.
const BLOCK_BYTES: u64 = crate::data::BLOCK_BYTES;
/// Zeros that may be put into the gaps of a file at a time, even if less has been written to it.
const FILL_BYTES: u64 = 64 << 10;

/// Who wrote, and when first.
#[derive(Clone, Debug)]
pub struct Mark {
    /// In whose name it is sent.
    pub writer: Caller,
    /// The number of the earliest write.
    pub first: u64,
    /// When that was.
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
    /// Its name.
    pub ticket: u64,
    /// Where to.
    pub offset: u64,
    /// What.
    pub bytes: Bytes,
    /// Whose.
    pub mark: Mark,
    /// What is asked for.
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
    /// The origin took so many bytes, that far, under this verifier.
    Taken {
        /// At least one.
        count: u32,
        /// As the origin says.
        stability: Stability,
        /// Of the origin's life.
        verifier: Verifier,
    },
    /// It refused.
    Refused(Status),
}

/// Bytes that the origin has and may lose.
#[derive(Clone, Debug)]
struct Unstable {
    mark: Mark,
    verifier: Verifier,
    /// The number of the landing.
    answered: u64,
}

/// What is to be done for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Done,
    /// WRITEs, a COMMIT or a truncation are under way, or will be.
    Wait,
    /// A COMMIT is due.
    Commit,
    /// Attributes are to be set.
    SetPending,
}

/// What is delayed of one file.
#[derive(Debug)]
pub struct Writes {
    chunk: u64,
    dirty: Runs<BytesMut, Mark>,
    in_flight: Vec<WriteInFlight>,
    unstable: Runs<Bytes, Unstable>,
    /// Dirty bytes behind the end that a truncation under way will set.
    aside: Runs<BytesMut, Mark>,
    /// Where that is.
    cut: Option<u64>,
    /// Numbers writes, tickets and landings.
    events: u64,
    /// Writes up to this number are to be sent.
    urgent: u64,
    /// The landings that the COMMIT under way speaks of.
    committing: Option<u64>,
    pending: Option<Pending>,
    /// A task sees to it.
    setting: bool,
    /// A SETATTR is on its way.
    stamping: bool,
    holds: u32,
    /// A chunk is full, and was the only one.
    full: bool,
    /// There may be something to be sent.
    ripe: bool,
    /// A task is at it.
    draining: bool,
    /// When the origin's clock will have shown the latest write.
    modified: Option<Timestamp>,
    error: Option<Status>,
    /// The error is of bytes that a close has said to be safe.
    lost: bool,
    kept: Option<Kept>,
    strict: bool,
    doubtful: bool,
    /// It is not a file any more: what is still on its way does not matter.
    gone: bool,
    /// It is known to who sends what has waited for long, or that is about to send all of it.
    pub queued: bool,
    /// Somebody sends all of it because it is a lot.
    pub pressed: bool,
}

impl Writes {
    /// Nothing is delayed. A WRITE takes at most `chunk` bytes. Numbers go up from `first`, which is beyond those of
    /// whatever was delayed of the file before: somebody may still be waiting for that.
    pub fn new(chunk: u64, first: u64) -> Writes {
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
            full: false,
            ripe: false,
            draining: false,
            modified: None,
            error: None,
            lost: false,
            kept: None,
            strict: false,
            doubtful: false,
            gone: false,
            queued: false,
            pressed: false,
        }
    }

    /// Takes bytes in. True if they joined others that wait.
    pub fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        writer: &Caller,
        (now, stamp): (Instant, Timestamp),
    ) -> bool {
        let range = offset..offset + data.len() as u64;
        self.events += 1;
        self.gone = false;
        self.unstable.remove(&range);
        let mark = Mark { writer: writer.clone(), first: self.events, since: now };
        let wrote = self.dirty.write(offset, data, &mark, self.chunk);
        self.modified = self.modified.max(Some(stamp));
        self.forget_mtime();
        // Only a full chunk goes unasked, if it is not the only one.
        self.ripe |= wrote.filled || self.full;
        wrote.merged
    }

    /// Asks for everything that has been written by now. Its number.
    pub fn demand(&mut self) -> u64 {
        self.urgent = self.events;
        self.ripe = true;
        self.events
    }

    /// Nobody has written anything behind `from` but us, and what has landed ends there: small gaps between what is dirty
    /// are zeros, and are sent as such. They are not filled under a truncation, nor where anything of ours may lie.
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

    /// How far is what was asked for up to this number?
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
            // What it sets may be void by now, and is not to come later than what is set or written next.
            _ if self.stamping => Progress::Wait,
            true if self.setting || self.cut.is_some() => Progress::Wait,
            true => Progress::SetPending,
            false => Progress::Done,
        }
    }

    /// Should a task begin to send? It has to ask `next` until there is nothing.
    pub fn begin_draining(&mut self) -> bool {
        let begin = self.ripe && !self.draining && self.holds == 0 && !self.stamping;
        self.draining |= begin;
        begin
    }

    /// The next WRITE to be sent, if any may be. If not, whoever asked stops asking.
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
            // One that is full and alone is looked at again with the next write.
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

    /// A WRITE has been answered.
    pub fn answered(&mut self, ticket: u64, answered: WriteAnswer) {
        let Some(at) = self.in_flight.iter().position(|write| write.ticket == ticket) else { return };
        let write = self.in_flight.swap_remove(at);
        self.events += 1;
        if !self.gone {
            self.settle_landing(&write, answered);
        }
        // What the origin has not taken of it is among that.
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

    /// What the origin has taken is kept until it is durable, but for what is newer here.
    fn keep_unstable(&mut self, write: &WriteInFlight, end: u64, verifier: Verifier) {
        for part in self.dirty.missing(&(write.offset..end)) {
            let slice = (part.start - write.offset) as usize..(part.end - write.offset) as usize;
            let tag = Unstable { mark: write.mark.clone(), verifier, answered: self.events };
            self.unstable.remove(&part);
            self.unstable.insert(part.start, write.bytes.slice(slice), tag);
        }
    }

    /// Bytes that the origin has not are dirty again, where nothing newer is. A truncation under way is newer than they.
    fn put_back(&mut self, offset: u64, bytes: &[u8], mark: &Mark) {
        let end = offset + bytes.len() as u64;
        let cut = self.cut.map_or(end, |cut| cut.clamp(offset, end));
        let (kept, cut_off) = bytes.split_at((cut - offset) as usize);
        write_under(&mut self.dirty, offset, kept, mark, self.chunk);
        write_under(&mut self.aside, cut, cut_off, mark, self.chunk);
    }

    /// A COMMIT is about to be sent, in whose name. None if there is nothing to commit, or one is under way.
    pub fn begin_commit(&mut self) -> Option<Caller> {
        if self.committing.is_some() {
            return None;
        }
        let writer = self.unstable.iter().next()?.1.tag.mark.writer.clone();
        self.committing = Some(self.events);
        Some(writer)
    }

    /// It has been answered. What was written under another verifier is to be sent again.
    pub fn end_commit(&mut self, result: Result<Verifier, Status>) {
        let Some(upto) = self.committing.take() else { return };
        let spoken: Vec<u64> =
            self.unstable.iter().filter(|(_, run)| run.tag.answered <= upto).map(|(at, _)| at).collect();
        for at in spoken {
            let Some(run) = self.unstable.take(at) else { continue };
            if result.is_ok_and(|verifier| verifier != run.tag.verifier) {
                self.put_back(at, &run.bytes, &run.tag.mark);
            }
        }
        if let Err(status) = result {
            self.fail(status);
        }
        self.ripe |= !self.dirty.is_empty();
        self.doubtful &= !self.unstable.is_empty();
    }

    /// This is to be set when everything that was written before is durable.
    pub fn set_pending(&mut self, pending: Pending) {
        self.events += 1;
        let before = self.pending.take();
        self.pending = Some(Pending { first: self.events, ..pending.after(before) });
    }

    /// What is to be set.
    pub fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// The SETATTR for it is about to be sent. None if there is nothing, somebody sees to it, or something that was
    /// written before is not durable.
    pub fn begin_pending(&mut self) -> Option<Pending> {
        let pending = self.pending.clone().filter(|_| !self.setting && self.cut.is_none())?;
        if self.progress(pending.first, Level::Durable) != Progress::Done {
            return None;
        }
        self.setting = true;
        self.stamping = true;
        Some(pending)
    }

    /// The origin puts it off: it has not been done, and until it is sent again WRITEs may go.
    pub fn rest_pending(&mut self) {
        self.stamping = false;
        self.ripe |= !self.dirty.is_empty();
    }

    /// It is about to be sent again: what waits now. None if it is no longer the time for that.
    pub fn resume_pending(&mut self) -> Option<Pending> {
        self.setting = false;
        self.begin_pending()
    }

    /// It has been answered.
    pub fn end_pending(&mut self, set: &Pending, result: Result<(), Status>) {
        self.put_off_pending();
        if let Err(status) = result
            && set.asked
        {
            self.error.get_or_insert(status);
        }
        // New ones may have come meanwhile.
        self.pending.take_if(|pending| pending.first == set.first);
    }

    /// It was refused together with something else, and is tried again by itself.
    pub fn put_off_pending(&mut self) {
        self.setting = false;
        self.rest_pending();
    }

    /// Does anything wait to be set, or is on its way to be?
    pub fn sets(&self) -> bool {
        self.stamping || self.pending.is_some()
    }

    /// The data has been changed since: its time of modification is the origin's to say.
    fn forget_mtime(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.mtime = None;
        }
        self.pending.take_if(|pending| pending.is_empty());
    }

    /// Some of what was written is lost.
    fn fail(&mut self, status: Status) {
        if self.gone {
            return;
        }
        self.error.get_or_insert(status);
        self.lost |= self.kept.is_some();
        self.strict = true;
    }

    /// The error that nobody has been told of yet.
    pub fn take_error(&mut self) -> Option<Status> {
        self.lost = false;
        self.error.take()
    }

    /// After an error, nothing is delayed until the origin takes something again.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The origin has taken something.
    pub fn relent(&mut self) {
        self.strict = false;
    }

    /// Nothing is sent from now on.
    pub fn hold(&mut self) {
        self.holds += 1;
    }

    /// It is, again.
    pub fn release(&mut self) {
        self.holds = self.holds.saturating_sub(1);
        self.ripe |= !self.dirty.is_empty();
    }

    /// The file is about to be cut at `end`, and held. One at a time.
    pub fn begin_cut(&mut self, end: u64) {
        self.hold();
        self.cut = Some(end);
        self.aside = self.dirty.take_from(end);
    }

    /// Is nothing on its way that would make a file longer again that ends here, or undo the time of its end?
    pub fn is_clear_from(&self, end: u64) -> bool {
        !self.stamping && self.in_flight.iter().all(|write| write.range().end <= end)
    }

    /// The file was cut at `end`, or was not.
    pub fn end_cut(&mut self, end: u64, done: bool) {
        let aside = std::mem::take(&mut self.aside);
        self.cut = None;
        if done {
            self.unstable.take_from(end);
            self.forget_mtime();
        } else {
            for (at, run) in aside.into_runs() {
                // It is newer than what has landed there since.
                self.unstable.remove(&(at..at + run.bytes.len() as u64));
                self.put_back(at, &run.bytes, &run.tag);
            }
        }
        self.release();
    }

    /// The file is gone: what has not been sent is not wanted any more, and nobody is told that it could not be.
    pub fn discard(&mut self) {
        self.dirty = Runs::default();
        self.unstable = Runs::default();
        self.aside = Runs::default();
        self.pending = None;
        self.error = None;
        self.lost = false;
        self.gone = true;
    }

    /// Nothing proves any more that what the origin holds unstable is still the file's contents: somebody else may have
    /// changed them, or the origin may have lost them.
    pub fn doubt(&mut self) {
        self.doubtful = !self.unstable.is_empty();
    }

    /// Has it to be committed before anything is said of the file?
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// The bytes of a range that are not durable at the origin, older ones first.
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

    /// Where the file ends at least, with what is not durable at the origin.
    pub fn end(&self) -> Option<u64> {
        let in_flight = self.in_flight.iter().map(|write| write.range().end).max();
        in_flight.max(self.unstable.end()).max(self.aside.end()).max(self.dirty.end())
    }

    /// When it was last changed here, if that is not at the origin yet.
    pub fn modified(&self) -> Option<Timestamp> {
        self.modified.filter(|_| self.unsent() > 0 || !self.in_flight.is_empty())
    }

    /// Bytes that only this process has, with those that the origin may lose.
    pub fn bytes(&self) -> u64 {
        let in_flight: u64 = self.in_flight.iter().map(|write| write.bytes.len() as u64).sum();
        self.unsent() + in_flight + self.unstable.bytes()
    }

    /// Bytes that are not at the origin.
    pub fn unsent(&self) -> u64 {
        self.dirty.bytes() + self.aside.bytes()
    }

    /// What counts against the limits.
    pub fn cost(&self) -> u64 {
        let runs = self.dirty.len() + self.unstable.len() + self.aside.len() + self.in_flight.len();
        self.bytes() + (runs + usize::from(self.sets())) as u64 * RUN_BYTES
    }

    /// Since when the oldest of it waits.
    pub fn oldest(&self) -> Option<Instant> {
        let waiting = self.dirty.iter().chain(self.aside.iter()).map(|(_, run)| run.tag.since);
        let in_flight = self.in_flight.iter().map(|write| write.mark.since);
        let unstable = self.unstable.iter().map(|(_, run)| run.tag.mark.since);
        waiting.chain(in_flight).chain(unstable).chain(self.pending.iter().map(|pending| pending.since)).min()
    }

    /// Is everything at the origin, and durable there?
    pub fn is_clean(&self) -> bool {
        self.cost() == 0
    }

    /// Is there nothing to be remembered?
    pub fn is_idle(&self) -> bool {
        let busy = self.draining
            || self.queued
            || self.pressed
            || self.setting
            || self.holds > 0
            || self.committing.is_some();
        self.is_clean() && !busy && self.error.is_none() && !self.strict
    }
}

/// Writes bytes where no others are.
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
