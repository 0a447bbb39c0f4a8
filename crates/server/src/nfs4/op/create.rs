//! CREATE.

use protocol::nfs4::{CreateArgs, CreateOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: CreateArgs,
) -> Result<CreateOk, Status> {
    Err(Status::NotSupp)
}
