//! COPY within a file system, completed before the reply (RFC 7862, section 15.2). Copies between servers
//! are not supported.

use protocol::nfs4::{CopyArgs, CopyFailure, CopyOk, CopyRequirements, Status, WriteResponse};

use crate::nfs4::compound::Compound;
use crate::nfs4::{convert, kind, place};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: CopyArgs,
) -> Result<CopyOk, CopyFailure> {
    if !args.source_server.is_empty() {
        return Err(Status::NotSupp.into());
    }
    let (source, from) = place::read(compound, args.src_stateid, args.src_offset, args.count).await?;
    let (target, to) = place::written(compound, args.dst_stateid, args.dst_offset, args.count).await?;
    if source.export.id != target.export.id {
        return Err(Status::Xdev.into());
    }
    let shared = compound.shared;
    let copy = || target.export.fs().copy(&target.caller, from, to, args.count);
    let copied = match shared.past_courtesy(&source, None, || shared.past_courtesy(&target, None, copy)).await
    {
        Ok(copied) => copied,
        Err(error) => return Err(kind::io_error(&target, error, compound.minor).await.into()),
    };
    Ok(CopyOk {
        response: WriteResponse {
            callback_id: None,
            count: copied.count,
            committed: convert::stable_how(copied.stability),
            writeverf: copied.verifier,
        },
        requirements: CopyRequirements { consecutive: true, synchronous: true },
    })
}
