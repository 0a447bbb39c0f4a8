//! The procedures: what they do with the locks of the file system.
//!
//! The locks are those of all clients: the arbiter decides between hosts of NLM, clients of version 4 and
//! mounts. So a lock here conflicts with theirs, recalls their delegations, and reaches the origin.

use std::sync::Arc;
use std::time::Duration;

use protocol::nlm::{CancelArgs, LockArgs, ShareArgs, Stat, TestArgs, TestReply, UnlockArgs};
use tokio::time::{Instant, sleep};
use vfs::locks::LockRange;
use vfs::{
    AccessMask, Caller, HolderId, Lock, LockKind, LockRequest, Locked, OpenId, OpenRequest, Principal, Share,
    Status, Want,
};

use super::calling::Resend;
use super::files::{DosShare, HostFile, UserOpen};
use super::waits::{Answer, Stage, WaitKey};
use super::wire::{self, Offset};
use super::{Called, Nlm};
use crate::shared::Object;
use crate::state::grace::Claim;
use crate::state::hosts::HostName;
use crate::state::stateids::FileKey;
use crate::state::{Below, names};

/// The pause between two attempts of a reclaim.
const RECLAIM_PAUSE: Duration = Duration::from_secs(1);

/// The host and the file of a call.
struct Target {
    host: HostName,
    holder: HolderId,
    object: Object,
    file: FileKey,
}

/// Finds the host and the file. `state` is the state number of the host's monitor, or zero.
async fn target(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    (name, fh): (&[u8], &[u8]),
    state: u32,
) -> Result<Target, Status> {
    let mut object = called.request.object(fh)?;
    let (host, holder) = nlm.host(called, name, state).await?;
    object.caller.holder = Some(holder);
    let file = object.file_key();
    Ok(Target { host, holder, object, file })
}

/// TEST: the lock that conflicts, if there is one.
pub(super) async fn test<N: Offset>(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    args: &TestArgs<N>,
) -> Result<TestReply<N>, Status> {
    let alock = &args.alock;
    let target = target(nlm, called, (&alock.caller_name, &alock.fh), 0).await?;
    if nlm.shared.state.in_lock_grace() {
        return Err(Status::Grace);
    }
    let lock = wire::lock(alock, target.holder, args.exclusive)?;
    let Object { export, handle, caller } = &target.object;
    let test = || async { export.fs().test(caller, handle, &lock).await.map_err(|error| error.status) };
    let mut found = test().await?;
    if let Some(holder) = found.as_ref().and_then(|other| names::holder(&other.owner))
        && nlm.shared.expire_if_courtesy(holder).await
    {
        found = test().await?;
    }
    Ok(match found {
        None => TestReply::Other(Stat::Granted.into()),
        Some(other) => wire::denied(&other, |holder| nlm.is_host(holder)),
    })
}

/// LOCK and NM_LOCK.
pub(super) async fn lock<N: Offset>(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    args: &LockArgs<N>,
) -> Result<Stat, Status> {
    let alock = &args.alock;
    let target = target(nlm, called, (&alock.caller_name, &alock.fh), args.state).await?;
    let lock = wire::lock(alock, target.holder, args.exclusive)?;
    if args.exclusive && target.object.export.options().read_only {
        return Err(Status::Rofs);
    }
    // The file comes before all that takes time, so that an UNLOCK or a CANCEL does not overtake its LOCK.
    let held = nlm.files.enter(target.holder, target.file).map_err(|_| Status::Resource)?;
    let mut file = held.lock().await;
    let stat = lock_entered(nlm, called, (args, lock), &target, &mut file).await;
    finish(nlm, (target.holder, target.file), &target.object, &mut file).await;
    drop(file);
    nlm.files.settle(target.holder, target.file, held);
    stat
}

/// LOCK, when its file is ours.
async fn lock_entered<N: Offset>(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    (args, lock): (&LockArgs<N>, Lock),
    target: &Target,
    file: &mut HostFile,
) -> Result<Stat, Status> {
    let claim = if args.reclaim { Claim::Reclaim } else { Claim::New };
    let claimed = || nlm.shared.state.claim_for_host(&target.host, target.holder, claim);
    claimed().await?;
    let key = WaitKey::new(target.holder, target.file, &lock);
    let request = LockRequest { lock, wait: args.block, reclaim: args.reclaim };
    let mut done = take(nlm, &target.object, file, &request).await;
    // Linux gives a lock up if its reclaim fails, even for a while. The end of grace ends this.
    while args.reclaim && matches!(done, Err(Status::Delay | Status::Grace)) {
        sleep(RECLAIM_PAUSE).await;
        claimed().await?;
        done = take(nlm, &target.object, file, &request).await;
    }
    match done {
        Ok(true) => {
            nlm.waits.lock().take(&key);
            file.learn(&request.lock);
            Ok(Stat::Granted)
        }
        Ok(false) if args.block => {
            let resend = Resend::new(args, called, &target.object.caller, request);
            let blocked = nlm.waits.lock().block(Instant::now(), key, resend);
            nlm.work.notify_one();
            blocked.map(|()| Stat::Blocked).map_err(|_| Status::Resource)
        }
        Ok(false) => Ok(Stat::Denied),
        Err(status) => {
            let ended = if passes(status) { None } else { nlm.waits.lock().take(&key) };
            if ended == Some(Stage::Granted) {
                give_up(&target.object, file, &request.lock).await;
            }
            Err(status)
        }
    }
}

/// May another attempt succeed after this error?
fn passes(status: Status) -> bool {
    use Status as S;
    let of_server = matches!(status, S::Delay | S::Grace | S::Resource | S::ServerFault | S::Io | S::NoSpc);
    of_server || matches!(status, S::Denied | S::LocksHeld | S::ShareDenied | S::Dquot)
}

/// Attempts the lock of a request that waits, and reports to the table of waits.
pub(super) async fn attempt(nlm: &Arc<Nlm>, number: u64, key: &WaitKey, resend: &Resend) {
    let Some(object) = nlm.object_of(key, resend) else {
        nlm.waits.lock().take(key);
        return;
    };
    let Ok(held) = nlm.files.enter(key.holder, key.file) else {
        return nlm.waits.lock().attempted(Instant::now(), number, false);
    };
    let mut file = held.lock().await;
    // A cancel or an unlock may have come first.
    let waits = nlm.waits.lock().get(number).is_some();
    if waits {
        match take(nlm, &object, &mut file, &resend.request).await {
            Err(status) if !passes(status) => drop(nlm.waits.lock().take(key)),
            done => nlm.waits.lock().attempted(Instant::now(), number, done == Ok(true)),
        }
    }
    finish(nlm, (key.holder, key.file), &object, &mut file).await;
    drop(file);
    nlm.files.settle(key.holder, key.file, held);
}

/// The client has taken a lock that was granted, or does not take it: then it is given up.
pub(super) async fn answered(nlm: &Arc<Nlm>, number: u64, key: &WaitKey, resend: &Resend, answer: Answer) {
    let (Some(object), Some(held)) = (nlm.object_of(key, resend), nlm.files.get(key.holder, key.file)) else {
        nlm.waits.lock().answered(Instant::now(), number, answer);
        return;
    };
    let mut file = held.lock().await;
    let ended = nlm.waits.lock().answered(Instant::now(), number, answer).is_some();
    if ended && answer == Answer::Accepted {
        file.learn(&resend.request.lock);
    } else if ended {
        give_up(&object, &mut file, &resend.request.lock).await;
    }
    finish(nlm, (key.holder, key.file), &object, &mut file).await;
    drop(file);
    nlm.files.settle(key.holder, key.file, held);
}

/// CANCEL.
pub(super) async fn cancel<N: Offset>(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    args: &CancelArgs<N>,
) -> Result<Stat, Status> {
    let alock = &args.alock;
    let target = target(nlm, called, (&alock.caller_name, &alock.fh), 0).await?;
    let lock = wire::lock(alock, target.holder, args.exclusive)?;
    let key = WaitKey::new(target.holder, target.file, &lock);
    let Some(held) = nlm.files.get(target.holder, target.file) else { return Ok(Stat::Denied) };
    let mut file = held.lock().await;
    let stage = nlm.waits.lock().take(&key);
    if stage == Some(Stage::Granted) {
        give_up(&target.object, &mut file, &lock).await;
    }
    finish(nlm, (target.holder, target.file), &target.object, &mut file).await;
    drop(file);
    nlm.files.settle(target.holder, target.file, held);
    Ok(if stage.is_some() { Stat::Granted } else { Stat::Denied })
}

/// UNLOCK.
pub(super) async fn unlock<N: Offset>(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    args: &UnlockArgs<N>,
) -> Result<Stat, Status> {
    let alock = &args.alock;
    let target = target(nlm, called, (&alock.caller_name, &alock.fh), 0).await?;
    let lock = wire::lock(alock, target.holder, true)?;
    let Some(held) = nlm.files.get(target.holder, target.file) else { return Ok(Stat::Granted) };
    let mut file = held.lock().await;
    let granted = nlm.waits.lock().take_within(target.holder, &target.file, &lock);
    if let Some(locks) = file.owners.get_mut(&lock.owner) {
        // The client unlocks bytes of these, so it has taken them, although its answer did not come.
        granted.into_iter().for_each(|range| locks.known.lock(range));
    }
    let Object { export, caller, .. } = &target.object;
    let mut done = Ok(Stat::Granted);
    for open in file.opens_of(&lock.owner) {
        let unlocked = export.fs().unlock(caller, open, &lock.owner, (lock.offset, lock.length)).await;
        if let Err(error) = unlocked
            && error.status != Status::BadStateId
        {
            done = Err(error.status);
        }
    }
    if done.is_ok()
        && let Some(locks) = file.owners.get_mut(&lock.owner)
    {
        locks.known.unlock(lock.offset, lock.end());
    }
    finish(nlm, (target.holder, target.file), &target.object, &mut file).await;
    drop(file);
    nlm.files.settle(target.holder, target.file, held);
    done
}

/// SHARE.
pub(super) async fn share(nlm: &Arc<Nlm>, called: &Called<'_>, args: &ShareArgs) -> Result<Stat, Status> {
    let share = &args.share;
    let target = target(nlm, called, (&share.caller_name, &share.fh), 0).await?;
    let bits = |bits: u32| u8::try_from(bits).ok().and_then(Share::from_bits).ok_or(Status::Inval);
    let (access, deny) = (bits(share.access)?, bits(share.mode)?);
    // No access is a query of attributes, and an open needs some access.
    let access = if access.is_empty() { Share::READ } else { access };
    // As for LOCK, the file comes first.
    let held = nlm.files.enter(target.holder, target.file).map_err(|_| Status::Resource)?;
    let mut file = held.lock().await;
    let shared = share_entered(nlm, args, &target, (access, deny), &mut file).await;
    drop(file);
    nlm.files.settle(target.holder, target.file, held);
    shared
}

/// SHARE, when its file is ours.
async fn share_entered(
    nlm: &Arc<Nlm>,
    args: &ShareArgs,
    target: &Target,
    (access, deny): (Share, Share),
    file: &mut HostFile,
) -> Result<Stat, Status> {
    let claim = if args.reclaim { Claim::Reclaim } else { Claim::New };
    nlm.shared.state.claim_for_host(&target.host, target.holder, claim).await?;
    let (oh, object) = (&args.share.oh, &target.object);
    // A call that is resent must not be denied by its own share.
    if file.shares.get(&oh[..]).is_some_and(|held| (held.access, held.deny) == (access, deny)) {
        return Ok(Stat::Granted);
    }
    if !file.has_capacity() {
        return Err(Status::Resource);
    }
    let request = OpenRequest {
        deny,
        want: Want::None,
        reclaim: args.reclaim,
        ..OpenRequest::new(object.handle, None, wire::sharer(target.holder, oh), access)
    };
    let id = open(nlm, object, &request).await?;
    file.shares.insert(bytes::Bytes::copy_from_slice(oh), DosShare { id, access, deny });
    Ok(Stat::Granted)
}

/// UNSHARE.
pub(super) async fn unshare(nlm: &Arc<Nlm>, called: &Called<'_>, args: &ShareArgs) -> Result<Stat, Status> {
    let share = &args.share;
    let target = target(nlm, called, (&share.caller_name, &share.fh), 0).await?;
    let Some(held) = nlm.files.get(target.holder, target.file) else { return Ok(Stat::Granted) };
    let mut file = held.lock().await;
    if let Some(open) = file.shares.remove(&share.oh[..]) {
        close(&target.object, &[open.id]).await;
    }
    drop(file);
    nlm.files.settle(target.holder, target.file, held);
    Ok(Stat::Granted)
}

/// Takes a lock through an open of the caller. False if another lock conflicts. Courtesy clients that are in
/// the way lose their state.
async fn take(
    nlm: &Arc<Nlm>,
    object: &Object,
    file: &mut HostFile,
    request: &LockRequest,
) -> Result<bool, Status> {
    let owner = &request.lock.owner;
    if !file.owners.contains_key(owner) && !file.has_capacity() {
        return Err(Status::Resource);
    }
    let (shared, fs) = (&nlm.shared, &object.export.fs());
    let (uid, open) = open_of_user(nlm, object, file, request).await?;
    file.owners.entry(owner.clone()).or_default().users.insert(uid);
    let locked = loop {
        let made = shared.state.capacity.made();
        let locked = fs.lock(&object.caller, open, request).await;
        let full = locked.as_ref().is_err_and(|error| error.status == Status::Resource);
        if !full || !shared.capacity_below(object.export.id, Below::Locks, made).await {
            break locked.map_err(|error| error.status)?;
        }
    };
    if let Locked::Denied(lock) = &locked
        && let Some(holder) = names::holder(&lock.owner)
        && shared.expire_if_courtesy(holder).await
    {
        let again = fs.lock(&object.caller, open, request).await.map_err(|error| error.status)?;
        return Ok(again == Locked::Granted);
    }
    Ok(locked == Locked::Granted)
}

/// The open of the caller that a lock of this kind needs.
async fn open_of_user(
    nlm: &Arc<Nlm>,
    object: &Object,
    file: &mut HostFile,
    request: &LockRequest,
) -> Result<(u32, OpenId), Status> {
    let holder = object.caller.holder.ok_or(Status::ServerFault)?;
    let uid = match &object.caller.principal {
        Principal::Unix(credential) => credential.uid,
        Principal::Machine => return Err(Status::ServerFault),
    };
    let needs = if request.lock.kind == LockKind::Shared { Share::READ } else { Share::WRITE };
    if let Some(open) = file.opens.get(&uid).filter(|open| open.access.contains(needs)) {
        return Ok((uid, open.id));
    }
    let wanted = OpenRequest {
        want: Want::None,
        reclaim: request.reclaim,
        ..OpenRequest::new(object.handle, None, wire::opener(holder, uid), needs)
    };
    let id = open(nlm, object, &wanted).await?;
    let access = file.opens.get(&uid).map_or(needs, |open| open.access | needs);
    file.opens.insert(uid, UserOpen { id, access });
    Ok((uid, id))
}

/// Opens a file. As on other servers, the file's owner and users who may read it may lock it in any way: the
/// client opened the file when its mode may have been another one.
async fn open(nlm: &Arc<Nlm>, object: &Object, request: &OpenRequest) -> Result<OpenId, Status> {
    let Object { export, handle, caller } = object;
    let open = || async { export.fs().open(caller, request).await.map_err(|error| error.status) };
    let refused = match open().await {
        Ok(opened) => return Ok(opened.id),
        // While the origin is silent, a delay is no conflict.
        Err(Status::ShareDenied | Status::Delay)
            if !export.is_silent() && nlm.shared.expire_courtesy(&object.file_key()).await =>
        {
            return open().await.map(|opened| opened.id);
        }
        Err(status) => status,
    };
    if !matches!(refused, Status::Access | Status::Perm) {
        return Err(refused);
    }
    let Principal::Unix(credential) = &caller.principal else { return Err(refused) };
    let attributes = export.fs().getattr(caller, handle).await.map_err(|error| error.status)?;
    if attributes.uid != credential.uid {
        let read =
            export.fs().access(caller, handle, AccessMask::READ).await.map_err(|error| error.status)?;
        if !read.granted.contains(AccessMask::READ) {
            return Err(refused);
        }
    }
    let machine = Caller { principal: Principal::Machine, ..caller.clone() };
    export.fs().open(&machine, request).await.map(|opened| opened.id).map_err(|error| error.status)
}

/// Gives up a lock that was granted and that the client does not take. The owner keeps the locks of which the
/// client knows: they change back to their kind before the gaps between them are unlocked.
async fn give_up(object: &Object, file: &mut HostFile, lock: &Lock) {
    let (fs, owner) = (&object.export.fs(), &lock.owner);
    let opens = file.opens_of(owner);
    let Some(locks) = file.owners.get_mut(owner) else { return };
    let range = LockRange::of(lock);
    let before = locks.known.within(range).filter(|part| part.kind != lock.kind);
    for part in before.collect::<Vec<_>>() {
        let request = LockRequest { lock: part.lock(owner), wait: false, reclaim: false };
        let mut is_back = false;
        for open in &opens {
            is_back = is_back || fs.lock(&object.caller, *open, &request).await == Ok(Locked::Granted);
        }
        if !is_back {
            tracing::debug!("a lock keeps the weaker kind of one that was given up");
        }
    }
    for gap in locks.known.gaps(range) {
        for open in &opens {
            let unlocked = fs.unlock(&object.caller, *open, owner, (gap.start, gap.length())).await;
            if let Err(error) = unlocked {
                tracing::debug!(status = %error.status, "a lock was gone before it was given up");
            }
        }
    }
}

/// Forgets owners without locks, and closes the opens that no owner needs. While a request waits, its file
/// stays open.
async fn finish(nlm: &Arc<Nlm>, (holder, key): (HolderId, FileKey), object: &Object, file: &mut HostFile) {
    file.prune(&object.export);
    if !nlm.waits.lock().any_on(holder, &key) {
        let unused = file.take_unused();
        close(object, &unused).await;
    }
}

async fn close(object: &Object, opens: &[OpenId]) {
    for open in opens {
        if let Err(error) = object.export.fs().close(&object.caller, *open).await {
            tracing::debug!(status = %error.status, "an open was gone before it was closed");
        }
    }
}
