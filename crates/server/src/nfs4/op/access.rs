//! ACCESS.

use protocol::nfs4::{AccessArgs, AccessOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: AccessArgs,
) -> Result<AccessOk, Status> {
    Err(Status::NotSupp)
}
