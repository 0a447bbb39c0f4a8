//! Node numbers that the kernel has forgotten, with their files; the most recent ones only.
//!
//! A file handle that a program holds contains a node number and outlives the kernel's node
//! (name_to_handle_at(2)). To use it, the kernel looks up `.` in that number and expects the same number
//! back. If the number is no longer remembered, the program gets ESTALE, as for a removed file.
//!
//! Promise: opens-by-file-handle

use std::collections::{BTreeMap, HashMap};

use vfs::Handle;

/// Limit of remembered numbers; each takes about 400 bytes.
const NUMBERS_MAX: usize = 16_384;

/// Numbers that the kernel has forgotten.
#[derive(Debug, Default)]
pub struct Forgotten {
    numbers: HashMap<u64, (Handle, Turn)>,
    files: HashMap<Handle, u64>,
    order: BTreeMap<Turn, u64>,
    next: Turn,
}

/// A sequence number: the order in which numbers were forgotten.
type Turn = u64;

impl Forgotten {
    /// Records a number that the kernel has forgotten.
    pub fn insert(&mut self, number: u64, file: Handle) {
        // A retired node and its successor belong to the same file; only the latest number is kept.
        self.take(&file);
        self.numbers.insert(number, (file, self.next));
        self.files.insert(file, number);
        self.order.insert(self.next, number);
        self.next += 1;
        if self.order.len() > NUMBERS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
            && let Some((file, _)) = self.numbers.remove(&oldest)
        {
            self.files.remove(&file);
        }
    }

    /// Takes the number of a file, which is in use again.
    pub fn take(&mut self, file: &Handle) -> Option<u64> {
        let number = self.files.remove(file)?;
        if let Some((_, turn)) = self.numbers.remove(&number) {
            self.order.remove(&turn);
        }
        Some(number)
    }

    /// The file of a forgotten number.
    pub fn file_of(&self, number: u64) -> Option<Handle> {
        self.numbers.get(&number).map(|(file, _)| *file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(n: usize) -> Handle {
        Handle::new(&n.to_be_bytes()).unwrap()
    }

    #[test]
    fn the_last_of_them_are_remembered() {
        let mut forgotten = Forgotten::default();
        for n in 0..NUMBERS_MAX + 10 {
            forgotten.insert(n as u64, file(n));
        }
        assert_eq!(forgotten.file_of(9), None);
        assert_eq!(forgotten.file_of(10), Some(file(10)));
        assert_eq!((forgotten.take(&file(9)), forgotten.take(&file(10))), (None, Some(10)));
        assert_eq!(forgotten.file_of(10), None, "it is in use");
        let (files, numbers, order) = (forgotten.files.len(), forgotten.numbers.len(), forgotten.order.len());
        assert_eq!([files, numbers, order], [NUMBERS_MAX - 1; 3]);
    }

    #[test]
    fn a_file_that_comes_and_goes_takes_one_place() {
        let mut forgotten = Forgotten::default();
        forgotten.insert(1, file(1));
        for _ in 0..3 * NUMBERS_MAX {
            forgotten.insert(7, file(7));
            assert_eq!(forgotten.take(&file(7)), Some(7));
        }
        forgotten.insert(7, file(7));
        forgotten.insert(8, file(7));
        assert_eq!((forgotten.file_of(7), forgotten.file_of(8)), (None, Some(file(7))));
        assert_eq!((forgotten.file_of(1), forgotten.order.len()), (Some(file(1)), 2));
    }
}
