//! Objects at rest: a bounded number of small records in memory.
//!
//! Records that are asked for stay, and records that a scan brings go first (CLOCK-PRO, by `quick_cache`). A
//! record goes when its object comes back to the table, so the two never tell different things.

use std::hash::{BuildHasher, RandomState};

use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, UnitWeighter};
use vfs::Handle;

use crate::object::Resting;

/// The bytes that one record takes, with its share of the tables.
pub const RECORD_BYTES: usize = 256;

/// Two hashes of a handle with secret keys. Nobody can make two handles that share them. If two handles
/// share them by chance, the epoch in the record tells.
type Key = (u64, u64);

/// The records of one shard.
#[derive(Debug)]
pub struct RestingObjects {
    records: Cache<Key, Resting>,
    hashers: (RandomState, RandomState),
}

impl RestingObjects {
    /// For at most so many records.
    pub fn new(records_max: usize) -> RestingObjects {
        let records_max = records_max.max(1);
        let mut options = OptionsBuilder::new();
        // A ghost takes as much memory as a record, and a record that comes back was removed by its object.
        options
            .estimated_items_capacity(records_max)
            .weight_capacity(records_max as u64)
            .ghost_allocation(0.0);
        let options = options.build().expect("both capacities are set");
        let records =
            Cache::with_options(options, UnitWeighter, RandomState::default(), DefaultLifecycle::default());
        RestingObjects { records, hashers: (RandomState::new(), RandomState::new()) }
    }

    /// The record of an object.
    pub fn get(&self, handle: &Handle) -> Option<Resting> {
        self.records.get(&self.key(handle)).copied()
    }

    /// An object comes to rest.
    pub fn insert(&mut self, handle: &Handle, resting: Resting) {
        self.records.insert(self.key(handle), resting);
    }

    /// The object is back in the table.
    pub fn remove(&mut self, handle: &Handle) {
        self.records.remove(&self.key(handle));
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    fn key(&self, handle: &Handle) -> Key {
        (self.hashers.0.hash_one(handle), self.hashers.1.hash_one(handle))
    }
}
