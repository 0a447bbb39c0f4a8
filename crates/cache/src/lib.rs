//! The cache: a [`FileSystem`] over another one, with a persistent cache on this disk.
//!
//! After Badros' caching client (1999), with Lever's close-to-open (2001). What is on the disk outlives the process;
//! what is answered never lies: see [`Consistency`] for the promise, and these modules for how it is kept.
//!
//! | module | what it decides |
//! |---|---|
//! | `object` | what is known of a remote object, and what new attributes do to it |
//! | `history` | which changes our own operations explain |
//! | `trust` | when unchanged attributes prove unchanged data (the granule rule) |
//! | `news` | when a negative entry is asked again |
//! | `rights` | who may have a hit |
//! | `lease` | what the origin has promised to announce |
//! | `opens`, `locks` | what is open and locked, here and at the origin |
//! | `upstream`, `callbacks` | opens at the origin, and what it says unasked |
//! | `adopt` | what of it is from before this process |
//! | `data`, `ranges` | which bytes are here, on their way, or being written |
//! | `revalidate` | who shares a GETATTR |
//! | `names`, `listing` | what names lead to |
//! | `filler`, `fetch`, `readahead` | bringing bytes from the origin |
//! | `holes` | bytes that need not be fetched to be known |
//! | `completer` | bringing what is missing of a file |
//! | `store`, `sums` | index and files on this disk |
//! | `writes` | writes that are delayed, and how they reach the origin |
//! | `limits` | how much is kept, and what of it |
//! | `upkeep`, `cleaner` | what happens in the background |
//! | `outage` | an origin that does not answer |
//! | `inspect`, `verify` | what is cached, for people and tools |
//! | `filesystem` | the operations |
//!
//! Calls to the origin, per operation of a client that asks with [`Freshness::Open`](vfs::Freshness::Open), are those
//! of docs/reference/costs.md: a GETATTR, LOOKUP or ACCESS that is cached costs one GETATTR, a READ that is cached and valid
//! costs nothing, the first use by a credential costs one ACCESS. Over an origin with state, opens share one OPEN per
//! file, and under a lease from the origin none of this but the ACCESS costs anything. Under one on a directory its names
//! cost nothing, there or not.

mod adopt;
mod callbacks;
mod cleaner;
mod completer;
mod core;
mod data;
mod fetch;
mod filesystem;
mod filler;
mod history;
mod holes;
mod inspect;
mod lease;
mod limits;
mod listing;
mod locks;
mod names;
mod news;
mod null;
mod object;
mod opens;
mod options;
mod outage;
mod policy;
mod ranges;
mod readahead;
mod revalidate;
mod rights;
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
mod writes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::AbortHandle;
use vfs::{FileSystem, Fsid};

pub use completer::Completed;
pub use inspect::{Completeness, FindError, Info, Keeper, Totals, Validity};
pub use options::{Consistency, Fill, LookupCache, Offline, Options, Timeouts, WriteBehind};
pub use stats::{Calls, HitsMisses, Stats};
pub use store::{OpenError, Pinned};
pub use verify::Verified;
pub use writes::Lost;

use crate::core::{Core, Start};
use crate::store::records::fsid_of;
use crate::store::{Directory, Index, Pins, Table};

/// Uses that may have been lost when the process was killed: the count goes on beyond them.
const USES_LOST_MAX: u64 = 1 << 24;
/// File systems of the origin of which the bytes in use are remembered.
const FILE_SYSTEMS_MAX: usize = 4096;

/// A cache over another file system.
pub struct Cache {
    core: Arc<Core>,
    tasks: Vec<AbortHandle>,
    /// There is nobody below.
    offline: bool,
}

impl Cache {
    /// Opens a cache directory and starts the background work. Asks the origin nothing.
    ///
    /// # Errors
    /// One line each: the directory is used by another process, belongs to another origin, was made by a later
    /// version, holds something else, or cannot be written. An index that is damaged is put aside, not an error.
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
        // A recall of what is adopted waits for its turn behind that.
        let callbacks = core.below.callbacks();
        let adopting = core.clone();
        let adopted = tokio::task::spawn_blocking(move || adopting.adopt());
        adopted.await.map_err(|error| OpenError::Index { path: "index".into(), cause: error.to_string() })?;
        if let Some(callbacks) = callbacks {
            tasks.push(tokio::spawn(callbacks::listener(weak, callbacks)).abort_handle());
        }
        if let Some(fill) = core.options.fill {
            tasks.push(tokio::spawn(completer::completer(core.weak(), fill)).abort_handle());
        }
        if core.outage.is_possible() {
            tasks.push(tokio::spawn(outage::watcher(core.weak())).abort_handle());
        }
        Ok(Arc::new(Cache { core, tasks, offline: false }))
    }

    /// Opens the directory of a cache that no process uses, to look at what is there and to take things away. Nothing
    /// happens in the background, and whatever would have to ask the origin fails with `Delay`.
    ///
    /// # Errors
    /// As [`Cache::open`]; a directory that is no cache is left alone.
    pub async fn open_offline(path: &Path) -> Result<Arc<Cache>, OpenError> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let (directory, origin) = Directory::reopen(&path)?;
            let mut options = Options::new(path, origin);
            options.size_max_bytes = u64::MAX;
            options.min_free_bytes = 0;
            // To look at it is no reason to throw it away.
            let index = Index::open_or_leave(&directory.index())?;
            prepare(directory, index, Arc::new(null::NullFileSystem), options)
        });
        let core = Core::new(opened.await.map_err(|error| failed(&error))??);
        Ok(Arc::new(Cache { core, tasks: Vec::new(), offline: true }))
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.core.counters.snapshot();
        stats.used_bytes = self.core.objects.used_bytes();
        stats.objects_in_memory = self.core.table.len() as u64;
        if let Some(delayed) = &self.core.delayed {
            stats.dirty_bytes = delayed.bytes();
            stats.dirty_files = delayed.files();
            stats.dirty_age = delayed.oldest().map(|since| since.elapsed());
        }
        stats.cleaning = self.core.cleaning.load(Ordering::Relaxed);
        stats.paused = self.core.paused.load(Ordering::Relaxed);
        stats.is_away = self.core.is_away();
        stats.index_broken = self.core.index.is_broken();
        (stats.leases_read, stats.leases_write) = self.core.leases.counts();
        stats
    }

    /// Writes to the index what is known by now, without waiting for the interval.
    pub async fn flush(&self) {
        self.core.flush().await;
    }

    /// Takes off the disk what no record speaks of, at once and without breath.
    pub async fn sweep(&self) {
        self.core.sweep(Duration::ZERO, false).await;
    }

    /// Writes down what was changed of a cache that was opened to be looked at.
    pub async fn close_offline(&self) {
        self.core.empty_trash().await;
        self.core.flush().await;
    }

    pub(crate) async fn finish(&self) {
        self.core.finish().await;
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
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
    let pins = Pins::load(directory.path())
        .map_err(|cause| OpenError::Unusable { path: directory.path().join("pins"), cause })?;
    let unusable = |cause: getrandom::Error| OpenError::Unusable {
        path: options.directory.clone(),
        cause: std::io::Error::other(cause.to_string()),
    };
    let nonce = getrandom::u64().map_err(unusable)?;
    Ok(Start { below, options, directory, index, pins, shares, nonce, used_bytes, uses, indexed })
}

/// What the data of each file system of the origin uses.
fn shares(index: &Index) -> Vec<(Fsid, u64)> {
    let pairs = index.scan(Table::Meta, upkeep::SHARE_BYTES, &[], FILE_SYSTEMS_MAX);
    let share = |(key, value): (Vec<u8>, Vec<u8>)| {
        let fsid = fsid_of(key.get(upkeep::SHARE_BYTES.len()..)?)?;
        Some((fsid, u64::from_le_bytes(value.try_into().ok()?)))
    };
    pairs.into_iter().filter_map(share).collect()
}
