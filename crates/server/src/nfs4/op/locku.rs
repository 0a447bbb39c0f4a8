//! LOCKU.

use protocol::nfs4::{LockOk, LockuArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: LockuArgs,
) -> Result<LockOk, Status> {
    Err(Status::NotSupp)
}
