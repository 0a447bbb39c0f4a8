//! GETATTR.

use protocol::nfs4::{GetattrArgs, GetattrOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: GetattrArgs,
) -> Result<GetattrOk, Status> {
    Err(Status::NotSupp)
}
