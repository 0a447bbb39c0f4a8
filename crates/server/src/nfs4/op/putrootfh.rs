//! PUTROOTFH (RFC 8881, section 18.21): the root of all exports.

use protocol::nfs4::Status;

use crate::exports::pseudo::Pseudo;
use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<(), Status> {
    let root = compound.enter(Pseudo::ROOT).await?;
    compound.set_file(root);
    Ok(())
}
