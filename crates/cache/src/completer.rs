//! Completing files of which a part is cached (Badros' `nfsfillind`, section 4.2): on demand, and in the
//! background.
//!
//! The background task works while nothing else is asked of the origin. It sends one READ at a time, for the
//! file with the fewest missing bytes, and of two for the smaller one. Any other call stops it until the link
//! has been idle for a while. A miss therefore waits for at most one of its READs. The task reads under the
//! credential of a caller that has read the file. It never makes the cleaner run, and never fetches bytes
//! that the cache would not keep.
//!
//! `candidates` makes the choice, without I/O.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{AccessMask, Attributes, Caller, FileType, Handle, Result, Status};

use crate::Cache;
use crate::core::Core;
use crate::fetch::Fetch;
use crate::object::ObjectState;
use crate::options::Fill;
use crate::store::{Table, UseNote};
use crate::table::Object;

/// Bytes of one READ in the background: a miss waits for at most that much.
const BACKGROUND_BYTES: u64 = 256 << 10;
/// The least and the most READs in flight for one file, if a caller waits for its completion.
const WIDTH_MIN: u64 = 2;
const WIDTH_MAX: u64 = 512;
/// The longest wait until the state of a file that has just changed is nonracy.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// How often a file is tried again while other operations work on it.
const TRIES_MAX: u32 = 100;
/// How often to look whether the cleaner has freed capacity, ten milliseconds apart.
const SPACE_TRIES_MAX: u32 = 500;
/// Records of the index that are read between two pauses.
const PAGE: usize = 128;
const BREATH: Duration = Duration::from_millis(20);

/// The outcome of completing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The file was complete already.
    Was,
    /// The file is complete now; so many bytes were fetched.
    Now(u64),
    /// The object has no data of its own: it is a directory, a link or a device.
    NoFile,
    /// The thresholds exclude the file.
    NotWanted,
    /// There is no capacity left.
    Full,
    /// Other clients change the file all the time, or its bytes cannot be kept.
    Stuck,
}

/// The outcome of one round.
enum Round {
    Done(Completed),
    Fetched(u64),
    Wait,
}

impl Cache {
    /// Do the thresholds admit a file with these attributes?
    pub fn takes(&self, attributes: &Attributes) -> bool {
        self.core.limits().takes(attributes, self.core.policy.wall())
    }

    /// Fetches the missing bytes of a file, as this caller. A file that is complete and has not changed costs
    /// at most one GETATTR.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn complete(&self, caller: &Caller, handle: &Handle) -> Result<Completed> {
        self.core.complete_range(caller, &self.core.object(handle), 0..u64::MAX, WIDTH_MAX).await
    }
}

/// The missing bytes that one round fetches.
struct Wanted {
    /// Where they are. The range may reach beyond the end of the file.
    within: Range<u64>,
    /// READs at a time.
    width: usize,
    /// The largest READ, in bytes.
    chunk_max: u64,
    /// Nobody waits for them.
    background: bool,
}

impl Wanted {
    /// The part of a file of `size` bytes.
    fn part_of(&self, size: u64) -> Range<u64> {
        self.within.start.min(size)..self.within.end.min(size)
    }
}

impl Core {
    /// Fetches the missing bytes of a range of a file, as this caller, with at most `width_max` READs at a
    /// time. The range may reach beyond the end of the file. If all of its bytes are here and the file has
    /// not changed, this costs at most one GETATTR.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn complete_range(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        within: Range<u64>,
        width_max: u64,
    ) -> Result<Completed> {
        let mut fetched = 0;
        let (mut waits, mut tries) = (0, 0);
        loop {
            let window = self.link.read_window_bytes().min(self.options.readahead_max_bytes);
            let width = (window / self.chunk_bytes()).max(WIDTH_MIN).min(width_max) as usize;
            let within = within.clone();
            let wanted = Wanted { within, width, chunk_max: u64::MAX, background: false };
            match self.round(caller, object, wanted).await? {
                // The cleaner may be freeing capacity.
                Round::Done(Completed::Full) if !self.gate.is_over_limit() && tries < SPACE_TRIES_MAX => {
                    tries += 1;
                    self.gate.wake();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Round::Done(Completed::Was) if fetched > 0 => return Ok(Completed::Now(fetched)),
                Round::Done(completed) => return Ok(completed),
                Round::Fetched(bytes) if bytes > 0 => (fetched, waits) = (fetched + bytes, 0),
                Round::Fetched(_) | Round::Wait => {
                    waits += 1;
                    if waits > TRIES_MAX {
                        return Ok(Completed::Stuck);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

/// The fetches of one round.
struct Planned {
    fetches: Vec<Arc<Fetch>>,
    /// A fetch of another operation.
    under_way: Option<Arc<Fetch>>,
    /// Bytes of the file that were cached before.
    valid_bytes: u64,
}

impl Core {
    /// Fetches some of the missing bytes, and waits until they are stored.
    async fn round(&self, caller: &Caller, object: &Arc<Object>, wanted: Wanted) -> Result<Round> {
        self.know_limits(caller, &object.handle).await;
        if self.with(object, |state| state.current().is_none()) {
            if wanted.background {
                self.counters.filled_calls.bump();
            }
            let arrived = self.policy.event();
            self.revalidate(caller, object, arrived).await?;
        }
        self.let_settle(object).await;
        let Planned { fetches, under_way, valid_bytes } = match self.plan_round(object, &wanted) {
            Ok(planned) => planned,
            Err(round) => return Ok(round),
        };
        if fetches.is_empty() {
            // Another fetch is bringing the bytes.
            if let Some(fetch) = under_way {
                let _ = fetch.wait().await;
            }
            return Ok(Round::Wait);
        }
        let send = |fetch: &Arc<Fetch>| self.send(caller, object, fetch.clone(), None, wanted.background);
        let tasks: Vec<_> = fetches.iter().map(send).collect();
        for task in tasks.into_iter().flatten() {
            let _ = task.await;
        }
        for fetch in &fetches {
            fetch.wait().await?;
        }
        let after = self.with(object, |state| state.data.valid().bytes());
        Ok(Round::Fetched(after.saturating_sub(valid_bytes)))
    }

    /// Plans the fetches of a round, from the first missing byte on.
    ///
    /// # Errors
    /// The result of the round, if there is nothing to fetch now.
    fn plan_round(&self, object: &Arc<Object>, wanted: &Wanted) -> std::result::Result<Planned, Round> {
        let (width, chunk) = (wanted.width, self.chunk_bytes().min(wanted.chunk_max));
        let may_store = self.may_store();
        let sent = self.policy.sending();
        self.with(object, |state| {
            let Some(known) = state.attributes().copied() else { return Err(Round::Wait) };
            if known.file_type != FileType::Regular {
                return Err(Round::Done(Completed::NoFile));
            }
            let missing = state.data.valid().missing(&wanted.part_of(known.size));
            if missing.is_empty() {
                return Err(Round::Done(Completed::Was));
            }
            if !self.limits().takes(&known, self.policy.wall()) {
                return Err(Round::Done(Completed::NotWanted));
            }
            if !may_store || !self.takes(state) || state.data.is_refused() {
                return Err(Round::Done(Completed::Full));
            }
            let Some(first) = missing.first() else { return Err(Round::Wait) };
            let want = first.start..first.end.min(first.start.saturating_add(chunk * width as u64));
            let racy = state.is_racy(&self.policy, &sent);
            let mut fetches = state.data.plan_ahead(&want, known.size, chunk, racy, sent.sequence);
            for surplus in fetches.split_off(fetches.len().min(width)) {
                surplus.finish(Err(Status::Delay.into()));
                state.data.end_fetch(&surplus);
            }
            let under_way = state.data.fetches().first().cloned();
            Ok(Planned { fetches, under_way, valid_bytes: state.data.valid().bytes() })
        })
    }

    /// Bytes of a file that has just changed are valid only until the next open. Nothing is urgent here: one
    /// timestamp granularity after the state was first seen, fetched bytes stay valid.
    async fn let_settle(&self, object: &Arc<Object>) {
        let sent = self.policy.sending();
        let racy = self.with(object, |state| state.is_seen() && state.is_racy(&self.policy, &sent));
        if racy {
            tokio::time::sleep(self.policy.origin.granularity().min(SETTLE_MAX)).await;
        }
    }

    /// Records whether a file is to be completed.
    pub fn note_candidate(&self, handle: &Handle, state: &ObjectState) {
        let Some(fill) = self.options.fill else { return };
        let missing = self.missing(state, fill);
        self.candidates.lock().note(*handle, missing);
    }

    /// The number of missing bytes and the size of a file, if it is worth completing.
    fn missing(&self, state: &ObjectState, fill: Fill) -> Option<(u64, u64)> {
        let known = state.attributes().filter(|known| known.file_type == FileType::Regular)?;
        // Bytes that came with an open do not tell whether the file is wanted.
        let (present, asked) = (state.data.valid().bytes(), state.data.asked_bytes());
        let enough =
            asked > 0 && u128::from(asked) * 100 >= u128::from(known.size) * u128::from(fill.percent_min);
        let worth = enough && present < known.size && self.limits().takes(known, self.policy.wall());
        let readable = || state.rights.iter().any(|right| right.may_ever(AccessMask::READ));
        (worth && readable()).then(|| (known.size - present, known.size))
    }

    /// The number of calls to the origin that are not the completer's.
    fn foreground_calls(&self) -> u64 {
        self.counters.snapshot().upstream.total().saturating_sub(self.counters.filled_calls.get())
    }

    /// Fetches a piece of the file with the fewest missing bytes. False if there is nothing to do.
    async fn fill_some(&self) -> bool {
        if self.needs_cleaning() {
            return false;
        }
        let Some(handle) = self.candidates.lock().next() else { return false };
        let object = self.glance(&handle);
        let caller = self.reader_of(&object);
        let wanted = Wanted { within: 0..u64::MAX, width: 1, chunk_max: BACKGROUND_BYTES, background: true };
        let round = self.round(&caller, &object, wanted).await;
        match round {
            Ok(Round::Fetched(bytes)) if bytes > 0 => {
                self.counters.filled_bytes.add(bytes);
                self.with(&object, |state| self.note_candidate(&handle, state));
            }
            // The file is recorded again when its state changes.
            _ => self.candidates.lock().note(handle, None),
        }
        true
    }
}

/// Completes files while the link is idle, for as long as the cache exists.
pub async fn completer(core: Weak<Core>, fill: Fill) {
    let look = (fill.idle / 4).max(Duration::from_millis(10));
    if let Some(core) = core.upgrade() {
        recall_candidates(&core).await;
    }
    let mut last = (0, Instant::now());
    loop {
        tokio::time::sleep(look).await;
        let Some(core) = core.upgrade() else { return };
        let calls = core.foreground_calls();
        if calls != last.0 {
            last = (calls, Instant::now());
        }
        if last.1.elapsed() < fill.idle || core.is_away() {
            continue;
        }
        while core.fill_some().await {
            if core.foreground_calls() != last.0 {
                break;
            }
        }
    }
}

/// Finds the files that earlier processes left incomplete.
async fn recall_candidates(core: &Arc<Core>) {
    let mut from = Vec::new();
    loop {
        let page = core.disk.index().scan(Table::Uses, &[], &from, PAGE);
        let Some((last, _)) = page.last() else { return };
        from = [last, &[0][..]].concat();
        for (key, note) in &page {
            let note = UseNote::decode(note);
            let handle = key.get(8..).and_then(Handle::new);
            if let Some(handle) = handle.filter(|_| note.has_data && !note.is_complete) {
                let object = core.glance(&handle);
                core.with(&object, |state| core.note_candidate(&handle, state));
            }
        }
        tokio::time::sleep(BREATH).await;
    }
}
