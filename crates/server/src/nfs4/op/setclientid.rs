//! SETCLIENTID.

use protocol::nfs4::{SetclientidArgs, SetclientidFailure, SetclientidOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SetclientidArgs,
) -> Result<SetclientidOk, SetclientidFailure> {
    Err(Status::NotSupp.into())
}
