//! The state that all operations of the cache share: the origin, the objects, the index, and the bookkeeping.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, Semaphore, mpsc};
use tokio::time::Instant;
use vfs::{
    Attributes, Callback, Callbacks, Caller, Error, Features, FileSystem, FsLimits, FsStat, Fsid, Handle,
    OpenId, Principal, Status,
};

use crate::adopt::Adopting;
use crate::completer::SharedCandidates;
use crate::data::Data;
use crate::lease::Leases;
use crate::listing::KnownListing;
use crate::object::{ObjectState, Opening, Seen};
use crate::options::Options;
use crate::outage::Outage;
use crate::policy::Policy;
use crate::readahead::Pace;
use crate::stats::Counters;
use crate::store::index::FULL_BYTES;
use crate::store::{
    Batch, DataRecord, Directory, Index, ObjectFile, Objects, Pins, Record, Table, UseNote, directory,
};
use crate::table::{Object, ObjectTable};
use crate::trust::Sent;
use crate::upstream::settle::Settling;
use crate::writes::Delayed;

/// The largest number of read-ahead fetches in flight, over all files.
const AHEAD_MAX: usize = 64;
/// The largest number of large WRITEs of ours that are being stored on the local disk.
const STORING_MAX: usize = 32;
/// The largest number of callbacks queued for the layer above.
const CALLBACKS_MAX: usize = 1024;
/// The largest READ or delayed WRITE that is sent, in bytes, even if the origin accepts more.
pub const CHUNK_MAX_BYTES: u64 = 1 << 20;

/// The cache without its background tasks.
pub struct Core {
    /// For spawned tasks, which need an `Arc` of the core.
    this: Weak<Core>,
    pub below: Arc<dyn FileSystem>,
    pub options: Options,
    pub policy: Policy,
    pub counters: Counters,
    pub table: ObjectTable,
    pub index: Index,
    pub objects: Arc<Objects>,
    /// The objects that an administrator has pinned.
    pub pins: Pins,
    /// Objects whose latest state is not in the index yet.
    pub dirty: Mutex<Vec<Arc<Object>>>,
    /// Held during a flush to the index: see [`crate::upkeep`].
    pub telling: Arc<tokio::sync::Mutex<()>>,
    /// Data files to be removed from the local disk.
    pub trash: Mutex<Vec<Arc<ObjectFile>>>,
    /// Objects whose data may not be durable on the local disk, and since when they are queued.
    pub unsynced: Mutex<VecDeque<(Instant, Weak<Object>)>>,
    /// Wakes the cleaner.
    pub cleaner: Arc<Notify>,
    /// The last cleaning neither reached the soft limit nor freed anything.
    pub over_limit: AtomicBool,
    /// Notified when data that was kept may now be evicted: the cleaner tries again at once.
    pub eased: Arc<Notify>,
    /// The hard limit is reached: nothing is stored until the cleaner is below the soft limit.
    pub paused: AtomicBool,
    /// The cleaner is running.
    pub cleaning: AtomicBool,
    /// Counts uses of objects. The object used last has the highest number.
    pub uses: AtomicU64,
    /// The number of objects in the index.
    pub indexed: AtomicU64,
    /// Listings in memory.
    pub listings: crate::filesystem::directory::LoadedListings,
    /// LOOKUPs in flight, shared by callers that look up the same name.
    pub singleflight: crate::filesystem::singleflight::Singleflight,
    pub pace: Mutex<Pace>,
    /// Twice the bandwidth-delay product of the link to the origin, in bytes.
    pub window_bytes: AtomicU64,
    pub ahead: Arc<Semaphore>,
    /// Limits the large WRITEs of ours that are being stored on the local disk.
    pub storing: Arc<Semaphore>,
    pub disk: crate::cleaner::DiskWatch,
    /// Leases held from the origin.
    pub leases: Leases,
    /// State that the layer below has held since an earlier process.
    pub adopting: Adopting,
    /// The file of each open of the layer above.
    pub opens: Mutex<HashMap<OpenId, Arc<Object>>>,
    /// The next open id.
    pub open_ids: AtomicU64,
    /// Delayed writes, if the options enable them.
    pub delayed: Option<Delayed>,
    /// Files whose open at the origin may have to be narrowed or closed.
    pub settling: Settling,
    /// Callbacks to the layer above.
    pub above: mpsc::Sender<Callback>,
    callbacks: Mutex<Option<Callbacks>>,
    /// The origin has no byte-range locks.
    lockless: AtomicBool,
    /// The layer below has granted a lease on a directory at least once.
    pub delegates: AtomicBool,
    /// A lease on a new directory was requested once, to learn whether the layer below grants any.
    pub tried_delegation: AtomicBool,
    limits: OnceCell<FsLimits>,
    /// The handle of the origin's root.
    pub root: Mutex<Option<Handle>>,
    /// The latest reply to FSSTAT.
    pub fsstat: Mutex<Option<FsStat>>,
    /// Files with missing bytes, for the completer.
    pub candidates: SharedCandidates,
    pub outage: Arc<Outage>,
    boot: u64,
    warned: Mutex<Option<Instant>>,
    /// The last field: the directory's lock is released only after every file in the directory is closed.
    pub directory: Directory,
}

/// The parts that a cache is built from.
pub struct Start {
    pub below: Arc<dyn FileSystem>,
    pub options: Options,
    pub directory: Directory,
    pub index: Index,
    pub pins: Pins,
    /// Bytes in use by the data of each file system.
    pub shares: Vec<(Fsid, u64)>,
    /// Random, new in every process.
    pub nonce: u64,
    pub used_bytes: u64,
    pub uses: u64,
    pub indexed: u64,
}

impl Core {
    /// Builds a cache from its parts.
    pub fn new(start: Start) -> Arc<Core> {
        Arc::new_cyclic(|this| Core::build(start, this.clone()))
    }

    fn build(start: Start, this: Weak<Core>) -> Core {
        let objects = Objects::new(start.directory.objects(), start.nonce, start.used_bytes);
        start.shares.iter().for_each(|(fsid, used)| objects.set_share(*fsid, *used));
        let (above, callbacks) = mpsc::channel(CALLBACKS_MAX);
        let outage = Arc::new(Outage::new(&start.options, start.below.unanswered_since()));
        Core {
            this,
            below: start.below,
            policy: Policy::new(&start.options, start.nonce),
            counters: Counters::default(),
            table: ObjectTable::new(start.options.objects_in_memory_max),
            index: start.index,
            disk: crate::cleaner::DiskWatch::new(start.directory.objects()),
            objects,
            pins: start.pins,
            dirty: Mutex::default(),
            telling: Arc::default(),
            trash: Mutex::default(),
            unsynced: Mutex::default(),
            cleaner: Arc::default(),
            over_limit: AtomicBool::new(false),
            eased: Arc::default(),
            paused: AtomicBool::new(false),
            cleaning: AtomicBool::new(false),
            uses: AtomicU64::new(start.uses),
            indexed: AtomicU64::new(start.indexed),
            listings: crate::filesystem::directory::LoadedListings::default(),
            singleflight: crate::filesystem::singleflight::Singleflight::default(),
            pace: Mutex::default(),
            window_bytes: AtomicU64::new(0),
            ahead: Arc::new(Semaphore::new(AHEAD_MAX)),
            storing: Arc::new(Semaphore::new(STORING_MAX)),
            leases: Leases::default(),
            adopting: Adopting::default(),
            opens: Mutex::default(),
            open_ids: AtomicU64::new(1),
            delayed: start.options.write_behind.map(|options| Delayed::new(options, start.nonce)),
            settling: Settling::default(),
            above,
            callbacks: Mutex::new(Some(callbacks)),
            lockless: AtomicBool::new(false),
            delegates: AtomicBool::new(false),
            tried_delegation: AtomicBool::new(false),
            limits: OnceCell::new(),
            root: Mutex::new(None),
            fsstat: Mutex::new(None),
            candidates: SharedCandidates::default(),
            outage,
            boot: directory::boot_id(),
            warned: Mutex::new(None),
            options: start.options,
            directory: start.directory,
        }
    }

    /// An owned reference to this core, for a task.
    pub fn share(&self) -> Option<Arc<Core>> {
        self.this.upgrade()
    }

    /// A weak reference to this core, for holders that must not keep it alive.
    pub fn weak(&self) -> Weak<Core> {
        self.this.clone()
    }

    /// The stream of callbacks to the layer above. Only the first caller gets it.
    pub fn take_callbacks(&self) -> Option<Callbacks> {
        self.callbacks.lock().take()
    }

    /// Does the layer above listen to callbacks?
    pub fn is_heard(&self) -> bool {
        self.callbacks.lock().is_none() && !self.above.is_closed()
    }

    /// Has the origin opens, locks and leases? `None` if that is not known yet.
    pub fn has_state(&self) -> Option<bool> {
        self.limits.get().map(|limits| limits.features.contains(Features::STATE))
    }

    /// Does the origin grant leases without having opens? The cache then chooses its requests differently:
    /// see [`Features::LEASES_ALONE`].
    pub fn leases_alone(&self) -> bool {
        self.limits.get().is_some_and(|limits| limits.features.contains(Features::LEASES_ALONE))
    }

    /// Are locks kept in this cache alone, because the origin has none?
    pub fn keeps_locks_alone(&self) -> bool {
        self.lockless.load(Ordering::Relaxed)
    }

    /// Records that the origin has no byte-range locks.
    pub fn no_locks_below(&self) {
        if !self.lockless.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} has no byte-range locks: they are kept here, among clients of this cache",
                self.options.origin
            );
        }
    }

    /// The object, from memory or from the index. Counts as a use.
    pub fn object(&self, handle: &Handle) -> Arc<Object> {
        let object = self.table.get(handle, || self.load(handle));
        object.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        object.used_at.store(self.policy.wall().seconds, Ordering::Relaxed);
        object
    }

    /// The object, without counting a use.
    pub fn glance(&self, handle: &Handle) -> Arc<Object> {
        self.table.get(handle, || self.load(handle))
    }

    /// Runs `work` on the state of an object, then does the follow-up work that the state asks for.
    pub fn with<T>(&self, object: &Arc<Object>, work: impl FnOnce(&mut ObjectState) -> T) -> T {
        let mut state = object.state.lock();
        let result = work(&mut state);
        if std::mem::take(&mut state.unvouched) {
            // Under the same lock as `vouch`, and before any change of the object is sent.
            self.unvouch(&object.handle);
        }
        if !state.trash.is_empty() {
            self.trash.lock().append(&mut state.trash);
            self.cleaner.notify_one();
        }
        if std::mem::take(&mut state.distrusted) {
            self.counters.distrusted.bump();
        }
        if std::mem::take(&mut state.changed) && !object.queued.swap(true, Ordering::AcqRel) {
            self.dirty.lock().push(object.clone());
        }
        result
    }

    /// Takes note of the attributes in a reply, if it carried any.
    pub fn observe(
        &self,
        object: &Arc<Object>,
        attributes: Option<&Attributes>,
        sent: &Sent,
        opening: Opening,
    ) -> Option<Seen> {
        let attributes = attributes?;
        Some(self.with(object, |state| state.observe(&self.policy, attributes, sent, opening)))
    }

    /// Takes note of a failed call. If the object is stale, the cache forgets it.
    pub fn note_error(&self, object: &Arc<Object>, error: &Error, sent: &Sent) {
        if matches!(error.status, Status::Stale | Status::BadHandle) {
            self.with(object, |state| state.forget(&self.policy));
        } else {
            self.observe(object, error.attributes.as_deref(), sent, Opening::No);
        }
    }

    /// How long an answer to ACCESS is believed.
    pub fn right_age_max(&self, state: &ObjectState) -> Duration {
        self.policy.timeouts(state.attributes().is_some_and(Attributes::is_dir)).1
    }

    /// Does the cache remember whether the caller may do this with the object? `None` if it does not.
    pub fn may(&self, state: &mut ObjectState, principal: &Principal, bit: vfs::AccessMask) -> Option<bool> {
        let max = self.right_age_max(state);
        state.rights.may(principal, bit, self.policy.wall(), max)
    }

    /// The origin's limits, if they are known.
    pub fn known_limits(&self) -> Option<FsLimits> {
        self.limits.get().copied()
    }

    /// Requests the origin's limits once. The timestamp granularity must be known before any timestamp is
    /// judged.
    pub async fn know_limits(&self, caller: &Caller, handle: &Handle) {
        let ask = async || {
            self.counters.other.bump();
            self.below.limits(caller, handle).await
        };
        if !self.limits.initialized()
            && let Ok(limits) = self.limits.get_or_try_init(ask).await
        {
            self.note_limits(limits);
        }
    }

    /// Records the limits that the origin reported.
    pub fn learn_limits(&self, limits: FsLimits) {
        self.note_limits(&limits);
        let _ = self.limits.set(limits);
    }

    fn note_limits(&self, limits: &FsLimits) {
        self.policy.origin.learn_granularity(limits.time_delta_nanoseconds);
        if let (Some(delayed), Some(available)) = (&self.delayed, limits.available_bytes) {
            delayed.spaces.saw_first(available);
        }
    }

    /// The largest delayed WRITE that is sent to the origin, in bytes.
    pub fn write_chunk_bytes(&self) -> u64 {
        let max = self.limits.get().map_or(FsLimits::default().write_max, |limits| limits.write_max);
        let ours = self.options.write_behind.map_or(max, |options| options.wsize);
        u64::from(max.min(ours)).clamp(1, CHUNK_MAX_BYTES)
    }

    /// The largest READ that is sent to the origin, in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        let max = self.limits.get().map_or(FsLimits::default().read_max, |limits| limits.read_max);
        u64::from(max).clamp(crate::data::BLOCK_BYTES, CHUNK_MAX_BYTES)
    }

    /// May anything be stored now? The last of the disk space is left to the index. Nothing is stored that a
    /// broken index could not record.
    pub fn may_store(&self) -> bool {
        if self.index.is_broken() || self.disk.free_bytes() < 2 * FULL_BYTES {
            return false;
        }
        if self.objects.used_bytes() >= self.options.size_max_bytes
            || self.disk.free_bytes() < self.options.min_free_bytes
        {
            self.paused.store(true, Ordering::Relaxed);
        }
        if self.needs_cleaning() {
            self.cleaner.notify_one();
        }
        !self.paused.load(Ordering::Relaxed)
    }

    /// May this file be cached, and has its file system capacity for it?
    pub fn takes(&self, state: &ObjectState) -> bool {
        let Some(known) = state.attributes() else { return true };
        let capacity = |max| self.objects.share_bytes(known.fsid) < max;
        self.options.takes(known, self.policy.wall()) && self.options.export_max_bytes.is_none_or(capacity)
    }

    /// Must the cleaner free capacity?
    pub fn needs_cleaning(&self) -> bool {
        let over = |soft| self.objects.shares().iter().any(|(_, used)| *used > soft);
        if self.options.export_soft_bytes().is_some_and(over) {
            return true;
        }
        let min_free = self.options.min_free_bytes;
        self.objects.used_bytes() > self.options.soft_max_bytes()
            || (min_free > 0 && self.disk.free_bytes() < min_free + min_free / 10)
            || self.paused.load(Ordering::Relaxed)
            || self.indexed.load(Ordering::Relaxed) > self.options.objects_max
    }

    /// The disk failed on the data file of an object: drops the cached data and logs a warning, at most one a
    /// minute. If a write failed, nothing of the object is stored for a while. A file that this cache removed
    /// itself, just now or in an earlier process, is no failure: its bytes are missing, as if they had never
    /// been fetched.
    pub fn disk_failed(
        &self,
        object: &Arc<Object>,
        file: &Arc<ObjectFile>,
        error: &std::io::Error,
        writing: bool,
    ) {
        let failed = self.with(object, |state| {
            if !state.data.file().is_some_and(|current| Arc::ptr_eq(current, file)) {
                return false;
            }
            state.drop_data();
            let failed = !file.is_taken_away(error);
            if writing && failed {
                state.data.refuse();
            }
            failed
        });
        if !failed {
            return;
        }
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() > Duration::from_secs(60)) {
            *warned = Some(Instant::now());
            tracing::warn!(
                "cache {}: {error}; reads go on from the origin; make room or check the disk",
                self.options.directory.display()
            );
        }
    }

    /// The object as the index has it.
    fn load(&self, handle: &Handle) -> Object {
        self.load_as(handle, false)
    }

    /// The same. `vouched` tells that a lease of an earlier process, which is still held, vouches for the
    /// index entry.
    pub fn load_as(&self, handle: &Handle, vouched: bool) -> Object {
        let record = self.index.get(Table::Objects, handle.as_bytes());
        let Some(record) = record.and_then(|record| Record::decode(&record)) else {
            return Object::new(*handle, ObjectState::new(&self.policy), 0);
        };
        let mut state = ObjectState::restore(&self.policy, &record.kept, vouched);
        let used = record.used;
        let same_boot = record.boot == self.boot;
        let nonracy = record.kept.nonracy || vouched;
        if let Some(data) = record.data {
            let file = self.objects.file(data.file, data.allocated_bytes, record.kept.attributes.fsid);
            // After a crash of the machine, data that was not synced is lost. Data of a racy state may have
            // changed unseen.
            if nonracy && (same_boot || data.synced) {
                state.data = Data::restored(file, data.valid, data.racy, data.sums, data.synced);
            } else {
                self.trash.lock().push(file);
                state.changed = true;
            }
        }
        if nonracy {
            record.rights.into_iter().for_each(|right| state.rights.push(right));
            state.link = record.link;
            state.listing = record.listing.map(|(id, racy)| KnownListing::new(id, racy, None));
        }
        state.place = record.place;
        let object = Object::new(*handle, state, used);
        object.used_at.store(record.used_at, Ordering::Relaxed);
        object
    }

    /// Adds the record of an object to a batch. True if the object must be recorded again soon, because its
    /// state is still racy.
    pub fn record(&self, object: &Arc<Object>, batch: &mut Batch) -> bool {
        object.queued.store(false, Ordering::Release);
        let mut state = object.state.lock();
        state.changed = false;
        let kept = state.keep(&self.policy);
        let before = object.used_in_index.load(Ordering::Relaxed);
        let key = object.handle.as_bytes().to_vec();
        let Some(kept) = kept else {
            if before != 0 {
                batch.remove(Table::Uses, use_key(before, &object.handle));
                batch.remove(Table::Objects, key);
                self.count_indexed(-1);
            }
            object.used_in_index.store(0, Ordering::Relaxed);
            return false;
        };
        let nonracy = kept.nonracy;
        let used = object.used.load(Ordering::Relaxed).max(1);
        let data = state.data.file().filter(|_| !state.data.valid().is_empty()).map(|file| DataRecord {
            file: file.id,
            allocated_bytes: file.allocated_bytes(),
            valid: state.data.valid().clone(),
            racy: state.data.racy().clone(),
            synced: state.data.synced,
            sums: state.data.sums().clone(),
        });
        let record = Record {
            boot: self.boot,
            used,
            used_at: object.used_at.load(Ordering::Relaxed),
            place: state.place.clone(),
            kept,
            rights: state.rights.iter().cloned().collect(),
            link: state.link.clone(),
            listing: state
                .listing
                .as_ref()
                .filter(|listing| listing.edits.is_empty())
                .map(|listing| (listing.id, listing.racy)),
            data,
        };
        if before != 0 && before != used {
            batch.remove(Table::Uses, use_key(before, &object.handle));
        }
        let has_data = record.data.is_some();
        let note = UseNote {
            has_data,
            is_complete: has_data && state.is_complete(),
            fsid: record.kept.attributes.fsid,
        };
        batch.put(Table::Uses, use_key(used, &object.handle), note.encode());
        batch.put(Table::Objects, key, record.encode());
        if before == 0 {
            self.count_indexed(1);
        }
        object.used_in_index.store(used, Ordering::Relaxed);
        self.note_candidate(&object.handle, &state);
        if state.data.file().is_some() && !state.data.synced {
            self.unsynced.lock().push_back((Instant::now(), Arc::downgrade(object)));
        }
        !nonracy && state.is_seen()
    }
}

impl Core {
    /// Adjusts the number of objects in the index. The stored number may be too low after a crash, so it
    /// stops at zero.
    pub fn count_indexed(&self, by: i64) {
        let add = |count: u64| Some(count.saturating_add_signed(by));
        let _ = self.indexed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// The key of an object in the table of uses, which is ordered by last use.
pub fn use_key(used: u64, handle: &Handle) -> Vec<u8> {
    let mut key = used.to_be_bytes().to_vec();
    key.extend_from_slice(handle.as_bytes());
    key
}
