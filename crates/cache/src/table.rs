//! Objects whose state is in memory: a bounded table, read from the index on demand.
//!
//! Sharded, so that hits on different files do not meet. Each shard lets go of objects in the order in which they came,
//! with a second chance for those used since; an object that anybody holds, or that has something to tell the index,
//! stays. What the table lets go of is in the index, or was worth nothing.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Attributes, Handle, Result};

use crate::object::ObjectState;

const SHARDS: usize = 64;
/// Objects looked at, at most, for each one that comes.
const SEARCH_MAX: usize = 16;

/// The result of the latest GETATTR of an object, and its place in the order of events.
pub type Revalidated = Option<(u64, Result<Attributes>)>;

/// One remote object.
#[derive(Debug)]
pub struct Object {
    /// Which.
    pub handle: Handle,
    /// What is known of it. Held for bookkeeping alone, never across a call or the disk.
    pub state: Mutex<ObjectState>,
    /// Held by the GETATTR under way; who waits for it shares the next one.
    pub revalidation: tokio::sync::Mutex<Revalidated>,
    /// Held while an open at the origin is asked for by handle, narrowed or closed.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Held while locks are told to the origin, and for a moment by whoever gives some up that it does not know of.
    pub locking: tokio::sync::Mutex<()>,
    /// Held while the file is being cut, and writes of it are delayed.
    pub cutting: Arc<tokio::sync::Mutex<()>>,
    /// Something has become of what is delayed of it.
    pub written: Notify,
    /// Held while names in it are changed in the index.
    pub names: Mutex<()>,
    /// When it was last used, in uses of the cache.
    pub used: AtomicU64,
    /// The same by this machine's clock, in seconds; zero if that is not known.
    pub used_at: AtomicI64,
    /// The same as `used`, as the index knows it; zero if the index does not know the object.
    pub used_in_index: AtomicU64,
    /// It waits for its turn to be written to the index.
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

    /// Nobody but the table holds it, nothing waits for the index, nobody reads its file, and there is no state?
    fn is_idle(self: &Arc<Object>) -> bool {
        let unheld = Arc::strong_count(self) == 1 && !self.queued.load(Ordering::Acquire);
        unheld && self.state.try_lock().is_some_and(|state| !state.data.is_in_use() && !state.is_held())
    }
}

#[derive(Debug, Default)]
struct Shard {
    objects: HashMap<Handle, Arc<Object>>,
    order: VecDeque<Handle>,
    departures: u64,
    /// When one of those who are gone was last written by us.
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
    /// One that holds about so many objects.
    pub fn new(objects_max: usize) -> ObjectTable {
        ObjectTable {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_max: (objects_max / SHARDS).max(4),
        }
    }

    /// The object, from memory or as `load` reads it from the index.
    pub fn get(&self, handle: &Handle, load: impl Fn() -> Object) -> Arc<Object> {
        loop {
            let departures = {
                let shard = self.shard(handle).lock();
                if let Some(object) = shard.objects.get(handle) {
                    object.recent.store(true, Ordering::Relaxed);
                    return object.clone();
                }
                shard.departures
            };
            let loaded = load();
            let mut shard = self.shard(handle).lock();
            if let Some(object) = shard.objects.get(handle) {
                return object.clone();
            }
            // Somebody may have loaded, changed and let go of it while we read what is old by now.
            if shard.departures != departures {
                continue;
            }
            let object = Arc::new(loaded);
            shard.objects.insert(*handle, object.clone());
            shard.order.push_back(*handle);
            if shard.objects.len() > self.shard_max {
                shard.free_capacity();
            }
            return object;
        }
    }

    /// The object, if it is in memory.
    pub fn peek(&self, handle: &Handle) -> Option<Arc<Object>> {
        self.shard(handle).lock().objects.get(handle).cloned()
    }

    /// May this object have been written by us since then, and let go of, so that it does not know?
    pub fn may_be_written_since(&self, handle: &Handle, since: Instant) -> bool {
        self.shard(handle).lock().written.is_some_and(|at| at >= since)
    }

    /// All objects in memory, shard by shard.
    pub fn all(&self) -> impl Iterator<Item = Arc<Object>> + '_ {
        self.shards.iter().flat_map(|shard| shard.lock().objects.values().cloned().collect::<Vec<_>>())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().objects.len()).sum()
    }

    fn shard(&self, handle: &Handle) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(handle) as usize % SHARDS]
    }
}

impl Shard {
    fn free_capacity(&mut self) {
        for _ in 0..SEARCH_MAX {
            let Some(handle) = self.order.pop_front() else { return };
            let Some(object) = self.objects.get(&handle) else { continue };
            if !object.is_idle() || object.recent.swap(false, Ordering::Relaxed) {
                self.order.push_back(handle);
                continue;
            }
            // Nobody else holds it.
            let written = object.state.try_lock().and_then(|state| state.data.written());
            self.written = self.written.max(written);
            self.objects.remove(&handle);
            self.departures += 1;
            return;
        }
    }
}
