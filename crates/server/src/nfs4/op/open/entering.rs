//! Enters the result of an OPEN into the tables, in one step.

use protocol::nfs4::{Stateid, Status};
use vfs::{Lease, LeaseKind, OpenId, OpenRequest, Opened, Principal, Recall};

use super::delegation::Granted;
use crate::nfs4::callbacks;
use crate::nfs4::compound::Compound;
use crate::shared::Object;
use crate::state::owners::OwnerName;
use crate::state::stateids::{FileKey, Kind, Standing};
use crate::state::{Tables, Word};

/// The result of entering.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) stateid: Stateid,
    pub(super) delegation: Option<Granted>,
    /// A recall that arrived before the lease was entered.
    recall: Option<Recall>,
    /// A lease that could not be entered, so the client does not get it.
    unheard: Option<Lease>,
    /// The earlier open that the new one replaces.
    replaced: Option<OpenId>,
}

/// Why nothing was entered.
#[derive(Debug)]
pub(super) enum Failure {
    /// A CLOSE has ended the open meanwhile.
    Ended,
    Status(Status),
}

/// Enters a new open, or adds to an open that the owner had.
pub(super) fn enter(
    compound: &Compound<'_>,
    object: &Object,
    owner: &OwnerName,
    confirmed: bool,
    request: &OpenRequest,
    opened: &Opened,
) -> Result<Entered, Failure> {
    let file = FileKey { export: object.export.id, handle: opened.handle };
    let mut tables = compound.shared.state.tables();
    if tables.closed.contains(file.export, opened.id) {
        return Err(Failure::Ended);
    }
    let Some(client) = tables.clients.confirmed(owner.client) else {
        return Err(Failure::Status(if compound.minor == 0 { Status::Expired } else { Status::BadSession }));
    };
    let of = (client.id, client.holder);
    let had = tables.stateids.open_of(owner.client, file, &owner.name).map(|held| held.key);
    let mut replaced = None;
    let stateid = if let Some(key) = had {
        tables
            .stateids
            .change(key, |kind| replaced = widen(kind, request, &object.caller.principal, opened.id))
    } else {
        let kind = Kind::Open {
            open: opened.id,
            owner: owner.name.clone(),
            access: request.access,
            deny: request.deny,
            opener: object.caller.principal.clone(),
            confirmed,
        };
        let Tables { stateids, .. } = &mut *tables;
        let key = stateids.insert(of, file, kind).map(|held| held.key).map_err(Failure::Status)?;
        stateids.get(key).map(|held| stateids.wire(held))
    };
    let stateid = stateid.ok_or(Failure::Status(Status::ServerFault))?;
    let mut entered = Entered { stateid, delegation: None, recall: None, unheard: None, replaced };
    if let Some(lease) = opened.lease.filter(|lease| lease.kind != LeaseKind::Timeout) {
        grant(&mut tables, of, file, (lease, &object.caller.principal), &mut entered);
    }
    Ok(entered)
}

/// Adds access and deny modes to an open. The file system has only one open for it. If the file system
/// returned another one, the earlier one is over.
fn widen(kind: &mut Kind, request: &OpenRequest, by: &Principal, id: OpenId) -> Option<OpenId> {
    let Kind::Open { open, access, deny, opener, .. } = kind else { return None };
    *access |= request.access;
    *deny |= request.deny;
    *opener = by.clone();
    let before = std::mem::replace(open, id);
    (before != id).then_some(before)
}

fn grant(
    tables: &mut Tables,
    of: (protocol::nfs4::Clientid, vfs::HolderId),
    file: FileKey,
    (lease, opener): (Lease, &Principal),
    entered: &mut Entered,
) {
    let standing = match tables.early.take(file.export, lease.id) {
        Some(Word::Revoked) => return,
        Some(Word::Recall(recall)) => {
            entered.recall = Some(recall);
            Standing::Recalled
        }
        None => Standing::Good,
    };
    let (kind, space_limit) = (lease.kind, lease.space_limit);
    let recalled = standing == Standing::Recalled;
    let granted = |stateid| Some(Granted { stateid, kind, space_limit, recalled });
    if let Some(held) = tables.stateids.delegation(file.export, lease.id) {
        // The client has the delegation. The reply mentions it only if its kind was upgraded.
        let (key, is_more) =
            (held.key, matches!(held.kind, Kind::Delegation { kind, .. } if kind < lease.kind));
        if is_more {
            let stateid = tables.stateids.change(key, |held| {
                if let Kind::Delegation { kind, .. } = held {
                    *kind = lease.kind;
                }
            });
            entered.delegation = stateid.and_then(granted);
        }
        return;
    }
    let kind = Kind::Delegation { lease: lease.id, kind: lease.kind, opener: opener.clone(), standing };
    let Tables { stateids, .. } = tables;
    match stateids.insert(of, file, kind).map(|held| held.key) {
        Ok(key) => {
            let stateid = stateids.get(key).map(|held| stateids.wire(held));
            entered.delegation = stateid.and_then(granted);
        }
        Err(_) => entered.unheard = Some(lease),
    }
}

/// Does the work that must happen outside of the lock of the tables.
pub(super) async fn settle(compound: &Compound<'_>, object: &Object, entered: &Entered) {
    let Object { export, caller, .. } = object;
    if let Some(recall) = entered.recall {
        callbacks::recall_soon(compound.shared, export.id, recall);
    }
    if let Some(open) = entered.replaced {
        // An open that no longer exists needs no close.
        let _ = export.fs().close(caller, open).await;
    }
    if let Some(lease) = entered.unheard {
        let _ = export.fs().returned(caller, lease.id).await;
    }
}
