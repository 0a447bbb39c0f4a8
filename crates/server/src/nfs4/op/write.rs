//! WRITE.

use protocol::nfs4::{Status, WriteArgs, WriteOk};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: WriteArgs,
) -> Result<WriteOk, Status> {
    Err(Status::NotSupp)
}
