//! The queue of objects that the index does not have yet, and the two counters that the index keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::table::Object;

/// Objects whose latest state is not in the index, the uses of objects, and the number of objects in the
/// index.
#[derive(Debug)]
pub struct FlushQueue {
    dirty: Mutex<Vec<Arc<Object>>>,
    /// Held during a flush: see [`crate::upkeep`].
    turn: Arc<tokio::sync::Mutex<()>>,
    uses: AtomicU64,
    indexed: AtomicU64,
}

impl FlushQueue {
    /// An empty queue. `uses` is the number of the next use, `indexed` the number of objects in the index.
    pub fn new(uses: u64, indexed: u64) -> FlushQueue {
        FlushQueue {
            dirty: Mutex::default(),
            turn: Arc::default(),
            uses: AtomicU64::new(uses),
            indexed: AtomicU64::new(indexed),
        }
    }

    /// Queues an object, unless it is in the queue already.
    pub fn push(&self, object: &Arc<Object>) {
        if FlushQueue::claim(object) {
            self.dirty.lock().push(object.clone());
        }
    }

    /// Marks an object as queued. True if it was not. The caller then queues it with
    /// [`FlushQueue::put_back`].
    pub fn claim(object: &Object) -> bool {
        !object.queued.swap(true, Ordering::AcqRel)
    }

    /// Queues objects that the caller has claimed.
    pub fn put_back(&self, mut claimed: Vec<Arc<Object>>) {
        self.dirty.lock().append(&mut claimed);
    }

    /// All queued objects.
    pub fn take(&self) -> Vec<Arc<Object>> {
        std::mem::take(&mut *self.dirty.lock())
    }

    /// Waits for the end of the flush in progress. No flush runs while the caller holds the turn.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Numbers a use of an object. The object used last has the highest number.
    pub fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the next use.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// The number of objects in the index.
    pub fn indexed(&self) -> u64 {
        self.indexed.load(Ordering::Relaxed)
    }

    /// Adjusts the number of objects in the index. The stored number may be too low after a crash, so it
    /// stops at zero.
    pub fn count_indexed(&self, by: i64) {
        let add = |count: u64| Some(count.saturating_add_signed(by));
        let _ = self.indexed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The index is empty.
    pub fn reset_indexed(&self) {
        self.indexed.store(0, Ordering::Relaxed);
    }
}
