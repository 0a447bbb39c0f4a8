//! Which object has which lease from the layer below, and calls in flight that may bring one. `held_lease`
//! says what a lease vouches for.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::grants::{GrantNumber, Grants};
use vfs::{Handle, LeaseId, LeaseKind, Recall, SharedHandle};

/// The largest number of remembered reports on leases whose grant has not arrived. A recall beyond it is
/// handled like that of an unknown lease.
const EARLY_MAX: usize = 1024;

/// The largest number of leases that are examined while the table is locked.
const LOOKS_MAX: usize = 256;

/// What happened to a lease before the reply with its grant arrived.
#[derive(Clone, Copy, Debug)]
pub enum Early {
    /// It was recalled.
    Recall(Recall),
    /// It was revoked.
    Revoked,
    /// It is being returned, or was returned. A reply that was made before may still report it as held.
    Returned,
}

/// Which object has which lease. The object may be at rest. A caller that holds this lock must not lock the
/// state of an object.
#[derive(Debug, Default)]
pub struct Leases {
    inner: Mutex<HeldLeases>,
    names: AtomicU64,
}

#[derive(Debug, Default)]
struct HeldLeases {
    below: HashMap<LeaseId, (SharedHandle, LeaseKind)>,
    /// The leases that the layer above holds, by the ids that it knows.
    above: HashMap<LeaseId, LeaseId>,
    /// In order of arrival. A lease that was used since gets a second chance.
    order: VecDeque<(LeaseId, u64)>,
    /// Leases chosen to be returned.
    leaving: HashSet<LeaseId>,
    /// Calls in flight that may bring a lease.
    grants: Grants<Early, EARLY_MAX>,
}

impl HeldLeases {
    /// Chooses leases beyond `keep` among so many of the next in order. True if no more need to be chosen.
    fn choose(
        &mut self,
        keep: usize,
        looks: usize,
        last_use: impl Fn(&Handle) -> Option<u64>,
        chosen: &mut Vec<SharedHandle>,
    ) -> bool {
        let mut surplus = self.below.len().saturating_sub(keep + self.leaving.len());
        for _ in 0..looks {
            if surplus == 0 {
                return true;
            }
            let Some((id, seen)) = self.order.pop_front() else { return true };
            let Some((handle, _)) = self.below.get(&id) else { continue };
            let used = last_use(&handle.handle()).unwrap_or(0);
            if used > seen {
                self.order.push_back((id, used));
                continue;
            }
            chosen.push(handle.clone());
            self.leaving.insert(id);
            surplus -= 1;
        }
        surplus == 0
    }
}

impl Leases {
    /// A call that may bring a lease is about to be sent. Returns its number.
    pub fn begin_grant(&self) -> GrantNumber {
        self.inner.lock().grants.begin()
    }

    /// The call was answered, and the lease that it brought is recorded. Returns the leases that were
    /// recalled meanwhile and that no object has.
    pub fn end_grant(&self, number: GrantNumber) -> Vec<LeaseId> {
        let over = self.inner.lock().grants.end(number);
        over.into_iter().filter(|(_, early)| matches!(early, Early::Recall(_))).map(|(id, _)| id).collect()
    }

    /// Records a granted lease on an object that was last `used` then. Returns what has happened to it
    /// already, if anything. A lease that was revoked or returned meanwhile is not recorded.
    pub fn put(&self, id: LeaseId, kind: LeaseKind, handle: &Handle, used: u64) -> Option<Early> {
        let mut inner = self.inner.lock();
        if let Some(early @ (Early::Revoked | Early::Returned)) = inner.grants.news(id) {
            return Some(*early);
        }
        if inner.below.insert(id, (handle.into(), kind)).is_none() {
            inner.order.push_back((id, used));
        }
        inner.grants.take(id)
    }

    /// The layer above gets the lease `id`, under the id `above`.
    pub fn give(&self, id: LeaseId, above: LeaseId) {
        self.inner.lock().above.insert(above, id);
    }

    /// The layer below has processed the return of a lease: replies to calls sent from now on do not report
    /// it.
    pub fn forget(&self, id: LeaseId) {
        self.inner.lock().grants.remember(id, Early::Returned);
    }

    /// Removes a lease that is no longer held. The caller must call `forget` afterwards.
    pub fn take(&self, id: LeaseId, above: LeaseId) {
        let mut inner = self.inner.lock();
        inner.below.remove(&id);
        inner.leaving.remove(&id);
        inner.above.remove(&above);
        inner.grants.keep(id, Early::Returned);
        if inner.order.len() > 64 && inner.order.len() > inner.below.len() * 2 {
            let HeldLeases { order, below, .. } = &mut *inner;
            order.retain(|(id, _)| below.contains_key(id));
        }
    }

    /// The object that has the lease `id`. If the lease is unknown but its grant may be in flight, remembers
    /// `early` for the grant and returns `Ok(None)`. Returns `Err` if no grant is in flight, or if too much
    /// is remembered already.
    pub fn find(&self, id: LeaseId, early: Early) -> Result<Option<Handle>, ()> {
        let mut inner = self.inner.lock();
        if let Some((handle, _)) = inner.below.get(&id) {
            return Ok(Some(handle.handle()));
        }
        if !inner.grants.can_hear() {
            return Err(());
        }
        // A lease that has ended stays ended, whatever else is reported of it.
        if !matches!(inner.grants.news(id), Some(Early::Returned | Early::Revoked)) {
            inner.grants.hear(id, early);
        }
        Ok(None)
    }

    /// The object that has this lease, if it is held.
    pub fn holder(&self, id: LeaseId) -> Option<Handle> {
        self.inner.lock().below.get(&id).map(|(handle, _)| handle.handle())
    }

    /// All objects with a lease.
    pub fn all(&self) -> Vec<SharedHandle> {
        self.inner.lock().below.values().map(|(handle, _)| handle.clone()).collect()
    }

    /// The layer above has returned the lease with this id there. Returns the object, if the layer held it.
    pub fn take_back(&self, above: LeaseId) -> Option<Handle> {
        let mut inner = self.inner.lock();
        let id = inner.above.remove(&above)?;
        inner.below.get(&id).map(|(handle, _)| handle.handle())
    }

    /// The objects with the least recently used leases beyond `keep`, approximately. Their leases count as
    /// leaving. `last_use` tells when an object was last used.
    pub fn beyond(&self, keep: usize, last_use: impl Fn(&Handle) -> Option<u64>) -> Vec<SharedHandle> {
        let mut chosen = Vec::new();
        let mut looks = self.inner.lock().order.len() * 2;
        while looks > 0 {
            // Others use the table between.
            let now = looks.min(LOOKS_MAX);
            if self.inner.lock().choose(keep, now, &last_use, &mut chosen) {
                break;
            }
            looks -= now;
        }
        chosen
    }

    /// Is a lease held, or may one be in flight?
    pub fn may_be_held(&self) -> bool {
        let inner = self.inner.lock();
        !inner.below.is_empty() || !inner.grants.calls().is_empty()
    }

    /// The number of read leases and of write leases.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let write = inner.below.values().filter(|(_, kind)| *kind == LeaseKind::Write).count() as u64;
        (inner.below.len() as u64 - write, write)
    }

    /// The number of calls in flight that may bring a lease.
    pub fn grants_in_flight(&self) -> usize {
        self.inner.lock().grants.calls().len()
    }

    /// The number of leases.
    pub fn len(&self) -> usize {
        self.inner.lock().below.len()
    }

    /// A new id for the layer above.
    pub fn name(&self) -> LeaseId {
        LeaseId(self.names.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_recalled_and_then_revoked_before_its_grant_has_ended() {
        let (leases, id, handle) = (Leases::default(), LeaseId(1), Handle::new(b"file").unwrap());
        let call = leases.begin_grant();
        let deadline = tokio::time::Instant::now();
        let recall = Recall { id, handle, keep: None, deadline };
        assert_eq!(leases.find(id, Early::Recall(recall)), Ok(None));
        assert_eq!(leases.find(id, Early::Revoked), Ok(None));
        assert_eq!(leases.find(id, Early::Recall(recall)), Ok(None));
        let early = leases.put(id, LeaseKind::Read, &handle, 0);
        assert!(matches!(early, Some(Early::Revoked)), "{early:?}");
        assert!(leases.end_grant(call).is_empty());
    }
}
