//! The data of one file: which bytes are cached, which are being fetched, and which are being written.
//!
//! This module is pure bookkeeping. The reading and writing is done elsewhere, without the lock that guards
//! this state. Three rules keep a reader from seeing bytes that never existed:
//! - A range of the data file is written only while it is *claimed*. No reader has it pinned, no other task
//!   writes it, and it is not valid until the write is done.
//! - Dropping the data never touches the data file. The file goes to the trash as it is, and later bytes go
//!   to another file.
//! - Before a write of ours is sent, its range is no longer valid, and the fetches that it overtakes are
//!   tainted.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::fetch::Fetch;
use crate::holes::Holes;
pub use crate::ranges::BLOCK_BYTES;
use crate::ranges::{RangeSet, covers, overlap};
use crate::store::ObjectFile;
use crate::sums::Sums;

/// The largest number of fetches of one file in flight. Beyond it, a reader reads for itself alone.
const FETCHES_MAX: usize = 640;
/// The largest number of them if no reader waits for it.
const AHEAD_MAX: usize = 512;

/// How long an object is not cached after a failure of the disk.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Identifies a write of ours, or a claim, within one object.
pub type Ticket = u64;

#[derive(Debug)]
struct OwnWrite {
    ticket: Ticket,
    range: Range<u64>,
    generation: u64,
    /// Another write of the same bytes was in flight: it is not known which one came last.
    contested: bool,
}

#[derive(Debug)]
struct Claim {
    ticket: Ticket,
    range: Range<u64>,
}

/// The state of one file's data.
#[derive(Debug, Default)]
pub struct Data {
    /// The data file, if there is one.
    file: Option<Arc<ObjectFile>>,
    /// The bytes in the data file that belong to the known state.
    valid: RangeSet,
    /// Those of them that were fetched while the state was racy.
    racy: RangeSet,
    /// Counts the drops of the data.
    generation: u64,
    /// Counts our own writes.
    writes_begun: u64,
    /// When the disk refused a write. Nothing is cached for a while after it.
    refused: Option<Instant>,
    fetches: Vec<Arc<Fetch>>,
    writes: Vec<OwnWrite>,
    /// When a write of ours last began or ended.
    written: Option<Instant>,
    claims: Vec<Claim>,
    /// Bytes that came with an open and that no reader has asked for yet.
    unasked: RangeSet,
    tickets: Ticket,
    /// The known holes of the file at the origin.
    pub holes: Holes,
    /// Checksums of the stored bytes.
    sums: Sums,
    /// Everything valid is durable on the local disk.
    pub synced: bool,
    /// Counts the stored ranges.
    pub stores: u64,
    /// Is the data of an earlier process known to be what its index entry says?
    pub proof: Proof,
}

/// A killed process may have changed the data file without telling the index yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proof {
    /// It is known, or there is no data of an earlier process.
    #[default]
    Given,
    /// It has not been checked.
    Open,
    /// The data is not what the entry says, or nothing tells.
    Failed,
}

/// How to answer a READ.
#[derive(Debug)]
pub enum Plan {
    /// All of it is in the data file.
    Hit(Arc<ObjectFile>),
    /// Some of it has to come from the origin: by fetches in flight, and by new ones.
    Fill {
        /// The data file with the rest.
        file: Option<Arc<ObjectFile>>,
        /// The ranges in the data file.
        present: Vec<Range<u64>>,
        /// Fetches in flight to wait for.
        join: Vec<Arc<Fetch>>,
        /// Fetches to send.
        send: Vec<Arc<Fetch>>,
    },
    /// Ask the origin for exactly this range.
    Bypass,
}

impl Data {
    /// The data as the index has it.
    pub fn restored(
        file: Arc<ObjectFile>,
        valid: RangeSet,
        racy: RangeSet,
        sums: Sums,
        synced: bool,
    ) -> Data {
        Data { file: Some(file), valid, racy, sums, synced, proof: Proof::Open, ..Data::default() }
    }

    /// Plans the reading of `want`, which lies within a file of `size` bytes. `sequence` is the event of the
    /// READs that will be sent, and `chunk` the largest number of bytes in one of them.
    pub fn plan(&mut self, want: &Range<u64>, size: u64, chunk: u64, racy: bool, sequence: u64) -> Plan {
        if !self.unasked.is_empty() {
            let end = want.end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
            self.unasked.remove(want.start / BLOCK_BYTES * BLOCK_BYTES..end);
        }
        if self.valid.contains(want)
            && let Some(file) = &self.file
        {
            return Plan::Hit(file.clone());
        }
        // Parts that are read while these bytes, or the end of the file, are being changed may not belong
        // together.
        let moves =
            |write: &OwnWrite| overlap(&write.range, want) || (want.end == size && write.range.end > size);
        if self.writes.iter().any(moves) {
            return Plan::Bypass;
        }
        let (join, send) = self.cover(want, size, chunk, racy, sequence);
        if self.fetches.len() + send.len() > FETCHES_MAX {
            return Plan::Bypass;
        }
        self.fetches.extend(send.iter().cloned());
        Plan::Fill { file: self.file.clone(), present: self.valid.present(want), join, send }
    }

    /// The number of fetches ahead of readers that may be planned now.
    pub fn ahead_left(&self) -> usize {
        AHEAD_MAX.saturating_sub(self.fetches.len())
    }

    /// Plans the fetches ahead of a reader: at most [`Data::ahead_left`].
    pub fn plan_ahead(
        &mut self,
        ahead: &Range<u64>,
        size: u64,
        chunk: u64,
        racy: bool,
        sequence: u64,
    ) -> Vec<Arc<Fetch>> {
        let (_, mut send) = self.cover(ahead, size, chunk, racy, sequence);
        send.truncate(self.ahead_left());
        self.fetches.extend(send.iter().cloned());
        send
    }

    /// The fetches in flight and the new ones that bring the missing bytes of `want`.
    fn cover(
        &self,
        want: &Range<u64>,
        size: u64,
        chunk: u64,
        racy: bool,
        sequence: u64,
    ) -> (Vec<Arc<Fetch>>, Vec<Arc<Fetch>>) {
        let mut join: Vec<Arc<Fetch>> = Vec::new();
        let mut on_the_way = RangeSet::default();
        let (start, end) = (want.start / BLOCK_BYTES * BLOCK_BYTES, want.end.saturating_add(BLOCK_BYTES));
        for fetch in self.fetches.iter().filter(|fetch| overlap(&fetch.range, &(start..end))) {
            if fetch.generation == self.generation && !fetch.is_tainted() {
                on_the_way.insert(fetch.range.clone());
                if self.valid.missing(want).iter().any(|missing| overlap(missing, &fetch.range)) {
                    join.push(fetch.clone());
                }
            }
        }
        let mut send = Vec::new();
        for missing in self.valid.missing(want) {
            for missing in on_the_way.missing(&missing) {
                let start = missing.start / BLOCK_BYTES * BLOCK_BYTES;
                let block_end = missing.end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
                let end = block_end.min(size.max(missing.end));
                // The ends were widened to complete blocks: bytes that are cached or being fetched are not
                // fetched again.
                for part in self.valid.missing(&(start..end)) {
                    for part in on_the_way.missing(&part) {
                        for range in split(part, chunk) {
                            on_the_way.insert(range.clone());
                            send.push(Arc::new(self.fetch(range, racy, sequence)));
                        }
                    }
                }
            }
        }
        (join, send)
    }

    /// A fetch to be sent. If a write of ours is in flight in its range, the fetch may bring the bytes before
    /// the write.
    fn fetch(&self, range: Range<u64>, racy: bool, sequence: u64) -> Fetch {
        let overtaken = self.writes.iter().any(|write| overlap(&write.range, &range));
        let fetch = Fetch::new(range, self.generation, sequence, racy);
        if overtaken {
            fetch.taint();
        }
        fetch
    }

    /// These bytes have arrived without a plan. Until [`end_fetch`](Data::end_fetch), other readers share
    /// them.
    pub fn brought(&mut self, range: Range<u64>, sequence: u64, racy: bool) -> Arc<Fetch> {
        let fetch = Arc::new(Fetch::new(range, self.generation, sequence, racy));
        self.fetches.push(fetch.clone());
        fetch
    }

    /// These bytes arrive before a reader has asked for them.
    pub fn are_unasked(&mut self, range: Range<u64>) {
        self.unasked.insert(range);
    }

    /// The number of cached bytes that a reader has asked for, with the rest of their blocks.
    pub fn asked_bytes(&self) -> u64 {
        let unasked = self.unasked.iter().flat_map(|range| self.valid.present(range));
        self.valid.bytes() - unasked.map(|part| part.end - part.start).sum::<u64>()
    }

    /// A fetch has ended, and its bytes are stored or will not be.
    pub fn end_fetch(&mut self, fetch: &Arc<Fetch>) {
        self.fetches.retain(|other| !Arc::ptr_eq(other, fetch));
    }

    /// Is a fetch in flight that brings some of this range?
    pub fn is_under_way(&self, range: &Range<u64>) -> bool {
        self.fetches.iter().any(|fetch| self.wants(fetch) && overlap(&fetch.range, range))
    }

    /// Is nothing valid, and no fetch in flight that would bring valid bytes?
    pub fn is_blank(&self) -> bool {
        self.valid.is_empty() && !self.fetches.iter().any(|fetch| self.wants(fetch))
    }

    /// Has the disk failed on this object lately?
    pub fn is_refused(&self) -> bool {
        self.refused.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// May the bytes of this fetch be stored?
    pub fn wants(&self, fetch: &Fetch) -> bool {
        !self.is_refused() && fetch.generation == self.generation && !fetch.is_tainted()
    }

    /// A write of ours is about to be sent.
    pub fn begin_write(&mut self, range: Range<u64>) -> Ticket {
        let ticket = self.ticket();
        self.writes_begun += 1;
        self.written = Some(Instant::now());
        let mut contested = false;
        for other in self.writes.iter_mut().filter(|other| overlap(&other.range, &range)) {
            other.contested = true;
            contested = true;
        }
        self.invalidate(&range);
        self.writes.push(OwnWrite { ticket, range, generation: self.generation, contested });
        ticket
    }

    /// May the bytes of this write be stored?
    pub fn wants_write(&self, ticket: Ticket) -> bool {
        let write = self.writes.iter().find(|write| write.ticket == ticket);
        !self.is_refused()
            && write.is_some_and(|write| !write.contested && write.generation == self.generation)
    }

    /// A write of ours has ended, and its bytes are stored or will not be.
    pub fn end_write(&mut self, ticket: Ticket) {
        self.writes.retain(|write| write.ticket != ticket);
        self.written = Some(Instant::now());
    }

    /// Is a write of ours in flight?
    pub fn is_being_written(&self) -> bool {
        !self.writes.is_empty()
    }

    /// When a write of ours last began or ended.
    pub fn written(&self) -> Option<Instant> {
        self.written
    }

    /// Has a write of ours been in flight at any time since?
    pub fn is_written_since(&self, since: Instant) -> bool {
        self.is_being_written() || self.written.is_some_and(|at| at >= since)
    }

    /// These bytes are no longer known. Fetches of them in flight bring old bytes.
    pub fn invalidate(&mut self, range: &Range<u64>) {
        self.valid.remove(range.clone());
        self.racy.remove(range.clone());
        self.fetches.iter().filter(|fetch| overlap(&fetch.range, range)).for_each(|fetch| fetch.taint());
    }

    /// The file was truncated or has grown: nothing is known from `size` on.
    pub fn clip(&mut self, size: u64) {
        self.invalidate(&(size..u64::MAX));
    }

    /// Asks for the right to write this range of the data file. Valid, claimed or pinned bytes must not be
    /// written.
    pub fn claim(
        &mut self,
        range: &Range<u64>,
        file: impl FnOnce() -> Arc<ObjectFile>,
    ) -> Option<(Ticket, Arc<ObjectFile>)> {
        if self.is_refused()
            || self.valid.intersects(range)
            || self.claims.iter().any(|claim| overlap(&claim.range, range))
        {
            return None;
        }
        let file = self.file.get_or_insert_with(file).clone();
        if file.is_pinned(range) {
            return None;
        }
        let ticket = self.ticket();
        self.claims.push(Claim { ticket, range: range.clone() });
        Some((ticket, file))
    }

    /// The claimed range has been written; `good` if its bytes belong to the known state. False if they do
    /// not count as valid.
    pub fn release(&mut self, ticket: Ticket, good: bool, racy: bool) -> bool {
        let Some(at) = self.claims.iter().position(|claim| claim.ticket == ticket) else { return false };
        let range = self.claims.swap_remove(at).range;
        // The bytes of the file have changed, good or not.
        self.sums.forget(&range);
        if !good || !self.valid.insert(range.clone()) {
            return false;
        }
        if racy && !self.racy.insert(range.clone()) {
            self.valid.remove(range);
            return false;
        }
        self.synced = false;
        self.stores += 1;
        true
    }

    /// Records the checksum of a range that was just released as good.
    pub fn put_sum(&mut self, range: Range<u64>, crc: u32) {
        self.sums.put(range, crc);
    }

    /// The checksums of the stored bytes.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Fetches in flight.
    pub fn fetches(&self) -> &[Arc<Fetch>] {
        &self.fetches
    }

    /// The disk refused a write: nothing of the object is cached for a while.
    pub fn refuse(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// An open: bytes that were fetched while the state was racy are no longer believed. True if there were
    /// any.
    pub fn distrust_racy(&mut self) -> bool {
        self.fetches.iter().filter(|fetch| fetch.racy).for_each(|fetch| fetch.taint());
        let any = !self.racy.is_empty();
        self.valid.subtract(&self.racy);
        self.racy.clear();
        any
    }

    /// Drops everything. Returns the data file, if there was one, for the trash.
    pub fn discard(&mut self) -> Option<Arc<ObjectFile>> {
        self.generation += 1;
        self.holes = Holes::default();
        self.valid.clear();
        self.racy.clear();
        self.sums.clear();
        self.claims.clear();
        self.unasked.clear();
        self.synced = false;
        self.file.take()
    }

    /// Is a task reading or writing the data now?
    pub fn is_in_use(&self) -> bool {
        !self.fetches.is_empty()
            || !self.writes.is_empty()
            || !self.claims.is_empty()
            || self.file.as_ref().is_some_and(|file| file.is_pinned(&(0..u64::MAX)))
    }

    /// Number of fetches and writes in flight, and of parts of the file that are being stored.
    pub fn in_flight(&self) -> usize {
        self.calls_in_flight() + self.claims.len()
    }

    /// Number of fetches and writes in flight.
    pub fn calls_in_flight(&self) -> usize {
        self.fetches.len() + self.writes.len()
    }

    /// Changes with every drop of the data and every write of ours. Parts of an answer that are taken at the
    /// same stand belong together.
    pub fn stand(&self) -> (u64, u64) {
        (self.generation, self.writes_begun)
    }

    /// How often the data was dropped.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The valid bytes.
    pub fn valid(&self) -> &RangeSet {
        &self.valid
    }

    /// Those of them that are valid only until the next open.
    pub fn racy(&self) -> &RangeSet {
        &self.racy
    }

    /// The data file that holds them.
    pub fn file(&self) -> Option<&Arc<ObjectFile>> {
        self.file.as_ref()
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }
}

/// Cuts a range at multiples of `chunk`.
fn split(range: Range<u64>, chunk: u64) -> impl Iterator<Item = Range<u64>> {
    let chunk = chunk.max(BLOCK_BYTES);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / chunk + 1).saturating_mul(chunk).min(range.end);
        let part = at..end;
        at = end;
        (!part.is_empty()).then_some(part)
    })
}

/// Do these ranges together cover all of `want`?
pub fn all_covered(want: &Range<u64>, parts: impl Iterator<Item = Range<u64>>) -> bool {
    let mut set = RangeSet::default();
    for part in parts {
        if covers(&part, want) {
            return true;
        }
        set.insert(part);
    }
    set.contains(want)
}
