//! The opens at the origin that only a lease keeps: a bounded queue, by time of use approximately.
//!
//! A server bounds the opens of a client (RFC 8881 leaves the number to it; `serve` has 131,072), and each
//! takes memory there. So beyond a number, the cache closes those that were unused for longest and keeps the
//! leases. The next open of such a file costs an OPEN; its data and attributes stay valid.
//!
//! The state of the file tells whether its open is in the queue (`opens::Opens::note_kept`), so that it is
//! entered once. An open that ended otherwise leaves its entry until the next look through the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vfs::{Handle, OpenId, SharedHandle};

/// Entries that are looked at before others may use the queue.
const LOOKS_MAX: usize = 256;

/// Files with an open at the origin that only a lease keeps.
#[derive(Debug, Default)]
pub struct KeptOpens {
    queue: Mutex<VecDeque<Kept>>,
    closing: AtomicBool,
}

/// An open that only a lease keeps.
#[derive(Debug)]
struct Kept {
    file: SharedHandle,
    open: OpenId,
    /// The last use of the file when this was entered.
    used: u64,
}

/// Surplus opens are being closed, until this is dropped.
pub struct Closing<'k>(&'k KeptOpens);

impl KeptOpens {
    /// Enters the open of a file that was last used then.
    pub fn push(&self, file: SharedHandle, open: OpenId, used: u64) {
        self.queue.lock().push_back(Kept { file, open, used });
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
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
    /// Removes opens from the queue until `keep` are left: first those that have ended, for which `last_use`
    /// is `None`. An open whose file was used since it was entered gets another turn, once around the queue.
    pub fn beyond(
        &self,
        keep: usize,
        last_use: impl Fn(&Handle, OpenId) -> Option<u64>,
    ) -> Vec<(SharedHandle, OpenId)> {
        self.look(self.0.len(), |queue| {
            let Some(kept) = queue.pop_front() else { return false };
            if last_use(&kept.file.handle(), kept.open).is_some() {
                queue.push_back(kept);
            }
            true
        });
        let mut chosen = Vec::new();
        self.look(self.0.len() * 2, |queue| {
            let Some(kept) = (queue.len() > keep).then(|| queue.pop_front()).flatten() else { return false };
            match last_use(&kept.file.handle(), kept.open) {
                Some(used) if used > kept.used => queue.push_back(Kept { used, ..kept }),
                _ => chosen.push((kept.file, kept.open)),
            }
            true
        });
        chosen
    }

    /// Looks at so many entries, until `each` says that it is enough. Others use the queue between.
    fn look(&self, mut looks: usize, mut each: impl FnMut(&mut VecDeque<Kept>) -> bool) {
        while looks > 0 {
            let now = looks.min(LOOKS_MAX);
            let mut queue = self.0.queue.lock();
            if !(0..now).all(|_| each(&mut queue)) {
                return;
            }
            looks -= now;
        }
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
        let open = OpenId(7);
        for number in 0..10 {
            kept.push(SharedHandle::from(&handle(number)), open, number.into());
            // Another open of the file, which has ended.
            kept.push(SharedHandle::from(&handle(number)), OpenId(8), number.into());
        }
        let closing = kept.begin_closing().unwrap();
        assert!(kept.begin_closing().is_none(), "one at a time");
        // Numbers 0 and 2 were used since.
        let last_use = |of: &Handle, id: OpenId| match of.as_bytes()[0] {
            _ if id != open => None,
            0 => Some(100),
            2 => Some(101),
            other => Some(other.into()),
        };
        let chosen = |keep| -> Vec<u8> {
            closing.beyond(keep, last_use).iter().map(|(file, _)| file.handle().as_bytes()[0]).collect()
        };
        assert_eq!(chosen(7), [1, 3, 4]);
        assert_eq!(chosen(7), []);
        assert_eq!(chosen(1), [5, 6, 7, 8, 9, 0]);
        drop(closing);
        assert!(kept.begin_closing().is_some());
    }
}
