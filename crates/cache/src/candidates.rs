//! Which partly cached file is completed next, for the [completer](crate::completer). A pure table.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use vfs::Handle;

/// The largest number of files that wait to be completed. Those with the most missing bytes are not
/// remembered.
const CANDIDATES_MAX: usize = 4096;

/// Files of which a part is cached, those with the fewest missing bytes first.
#[derive(Debug, Default)]
pub struct Candidates {
    order: BTreeSet<(u64, u64, Handle)>,
    files: HashMap<Handle, (u64, u64)>,
}

impl Candidates {
    /// Records the number of missing bytes of a file and its size. `None` if the file is not to be completed.
    pub fn note(&mut self, handle: Handle, missing: Option<(u64, u64)>) {
        if let Some((bytes, size)) = self.files.remove(&handle) {
            self.order.remove(&(bytes, size, handle));
        }
        if let Some((bytes, size)) = missing {
            self.files.insert(handle, (bytes, size));
            self.order.insert((bytes, size, handle));
        }
        if self.files.len() > CANDIDATES_MAX
            && let Some((_, _, handle)) = self.order.pop_last()
        {
            self.files.remove(&handle);
        }
    }

    /// The file to complete next.
    pub fn next(&self) -> Option<Handle> {
        self.order.first().map(|(_, _, handle)| *handle)
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

/// The candidates of a cache.
pub type SharedCandidates = Mutex<Candidates>;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle(number: u16) -> Handle {
        Handle::new(&number.to_be_bytes()).unwrap()
    }

    proptest! {
        /// The next file is always the one with the fewest missing bytes, and of two the smaller one.
        #[test]
        fn the_next_needs_least(notes in prop::collection::vec((0..20u16, prop::option::of((1..50u64, 50..99u64))), 0..80)) {
            let (mut candidates, mut model) = (Candidates::default(), HashMap::new());
            for (number, missing) in notes {
                candidates.note(handle(number), missing);
                match missing {
                    Some(missing) => drop(model.insert(handle(number), missing)),
                    None => drop(model.remove(&handle(number))),
                }
                let least = model.iter().map(|(handle, (bytes, size))| (*bytes, *size, *handle)).min();
                prop_assert_eq!(candidates.next(), least.map(|(_, _, handle)| handle));
                prop_assert_eq!(candidates.len(), model.len());
            }
        }
    }

    #[test]
    fn there_are_not_too_many() {
        let mut candidates = Candidates::default();
        for number in (0..5000u16).rev() {
            candidates.note(handle(number), Some((u64::from(number) + 1, 10_000)));
        }
        assert_eq!(candidates.len(), CANDIDATES_MAX);
        assert_eq!(candidates.next(), Some(handle(0)), "those that need most were let go of");
    }
}
