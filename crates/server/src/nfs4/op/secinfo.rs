//! SECINFO.

use protocol::nfs4::{SecinfoArgs, SecinfoOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SecinfoArgs,
) -> Result<SecinfoOk, Status> {
    Err(Status::NotSupp)
}
