//! SECINFO_NO_NAME (RFC 8881, section 18.45).

use protocol::nfs4::{SecinfoOk, SecinfoStyle, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::{security, walk};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    style: SecinfoStyle,
) -> Result<SecinfoOk, Status> {
    match style {
        SecinfoStyle::CurrentFh => compound.file().map(|_| ())?,
        SecinfoStyle::Parent => walk::up(compound).await.map(|_| ())?,
    }
    security::consume_handle(compound);
    Ok(security::flavors())
}
