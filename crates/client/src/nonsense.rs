//! Detects answers that an origin must not give.
//!
//! An answer that contradicts its request comes from a broken or hostile server. Examples are more data than
//! asked for, a name with a slash, or a file that has become a directory. The client never passes such an
//! answer on. The operation fails with `Io`, and the log gets at most one warning in [`WARN_EVERY`].

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Error, FileType, Fsid, Handle, Status};

/// The shortest time between two warnings.
pub const WARN_EVERY: Duration = Duration::from_secs(10);

/// Counts nonsense and warns about it, at a limited rate.
#[derive(Debug)]
pub(crate) struct Nonsense {
    server: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_warning: Option<Instant>,
    heard: u64,
    unreported: u64,
}

impl Nonsense {
    pub(crate) fn new(server: SocketAddr) -> Nonsense {
        Nonsense { server, state: Mutex::default() }
    }

    /// Notes that the server answered nonsense. Returns the error to fail with.
    pub(crate) fn heard(&self, procedure: &str, what: impl fmt::Display) -> Error {
        let mut state = self.state.lock();
        state.heard += 1;
        if state.last_warning.is_some_and(|last| last.elapsed() < WARN_EVERY) {
            state.unreported += 1;
        } else {
            let server = self.server;
            let unreported = std::mem::take(&mut state.unreported);
            tracing::warn!(
                unreported,
                "server {server} answers nonsense to {procedure}: {what}; treated as an I/O error"
            );
            state.last_warning = Some(Instant::now());
        }
        Status::Io.into()
    }

    /// The number of nonsensical answers.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().heard
    }
}

/// Remembers the file type of handles, to notice a change.
///
/// The table has a fixed size and no locks. A handle has one slot, which holds the handle seen there last.
#[derive(Debug)]
pub(crate) struct Types {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// Number of slots; they take 512 KiB.
const SLOTS: usize = 1 << 16;
/// The bits of a slot that hold a type. The other bits hold a hash of the handle.
const TYPE_BITS: u64 = 0b111;

impl Default for Types {
    fn default() -> Types {
        let slots = std::iter::repeat_with(|| AtomicU64::new(0)).take(SLOTS).collect();
        Types { slots, hasher: RandomState::new() }
    }
}

impl Types {
    /// Returns false if the handle was seen with another type.
    pub(crate) fn agree(&self, handle: &Handle, file_type: FileType) -> bool {
        let hash = self.hasher.hash_one(handle);
        let now = (hash & !TYPE_BITS) | code(file_type);
        let Some(slot) = self.slots.get(hash as usize >> 3 & (SLOTS - 1)) else { return true };
        let seen = slot.load(Ordering::Relaxed);
        if seen == now {
            return true;
        }
        if (seen ^ now) & !TYPE_BITS == 0 && seen & TYPE_BITS != 0 {
            return false;
        }
        slot.store(now, Ordering::Relaxed);
        true
    }
}

/// Remembers the file system of handles, in the same way as [`Types`]. A handle on another file system counts
/// as nonsense only once, because an administrator may have renumbered the file system.
#[derive(Debug)]
pub(crate) struct Fsids {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for Fsids {
    fn default() -> Fsids {
        let slots = std::iter::repeat_with(|| AtomicU64::new(0)).take(SLOTS).collect();
        Fsids { slots, hasher: RandomState::new() }
    }
}

impl Fsids {
    /// Returns false if the handle was last seen on another file system.
    pub(crate) fn agree(&self, handle: &Handle, fsid: Fsid) -> bool {
        let hash = self.hasher.hash_one(handle);
        // Half of a slot is for the handle and half for the file system. A slot in use is never zero, which
        // means empty.
        let (of_handle, of_fsid) = (hash & !0xffff_ffff, self.hasher.hash_one(fsid) & 0xffff_ffff | 1);
        let Some(slot) = self.slots.get(hash as usize & (SLOTS - 1)) else { return true };
        let seen = slot.swap(of_handle | of_fsid, Ordering::Relaxed);
        seen == 0 || seen & !0xffff_ffff != of_handle || seen & 0xffff_ffff == of_fsid
    }

    /// Forgets everything: a restarted server may renumber its file systems.
    pub(crate) fn forget(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
    }
}

/// The code of a type. It is never zero, which means an empty slot.
fn code(file_type: FileType) -> u64 {
    match file_type {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::Block => 3,
        FileType::Character => 4,
        FileType::Symlink => 5,
        FileType::Socket => 6,
        FileType::Fifo => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_type() {
        let types = Types::default();
        let handle = |n: u32| Handle::new(&n.to_be_bytes()).unwrap();
        assert!(types.agree(&handle(1), FileType::Regular));
        assert!(types.agree(&handle(1), FileType::Regular));
        assert!(!types.agree(&handle(1), FileType::Directory));
        assert!(types.agree(&handle(1), FileType::Regular));
        // With many more handles than slots, no handle is mistaken for another.
        for n in 0..500_000 {
            assert!(types.agree(&handle(n), if n % 2 == 1 { FileType::Regular } else { FileType::Fifo }));
        }
    }

    #[test]
    fn a_handle_that_changes_its_file_system_is_noticed_once() {
        let fsids = Fsids::default();
        let handle = |n: u32| Handle::new(&n.to_be_bytes()).unwrap();
        let fsid = |major| Fsid { major, minor: 0 };
        assert!(fsids.agree(&handle(1), fsid(1)));
        assert!(fsids.agree(&handle(1), fsid(1)));
        assert!(!fsids.agree(&handle(1), fsid(2)));
        assert!(fsids.agree(&handle(1), fsid(2)));
        fsids.forget();
        assert!(fsids.agree(&handle(1), fsid(3)));
        for n in 0..200_000 {
            assert!(fsids.agree(&handle(n + 2), fsid(n.into())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_nonsense_is_counted() {
        let nonsense = Nonsense::new(([127, 0, 0, 1], 2049).into());
        for _ in 0..5 {
            assert_eq!(nonsense.heard("READ", "too much").status, Status::Io);
        }
        assert_eq!((nonsense.count(), nonsense.state.lock().unreported), (5, 4));
        tokio::time::advance(WARN_EVERY).await;
        nonsense.heard("READ", "too much");
        assert_eq!(nonsense.state.lock().unreported, 0);
    }
}
