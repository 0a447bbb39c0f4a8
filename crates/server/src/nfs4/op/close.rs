//! CLOSE (RFC 8881, section 18.2).

use protocol::nfs4::{CloseArgs, OpenStateidOk, ResOp, Stateid, Status, op};

use crate::nfs4::compound::Compound;
use crate::nfs4::sequenced::sequenced;
use crate::state::owners::{OwnerKind, OwnerName};
use crate::state::stateids::Kind;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: CloseArgs,
) -> Result<OpenStateidOk, Status> {
    compound.file()?;
    let stateid = compound.stateid(args.open_stateid)?;
    let request = (stateid, OwnerKind::Open, args.seqid);
    sequenced::<op::Close>(compound, request, ResOp::Close, async |compound| {
        let held = compound.open_by(stateid)?;
        let Kind::Open { open, owner, .. } = &held.kind else { return Err(Status::BadStateid) };
        // The current filehandle may be of another export.
        if let Some(export) = compound.shared.exports.by_id(held.export) {
            compound.caller(&export)?;
        }
        {
            let mut tables = compound.shared.state.tables();
            tables.stateids.remove(held.key).ok_or(Status::BadStateid)?;
            tables.closed.add(held.export, *open);
            let name = OwnerName { client: held.client, kind: OwnerKind::Open, name: owner.clone() };
            tables.owners.closed(&name, held.key);
        }
        compound.shared.give_back(&held).await;
        // The state id is void. Minor version 0 has no special value for that.
        let open_stateid = match compound.minor {
            0 => Stateid { seqid: stateid.seqid.wrapping_add(1), ..stateid },
            _ => Stateid::INVALID,
        };
        compound.set_stateid(open_stateid);
        Ok(OpenStateidOk { open_stateid })
    })
    .await
}
