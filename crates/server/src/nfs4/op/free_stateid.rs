//! FREE_STATEID (RFC 8881, section 18.38).

use protocol::nfs4::{FreeStateidArgs, Status};

use crate::nfs4::compound::Compound;
use crate::state::names;
use crate::state::owners::OwnerKind;
use crate::state::stateids::{Kind, Standing};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: FreeStateidArgs,
) -> Result<(), Status> {
    let stateid = compound.stateid(args.stateid)?;
    let mut tables = compound.shared.state.tables();
    let held = compound.any_state(&tables, stateid)?;
    let key = held.key;
    match &held.kind {
        Kind::Delegation { standing: Standing::Revoked, .. } => {}
        Kind::Open { .. } | Kind::Delegation { .. } => return Err(Status::LocksHeld),
        Kind::Lock { by, owner } => {
            let owner = names::owner(held.holder, OwnerKind::Lock, owner);
            let open = match tables.stateids.get(*by).map(|open| &open.kind) {
                Some(Kind::Open { open, .. }) => *open,
                _ => return Err(Status::BadStateid),
            };
            let export = compound.shared.exports.by_id(held.export).ok_or(Status::Stale)?;
            if export.fs().holds_locks(open, &owner) {
                return Err(Status::LocksHeld);
            }
        }
    }
    tables.stateids.remove(key);
    Ok(())
}
