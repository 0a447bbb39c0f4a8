//! SECINFO_NO_NAME.

use protocol::nfs4::{SecinfoOk, SecinfoStyle, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SecinfoStyle,
) -> Result<SecinfoOk, Status> {
    Err(Status::NotSupp)
}
