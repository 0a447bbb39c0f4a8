//! SECINFO (RFC 8881, section 18.29; RFC 7530, section 16.31).

use protocol::nfs4::{SecinfoArgs, SecinfoOk, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::security;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SecinfoArgs,
) -> Result<SecinfoOk, Status> {
    let flavors = security::of_name(compound, &args.name).await?;
    security::consume_handle(compound);
    Ok(flavors)
}
