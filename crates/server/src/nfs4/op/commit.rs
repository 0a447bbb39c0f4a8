//! COMMIT.

use protocol::nfs4::{CommitArgs, CommitOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: CommitArgs,
) -> Result<CommitOk, Status> {
    Err(Status::NotSupp)
}
