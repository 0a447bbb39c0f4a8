//! OPEN_CONFIRM (RFC 7530, section 16.18).

use protocol::nfs4::{OpenConfirmArgs, OpenStateidOk, ResOp, Status, op};

use crate::nfs4::compound::Compound;
use crate::nfs4::sequenced::sequenced;
use crate::state::owners::{OwnerKind, OwnerName};
use crate::state::stateids::Kind;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: OpenConfirmArgs,
) -> Result<OpenStateidOk, Status> {
    compound.file()?;
    let request = (args.open_stateid, OwnerKind::Open, args.seqid);
    sequenced::<op::OpenConfirm>(compound, request, ResOp::OpenConfirm, async |compound| {
        let held = compound.open_by(args.open_stateid)?;
        let Kind::Open { owner, confirmed: false, .. } = &held.kind else { return Err(Status::BadStateid) };
        let name = OwnerName { client: held.client, kind: OwnerKind::Open, name: owner.clone() };
        let mut tables = compound.shared.state.tables();
        tables.owners.confirm(&name);
        let changed = tables.stateids.change(held.key, |kind| {
            if let Kind::Open { confirmed, .. } = kind {
                *confirmed = true;
            }
        });
        Ok(OpenStateidOk { open_stateid: changed.ok_or(Status::BadStateid)? })
    })
    .await
}
