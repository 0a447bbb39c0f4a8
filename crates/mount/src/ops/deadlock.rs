//! Deadlocks among the processes of this machine that wait for `fcntl` locks: EDEADLK, as fcntl(2) has it.
//!
//! Who waits for whom is a graph of owners: each waiter was last denied its lock because of one owner. A waiter that
//! closes a circle is refused. What the graph says of others may be over (the lock has been given up since, and the waiter
//! has not tried again), so that before anybody is refused each step is tried once more (`FileSystem::test`). One that holds
//! then holds until one of them gives up: all of them wait.
//!
//! `flock` has no deadlock detection, nor have locks of open files (`F_OFD_SETLKW`). The kernel does not say which these
//! are; but no two owners of one process are process-owned, so that a circle with two of these is left alone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Caller, Lock, Owner};

use crate::front::Front;
use crate::inodes::Inode;

/// Steps of a circle that are looked at.
const STEPS_MAX: usize = 64;

/// Who waits for a lock, and for whom.
#[derive(Debug, Default)]
pub struct Waits {
    table: Mutex<HashMap<u64, Wait>>,
    next: AtomicU64,
    /// Held by a waiter that looks for a circle: of two that would close one, one is refused.
    turn: tokio::sync::Mutex<()>,
}

/// A lock that a process waits for.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Its file.
    pub inode: Arc<Inode>,
    /// With what rights.
    pub caller: Caller,
    /// What it waits for.
    pub lock: Lock,
    /// The process.
    pub pid: u32,
    /// The owner of the lock that was in the way.
    pub blocker: Owner,
}

/// A place in the table, which ends with the wait.
#[derive(Debug)]
pub struct Waiting<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Waits {
    /// Somebody is about to wait.
    pub fn begin(&self) -> Waiting<'_> {
        Waiting { waits: self, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// The waiters through whom an owner waits for another one: none if it does not.
    fn path(&self, from: &Owner, to: &Owner) -> Option<Vec<(u64, Wait)>> {
        let table = self.table.lock();
        let mut path = Vec::new();
        let mut at = from;
        while at != to {
            let (number, next) = table.iter().find(|(_, wait)| wait.lock.owner == *at)?;
            if path.len() == STEPS_MAX {
                return None;
            }
            path.push((*number, next.clone()));
            at = &next.blocker;
        }
        Some(path)
    }

    fn is_blocked_by(&self, number: u64, blocker: Owner) {
        if let Some(wait) = self.table.lock().get_mut(&number) {
            wait.blocker = blocker;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waits.table.lock().remove(&self.number);
    }
}

impl Waiting<'_> {
    /// It was denied once more. True if it waits for itself, through others: then it waits no longer.
    pub async fn closes_a_circle(&self, front: &Front, wait: Wait) -> bool {
        let (owner, blocker, pid) = (wait.lock.owner.clone(), wait.blocker.clone(), wait.pid);
        self.waits.table.lock().insert(self.number, wait);
        if self.waits.path(&blocker, &owner).is_none() {
            return false;
        }
        let _turn = self.waits.turn.lock().await;
        for _ in 0..STEPS_MAX {
            let Some(path) = self.waits.path(&blocker, &owner) else { return false };
            let mut pids = HashSet::from([pid]);
            if !path.iter().all(|(_, wait)| pids.insert(wait.pid)) {
                return false;
            }
            match step_that_is_over(front, &path).await {
                // One that has been interrupted, or has got its lock meanwhile, waits no more.
                None if self.waits.path(&blocker, &owner).is_none() => return false,
                None => {
                    self.waits.table.lock().remove(&self.number);
                    return true;
                }
                Some((number, Some(blocker))) => self.waits.is_blocked_by(number, blocker),
                Some((_, None)) => return false,
            }
        }
        false
    }
}

/// The first waiter that does not wait for whom it waited, and for whom it does now.
async fn step_that_is_over(front: &Front, path: &[(u64, Wait)]) -> Option<(u64, Option<Owner>)> {
    for (number, wait) in path {
        let found = front.fs.test(&wait.caller, &wait.inode.handle, &wait.lock).await;
        let blocker = found.ok().flatten().map(|found| found.owner);
        if blocker.as_ref() != Some(&wait.blocker) {
            return Some((*number, blocker));
        }
    }
    None
}
