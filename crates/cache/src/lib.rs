//! The cache: a [`FileSystem`] over another one, with a persistent cache on the local disk.
//!
//! The design follows Badros' caching client (1999) and Lever's close-to-open consistency (2001). Cached data
//! outlives the process. Every answer keeps the promise of [`Consistency`]; these modules keep it:
//!
//! | module | responsibility |
//! |---|---|
//! | `object` | the known state of a remote object, and the effect of new attributes on it |
//! | `history` | which changes our own operations explain |
//! | `trust` | when unchanged attributes prove unchanged data (the timestamp granularity rule) |
//! | `news` | when a negative entry must be confirmed again |
//! | `rights` | which credentials may have a hit |
//! | `held_lease`, `lease` | leases from the origin: the changes that the origin has promised to announce |
//! | `open_table`, `opens`, `locks` | opens and locks of the layer above, and those at the origin |
//! | `upstream`, `settling` | opens at the origin, and when they are narrowed |
//! | `callbacks`, `above` | callbacks from the origin, and those to the layer above |
//! | `adopt`, `adopting` | opens, locks and leases that the origin holds for an earlier process |
//! | `data`, `ranges` | which bytes are cached, being fetched, or being written |
//! | `changes` | our own changes in flight |
//! | `revalidate`, `singleflight` | one GETATTR or LOOKUP for several callers |
//! | `names`, `listing`, `loaded` | the objects that names lead to |
//! | `filler`, `fetch`, `readahead` | fetching bytes from the origin |
//! | `holes` | bytes that are known to be zero without a fetch |
//! | `completer`, `candidates` | fetching the missing bytes of a partly cached file |
//! | `store`, `sums` | the index and the data files on the local disk |
//! | `writes` | delayed writes, and how they reach the origin |
//! | `limits` | how much is cached, and which files |
//! | `upkeep`, `cleaner` | background work |
//! | `link`, `outage`, `watcher` | what the link to the origin has shown: limits, pace, an origin that does not answer |
//! | `disk`, `flushing`, `gate` | the files on this disk, what the index lacks, whether data may be stored |
//! | `companions` | files of a directory that are opened together |
//! | `recording`, `profile` | what readers use of a tree, and bringing it ahead of the next of them |
//! | `inspect`, `verify` | views of the cached data for people and tools |
//! | `filesystem` | the operations |
//!
//! An operation that asks with [`Freshness::Open`](vfs::Freshness::Open) costs these calls to the origin:
//! - a cached GETATTR, LOOKUP or ACCESS: one GETATTR;
//! - a READ of cached and valid bytes: none;
//! - the first use of an object by a credential: one ACCESS.
//!
//! Over an origin with state, all opens of a file share one OPEN. Under a lease from the origin, only the
//! ACCESS costs a call. Under a lease on a directory, the names in it cost no call, whether they exist or
//! not.

mod above;
mod adopt;
mod adopting;
mod cache;
mod callbacks;
mod candidates;
mod changes;
mod cleaner;
mod companions;
mod completer;
mod core;
mod data;
mod disk;
mod fetch;
mod filesystem;
mod filler;
mod flushing;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gate;
mod guesses;
mod held;
mod held_lease;
mod history;
mod holes;
mod inspect;
mod journal;
mod kept_opens;
mod lease;
mod limits;
mod link;
mod listing;
mod loaded;
mod locks;
mod names;
mod news;
mod object;
mod open_table;
mod opens;
mod options;
mod outage;
mod pace;
mod policy;
pub mod preemption;
mod prefetch;
mod profile;
mod ranges;
mod readahead;
mod recording;
mod revalidate;
mod rights;
mod settling;
mod singleflight;
mod stats;
mod store;
mod sums;
mod table;
#[cfg(test)]
mod testing;
mod trust;
mod upkeep;
mod upstream;
mod verify;
mod walk;
mod watcher;
mod writeback;
mod writes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vfs::{FileSystem, Fsid};

pub use cache::Cache;
pub use callbacks::recall_time;
pub use completer::Completed;
pub use held::Holdings;
pub use inspect::{Completeness, FindError, Info, Keeper, Totals, Validity};
pub use journal::Kept;
pub use limits::Limits;
pub use options::{Consistency, Fill, Fsync, LookupCache, Offline, Options, Timeouts, WriteBehind};
pub use profile::{BroughtListing, Place, Recorded, Recording, UsedPath};
pub use recording::{RANGES_MAX, Use};
pub use stats::{Calls, HitsMisses, Stats};
pub use store::{OpenError, Pinned, is_there};
pub use verify::Verified;
pub use writeback::{DelayedFile, ExportError, Exported};
pub use writes::{Lost, Unsettled};

use crate::core::{Core, Start};
use crate::store::records::fsid_of;
use crate::store::{Directory, Index, Pins, Table};

/// An upper bound of the uses that a killed process counted without writing them to the index. The next
/// process starts its counter beyond them.
const USES_LOST_MAX: u64 = 1 << 24;
/// The largest number of the origin's file systems whose bytes in use are loaded from the index.
const FILE_SYSTEMS_MAX: usize = 4096;

impl Cache {
    /// Opens a cache directory and starts the background work. Makes no call to the origin.
    ///
    /// # Errors
    /// Each is one line. Another process uses the directory, it belongs to another origin, a later version
    /// made it, it holds other files, or it cannot be written. A damaged index is put aside; that is no
    /// error.
    pub async fn open(below: Arc<dyn FileSystem>, options: Options) -> Result<Arc<Cache>, OpenError> {
        let opened = tokio::task::spawn_blocking(move || {
            let directory = Directory::open(&options.directory, &options.origin)?;
            let index = Index::open(&directory.index())?;
            prepare(directory, index, below, options)
        });
        let core = Core::new(opened.await.map_err(|error| failed(&error))??);
        let mut tasks = upkeep::start(&core);
        let weak = Arc::downgrade(&core);
        tasks.push(tokio::spawn(upstream::settle::settler(weak.clone())).abort_handle());
        tasks.push(tokio::spawn(writes::writer(weak.clone())).abort_handle());
        // Recalls of adopted leases stay queued in this stream until the listener starts, after the adoption.
        let callbacks = core.below.callbacks();
        let adopting = core.clone();
        let adopted = tokio::task::spawn_blocking(move || {
            adopting.adopt();
            adopting.restore_writes();
        });
        adopted.await.map_err(|error| OpenError::Index { path: "index".into(), cause: error.to_string() })?;
        if let Some(callbacks) = callbacks {
            tasks.push(tokio::spawn(callbacks::listener(weak, callbacks)).abort_handle());
        }
        if let Some(fill) = core.options.fill {
            tasks.push(tokio::spawn(completer::completer(core.weak(), fill)).abort_handle());
        }
        if core.link.outage().is_possible() {
            tasks.push(tokio::spawn(watcher::watcher(core.weak())).abort_handle());
        }
        Ok(Arc::new(Cache { core, tasks, offline: false }))
    }

    /// Opens the directory of a cache that no process uses, to inspect it or to remove data from it. No
    /// background work runs. Every operation that needs the origin fails with `Delay`.
    ///
    /// # Errors
    /// As [`Cache::open`]. A directory that is not a cache is left unchanged.
    pub async fn open_offline(path: &Path) -> Result<Arc<Cache>, OpenError> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let (directory, origin) = Directory::reopen(&path)?;
            let mut options = Options::new(path, origin);
            options.limits.size_max_bytes = u64::MAX;
            options.limits.min_free_bytes = 0;
            // An inspection must not discard the index when the disk is full.
            let index = Index::open_or_leave(&directory.index())?;
            prepare(directory, index, Arc::new(vfs::NullFileSystem), options)
        });
        let core = Core::new(opened.await.map_err(|error| failed(&error))??);
        Ok(Arc::new(Cache { core, tasks: Vec::new(), offline: true }))
    }

    /// From now on, these limits and thresholds are in force. If less may be cached, the cleaner starts; what
    /// a threshold no longer admits stays until it is evicted.
    pub fn set_limits(&self, limits: Limits) {
        self.core.set_limits(limits);
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.core.counters.snapshot();
        stats.used_bytes = self.core.disk.objects().used_bytes();
        stats.used_max_bytes = self.core.limits().size_max_bytes;
        stats.objects_in_memory = self.core.memory.table().len() as u64;
        stats.objects_at_rest = self.core.memory.table().resting_len() as u64;
        stats.at_rest_bytes = stats.objects_at_rest * table::RECORD_BYTES as u64;
        stats.listings_bytes = self.core.memory.listings().bytes() as u64;
        if let Some(delayed) = &self.core.delayed {
            stats.dirty_bytes = delayed.bytes();
            stats.dirty_files = delayed.files();
            stats.dirty_age = delayed.oldest().map(|since| since.elapsed());
            stats.journal_bytes = delayed.journal.bytes();
        }
        stats.conflicts = journal::kept(&self.core.disk.directory().conflicts());
        stats.cleaning = self.core.gate.is_cleaning();
        stats.paused = self.core.gate.is_paused();
        stats.is_away = self.core.is_away();
        stats.index_broken = self.core.disk.index().is_broken();
        (stats.leases_read, stats.leases_write) = self.core.origin.leases().counts();
        stats
    }

    /// Sends the writes that an earlier process delayed and whose lease is not held any more. Those that
    /// conflict with another client's changes go into the directory `conflicts` of the cache. Before this,
    /// nobody must use the file system.
    ///
    /// # Errors
    /// The journal cannot be read, or such a file cannot be written. Nothing is lost, and nobody may use the
    /// file system.
    pub async fn settle_restored(&self) -> Result<(), Unsettled> {
        self.core.settle_restored().await
    }

    /// Number of files that [`Cache::settle_restored`] has still to settle.
    pub fn unsettled(&self) -> usize {
        self.core.unsettled()
    }

    /// Writes pending knowledge to the index now, without waiting for the flush interval.
    pub async fn flush(&self) {
        self.core.flush().await;
    }

    /// Removes the files that no record refers to, at once and without pauses.
    pub async fn sweep(&self) {
        self.core.sweep(Duration::ZERO, false).await;
    }

    /// Writes the changes made to a cache that was opened with [`Cache::open_offline`].
    pub async fn close_offline(&self) {
        self.core.empty_trash().await;
        self.core.flush().await;
    }

    pub(crate) async fn finish(&self) {
        self.core.finish().await;
    }
}

fn failed(error: &tokio::task::JoinError) -> OpenError {
    OpenError::Index { path: "index".into(), cause: error.to_string() }
}

/// The part of opening that may block.
fn prepare(
    directory: Directory,
    index: Index,
    below: Arc<dyn FileSystem>,
    options: Options,
) -> Result<Start, OpenError> {
    let counter = |key: &[u8]| {
        let value = index.get(Table::Meta, key).and_then(|value| value.try_into().ok());
        value.map_or(0, u64::from_le_bytes)
    };
    let used_bytes = counter(upkeep::USED_BYTES);
    let uses = counter(upkeep::USES).saturating_add(USES_LOST_MAX);
    let indexed = counter(upkeep::INDEXED);
    let shares = shares(&index);
    let refuses = index.get(Table::Meta, link::REFUSES).is_some();
    let pins = Pins::load(directory.path())
        .map_err(|cause| OpenError::Unusable { path: directory.path().join("pins"), cause })?;
    let unusable = |cause: getrandom::Error| OpenError::Unusable {
        path: options.directory.clone(),
        cause: std::io::Error::other(cause.to_string()),
    };
    let nonce = getrandom::u64().map_err(unusable)?;
    Ok(Start { below, options, directory, index, pins, shares, nonce, used_bytes, uses, indexed, refuses })
}

/// Bytes in use by the data of each file system of the origin.
fn shares(index: &Index) -> Vec<(Fsid, u64)> {
    let pairs = index.scan(Table::Meta, upkeep::SHARE_BYTES, &[], FILE_SYSTEMS_MAX);
    let share = |(key, value): (Vec<u8>, Vec<u8>)| {
        let fsid = fsid_of(key.get(upkeep::SHARE_BYTES.len()..)?)?;
        Some((fsid, u64::from_le_bytes(value.try_into().ok()?)))
    };
    pairs.into_iter().filter_map(share).collect()
}
