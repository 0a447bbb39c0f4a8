//! One change of a file at a time. So no other change by this server happens between the before and after
//! attributes of a change (weak cache consistency).
//!
//! The locks are striped by handle and asynchronous: a waiter occupies no thread. Several locks are taken
//! in the order of their stripes. Some files are known only after their directory is locked, such as the
//! file that a REMOVE removes. [`HeldLocks::also`] adds such a file without waiting. If its lock is taken,
//! the operation releases all locks and starts again with that file among the first ones.
//!
//! Changes by other processes of this machine cannot be excluded.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use vfs::Handle;

const STRIPES: usize = 1024;

/// The index of a lock.
pub(crate) type Stripe = usize;

/// The locks of all files.
pub(crate) struct Locks {
    stripes: Vec<Arc<Mutex<()>>>,
    hasher: RandomState,
}

/// Locks that an operation holds until this is dropped.
#[derive(Default)]
pub(crate) struct HeldLocks {
    stripes: Vec<(Stripe, OwnedMutexGuard<()>)>,
    /// No further restart: go on without locks that are taken.
    resigned: bool,
}

/// The lock of this file is taken: start again and take it at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked(pub(crate) Stripe);

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks { stripes: (0..STRIPES).map(|_| Arc::default()).collect(), hasher: RandomState::new() }
    }

    /// The lock of a file.
    pub(crate) fn stripe(&self, file: &Handle) -> Stripe {
        self.hasher.hash_one(file) as usize % STRIPES
    }

    /// Waits for all these locks. If `resigned`, [`HeldLocks::also`] skips locks that are taken.
    pub(crate) async fn hold(&self, wanted: &[Stripe], resigned: bool) -> HeldLocks {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let mut stripes = Vec::with_capacity(wanted.len() + 2);
        for stripe in wanted {
            stripes.push((stripe, self.stripes[stripe].clone().lock_owned().await));
        }
        HeldLocks { stripes, resigned }
    }
}

impl HeldLocks {
    /// Adds the lock of one more file, if it is free.
    pub(crate) fn also(&mut self, locks: &Locks, file: &Handle) -> Result<(), Blocked> {
        let stripe = locks.stripe(file);
        if self.stripes.iter().any(|(held, _)| *held == stripe) {
            return Ok(());
        }
        match locks.stripes[stripe].clone().try_lock_owned() {
            Ok(guard) => self.stripes.push((stripe, guard)),
            Err(_) if self.resigned => {}
            Err(_) => return Err(Blocked(stripe)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_in_use_is_not_waited_for() {
        let locks = Locks::new();
        let a = Handle::new(b"a").unwrap();
        let other = (locks.stripe(&a) + 1) % STRIPES;
        let mut held = locks.hold(&[locks.stripe(&a), locks.stripe(&a)], false).await;
        assert!(held.also(&locks, &a).is_ok());
        let mut another = locks.hold(&[other], false).await;
        assert!(another.also(&locks, &a).is_err());
        drop(held);
        assert!(another.also(&locks, &a).is_ok());
    }
}
