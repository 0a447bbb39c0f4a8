//! The data of one file: which bytes are on this disk, which are on their way, and who is writing.
//!
//! Pure bookkeeping; the reading and writing is done elsewhere, without the lock that guards this. Three rules keep a
//! reader from seeing bytes that never were:
//! - A range of the file on disk is written only while it is *claimed*: no reader has it pinned, no one else writes
//!   it, and it is not among the valid ranges until the write is done.
//! - Dropping the data never touches the file: it goes to the trash as it is, and the next bytes go to another one.
//! - A write of ours takes its range out of the valid ones before it is sent, and taints the fetches it overtakes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::fetch::Fetch;
use crate::holes::Holes;
use crate::ranges::{RangeSet, covers, overlap};
use crate::store::ObjectFile;
use crate::sums::Sums;

/// Cached data starts and ends at multiples of this, but at the end of the file.
pub const BLOCK_BYTES: u64 = 4096;

/// Most fetches of one file under way; beyond it, a reader reads for itself alone.
const FETCHES_MAX: usize = 64;

/// How long an object is not cached after the disk failed on it.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Names a write of ours, or a claim, within one object.
pub type Ticket = u64;

#[derive(Debug)]
struct OwnWrite {
    ticket: Ticket,
    range: Range<u64>,
    generation: u64,
    /// Another write of the same bytes was under way: which one came last is not known.
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
    /// The file on this disk, if there is one.
    file: Option<Arc<ObjectFile>>,
    /// The bytes in it that are those of the known state.
    valid: RangeSet,
    /// Those of them that were fetched before the state was settled.
    racy: RangeSet,
    /// Counts how often the data was dropped.
    generation: u64,
    /// Counts our own writes.
    writes_begun: u64,
    /// When the disk would not take something: no caching for a while.
    refused: Option<Instant>,
    fetches: Vec<Arc<Fetch>>,
    writes: Vec<OwnWrite>,
    /// When one of them last began or ended.
    written: Option<Instant>,
    claims: Vec<Claim>,
    /// What has come with an open and nobody has asked for yet.
    unasked: RangeSet,
    tickets: Ticket,
    /// Where the origin has none.
    pub holes: Holes,
    /// Checksums of what was stored.
    sums: Sums,
    /// Everything valid has reached the disk itself.
    pub synced: bool,
    /// Counts what was stored.
    pub stores: u64,
    /// Is what an earlier process has left known to be what its index says?
    pub proof: Proof,
}

/// What an earlier process was writing when it was killed may be on the disk already, and in the index not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proof {
    /// It is, or there is nothing of an earlier process.
    #[default]
    Given,
    /// Nobody has looked.
    Open,
    /// It is not, or nothing tells.
    Failed,
}

/// How a READ is to be answered.
#[derive(Debug)]
pub enum Plan {
    /// All of it is on this disk.
    Hit(Arc<ObjectFile>),
    /// Some has to come from the origin: fetches of others to wait for, and new ones to be sent.
    Fill {
        /// Where the rest is.
        file: Option<Arc<ObjectFile>>,
        /// What is in the file.
        present: Vec<Range<u64>>,
        /// Under way.
        join: Vec<Arc<Fetch>>,
        /// To be sent.
        send: Vec<Arc<Fetch>>,
    },
    /// The origin is to be asked for just this.
    Bypass,
}

impl Data {
    /// What the index remembers.
    pub fn restored(
        file: Arc<ObjectFile>,
        valid: RangeSet,
        racy: RangeSet,
        sums: Sums,
        synced: bool,
    ) -> Data {
        Data { file: Some(file), valid, racy, sums, synced, proof: Proof::Open, ..Data::default() }
    }

    /// Plans the reading of `want`, which lies within a file of `size` bytes. `sent` is the sequence number of the
    /// reads that will be sent, `chunk` the most that one of them asks for.
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
        // Parts that are read while these bytes, or the end of the file, are being changed may not belong together.
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

    /// Plans what is to be fetched ahead of a reader.
    pub fn plan_ahead(
        &mut self,
        ahead: &Range<u64>,
        size: u64,
        chunk: u64,
        racy: bool,
        sequence: u64,
    ) -> Vec<Arc<Fetch>> {
        let (_, mut send) = self.cover(ahead, size, chunk, racy, sequence);
        send.truncate((FETCHES_MAX / 2).saturating_sub(self.fetches.len()));
        self.fetches.extend(send.iter().cloned());
        send
    }

    /// Which fetches bring what is missing of `want`.
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
        for fetch in &self.fetches {
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
                // The ends were widened to whole blocks: what is there or on its way already is not asked again.
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

    /// A fetch to be sent. If a write of ours is under way there, it may bring the bytes before it.
    fn fetch(&self, range: Range<u64>, racy: bool, sequence: u64) -> Fetch {
        let overtaken = self.writes.iter().any(|write| overlap(&write.range, &range));
        let fetch = Fetch::new(range, self.generation, sequence, racy);
        if overtaken {
            fetch.taint();
        }
        fetch
    }

    /// These bytes have come without having been planned for: until [`end_fetch`](Data::end_fetch), who wants them shares
    /// them.
    pub fn brought(&mut self, range: Range<u64>, sequence: u64, racy: bool) -> Arc<Fetch> {
        let fetch = Arc::new(Fetch::new(range, self.generation, sequence, racy));
        self.fetches.push(fetch.clone());
        fetch
    }

    /// These come before anybody has asked for them.
    pub fn are_unasked(&mut self, range: Range<u64>) {
        self.unasked.insert(range);
    }

    /// How many bytes are here because somebody asked for them, or for others in their blocks.
    pub fn asked_bytes(&self) -> u64 {
        let unasked = self.unasked.iter().flat_map(|range| self.valid.present(range));
        self.valid.bytes() - unasked.map(|part| part.end - part.start).sum::<u64>()
    }

    /// A fetch has ended and been stored, or will not be.
    pub fn end_fetch(&mut self, fetch: &Arc<Fetch>) {
        self.fetches.retain(|other| !Arc::ptr_eq(other, fetch));
    }

    /// Is a fetch under way that brings some of this?
    pub fn is_under_way(&self, range: &Range<u64>) -> bool {
        self.fetches.iter().any(|fetch| self.wants(fetch) && overlap(&fetch.range, range))
    }

    /// Has the disk failed us here lately?
    pub fn is_refused(&self) -> bool {
        self.refused.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// May what this fetch brought be stored?
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

    /// May the bytes of a write of ours be kept?
    pub fn wants_write(&self, ticket: Ticket) -> bool {
        let write = self.writes.iter().find(|write| write.ticket == ticket);
        !self.is_refused()
            && write.is_some_and(|write| !write.contested && write.generation == self.generation)
    }

    /// A write of ours has ended and been stored, or will not be.
    pub fn end_write(&mut self, ticket: Ticket) {
        self.writes.retain(|write| write.ticket != ticket);
        self.written = Some(Instant::now());
    }

    /// Is a write of ours under way?
    pub fn is_being_written(&self) -> bool {
        !self.writes.is_empty()
    }

    /// When one last began or ended.
    pub fn written(&self) -> Option<Instant> {
        self.written
    }

    /// Has one been under way at any time since?
    pub fn is_written_since(&self, since: Instant) -> bool {
        self.is_being_written() || self.written.is_some_and(|at| at >= since)
    }

    /// These bytes are no longer known, and fetches of them under way bring old ones.
    pub fn invalidate(&mut self, range: &Range<u64>) {
        self.valid.remove(range.clone());
        self.racy.remove(range.clone());
        self.fetches.iter().filter(|fetch| overlap(&fetch.range, range)).for_each(|fetch| fetch.taint());
    }

    /// The file was cut, or has grown: nothing is known from `size` on.
    pub fn clip(&mut self, size: u64) {
        self.invalidate(&(size..u64::MAX));
    }

    /// Asks for the right to write these bytes of the file on disk. Bytes that are valid are not to be written.
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

    /// The claimed bytes have been written; `good` if they are those of the known state. False if they were not taken.
    pub fn release(&mut self, ticket: Ticket, good: bool, racy: bool) -> bool {
        let Some(at) = self.claims.iter().position(|claim| claim.ticket == ticket) else { return false };
        let range = self.claims.swap_remove(at).range;
        // Something was written there, good or not.
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

    /// What was just released as good has this checksum.
    pub fn put_sum(&mut self, range: Range<u64>, crc: u32) {
        self.sums.put(range, crc);
    }

    /// The checksums of what was stored.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Fetches under way.
    pub fn fetches(&self) -> &[Arc<Fetch>] {
        &self.fetches
    }

    /// The disk would not take it: no caching here for a while.
    pub fn refuse(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// An open found the known state: what was fetched before it was settled is not believed any more. True if there
    /// was anything.
    pub fn distrust_racy(&mut self) -> bool {
        self.fetches.iter().filter(|fetch| fetch.racy).for_each(|fetch| fetch.taint());
        let any = !self.racy.is_empty();
        self.valid.subtract(&self.racy);
        self.racy.clear();
        any
    }

    /// Drops everything. The file, if there was one, goes to the caller for the trash.
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

    /// Is anyone reading or writing it just now?
    pub fn is_in_use(&self) -> bool {
        !self.fetches.is_empty()
            || !self.writes.is_empty()
            || !self.claims.is_empty()
            || self.file.as_ref().is_some_and(|file| file.is_pinned(&(0..u64::MAX)))
    }

    /// Changes with every drop and every write of ours: parts of an answer that are taken at the same stand belong
    /// together.
    pub fn stand(&self) -> (u64, u64) {
        (self.generation, self.writes_begun)
    }

    /// How often it was dropped.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The bytes that are there.
    pub fn valid(&self) -> &RangeSet {
        &self.valid
    }

    /// Those that are good until the next open only.
    pub fn racy(&self) -> &RangeSet {
        &self.racy
    }

    /// Where they are.
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
