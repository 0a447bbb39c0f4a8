//! The ends of leases, for answers that name their file only when they arrive: those to CREATE and MKDIR.
//!
//! The table of files forgets a file that nothing holds. A CREATE of that file may still be in flight,
//! because a LOOKUP can show the new file before the answer comes. The lease of that answer may have ended
//! since.

use std::collections::HashMap;

use vfs::Handle;

/// The most files whose ends are told apart.
const FILES_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// By file, the number below which requests grant nothing.
    files: HashMap<Handle, u64>,
    /// The same for every file. Covers those that had no space here.
    all: u64,
}

impl Ended {
    /// The lease of a file ends. Requests below `number` grant nothing.
    pub(super) fn insert(&mut self, handle: &Handle, number: u64) {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(handle) {
            self.files.clear();
            self.all = number;
        } else {
            self.files.insert(*handle, number);
        }
    }

    /// May the request of that number grant a lease of the file?
    pub(super) fn grants(&self, handle: &Handle, number: u64) -> bool {
        number >= self.all && self.files.get(handle).is_none_or(|barrier| number >= *barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_room_it_forgets_no_end() {
        let mut ended = Ended::default();
        let handle = |index: usize| Handle::new(&index.to_be_bytes()).unwrap();
        for index in 0..=FILES_MAX {
            ended.insert(&handle(index), 10 + index as u64);
            assert!((0..=index).all(|earlier| !ended.grants(&handle(earlier), 9)), "after {index}");
            assert!(ended.files.len() <= FILES_MAX);
        }
        assert!(ended.grants(&handle(0), 10 + FILES_MAX as u64));
    }
}
