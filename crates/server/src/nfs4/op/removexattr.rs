//! REMOVEXATTR (RFC 8276, section 8.4.4).

use protocol::nfs4::{Status, XattrArgs, XattrChangedOk};
use vfs::XattrName;

use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: XattrArgs,
) -> Result<XattrChangedOk, Status> {
    compound.extended()?;
    let object = compound.writable()?;
    compound.shared.state.may_change_attributes(compound.holder(), &object.file_key())?;
    let Object { export, handle, caller } = object;
    let name = XattrName::new(&args.name).map_err(convert::error)?;
    let wcc = export.fs().removexattr(&caller, &handle, &name).await.map_err(convert::error)?;
    Ok(XattrChangedOk { cinfo: convert::change_info(&wcc) })
}
