//! SECINFO_NO_NAME (RFC 8881, section 18.45).

use protocol::nfs4::{SecinfoOk, SecinfoStyle, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::security;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    style: SecinfoStyle,
) -> Result<SecinfoOk, Status> {
    let flavors = match style {
        SecinfoStyle::CurrentFh => {
            let file = compound.file()?.clone();
            security::of_file(compound, &file)
        }
        SecinfoStyle::Parent => security::of_parent(compound).await?,
    };
    security::consume_handle(compound);
    Ok(flavors)
}
