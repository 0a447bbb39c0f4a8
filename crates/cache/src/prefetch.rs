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

/// The number of guesses in flight, before it is known how many requests the origin takes at a time.
pub const IN_FLIGHT: usize = 32;
/// The bounds of that number. An order needs as many as the lower one.
const IN_FLIGHT_MIN: usize = 8;
const IN_FLIGHT_MAX: usize = 128;
/// How long a call waits for a listing that it can do without. The origin may delay a listing for the sake of
/// one file in it, until another client has returned a lease.
pub const LISTING_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for guesses in flight.
const END_MAX: Duration = Duration::from_secs(2);

/// Read-ahead in directories.
#[derive(Debug)]
pub struct Prefetch {
    walks: Mutex<Walks>,
    permits: Arc<Semaphore>,
    /// The number of permits, those that are out included.
    in_flight_max: Mutex<usize>,
    listings: Singleflight<Handle>,
    companions: Companions,
    stopped: AtomicBool,
}

impl Prefetch {
    /// Read-ahead of so many bytes at most. `None` if there is to be none.
    pub fn new(bytes_max: u64) -> Option<Prefetch> {
        (bytes_max > 0).then(|| Prefetch {
            walks: Mutex::new(Walks::new(bytes_max)),
            permits: Arc::new(Semaphore::new(IN_FLIGHT)),
            in_flight_max: Mutex::new(IN_FLIGHT),
            listings: Singleflight::default(),
            companions: Companions::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// The walks of readers.
    pub fn walks(&self) -> MutexGuard<'_, Walks> {
        self.walks.lock()
    }

    /// The origin takes so many requests at a time: half of them may be guesses. A listing may need a second
    /// one at first.
    pub fn fit_to(&self, concurrent_max: u32) {
        let wanted = (concurrent_max as usize / 2).clamp(IN_FLIGHT_MIN, IN_FLIGHT_MAX);
        let mut in_flight_max = self.in_flight_max.lock();
        if wanted > *in_flight_max {
            self.permits.add_permits(wanted - *in_flight_max);
            *in_flight_max = wanted;
        } else {
            // Those that are out stay out; the next call takes the rest away.
            *in_flight_max -= self.permits.forget_permits(*in_flight_max - wanted);
        }
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
        let permits = self.permits.clone().acquire_many_owned(count.min(IN_FLIGHT_MIN as u32)).await.ok()?;
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
        let all = *self.in_flight_max.lock() as u32;
        let _ = timeout(END_MAX, self.permits.acquire_many(all)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_permit_is_given_to_one_maker_of_guesses() {
        let prefetch = Prefetch::new(1 << 20).unwrap();
        let mut permits = prefetch.permits_now();
        assert_eq!(permits.len(), IN_FLIGHT);
        assert!(prefetch.permits_now().is_empty());
        permits.truncate(IN_FLIGHT - 3);
        assert_eq!(prefetch.permits_now().len(), 3);
        prefetch.stop();
        assert!(prefetch.permits_now().is_empty());
    }
    #[test]
    fn guesses_have_half_of_what_the_origin_takes() {
        let prefetch = Prefetch::new(1 << 20).unwrap();
        let free = || prefetch.permits_now().len();
        for (concurrent_max, guesses) in [(512, 128), (100_000, 128), (64, 32), (16, 8), (1, 8), (0, 8)] {
            prefetch.fit_to(concurrent_max);
            assert_eq!(free(), guesses, "of {concurrent_max}");
        }
        prefetch.fit_to(512);
        let out = prefetch.permits_now();
        prefetch.fit_to(64);
        drop(out);
        prefetch.fit_to(64);
        assert_eq!(free(), 32, "those that were out are taken away later");
    }
}
