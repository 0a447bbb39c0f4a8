//! Read-ahead in directories: the walks of readers, and how many guesses are in flight. [`crate::guesses`]
//! makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use vfs::Handle;

use crate::singleflight::Singleflight;
use crate::walk::Walks;

/// The largest number of guesses in flight: half of the slots that a session has.
const IN_FLIGHT_MAX: usize = 32;
/// How long the end of the process waits for guesses in flight.
const END_MAX: Duration = Duration::from_secs(2);

/// Read-ahead in directories.
#[derive(Debug)]
pub struct Prefetch {
    walks: Mutex<Walks>,
    permits: Arc<Semaphore>,
    listings: Singleflight<Handle>,
    stopped: AtomicBool,
}

impl Prefetch {
    /// Read-ahead of so many bytes at most. `None` if there is to be none.
    pub fn new(bytes_max: u64) -> Option<Prefetch> {
        (bytes_max > 0).then(|| Prefetch {
            walks: Mutex::new(Walks::new(bytes_max)),
            permits: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            listings: Singleflight::default(),
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

    /// How many guesses may be made now.
    pub fn free(&self) -> usize {
        if self.stopped.load(Ordering::Acquire) { 0 } else { self.permits.available_permits() }
    }

    /// A permit for one guess. `None` if there are enough of them.
    pub fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
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
