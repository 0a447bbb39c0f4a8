//! The complete listings in memory, whose entries are limited. All of them are in the index too.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::table::Object;

/// Most entries of all listings in memory.
const LOADED_ENTRIES_MAX: usize = 500_000;

/// The listings in memory, whose number is limited.
#[derive(Debug, Default)]
pub struct LoadedListings(Mutex<Loaded>);

#[derive(Debug, Default)]
struct Loaded {
    /// The directory and the number of its entries, plus one, so that empty listings count too.
    queue: VecDeque<(Weak<Object>, usize)>,
    entries: usize,
}

impl LoadedListings {
    /// Adds a listing. If there are too many, drops the oldest ones from memory. They are still in the
    /// index.
    pub fn loaded(&self, object: &Arc<Object>, entries: usize) {
        let mut loaded = self.0.lock();
        let entries = entries + 1;
        loaded.queue.push_back((Arc::downgrade(object), entries));
        loaded.entries += entries;
        let mut gone = Vec::new();
        while loaded.entries > LOADED_ENTRIES_MAX && loaded.queue.len() > 1 {
            let Some((object, entries)) = loaded.queue.pop_front() else { break };
            loaded.entries -= entries;
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
    fn empty_directories_take_up_room_too() {
        let policy = crate::policy::Policy::new(&crate::Options::new("d", "nfs://origin/export"), 1);
        let state = crate::object::ObjectState::new(&policy);
        let object = Arc::new(Object::new(Handle::new(b"d").unwrap(), state, 0));
        let listings = LoadedListings::default();
        for _ in 0..LOADED_ENTRIES_MAX + 100 {
            listings.loaded(&object, 0);
        }
        assert_eq!(listings.0.lock().queue.len(), LOADED_ENTRIES_MAX);
        listings.loaded(&object, LOADED_ENTRIES_MAX);
        assert_eq!(listings.0.lock().queue.len(), 1);
    }
}
