//! DELEGPURGE.

use protocol::nfs4::{DelegpurgeArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: DelegpurgeArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
