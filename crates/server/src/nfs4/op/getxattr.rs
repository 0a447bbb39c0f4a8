//! GETXATTR (RFC 8276, section 8.4.1).

use protocol::nfs4::{GetxattrOk, Status, XattrArgs, XattrValue};
use vfs::XattrName;

use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: XattrArgs,
) -> Result<GetxattrOk, Status> {
    let Object { export, handle, caller } = compound.extended()?;
    let name = XattrName::new(&args.name).map_err(convert::error)?;
    let value = export.fs().getxattr(&caller, &handle, &name).await.map_err(convert::error)?;
    Ok(GetxattrOk { value: XattrValue::new(value).ok_or(Status::Xattr2Big)? })
}
