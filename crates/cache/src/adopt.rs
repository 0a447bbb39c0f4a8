//! State that the origin has held since before this process: taken over, reclaimed by our clients, or given
//! up.
//!
//! The layer below reports what it still holds ([`vfs::Adopted`]). No other client could meanwhile get
//! anything that this state excludes. If a client of ours reclaims an open or a lock that this state covers,
//! the cache grants it without a call. Otherwise the cache refuses, because another client may have had it
//! (RFC 8881, section 8.4.2). When the front ends the reclaim phase, the cache gives up everything that no
//! client has reclaimed.
//!
//! Under an adopted lease, the cache believes the index entry of a file only if the entry was up to date. It
//! must have held everything there was to know when the last process ended. For such an object, the index
//! records the id of the lease. The cache writes that record when everything else is written. It removes the
//! record before it sends a change of ours, and before the lease ends. Both happen with the object's state
//! locked, so that neither overtakes the other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use vfs::{
    AdoptedLease, AdoptedOpen, Caller, Handle, LeaseId, Lock, Locked, OpenId, OpenRequest, Opened, Result,
    Share, SharedHandle, Shares, StateidBasis, Status,
};

use crate::core::Core;
use crate::lease::Early;
use crate::object::RestingLease;
use crate::opens::RestingOpen;
use crate::store::{Batch, Table};
use crate::table::{Found, Object};
use crate::upstream::untold::may_be_reclaimed;

/// Pairs of the index that are read at a time.
const PAGE: usize = 1000;
/// Unlocks in flight at a time.
const AT_ONCE: usize = 32;
/// The longest time that giving up locks may delay the end of the reclaim phase.
const GIVE_UP_WAIT: Duration = Duration::from_secs(5);
/// The longest time that returning leases may delay the end of the process.
const RETURN_ALL_WAIT: Duration = Duration::from_secs(5);

impl Core {
    /// Takes over everything that the layer below still holds. May block. A lease rests until its file is
    /// used, with the open that it keeps.
    pub fn adopt(&self) {
        let adopted = self.below.adopted();
        let vouched = self.vouched_for(&adopted.leases);
        let leased: HashSet<Handle> = adopted.leases.iter().map(|lease| lease.handle).collect();
        // What an open denies others is given up with the reclaim phase.
        let rests = |open: &AdoptedOpen| {
            open.locks.is_empty() && open.shares.deny.is_empty() && leased.contains(&open.handle)
        };
        let (resting, awake): (Vec<_>, Vec<_>) = adopted.opens.into_iter().partition(rests);
        let mut resting: HashMap<Handle, AdoptedOpen> =
            resting.into_iter().map(|open| (open.handle, open)).collect();
        for lease in &adopted.leases {
            let vouched = vouched.contains(&lease.handle);
            self.adopt_lease(lease, vouched, resting.remove(&lease.handle));
        }
        for open in awake {
            self.adopt_awake(open);
        }
        if self.origin.leases().len() > self.options.leases_max {
            self.trim_leases(self.options.leases_max);
        }
    }

    /// The files whose index entries are vouched for by a lease that is held. Removes that record from all
    /// other files.
    fn vouched_for(&self, leases: &[AdoptedLease]) -> HashSet<Handle> {
        let held: HashMap<Handle, LeaseId> = if self.options.taken_over {
            HashMap::new()
        } else {
            leases.iter().map(|lease| (lease.handle, lease.id)).collect()
        };
        let mut vouched = HashSet::new();
        let mut from = Vec::new();
        loop {
            let page = self.disk.index().scan(Table::Leases, &[], &from, PAGE);
            let Some((last, _)) = page.last() else { return vouched };
            from.clone_from(last);
            from.push(0);
            let mut batch = Batch::default();
            for (key, value) in page {
                let id = value.try_into().map(|value| LeaseId(u64::from_be_bytes(value))).ok();
                match Handle::new(&key) {
                    Some(handle) if id.is_some() && held.get(&handle).copied() == id => {
                        vouched.insert(handle);
                    }
                    _ => batch.remove(Table::Leases, key),
                }
            }
            self.disk.index().commit(batch);
        }
    }

    fn adopt_lease(&self, adopted: &AdoptedLease, vouched: bool, open: Option<AdoptedOpen>) {
        let leases = self.origin.leases();
        let early = leases.put(adopted.id, adopted.kind, &adopted.handle, 0);
        if matches!(early, Some(Early::Revoked | Early::Returned)) {
            if let Some(open) = open {
                self.adopt_awake(open);
            }
            return;
        }
        let kept = open.as_ref().map(|open| open.id);
        let open = open.map(|open| RestingOpen::adopted(open.id, open.shares, open.principal, open.had));
        let lease = (adopted.id, adopted.kind);
        let lease = RestingLease::adopted(lease, leases.name(), self.policy.event(), vouched, open);
        if self.memory.table().insert_lease(&adopted.handle, &lease) {
            self.origin.adopting().note();
            kept.into_iter().for_each(|open| self.enter_kept_open(&adopted.handle, open));
            return;
        }
        let object = self.glance(&adopted.handle);
        self.with(&object, |state| {
            if vouched {
                self.unvouch(&adopted.handle);
            }
            state.wake_lease(&self.policy, &lease, false);
        });
        self.origin.adopting().add(object);
        kept.into_iter().for_each(|open| self.enter_kept_open(&adopted.handle, open));
    }

    fn adopt_awake(&self, open: AdoptedOpen) {
        let object = self.glance(&open.handle);
        self.adopt_open(&object, open);
        self.origin.adopting().add(object);
    }

    fn adopt_open(&self, object: &Arc<Object>, open: AdoptedOpen) {
        let caller = Caller { principal: open.principal, ..Caller::machine() };
        self.with(object, |state| {
            state.held.opens.adopt(open.id, open.shares, caller, open.had);
            open.locks.into_iter().for_each(|lock| state.held.locks.adopt(lock));
        });
    }

    /// Reclaims an open that a client held before. Succeeds if the origin has held an open that covers it
    /// since then, or, for reading, if a lease has kept others away since then.
    pub async fn reclaim_open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        if self.origin.adopting().is_over() || !self.origin.adopting().has_any() {
            return Err(Status::NoGrace.into());
        }
        let object = self.object(&request.handle);
        let shares = request.shares();
        let was_open = self.with(&object, |state| state.held.opens.was_open(shares));
        // Keeps the open at the origin from being closed meanwhile.
        let usage = if was_open { self.use_open_in_turn(&object, shares).await } else { None };
        let told = usage.is_some();
        if !told && !self.with(&object, |state| may_be_reclaimed(state, shares)) {
            return Err(Status::ReclaimBad.into());
        }
        if !told {
            // The origin has not checked this user's right, as it has for an open of its own.
            self.may_use_data(caller, StateidBasis::Anonymous, &object).await?;
        }
        let arrived = self.policy.event();
        let known = self.with(&object, |state| state.leased().copied());
        let attributes = match known {
            Some(attributes) => attributes,
            None => self.fresh(caller, &object, arrived).await?,
        };
        self.with(&object, |state| {
            if told && state.held.opens.was_open(shares) {
                self.counters.opens_shared.bump();
                return Ok(self.opened_here(caller, request, &object, state, attributes));
            }
            if !may_be_reclaimed(state, shares) {
                return Err(Status::ReclaimBad.into());
            }
            self.counters.opens_shared.bump();
            let opened = self.opened_here(caller, request, &object, state, attributes);
            state.held.opens.set_untold(opened.id);
            Ok(opened)
        })
    }

    /// Reclaims a lock that a client held before. Succeeds if the origin has held it since then. Also
    /// succeeds if a write lease has been held since then, which kept every other client away.
    pub async fn reclaim_lock(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        open: OpenId,
        lock: &Lock,
    ) -> Result<Locked> {
        if self.origin.adopting().is_over() {
            return Err(Status::NoGrace.into());
        }
        let (held, alone) = self.with(object, |state| {
            let held = state.held.locks.reclaim(open, lock);
            (held, state.keeps_locks() && state.held.lease.as_ref().is_some_and(|lease| lease.adopted))
        });
        if held {
            return Ok(Locked::Granted);
        }
        if !alone && !self.keeps_locks_alone() {
            // An origin without locks says so in its reply to LOCKT as well.
            match self.below.test(caller, &object.handle, lock).await {
                Err(error) if error.status == Status::NotSupp => self.no_locks_below(),
                _ => return Err(Status::NoGrace.into()),
            }
        }
        self.lock_here(object, open, lock).ok_or(Status::NoGrace.into())
    }

    /// Ends the reclaim phase: gives up everything that no client has reclaimed.
    pub async fn end_reclaim(&self) {
        let objects = self.origin.adopting().end();
        let mut unlocks = JoinSet::new();
        for object in objects {
            if unlocks.len() >= AT_ONCE {
                unlocks.join_next().await;
            }
            let Some(core) = self.share() else { return };
            let locked = self.with(&object, |state| !state.held.locks.is_empty());
            if locked {
                unlocks.spawn(async move { core.unlock_adopted(&object).await });
            } else {
                core.settle_soon(&object);
            }
        }
        let all = async { while unlocks.join_next().await.is_some() {} };
        if tokio::time::timeout(GIVE_UP_WAIT, all).await.is_err() {
            // The origin does not answer. The caller must not wait for it.
            unlocks.detach_all();
        }
        self.close_surplus_soon();
    }

    /// Gives up the locks of a file that no client has reclaimed.
    async fn unlock_adopted(&self, object: &Arc<Object>) {
        // If a lease is being returned, first wait until the origin has been told of the locks under it.
        drop(object.locking.lock().await);
        let usage = self.use_open_in_turn(object, Shares::from(Share::empty())).await;
        let (locks, caller) = self.with(object, |state| {
            let caller = state.held.opens.upstream().map(|upstream| upstream.caller.clone());
            (state.held.locks.take_adopted(), caller)
        });
        if let (Some(usage), Some(caller)) = (usage, caller) {
            for lock in locks {
                self.counters.lock.bump();
                let range = (lock.offset, lock.length);
                if let Err(error) = self.below.unlock(&caller, usage.id, &lock.owner, range).await {
                    tracing::debug!("LOCKU of {}: {error}", object.handle);
                }
            }
        }
        self.settle_soon(object);
    }

    /// At the end of the process, returns the leases on files that no client here uses. If there is no next
    /// process, no other client then has to wait for them. The other leases are left to the layer below: with
    /// `leaves_given`, also those that clients hold, or may still reclaim.
    pub async fn return_unused(&self) {
        let Some(core) = self.share() else { return };
        let leaves_given = self.options.leaves_given;
        let adopting = self.origin.adopting();
        if leaves_given && adopting.has_any() && !adopting.is_over() {
            return;
        }
        let unused = |handle: &SharedHandle| {
            let table = self.memory.table();
            let Found::Awake(object) = table.find(&handle.handle(), None) else {
                return !(leaves_given && table.rests_given(&handle.handle()));
            };
            self.with(&object, |state| {
                state.held.lease.as_ref().is_some_and(|lease| !(leaves_given && lease.given))
                    && !state.held.opens.is_local()
                    && state.held.locks.is_empty()
            })
        };
        let unused = self.origin.leases().all().into_iter().filter(unused).collect();
        let _ = tokio::time::timeout(RETURN_ALL_WAIT, core.return_all(unused)).await;
    }

    /// Records in the index that a lease vouches for the entry of an object, if so. The caller has just
    /// written the entry.
    pub fn vouch(&self, object: &Arc<Object>) {
        let mut state = object.state.lock();
        if object.queued.load(Ordering::Acquire) {
            return;
        }
        if let Some(id) = state.vouch() {
            let mut batch = Batch::default();
            batch.put(Table::Leases, object.handle.as_bytes().to_vec(), id.0.to_be_bytes().to_vec());
            self.disk.index().commit(batch);
        }
    }

    /// Removes that record. The caller has the state locked.
    pub fn unvouch(&self, handle: &Handle) {
        let mut batch = Batch::default();
        batch.remove(Table::Leases, handle.as_bytes().to_vec());
        self.disk.index().commit(batch);
        if self.disk.index().is_untrue() && self.origin.leases().len() > 0 {
            // The record can no longer be removed, so no lease may be held that it could name.
            self.trim_leases(0);
        }
    }
}
