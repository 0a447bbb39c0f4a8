//! One change at a time per file, so that what a change reports as before and after (weak cache consistency) has
//! nothing else of ours in between.
//!
//! The locks are striped by handle and asynchronous: who waits holds no thread. Several are taken in the order of
//! their stripes. A file that is known only once a directory is locked (the one that a REMOVE removes) is added with
//! [`HeldLocks::also`], which never waits; where it would have to, the operation gives everything back and starts again
//! with that file among those it asks for.
//!
//! Processes of this machine that change the same files without us cannot be excluded.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use vfs::Handle;

const STRIPES: usize = 1024;

/// The number of a lock.
pub(crate) type Stripe = usize;

/// The locks of all files.
pub(crate) struct Locks {
    stripes: Vec<Arc<Mutex<()>>>,
    hasher: RandomState,
}

/// Locks that an operation holds, given back when dropped.
#[derive(Default)]
pub(crate) struct HeldLocks {
    stripes: Vec<(Stripe, OwnedMutexGuard<()>)>,
    /// Out of tries: go on without those that cannot be had.
    resigned: bool,
}

/// The lock of this file cannot be had in the middle: start again and ask for it at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked(pub(crate) Stripe);

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks { stripes: (0..STRIPES).map(|_| Arc::default()).collect(), hasher: RandomState::new() }
    }

    /// Which lock a file has.
    pub(crate) fn stripe(&self, file: &Handle) -> Stripe {
        self.hasher.hash_one(file) as usize % STRIPES
    }

    /// Waits for all these locks. If `resigned`, [`HeldLocks::also`] will do without what it cannot have.
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
    /// Adds the lock of one more file, if that is possible at once.
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
