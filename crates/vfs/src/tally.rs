//! The keys that are used most: counts by key, within a bound of memory.
//!
//! The keys that were used least go when there are too many, as in the batches of Misra and Gries (1982). So
//! a key that is used much stays, and one that is used a few times may be forgotten. Each time keys go, the
//! past of the others weighs half: what was used yesterday gives way to what is used now.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

/// How often something was used, and how much of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Calls, of any kind.
    pub calls: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl Used {
    /// One call that read or wrote nothing.
    pub const CALL: Used = Used { calls: 1, read_bytes: 0, written_bytes: 0 };

    /// Bytes that were read, by a call that is counted elsewhere.
    pub fn read(bytes: usize) -> Used {
        Used { read_bytes: bytes as u64, ..Used::default() }
    }

    /// Bytes that were written, by a call that is counted elsewhere.
    pub fn written(bytes: usize) -> Used {
        Used { written_bytes: bytes as u64, ..Used::default() }
    }

    /// The same, with a call.
    #[must_use]
    pub fn with_call(self) -> Used {
        Used { calls: self.calls + 1, ..self }
    }

    fn add(&mut self, more: Used) {
        self.calls += more.calls;
        self.read_bytes += more.read_bytes;
        self.written_bytes += more.written_bytes;
    }

    /// What decides who stays. A page of data weighs as much as a call.
    fn weight(&self) -> u64 {
        self.calls + (self.read_bytes + self.written_bytes) / 4096
    }
}

#[derive(Debug)]
struct Entry {
    used: Used,
    /// The weight of what was used lately.
    lately: u64,
}

/// Counts by key.
#[derive(Debug)]
pub struct Tally<K> {
    entries: Mutex<HashMap<K, Entry>>,
    keys_max: usize,
}

/// The keys that a tally keeps at least, by default.
const KEYS_MAX: usize = 256;

impl<K: Eq + Hash + Clone> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally::new(KEYS_MAX)
    }
}

impl<K: Eq + Hash + Clone> Tally<K> {
    /// Keeps at least the `keys_max` keys that are used most, and twice as many at most.
    pub fn new(keys_max: usize) -> Tally<K> {
        Tally { entries: Mutex::default(), keys_max: keys_max.max(1) }
    }

    /// Counts a use.
    pub fn add(&self, key: &K, used: Used) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(key) {
            entry.used.add(used);
            entry.lately += used.weight();
            return;
        }
        if entries.len() >= 2 * self.keys_max {
            drop_half(&mut entries, self.keys_max);
        }
        entries.insert(key.clone(), Entry { used, lately: used.weight() });
    }

    /// All keys that are kept, with their counts since then.
    pub fn counts(&self) -> Vec<(K, Used)> {
        self.entries.lock().iter().map(|(key, entry)| (key.clone(), entry.used)).collect()
    }
}

fn drop_half<K: Eq + Hash + Clone>(entries: &mut HashMap<K, Entry>, keys_max: usize) {
    let mut order: Vec<(u64, K)> = entries.iter().map(|(key, entry)| (entry.lately, key.clone())).collect();
    order.select_nth_unstable_by_key(keys_max, |(lately, _)| std::cmp::Reverse(*lately));
    for (_, key) in order.drain(keys_max..) {
        entries.remove(&key);
    }
    entries.values_mut().for_each(|entry| entry.lately /= 2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_much_stays_among_what_is_used_once() {
        let tally = Tally::new(10);
        for number in 0..100_000u32 {
            tally.add(&number, Used::CALL);
            tally.add(&(1_000_000 + number % 5), Used::read(100).with_call());
        }
        let counts = tally.counts();
        assert!(counts.len() <= 20);
        let much: Vec<Used> =
            counts.iter().filter(|(key, _)| *key >= 1_000_000).map(|(_, used)| *used).collect();
        assert_eq!(much, [Used { calls: 20_000, read_bytes: 2_000_000, written_bytes: 0 }; 5]);
    }

    #[test]
    fn the_past_gives_way() {
        let tally = Tally::new(2);
        (0..1000).for_each(|_| tally.add(&"yesterday", Used::CALL));
        for round in 0..200 {
            for key in ["a", "b"] {
                (0..10).for_each(|_| tally.add(&key, Used::CALL));
            }
            tally.add(&["c", "d", "e"][round % 3], Used::CALL);
        }
        assert!(tally.counts().iter().all(|(key, _)| *key != "yesterday"), "{:?}", tally.counts());
    }
}
