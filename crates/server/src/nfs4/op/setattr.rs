//! SETATTR.

use protocol::nfs4::{SetattrArgs, SetattrFailure, SetattrOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SetattrArgs,
) -> Result<SetattrOk, SetattrFailure> {
    Err(Status::NotSupp.into())
}
