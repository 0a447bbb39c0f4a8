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
pub(super) struct Room {
    askers: AtomicUsize,
    /// Something has gone back below.
    freed: Notify,
}

/// One who waits.
struct Asker<'s>(&'s Room);

impl<'s> Asker<'s> {
    fn new(room: &'s Room) -> Asker<'s> {
        room.askers.fetch_add(1, Ordering::Relaxed);
        Asker(room)
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.0.askers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    /// The layer below keeps less than before.
    pub(super) fn is_more(&self) {
        if self.askers.load(Ordering::Relaxed) > 0 {
            self.freed.notify_waiters();
        }
    }
}

impl Shell {
    /// See [`vfs::FileSystem::make_room`].
    pub(crate) async fn make_room(self: &Arc<Shell>, caller: &Caller) -> bool {
        let _asker = Asker::new(&self.room);
        let mut freed = std::pin::pin!(self.room.freed.notified());
        // From here on nothing is missed.
        freed.as_mut().enable();
        if self.below.make_room(caller).await {
            return true;
        }
        let askers = self.room.askers.load(Ordering::Relaxed);
        self.with(|state, now| state.leases.free_up(now, askers));
        timeout_at(self.patience_of(caller), freed).await.is_ok()
    }
}
