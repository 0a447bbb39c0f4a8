//! Room at the layer below, which keeps something for every file that is open or leased: when there is none for one more,
//! what our clients hold and do not use is called back.
//!
//! The leases that were of use for longest ago are recalled, a few more than there are askers: a file whose lease comes back
//! may be open still, and then that makes no room. Each asker waits until something has gone back below, a lease or an
//! open, and tries again; if there is no room still, more is recalled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::time::timeout_at;
use vfs::Caller;

use super::Shell;

/// Who waits for room, and what they are woken by.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    waiters: AtomicUsize,
    /// Something has gone back below.
    freed: Notify,
}

/// One who waits.
struct Waiter<'s>(&'s Capacity);

impl<'s> Waiter<'s> {
    fn new(capacity: &'s Capacity) -> Waiter<'s> {
        capacity.waiters.fetch_add(1, Ordering::Relaxed);
        Waiter(capacity)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Capacity {
    /// The layer below keeps less than before.
    pub(super) fn is_more(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.freed.notify_waiters();
        }
    }
}

impl Shell {
    /// See [`vfs::FileSystem::free_capacity`].
    pub(crate) async fn free_capacity(self: &Arc<Shell>, caller: &Caller) -> bool {
        let _asker = Waiter::new(&self.capacity);
        let mut freed = std::pin::pin!(self.capacity.freed.notified());
        // From here on nothing is missed.
        freed.as_mut().enable();
        if self.below.free_capacity(caller).await {
            return true;
        }
        let waiters = self.capacity.waiters.load(Ordering::Relaxed);
        self.with(|state, now| state.leases.free_up(now, waiters));
        timeout_at(self.patience_of(caller), freed).await.is_ok()
    }
}
