//! Locks: `fcntl` ranges, and `flock` as a lock of the entire file. Both become byte-range locks of the
//! origin.
//!
//! The layer below never waits for a lock. A waiter here tries again when this machine releases a lock or
//! the origin says that one is free. It also tries at intervals, as the kernel's NFS client does. A signal
//! ends the wait, and so does a deadlock (`deadlock`).

use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{Lock, LockKind, LockRequest, Locked, OpenId, Owner, Status};

use super::deadlock::Wait;
use crate::errno;
use crate::files::{File, lock_owner};
use crate::front::{Front, Interrupt, opening};
use crate::inodes::{Inode, Locker, NodeState};
use crate::wire::reply::{Answer, Outcome};
use crate::wire::request::FileLock;

/// Interval of the attempts to get a lock: at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The last byte in the kernel's lock requests.
const END: u64 = i64::MAX as u64;

/// How long the grant of a lock waits for the kernel to drop pages and names of another state.
const FORGET_PATIENCE: Duration = Duration::from_secs(1);
/// How long after the close of a descriptor its RELEASE may still be on its way.
const LEAVING_MAX: Duration = Duration::from_secs(1);
/// How long a lock request waits for that RELEASE. A duplicated descriptor has no RELEASE to come.
const LEAVING_PATIENCE: Duration = Duration::from_millis(200);
/// How long after a lock the kernel must not cache names beside the locked file.
const LOCKS_MEMORY: Duration = Duration::from_secs(60);

/// A SETLK or SETLKW.
struct Locking<'a> {
    file: &'a File,
    open: OpenId,
    request: LockRequest,
    /// The process that asks.
    pid: u32,
    flock: bool,
    /// Ends the wait of a SETLKW.
    wait: Option<&'a Interrupt>,
}

impl Front {
    /// GETLK: the conflicting lock.
    pub async fn getlk(&self, fh: u64, owner: u64, lock: FileLock, flock: bool) -> Outcome {
        let file = self.file(fh)?;
        let Some(wanted) = lock_of(lock_owner(owner, flock), lock) else { return Err(Errno::INVAL) };
        let found = self.fs.test(&file.caller, &file.inode.handle(), &wanted).await.map_err(errno::of)?;
        let free = FileLock { kind: libc::F_UNLCK as u32, ..lock };
        let pid = |found: &Lock| file.inode.state.lock().locks.lockers.get(&found.owner).map(|it| it.pid);
        Ok(Answer::Lock(found.map_or(free, |found| held(&found, pid(&found)))))
    }

    /// SETLK; or SETLKW, with the interrupt that ends its wait.
    pub async fn setlk(
        &self,
        fh: u64,
        (owner, flock): (u64, bool),
        lock: FileLock,
        wait: Option<&Interrupt>,
    ) -> Outcome {
        let file = self.file(fh)?;
        let open = file.open.ok_or(Errno::NOLCK)?;
        let owner = lock_owner(owner, flock);
        let Some(wanted) = lock_of(owner.clone(), lock) else {
            let range = (lock.start, length_of(lock));
            self.release_lock(&file, open, &owner, range).await.map_err(errno::of)?;
            return Ok(Answer::Done);
        };
        let request = LockRequest { lock: wanted, wait: wait.is_some(), reclaim: false };
        let range = (request.lock.offset, request.lock.length);
        self.take_lock(&Locking { file: &file, open, request, pid: lock.pid, flock, wait }).await?;
        // The requester is gone and would never release the lock.
        if wait.is_some_and(Interrupt::is_raised) {
            let _ = self.release_lock(&file, open, &owner, range).await;
            return Err(Errno::INTR);
        }
        {
            let mut state = file.inode.state.lock();
            state.locks.lockers.insert(owner.clone(), Locker { pid: lock.pid, open });
            state.locked = Some(Instant::now());
        }
        self.look_anew(&file).await;
        if file.passed
            && let Err(errno) = self.refill_now(&file).await
        {
            // Its caller must not get the lock: it would read bytes from before the lock.
            let _ = self.release_lock(&file, open, &owner, range).await;
            return Err(errno);
        }
        self.doubt_names_beside(&file).await;
        Ok(Answer::Done)
    }

    /// Asks the layer below for a lock until it is granted, or until the wait ends.
    ///
    /// # Errors
    /// `AGAIN` if the lock is denied and the request does not wait, `DEADLK` if it would wait for itself,
    /// `INTR` if a signal ends the wait, or the error of the layer below.
    async fn take_lock(&self, locking: &Locking<'_>) -> Result<(), Errno> {
        let Locking { file, open, request, pid, flock, wait } = locking;
        let mut pause = RETRY.0;
        let waiting = wait.filter(|_| !flock).map(|_| self.waits.begin());
        let mut waited = false;
        loop {
            let unlocked = file.inode.waits().unlocked.notified();
            match self.fs.lock(&file.caller, *open, request).await {
                Ok(Locked::Granted) => return Ok(()),
                Ok(Locked::Denied(other))
                    if !std::mem::replace(&mut waited, true)
                        && until_left(&file.inode, &other.owner).await =>
                {
                    continue;
                }
                Ok(Locked::Denied(other)) => {
                    let (inode, caller) = (file.inode.clone(), file.caller.clone());
                    let lock = request.lock.clone();
                    let wait = Wait { inode, caller, lock, pid: *pid, blocker: other.owner };
                    if let Some(waiting) = &waiting
                        && waiting.closes_a_circle(self, wait).await
                    {
                        return Err(Errno::DEADLK);
                    }
                }
                Err(error) if wait.is_some() && matches!(error.status, Status::Delay | Status::Grace) => {}
                // The lock table is full, or the server's lock manager fails: fcntl(2).
                Err(error) if error.status == Status::Resource => return Err(Errno::NOLCK),
                Err(error) => return Err(errno::of(error)),
            }
            let Some(interrupt) = wait else { return Err(Errno::AGAIN) };
            tokio::select! {
                () = unlocked => {}
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
                () = interrupt.raised() => return Err(Errno::INTR),
            }
        }
    }

    /// Releases a range of an owner, and wakes the requests that wait here. Forgets the owner if it holds no
    /// lock any more.
    async fn release_lock(
        &self,
        file: &File,
        open: OpenId,
        owner: &Owner,
        range: (u64, u64),
    ) -> vfs::Result<()> {
        let released = self.fs.unlock(&file.caller, open, owner, range).await;
        if !self.fs.holds_locks(open, owner) {
            file.inode.forget_locker(owner);
        }
        file.inode.wake_lockers();
        released
    }

    /// The holder of a lock must see the names that the last holder left beside the file, such as a journal
    /// or a spool. The kernel drops its cached names of the directory, and caches none there for
    /// `LOCKS_MEMORY`: the layer below answers.
    async fn doubt_names_beside(&self, file: &File) {
        let parents: Vec<u64> = file.inode.state.lock().names.iter().map(|(parent, _)| *parent).collect();
        for parent in parents {
            let Some(directory) = self.inodes.get(parent) else { continue };
            let before = directory.state.lock().locked.replace(Instant::now());
            if before.is_none_or(|at| at.elapsed() >= LOCKS_MEMORY / 2) {
                let told = self.notifier.names_in(parent, self.inodes.doubt_names(parent));
                // Bounded: the kernel finishes when no request holds the directory's lock.
                let _ = tokio::time::timeout(FORGET_PATIENCE, told).await;
            }
        }
    }

    /// Was a file in this directory locked in the last `LOCKS_MEMORY`?
    pub fn has_locks(&self, directory: u64) -> bool {
        self.inodes.get(directory).is_some_and(|inode| was_locked(&inode.state.lock()))
    }

    /// The holder of a lock must see what the last holder wrote: pages of another state go before the grant
    /// is reported.
    async fn look_anew(&self, file: &File) {
        let leased = file.inode.is_leased();
        let now = self.fs.getattr(&opening(&file.caller), &file.inode.handle()).await;
        file.inode.state.lock().opened.looks += 1;
        let Ok(now) = now else { return };
        let keep = leased || file.inode.state.lock().opened.pages.open(file.fh, &now, leased);
        if !keep {
            // Bounded: a page that is being read may wait for a process that waits for this lock.
            let gone = self.notifier.data_gone(file.inode.number);
            if tokio::time::timeout(FORGET_PATIENCE, gone).await.is_ok() {
                file.inode.state.lock().opened.pages.heard_of(file.fh);
            }
        }
    }

    /// Releases all locks of an owner on a file.
    pub async fn unlock_all(&self, file: &File, owner: &Owner) {
        file.inode.forget_locker(owner);
        let Some(open) = file.open.filter(|open| self.fs.holds_locks(*open, owner)) else { return };
        if let Err(error) = self.fs.unlock(&file.caller, open, owner, (0, u64::MAX)).await {
            tracing::warn!("cannot unlock {}: {error}", file.inode.handle());
        }
        file.inode.wake_lockers();
    }
}

/// Waits for the end of a closed open whose lock is in the way. True if the open has ended.
///
/// The locks of an open file (`F_OFD_SETLK`, flock(2)) end with its RELEASE. Linux sends RELEASE after
/// close(2) has returned. A process that closes the file and then asks for the lock must not get EAGAIN.
async fn until_left(inode: &Inode, owner: &Owner) -> bool {
    let is_leaving = || {
        let state = inode.state.lock();
        let open = state.locks.lockers.get(owner).map(|locker| locker.open);
        let closed = open.and_then(|open| state.locks.leaving.get(&open).copied());
        closed.is_some_and(|at| at.elapsed() < LEAVING_MAX)
    };
    if !is_leaving() {
        return false;
    }
    let left = async {
        loop {
            let unlocked = inode.waits().unlocked.notified();
            tokio::pin!(unlocked);
            unlocked.as_mut().enable();
            if !is_leaving() {
                return;
            }
            unlocked.await;
        }
    };
    tokio::time::timeout(LEAVING_PATIENCE, left).await.is_ok()
}

/// Was the file, or a file in the directory, locked in the last `LOCKS_MEMORY`?
pub fn was_locked(state: &NodeState) -> bool {
    state.locked.is_some_and(|at| at.elapsed() < LOCKS_MEMORY)
}

fn length_of(lock: FileLock) -> u64 {
    if lock.end >= END { u64::MAX } else { (lock.end + 1).saturating_sub(lock.start) }
}

/// Converts a lock of the kernel; `None` is an unlock.
fn lock_of(owner: Owner, lock: FileLock) -> Option<Lock> {
    let kind = match lock.kind as i32 {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        _ => return None,
    };
    Some(Lock { owner, kind, offset: lock.start, length: length_of(lock) })
}

/// Converts a lock for the kernel. The holder is known as a process only if that process uses this mount.
fn held(lock: &Lock, pid: Option<u32>) -> FileLock {
    let kind = if lock.kind == LockKind::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let end = if lock.length == u64::MAX { END } else { lock.end().saturating_sub(1).min(END) };
    FileLock { start: lock.offset, end, kind: kind as u32, pid: pid.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back() {
        let owner = lock_owner(7, false);
        for (start, end) in [(0, END), (5, 5), (10, 99), (7, END)] {
            let lock = FileLock { start, end, kind: libc::F_WRLCK as u32, pid: 7 };
            assert_eq!(held(&lock_of(owner.clone(), lock).unwrap(), Some(7)), lock);
        }
        let unlock = FileLock { start: 0, end: 9, kind: libc::F_UNLCK as u32, pid: 0 };
        assert!(lock_of(owner.clone(), unlock).is_none() && length_of(unlock) == 10);
        assert_ne!(owner, lock_owner(7, true), "flock and fcntl are apart");
    }
}
