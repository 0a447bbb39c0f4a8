//! OPEN_DOWNGRADE (RFC 8881, section 18.18).

use protocol::nfs4::{OpenDowngradeArgs, OpenStateidOk, ResOp, Status, op};

use super::open::shares_of;
use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::nfs4::sequenced::sequenced;
use crate::state::owners::OwnerKind;
use crate::state::stateids::Kind;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: OpenDowngradeArgs,
) -> Result<OpenStateidOk, Status> {
    compound.file()?;
    let stateid = compound.stateid(args.open_stateid)?;
    let request = (stateid, OwnerKind::Open, args.seqid);
    sequenced::<op::OpenDowngrade>(compound, request, ResOp::OpenDowngrade, async |compound| {
        let held = compound.open_by(stateid)?;
        let Kind::Open { open, confirmed: true, .. } = held.kind else { return Err(Status::BadStateid) };
        let shares = shares_of(args.share_access, args.share_deny, compound.minor)?;
        let mut object = compound.object()?;
        object.caller.holder = Some(held.holder);
        let downgraded = object.export.fs().downgrade(&object.caller, open, shares.access, shares.deny).await;
        downgraded.map_err(convert::error)?;
        let changed = compound.shared.state.tables().stateids.change(held.key, |kind| {
            if let Kind::Open { access, deny, .. } = kind {
                (*access, *deny) = (shares.access, shares.deny);
            }
        });
        let open_stateid = changed.ok_or(Status::BadStateid)?;
        compound.set_stateid(open_stateid);
        Ok(OpenStateidOk { open_stateid })
    })
    .await
}
