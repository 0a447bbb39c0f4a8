//! What is held at the origin since before this process: taken over, reclaimed by our clients, or given up.
//!
//! The layer below says what it still holds ([`vfs::Adopted`]). Nobody else could have what it excludes meanwhile, so
//! that a client of ours that says that it had an open or a lock has it again, if what is held covers it, without a call;
//! and is refused if not, since somebody else may have had it (RFC 8881, section 8.4.2). What nobody has reclaimed when
//! the front says that it is over goes.
//!
//! Under a lease that was adopted, what the index has of the file is believed without a call only if it was all there
//! was to know when the last process ended. The index says so of an object with the lease's name, which is put there
//! when all is told, and taken away before a change of ours is sent and before the lease ends. Both are done with the
//! object's state locked, so that none overtakes the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use vfs::{
    AdoptedLease, AdoptedOpen, Caller, Handle, Lease, LeaseId, Lock, Locked, OpenId, OpenRequest, Opened,
    Result, Share, Status,
};

use crate::core::Core;
use crate::filesystem::lock::keeps_locks;
use crate::filesystem::open::shares_of;
use crate::lease::{Early, HeldLease};
use crate::opens::Shares;
use crate::store::{Batch, Table};
use crate::table::Object;

/// Pairs of the index that are looked at together.
const PAGE: usize = 1000;
/// Unlocks under way at a time.
const AT_ONCE: usize = 32;
/// How long the end of the process may be held up.
const RETURN_ALL_WAIT: Duration = Duration::from_secs(5);

/// What is held for an earlier process.
#[derive(Debug, Default)]
pub struct Adopting {
    /// Anything at all was adopted.
    any: AtomicBool,
    /// Nothing is reclaimed any more.
    over: AtomicBool,
    /// Woken when that is so.
    ended: Notify,
    objects: Mutex<Vec<Arc<Object>>>,
}

impl Adopting {
    /// Returns when nothing is reclaimed any more.
    pub async fn ended(&self) {
        loop {
            let notified = self.ended.notified();
            if self.over.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

impl Core {
    /// Takes over what the layer below still holds. May block.
    pub fn adopt(&self) {
        let adopted = self.below.adopted();
        let vouched = self.vouched_for(&adopted.leases);
        for lease in &adopted.leases {
            let vouched = vouched.contains(&lease.handle);
            let object = self.table.get(&lease.handle, || self.load_as(&lease.handle, vouched));
            if vouched && !self.with(&object, |state| state.is_vouched()) {
                // For what it no longer has.
                self.unvouch(&lease.handle);
            }
            self.adopt_lease(&object, lease);
            self.adopting.objects.lock().push(object);
        }
        for open in adopted.opens {
            let object = self.glance(&open.handle);
            self.adopt_open(&object, open);
            self.adopting.objects.lock().push(object);
        }
        let any = !self.adopting.objects.lock().is_empty();
        self.adopting.any.store(any, Ordering::Release);
        if self.leases.len() > self.options.leases_max {
            self.trim_leases(self.options.leases_max);
        }
    }

    /// Of which files the index has all, by leases that are held. It no longer says so of any other.
    fn vouched_for(&self, leases: &[AdoptedLease]) -> std::collections::HashSet<Handle> {
        let held: std::collections::HashMap<Handle, LeaseId> =
            leases.iter().map(|lease| (lease.handle, lease.id)).collect();
        let mut vouched = std::collections::HashSet::new();
        let mut from = Vec::new();
        loop {
            let page = self.index.scan(Table::Leases, &[], &from, PAGE);
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
            self.index.commit(batch);
        }
    }

    fn adopt_lease(&self, object: &Arc<Object>, adopted: &AdoptedLease) {
        let above = self.leases.name();
        let lease = Lease {
            id: adopted.id,
            kind: adopted.kind,
            until: None,
            change: 0,
            space_limit: Lease::NO_SPACE_LIMIT,
        };
        if matches!(
            self.leases.put(lease.id, above, lease.kind, object),
            Some(Early::Revoked | Early::Returned)
        ) {
            return;
        }
        self.with(object, |state| {
            state.adopt_lease(&self.policy, |since, from| {
                HeldLease::granted(&lease, above, since, from).since_before()
            });
        });
    }

    fn adopt_open(&self, object: &Arc<Object>, open: AdoptedOpen) {
        let shares = Shares { access: open.access, deny: open.deny };
        let caller = Caller { principal: open.principal, ..Caller::machine() };
        let had = open.had.into_iter().map(|(access, deny)| Shares { access, deny }).collect();
        self.with(object, |state| {
            state.opens.adopt(open.id, shares, caller, had);
            open.locks.into_iter().for_each(|lock| state.locks.adopt(lock));
        });
    }

    /// An open that was held before: if the origin has one that covers it since then.
    pub async fn reclaim_open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let over = self.adopting.over.load(Ordering::Acquire);
        if over || !self.adopting.any.load(Ordering::Acquire) {
            return Err(Status::NoGrace.into());
        }
        let object = self.object(&request.handle);
        let shares = shares_of(request);
        let was_open = self.with(&object, |state| state.opens.was_open(shares));
        let usage = if was_open { self.use_open_in_turn(&object, shares).await } else { None };
        // It is not closed while we ask.
        let Some(_usage) = usage else { return Err(Status::ReclaimBad.into()) };
        let arrived = self.policy.event();
        let known = self.with(&object, |state| state.leased().copied());
        let attributes = match known {
            Some(attributes) => attributes,
            None => self.fresh(caller, &object, arrived).await?,
        };
        self.with(&object, |state| {
            if !state.opens.was_open(shares) {
                return Err(Status::ReclaimBad.into());
            }
            self.counters.opens_shared.bump();
            Ok(self.opened_here(caller, request, &object, state, attributes))
        })
    }

    /// A lock that was held before: if the origin holds it since then, or a lease for writing that kept everybody else
    /// away.
    pub async fn reclaim_lock(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        open: OpenId,
        lock: &Lock,
    ) -> Result<Locked> {
        if self.adopting.over.load(Ordering::Acquire) {
            return Err(Status::NoGrace.into());
        }
        let (held, alone) = self.with(object, |state| {
            let held = state.locks.reclaim(open, lock);
            (held, keeps_locks(state) && state.lease.as_ref().is_some_and(|lease| lease.adopted))
        });
        if held {
            return Ok(Locked::Granted);
        }
        if !alone && !self.keeps_locks_alone() {
            // An origin that has no locks says so of this question as well.
            match self.below.test(caller, &object.handle, lock).await {
                Err(error) if error.status == Status::NotSupp => self.no_locks_below(),
                _ => return Err(Status::NoGrace.into()),
            }
        }
        self.lock_here(object, open, lock).ok_or(Status::NoGrace.into())
    }

    /// Nothing is reclaimed any more: what was not goes.
    pub async fn end_reclaim(&self) {
        self.adopting.over.store(true, Ordering::Release);
        self.adopting.ended.notify_waiters();
        let objects = std::mem::take(&mut *self.adopting.objects.lock());
        let mut unlocks = JoinSet::new();
        for object in objects {
            if unlocks.len() >= AT_ONCE {
                unlocks.join_next().await;
            }
            let Some(core) = self.share() else { return };
            let locked = self.with(&object, |state| !state.locks.is_empty());
            if locked {
                unlocks.spawn(async move { core.unlock_adopted(&object).await });
            } else {
                core.settle_soon(&object);
            }
        }
        while unlocks.join_next().await.is_some() {}
    }

    /// Gives up the locks of a file that nobody reclaimed.
    async fn unlock_adopted(&self, object: &Arc<Object>) {
        // If a lease is being returned, the locks under it are told first.
        drop(object.locking.lock().await);
        let usage = self.use_open_in_turn(object, Shares::from(Share::empty())).await;
        let (locks, caller) = self.with(object, |state| {
            let caller = state.opens.upstream().map(|upstream| upstream.caller.clone());
            (state.locks.take_adopted(), caller)
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

    /// The process ends: leases on files that nobody here uses are returned, so that nobody elsewhere has to wait for them
    /// if there is no next process. The others are left to the layer below.
    pub async fn return_unused(&self) {
        let Some(core) = self.share() else { return };
        let unused = |object: &Arc<Object>| {
            self.with(object, |state| {
                state.lease.is_some() && !state.opens.is_local() && state.locks.is_empty()
            })
        };
        let objects = self.leases.all().into_iter().filter(unused).collect();
        let _ = tokio::time::timeout(RETURN_ALL_WAIT, core.return_all(objects)).await;
    }

    /// Tells the index that what it has of an object is vouched for, if it is. The index has just been told all.
    pub fn vouch(&self, object: &Arc<Object>) {
        let mut state = object.state.lock();
        if object.queued.load(Ordering::Acquire) {
            return;
        }
        if let Some(id) = state.vouch() {
            let mut batch = Batch::default();
            batch.put(Table::Leases, object.handle.as_bytes().to_vec(), id.0.to_be_bytes().to_vec());
            self.index.commit(batch);
        }
    }

    /// Tells it otherwise. The state is locked.
    pub fn unvouch(&self, handle: &Handle) {
        let mut batch = Batch::default();
        batch.remove(Table::Leases, handle.as_bytes().to_vec());
        self.index.commit(batch);
        if self.index.is_untrue() && self.leases.len() > 0 {
            // What it says cannot be changed any more: no lease may be there that it could speak of.
            self.trim_leases(0);
        }
    }
}
