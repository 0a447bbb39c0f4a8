//! READDIR.

use protocol::nfs4::{ReaddirArgs, ReaddirOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: ReaddirArgs,
) -> Result<ReaddirOk, Status> {
    Err(Status::NotSupp)
}
