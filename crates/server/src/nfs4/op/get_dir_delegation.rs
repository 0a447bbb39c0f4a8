//! GET_DIR_DELEGATION (RFC 8881, section 18.39): a lease on a directory's names, without notifications. If
//! another client changes a name, it waits for the recall.
//!
//! Clients piggyback this operation on a GETATTR and need the GETATTR's result in any case. If there is no
//! delegation, also during grace, the reply is `GDD4_UNAVAIL` and the compound goes on. Directory
//! delegations cannot be reclaimed (section 10.9.5): after a restart the client requests a new one.

use protocol::nfs4::{
    Bitmap, Clientid, DirDelegation, GetDirDelegationArgs, GetDirDelegationOk, Stateid, Status,
};
use vfs::{AccessMask, Attributes, Freshness, HolderId, Lease, LeaseKind, Recall};

use crate::nfs4::callbacks;
use crate::nfs4::compound::{Compound, File};
use crate::nfs4::{convert, kind};
use crate::shared::Object;
use crate::state::grace::Claim;
use crate::state::stateids::{FileKey, Kind, Standing};
use crate::state::{Tables, Word};

const NONE: GetDirDelegationOk = GetDirDelegationOk::Unavail { will_signal_deleg_avail: false };
/// A caller with either of these rights may use the names of a directory.
const RIGHTS: AccessMask = AccessMask::READ.union(AccessMask::LOOKUP);

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    _: GetDirDelegationArgs,
) -> Result<GetDirDelegationOk, Status> {
    if let File::Pseudo(_) = compound.file()? {
        return Ok(NONE);
    }
    let mut object = compound.object()?;
    if compound.is_question() {
        // With the GETATTR after it the client opens the directory or confirms names.
        object.caller.freshness = Freshness::Directory;
    }
    if compound.shared.state.claim(compound.holder(), Claim::New).await.is_err() {
        return Ok(NONE);
    }
    let Some(client) = reachable(compound) else { return Ok(NONE) };
    let Object { export, handle, caller } = &object;
    let delegated = match export.fs().delegate(caller, handle, RIGHTS).await {
        Ok(delegated) => delegated,
        Err(error) => return unavailable(error.status),
    };
    let wrong = |attributes: Attributes| kind::not_a_directory(attributes.file_type, Status::Symlink);
    if let Some(status) = delegated.accessed.attributes.and_then(wrong) {
        return Err(status);
    }
    let Some(lease) = delegated.lease.filter(|lease| lease.kind != LeaseKind::Timeout) else {
        return Ok(NONE);
    };
    let may = delegated.accessed.granted.intersects(RIGHTS);
    let entered = if may { enter(compound, &object, client, lease) } else { None };
    let Some((stateid, recall)) = entered else {
        // If the lease cannot be returned, it no longer exists.
        let _ = export.fs().returned(caller, lease.id).await;
        return Ok(NONE);
    };
    if let Some(recall) = recall {
        callbacks::recall_soon(compound.shared, export.id, recall);
    }
    Ok(GetDirDelegationOk::Ok(DirDelegation {
        cookieverf: [0; 8],
        stateid,
        notification: Bitmap::EMPTY,
        child_attributes: Bitmap::EMPTY,
        dir_attributes: Bitmap::EMPTY,
    }))
}

/// The client, if it can be called back.
fn reachable(compound: &Compound<'_>) -> Option<(Clientid, HolderId)> {
    let tables = compound.shared.state.tables();
    let client = tables.client_of(compound.holder())?;
    let up = compound.shared.callbacks.is_up(&tables, client);
    up.then_some((client.id, client.holder))
}

/// An error of the filehandle is returned; any other error means that there is no delegation.
fn unavailable(status: vfs::Status) -> Result<GetDirDelegationOk, Status> {
    match status {
        vfs::Status::Stale | vfs::Status::BadHandle | vfs::Status::NotDir => {
            Err(convert::error(status.into()))
        }
        _ => Ok(NONE),
    }
}

/// Enters the delegation. None if it was revoked already, or if there are too many states.
fn enter(
    compound: &Compound<'_>,
    object: &Object,
    client: (Clientid, HolderId),
    lease: Lease,
) -> Option<(Stateid, Option<Recall>)> {
    let mut tables = compound.shared.state.tables();
    let (standing, recall) = match tables.early.take(object.export.id, lease.id) {
        Some(Word::Revoked) => return None,
        Some(Word::Recall(recall)) => (Standing::Recalled, Some(recall)),
        None => (Standing::Good, None),
    };
    // The client may have been removed meanwhile.
    tables.clients.confirmed(client.0)?;
    let opener = object.caller.principal.clone();
    let state = Kind::Delegation { lease: lease.id, kind: lease.kind, opener, standing };
    let file = FileKey { export: object.export.id, handle: object.handle };
    let Tables { stateids, .. } = &mut *tables;
    let key = stateids.insert(client, file, state).ok()?.key;
    stateids.get(key).map(|held| (stateids.wire(held), recall))
}
