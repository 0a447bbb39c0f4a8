//! RELEASE_LOCKOWNER (RFC 7530, section 16.37).

use protocol::nfs4::{ReleaseLockownerArgs, Status};

use crate::nfs4::compound::Compound;
use crate::state::names;
use crate::state::owners::{OwnerKind, OwnerName};
use crate::state::stateids::Kind;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: ReleaseLockownerArgs,
) -> Result<(), Status> {
    let shared = compound.shared;
    let client = args.lock_owner.clientid;
    let name = OwnerName { client, kind: OwnerKind::Lock, name: args.lock_owner.owner.into_bytes() };
    compound.minor0_client(&shared.state.tables(), client)?;
    let _turn = shared.state.turns.take(&name).await;
    let mut tables = shared.state.tables();
    tables.clients.renew(client, tokio::time::Instant::now());
    let mut released = Vec::new();
    for held in tables.stateids.of_client(client) {
        let Kind::Lock { by, owner } = &held.kind else { continue };
        if *owner != name.name {
            continue;
        }
        let open = tables.stateids.get(*by).map(|open| &open.kind);
        if let (Some(Kind::Open { open, .. }), Some(export)) = (open, shared.exports.by_id(held.export)) {
            let owner = names::owner(held.holder, OwnerKind::Lock, owner);
            if export.fs().holds_locks(*open, &owner) {
                return Err(Status::LocksHeld);
            }
        }
        released.push(held.key);
    }
    for key in released {
        tables.stateids.remove(key);
    }
    tables.owners.remove(&name);
    Ok(())
}
