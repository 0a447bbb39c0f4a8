//! Deadlock detection among the processes of this machine that wait for `fcntl` locks: EDEADLK, as in
//! fcntl(2).
//!
//! The waiters form a graph of owners: each waiter was last denied its lock because of one owner. A waiter
//! that closes a cycle is refused. An edge of the graph may be outdated: the lock was released since, and
//! the waiter has not tried again. So each edge of the cycle is tested again before a refusal
//! (`FileSystem::test`). A tested cycle holds until one of its waiters gives up, since all of them wait.
//!
//! `flock` has no deadlock detection, nor have locks of open files (`F_OFD_SETLKW`). The kernel does not
//! mark the latter. But one process has only one process owner. So a cycle with two owners of one process
//! is ignored.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Caller, Lock, Owner};

use crate::front::Front;
use crate::inodes::Inode;

/// Limit of the steps in a cycle.
const STEPS_MAX: usize = 64;

/// The waiters, with the owner that blocks each of them.
#[derive(Debug, Default)]
pub struct Waits {
    table: Mutex<HashMap<u64, Wait>>,
    next: AtomicU64,
    /// Held by a waiter that looks for a cycle: if two waiters would close the same cycle, only one is
    /// refused.
    turn: tokio::sync::Mutex<()>,
}

/// A lock request that waits.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Its file.
    pub inode: Arc<Inode>,
    /// The credential of the process.
    pub caller: Caller,
    /// The lock that it waits for.
    pub lock: Lock,
    /// The process.
    pub pid: u32,
    /// The owner of the lock that was in the way.
    pub blocker: Owner,
}

/// An entry in the table, removed when the wait ends.
#[derive(Debug)]
pub struct Waiting<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Waits {
    /// Number of processes that wait.
    pub fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// A process is about to wait.
    pub fn begin(&self) -> Waiting<'_> {
        Waiting { waits: self, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// The chain of waiters from one owner to another, `None` if `from` does not wait for `to`.
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
    /// The request was denied once more. True if it waits for itself, through others; then it is removed
    /// from the table.
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
                // A waiter of the cycle was interrupted or has got its lock meanwhile.
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

/// The first waiter of the path that is no longer blocked by the recorded owner, with its present blocker.
async fn step_that_is_over(front: &Front, path: &[(u64, Wait)]) -> Option<(u64, Option<Owner>)> {
    for (number, wait) in path {
        let found = front.fs.test(&wait.caller, &wait.inode.handle(), &wait.lock).await;
        let blocker = found.ok().flatten().map(|found| found.owner);
        if blocker.as_ref() != Some(&wait.blocker) {
            return Some((*number, blocker));
        }
    }
    None
}
