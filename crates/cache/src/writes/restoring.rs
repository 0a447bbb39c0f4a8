//! The delayed writes that an earlier process has left in the journal ([`crate::journal`]).
//!
//! If the write lease of a file is still held, nobody else has read or changed the file. Its writes wait
//! here again as if they had just been made, and are sent in the background. Otherwise the origin decides
//! before anything is served. If the file is as the earlier process last saw it, the writes are sent at
//! once. If it is not, but has all their bytes, they had been sent. Otherwise they are kept beside the cache
//! and reported.
//!
//! Nothing of an earlier process is left in the journal when the cache is used: entries of this process would
//! get out of their order. So if the journal cannot be read, the cache must not be used.
//!
//! Several files are settled at once, in no particular order: each costs round trips, and a user waits. Not
//! many: between the question whether a file has changed and its writes, nothing keeps other clients away.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use vfs::{Caller, Handle, LeaseKind, Principal, Result, SetAttributes, StateidBasis, Status};

use super::flush::{PATIENCE_MIN, wait, wants_patience};
use super::verifier::forget_verifier;
use super::{Delayed, Level, Writes, journal_of};
use crate::core::Core;
use crate::journal::{self, Begin, Entry, Journal, Restored};
use crate::options::WriteBehind;
use crate::table::Object;

/// Files that are settled at the same time.
const SETTLED_AT_ONCE: usize = 16;
/// Their bytes; a larger file is settled alone.
const SETTLED_BYTES_MAX: u32 = 32 << 20;
/// Bytes of a file that are compared with the origin's by one READ.
const READ_BYTES: usize = 1 << 20;
/// READs of one file that are in flight for that.
const READS_AT_ONCE: usize = 4;

/// Why delayed writes of an earlier process keep a cache from being used: one line that names the thing, the
/// cause and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Unsettled {
    /// The journal cannot be read.
    #[error(
        "journal of delayed writes {path}: {cause}; check the disk, or move the directory away to go on without \
         these writes"
    )]
    Unreadable {
        /// The directory of the journal.
        path: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// Writes that conflict with another client's cannot be kept.
    #[error(
        "{name}: delayed writes of an earlier process cannot be kept in {path}: {cause}; make space there, and \
         start again"
    )]
    NotKept {
        /// The name of the file.
        name: String,
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
}

/// The contents of the journal at the start.
#[derive(Debug, Default)]
pub struct Found {
    /// Files that the origin must be asked about.
    waiting: Vec<Restored>,
    /// Files whose writes wait again.
    taken: Vec<Arc<Object>>,
    /// The journal could not be read.
    unreadable: Option<io::Error>,
}

/// The same, until it is settled.
#[derive(Debug, Default)]
pub struct Waiting {
    found: Mutex<Found>,
    /// Files that the origin must still be asked about.
    left: AtomicUsize,
}

/// Writes of an earlier process that wait again. If the origin refuses any, all are kept.
#[derive(Debug)]
pub struct RestoredWrites {
    begin: Begin,
    entries: Vec<Entry>,
    /// The origin has refused some.
    pub refused: Option<Status>,
}

impl RestoredWrites {
    /// The entries of the file in the journal.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Core {
    /// Takes over what an earlier process has left in the journal. May block.
    pub fn restore_writes(&self) {
        let verifier = self.delayed.as_ref().map(|delayed| &delayed.verifier);
        match verifier.filter(|verifier| verifier.is_kept()) {
            Some(verifier) => verifier.take_over(),
            None => forget_verifier(self.disk.directory()),
        }
        let Some(delayed) = &self.delayed else { return };
        let mut found = Found::default();
        match read(&delayed.journal) {
            Err(error) => {
                delayed.verifier.lost();
                found.unreadable = Some(error);
            }
            Ok(files) => {
                for restored in files {
                    if self.is_held_since(&restored) && restored.cut().is_none() && !restored.has_gap() {
                        found.taken.push(self.take_back(delayed, restored));
                    } else {
                        found.waiting.push(restored);
                    }
                }
            }
        }
        delayed.waiting.left.store(found.waiting.len(), Ordering::Release);
        *delayed.waiting.found.lock() = found;
    }

    /// Has the origin held the lease for this cache since the writes were made?
    fn is_held_since(&self, restored: &Restored) -> bool {
        let begin = restored.journaled.begin();
        self.with(&self.glance(&begin.handle), |state| {
            let held = state.held.lease.as_ref();
            held.is_some_and(|held| held.adopted && held.kind == LeaseKind::Write && held.id == begin.lease)
        })
    }

    /// The writes wait again.
    fn take_back(&self, delayed: &Delayed, restored: Restored) -> Arc<Object> {
        let Restored { mut journaled, entries, .. } = restored;
        let begin = journaled.begin().clone();
        let object = self.glance(&begin.handle);
        self.with(&object, |state| {
            let fresh = || delayed.new_record(self.write_chunk_bytes());
            state.delayed.writes.get_or_insert_with(fresh);
        });
        self.writes(&object, |writes| {
            play(writes, &entries);
            journaled.restored_before(writes.number());
            writes.journaled = Some(journaled);
            writes.restored = Some(Box::new(RestoredWrites { begin, entries, refused: None }));
        });
        object
    }

    /// Sends or keeps the writes of files that are not under their lease any more.
    pub async fn settle_restored(self: &Arc<Core>) -> std::result::Result<(), Unsettled> {
        let unreadable = |cause| Unsettled::Unreadable { path: self.disk.directory().writeback(), cause };
        let Some(delayed) = &self.delayed else {
            let journal = Arc::new(journal_of(self.disk.directory(), &WriteBehind::default()));
            for file in read(&journal).map_err(unreadable)? {
                self.set_aside(&journal, file, "writes are not delayed now").await?;
            }
            return Ok(());
        };
        let Found { waiting, taken, unreadable: error } = std::mem::take(&mut *delayed.waiting.found.lock());
        error.map_or(Ok(()), |error| Err(unreadable(error)))?;
        self.settle_files(waiting).await?;
        let core = self.clone();
        tokio::spawn(async move {
            for some in taken.chunks(SETTLED_AT_ONCE) {
                let flushed = join_all(some.iter().map(|object| core.flush_restored(object))).await;
                flushed.into_iter().filter_map(Result::err).for_each(|error| tracing::error!("{error}"));
            }
        });
        Ok(())
    }

    /// Number of files that [`Core::settle_restored`] has still to settle.
    pub fn unsettled(&self) -> usize {
        self.delayed.as_ref().map_or(0, |delayed| delayed.waiting.left.load(Ordering::Acquire))
    }

    /// Settles files. After a failure the others are settled all the same. Each file has a task of its own,
    /// since a task may hold up others while it waits for the journal.
    async fn settle_files(self: &Arc<Core>, files: Vec<Restored>) -> std::result::Result<(), Unsettled> {
        let permits = Arc::new(Semaphore::new(SETTLED_BYTES_MAX as usize));
        let mut tasks = JoinSet::new();
        let mut first = Ok(());
        let mut files = files.into_iter();
        loop {
            if tasks.len() < SETTLED_AT_ONCE
                && let Some(restored) = files.next()
            {
                let bytes = u32::try_from(restored.bytes()).unwrap_or(u32::MAX).min(SETTLED_BYTES_MAX);
                let permit = permits.clone().acquire_many_owned(bytes).await;
                let core = self.clone();
                tasks.spawn(async move {
                    let _permit = permit;
                    core.settle_file(restored).await
                });
                continue;
            }
            let Some(settled) = tasks.join_next().await else { return first };
            if let Some(delayed) = &self.delayed {
                delayed.waiting.left.fetch_sub(1, Ordering::AcqRel);
            }
            match settled {
                Ok(Err(error)) if first.is_ok() => first = Err(error),
                Ok(Err(error)) => tracing::error!("{error}"),
                Ok(Ok(())) => {}
                Err(error) => {
                    if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }

    async fn settle_file(&self, restored: Restored) -> std::result::Result<(), Unsettled> {
        let Some(delayed) = &self.delayed else { return Ok(()) };
        if restored.has_gap() {
            return self.set_aside(&delayed.journal, restored, "the disk has lost some of them").await;
        }
        let why = match self.may_be_sent(&restored).await {
            Ok(true) => return self.send_restored(delayed, restored).await,
            // They were sent, and the end of that is not in the journal.
            Ok(false) if self.is_there(delayed, &restored).await => {
                delayed.journal.end(restored.journaled);
                return Ok(());
            }
            Ok(false) => "the file has changed".to_owned(),
            Err(error) if matches!(error.status, Status::Stale | Status::BadHandle | Status::NoEnt) => {
                "the file is gone".to_owned()
            }
            Err(error) => error.to_string(),
        };
        self.set_aside(&delayed.journal, restored, &why).await
    }

    async fn may_be_sent(&self, restored: &Restored) -> Result<bool> {
        if self.is_held_since(restored) {
            return Ok(true);
        }
        let begin = restored.journaled.begin();
        self.counters.getattr.bump();
        let writer = writer_of(restored);
        let known = patiently(|| self.below.getattr(&writer, &begin.handle)).await?;
        Ok(begin.change == Some(known.change))
    }

    /// Has the origin all bytes that the writes make, on its disk? No program waits for other attributes.
    async fn is_there(&self, delayed: &Delayed, restored: &Restored) -> bool {
        let mut writes = *delayed.new_record(self.write_chunk_bytes());
        play(&mut writes, &restored.entries);
        let (caller, handle) = (writer_of(restored), restored.journaled.begin().handle);
        let asked = writes.pending().is_some_and(|pending| pending.asked);
        if asked || patiently(|| self.below.commit(&caller, &handle, 0, 0)).await.is_err() {
            return false;
        }
        let remaining = writes.remaining().unwrap_or_default();
        let pieces: Vec<_> =
            remaining.into_iter().flat_map(|(_, offset, bytes)| pieces(offset, bytes)).collect();
        // Most files that differ do so in their first bytes.
        let (first, others) = pieces.split_at(pieces.len().min(1));
        for some in std::iter::once(first).chain(others.chunks(READS_AT_ONCE)) {
            let compared =
                some.iter().map(|(at, bytes)| self.has_bytes(&caller, &handle, *at, bytes.clone()));
            if join_all(compared).await.contains(&false) {
                return false;
            }
        }
        !writes.is_cut()
    }

    /// Has the file at the origin these bytes, at most `READ_BYTES`?
    pub(super) async fn has_bytes(
        &self,
        caller: &Caller,
        handle: &Handle,
        mut offset: u64,
        mut bytes: Bytes,
    ) -> bool {
        while !bytes.is_empty() {
            let count = bytes.len() as u32;
            let read = || self.below.read(caller, handle, StateidBasis::Anonymous, offset, count);
            let Ok(read) = patiently(read).await else { return false };
            let whole = tokio::task::spawn_blocking(move || read.data.to_bytes());
            let Ok(Ok(read)) = whole.await else { return false };
            if read.is_empty() || !bytes.starts_with(&read) {
                return false;
            }
            offset += read.len() as u64;
            bytes.advance(read.len());
        }
        true
    }

    /// Sends the writes, and first a truncation whose outcome is not known.
    async fn send_restored(
        &self,
        delayed: &Delayed,
        restored: Restored,
    ) -> std::result::Result<(), Unsettled> {
        let (cut, writer) = (restored.cut(), writer_of(&restored));
        let object = self.take_back(delayed, restored);
        if let Some(end) = cut {
            // The truncation holds the file until it has ended.
            let set = SetAttributes { size: Some(end), ..SetAttributes::default() };
            // As for the writes: a truncation that was only put off is not one that failed.
            let done = patiently(|| self.setattr_below(&writer, &object, &set, None)).await.is_ok();
            self.writes(&object, |writes| {
                self.enter_cut(writes, end, Some(done));
                writes.end_cut(end, done);
            });
        }
        self.flush_restored(&object).await
    }

    /// Sends the writes of a file. If the origin refuses any, keeps all.
    async fn flush_restored(&self, object: &Arc<Object>) -> std::result::Result<(), Unsettled> {
        self.flush_writes(object, Level::Stable).await;
        self.keep_refused(object)
    }

    /// Keeps the writes of an earlier process that the origin has refused. Does nothing while some wait.
    fn keep_refused(&self, object: &Arc<Object>) -> std::result::Result<(), Unsettled> {
        let refused = |writes: &mut Writes| {
            let restored = writes.restored.as_ref().filter(|_| writes.is_clean())?;
            Some((restored.begin.clone(), restored.entries.clone(), restored.refused?))
        };
        let Some((begin, entries, status)) = self.writes(object, refused).flatten() else { return Ok(()) };
        let keeping = Keeping::new(self, begin, entries, "delayed writes of an earlier process");
        keeping.keep(&vfs::Error::from(status).to_string())?;
        // With that the entries of the file end.
        self.writes(object, |writes| writes.restored = None);
        Ok(())
    }

    /// The same for all files, at the end of the process.
    pub fn keep_all_refused(&self) {
        for (_, object) in self.delayed_files() {
            if let Err(error) = self.keep_refused(&object) {
                tracing::error!("{error}");
            }
        }
    }

    /// Keeps the writes in a file of the cache directory. Once begun, it goes on to its end, also if the
    /// start is cancelled: else the next start would keep them again.
    async fn set_aside(
        &self,
        journal: &Arc<Journal>,
        restored: Restored,
        why: &str,
    ) -> std::result::Result<(), Unsettled> {
        let Restored { journaled, entries, .. } = restored;
        let begin = journaled.begin().clone();
        self.delayed.iter().for_each(|delayed| delayed.verifier.lost());
        let keeping = Keeping::new(self, begin, entries, "delayed writes of an earlier process");
        let (name, path) = (keeping.begin.shown(), keeping.directory.clone());
        let (journal, why) = (journal.clone(), why.to_owned());
        let kept = tokio::task::spawn_blocking(move || {
            keeping.keep(&why)?;
            journal.end(journaled);
            Ok(())
        });
        let not_kept = |error| Unsettled::NotKept { name, path, cause: io::Error::other(error) };
        kept.await.unwrap_or_else(|error| Err(not_kept(error)))
    }
}

/// Delayed writes that are about to be kept.
pub(super) struct Keeping {
    begin: Begin,
    entries: Vec<Entry>,
    directory: PathBuf,
    seconds: u64,
    what: &'static str,
}

impl Keeping {
    /// `what` names them in the log.
    pub(super) fn new(core: &Core, begin: Begin, entries: Vec<Entry>, what: &'static str) -> Keeping {
        let seconds = core.policy.wall().seconds.max(0) as u64;
        Keeping { begin, entries, directory: core.disk.directory().conflicts(), seconds, what }
    }

    /// Writes the file, and logs where it is. Blocks.
    pub(super) fn keep(self, why: &str) -> std::result::Result<(), Unsettled> {
        let Keeping { begin, entries, directory, seconds, what } = self;
        let name = begin.shown();
        let kept = match journal::keep(&directory, &begin, &entries, seconds) {
            Ok(kept) => kept,
            Err(cause) => return Err(Unsettled::NotKept { name, path: directory, cause }),
        };
        tracing::warn!("{name}: {what} cannot be sent, because {why}; they are in {}", kept.display());
        Ok(())
    }
}

fn read(journal: &Journal) -> io::Result<Vec<Restored>> {
    let (files, lost) = journal.restore()?;
    if lost {
        tracing::warn!(
            "delayed writes of before the machine started are lost, as far as no fsync had sent them"
        );
    }
    Ok(files)
}

/// Bytes from an offset on, in pieces of at most `READ_BYTES`.
fn pieces(offset: u64, bytes: Bytes) -> impl Iterator<Item = (u64, Bytes)> {
    (0..bytes.len()).step_by(READ_BYTES).map(move |at| {
        let end = bytes.len().min(at + READ_BYTES);
        (offset + at as u64, bytes.slice(at..end))
    })
}

/// Makes a call until the origin does not put it off.
pub(super) async fn patiently<T, F>(call: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut patience = PATIENCE_MIN;
    loop {
        match call().await {
            Err(error) if wants_patience(&error) => wait(&mut patience).await,
            result => return result,
        }
    }
}

/// Makes the steps again. A truncation whose outcome is not known stays in flight.
fn play(writes: &mut Writes, entries: &[Entry]) {
    let mut cut = None;
    for entry in entries {
        match entry {
            Entry::Begin(_) | Entry::Change(_) | Entry::Complete(_) => {}
            Entry::Write { writer, offset, modified, bytes } => {
                writes.write(*offset, bytes, &caller(writer.clone()), (Instant::now(), *modified));
            }
            Entry::Attributes(set) => writes.set_pending(set.into()),
            Entry::AttributesEnd => writes.drop_pending(),
            Entry::Cut(end) => {
                writes.begin_cut(*end);
                cut = Some(*end);
            }
            Entry::CutEnd(done) => cut.take().into_iter().for_each(|end| writes.end_cut(end, *done)),
        }
    }
}

/// The last writer.
fn writer_of(restored: &Restored) -> Caller {
    let writer = restored.entries.iter().rev().find_map(|entry| match entry {
        Entry::Write { writer, .. } => Some(writer.clone()),
        _ => None,
    });
    caller(writer.unwrap_or(Principal::Machine))
}

pub fn caller(principal: Principal) -> Caller {
    Caller { principal, ..Caller::machine() }
}
