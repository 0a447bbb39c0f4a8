//! LOCK, LOCKU and LOCKT.

use bytes::Bytes;
use protocol::nfs4::{
    FreeStateidArgs, LockArgs, LockDenied, LockFailure, Locker, LocktArgs, LockuArgs, NfsLockType, Op,
    Operation, Results, op,
};
use vfs::locks::{LockRange, LockRanges};
use vfs::{Caller, Handle, Lock, LockKind, LockRequest, Locked, OpenId, Owner, Result, Status};

use super::attributes::put;
use super::execute::{Plan, status_of};
use super::opens::wire_owner;
use super::state::{Doubt, Locks, Open, State, Used, latest};
use super::{Nfs4, Nfs4Client};

/// Marks an owner of another client, in the place where our owners have 0 or 1.
const FOREIGN: u8 = 0xff;

/// Encodes the type of a lock.
pub(super) fn lock_type(kind: LockKind, wait: bool) -> NfsLockType {
    match (kind, wait) {
        (LockKind::Shared, false) => NfsLockType::Read,
        (LockKind::Shared, true) => NfsLockType::Readw,
        (LockKind::Exclusive, false) => NfsLockType::Write,
        (LockKind::Exclusive, true) => NfsLockType::Writew,
    }
}

/// The locker of a LOCK: an owner with locks through this open, or one without any yet.
pub(super) fn locker(open: &Open, owner: &Owner) -> Option<Locker> {
    if let Some(locks) = open.locks().get(owner) {
        return Some(Locker::LockOwner { lock_stateid: latest(locks.stateid), lock_seqid: 0 });
    }
    let open_stateid = latest(open.stateid?);
    let lock_owner = wire_owner(owner);
    Some(Locker::OpenOwner { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner })
}

impl Nfs4 {
    pub(super) async fn take_lock(
        &self,
        caller: &Caller,
        id: OpenId,
        request: &LockRequest,
    ) -> Result<Locked> {
        let (inner, asker, wanted) = (self.inner.clone(), caller.clone(), request.clone());
        let lock = request.lock.clone();
        let work = async move { inner.lock(&asker, id, &wanted).await };
        self.to_the_end(caller, work, move |inner, locked| {
            if locked == Locked::Granted {
                tokio::spawn(async move {
                    let range = (lock.offset, lock.length);
                    let _ = inner.unlock(&Caller::machine(), id, &lock.owner, range).await;
                });
            }
        })
        .await
    }

    pub(super) async fn give_up_lock(
        &self,
        caller: &Caller,
        id: OpenId,
        owner: &Owner,
        range: (u64, u64),
    ) -> Result<()> {
        let (inner, asker, owner) = (self.inner.clone(), caller.clone(), owner.clone());
        let work = async move { inner.unlock(&asker, id, &owner, range).await };
        self.to_the_end(caller, work, |_, ()| {}).await
    }
}

impl Nfs4Client {
    pub(super) fn has_locks(&self, id: OpenId, owner: &Owner) -> bool {
        let state = self.state.lock();
        let held = |open: &Open| open.locks().get(owner).is_some_and(|locks| !locks.ranges.is_empty());
        state.opens_beside(id).any(held)
    }

    /// Waits for this caller's turn to send a LOCK or LOCKU of an open.
    async fn turn(&self, id: OpenId) -> Result<tokio::sync::OwnedMutexGuard<()>> {
        let turn = self.state.lock().turn(id).ok_or(Status::BadStateId)?;
        Ok(turn.lock_owned().await)
    }

    async fn lock(&self, caller: &Caller, id: OpenId, request: &LockRequest) -> Result<Locked> {
        let _turn = self.turn(id).await?;
        let lock = &request.lock;
        let build = |state: &State| {
            let open = state.open(id).ok_or(Status::BadStateId)?;
            let locker = locker(open, &lock.owner).ok_or(Status::BadStateId)?;
            let used = match locker {
                Locker::LockOwner { .. } => Used::Lock(id, lock.owner.clone()),
                Locker::OpenOwner { .. } => Used::Open(id),
            };
            let args = LockArgs {
                locktype: lock_type(lock.kind, request.wait),
                reclaim: false,
                offset: lock.offset,
                length: lock.length,
                locker,
            };
            Ok((vec![put(&open.handle())?, op::Lock::with(args)], used))
        };
        let range = LockRange::of(lock);
        self.state.lock().doubt(id, &lock.owner, Doubt { range, unlocking: false });
        let mut results = self.run(caller, Plan::stateful(Operation::Lock), build).await?.results;
        let taken = match self.take::<op::Putfh>(&mut results) {
            Ok(()) => results.result::<op::Lock>().map_err(|error| self.failed(&error)),
            Err(failed) => Err(failed),
        };
        if !matches!(taken, Ok(Ok(_))) {
            self.state.lock().sure(id, &lock.owner);
        }
        match taken? {
            Ok(ok) => {
                if let Some(open) = self.state.lock().open_mut(id) {
                    let handle = open.handle();
                    let locking = open.locking_mut();
                    locking.doubts.remove(&lock.owner);
                    let fresh = || Locks { stateid: ok.lock_stateid, ranges: LockRanges::default() };
                    let locks = locking.locks.entry(lock.owner.clone()).or_insert_with(fresh);
                    locks.stateid = ok.lock_stateid;
                    locks.ranges.lock(range);
                    self.back.waits_no_more(handle, &lock.owner);
                }
                Ok(Locked::Granted)
            }
            Err(LockFailure::Denied(denied)) => {
                if let (true, Some(holder)) = (request.wait, caller.holder) {
                    let handle = self.state.lock().open(id).map(Open::handle);
                    self.back.waits(handle, holder, &lock.owner);
                }
                Ok(Locked::Denied(self.in_the_way(denied)))
            }
            Err(failure) => Err(status_of(&failure).into()),
        }
    }

    async fn unlock(&self, caller: &Caller, id: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        let _turn = self.turn(id).await?;
        let (start, end) = (range.0, range.0.saturating_add(range.1));
        let left = {
            let state = self.state.lock();
            let open = state.open(id).ok_or(Status::BadStateId)?;
            // The owner has no locks.
            let Some(locks) = open.locks().get(owner) else { return Ok(()) };
            let mut left = locks.ranges.clone();
            left.unlock(start, end);
            left
        };
        let build = |state: &State| {
            let open = state.open(id).ok_or(Status::BadStateId)?;
            let lock_stateid = latest(open.locks().get(owner).ok_or(Status::BadStateId)?.stateid);
            let args = LockuArgs {
                locktype: NfsLockType::Write,
                seqid: 0,
                lock_stateid,
                offset: range.0,
                length: range.1,
            };
            let mut operations = vec![put(&open.handle())?, op::Locku::with(args)];
            if left.is_empty() {
                // Free the state id, so that the server need not keep an owner without locks.
                operations.push(op::FreeStateid::with(FreeStateidArgs { stateid: lock_stateid }));
            }
            Ok((operations, Used::Lock(id, owner.clone())))
        };
        let range = LockRange { start, end, kind: LockKind::Exclusive };
        self.state.lock().doubt(id, owner, Doubt { range, unlocking: true });
        let mut results = self.run(caller, Plan::stateful(Operation::Locku), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let stateid = self.take::<op::Locku>(&mut results)?.lock_stateid;
        let freed = left.is_empty() && results.take::<op::FreeStateid>().is_ok();
        if let Some(open) = self.state.lock().open_mut(id) {
            let locking = open.locking_mut();
            locking.doubts.remove(owner);
            if freed {
                locking.locks.remove(owner);
            } else if let Some(locks) = locking.locks.get_mut(owner) {
                *locks = Locks { stateid, ranges: left };
            }
        }
        Ok(())
    }

    pub(super) async fn test_lock(
        &self,
        caller: &Caller,
        handle: &Handle,
        lock: &Lock,
    ) -> Result<Option<Lock>> {
        let build = |_: &State| {
            let args = LocktArgs {
                locktype: lock_type(lock.kind, false),
                offset: lock.offset,
                length: lock.length,
                owner: wire_owner(&lock.owner),
            };
            Ok((vec![put(handle)?, op::Lockt::with(args)], Used::Nothing))
        };
        let mut results: Results = self.run(caller, Plan::reading(Operation::Lockt), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        match results.result::<op::Lockt>().map_err(|error| self.failed(&error))? {
            Ok(()) => Ok(None),
            Err(LockFailure::Denied(denied)) => Ok(Some(self.in_the_way(denied))),
            Err(failure) => Err(status_of(&failure).into()),
        }
    }

    /// Converts a conflicting lock. An owner of another client must differ from all of ours.
    fn in_the_way(&self, denied: LockDenied) -> Lock {
        let ours = self.client.lock().id;
        let owner = denied.owner.owner.into_bytes();
        let owner = if denied.owner.clientid == ours {
            owner
        } else {
            let mut foreign = denied.owner.clientid.to_be_bytes().to_vec();
            foreign.push(FOREIGN);
            foreign.extend_from_slice(&owner);
            Bytes::from(foreign)
        };
        let kind = match denied.locktype {
            NfsLockType::Read | NfsLockType::Readw => LockKind::Shared,
            NfsLockType::Write | NfsLockType::Writew => LockKind::Exclusive,
        };
        Lock { owner: Owner(owner), kind, offset: denied.offset, length: denied.length }
    }
}
