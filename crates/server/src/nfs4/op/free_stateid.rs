//! FREE_STATEID.

use protocol::nfs4::{FreeStateidArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: FreeStateidArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
