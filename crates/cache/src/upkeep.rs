//! Background work: writes new knowledge to the index, makes data durable, and runs the cleaner on demand.
//!
//! The order of the writes keeps each record true whenever the process is killed. Bytes are written to their
//! data file before they count as valid in memory. Valid ranges go to the index some time later. A record may
//! be out of date: its state is then not the origin's, and the first revalidation drops it.
//!
//! If a lease outlives the process, there may be no first revalidation. For this case the index records which
//! entries are up to date (`crate::adopt`). Only one flush runs at a time, because an older record must not
//! replace a newer one.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cleaner::Cleaned;
use crate::core::Core;
use crate::flushing::FlushQueue;
use crate::store::records::fsid_key;
use crate::store::{Batch, Table};
use crate::table::Object;

/// The number of changes in one batch of the index, approximately.
const BATCH_MAX: usize = 1000;
/// Data that has not changed for this long is made durable.
const SYNC_AFTER: Duration = Duration::from_secs(5);
/// When the first sweep starts, how often it is repeated, and how long it pauses after each page.
const SWEEP_AFTER: Duration = Duration::from_secs(60);
const SWEEP_EVERY: Duration = Duration::from_secs(6 * 3600);
const SWEEP_BREATH: Duration = Duration::from_millis(20);
/// The pause after a cleaning that has not freed enough. It doubles each time that nothing at all could be
/// evicted.
const CLEANER_PAUSE: Duration = Duration::from_secs(1);
const CLEANER_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The pause before another try to replace an index that failed. It doubles each time.
const RENEW_PAUSE: Duration = Duration::from_millis(250);
const RENEW_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Keys of the counters in the index.
pub const USED_BYTES: &[u8] = b"used-bytes";
/// See [`USED_BYTES`].
pub const USES: &[u8] = b"uses";
/// See [`USED_BYTES`].
pub const INDEXED: &[u8] = b"indexed";
/// The prefix of the keys for the bytes in use by data of one file system of the origin; the id follows.
pub const SHARE_BYTES: &[u8] = b"share-bytes/";
/// The handle of the origin's root.
pub const ROOT: &[u8] = b"root";

/// Starts the background work of a cache. The tasks end with the cache.
pub fn start(core: &Arc<Core>) -> Vec<AbortHandle> {
    let weak = Arc::downgrade(core);
    vec![
        tokio::spawn(flusher(weak.clone(), core.options.flush_interval)).abort_handle(),
        tokio::spawn(cleaner(weak.clone(), core.gate.woken(), core.gate.eased())).abort_handle(),
        tokio::spawn(syncer(weak.clone())).abort_handle(),
        tokio::spawn(sweeper(weak)).abort_handle(),
    ]
}

async fn flusher(core: Weak<Core>, interval: Duration) {
    let (mut pause, mut renewed) = (RENEW_PAUSE, None::<Instant>);
    loop {
        tokio::time::sleep(interval).await;
        let Some(core) = core.upgrade() else { return };
        core.flush().await;
        if !core.disk.index().is_broken() {
            if renewed.is_some_and(|at| at.elapsed() > RENEW_PAUSE_MAX) {
                (pause, renewed) = (RENEW_PAUSE, None);
            }
            continue;
        }
        if core.renew_index().await {
            renewed = Some(Instant::now());
            continue;
        }
        drop(core);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RENEW_PAUSE_MAX);
    }
}

async fn cleaner(weak: Weak<Core>, wake: Arc<Notify>, eased: Arc<Notify>) {
    let mut pause = CLEANER_PAUSE;
    loop {
        wake.notified().await;
        let Some(core) = weak.upgrade() else { return };
        core.gate.set_cleaning(true);
        let cleaned = core.clean().await;
        core.gate.set_cleaning(false);
        drop(core);
        if cleaned != Cleaned::Nothing {
            pause = CLEANER_PAUSE;
        }
        if cleaned == Cleaned::Enough {
            continue;
        }
        // Everything is in use or pinned, or others fill the disk: an immediate retry is useless.
        if tokio::time::timeout(pause, eased.notified()).await.is_err() {
            pause = (pause * 2).min(CLEANER_PAUSE_MAX);
        }
        // Data may be out of use by now, and nothing reports that. The retry does not wait for the next
        // store.
        if weak.upgrade().is_some_and(|core| core.needs_cleaning()) {
            wake.notify_one();
        }
    }
}

async fn syncer(core: Weak<Core>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Some(core) = core.upgrade() else { return };
        core.sync_idle().await;
    }
}

async fn sweeper(core: Weak<Core>) {
    let mut pause = SWEEP_AFTER;
    loop {
        tokio::time::sleep(pause).await;
        let Some(core) = core.upgrade() else { return };
        core.sweep(SWEEP_BREATH, false).await;
        pause = SWEEP_EVERY;
    }
}

impl Core {
    /// Writes the latest state of all changed objects to the index.
    pub async fn flush(self: &Arc<Core>) {
        let turn = self.flushing.turn().await;
        self.flush_companions(false);
        let objects = self.flushing.take();
        if objects.is_empty() {
            return self.memory.table().shrink();
        }
        let core = self.clone();
        // Runs to completion even if the caller gives up.
        let flush = move || {
            core.flush_now(&objects);
            drop(objects);
            core.memory.table().shrink();
            drop(turn);
        };
        let _ = tokio::task::spawn_blocking(flush).await;
    }

    fn flush_now(&self, objects: &[Arc<Object>]) {
        let mut again = Vec::new();
        for some in objects.chunks(BATCH_MAX / 4) {
            let mut batch = Batch::default();
            for object in some {
                if self.record(object, &mut batch) && FlushQueue::claim(object) {
                    again.push(object.clone());
                }
            }
            self.put_counters(&mut batch);
            self.disk.index().commit(batch);
            some.iter().for_each(|object| self.vouch(object));
        }
        self.flushing.put_back(again);
    }

    /// Replaces an index that has failed with a new one, and writes everything in memory to it. The cache
    /// forgets everything that only the old index knew, and removes its data. False if that does not work
    /// yet.
    async fn renew_index(self: &Arc<Core>) -> bool {
        // No record can lead to that data any more, and a full disk may need the space.
        self.sweep(Duration::ZERO, true).await;
        let turn = self.flushing.turn().await;
        let core = self.clone();
        let renew = move || {
            let renewed = core.disk.index().renew();
            if renewed {
                core.disk.directory().mark(&core.options.origin);
                core.tell_anew();
            }
            drop(turn);
            renewed
        };
        if !tokio::task::spawn_blocking(renew).await.unwrap_or(false) {
            if self.disk.index().is_full() {
                self.clean_without_index().await;
            }
            return false;
        }
        self.flush().await;
        if self.disk.index().is_broken() {
            return false;
        }
        tracing::warn!("cache index of {} works again", self.options.directory.display());
        true
    }

    /// The index is empty: everything in memory must be written again.
    fn tell_anew(&self) {
        self.flushing.reset_indexed();
        for object in self.memory.table().all() {
            self.with(&object, |state| {
                object.used_in_index.store(0, Ordering::Relaxed);
                state.lose_index();
            });
        }
        if let Some(root) = self.link.set_root(None) {
            self.learn_root(root);
        }
    }

    fn put_counters(&self, batch: &mut Batch) {
        let counters = [
            (USED_BYTES, self.disk.objects().used_bytes()),
            (USES, self.flushing.uses()),
            (INDEXED, self.flushing.indexed()),
        ];
        for (key, value) in counters {
            batch.put(Table::Meta, key.to_vec(), value.to_le_bytes().to_vec());
        }
        for (fsid, used) in self.disk.objects().shares() {
            let key = [SHARE_BYTES, &fsid_key(fsid)].concat();
            batch.put(Table::Meta, key, used.to_le_bytes().to_vec());
        }
    }

    /// Writes all uses since the last flush to the index.
    pub async fn tell_uses(self: &Arc<Core>) {
        for object in self.memory.table().all() {
            let told = object.used_in_index.load(Ordering::Relaxed);
            if told != 0 && object.used.load(Ordering::Relaxed) > told {
                self.with(&object, |state| state.index.changed = true);
            }
        }
        self.flush().await;
    }

    /// Makes data durable that has not changed lately, so that it survives a crash of the machine.
    pub async fn sync_idle(self: &Arc<Core>) {
        let mut told = false;
        loop {
            let Some(object) = self.disk.next_unsynced(SYNC_AFTER) else { return };
            let Some(object) = object.upgrade() else { continue };
            if !std::mem::replace(&mut told, true) {
                // Before new bytes are durable, the index must durably have dropped the bytes that they
                // replaced.
                let core = self.clone();
                let _ = tokio::task::spawn_blocking(move || core.disk.index().sync()).await;
            }
            self.sync(&object).await;
        }
    }

    async fn sync(self: &Arc<Core>, object: &Arc<Object>) {
        let (file, stores) = self.with(object, |state| {
            let file = state.data.file().filter(|_| !state.data.synced).cloned();
            (file, (state.data.generation(), state.data.stores))
        });
        let Some(file) = file else { return };
        let synced = crate::store::objects::blocking(move || file.sync()).await.is_ok();
        self.with(object, |state| {
            // Data stored meanwhile is not synced. It is queued again when its record is written.
            if synced && (state.data.generation(), state.data.stores) == stores {
                state.data.synced = true;
                state.index.changed = true;
            }
        });
    }

    /// Leaves everything in order at the end: the index is up to date, and all of it is durable.
    pub async fn finish(self: &Arc<Core>) {
        self.empty_trash().await;
        self.tell_uses().await;
        while let Some(object) = self.disk.next_unsynced(Duration::ZERO) {
            if let Some(object) = object.upgrade() {
                self.sync(&object).await;
            }
        }
        self.flush().await;
        let core = self.clone();
        let _ = tokio::task::spawn_blocking(move || core.disk.index().sync()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use parking_lot::Mutex;
    use vfs::{Attributes, Handle, LeaseId, LeaseKind, Wcc};

    use super::*;
    use crate::changes::Change;
    use crate::core::Start;
    use crate::object::{Opening, RestingLease};
    use crate::options::Options;
    use crate::store::index::{MetaStore, Pairs, StoreError};
    use crate::store::{Directory, Index, Pins, Record};
    use crate::testing::attributes;

    /// A table and a key in it.
    type Key = (u8, Vec<u8>);

    /// A store in memory whose first change of objects blocks until it is released.
    struct Slow {
        values: Mutex<BTreeMap<Key, Vec<u8>>>,
        begun: mpsc::SyncSender<()>,
        goes_on: Mutex<Option<mpsc::Receiver<()>>>,
    }

    impl MetaStore for Slow {
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(self.values.lock().get(&(table as u8, key.to_vec())).cloned())
        }

        fn commit(&self, batch: Batch) -> Result<(), StoreError> {
            let changes: Vec<_> = batch.into_iter().collect();
            let of_objects = changes.iter().any(|(table, ..)| *table == Table::Objects);
            let waits = if of_objects { self.goes_on.lock().take() } else { None };
            if let Some(goes_on) = waits {
                self.begun.send(()).unwrap();
                goes_on.recv().unwrap();
            }
            let mut values = self.values.lock();
            for (table, key, value) in changes {
                match value {
                    Some(value) => values.insert((table as u8, key), value),
                    None => values.remove(&(table as u8, key)),
                };
            }
            Ok(())
        }

        fn scan(&self, _: Table, _: &[u8], _: &[u8], _: usize) -> Result<Pairs, StoreError> {
            Ok(vec![])
        }

        fn sync(&self) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn core(directory: &std::path::Path, store: Slow) -> Arc<Core> {
        let mut options = Options::new(directory.join("cache"), "nfs://origin/export");
        options.granularity_min = Duration::from_nanos(1);
        Core::new(Start {
            below: Arc::new(vfs::NullFileSystem),
            directory: Directory::open(&options.directory, &options.origin).unwrap(),
            options,
            index: Index::over(Box::new(store)),
            pins: Pins::load(directory).unwrap(),
            shares: vec![],
            nonce: 1,
            used_bytes: 0,
            uses: 1,
            indexed: 0,
            refuses: false,
        })
    }

    /// A file under a write lease, with these known attributes.
    fn leased(core: &Arc<Core>, known: &Attributes) -> Arc<Object> {
        let object = core.object(&Handle::new(b"file").unwrap());
        let since = core.policy.event();
        let lease = RestingLease::adopted((LeaseId(7), LeaseKind::Write), LeaseId(8), since, false, None);
        core.with(&object, |state| state.wake_lease(&core.policy, &lease, false));
        core.observe(&object, Some(known), &core.policy.sending(), Opening::No);
        object
    }

    // Promise: held-state
    #[tokio::test]
    async fn what_the_index_vouches_for_is_not_overtaken_by_what_was_known_before() {
        let directory = tempfile::tempdir().unwrap();
        let (begun, began) = mpsc::sync_channel(1);
        let (go_on, goes_on) = mpsc::channel();
        let store = Slow { values: Mutex::default(), begun, goes_on: Mutex::new(Some(goes_on)) };
        let core = core(directory.path(), store);
        let (old, new) = (attributes(1, 100), attributes(2, 200));
        let object = leased(&core, &old);
        let flush = || {
            let core = core.clone();
            tokio::spawn(async move { core.flush().await })
        };
        let first = flush();
        tokio::task::spawn_blocking(move || began.recv().unwrap()).await.unwrap();
        // A change of ours, while the state before it is being written to the index.
        Change::begin(&core, &object).done(&Wcc::around(old.wcc(), Some(new)));
        let mut second = flush();
        // Time enough for a flush that does not wait for its turn.
        let _ = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
        go_on.send(()).unwrap();
        first.await.unwrap();
        if !second.is_finished() {
            second.await.unwrap();
        }
        let key = object.handle.as_bytes();
        assert!(core.disk.index().get(Table::Leases, key).is_some(), "it is vouched for");
        let record = Record::decode(&core.disk.index().get(Table::Objects, key).unwrap()).unwrap();
        assert_eq!(record.kept.attributes, new);
    }
}
