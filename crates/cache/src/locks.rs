//! The byte-range locks of one file: which owner holds which range, and whether the origin knows of it.
//!
//! Ranges follow POSIX. A new lock of an owner replaces the owner's earlier locks in its range. Giving up the
//! middle of a range leaves two ranges. A lock that the origin does not know of was taken under a write
//! lease, and the origin is told before that lease is returned. Or the origin has no locks. A lock that the
//! origin has held since before this process belongs to no open of ours until its owner reclaims it.

use std::collections::HashMap;

use vfs::locks::{LockRange, LockRanges, first_conflict};
use vfs::{Lock, OpenId, Owner};

/// The largest number of locks on one file. Beyond it, locks are refused.
const LOCKS_MAX: usize = 4096;
/// The open of a lock from before this process that no client has reclaimed. No other open has this id.
const ADOPTED: OpenId = OpenId(0);

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The open of ours that it belongs to.
    pub open: OpenId,
    /// Its owner, kind and range.
    pub lock: Lock,
    /// The origin holds it, too.
    pub told: bool,
}

/// The locks of one file.
#[derive(Debug, Default)]
pub struct Locks {
    held: Vec<HeldLock>,
    /// LOCKs in flight to the origin: it is not known yet what they will hold.
    pub under_way: u32,
}

impl Locks {
    /// The first lock, by offset, that conflicts with this one.
    pub fn conflict(&self, lock: &Lock) -> Option<Lock> {
        self.first_conflict(lock, |_| true)
    }

    /// The same, among the locks that the origin does not know of.
    pub fn untold_conflict(&self, lock: &Lock) -> Option<Lock> {
        self.first_conflict(lock, |held| !held.told)
    }

    /// To POSIX, adjacent ranges of one owner and kind are one lock, whatever opens they were taken under.
    fn first_conflict(&self, lock: &Lock, which: impl Fn(&HeldLock) -> bool) -> Option<Lock> {
        let considered = || self.held.iter().filter(|held| which(held)).map(|held| &held.lock);
        if !considered().any(|held| held.conflicts(lock)) {
            return None;
        }
        let mut owners: HashMap<&Owner, LockRanges> = HashMap::new();
        for held in considered() {
            owners.entry(&held.owner).or_default().lock(LockRange::of(held));
        }
        first_conflict(owners.iter().map(|(owner, ranges)| (*owner, ranges)), lock)
    }

    /// Takes a lock. It replaces the owner's locks in its range. False if there are too many locks.
    pub fn take(&mut self, open: OpenId, lock: Lock, told: bool) -> bool {
        if self.held.len() >= LOCKS_MAX {
            return false;
        }
        self.give_up(&lock.owner, (lock.offset, lock.length));
        self.held.push(HeldLock { open, lock, told });
        true
    }

    /// Takes over a lock that the origin has held since before this process.
    pub fn adopt(&mut self, lock: Lock) {
        self.held.push(HeldLock { open: ADOPTED, lock, told: true });
    }

    /// The owner reclaims a lock. The origin must have held all of it for the owner since before this
    /// process, or the owner must have reclaimed it already. False otherwise.
    pub fn reclaim(&mut self, open: OpenId, lock: &Lock) -> bool {
        let same =
            |held: &&HeldLock| held.told && held.lock.owner == lock.owner && held.lock.kind == lock.kind;
        let held: LockRanges = self.held.iter().filter(same).map(|held| LockRange::of(&held.lock)).collect();
        held.gaps(LockRange::of(lock)).is_empty() && self.take(open, lock.clone(), true)
    }

    /// Is there a lock that no client has reclaimed?
    pub fn has_adopted(&self) -> bool {
        self.held.iter().any(|held| held.open == ADOPTED)
    }

    /// Removes the locks that no client has reclaimed, and returns them.
    pub fn take_adopted(&mut self) -> Vec<Lock> {
        let adopted =
            self.held.iter().filter(|held| held.open == ADOPTED).map(|held| held.lock.clone()).collect();
        self.held.retain(|held| held.open != ADOPTED);
        adopted
    }

    /// The owner gives up its locks in a range.
    pub fn give_up(&mut self, owner: &Owner, range: (u64, u64)) {
        self.give_up_some(owner, range, |_| true);
    }

    /// The same, for locks that the origin does not know of.
    pub fn give_up_untold(&mut self, owner: &Owner, range: (u64, u64)) {
        self.give_up_some(owner, range, |held| !held.told);
    }

    fn give_up_some(
        &mut self,
        owner: &Owner,
        (offset, length): (u64, u64),
        which: impl Fn(&HeldLock) -> bool,
    ) {
        let end = offset.saturating_add(length);
        let mut rest = Vec::with_capacity(self.held.len() + 1);
        for held in self.held.drain(..) {
            let (start, stop) = (held.lock.offset, held.lock.end());
            if held.lock.owner != *owner || stop <= offset || end <= start || !which(&held) {
                rest.push(held);
                continue;
            }
            if start < offset {
                rest.push(part(&held, start, offset - start));
            }
            if end < stop {
                let length = if held.lock.length == u64::MAX { u64::MAX } else { stop - end };
                rest.push(part(&held, end, length));
            }
        }
        self.held = rest;
    }

    /// Does the origin know of a lock of this owner in the range?
    pub fn is_told(&self, owner: &Owner, range: (u64, u64)) -> bool {
        self.held.iter().any(|held| held.told && held.lock.owner == *owner && meets(&held.lock, range))
    }

    /// Does this owner hold a lock?
    pub fn holds(&self, owner: &Owner) -> bool {
        self.held.iter().any(|held| held.lock.owner == *owner)
    }

    /// A lock that the origin does not know of yet.
    pub fn untold(&self) -> Option<&HeldLock> {
        self.held.iter().find(|held| !held.told)
    }

    /// The origin has granted this lock, or has refused it and the lock is lost. False if it is not held any
    /// more.
    pub fn tell(&mut self, lock: &Lock, granted: bool) -> bool {
        let held = self.held.iter().any(|held| held.lock == *lock);
        if granted {
            self.held.iter_mut().filter(|held| held.lock == *lock).for_each(|held| held.told = true);
        } else {
            self.held.retain(|held| held.lock != *lock);
        }
        held
    }

    /// The origin was told of a lock that its owner has replaced meanwhile. The owner's locks in the range
    /// will be told again. Returns the parts of the range in which the owner holds nothing: the origin must
    /// unlock them.
    pub fn tell_again(&mut self, lock: &Lock) -> Vec<(u64, u64)> {
        let mut ranges = LockRanges::default();
        for held in self.held.iter_mut().filter(|held| held.lock.owner == lock.owner) {
            held.told &= !meets(&held.lock, (lock.offset, lock.length));
            ranges.lock(LockRange::of(&held.lock));
        }
        ranges.gaps(LockRange::of(lock)).iter().map(|gap| (gap.start, gap.length())).collect()
    }

    /// The origin has lost its locks: removes those that it knew of.
    pub fn lose_told(&mut self) {
        self.held.retain(|held| !held.told);
    }

    /// Removes the locks of an open. Returns the owners of those that the origin knows of.
    pub fn end_open(&mut self, open: OpenId) -> Vec<Owner> {
        let mut owners: Vec<Owner> = Vec::new();
        for held in self.held.iter().filter(|held| held.open == open && held.told) {
            if !owners.contains(&held.lock.owner) {
                owners.push(held.lock.owner.clone());
            }
        }
        self.held.retain(|held| held.open != open);
        owners
    }

    /// Is no lock held?
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// Does the lock cover any byte of this range (offset, length)?
fn meets(lock: &Lock, (offset, length): (u64, u64)) -> bool {
    lock.offset < offset.saturating_add(length) && offset < lock.end()
}

fn part(held: &HeldLock, offset: u64, length: u64) -> HeldLock {
    HeldLock { lock: Lock { offset, length, ..held.lock.clone() }, ..held.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use vfs::LockKind;

    fn owner(n: u8) -> Owner {
        Owner(Bytes::copy_from_slice(&[n]))
    }

    fn lock(n: u8, exclusive: bool, offset: u64, length: u64) -> Lock {
        let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
        Lock { owner: owner(n), kind, offset, length }
    }

    #[test]
    fn a_lock_to_the_end_can_lose_its_middle() {
        let mut locks = Locks::default();
        locks.take(OpenId(1), lock(1, true, 0, u64::MAX), false);
        locks.give_up(&owner(1), (10, 10));
        assert_eq!(locks.conflict(&lock(2, false, 10, 10)), None);
        assert!(locks.conflict(&lock(2, false, 9, 2)).is_some());
        assert!(locks.conflict(&lock(2, false, u64::MAX - 9, 1)).is_some());
        assert_eq!(locks.end_open(OpenId(1)), [], "the origin knows of none");
        assert!(locks.is_empty());
    }

    // Promise: lock-queries
    #[test]
    fn the_first_conflict_by_offset_is_named_and_not_the_oldest() {
        let mut locks = Locks::default();
        locks.take(OpenId(1), lock(1, true, 10, 5), false);
        locks.take(OpenId(1), lock(1, false, 1, 5), true);
        assert_eq!(locks.conflict(&lock(2, true, 0, u64::MAX)), Some(lock(1, false, 1, 5)));
        assert_eq!(locks.conflict(&lock(2, false, 0, u64::MAX)), Some(lock(1, true, 10, 5)));
        assert_eq!(locks.untold_conflict(&lock(2, true, 0, u64::MAX)), Some(lock(1, true, 10, 5)));
        locks.take(OpenId(3), lock(3, false, 0, 2), true);
        assert_eq!(locks.conflict(&lock(2, true, 0, u64::MAX)), Some(lock(3, false, 0, 2)));
        assert_eq!(locks.conflict(&lock(3, true, 0, u64::MAX)), Some(lock(1, false, 1, 5)));
    }

    // Promise: lock-queries
    #[test]
    fn neighbours_of_one_owner_and_kind_are_named_as_one_lock() {
        let mut locks = Locks::default();
        locks.take(OpenId(1), lock(1, true, 10, u64::MAX), false);
        locks.take(OpenId(2), lock(1, true, 5, 5), true);
        locks.take(OpenId(2), lock(1, false, 0, 5), true);
        assert_eq!(locks.conflict(&lock(2, false, 12, 1)), Some(lock(1, true, 5, u64::MAX)));
        assert_eq!(locks.conflict(&lock(2, true, 0, 1)), Some(lock(1, false, 0, 5)));
    }

    #[test]
    fn what_is_told_is_known() {
        let mut locks = Locks::default();
        locks.take(OpenId(1), lock(1, true, 0, 10), false);
        let untold = locks.untold().unwrap().lock.clone();
        locks.tell(&untold, true);
        assert!(locks.untold().is_none() && locks.is_told(&owner(1), (9, 1)));
        assert!(!locks.is_told(&owner(1), (10, 1)));
        assert_eq!(locks.end_open(OpenId(1)), [owner(1)]);
    }

    #[test]
    fn what_was_held_before_is_reclaimed_by_its_owner_as_it_was() {
        let mut locks = Locks::default();
        locks.adopt(lock(1, true, 10, 10));
        locks.adopt(lock(1, true, 20, u64::MAX));
        locks.adopt(lock(2, false, 0, 5));
        assert!(locks.conflict(&lock(3, false, 15, 1)).is_some());
        for wrong in [lock(1, false, 10, 5), lock(2, true, 0, 5), lock(1, true, 5, 10), lock(3, true, 10, 1)]
        {
            assert!(!locks.reclaim(OpenId(7), &wrong), "{wrong:?}");
        }
        for _ in 0..2 {
            assert!(locks.reclaim(OpenId(7), &lock(1, true, 15, 10)), "once more, if the answer was lost");
        }
        let mut left = locks.take_adopted();
        left.sort_by_key(|lock| lock.offset);
        assert_eq!(left, [lock(2, false, 0, 5), lock(1, true, 10, 5), lock(1, true, 25, u64::MAX)]);
        assert_eq!(locks.end_open(OpenId(7)), [owner(1)]);
        assert!(locks.is_empty());
    }

    #[test]
    fn what_was_replaced_while_it_was_told_is_told_again_and_the_rest_unlocked() {
        let mut locks = Locks::default();
        locks.take(OpenId(1), lock(1, true, 0, u64::MAX), false);
        let told = locks.untold().unwrap().lock.clone();
        locks.give_up(&owner(1), (0, 10));
        locks.take(OpenId(1), lock(1, false, 20, 10), true);
        locks.give_up(&owner(1), (40, u64::MAX));
        assert!(!locks.tell(&told, true), "not any more");
        assert_eq!(locks.tell_again(&told), [(0, 10), (40, u64::MAX)]);
        let mut untold = Vec::new();
        while let Some(next) = locks.untold().map(|held| held.lock.clone()) {
            assert!(locks.tell(&next, true));
            untold.push((next.offset, next.length));
        }
        untold.sort_unstable();
        assert_eq!(untold, [(10, 10), (20, 10), (30, 10)]);
        locks.give_up(&owner(1), (0, u64::MAX));
        assert_eq!(locks.tell_again(&lock(1, true, 5, 5)), [(5, 5)]);
    }

    proptest! {
        /// Compares with a model that keeps each byte by itself.
        #[test]
        fn ranges_are_those_of_posix(
            steps in prop::collection::vec((0..3u8, 0..3u8, 0..20u64, 1..20u64), 1..40)
        ) {
            let mut locks = Locks::default();
            let mut model = [[None::<bool>; 40]; 3];
            for (who, what, offset, length) in steps {
                let range = offset as usize..(offset + length) as usize;
                if what == 2 {
                    locks.give_up(&owner(who), (offset, length));
                    model[usize::from(who)][range].fill(None);
                } else {
                    let wanted = lock(who, what == 1, offset, length);
                    let others = (0..3).filter(|other| *other != who);
                    let denied = others.into_iter().any(|other| {
                        let held = &model[usize::from(other)][range.clone()];
                        held.iter().any(|byte| byte.is_some_and(|exclusive| exclusive || what == 1))
                    });
                    prop_assert_eq!(locks.conflict(&wanted).is_some(), denied);
                    if !denied {
                        prop_assert!(locks.take(OpenId(1), wanted, false));
                        model[usize::from(who)][range].fill(Some(what == 1));
                    }
                }
                for who in 0..3 {
                    let any = model[usize::from(who)].iter().any(Option::is_some);
                    prop_assert_eq!(locks.holds(&owner(who)), any);
                }
            }
        }
    }
}
