//! The objects whose state was taken over from an earlier process, and whether clients may still reclaim it:
//! see [`crate::adopt`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::table::Object;

/// State held since an earlier process.
#[derive(Debug, Default)]
pub struct Adopting {
    /// Anything at all was adopted.
    any: AtomicBool,
    /// The reclaim phase is over.
    over: AtomicBool,
    /// Notified when it is over.
    ended: Notify,
    objects: Mutex<Vec<Arc<Object>>>,
}

impl Adopting {
    /// Waits until the reclaim phase is over.
    pub async fn ended(&self) {
        loop {
            let notified = self.ended.notified();
            if self.over.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }

    /// Adds an object with adopted state.
    pub fn add(&self, object: Arc<Object>) {
        self.objects.lock().push(object);
        self.note();
    }

    /// An object with adopted state is at rest. The end of the reclaim phase changes nothing of it.
    pub fn note(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// Was anything at all adopted?
    pub fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Is the reclaim phase over?
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends the reclaim phase. Returns the objects with adopted state.
    pub fn end(&self) -> Vec<Arc<Object>> {
        self.over.store(true, Ordering::Release);
        self.ended.notify_waiters();
        std::mem::take(&mut *self.objects.lock())
    }
}
