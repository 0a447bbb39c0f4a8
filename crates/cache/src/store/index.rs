//! The index: everything known of each file, on the local disk. It can be lost at any time, and that costs
//! only calls.
//!
//! Behind [`MetaStore`] stands fjall, a log-structured store. Its commits survive `kill -9` without a wait
//! for the disk. If the store cannot be opened, it is put aside, and an empty one takes its place.
//!
//! If the store fails later, the index is *broken*. Nothing more is read from it or written to it, by this
//! process or a later one. Otherwise a name that could not be removed from it would come back. The store is
//! renamed at once. [`Index::renew`] makes an empty one in its place, and everything in memory is written to
//! that. A full disk is a failure like any other, except that the old store is deleted and not put aside.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::directory::OpenError;

/// The tables of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Handle → record of the object.
    Objects,
    /// Directory handle and name → target of the name.
    Names,
    /// Directory handle and number → part of a listing.
    Listings,
    /// Directory handle → the files in it that were opened together.
    Companions,
    /// Number of the last use, and handle → use note: the objects in the order of their last use.
    Uses,
    /// Handle → lease id. While this lease is held, the record of the object is the origin's state.
    Leases,
    /// Counters of the cache, and the origin's root.
    Meta,
}

const TABLES: [(Table, &str); 7] = [
    (Table::Objects, "objects"),
    (Table::Names, "names"),
    (Table::Listings, "listings"),
    (Table::Companions, "companions"),
    (Table::Uses, "uses"),
    (Table::Leases, "leases"),
    (Table::Meta, "meta"),
];

/// Changes that are made together or not at all.
#[derive(Debug, Default)]
pub struct Batch(Vec<(Table, Vec<u8>, Option<Vec<u8>>)>);

impl Batch {
    /// Sets a value.
    pub fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((table, key, Some(value)));
    }

    /// Removes a value.
    pub fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.0.push((table, key, None));
    }

    /// Is there nothing to change?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Yields table, key, and the value if it is set.
impl IntoIterator for Batch {
    type Item = (Table, Vec<u8>, Option<Vec<u8>>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A failure of a store, with its own description.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct StoreError {
    cause: String,
    /// The disk has no space.
    full: bool,
}

impl StoreError {
    /// A failure that has nothing to do with space.
    pub fn other(cause: impl Into<String>) -> StoreError {
        StoreError { cause: cause.into(), full: false }
    }
}

impl From<fjall::Error> for StoreError {
    fn from(error: fjall::Error) -> StoreError {
        let mut causes =
            std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let io = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
        let full = io.is_some_and(|io| is_full_error(io.kind()));
        let cause = io.map_or_else(|| format!("{error:?}"), io::Error::to_string);
        StoreError { cause, full }
    }
}

/// Does the error mean that there is no space?
pub fn is_full_error(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A disk with less free space than this, in bytes, counts as full.
pub const FULL_BYTES: u64 = 4 << 20;

/// Is there so little space at a path that a failure of unknown cause counts as lack of space?
fn is_full_disk(path: &Path) -> bool {
    let disk = rustix::fs::statvfs(path.parent().unwrap_or(path));
    disk.is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < FULL_BYTES)
}

/// Some pairs of a table.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An ordered store of tables. Another engine could take its place behind this trait.
pub trait MetaStore: Send + Sync {
    /// The value of a key.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Makes changes. They survive the process once this returns, and the machine some time later.
    fn commit(&self, batch: Batch) -> Result<(), StoreError>;
    /// At most `limit` pairs, in the order of their keys. The keys are at or after `from` and begin with
    /// `prefix`.
    fn scan(&self, table: Table, prefix: &[u8], from: &[u8], limit: usize) -> Result<Pairs, StoreError>;
    /// Makes everything durable.
    fn sync(&self) -> Result<(), StoreError>;
}

/// The state of a broken index.
#[derive(Debug, Default)]
struct Broken {
    /// The old store is being closed.
    closing: Option<JoinHandle<()>>,
    /// The old store could not be removed: a later process may read it.
    in_place: bool,
    /// The disk had no space.
    full: bool,
}

/// The index as the rest of the cache sees it: it works, or it behaves as if it were empty.
pub struct Index {
    /// The path of the index, if it can be made anew.
    path: Option<PathBuf>,
    store: RwLock<Option<Arc<dyn MetaStore>>>,
    broken: AtomicBool,
    state: Mutex<Broken>,
}

impl Index {
    /// Opens the index, or an empty one in its place. On a full disk it is broken from the start, and the old
    /// one is deleted.
    pub fn open(path: &Path) -> Result<Index, OpenError> {
        match Index::open_or_leave(path) {
            Err(OpenError::Full(_)) => {
                let index = Index::of(Some(path.to_owned()), None);
                index.fail(&StoreError { cause: "no space".into(), full: true });
                Ok(index)
            }
            opened => opened,
        }
    }

    /// The same, but on a full disk it fails and leaves the old index where it is.
    pub fn open_or_leave(path: &Path) -> Result<Index, OpenError> {
        let _ = std::fs::remove_dir_all(dropped(path));
        let is_full = |error: &StoreError| error.full || is_full_disk(path);
        let full = || OpenError::Full(path.parent().unwrap_or(path).to_owned());
        let store = match guarded(|| Fjall::open(path)) {
            Ok(store) => store,
            Err(error) if is_full(&error) => return Err(full()),
            Err(error) => {
                let aside = put_aside(path)?;
                tracing::warn!(
                    "cache index {} does not open ({error}); it was put aside as {} and the cache starts empty",
                    path.display(),
                    aside.display()
                );
                guarded(|| Fjall::open(path)).map_err(|error| match error {
                    error if is_full(&error) => full(),
                    StoreError { cause, .. } => OpenError::Index { path: path.into(), cause },
                })?
            }
        };
        Ok(Index::of(Some(path.to_owned()), Some(Arc::new(store))))
    }

    /// An index over any store. If it fails, it is not made anew.
    #[cfg(test)]
    pub fn over(store: Box<dyn MetaStore>) -> Index {
        Index::of(None, Some(store.into()))
    }

    fn of(path: Option<PathBuf>, store: Option<Arc<dyn MetaStore>>) -> Index {
        Index { path, store: RwLock::new(store), broken: AtomicBool::new(false), state: Mutex::default() }
    }

    /// A value, if there is one and the index works.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.working(|store| store.get(table, key)).flatten()
    }

    /// Makes changes, if the index works.
    pub fn commit(&self, batch: Batch) {
        if !batch.is_empty() {
            self.working(|store| store.commit(batch));
        }
    }

    /// Pairs of a table, if the index works.
    pub fn scan(&self, table: Table, prefix: &[u8], from: &[u8], limit: usize) -> Pairs {
        self.working(|store| store.scan(table, prefix, from, limit)).unwrap_or_default()
    }

    /// Makes everything durable, if the index works.
    pub fn sync(&self) {
        self.working(|store| store.sync());
    }

    /// Has the index failed?
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Has the index failed in a way that lets a later process read it?
    pub fn is_untrue(&self) -> bool {
        self.is_broken() && (self.path.is_none() || self.state.lock().in_place)
    }

    /// Has the index failed for lack of space?
    pub fn is_full(&self) -> bool {
        self.is_broken() && self.state.lock().full
    }

    fn working<T>(&self, work: impl FnOnce(&dyn MetaStore) -> Result<T, StoreError>) -> Option<T> {
        if self.is_broken() {
            return None;
        }
        let store = self.store.read().clone()?;
        match guarded(|| work(&*store)) {
            Ok(value) => Some(value),
            Err(error) => {
                drop(store);
                self.fail(&error);
                None
            }
        }
    }

    /// Marks the index as broken: from now on nothing in it is believed.
    fn fail(&self, error: &StoreError) {
        let mut state = self.state.lock();
        if self.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(path) = &self.path else {
            tracing::warn!("cache index failed ({error}); names and attributes are kept in memory alone");
            return;
        };
        state.full = error.full || is_full_disk(path);
        let (at, hint) = (path.display(), if state.full { "its disk is full" } else { "it is made anew" });
        tracing::warn!(
            "cache index {at} failed ({error}); {hint}; nothing is cached on disk until it works again"
        );
        let taken =
            if state.full { std::fs::rename(path, dropped(path)).is_ok() } else { put_aside(path).is_ok() };
        state.in_place = !taken && path.exists();
        if let Some(store) = self.store.write().take() {
            let close = move || {
                // An operation in progress may still hold the store.
                while Arc::strong_count(&store) > 1 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(store);
            };
            state.closing = std::thread::Builder::new().name("index-close".to_owned()).spawn(close).ok();
        }
    }

    /// Makes an empty index in the place of a broken one, if there is space by now. The index works when this
    /// returns true. Blocks.
    pub fn renew(&self) -> bool {
        let mut state = self.state.lock();
        let Some(path) = self.path.as_ref().filter(|_| self.is_broken()) else { return false };
        if state.closing.as_ref().is_some_and(|closing| !closing.is_finished()) {
            return false;
        }
        state.closing = None;
        for old in [dropped(path), path.clone()] {
            let _ = std::fs::remove_dir_all(old);
        }
        state.in_place = path.exists();
        if state.in_place {
            return false;
        }
        match guarded(|| Fjall::try_out(path)) {
            Ok(store) => {
                *self.store.write() = Some(Arc::new(store));
                self.broken.store(false, Ordering::Release);
                true
            }
            Err(error) => {
                state.full = error.full || is_full_disk(path);
                tracing::debug!("cache index {} cannot be made: {error}", path.display());
                let _ = std::fs::remove_dir_all(path);
                false
            }
        }
    }
}

/// The path of an index that is to be deleted.
fn dropped(path: &Path) -> PathBuf {
    path.with_file_name("index.dropped")
}

/// Turns a panic of the store over damaged bytes into a failure.
fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(StoreError::other("it is damaged")))
}

/// Renames an index that has failed, so that nothing is lost that might be examined.
fn put_aside(path: &Path) -> Result<PathBuf, OpenError> {
    let aside = (1..10_000)
        .map(|number| path.with_file_name(format!("index.corrupt-{number}")))
        .find(|aside| !aside.exists())
        .unwrap_or_else(|| path.with_file_name("index.corrupt"));
    std::fs::rename(path, &aside)
        .map_err(|cause| OpenError::Index { path: path.into(), cause: cause.to_string() })?;
    Ok(aside)
}

/// A new index must take this many bytes before it is used.
const TRIAL_BYTES: usize = 1 << 20;

/// The index in fjall.
struct Fjall {
    database: Database,
    tables: Vec<(Table, Keyspace)>,
}

impl Fjall {
    fn open(path: &Path) -> Result<Fjall, StoreError> {
        let database = Database::builder(path)
            .cache_size(32 << 20)
            .max_journaling_size(64 << 20)
            .worker_threads(1)
            .max_cached_files(Some(64))
            .open()?;
        let mut tables = Vec::new();
        for (table, name) in TABLES {
            let options = || KeyspaceCreateOptions::default().max_memtable_size(8 << 20);
            tables.push((table, database.keyspace(name, options)?));
        }
        Ok(Fjall { database, tables })
    }

    /// A store that has shown that it can be written.
    fn try_out(path: &Path) -> Result<Fjall, StoreError> {
        let store = Fjall::open(path)?;
        for value in [Some(vec![0x5a; TRIAL_BYTES]), None] {
            store.commit(Batch(vec![(Table::Meta, b"trial".to_vec(), value)]))?;
            store.sync()?;
        }
        Ok(store)
    }

    fn table(&self, table: Table) -> Result<&Keyspace, StoreError> {
        let found = self.tables.iter().find(|(there, _)| *there == table);
        found.map(|(_, keyspace)| keyspace).ok_or_else(|| StoreError::other("no such table"))
    }
}

impl MetaStore for Fjall {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.table(table)?.get(key)?.map(|value| value.to_vec()))
    }

    fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let mut changes = self.database.batch();
        for (table, key, value) in batch {
            let keyspace = self.table(table)?;
            match value {
                Some(value) => changes.insert(keyspace, key, value),
                None => changes.remove(keyspace, key),
            }
        }
        Ok(changes.commit()?)
    }

    fn scan(&self, table: Table, prefix: &[u8], from: &[u8], limit: usize) -> Result<Pairs, StoreError> {
        let mut pairs = Vec::new();
        for guard in self.table(table)?.range(from.max(prefix).to_vec()..).take(limit) {
            let (key, value) = guard.into_inner()?;
            if !key.starts_with(prefix) {
                break;
            }
            pairs.push((key.to_vec(), value.to_vec()));
        }
        Ok(pairs)
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_and_scans_stay_within_their_prefix() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index");
        let index = Index::open(&path).unwrap();
        let mut batch = Batch::default();
        for key in ["a1", "a2", "b1"] {
            batch.put(Table::Names, key.into(), key.to_uppercase().into());
        }
        batch.put(Table::Meta, b"gone".to_vec(), vec![]);
        index.commit(batch);
        let mut batch = Batch::default();
        batch.remove(Table::Meta, b"gone".to_vec());
        index.commit(batch);
        drop(index);
        let index = Index::open(&path).unwrap();
        assert_eq!(index.get(Table::Names, b"a1"), Some(b"A1".to_vec()));
        assert_eq!(index.get(Table::Meta, b"gone"), None);
        let keys = |from: &str, limit| -> Vec<_> {
            index.scan(Table::Names, b"a", from.as_bytes(), limit).into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(keys("", 10), [b"a1", b"a2"]);
        assert_eq!(keys("a2", 10), [b"a2"]);
        assert_eq!(keys("", 1), [b"a1"]);
    }

    #[test]
    fn a_damaged_index_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index");
        for round in 1..3 {
            let index = Index::open(&path).unwrap();
            let mut batch = Batch::default();
            batch.put(Table::Meta, b"k".to_vec(), vec![7; 1000]);
            index.commit(batch);
            drop(index);
            damage(&path);
            let index = Index::open(&path).unwrap();
            assert_eq!(index.get(Table::Meta, b"k"), None);
            assert!(directory.path().join(format!("index.corrupt-{round}")).exists());
        }
    }

    /// Flips bits in every file of a directory tree.
    fn damage(path: &Path) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                damage(&path);
            } else {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes.iter_mut().step_by(64).for_each(|byte| *byte ^= 0xff);
                std::fs::write(&path, bytes).unwrap();
            }
        }
    }

    /// A store whose changes fail.
    struct Failing;

    impl MetaStore for Failing {
        fn get(&self, _: Table, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(Some(b"old".to_vec()))
        }
        fn commit(&self, _: Batch) -> Result<(), StoreError> {
            Err(StoreError::other("no reason"))
        }
        fn scan(&self, _: Table, _: &[u8], _: &[u8], _: usize) -> Result<Pairs, StoreError> {
            Ok(vec![])
        }
        fn sync(&self) -> Result<(), StoreError> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_changed_is_not_read_again() {
        let index = Index::over(Box::new(Failing));
        assert!(index.get(Table::Names, b"n").is_some());
        let mut batch = Batch::default();
        batch.remove(Table::Names, b"n".to_vec());
        index.commit(batch);
        assert_eq!(index.get(Table::Names, b"n"), None);
    }
}
