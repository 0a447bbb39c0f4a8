//! The opens at the origin that only a lease keeps: a bounded queue, by time of use approximately.
//!
//! A server bounds the opens of a client (RFC 8881 leaves the number to it; `serve` has 131,072), and each
//! takes memory there. So beyond a number, the cache closes those that were unused for longest and keeps the
//! leases. The next open of such a file costs an OPEN; its data and attributes stay valid.
//!
//! The state of the file tells whether it is in the queue (`opens::Opens::note_kept`), so that it is entered
//! once. An open that ended otherwise leaves its entry, which then names nothing to close.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vfs::{Handle, SharedHandle};

/// Entries that are looked at before others may use the queue.
const LOOKS_MAX: usize = 256;

/// Files with an open at the origin that only a lease keeps.
#[derive(Debug, Default)]
pub struct KeptOpens {
    /// Each file, and its last use when it was entered.
    queue: Mutex<VecDeque<(SharedHandle, Option<u64>)>>,
    closing: AtomicBool,
}

/// Surplus opens are being closed, until this is dropped.
pub struct Closing<'k>(&'k KeptOpens);

impl KeptOpens {
    /// Enters a file. Returns the number of entries.
    pub fn push(&self, file: SharedHandle, used: Option<u64>) -> usize {
        let mut queue = self.queue.lock();
        queue.push_back((file, used));
        queue.len()
    }

    /// Is surplus being closed?
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Begins to close what is too much. `None` if that is in progress.
    pub fn begin_closing(&self) -> Option<Closing<'_>> {
        (!self.closing.swap(true, Ordering::AcqRel)).then_some(Closing(self))
    }
}

impl Closing<'_> {
    /// Removes files from the queue until `keep` are left. A file that was used since it was entered gets
    /// another turn, once around the queue.
    pub fn beyond(&self, keep: usize, last_use: impl Fn(&Handle) -> Option<u64>) -> Vec<SharedHandle> {
        let mut chosen = Vec::new();
        let mut looks = self.0.queue.lock().len() * 2;
        while looks > 0 {
            let mut queue = self.0.queue.lock();
            for _ in 0..looks.min(LOOKS_MAX) {
                if queue.len() <= keep {
                    return chosen;
                }
                let Some((file, entered)) = queue.pop_front() else { return chosen };
                match last_use(&file.handle()) {
                    used if used > entered => queue.push_back((file, used)),
                    _ => chosen.push(file),
                }
            }
            looks = looks.saturating_sub(LOOKS_MAX);
        }
        chosen
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u8) -> Handle {
        Handle::new(&[number]).unwrap()
    }

    #[test]
    fn what_was_unused_for_longest_is_chosen_and_what_was_used_since_is_not() {
        let kept = KeptOpens::default();
        for number in 0..10 {
            kept.push(SharedHandle::from(&handle(number)), Some(number.into()));
        }
        let closing = kept.begin_closing().unwrap();
        assert!(kept.begin_closing().is_none(), "one at a time");
        // Numbers 0 and 2 were used since.
        let last_use = |of: &Handle| match of.as_bytes()[0] {
            0 => Some(100),
            2 => Some(101),
            other => Some(other.into()),
        };
        let chosen = |keep| -> Vec<u8> {
            closing.beyond(keep, last_use).iter().map(|file| file.handle().as_bytes()[0]).collect()
        };
        assert_eq!(chosen(7), [1, 3, 4]);
        assert_eq!(chosen(7), []);
        assert_eq!(chosen(1), [5, 6, 7, 8, 9, 0]);
        drop(closing);
        assert!(kept.begin_closing().is_some());
    }
}
