//! OPEN_CONFIRM.

use protocol::nfs4::{OpenConfirmArgs, OpenStateidOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: OpenConfirmArgs,
) -> Result<OpenStateidOk, Status> {
    Err(Status::NotSupp)
}
