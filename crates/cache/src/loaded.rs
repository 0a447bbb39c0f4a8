//! The complete listings in memory, whose bytes are limited. All of them are in the index too.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::table::Object;

/// Most bytes of all listings in memory: 64 MiB have about a million entries.
const LOADED_BYTES_MAX: usize = 64 << 20;

/// The listings in memory, whose number is limited.
#[derive(Debug, Default)]
pub struct LoadedListings(Mutex<Loaded>);

#[derive(Debug, Default)]
struct Loaded {
    /// The directory and the bytes of its listing.
    queue: VecDeque<(Weak<Object>, usize)>,
    bytes: usize,
}

impl LoadedListings {
    /// The bytes of all listings in memory, at most: some may have been dropped since.
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// Adds a listing of so many bytes. If there are too many, drops the oldest ones from memory. They are
    /// still in the index.
    pub fn loaded(&self, object: &Arc<Object>, bytes: usize) {
        let mut loaded = self.0.lock();
        loaded.queue.push_back((Arc::downgrade(object), bytes));
        loaded.bytes += bytes;
        let mut gone = Vec::new();
        while loaded.bytes > LOADED_BYTES_MAX && loaded.queue.len() > 1 {
            let Some((object, bytes)) = loaded.queue.pop_front() else { break };
            loaded.bytes -= bytes;
            gone.extend(object.upgrade());
        }
        drop(loaded);
        for other in gone.into_iter().filter(|other| !Arc::ptr_eq(other, object)) {
            if let Some(listing) = &mut other.state.lock().names.listing {
                listing.complete = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Handle;

    #[test]
    fn the_bytes_in_memory_are_limited() {
        let policy = crate::policy::Policy::new(&crate::Options::new("d", "nfs://origin/export"), 1);
        let state = crate::object::ObjectState::new(&policy);
        let object = Arc::new(Object::new(Handle::new(b"d").unwrap(), state, 0));
        let listings = LoadedListings::default();
        for _ in 0..100 {
            listings.loaded(&object, LOADED_BYTES_MAX / 64);
        }
        assert_eq!(listings.0.lock().queue.len(), 64);
        listings.loaded(&object, LOADED_BYTES_MAX);
        assert_eq!(listings.0.lock().queue.len(), 1);
    }
}
