//! The index: what is known about every file, on this disk. It can be lost at any time and costs only calls.
//!
//! Behind [`MetaStore`] stands fjall, a log-structured store whose commits survive `kill -9` without being waited for.
//! If it refuses to open, it is put aside and an empty one takes its place. If it fails later, the index is *broken*:
//! nothing more is read from it or written to it in this process, since a name that could not be taken out of it would
//! come back.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::directory::OpenError;

/// The tables of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Handle → what is known of the object.
    Objects,
    /// Directory handle and name → what the name leads to.
    Names,
    /// Directory handle and number → part of a listing.
    Listings,
    /// Stamp and handle → nothing: objects in the order of their last use.
    Uses,
    /// Handle → lease: what is known of the object is what the origin has for as long as the lease is held.
    Leases,
    /// Counters of the whole.
    Meta,
}

const TABLES: [(Table, &str); 6] = [
    (Table::Objects, "objects"),
    (Table::Names, "names"),
    (Table::Listings, "listings"),
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

    /// Takes a value away.
    pub fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.0.push((table, key, None));
    }

    /// Nothing to do?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Table, key, and the value if it is set.
impl IntoIterator for Batch {
    type Item = (Table, Vec<u8>, Option<Vec<u8>>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A failure of a store, as it describes itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(String);

impl From<fjall::Error> for StoreError {
    fn from(error: fjall::Error) -> StoreError {
        StoreError(match error {
            fjall::Error::Io(cause) => cause.to_string(),
            other => format!("{other:?}"),
        })
    }
}

/// Some pairs of a table.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An ordered store of tables: the seam where another engine could stand.
pub trait MetaStore: Send + Sync {
    /// A value.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Makes changes; they survive the process once this returns, and the machine some time later.
    fn commit(&self, batch: Batch) -> Result<(), StoreError>;
    /// At most `limit` pairs with keys from `from` on that begin with `prefix`, in order.
    fn scan(&self, table: Table, prefix: &[u8], from: &[u8], limit: usize) -> Result<Pairs, StoreError>;
    /// Makes everything durable.
    fn sync(&self) -> Result<(), StoreError>;
}

/// The index as the rest of the cache sees it: it answers, or it is as good as empty.
pub struct Index {
    store: Box<dyn MetaStore>,
    broken: AtomicBool,
}

impl Index {
    /// Opens the index, or an empty one in its place.
    pub fn open(path: &Path) -> Result<Index, OpenError> {
        let store = match guarded(|| Fjall::open(path)) {
            Ok(store) => store,
            Err(error) => {
                let aside = put_aside(path)?;
                tracing::warn!(
                    "cache index {} does not open ({error}); it was put aside as {} and the cache starts empty",
                    path.display(),
                    aside.display()
                );
                let unusable = |error: StoreError| OpenError::Index { path: path.into(), cause: error.0 };
                guarded(|| Fjall::open(path)).map_err(unusable)?
            }
        };
        Ok(Index::over(Box::new(store)))
    }

    /// An index over any store.
    pub fn over(store: Box<dyn MetaStore>) -> Index {
        Index { store, broken: AtomicBool::new(false) }
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

    /// Has it failed?
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    fn working<T>(&self, work: impl FnOnce(&dyn MetaStore) -> Result<T, StoreError>) -> Option<T> {
        if self.broken.load(Ordering::Acquire) {
            return None;
        }
        match guarded(|| work(&*self.store)) {
            Ok(value) => Some(value),
            Err(error) => {
                if !self.broken.swap(true, Ordering::AcqRel) {
                    tracing::warn!(
                        "cache index failed ({error}); names and attributes are kept in memory alone until a restart"
                    );
                }
                None
            }
        }
    }
}

/// A store that panics over damaged bytes has failed, no more.
fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(StoreError("it is damaged".into())))
}

/// Renames what does not open, so that nothing is lost that somebody may want to look at.
fn put_aside(path: &Path) -> Result<PathBuf, OpenError> {
    let aside = (1..10_000)
        .map(|number| path.with_file_name(format!("index.corrupt-{number}")))
        .find(|aside| !aside.exists())
        .unwrap_or_else(|| path.with_file_name("index.corrupt"));
    std::fs::rename(path, &aside)
        .map_err(|cause| OpenError::Index { path: path.into(), cause: cause.to_string() })?;
    Ok(aside)
}

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

    fn table(&self, table: Table) -> Result<&Keyspace, StoreError> {
        let found = self.tables.iter().find(|(there, _)| *there == table);
        found.map(|(_, keyspace)| keyspace).ok_or_else(|| StoreError("no such table".into()))
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

    /// A store that fails after a while.
    struct Failing;

    impl MetaStore for Failing {
        fn get(&self, _: Table, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(Some(b"old".to_vec()))
        }
        fn commit(&self, _: Batch) -> Result<(), StoreError> {
            Err(StoreError("no space".into()))
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
