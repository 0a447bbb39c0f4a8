//! SETCLIENTID_CONFIRM.

use protocol::nfs4::{SetclientidConfirmArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SetclientidConfirmArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
