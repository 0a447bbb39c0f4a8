//! LOCK.

use protocol::nfs4::{LockArgs, LockFailure, LockOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: LockArgs,
) -> Result<LockOk, LockFailure> {
    Err(Status::NotSupp.into())
}
