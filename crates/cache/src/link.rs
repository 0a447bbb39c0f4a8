//! The link to the origin, as replies have shown it: abilities and limits, pace, and outages.
//!
//! The link holds no objects and makes no calls. Operations record what replies show, and ask before the next
//! call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use vfs::{Features, FsLimits, FsStat, Handle};

use crate::outage::Outage;
use crate::pace::Pace;

/// The key in the index that is present if the origin refuses leases on directories.
pub const REFUSES: &[u8] = b"refuses-directory-leases";
/// The unit in which read-ahead is counted.
const AHEAD_UNIT_BYTES: u64 = 4 << 10;

/// After so many refusals of leases on directories, calls for other reasons request none.
const REFUSALS_MAX: u32 = 4;

/// The units that so many bytes take.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(AHEAD_UNIT_BYTES)).unwrap_or(u32::MAX)
}

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
    /// Leases on directories that the layer below has refused, before it granted any.
    refused_delegations: AtomicU32,
    pace: Mutex<Pace>,
    /// Bytes in flight that fill the link with READs.
    read_window_bytes: AtomicU64,
    /// The capacity for read-ahead over all files, in units of [`AHEAD_UNIT_BYTES`].
    ahead: Arc<Semaphore>,
    root: Mutex<Option<Handle>>,
    fsstat: Mutex<Option<FsStat>>,
    outage: Arc<Outage>,
}

impl OriginLink {
    /// A link of which nothing is known, except whether the origin `refuses` leases on directories. At most
    /// so many bytes are read ahead at a time, over all files.
    pub fn new(outage: Outage, ahead_max_bytes: u64, refuses: bool) -> OriginLink {
        OriginLink {
            limits: OnceCell::new(),
            lockless: AtomicBool::new(false),
            delegates: AtomicBool::new(false),
            tried_delegation: AtomicBool::new(false),
            refused_delegations: AtomicU32::new(if refuses { REFUSALS_MAX } else { 0 }),
            pace: Mutex::default(),
            read_window_bytes: AtomicU64::new(0),
            ahead: Arc::new(Semaphore::new(units(ahead_max_bytes) as usize)),
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

    /// Whether the layer below grants leases on directories, or has not refused often.
    pub fn may_bring_delegation(&self) -> bool {
        self.delegates() || self.refused_delegations.load(Ordering::Relaxed) < REFUSALS_MAX
    }

    /// Records that the layer below has refused a lease on a directory. True if it seems to refuse all, from
    /// this refusal on.
    pub fn learn_refusal(&self) -> bool {
        self.refused_delegations.fetch_add(1, Ordering::Relaxed) + 1 == REFUSALS_MAX && !self.delegates()
    }

    /// Records that the layer below has granted a lease on a directory. True if it seemed to refuse all.
    pub fn forget_refusals(&self) -> bool {
        self.refused_delegations.swap(0, Ordering::Relaxed) >= REFUSALS_MAX
    }

    /// A call without much data was answered after this time.
    pub fn on_round_trip(&self, time: Duration) {
        self.pace.lock().on_round_trip(time, Instant::now());
    }

    /// Bytes have arrived.
    pub fn on_read(&self, bytes: u64) {
        let window = self.pace.lock().on_read(bytes, Instant::now());
        self.read_window_bytes.store(window, Ordering::Relaxed);
    }

    /// The origin has taken bytes of ours. Returns how many bytes in flight fill the link.
    pub fn on_written(&self, bytes: u64) -> u64 {
        self.pace.lock().on_written(bytes, Instant::now())
    }

    /// Bytes in flight that fill the link with READs.
    pub fn read_window_bytes(&self) -> u64 {
        self.read_window_bytes.load(Ordering::Relaxed)
    }

    /// Bytes for which [`OriginLink::try_ahead`] may give permits now.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead.available_permits() as u64 * AHEAD_UNIT_BYTES
    }

    /// A permit to read so many bytes ahead. `None` if as much as is allowed is in flight.
    pub fn try_ahead(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        self.ahead.clone().try_acquire_many_owned(units(bytes)).ok()
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
