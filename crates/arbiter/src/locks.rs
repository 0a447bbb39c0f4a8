//! Byte-range locks (RFC 8881, section 9), by file and owner, and their waiters.
//!
//! A pure table. An owner's ranges split, merge, and change their kind as in POSIX. Locks of different
//! owners conflict if either is exclusive. Owners are unique among all clients. A denied lock may leave a
//! waiter. The waiter is notified once, when a release has removed the conflict. Then it asks again, in
//! competition with other requesters.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use vfs::locks::{LockRange, LockRanges, first_conflict, is_range};
use vfs::{Handle, HolderId, Lock, OpenId, Owner, Status};

/// Limit of ranges of one owner on one file.
const RANGES_PER_OWNER_MAX: usize = 16_384;
/// Limit of all ranges.
const RANGES_MAX: usize = 1 << 20;
/// Limit of waiters for one file. Further ones ask again by themselves, as every client does.
const WAITERS_PER_FILE_MAX: usize = 1024;
/// Limit of all waiters.
const WAITERS_MAX: usize = 1 << 16;
/// How long a waiter is remembered; one that still waits has asked again by then.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The result of a lock request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is held.
    Granted(Before),
    /// This lock conflicts.
    Denied(Lock),
}

/// The owner's locks in the range before, for [`Locks::undo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before(Vec<LockRange>);

/// A notification to a waiter: its lock would be granted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The holder whose front gets the notification.
    pub holder: HolderId,
    /// The lock-owner.
    pub owner: Owner,
    /// The file.
    pub handle: Handle,
}

#[derive(Debug)]
struct Waiter {
    holder: HolderId,
    lock: Lock,
    since: Instant,
}

/// The locks of one owner on one file.
#[derive(Debug, Default)]
struct Owned {
    ranges: LockRanges,
    /// The opens through which they were taken.
    through: Vec<OpenId>,
}

#[derive(Debug, Default)]
struct File {
    owners: HashMap<Owner, Owned>,
    waiters: VecDeque<Waiter>,
}

impl File {
    fn conflict(&self, lock: &Lock) -> Option<Lock> {
        first_conflict(self.owners.iter().map(|(owner, owned)| (owner, &owned.ranges)), lock)
    }

    /// Removes the waiters that can have their lock now, in the order of their requests.
    fn told(&mut self, now: Instant, handle: &Handle) -> Vec<Notice> {
        let mut told = Vec::new();
        let mut still = VecDeque::with_capacity(self.waiters.len());
        for waiter in std::mem::take(&mut self.waiters) {
            if now.duration_since(waiter.since) >= WAIT_MAX {
                continue;
            }
            if self.conflict(&waiter.lock).is_some() {
                still.push_back(waiter);
            } else {
                told.push(Notice { holder: waiter.holder, owner: waiter.lock.owner, handle: *handle });
            }
        }
        self.waiters = still;
        told
    }
}

/// The locks of all files.
#[derive(Debug, Default)]
pub struct Locks {
    files: HashMap<Handle, File>,
    held: usize,
    waiting: usize,
}

impl Locks {
    /// Takes a lock through an open, if no other owner's lock conflicts. Ranges of the same owner change
    /// their kind.
    ///
    /// # Errors
    /// `Inval` for an empty range or one beyond the largest offset. `Resource` if there are too many
    /// ranges, `Delay` if this owner has too many.
    pub fn lock(&mut self, handle: &Handle, open: OpenId, lock: &Lock) -> Result<Outcome, Status> {
        check_range(lock.offset, lock.length)?;
        if self.held >= RANGES_MAX {
            return Err(Status::Resource);
        }
        let file = self.files.entry(*handle).or_default();
        if let Some(other) = file.conflict(lock) {
            return Ok(Outcome::Denied(other));
        }
        let owned = file.owners.entry(lock.owner.clone()).or_default();
        if owned.ranges.len() >= RANGES_PER_OWNER_MAX {
            return Err(Status::Delay);
        }
        let before = owned.ranges.within(LockRange::of(lock)).collect();
        let count = owned.ranges.len();
        owned.ranges.lock(LockRange::of(lock));
        self.held = self.held + owned.ranges.len() - count;
        if !owned.through.contains(&open) {
            owned.through.push(open);
        }
        let waiters = file.waiters.len();
        file.waiters.retain(|waiter| waiter.lock != *lock);
        self.waiting -= waiters - file.waiters.len();
        Ok(Outcome::Granted(Before(before)))
    }

    /// Restores a range to its state before a lock that the layer below refused.
    pub fn undo(&mut self, now: Instant, handle: &Handle, lock: &Lock, before: &Before) -> Vec<Notice> {
        self.change(now, handle, &lock.owner, |ranges| {
            ranges.unlock(lock.offset, lock.end());
            before.0.iter().for_each(|range| ranges.lock(*range));
        })
    }

    /// Releases all locks of an owner in a range. Returns the waiters that can lock now.
    ///
    /// # Errors
    /// `Inval`, as for [`Locks::lock`].
    pub fn unlock(
        &mut self,
        now: Instant,
        handle: &Handle,
        owner: &Owner,
        (offset, length): (u64, u64),
    ) -> Result<Vec<Notice>, Status> {
        check_range(offset, length)?;
        let end = offset.saturating_add(length);
        Ok(self.change(now, handle, owner, |ranges| ranges.unlock(offset, end)))
    }

    /// Releases all locks on a file by owners that locked through `open`, which ends. Returns the waiters
    /// that can lock now.
    pub fn close(&mut self, now: Instant, handle: &Handle, open: OpenId) -> Vec<Notice> {
        let Some(file) = self.files.get(handle) else { return Vec::new() };
        let through = file.owners.iter().filter(|(_, owned)| owned.through.contains(&open));
        let owners: Vec<Owner> = through.map(|(owner, _)| owner.clone()).collect();
        owners
            .iter()
            .flat_map(|owner| self.change(now, handle, owner, |ranges| ranges.unlock(0, u64::MAX)))
            .collect()
    }

    /// Returns the waiters that can lock now, after an owner has changed an exclusive lock into a shared
    /// one.
    pub fn tell(&mut self, now: Instant, handle: &Handle) -> Vec<Notice> {
        let Some(file) = self.files.get_mut(handle) else { return Vec::new() };
        let waiters = file.waiters.len();
        let told = file.told(now, handle);
        self.waiting -= waiters - file.waiters.len();
        told
    }

    /// The lock that would conflict with this one.
    ///
    /// # Errors
    /// `Inval`, as for [`Locks::lock`].
    pub fn test(&self, handle: &Handle, lock: &Lock) -> Result<Option<Lock>, Status> {
        check_range(lock.offset, lock.length)?;
        Ok(self.files.get(handle).and_then(|file| file.conflict(lock)))
    }

    /// Does the owner hold any lock on the file?
    pub fn holds(&self, handle: &Handle, owner: &Owner) -> bool {
        self.files.get(handle).is_some_and(|file| file.owners.contains_key(owner))
    }

    /// Were any held locks taken through this open?
    pub fn any_through(&self, handle: &Handle, open: OpenId) -> bool {
        self.files
            .get(handle)
            .is_some_and(|file| file.owners.values().any(|owned| owned.through.contains(&open)))
    }

    /// Remembers that a holder waits for a denied lock. A waiter that asks again keeps its place.
    pub fn wait(&mut self, now: Instant, handle: &Handle, holder: HolderId, lock: &Lock) {
        if self.waiting >= WAITERS_MAX {
            self.forget_old_waiters(now);
        }
        let Some(file) = self.files.get_mut(handle) else { return };
        if let Some(mine) = file.waiters.iter_mut().find(|waiter| waiter.lock == *lock) {
            mine.since = now;
            return;
        }
        if file.waiters.len() < WAITERS_PER_FILE_MAX && self.waiting < WAITERS_MAX {
            file.waiters.push_back(Waiter { holder, lock: lock.clone(), since: now });
            self.waiting += 1;
        }
    }

    /// Number of locked ranges.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Are there no locks?
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    fn change(
        &mut self,
        now: Instant,
        handle: &Handle,
        owner: &Owner,
        change: impl FnOnce(&mut LockRanges),
    ) -> Vec<Notice> {
        let Some(file) = self.files.get_mut(handle) else { return Vec::new() };
        if let Some(owned) = file.owners.get_mut(owner) {
            let before = owned.ranges.len();
            change(&mut owned.ranges);
            self.held = self.held + owned.ranges.len() - before;
            if owned.ranges.is_empty() {
                file.owners.remove(owner);
            }
        }
        let waiters = file.waiters.len();
        let told = file.told(now, handle);
        self.waiting -= waiters - file.waiters.len();
        if file.owners.is_empty() && file.waiters.is_empty() {
            self.files.remove(handle);
        }
        told
    }

    fn forget_old_waiters(&mut self, now: Instant) {
        for file in self.files.values_mut() {
            file.waiters.retain(|waiter| now.duration_since(waiter.since) < WAIT_MAX);
        }
        self.files.retain(|_, file| !file.owners.is_empty() || !file.waiters.is_empty());
        self.waiting = self.files.values().map(|file| file.waiters.len()).sum();
    }
}

fn check_range(offset: u64, length: u64) -> Result<(), Status> {
    if is_range(offset, length) { Ok(()) } else { Err(Status::Inval) }
}

#[cfg(test)]
mod tests;
