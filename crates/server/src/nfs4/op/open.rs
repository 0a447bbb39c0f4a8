//! OPEN (RFC 8881, section 18.16; RFC 7530, section 16.16).

mod creation;
mod delegation;
mod entering;
pub(super) mod share;

use protocol::nfs4::{
    ChangeInfo, OPEN4_RESULT_CONFIRM, OPEN4_RESULT_LOCKTYPE_POSIX, OPEN4_RESULT_MAY_NOTIFY_LOCK, OpenArgs,
    OpenClaim, OpenOk, Openflag, ResOp, Status, op,
};
use tokio::time::Instant;
use vfs::{AccessMask, Handle, Name, OpenRequest, Opened, Share};

use crate::nfs4::compound::{Compound, File};
use crate::nfs4::sequenced;
use crate::nfs4::{convert, kind};
use crate::shared::Object;
use crate::state::grace::Claim;
use crate::state::owners::{OwnerKind, OwnerName, Turn};
use crate::state::stateids::{FileKey, Kind};
use crate::state::{Scarce, Tables, names};
use creation::Creation;
pub(super) use share::shares_of;

/// How often an open is repeated if a CLOSE ended it before it could be entered.
const ATTEMPTS_MAX: u32 = 4;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: OpenArgs) -> Result<OpenOk, Status> {
    if compound.minor > 0 {
        let client = compound.shared.state.tables().client_of(compound.holder()).map(|client| client.id);
        let name = args.owner.owner.clone().into_bytes();
        let owner = OwnerName { client: client.ok_or(Status::BadSession)?, kind: OwnerKind::Open, name };
        return open(compound, &args, &owner, true).await;
    }
    let shared = compound.shared;
    compound.minor0_client(&shared.state.tables(), args.owner.clientid)?;
    let name = args.owner.owner.clone().into_bytes();
    let owner = OwnerName { client: args.owner.clientid, kind: OwnerKind::Open, name };
    shared.capacity_for(Scarce::Owners).await;
    let _turn = shared.state.turns.take(&owner).await;
    let turn = shared.state.tables().owners.begin_open(&owner, args.seqid, Instant::now())?;
    match turn {
        Turn::Replay(answer) => return sequenced::replay::<op::Open>(compound, answer),
        Turn::Anew => give_back_all(compound, &owner).await,
        Turn::Execute => {}
    }
    sequenced::enter(compound, &owner);
    if matches!(args.claim, OpenClaim::Previous(_)) {
        shared.state.tables().owners.confirm(&owner);
    }
    let confirmed = shared.state.tables().owners.is_confirmed(&owner);
    let result = open(compound, &args, &owner, confirmed).await;
    let answer = sequenced::answer(compound, ResOp::Open(result.clone()));
    let status = result.as_ref().map(|_| ()).map_err(|status| *status);
    shared.state.tables().owners.finish(&owner, args.seqid, status, answer);
    result
}

/// Gives back the opens of an owner that was never confirmed: they are void.
async fn give_back_all(compound: &Compound<'_>, owner: &OwnerName) {
    let held: Vec<_> = {
        let mut tables = compound.shared.state.tables();
        let Tables { stateids, .. } = &mut *tables;
        let is_its = |kind: &Kind| matches!(kind, Kind::Open { owner: name, .. } if *name == owner.name);
        let keys: Vec<_> =
            stateids.of_client(owner.client).filter(|held| is_its(&held.kind)).map(|held| held.key).collect();
        keys.into_iter().filter_map(|key| stateids.remove(key)).collect()
    };
    for held in held {
        compound.shared.give_back(&held).await;
    }
}

/// Executes an OPEN.
async fn open(
    compound: &mut Compound<'_>,
    args: &OpenArgs,
    owner: &OwnerName,
    confirmed: bool,
) -> Result<OpenOk, Status> {
    compound.file()?;
    let shares = shares_of(args.share_access, args.share_deny, compound.minor)?;
    let claim = if matches!(args.claim, OpenClaim::Previous(_)) { Claim::Reclaim } else { Claim::New };
    compound.shared.state.claim(compound.holder(), claim).await?;
    let capacity = compound.shared.capacity_for(Scarce::States).await;
    if !capacity {
        compound.ask_for_opens();
    }
    if !capacity && matches!(args.openhow, Openflag::Create(_)) {
        // Create no file that could not be opened. But an existing file may be open for this owner already.
        return Err(Status::Delay);
    }
    let (object, name) = target(compound, args, shares.access)?;
    let creation = match &args.openhow {
        Openflag::Nocreate => None,
        Openflag::Create(how) => Some(Creation::parse(compound, &object, how).await?),
    };
    let holder = object.caller.holder.ok_or(Status::ServerFault)?;
    let request = OpenRequest {
        deny: shares.deny,
        create: creation.as_ref().map(|creation| (creation.how, creation.set())),
        want: delegation::want(compound, args, owner, confirmed),
        reclaim: claim == Claim::Reclaim,
        ..OpenRequest::new(
            object.handle,
            name.clone(),
            names::owner(holder, OwnerKind::Open, &owner.name),
            shares.access,
        )
    };
    for _ in 0..ATTEMPTS_MAX {
        let opened = opened(compound, &object, &request).await?;
        if let Err(status) = finished(compound.minor, &object, &request, creation.as_ref(), &opened).await {
            abandon(compound, &object, owner, &opened).await;
            return Err(status);
        }
        match entering::enter(compound, &object, owner, confirmed, &request, &opened) {
            Ok(entered) => {
                entering::settle(compound, &object, &entered).await;
                compound.set_file(File::Object(object.export.clone(), opened.handle));
                compound.set_stateid(entered.stateid);
                let told = opened.granted.filter(|_| creation.as_ref().is_none_or(Creation::leaves_nothing));
                compound.note_opened(FileKey { export: object.export.id, handle: opened.handle }, told);
                return Ok(OpenOk {
                    stateid: entered.stateid,
                    cinfo: name.map_or(ChangeInfo::default(), |_| change_info(&request, &opened)),
                    rflags: rflags(compound.minor, confirmed),
                    attrset: creation.map(|creation| creation.attrset(opened.created)).unwrap_or_default(),
                    delegation: delegation::answer(compound.minor, args, entered.delegation.as_ref()),
                });
            }
            Err(entering::Failure::Ended) => {}
            Err(entering::Failure::Status(status)) => {
                abandon(compound, &object, owner, &opened).await;
                return Err(status);
            }
        }
    }
    Err(Status::Delay)
}

/// The change information of the directory. After an OPEN that may create a file, clients tell from it
/// whether the file was created. After another OPEN, they tell whether the directory is in the state that
/// they know.
fn change_info(request: &OpenRequest, opened: &Opened) -> ChangeInfo {
    match opened.directory.after.map(|after| after.change) {
        _ if opened.created => convert::change_info(&opened.directory),
        Some(change) => ChangeInfo { atomic: false, before: change, after: change },
        None if request.create.is_some() => ChangeInfo::default(),
        // The file system did not look at the directory.
        None => convert::change_info(&opened.directory),
    }
}

fn rflags(minor: u32, confirmed: bool) -> u32 {
    let confirm = if confirmed { 0 } else { OPEN4_RESULT_CONFIRM };
    let notify = if minor > 0 { OPEN4_RESULT_MAY_NOTIFY_LOCK } else { 0 };
    OPEN4_RESULT_LOCKTYPE_POSIX | confirm | notify
}

/// The target of the OPEN: a name in a directory, or a file.
fn target(
    compound: &mut Compound<'_>,
    args: &OpenArgs,
    access: Share,
) -> Result<(Object, Option<Name>), Status> {
    let creates = matches!(args.openhow, Openflag::Create(_));
    if creates && !matches!(args.claim, OpenClaim::Null(_)) {
        return Err(Status::Inval);
    }
    let name = match &args.claim {
        OpenClaim::Null(name) | OpenClaim::DelegateCur(_, name) => Some(convert::name(name)?),
        OpenClaim::Previous(_) => None,
        OpenClaim::Fh | OpenClaim::DelegCurFh(_) if compound.minor > 0 => None,
        OpenClaim::Fh | OpenClaim::DelegCurFh(_) => return Err(Status::BadXdr),
        OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => return Err(Status::NotSupp),
    };
    if let OpenClaim::DelegateCur(stateid, _) | OpenClaim::DelegCurFh(stateid) = &args.claim {
        let stateid = compound.stateid(*stateid)?;
        let tables = compound.shared.state.tables();
        let held = compound.state(&tables, stateid)?;
        if !matches!(held.kind, Kind::Delegation { .. }) {
            return Err(Status::BadStateid);
        }
    }
    // A directory above exports has no files.
    if let (File::Pseudo(_), Some(_), false) = (compound.file()?, &name, creates) {
        return Err(Status::NoEnt);
    }
    let changes = creates || access.contains(Share::WRITE);
    let object = if changes { compound.writable()? } else { compound.object()? };
    Ok((object, name))
}

/// Opens it. If courtesy clients have a conflicting open, or use the capacity that the open needs, those
/// clients are expired.
async fn opened(compound: &Compound<'_>, object: &Object, request: &OpenRequest) -> Result<Opened, Status> {
    let Object { export, caller, .. } = object;
    let limit = compound.shared.state.patience();
    let error = loop {
        let made = compound.shared.state.capacity.made();
        let error = match export.fs().open(caller, request).await {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        if error.status != vfs::Status::Resource || !compound.capacity_for_file(object, made, limit).await {
            break error;
        }
    };
    // While the origin is silent, a delay is no conflict.
    let is_conflict = match error.status {
        vfs::Status::ShareDenied => true,
        vfs::Status::Delay => !export.is_silent(),
        _ => false,
    };
    if is_conflict && compound.shared.expire_courtesy_at(object, request.name.as_ref()).await {
        let again = export.fs().open(caller, request).await;
        return again.map_err(convert::error);
    }
    if error.status == vfs::Status::Resource && compound.holds_most() {
        // The client would wait for itself. The kernel's server returns the same error when it has no
        // capacity for open files (ENFILE).
        return Err(Status::ServerFault);
    }
    Err(failure(compound.minor, object, request, error).await)
}

/// The status of a failed OPEN. There are separate codes for objects that are not regular files.
async fn failure(minor: u32, object: &Object, request: &OpenRequest, error: vfs::Error) -> Status {
    use vfs::Status as S;
    let Some(name) = &request.name else {
        return kind::io_error(object, error, minor).await.unshared();
    };
    if matches!(error.status, S::Inval | S::IsDir | S::BadType | S::Access | S::Nxio | S::NotDir) {
        let Object { export, handle, caller } = object;
        if let Ok(looked) = export.fs().lookup(caller, handle, name, vfs::Want::None).await {
            let file = Object { export: export.clone(), handle: looked.node.handle, caller: caller.clone() };
            if let Ok(attributes) = export.fs().getattr(caller, &file.handle).await
                && let Some(status) = not_a_file(attributes.file_type, minor)
            {
                return status;
            }
        }
    }
    kind::directory_error(object, error, Status::Symlink).await
}

/// The error of OPEN for this type. Minor version 0 has one code for all types except directories.
fn not_a_file(file_type: vfs::FileType, minor: u32) -> Option<Status> {
    kind::not_a_file(file_type, minor)
        .map(|status| if minor == 0 && status != Status::IsDir { Status::Symlink } else { status })
}

/// A conflicting share is `ShareDenied` for OPEN, and `Locked` for I/O.
trait Unshared {
    fn unshared(self) -> Status;
}

impl Unshared for Status {
    fn unshared(self) -> Status {
        if self == Status::Locked { Status::ShareDenied } else { self }
    }
}

/// Completes an OPEN after the file system has opened the object: checks its type and the caller's rights,
/// and sets the remaining attributes.
async fn finished(
    minor: u32,
    object: &Object,
    request: &OpenRequest,
    creation: Option<&Creation>,
    opened: &Opened,
) -> Result<(), Status> {
    if let Some(status) = not_a_file(opened.attributes.file_type, minor) {
        return Err(status);
    }
    let is_new = opened.created || creation.is_some_and(Creation::is_of_new);
    if !is_new && !request.reclaim {
        may_open(object, &opened.handle, request.access, opened.granted).await?;
    }
    match creation {
        Some(creation) if is_new => creation.complete(object, opened).await,
        _ => Ok(()),
    }
}

/// May the caller use the file with this access? If the file system has not said what is granted, this asks
/// it.
pub(in crate::nfs4) async fn may_open(
    object: &Object,
    file: &Handle,
    access: Share,
    granted: Option<AccessMask>,
) -> Result<(), Status> {
    let asked = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::EXECUTE;
    let granted = if let Some(granted) = granted {
        granted
    } else {
        let accessed = object.export.fs().access(&object.caller, file, asked).await;
        accessed.map_err(convert::error)?.granted
    };
    // A caller that may execute a file may read it for that purpose.
    let reads = granted.intersects(AccessMask::READ | AccessMask::EXECUTE);
    let writes = granted.contains(AccessMask::MODIFY);
    let denied = (access.contains(Share::READ) && !reads) || (access.contains(Share::WRITE) && !writes);
    if denied { Err(Status::Access) } else { Ok(()) }
}

/// Undoes an open that the client does not learn of, unless the owner had the open before.
async fn abandon(compound: &Compound<'_>, object: &Object, owner: &OwnerName, opened: &Opened) {
    let file = FileKey { export: object.export.id, handle: opened.handle };
    let (had, knows_lease) = {
        let tables = compound.shared.state.tables();
        let lease = opened.lease.map(|lease| lease.id);
        (
            tables.stateids.open_of(owner.client, file, &owner.name).is_some(),
            lease.is_some_and(|lease| tables.stateids.delegation(file.export, lease).is_some()),
        )
    };
    let Object { export, caller, .. } = object;
    if let Some(lease) = opened.lease.filter(|_| !knows_lease) {
        // If the lease cannot be returned, it no longer exists.
        let _ = export.fs().returned(caller, lease.id).await;
    }
    if !had {
        let _ = export.fs().close(caller, opened.id).await;
    }
}
