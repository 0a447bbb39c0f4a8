//! GETATTR (RFC 8881, section 18.7).

use protocol::nfs4::{GetattrArgs, GetattrOk, Status};

use crate::nfs4::attributes;
use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: GetattrArgs,
) -> Result<GetattrOk, Status> {
    let file = compound.file()?.clone();
    attributes::readable(args.attr_request)?;
    let fattr = attributes::read(compound, &file, None, args.attr_request).await?;
    Ok(GetattrOk { obj_attributes: Box::new(fattr) })
}
