//! CREATE_SESSION.

use protocol::nfs4::{CreateSessionArgs, CreateSessionOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: CreateSessionArgs,
) -> Result<CreateSessionOk, Status> {
    Err(Status::NotSupp)
}
