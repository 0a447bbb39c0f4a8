//! Read-ahead in directories: the walks of readers, and how many guesses are in flight. [`crate::guesses`]
//! makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use vfs::Handle;

use crate::companions::Companions;
use crate::singleflight::Singleflight;
use crate::walk::Walks;

/// The largest number of guesses in flight: half of the slots that a session has.
pub const IN_FLIGHT_MAX: usize = 32;
/// How long the end of the process waits for guesses in flight.
const END_MAX: Duration = Duration::from_secs(2);

/// Read-ahead in directories.
#[derive(Debug)]
pub struct Prefetch {
    walks: Mutex<Walks>,
    permits: Arc<Semaphore>,
    listings: Singleflight<Handle>,
    companions: Companions,
    stopped: AtomicBool,
}

impl Prefetch {
    /// Read-ahead of so many bytes at most. `None` if there is to be none.
    pub fn new(bytes_max: u64) -> Option<Prefetch> {
        (bytes_max > 0).then(|| Prefetch {
            walks: Mutex::new(Walks::new(bytes_max)),
            permits: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            listings: Singleflight::default(),
            companions: Companions::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// The walks of readers.
    pub fn walks(&self) -> MutexGuard<'_, Walks> {
        self.walks.lock()
    }

    /// Listings that are guessed now.
    pub fn listings(&self) -> &Singleflight<Handle> {
        &self.listings
    }

    /// Files that are opened together.
    pub fn companions(&self) -> &Companions {
        &self.companions
    }

    /// The permits for the guesses that may be made now, one for each.
    pub fn permits_now(&self) -> Vec<OwnedSemaphorePermit> {
        if self.stopped.load(Ordering::Acquire) {
            return Vec::new();
        }
        std::iter::from_fn(|| self.permits.clone().try_acquire_owned().ok()).collect()
    }

    /// Permits for `count` calls that a user has ordered ahead of readers. They are those of guesses: the two
    /// together have half of the slots. `None` if the process is about to end.
    pub async fn permits(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        let permits = self.permits.clone().acquire_many_owned(count.min(IN_FLIGHT_MAX as u32)).await.ok()?;
        (!self.stopped.load(Ordering::Acquire)).then_some(permits)
    }

    /// Makes no guesses from now on.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.walks.lock().clear();
    }

    /// The same, and waits for the guesses in flight, but not for an origin that does not answer.
    pub async fn end(&self) {
        self.stop();
        let _ = timeout(END_MAX, self.permits.acquire_many(IN_FLIGHT_MAX as u32)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_permit_is_given_to_one_maker_of_guesses() {
        let prefetch = Prefetch::new(1 << 20).unwrap();
        let mut permits = prefetch.permits_now();
        assert_eq!(permits.len(), IN_FLIGHT_MAX);
        assert!(prefetch.permits_now().is_empty());
        permits.truncate(IN_FLIGHT_MAX - 3);
        assert_eq!(prefetch.permits_now().len(), 3);
        prefetch.stop();
        assert!(prefetch.permits_now().is_empty());
    }
}
