//! VERIFY (RFC 8881, section 18.31).

use protocol::nfs4::{ArgFattr, Attr, Status, VerifyArgs};

use crate::nfs4::attributes;
use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: VerifyArgs) -> Result<(), Status> {
    if are_same(compound, &args.obj_attributes).await? { Ok(()) } else { Err(Status::NotSame) }
}

/// Does the current object have these attributes?
pub(super) async fn are_same(compound: &mut Compound<'_>, args: &ArgFattr) -> Result<bool, Status> {
    let file = compound.file()?.clone();
    let given = args.known().map_err(|_| Status::AttrNotSupp)?;
    let asked = given.attributes();
    attributes::readable(asked)?;
    if asked.contains(Attr::RdattrError) {
        return Err(Status::Inval);
    }
    let fattr = attributes::read(compound, &file, None, asked).await?;
    if fattr.attributes() != asked {
        return Err(Status::AttrNotSupp);
    }
    Ok(fattr == *given)
}
