//! Byte-range locks: under a write lease the cache keeps them alone, otherwise the origin does.
//!
//! A lock that the origin grants is a coherence point like an open: a client drops its cache and looks
//! again, and must see what the last holder wrote. So without a lease, everything known here is asked for
//! again at its next use.

use std::sync::Arc;

use vfs::{
    Caller, Handle, Lock, LockKind, LockRequest, Locked, OpenId, Owner, Result, Share, Shares, Status,
};

use crate::core::Core;
use crate::table::Object;
use crate::upstream::Use;
use crate::writes::Level;

impl Core {
    /// LOCK.
    pub async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        let object = self.opened_object(open)?;
        let needed = if request.lock.kind == LockKind::Exclusive { Share::WRITE } else { Share::READ };
        let shares = self.with(&object, |state| state.held.opens.shares(open)).ok_or(Status::BadStateId)?;
        if !shares.access.contains(needed) {
            return Err(Status::OpenMode.into());
        }
        if request.reclaim && self.has_locks_below() {
            return self.reclaim_lock(caller, &object, open, &request.lock).await;
        }
        if let Some(locked) = self.lock_here(&object, open, &request.lock) {
            return Ok(locked);
        }
        self.may_change()?;
        // Run to completion: a granted lock must be recorded even if the requester gives up.
        let core = self.share().ok_or(Status::ServerFault)?;
        let (caller, request) = (caller.clone(), request.clone());
        vfs::run_to_completion(async move { core.lock_at_origin(&caller, &object, open, &request).await })
            .await
    }

    /// Takes a lock without the origin, if the cache keeps locks alone.
    pub fn lock_here(&self, object: &Arc<Object>, open: OpenId, lock: &Lock) -> Option<Locked> {
        self.with(object, |state| {
            let alone = self.keeps_locks_alone();
            let range = (lock.offset, lock.length);
            if !alone && (!state.keeps_locks() || state.held.locks.is_told(&lock.owner, range)) {
                return None;
            }
            if let Some(other) = state.held.locks.conflict(lock) {
                return Some(Locked::Denied(other));
            }
            let granted = state.held.locks.take(open, lock.clone(), false).then_some(Locked::Granted)?;
            // Under the lease no other client has had the file open. So another client can have held this
            // lock only before it.
            if let Some(lease) = &state.held.lease {
                self.policy.news.locked(lease.since);
            }
            Some(granted)
        })
    }

    async fn lock_at_origin(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        open: OpenId,
        request: &LockRequest,
    ) -> Result<Locked> {
        // If a lease is being returned, its locks are sent to the origin first.
        drop(object.locking.lock().await);
        let lock = &request.lock;
        if let Some(other) = self.with(object, |state| state.held.locks.untold_conflict(lock)) {
            return Ok(Locked::Denied(other));
        }
        let usage = self.use_for_locks(caller, object, open).await?;
        let result = match &usage {
            Some(usage) => {
                self.counters.lock.bump();
                self.with(object, |state| state.held.locks.under_way += 1);
                let result = self.below.lock(caller, usage.id, request).await;
                self.with(object, |state| state.held.locks.under_way -= 1);
                result
            }
            None => Err(Status::NotSupp.into()),
        };
        match result {
            Ok(Locked::Granted) => {
                let kept = self.with(object, |state| {
                    // The last holder of the lock may have changed the file, and this one may read it now.
                    // So the lock counts as an open.
                    if state.leased().is_none() {
                        state.distrust(&self.policy);
                        self.policy.news.locked(self.policy.event());
                    }
                    state.held.opens.shares(open).is_some() && state.held.locks.take(open, lock.clone(), true)
                });
                if kept {
                    return Ok(Locked::Granted);
                }
                // The open has been closed meanwhile, or there are too many locks: give this one back.
                if let Some(usage) = &usage {
                    let _ =
                        self.below.unlock(caller, usage.id, &lock.owner, (lock.offset, lock.length)).await;
                }
                Err(Status::Delay.into())
            }
            Ok(denied) => Ok(denied),
            Err(error) if error.status == Status::NotSupp => {
                self.no_locks_below();
                self.lock_here(object, open, lock).ok_or(Status::Delay.into())
            }
            Err(error) => {
                if let Some(usage) = &usage {
                    self.lose_open(object, usage.id, &error);
                }
                Err(error)
            }
        }
    }

    /// The origin's open, for a lock. If the origin has lost it, opens the file again. None if the origin
    /// has no locks.
    async fn use_for_locks(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        open: OpenId,
    ) -> Result<Option<Use>> {
        if !self.has_locks_below() {
            return Ok(None);
        }
        let shares = self.with(object, |state| state.held.opens.shares(open)).ok_or(Status::BadStateId)?;
        if let Some(usage) = self.use_open_in_turn(object, shares).await {
            return Ok(Some(usage));
        }
        let turn = object.turn.clone().lock_owned().await;
        let request = Core::open_handle_below(object.handle, shares, vfs::Want::Any);
        let usage = self.ask_open(caller, request, Some(turn)).await?.usage;
        usage.ok_or(Status::Delay.into()).map(Some)
    }

    /// LOCKU.
    pub async fn unlock(
        &self,
        caller: &Caller,
        open: OpenId,
        owner: &Owner,
        range: (u64, u64),
    ) -> Result<()> {
        let object = self.opened_object(open)?;
        // The next holder must find what was written under the lock.
        if !self.with(&object, |state| state.keeps_locks()) {
            self.flush_writes(&object, Level::Stable).await;
        }
        if self.unlock_here(&object, owner, range) {
            return Ok(());
        }
        {
            let _locking = object.locking.lock().await;
            if self.unlock_here(&object, owner, range) {
                return Ok(());
            }
            // A return of the lease that begins now must not send these locks to the origin: no owner holds
            // them any more.
            self.with(&object, |state| state.held.locks.give_up_untold(owner, range));
        }
        if let Some(usage) = self.use_open_in_turn(&object, Shares::NONE).await {
            self.counters.lock.bump();
            if let Err(error) = self.below.unlock(caller, usage.id, owner, range).await {
                self.lose_open(&object, usage.id, &error);
                // A lock that the origin has lost is as good as unlocked.
                if error.status != Status::BadStateId {
                    return Err(error);
                }
            }
        }
        self.with(&object, |state| state.held.locks.give_up(owner, range));
        Ok(())
    }

    fn unlock_here(&self, object: &Arc<Object>, owner: &Owner, range: (u64, u64)) -> bool {
        self.with(object, |state| {
            let here =
                (state.keeps_locks() && !state.held.locks.is_told(owner, range)) || self.keeps_locks_alone();
            if here {
                state.held.locks.give_up(owner, range);
            }
            here
        })
    }

    /// LOCKT: the first conflicting lock, by offset. Asks the origin if a lock of another client may begin
    /// earlier.
    pub async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        let object = self.object(handle);
        let (here, conflict) =
            self.with(&object, |state| (state.keeps_locks(), state.held.locks.conflict(lock)));
        let lockless = self.has_state() == Some(false) && !self.has_locks_below();
        let only_ours = here || self.keeps_locks_alone() || lockless;
        if only_ours || !lock.may_meet_earlier(conflict.as_ref()) {
            return Ok(conflict);
        }
        self.counters.lock.bump();
        match self.below.test(caller, handle, lock).await {
            Ok(theirs) => Ok(Lock::first(conflict, theirs)),
            // A conflicting lock of ours is an answer, whatever the origin says.
            Err(_) if conflict.is_some() => Ok(conflict),
            Err(error) if error.status == Status::NotSupp => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Does this owner hold a lock on the open's file?
    pub fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.opened_object(open).is_ok_and(|object| self.with(&object, |state| state.held.locks.holds(owner)))
    }
}
