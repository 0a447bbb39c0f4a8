//! LOCKT.

use protocol::nfs4::{LockFailure, LocktArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: LocktArgs,
) -> Result<(), LockFailure> {
    Err(Status::NotSupp.into())
}
