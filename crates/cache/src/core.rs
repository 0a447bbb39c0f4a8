//! The state that all operations of the cache share: the origin, the objects, the index, and the bookkeeping.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Semaphore;
use vfs::{Attributes, Caller, Error, Features, FileSystem, FsLimits, Fsid, Handle, Name, Principal, Status};

use crate::above::Above;
use crate::adopting::Adopting;
use crate::candidates::SharedCandidates;
use crate::data::Data;
use crate::disk::LocalDisk;
use crate::flushing::FlushQueue;
use crate::gate::StoreGate;
use crate::kept_opens::KeptOpens;
use crate::lease::Leases;
use crate::limits::Limits;
use crate::link::OriginLink;
use crate::listing::KnownListing;
use crate::loaded::LoadedListings;
use crate::object::{AtRest, ObjectState, Opening, RestingLease, Seen};
use crate::open_table::OpenTable;
use crate::options::Options;
use crate::outage::Outage;
use crate::policy::Policy;
use crate::preemption;
use crate::prefetch::{IN_FLIGHT, Prefetch};
use crate::recording::Recorder;
use crate::settling::Settling;
use crate::singleflight::Singleflight;
use crate::stats::Counters;
use crate::store::{
    Batch, DataRecord, Directory, Index, KeptListing, ObjectFile, Objects, Pins, Record, Table, UseNote,
};
use crate::table::{Found, Object, ObjectTable, RECORD_BYTES};
use crate::trust::Sent;
use crate::writes::{Delayed, journal_of, verifier_of};

/// The largest READ or delayed WRITE that is sent, in bytes, even if the origin accepts more.
pub const CHUNK_MAX_BYTES: u64 = 1 << 20;

/// The cache without its background tasks: its components, and the operations that join them.
pub struct Core {
    /// For spawned tasks, which need an `Arc` of the core.
    this: Weak<Core>,
    pub below: Arc<dyn FileSystem>,
    /// The options it was opened with. Their limits may have changed since.
    pub options: Options,
    limits: RwLock<Limits>,
    pub policy: Policy,
    pub counters: Counters,
    /// Objects, listings and lookups in memory.
    pub memory: Memory,
    /// The link to the origin, as far as it is known.
    pub link: OriginLink,
    /// Read-ahead in directories, if the options enable it.
    pub prefetch: Option<Prefetch>,
    /// Permits for calls that a user has ordered ahead of readers, if there is no read-ahead to share with.
    pub orders: Arc<Semaphore>,
    /// What readers use, while that is recorded.
    pub recorder: Recorder,
    /// State that is held at the origin.
    pub origin: OriginState,
    /// The opens of the layer above.
    pub opens: OpenTable,
    /// The way to the layer above.
    pub above: Above,
    /// Delayed writes, if the options enable them.
    pub delayed: Option<Delayed>,
    /// Files with missing bytes, for the completer.
    pub candidates: SharedCandidates,
    /// Objects that the index does not have yet.
    pub flushing: FlushQueue,
    /// Whether data may be stored.
    pub gate: StoreGate,
    /// The last field: the disk's directory is released after everything that uses it.
    pub disk: LocalDisk,
}

/// Objects in memory, and work on names that callers share.
pub struct Memory {
    table: ObjectTable,
    listings: LoadedListings,
    lookups: Singleflight<(Handle, Name)>,
}

impl Memory {
    /// The objects.
    pub fn table(&self) -> &ObjectTable {
        &self.table
    }

    /// Listings in memory.
    pub fn listings(&self) -> &LoadedListings {
        &self.listings
    }

    /// LOOKUPs in flight, shared by callers that look up the same name.
    pub fn lookups(&self) -> &Singleflight<(Handle, Name)> {
        &self.lookups
    }
}

/// State that the cache holds at the origin.
#[derive(Default)]
pub struct OriginState {
    leases: Leases,
    adopting: Adopting,
    settling: Settling,
    kept_opens: KeptOpens,
}

impl OriginState {
    /// Leases of the origin.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// State that the layer below has held since an earlier process.
    pub fn adopting(&self) -> &Adopting {
        &self.adopting
    }

    /// Files whose open at the origin may have to be narrowed or closed.
    pub fn settling(&self) -> &Settling {
        &self.settling
    }

    /// Opens at the origin that only a lease keeps.
    pub fn kept_opens(&self) -> &KeptOpens {
        &self.kept_opens
    }
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
    /// The origin has refused leases on directories.
    pub refuses: bool,
}

impl Core {
    /// Builds a cache from its parts.
    pub fn new(start: Start) -> Arc<Core> {
        Arc::new_cyclic(|this| Core::build(start, this.clone()))
    }

    fn build(start: Start, this: Weak<Core>) -> Core {
        let objects = Objects::new(start.directory.objects(), start.nonce, start.used_bytes);
        start.shares.iter().for_each(|(fsid, used)| objects.set_share(*fsid, *used));
        let outage = Outage::new(&start.options, start.below.unanswered_since());
        Core {
            this,
            below: start.below,
            policy: Policy::new(&start.options, start.nonce),
            counters: Counters::default(),
            memory: Memory {
                table: ObjectTable::new(
                    start.options.objects_in_memory_max,
                    start.options.resting_max_bytes / RECORD_BYTES,
                ),
                listings: LoadedListings::default(),
                lookups: Singleflight::default(),
            },
            link: OriginLink::new(outage, start.options.readahead_max_bytes, start.refuses),
            prefetch: Prefetch::new(start.options.prefetch_max_bytes),
            orders: Arc::new(Semaphore::new(IN_FLIGHT)),
            recorder: Recorder::default(),
            origin: OriginState::default(),
            opens: OpenTable::default(),
            above: Above::default(),
            delayed: start.options.write_behind.map(|options| {
                let verifier = verifier_of(&start.directory, &options, start.nonce);
                Delayed::new(options, verifier, journal_of(&start.directory, &options))
            }),
            candidates: SharedCandidates::default(),
            flushing: FlushQueue::new(start.uses, start.indexed),
            gate: StoreGate::default(),
            limits: RwLock::new(start.options.limits),
            options: start.options,
            disk: LocalDisk::new(start.directory, start.index, objects, start.pins),
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

    /// Has the origin opens, locks and leases? `None` if that is not known yet.
    pub fn has_state(&self) -> Option<bool> {
        self.link.offers(Features::STATE)
    }

    /// Does the origin grant leases without having opens? The cache then chooses its requests differently:
    /// see [`Features::LEASES_ALONE`].
    pub fn leases_alone(&self) -> bool {
        self.link.offers(Features::LEASES_ALONE) == Some(true)
    }

    /// Has the origin byte-range locks, as far as its features say?
    pub fn has_locks_below(&self) -> bool {
        self.has_state() == Some(true) || self.link.offers(Features::LOCKS_ALONE) == Some(true)
    }

    /// Are locks kept in this cache alone, because the origin has none?
    pub fn keeps_locks_alone(&self) -> bool {
        self.link.is_lockless()
    }

    /// Records that the origin has no byte-range locks.
    pub fn no_locks_below(&self) {
        if self.link.learn_lockless() {
            tracing::warn!(
                "{} has no byte-range locks: they are kept here, among clients of this cache",
                self.options.origin
            );
        }
    }

    /// The object, from memory or from the index. Counts as a use.
    pub fn object(&self, handle: &Handle) -> Arc<Object> {
        let object = self.memory.table().get(handle, |at_rest| self.load(handle, at_rest));
        self.count_use(&object, self.flushing.next_use());
        object
    }

    /// The object if it is awake, or what of it rests in memory. Counts as a use of an object that is awake,
    /// or that rests with a lease.
    pub fn find(&self, handle: &Handle) -> Found {
        let use_number = self.flushing.next_use();
        let found = self.memory.table().find(handle, Some(use_number));
        if let Found::Awake(object) = &found {
            object.mark_recent();
            self.count_use(object, use_number);
        }
        found
    }

    fn count_use(&self, object: &Object, number: u64) {
        object.used.store(number, Ordering::Relaxed);
        object.used_at.store(self.policy.wall().seconds, Ordering::Relaxed);
    }

    /// The object, without counting a use.
    pub fn glance(&self, handle: &Handle) -> Arc<Object> {
        self.memory.table().get(handle, |at_rest| self.load(handle, at_rest))
    }

    /// Runs `work` on the state of an object, then does the follow-up work that the state asks for.
    pub fn with<T>(&self, object: &Arc<Object>, work: impl FnOnce(&mut ObjectState) -> T) -> T {
        preemption::point();
        let mut state = object.state.lock();
        let result = work(&mut state);
        if std::mem::take(&mut state.index.unvouched) {
            // Under the same lock as `vouch`, and before any change of the object is sent.
            self.unvouch(&object.handle);
        }
        if !state.index.trash.is_empty() {
            self.disk.discard(&mut state.index.trash);
            self.gate.wake();
        }
        if std::mem::take(&mut state.index.distrusted) {
            self.counters.distrusted.bump();
        }
        if std::mem::take(&mut state.index.changed) {
            self.flushing.push(object);
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

    /// Requests the origin's limits once. The timestamp granularity must be known before any timestamp is
    /// judged.
    pub async fn know_limits(&self, caller: &Caller, handle: &Handle) {
        let ask = async || {
            self.counters.other.bump();
            self.below.limits(caller, handle).await
        };
        if let Some(limits) = self.link.ask_limits(ask).await {
            self.note_limits(&limits);
        }
    }

    /// Records the limits that the origin reported.
    pub fn learn_limits(&self, limits: FsLimits) {
        self.note_limits(&limits);
        self.link.learn_limits(limits);
    }

    fn note_limits(&self, limits: &FsLimits) {
        self.policy.origin.learn_granularity(limits.time_delta_nanoseconds);
        if let Some(prefetch) = &self.prefetch {
            prefetch.fit_to(limits.concurrent_max);
        }
        if let (Some(delayed), Some(available)) = (&self.delayed, limits.available_bytes) {
            delayed.spaces.saw_first(available);
        }
    }

    /// The largest delayed WRITE that is sent to the origin, in bytes.
    pub fn write_chunk_bytes(&self) -> u64 {
        let max = self.link.limits().map_or(FsLimits::default().write_max, |limits| limits.write_max);
        let ours = self.options.write_behind.map_or(max, |options| options.wsize);
        u64::from(max.min(ours)).clamp(1, CHUNK_MAX_BYTES)
    }

    /// The largest READ that is sent to the origin, in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        let max = self.link.limits().map_or(FsLimits::default().read_max, |limits| limits.read_max);
        u64::from(max).clamp(crate::data::BLOCK_BYTES, CHUNK_MAX_BYTES)
    }

    /// The limits that are in force.
    pub fn limits(&self) -> Limits {
        *self.limits.read()
    }

    /// From now on, these limits are in force. If less may be cached, the cleaner starts.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write() = limits;
        self.gate.ease();
        self.gate.wake();
    }

    /// May anything be stored now? The last of the disk space is left to the index. Nothing is stored that a
    /// broken index could not record.
    pub fn may_store(&self) -> bool {
        if !self.disk.can_record() {
            return false;
        }
        let limits = self.limits();
        if self.disk.objects().used_bytes() >= limits.size_max_bytes
            || self.disk.free_bytes() < limits.min_free_bytes
        {
            self.gate.pause();
        }
        if self.needs_cleaning() {
            self.gate.wake();
        }
        !self.gate.is_paused()
    }

    /// May this file be cached, and has its file system capacity for it?
    pub fn takes(&self, state: &ObjectState) -> bool {
        let Some(known) = state.attributes() else { return true };
        let capacity = |max| self.disk.objects().share_bytes(known.fsid) < max;
        let limits = self.limits();
        limits.takes(known, self.policy.wall()) && limits.export_max_bytes.is_none_or(capacity)
    }

    /// Must the cleaner free capacity?
    pub fn needs_cleaning(&self) -> bool {
        !self.is_below_soft() || self.gate.is_paused() || self.flushing.indexed() > self.options.objects_max
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
        if self.disk.may_warn() {
            tracing::warn!(
                "cache {}: {error}; reads continue from the origin; free some space, or check the disk",
                self.options.directory.display()
            );
        }
    }

    /// The object as the index has it, with what rested in memory.
    fn load(&self, handle: &Handle, at_rest: &AtRest) -> Object {
        let record = self.disk.index().get(Table::Objects, handle.as_bytes());
        let record = record.and_then(|record| Record::decode(&record));
        let vouched = at_rest.lease.as_ref().is_some_and(RestingLease::is_vouched);
        let Some(record) = record else {
            if vouched {
                // The index records a lease for an entry that it no longer has.
                self.unvouch(handle);
            }
            let mut state = ObjectState::new(&self.policy);
            if let Some(lease) = &at_rest.lease {
                state.wake_lease(&self.policy, lease, false);
            }
            return Object::new(*handle, state, 0);
        };
        let mut state = ObjectState::wake(&self.policy, &record.kept, at_rest);
        let used = record.used;
        let same_boot = record.boot == self.disk.boot();
        let nonracy = state.epoch() == record.kept.epoch;
        if let Some(data) = record.data {
            let file = self.disk.objects().file(data.file, data.allocated_bytes, record.kept.attributes.fsid);
            // After a crash of the machine, data that was not synced is lost. Data of a racy state may have
            // changed unseen.
            if nonracy && (same_boot || data.synced) {
                state.data = Data::restored(file, data.valid, data.racy, data.sums, data.synced);
            } else {
                self.disk.discard(&mut vec![file]);
                state.index.changed = true;
            }
        }
        if nonracy {
            record.rights.into_iter().for_each(|right| state.rights.push(right));
            state.link = record.link;
            state.names.listing = record.listing.map(|kept| {
                let known = KnownListing::new(kept.id, kept.racy, None);
                KnownListing { guessed: kept.guessed.then(|| self.policy.event()), ..known }
            });
        }
        state.place = record.place;
        let object = Object::new(*handle, state, used);
        object.used.fetch_max(at_rest.used, Ordering::Relaxed);
        object.used_at.store(record.used_at, Ordering::Relaxed);
        object
    }

    /// Adds the record of an object to a batch. True if the object must be recorded again soon, because its
    /// state is still racy.
    pub fn record(&self, object: &Arc<Object>, batch: &mut Batch) -> bool {
        object.queued.store(false, Ordering::Release);
        let mut state = object.state.lock();
        state.index.changed = false;
        let kept = state.keep(&self.policy);
        let before = object.used_in_index.load(Ordering::Relaxed);
        let key = object.handle.as_bytes().to_vec();
        let Some(kept) = kept else {
            if before != 0 {
                batch.remove(Table::Uses, use_key(before, &object.handle));
                batch.remove(Table::Objects, key);
                self.flushing.count_indexed(-1);
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
            boot: self.disk.boot(),
            used,
            used_at: object.used_at.load(Ordering::Relaxed),
            place: state.place.clone(),
            kept,
            rights: state.rights.iter().cloned().collect(),
            link: state.link.clone(),
            listing: state
                .names
                .listing
                .as_ref()
                .filter(|listing| listing.edits.is_empty())
                .map(KeptListing::of),
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
            self.flushing.count_indexed(1);
        }
        object.used_in_index.store(used, Ordering::Relaxed);
        self.note_candidate(&object.handle, &state);
        if state.data.file().is_some() && !state.data.synced {
            self.disk.note_unsynced(object);
        }
        !nonracy && state.is_seen()
    }
}

/// The key of an object in the table of uses, which is ordered by last use.
pub fn use_key(used: u64, handle: &Handle) -> Vec<u8> {
    let mut key = used.to_be_bytes().to_vec();
    key.extend_from_slice(handle.as_bytes());
    key
}
