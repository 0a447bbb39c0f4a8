//! LOCKU (RFC 8881, section 18.12).

use protocol::nfs4::{LockOk, LockuArgs, ResOp, Status, op};

use super::lock::check_range;
use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::nfs4::sequenced::sequenced;
use crate::state::names;
use crate::state::owners::OwnerKind;
use crate::state::stateids::Kind;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: LockuArgs) -> Result<LockOk, Status> {
    compound.file()?;
    let stateid = compound.stateid(args.lock_stateid)?;
    let request = (stateid, OwnerKind::Lock, args.seqid);
    sequenced::<op::Locku>(compound, request, ResOp::Locku, async |compound| {
        let held = compound.lock_by(stateid)?;
        check_range(args.offset, args.length)?;
        let Kind::Lock { by, owner } = &held.kind else { return Err(Status::BadStateid) };
        let open = {
            let tables = compound.shared.state.tables();
            match tables.stateids.get(*by).map(|open| &open.kind) {
                Some(Kind::Open { open, .. }) => *open,
                _ => return Err(Status::BadStateid),
            }
        };
        let mut object = compound.object()?;
        object.caller.holder = Some(held.holder);
        let owner = names::owner(held.holder, OwnerKind::Lock, owner);
        let range = (args.offset, args.length);
        object.export.fs().unlock(&object.caller, open, &owner, range).await.map_err(convert::error)?;
        let changed = compound.shared.state.tables().stateids.change(held.key, |_| {});
        let lock_stateid = changed.ok_or(Status::BadStateid)?;
        compound.set_stateid(lock_stateid);
        Ok(LockOk { lock_stateid })
    })
    .await
}
