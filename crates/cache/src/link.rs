//! The link to the origin, as replies have shown it: abilities and limits, pace, and outages.
//!
//! The link holds no objects and makes no calls. Operations record what replies show, and ask before the next
//! call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use vfs::{Features, FsLimits, FsStat, Handle};

use crate::outage::Outage;
use crate::readahead::Pace;

/// The largest number of read-ahead fetches in flight, over all files.
const AHEAD_MAX: usize = 64;

/// The link to the origin.
#[derive(Debug)]
pub struct OriginLink {
    limits: OnceCell<FsLimits>,
    /// The origin has no byte-range locks.
    lockless: AtomicBool,
    /// The layer below has granted a lease on a directory at least once.
    delegates: AtomicBool,
    /// A lease on a new directory was requested once, to learn whether the layer below grants any.
    tried_delegation: AtomicBool,
    pace: Mutex<Pace>,
    /// Twice the bandwidth-delay product, in bytes.
    window_bytes: AtomicU64,
    ahead: Arc<Semaphore>,
    root: Mutex<Option<Handle>>,
    fsstat: Mutex<Option<FsStat>>,
    outage: Arc<Outage>,
}

impl OriginLink {
    /// A link of which nothing is known.
    pub fn new(outage: Outage) -> OriginLink {
        OriginLink {
            limits: OnceCell::new(),
            lockless: AtomicBool::new(false),
            delegates: AtomicBool::new(false),
            tried_delegation: AtomicBool::new(false),
            pace: Mutex::default(),
            window_bytes: AtomicU64::new(0),
            ahead: Arc::new(Semaphore::new(AHEAD_MAX)),
            root: Mutex::new(None),
            fsstat: Mutex::new(None),
            outage: Arc::new(outage),
        }
    }

    /// The limits, if they are known.
    pub fn limits(&self) -> Option<FsLimits> {
        self.limits.get().copied()
    }

    /// The limits, or those that `ask` returns; concurrent callers share one call. `None` if that fails, or
    /// if the limits were known before.
    pub async fn ask_limits<E, F>(&self, ask: impl FnOnce() -> F) -> Option<FsLimits>
    where
        F: Future<Output = Result<FsLimits, E>>,
    {
        if self.limits.initialized() {
            return None;
        }
        self.limits.get_or_try_init(ask).await.ok().copied()
    }

    /// Records the limits, if they are not known yet.
    pub fn learn_limits(&self, limits: FsLimits) {
        let _ = self.limits.set(limits);
    }

    /// Whether the origin offers something. `None` if its limits are not known.
    pub fn offers(&self, features: Features) -> Option<bool> {
        self.limits.get().map(|limits| limits.features.contains(features))
    }

    /// Whether the origin has no byte-range locks.
    pub fn is_lockless(&self) -> bool {
        self.lockless.load(Ordering::Relaxed)
    }

    /// Records that the origin has no byte-range locks. True if that was not known before.
    pub fn learn_lockless(&self) -> bool {
        !self.lockless.swap(true, Ordering::Relaxed)
    }

    /// Whether the layer below has ever granted a lease on a directory.
    pub fn delegates(&self) -> bool {
        self.delegates.load(Ordering::Relaxed)
    }

    /// Records that the layer below grants leases on directories.
    pub fn learn_delegates(&self) {
        self.delegates.store(true, Ordering::Relaxed);
    }

    /// Whether a request for a lease on a directory is worthwhile: the layer below grants them, or this is
    /// the first attempt.
    pub fn may_delegate(&self) -> bool {
        self.delegates() || !self.tried_delegation.swap(true, Ordering::Relaxed)
    }

    /// A call without much data was answered after this time.
    pub fn on_round_trip(&self, time: Duration) {
        self.pace.lock().on_round_trip(time);
    }

    /// Bytes have arrived.
    pub fn on_bytes(&self, bytes: u64) {
        let mut pace = self.pace.lock();
        pace.on_bytes(bytes, Instant::now());
        self.window_bytes.store(pace.window_bytes(), Ordering::Relaxed);
    }

    /// Twice the bandwidth-delay product, in bytes.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes.load(Ordering::Relaxed)
    }

    /// A permit for one read-ahead fetch. `None` if there are enough of them.
    pub fn try_ahead(&self) -> Option<OwnedSemaphorePermit> {
        self.ahead.clone().try_acquire_owned().ok()
    }

    /// The handle of the root, as it was last recorded here.
    pub fn root(&self) -> Option<Handle> {
        *self.root.lock()
    }

    /// Records the handle of the root, or forgets it. Returns the former one.
    pub fn set_root(&self, root: Option<Handle>) -> Option<Handle> {
        std::mem::replace(&mut *self.root.lock(), root)
    }

    /// The latest reply to FSSTAT.
    pub fn fsstat(&self) -> Option<FsStat> {
        *self.fsstat.lock()
    }

    /// Records a reply to FSSTAT.
    pub fn learn_fsstat(&self, stat: FsStat) {
        *self.fsstat.lock() = Some(stat);
    }

    /// Whether the origin answers.
    pub fn outage(&self) -> &Arc<Outage> {
        &self.outage
    }
}
