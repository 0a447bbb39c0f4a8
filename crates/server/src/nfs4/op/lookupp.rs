//! LOOKUPP (RFC 8881, section 18.14).

use protocol::nfs4::Status;

use crate::nfs4::compound::Compound;
use crate::nfs4::walk;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<(), Status> {
    let file = walk::up(compound).await?;
    compound.set_file(file);
    Ok(())
}
