//! CLOSE.

use protocol::nfs4::{CloseArgs, OpenStateidOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: CloseArgs,
) -> Result<OpenStateidOk, Status> {
    Err(Status::NotSupp)
}
