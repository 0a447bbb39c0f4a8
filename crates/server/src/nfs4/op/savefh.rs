//! SAVEFH (RFC 8881, section 18.28).

use protocol::nfs4::Status;

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<(), Status> {
    compound.file()?;
    compound.saved = compound.current.clone();
    Ok(())
}
