//! LOOKUP (RFC 8881, section 18.13).

use protocol::nfs4::{LookupArgs, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::walk;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: LookupArgs) -> Result<(), Status> {
    let file = walk::down(compound, &args.objname).await?;
    compound.set_file(file);
    Ok(())
}
