//! GET_DIR_DELEGATION.

use protocol::nfs4::{GetDirDelegationArgs, GetDirDelegationOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: GetDirDelegationArgs,
) -> Result<GetDirDelegationOk, Status> {
    Err(Status::NotSupp)
}
