//! Capacity of the layer below, which keeps state for each open or leased file. If it has none left, the
//! arbiter recalls leases that clients do not use.
//!
//! The arbiter recalls the least recently used leases, a few more than there are waiters. A file whose
//! lease is returned may still be open; then its return frees nothing. Each waiter waits until a lease or
//! an open has been returned below, and tries again. If there is still no capacity, the arbiter recalls
//! more. If leases take no capacity of the layer below, the arbiter recalls those on files that are open.
//! Their holders may keep these opens as long as they have the leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::time::timeout_at;
use vfs::Caller;

use super::Shell;

/// The requests that wait for capacity.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    waiters: AtomicUsize,
    /// A lease or an open was returned to the layer below.
    freed: Notify,
}

/// A waiting request.
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
    /// The layer below keeps less state than before: wakes the waiters.
    pub(super) fn is_more(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.freed.notify_waiters();
        }
    }
}

impl Shell {
    /// See [`vfs::Opens::free_capacity`].
    pub(crate) async fn free_capacity(self: &Arc<Shell>, caller: &Caller) -> bool {
        let _asker = Waiter::new(&self.capacity);
        let mut freed = std::pin::pin!(self.capacity.freed.notified());
        // From now on no notification is missed.
        freed.as_mut().enable();
        if self.below.free_capacity(caller).await {
            return true;
        }
        let waiters = self.capacity.waiters.load(Ordering::Relaxed);
        self.with(|state, now| {
            if self.options.leases_take_capacity {
                state.leases.free_up(now, waiters);
            } else {
                state.leases.free_up_open(now, state.shares.files());
            }
        });
        timeout_at(self.patience_of(caller), freed).await.is_ok()
    }
}
