//! Objects whose state is in memory: a bounded table, filled from the index on demand.
//!
//! The table is sharded, so that hits on different files do not contend. Each shard evicts objects in the
//! order in which they arrived, with a second chance for those used since. An object stays while a task holds
//! it, or while it waits to be written to the index. An evicted object is in the index, or was not worth
//! keeping. Its known state may rest in memory ([`resting`]), so that it is still believed. Its lease rests
//! there in any case.

mod resting;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Attributes, Handle, OpenId, Result};

use crate::object::{AtRest, ObjectState, Resting, RestingLease};
pub use resting::RECORD_BYTES;
use resting::RestingObjects;

const SHARDS: usize = 64;
/// The largest number of objects that are examined for each one that arrives.
const SEARCH_MAX: usize = 16;

/// The result of the latest GETATTR of an object, and the event at which it was sent.
type Revalidated = Option<(u64, Result<Attributes>)>;

/// One remote object.
#[derive(Debug)]
pub struct Object {
    /// Its handle.
    pub handle: Handle,
    /// Its state. Locked for bookkeeping alone, never across a call or an access to the disk.
    pub state: Mutex<ObjectState>,
    /// Held by the GETATTR in flight. The requesters that wait for it share the next one.
    pub revalidation: tokio::sync::Mutex<Revalidated>,
    /// Held while an open at the origin is requested by handle, narrowed or closed.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Held while the origin is told of locks, and briefly by a task that gives up locks that the origin does
    /// not know of.
    pub locking: tokio::sync::Mutex<()>,
    /// Held while the file is truncated and writes of it are delayed.
    pub cutting: Arc<tokio::sync::Mutex<()>>,
    /// Notified when the state of its delayed writes changes.
    pub written: Notify,
    /// Held while names in this directory are changed in the index.
    pub names: Mutex<()>,
    /// The number of its last use, in uses of the cache.
    pub used: AtomicU64,
    /// The time of its last use by the local clock, in seconds; zero if that is not known.
    pub used_at: AtomicI64,
    /// The value of `used` in the index; zero if the object is not in the index.
    pub used_in_index: AtomicU64,
    /// The object waits to be written to the index.
    pub queued: AtomicBool,
    recent: AtomicBool,
}

impl Object {
    /// An object in this state.
    pub fn new(handle: Handle, state: ObjectState, used_in_index: u64) -> Object {
        Object {
            handle,
            state: Mutex::new(state),
            revalidation: tokio::sync::Mutex::new(None),
            turn: Arc::default(),
            locking: tokio::sync::Mutex::new(()),
            cutting: Arc::default(),
            written: Notify::new(),
            names: Mutex::new(()),
            used: AtomicU64::new(used_in_index),
            used_at: AtomicI64::new(0),
            used_in_index: AtomicU64::new(used_in_index),
            queued: AtomicBool::new(false),
            recent: AtomicBool::new(true),
        }
    }

    /// A task uses the object: the table keeps it for another turn.
    pub fn mark_recent(&self) {
        self.recent.store(true, Ordering::Relaxed);
    }

    /// May the table evict the object? Only the table must hold it, and it must not wait for the index. Its
    /// data must not be in use, and it must have no local opens, locks or delayed writes.
    fn is_idle(self: &Arc<Object>) -> bool {
        let unheld = Arc::strong_count(self) == 1 && !self.queued.load(Ordering::Acquire);
        unheld && self.state.try_lock().is_some_and(|state| !state.data.is_in_use() && state.may_rest())
    }

    /// What rests of an object that nobody else has, or nothing if it must stay.
    fn rest(&mut self) -> Option<AtRest> {
        let is_indexed = *self.used_in_index.get_mut() != 0;
        let (used, queued) = (*self.used.get_mut(), *self.queued.get_mut());
        let state = self.state.get_mut();
        (!queued && !state.data.is_in_use() && state.may_rest()).then(|| state.rest(is_indexed, used))
    }
}

/// What memory has of an object.
#[derive(Debug)]
pub enum Found {
    /// Its complete state.
    Awake(Arc<Object>),
    /// Its known state alone.
    Resting(Resting),
    /// Nothing: the index may have it.
    Nothing,
}

#[derive(Debug)]
struct Shard {
    objects: HashMap<Handle, Arc<Object>>,
    order: VecDeque<Handle>,
    resting: RestingObjects,
    departures: u64,
    /// When one of the evicted objects was last written by us.
    written: Option<Instant>,
}

/// All objects in memory.
#[derive(Debug)]
pub struct ObjectTable {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    shard_max: usize,
}

impl ObjectTable {
    /// A table for about so many objects, and for at most so many known states at rest.
    pub fn new(objects_max: usize, resting_max: usize) -> ObjectTable {
        let shard = |_| Mutex::new(Shard::new(resting_max / SHARDS));
        ObjectTable {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::new(),
            shard_max: if objects_max == 0 { 0 } else { (objects_max / SHARDS).max(4) },
        }
    }

    /// The object, from memory or as `load` reads it from the index. `load` gets what rested in memory.
    pub fn get(&self, handle: &Handle, load: impl Fn(&AtRest) -> Object) -> Arc<Object> {
        loop {
            let (departures, at_rest) = {
                let shard = self.shard(handle).lock();
                if let Some(object) = shard.objects.get(handle) {
                    object.mark_recent();
                    return object.clone();
                }
                (shard.departures, shard.resting.get(handle))
            };
            let loaded = load(&at_rest);
            let mut shard = self.shard(handle).lock();
            if let Some(object) = shard.objects.get(handle) {
                return object.clone();
            }
            // Another task may have loaded, changed and evicted the object while we read a record that is old
            // by now.
            if shard.departures != departures {
                continue;
            }
            let object = Arc::new(loaded);
            shard.objects.insert(*handle, object.clone());
            shard.order.push_back(*handle);
            shard.resting.remove(handle);
            let mut evicted = Vec::new();
            if shard.objects.len() > self.shard_max {
                shard.free_capacity(self.shard_max, &mut evicted);
            }
            drop(shard);
            return object;
        }
    }

    /// The object, if it is in memory.
    pub fn peek(&self, handle: &Handle) -> Option<Arc<Object>> {
        self.shard(handle).lock().objects.get(handle).cloned()
    }

    /// What memory has of an object. An object at rest stays at rest. If it rests with a lease, its last use
    /// is now `used`.
    pub fn find(&self, handle: &Handle, used: Option<u64>) -> Found {
        let mut shard = self.shard(handle).lock();
        if let Some(object) = shard.objects.get(handle) {
            return Found::Awake(object.clone());
        }
        shard.resting.known(handle, used).map_or(Found::Nothing, Found::Resting)
    }

    /// Does the object rest with a lease that the layer above holds?
    pub fn rests_given(&self, handle: &Handle) -> bool {
        self.shard(handle).lock().resting.is_given(handle)
    }

    /// May we have written this object since then, although it was evicted meanwhile and its new state does
    /// not tell?
    pub fn may_be_written_since(&self, handle: &Handle, since: Instant) -> bool {
        self.shard(handle).lock().written.is_some_and(|at| at >= since)
    }

    /// Evicts idle objects where there are too many. Arrivals evict as well, but find none that waits for the
    /// index; call this when the index has them.
    pub fn shrink(&self) {
        for shard in &self.shards {
            let mut evicted = Vec::new();
            let mut shard = shard.lock();
            let rounds = shard.objects.len().div_ceil(SEARCH_MAX) * 2;
            for _ in 0..rounds {
                if !shard.free_capacity(self.shard_max, &mut evicted) {
                    break;
                }
            }
            drop(shard);
        }
    }

    /// Lets a lease that an earlier process left rest, unless the object is in memory already.
    pub fn insert_lease(&self, handle: &Handle, lease: &RestingLease) -> bool {
        let mut shard = self.shard(handle).lock();
        let rests = !shard.objects.contains_key(handle);
        if rests {
            shard.resting.insert(handle, AtRest { lease: Some(lease.clone()), ..AtRest::default() });
            shard.departures += 1;
        }
        rests
    }

    /// The number of uses at the last use of an object that is awake, or that rests with a lease.
    pub fn last_use(&self, handle: &Handle) -> Option<u64> {
        let shard = self.shard(handle).lock();
        let awake = shard.objects.get(handle).map(|object| object.used.load(Ordering::Relaxed));
        awake.or_else(|| shard.resting.last_use(handle))
    }

    /// The same, if the file's open at the origin is this one. If somebody has the state of the object in
    /// hand, it counts as open.
    pub fn last_use_of_open(&self, handle: &Handle, open: OpenId) -> Option<u64> {
        let shard = self.shard(handle).lock();
        let Some(object) = shard.objects.get(handle) else {
            return shard.resting.last_use_of_open(handle, open);
        };
        let is_it = |state: &ObjectState| state.held.opens.upstream().is_some_and(|held| held.id == open);
        let is_open = object.state.try_lock().is_none_or(|state| is_it(&state));
        is_open.then(|| object.used.load(Ordering::Relaxed))
    }

    /// Counts the leases at rest for which `which` holds.
    pub fn count_resting_leases(&self, which: impl Fn(&RestingLease) -> bool) -> usize {
        let of = |shard: &Mutex<Shard>| shard.lock().resting.leases().filter(|lease| which(lease)).count();
        self.shards.iter().map(of).sum()
    }

    /// All objects in memory, shard by shard.
    pub fn all(&self) -> impl Iterator<Item = Arc<Object>> + '_ {
        self.shards.iter().flat_map(|shard| shard.lock().objects.values().cloned().collect::<Vec<_>>())
    }

    /// The number of objects in memory.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().objects.len()).sum()
    }

    /// The number of known states at rest.
    pub fn resting_len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().resting.len()).sum()
    }

    fn shard(&self, handle: &Handle) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(handle) as usize % SHARDS]
    }
}

impl Shard {
    fn new(resting_max: usize) -> Shard {
        Shard {
            objects: HashMap::new(),
            order: VecDeque::new(),
            resting: RestingObjects::new(resting_max),
            departures: 0,
            written: None,
        }
    }

    /// Evicts idle objects until the shard is within its limit, of the next [`SEARCH_MAX`] in order. More
    /// than one may go: while many were in use, the shard grew beyond its limit. The caller drops the evicted
    /// objects when it has released the shard. False if none of these objects can be evicted soon.
    fn free_capacity(&mut self, max: usize, evicted: &mut Vec<Object>) -> bool {
        let mut progress = false;
        for _ in 0..SEARCH_MAX {
            if self.objects.len() <= max {
                return false;
            }
            let Some(handle) = self.order.pop_front() else { return false };
            let Some(object) = self.objects.get(&handle) else { continue };
            let is_idle = object.is_idle();
            progress |= is_idle;
            if !is_idle || object.recent.swap(false, Ordering::Relaxed) {
                self.order.push_back(handle);
                continue;
            }
            match self.objects.remove(&handle).map(take) {
                Some(Ok((mut object, at_rest))) => {
                    self.written = self.written.max(object.state.get_mut().data.written());
                    self.resting.insert(&handle, at_rest);
                    evicted.push(object);
                    self.departures += 1;
                }
                Some(Err(object)) => {
                    self.objects.insert(handle, object);
                    self.order.push_back(handle);
                }
                None => {}
            }
        }
        progress
    }
}

/// Takes an idle object out of the hands of those with a weak reference, with what rests of it. Gives it back
/// if somebody has got it meanwhile, or has changed it.
fn take(object: Arc<Object>) -> Result<(Object, AtRest), Arc<Object>> {
    let mut object = Arc::try_unwrap(object)?;
    match object.rest() {
        Some(at_rest) => Ok((object, at_rest)),
        None => Err(Arc::new(object)),
    }
}
