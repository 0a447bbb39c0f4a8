//! Signals between operations that store data and the cleaner that evicts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether data may be stored, and whether the cleaner has work.
#[derive(Debug, Default)]
pub struct StoreGate {
    wake: Arc<Notify>,
    eased: Arc<Notify>,
    /// The last cleaning neither reached the soft limit nor freed anything.
    over_limit: AtomicBool,
    /// The hard limit is reached: nothing is stored until usage is below the soft limit.
    paused: AtomicBool,
    /// The cleaner is running.
    cleaning: AtomicBool,
}

impl StoreGate {
    /// Wakes the cleaner.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Notified when the cleaner is to start.
    pub fn woken(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Notified when data that was kept may be evicted: the cleaner tries again at once.
    pub fn eased(&self) -> Arc<Notify> {
        self.eased.clone()
    }

    /// Data that was kept may be evicted, or was dropped.
    pub fn ease(&self) {
        self.set_over_limit(false);
        self.eased.notify_one();
    }

    /// Whether the last cleaning failed to free anything.
    pub fn is_over_limit(&self) -> bool {
        self.over_limit.load(Ordering::Relaxed)
    }

    /// Records the outcome of a cleaning.
    pub fn set_over_limit(&self, over: bool) {
        self.over_limit.store(over, Ordering::Relaxed);
    }

    /// Whether nothing is stored for now.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Nothing is stored until [`StoreGate::resume`].
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Data is stored again.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::Relaxed);
    }

    /// Whether the cleaner is running.
    pub fn is_cleaning(&self) -> bool {
        self.cleaning.load(Ordering::Relaxed)
    }

    /// The cleaner begins or ends.
    pub fn set_cleaning(&self, cleaning: bool) {
        self.cleaning.store(cleaning, Ordering::Relaxed);
    }
}
