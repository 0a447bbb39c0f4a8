//! REMOVE.

use protocol::nfs4::{RemoveArgs, RemoveOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: RemoveArgs,
) -> Result<RemoveOk, Status> {
    Err(Status::NotSupp)
}
