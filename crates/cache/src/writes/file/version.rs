//! The change attribute of a file with delayed writes.
//!
//! To the origin, a file with delayed writes is modified: its change attribute is one more than at the grant
//! of the lease (RFC 8881, section 10.4.3). That suffices if one client alone reads here. Several clients
//! tell all states of a file apart by this value. So for them it is a hash of what makes the state: the last
//! step here, and the origin's own value. Values of the origin, of other files' records and of earlier
//! processes are others, but for a chance of one in 2^64.

use std::hash::{BuildHasher, RandomState};

/// Which state of the delayed writes of a file is shown.
#[derive(Debug, Default)]
pub struct Version {
    keys: Option<RandomState>,
    /// The number of the record's first write, which no other record has.
    first: u64,
    steps: u64,
}

impl Version {
    /// The state of a new record. With `keys`, which are new in every process, several clients read here.
    pub fn new(keys: Option<RandomState>, first: u64) -> Version {
        Version { keys, first, steps: 0 }
    }

    /// The contents or the attributes that are shown change.
    pub fn step(&mut self) {
        self.steps += 1;
    }

    /// A number of this step that nobody else has. `None` if one client alone reads here.
    pub fn salt(&self) -> Option<u64> {
        self.keys.as_ref().map(|keys| keys.hash_one((self.first, self.steps)))
    }

    /// The change attribute to show, if the origin's is `known`.
    pub fn change(&self, known: u64) -> u64 {
        match &self.keys {
            Some(keys) => keys.hash_one((self.first, self.steps, known)),
            None => known.wrapping_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_state_has_a_change_attribute_of_its_own_if_several_clients_read() {
        let keys = RandomState::new();
        let mut seen = HashSet::from([7]);
        for first in [1 << 32, 2 << 32] {
            let mut version = Version::new(Some(keys.clone()), first);
            for _ in 0..100 {
                version.step();
                assert_eq!(version.change(7), version.change(7));
                assert!(seen.insert(version.change(7)));
                assert!(seen.insert(version.change(8)));
            }
        }
    }

    #[test]
    fn one_client_is_told_of_a_modification() {
        let mut version = Version::new(None, 0);
        version.step();
        assert_eq!(version.change(7), 8);
    }
}
