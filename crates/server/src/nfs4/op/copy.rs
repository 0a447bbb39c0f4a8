//! COPY.

use protocol::nfs4::{CopyArgs, CopyFailure, CopyOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: CopyArgs,
) -> Result<CopyOk, CopyFailure> {
    Err(Status::NotSupp.into())
}
