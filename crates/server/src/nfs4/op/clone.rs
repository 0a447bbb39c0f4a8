//! CLONE (RFC 7862, section 15.13).

use protocol::nfs4::{CloneArgs, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::{kind, place};

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: CloneArgs) -> Result<(), Status> {
    let (source, from) = place::read(compound, args.src_stateid, args.src_offset, args.count).await?;
    let (target, to) = place::written(compound, args.dst_stateid, args.dst_offset, args.count).await?;
    if source.export.id != target.export.id {
        return Err(Status::Xdev);
    }
    let shared = compound.shared;
    let clone = || target.export.fs().clone_range(&target.caller, from, to, args.count);
    match shared.past_courtesy(&source, None, || shared.past_courtesy(&target, None, clone)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(kind::io_error(&target, error, compound.minor).await),
    }
}
