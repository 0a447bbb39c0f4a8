//! Objects at rest: a bounded number of small records in memory.
//!
//! Records that are asked for stay, and records that a scan brings go first (CLOCK-PRO, by `quick_cache`). A
//! record goes when its object comes back to the table, so the two never tell different things. A lease at
//! rest goes only then; the number of leases has its own limit.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, UnitWeighter};
use vfs::{Handle, OpenId};

use crate::object::{AtRest, Resting, RestingLease};

/// The bytes that one record takes, with its share of the tables.
pub const RECORD_BYTES: usize = 256;
// The share of the tables is up to 32 bytes.
const _: () = assert!(size_of::<(Key, Resting)>() + 32 <= RECORD_BYTES);

/// Two hashes of a handle with secret keys. Nobody can make two handles that share them. If two handles
/// share them by chance, the epoch in the record tells.
type Key = (u64, u64);

/// The records of one shard.
#[derive(Debug)]
pub struct RestingObjects {
    records: Cache<Key, Resting>,
    leases: HashMap<Key, (u64, RestingLease)>,
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
        RestingObjects { records, leases: HashMap::new(), hashers: (RandomState::new(), RandomState::new()) }
    }

    /// The known state of an object, if it rests. If it has a lease, its last use is now `used`.
    pub fn known(&mut self, handle: &Handle, used: Option<u64>) -> Option<Resting> {
        let key = self.key(handle);
        let known = self.records.get(&key).copied()?;
        let lease = if self.leases.is_empty() { None } else { self.leases.get_mut(&key) };
        let leased = lease.is_some();
        if let (Some((last, _)), Some(used)) = (lease, used) {
            *last = used;
        }
        Some(known.under_lease(leased))
    }

    /// Everything that rests of an object.
    pub fn get(&self, handle: &Handle) -> AtRest {
        let key = self.key(handle);
        let (used, lease) = self.leases.get(&key).cloned().unzip();
        AtRest { known: self.records.get(&key).copied(), lease, used: used.unwrap_or(0) }
    }

    /// An object comes to rest.
    pub fn insert(&mut self, handle: &Handle, at_rest: AtRest) {
        let key = self.key(handle);
        if let Some(known) = at_rest.known {
            self.records.insert(key, known);
        }
        if let Some(lease) = at_rest.lease {
            self.leases.insert(key, (at_rest.used, lease));
        }
    }

    /// The object is back in the table.
    pub fn remove(&mut self, handle: &Handle) {
        let key = self.key(handle);
        self.records.remove(&key);
        self.leases.remove(&key);
    }

    /// The last use of an object with a lease.
    pub fn last_use(&self, handle: &Handle) -> Option<u64> {
        self.leases.get(&self.key(handle)).map(|(used, _)| *used)
    }

    /// The same, if the lease keeps this open at the origin.
    pub fn last_use_of_open(&self, handle: &Handle, open: OpenId) -> Option<u64> {
        self.leases.get(&self.key(handle)).filter(|(_, lease)| lease.keeps(open)).map(|(used, _)| *used)
    }

    /// Does an object rest whose lease the layer above holds?
    pub fn is_given(&self, handle: &Handle) -> bool {
        self.leases.get(&self.key(handle)).is_some_and(|(_, lease)| lease.is_given())
    }

    /// All leases at rest.
    pub fn leases(&self) -> impl Iterator<Item = &RestingLease> {
        self.leases.values().map(|(_, lease)| lease)
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    fn key(&self, handle: &Handle) -> Key {
        (self.hashers.0.hash_one(handle), self.hashers.1.hash_one(handle))
    }
}
