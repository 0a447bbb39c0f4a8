//! IO_ADVISE.

use protocol::nfs4::{IoAdviseArgs, IoAdviseOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: IoAdviseArgs,
) -> Result<IoAdviseOk, Status> {
    Err(Status::NotSupp)
}
