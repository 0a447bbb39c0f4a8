//! COMMIT (RFC 8881, section 18.3).

use protocol::nfs4::{CommitArgs, CommitOk, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::kind;
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: CommitArgs,
) -> Result<CommitOk, Status> {
    let object = compound.object()?;
    if args.offset.checked_add(args.count.into()).is_none() {
        return Err(Status::Inval);
    }
    let Object { export, handle, caller } = &object;
    let offset = args.offset.min(i64::MAX as u64);
    match export.fs().commit(caller, handle, offset, args.count).await {
        Ok(commit) => Ok(CommitOk { writeverf: commit.verifier }),
        Err(error) => Err(kind::io_error(&object, error, compound.minor).await),
    }
}
