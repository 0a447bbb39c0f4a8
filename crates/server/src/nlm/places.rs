//! Places for calls to hosts in progress: results of messages, and GRANTED. No address takes all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit of all. Beyond it, a message is lost, as a datagram may be.
const PLACES_MAX: usize = 256;
/// Limit of one address: a host that does not answer must not hold up the others.
const PER_ADDRESS_MAX: usize = 16;

/// The addresses that have a place or wait for one.
type Addresses = Arc<Mutex<HashMap<IpAddr, Arc<Semaphore>>>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    addresses: Addresses,
}

/// A place. Dropping it frees it.
#[derive(Debug)]
pub(super) struct Place {
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    // Last, because the permits refer to it.
    _share: Share,
}

/// The places of one address, as long as anybody uses them.
#[derive(Debug)]
struct Share {
    address: IpAddr,
    places: Arc<Semaphore>,
    addresses: Addresses,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut addresses = self.addresses.lock();
        // The table and this one alone have it: nobody has a place or waits for one.
        if Arc::strong_count(&self.places) <= 2 {
            addresses.remove(&self.address);
        }
    }
}

impl Default for Places {
    fn default() -> Places {
        Places { all: Arc::new(Semaphore::new(PLACES_MAX)), addresses: Addresses::default() }
    }
}

impl Places {
    /// A place for a call to this address, if there is one.
    pub(super) fn try_take(&self, address: IpAddr) -> Option<Place> {
        let share = self.share(address);
        let of_address = share.places.clone().try_acquire_owned().ok()?;
        let of_all = self.all.clone().try_acquire_owned().ok()?;
        Some(Place { _permits: (of_address, of_all), _share: share })
    }

    /// A place for a call to this address, as soon as there is one.
    pub(super) async fn take(&self, address: IpAddr) -> Option<Place> {
        let share = self.share(address);
        let of_address = share.places.clone().acquire_owned().await.ok()?;
        let of_all = self.all.clone().acquire_owned().await.ok()?;
        Some(Place { _permits: (of_address, of_all), _share: share })
    }

    fn share(&self, address: IpAddr) -> Share {
        let mut addresses = self.addresses.lock();
        let places = addresses.entry(address).or_insert_with(|| Arc::new(Semaphore::new(PER_ADDRESS_MAX)));
        Share { address, places: places.clone(), addresses: self.addresses.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::from([192, 0, 2, number as u8])
    }

    #[tokio::test]
    async fn no_address_takes_all_places() {
        let places = Arc::new(Places::default());
        let mut taken: Vec<Place> = (0..99).filter_map(|_| places.try_take(address(1))).collect();
        assert_eq!(taken.len(), PER_ADDRESS_MAX);
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.take(address(1)).await }
        });
        assert!(places.take(address(2)).await.is_some(), "another address");
        taken.pop();
        let place = waiting.await.unwrap().unwrap();
        assert!(places.try_take(address(1)).is_none());
        drop((taken, place));
        let all: Vec<_> = (0..999).filter_map(|number| places.try_take(address(number % 99))).collect();
        assert_eq!(all.len(), PLACES_MAX);
        drop(all);
        assert!(places.addresses.lock().is_empty());
        assert_eq!(places.all.available_permits(), PLACES_MAX);
    }
}
