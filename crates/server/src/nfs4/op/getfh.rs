//! GETFH (RFC 8881, section 18.8).

use protocol::nfs4::{GetfhOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<GetfhOk, Status> {
    Ok(GetfhOk { object: compound.wire_handle(compound.file()?)? })
}
