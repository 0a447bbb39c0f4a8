//! LOCK (RFC 8881, section 18.10).

use bytes::Bytes;
use protocol::nfs4::{
    LockArgs, LockFailure, LockOk, Locker, NfsLockType, ResOp, StateOwner, Stateid, Status, op,
};
use tokio::time::Instant;
use vfs::locks::is_range;
use vfs::{Lock, LockKind, LockRequest, Locked, OpenId, Share};

use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::nfs4::sequenced::{self, sequenced};
use crate::shared::Object;
use crate::state::grace::Claim;
use crate::state::names;
use crate::state::owners::{OwnerKind, OwnerName};
use crate::state::stateids::{HeldState, Kind, StateKey};
use crate::state::{Below, Scarce, Tables};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: LockArgs,
) -> Result<LockOk, LockFailure> {
    compound.file()?;
    match args.locker.clone() {
        Locker::LockOwner { lock_stateid, lock_seqid } => {
            let stateid = compound.stateid(lock_stateid)?;
            let request = (stateid, OwnerKind::Lock, lock_seqid);
            sequenced::<op::Lock>(compound, request, ResOp::Lock, async |compound| {
                again(compound, &args, stateid).await
            })
            .await
        }
        Locker::OpenOwner { open_seqid, open_stateid, lock_seqid, lock_owner } => {
            let stateid = compound.stateid(open_stateid)?;
            let request = (stateid, OwnerKind::Open, open_seqid);
            sequenced::<op::Lock>(compound, request, ResOp::Lock, async |compound| {
                first(compound, &args, stateid, lock_seqid, lock_owner).await
            })
            .await
        }
    }
}

/// Checks that a range is not empty and does not overflow (RFC 8881, section 18.10.3).
pub(super) fn check_range(offset: u64, length: u64) -> Result<(), Status> {
    if is_range(offset, length) { Ok(()) } else { Err(Status::Inval) }
}

/// The kind of lock of a lock type.
pub(super) fn lock_kind(locktype: NfsLockType) -> LockKind {
    match locktype {
        NfsLockType::Read | NfsLockType::Readw => LockKind::Shared,
        NfsLockType::Write | NfsLockType::Writew => LockKind::Exclusive,
    }
}

/// The open and the owner of a lock request.
struct LockBasis {
    open: StateKey,
    id: OpenId,
    access: Share,
    owner: Bytes,
    held: HeldState,
}

/// A further lock of an owner that has locks under this open.
async fn again(
    compound: &mut Compound<'_>,
    args: &LockArgs,
    stateid: Stateid,
) -> Result<LockOk, LockFailure> {
    let held = compound.lock_by(stateid)?;
    let Kind::Lock { by, owner } = held.kind.clone() else { return Err(Status::BadStateid.into()) };
    let (id, access) = {
        let tables = compound.shared.state.tables();
        match tables.stateids.get(by).map(|open| &open.kind) {
            Some(Kind::Open { open, access, .. }) => (*open, *access),
            _ => return Err(Status::BadStateid.into()),
        }
    };
    lock(compound, args, &LockBasis { open: by, id, access, owner, held }).await
}

/// The first lock of an owner under this open.
async fn first(
    compound: &mut Compound<'_>,
    args: &LockArgs,
    stateid: Stateid,
    lock_seqid: u32,
    lock_owner: StateOwner,
) -> Result<LockOk, LockFailure> {
    let held = compound.open_by(stateid)?;
    let Kind::Open { open: id, access, confirmed: true, .. } = held.kind else {
        return Err(Status::BadStateid.into());
    };
    let owner = lock_owner.owner.into_bytes();
    let by = LockBasis { open: held.key, id, access, owner: owner.clone(), held };
    if compound.minor > 0 {
        return lock(compound, args, &by).await;
    }
    let shared = compound.shared;
    if lock_owner.clientid != by.held.client {
        compound.minor0_client(&shared.state.tables(), lock_owner.clientid)?;
        return Err(Status::BadStateid.into());
    }
    let name = OwnerName { client: by.held.client, kind: OwnerKind::Lock, name: owner };
    shared.capacity_for(Scarce::Owners).await;
    // Another open owner may send a request for the same lock owner.
    let _turn = shared.state.turns.take(&name).await;
    {
        let mut tables = shared.state.tables();
        let Tables { owners, stateids, .. } = &mut *tables;
        owners.begin_lock(&name, lock_seqid, Instant::now(), stateids.has_of(&name))?;
    }
    let result = lock(compound, args, &by).await;
    let status = result.as_ref().map(|_| ()).map_err(protocol::nfs4::Failure::status);
    let answer = sequenced::answer(compound, ResOp::Lock(result.clone()));
    shared.state.tables().owners.finish(&name, lock_seqid, status, answer);
    result
}

async fn lock(compound: &mut Compound<'_>, args: &LockArgs, by: &LockBasis) -> Result<LockOk, LockFailure> {
    check_range(args.offset, args.length)?;
    let kind = lock_kind(args.locktype);
    let needs = if kind == LockKind::Shared { Share::READ } else { Share::WRITE };
    if !by.access.contains(needs) {
        return Err(Status::OpenMode.into());
    }
    let shared = compound.shared;
    let claim = if args.reclaim { Claim::Reclaim } else { Claim::New };
    shared.state.claim(Some(by.held.holder), claim).await?;
    if claim == Claim::New && shared.state.do_hosts_reclaim() {
        return Err(Status::Grace.into());
    }
    shared.capacity_for(Scarce::States).await;
    let mut object = compound.object()?;
    object.caller.holder = Some(by.held.holder);
    let waits = compound.minor > 0 && matches!(args.locktype, NfsLockType::Readw | NfsLockType::Writew);
    let owner = names::owner(by.held.holder, OwnerKind::Lock, &by.owner);
    let request = LockRequest {
        lock: Lock { owner, kind, offset: args.offset, length: args.length },
        wait: waits,
        reclaim: args.reclaim,
    };
    match locked(compound, &object, by.id, &request).await? {
        Locked::Granted => {}
        Locked::Denied(lock) => return Err(LockFailure::Denied(names::denied(&shared.state, &lock))),
    }
    let entered = entered(&mut shared.state.tables(), by);
    match entered {
        Ok(lock_stateid) => {
            compound.set_stateid(lock_stateid);
            Ok(LockOk { lock_stateid })
        }
        Err(status) => {
            // The client never learns of the lock, so it must not stay.
            let range = (args.offset, args.length);
            let _ = object.export.fs().unlock(&object.caller, by.id, &request.lock.owner, range).await;
            Err(status.into())
        }
    }
}

/// Requests the lock. If a courtesy client has a conflicting lock, or uses the capacity that the lock
/// needs, that client is expired.
async fn locked(
    compound: &Compound<'_>,
    object: &Object,
    open: OpenId,
    request: &LockRequest,
) -> Result<Locked, Status> {
    let (shared, fs) = (compound.shared, &object.export.fs());
    let locked = loop {
        let made = shared.state.capacity.made();
        let locked = fs.lock(&object.caller, open, request).await;
        let full = locked.as_ref().is_err_and(|error| error.status == vfs::Status::Resource);
        if !full || !shared.capacity_below(object.export.id, Below::Locks, made).await {
            break locked.map_err(convert::error)?;
        }
    };
    if let Locked::Denied(lock) = &locked
        && let Some(holder) = names::holder(&lock.owner)
        && compound.shared.expire_if_courtesy(holder).await
    {
        return fs.lock(&object.caller, open, request).await.map_err(convert::error);
    }
    Ok(locked)
}

/// The owner has one more lock under this open.
fn entered(tables: &mut Tables, by: &LockBasis) -> Result<Stateid, Status> {
    let Tables { stateids, .. } = tables;
    if stateids.get(by.open).is_none() {
        return Err(Status::BadStateid); // closed meanwhile
    }
    if let Some(key) = stateids.lock_of(by.open, &by.owner).map(|held| held.key) {
        return stateids.change(key, |_| {}).ok_or(Status::BadStateid);
    }
    let kind = Kind::Lock { by: by.open, owner: by.owner.clone() };
    let key = stateids.insert((by.held.client, by.held.holder), by.held.file(), kind)?.key;
    stateids.get(key).map(|held| stateids.wire(held)).ok_or(Status::BadStateid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_or_goes_on_for_ever() {
        for (offset, length) in
            [(0, 1), (0, u64::MAX), (7, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX - 1, 1)]
        {
            assert_eq!(check_range(offset, length), Ok(()), "{offset} {length}");
        }
        for (offset, length) in [(0, 0), (5, 0), (u64::MAX, 1), (2, u64::MAX - 1)] {
            assert_eq!(check_range(offset, length), Err(Status::Inval), "{offset} {length}");
        }
    }
}
