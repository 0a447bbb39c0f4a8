//! About the memory that the tables take, for metrics.
//!
//! It is what their entries take, with the space that a hash table keeps free, and the replies that sessions
//! keep. What entries refer to (names, handles, credentials) is shared by several, and is not counted.

use std::collections::HashMap;

/// Bytes of the tables of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Records of clients.
    pub clients: usize,
    /// Sessions, without their replies.
    pub sessions: usize,
    /// Replies that sessions keep for a retry.
    pub replies: usize,
    /// Opens, locks and delegations.
    pub states: usize,
    /// Open owners and lock owners of minor version 0.
    pub owners: usize,
}

impl Footprint {
    /// Each table, by its name in the metrics.
    pub fn by_table(&self) -> [(&'static str, usize); 5] {
        let Footprint { clients, sessions, replies, states, owners } = *self;
        [
            ("clients", clients),
            ("sessions", sessions),
            ("replies", replies),
            ("states", states),
            ("owners", owners),
        ]
    }
}

/// Bytes of a hash table without what its entries refer to.
pub(crate) fn of_map<K, V>(map: &HashMap<K, V>) -> usize {
    // A table of a power of two is filled to seven eighths, and has a byte of control for each place.
    let places = if map.capacity() == 0 { 0 } else { (map.capacity() * 8 / 7).next_power_of_two() };
    places * (size_of::<(K, V)>() + 1)
}
