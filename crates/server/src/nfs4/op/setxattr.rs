//! SETXATTR (RFC 8276, section 8.4.2).

use protocol::nfs4::{SetxattrArgs, SetxattrOption, Status, XATTR_SIZE_MAX, XattrChangedOk};
use vfs::{XattrHow, XattrName};

use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SetxattrArgs,
) -> Result<XattrChangedOk, Status> {
    compound.extended()?;
    let object = compound.writable()?;
    compound.shared.state.may_change_attributes(compound.holder(), &object.file_key())?;
    let Object { export, handle, caller } = object;
    let name = XattrName::new(&args.key).map_err(convert::error)?;
    if args.value.len() > XATTR_SIZE_MAX {
        return Err(Status::Xattr2Big);
    }
    let how = match args.option {
        SetxattrOption::Either => XattrHow::Either,
        SetxattrOption::Create => XattrHow::Create,
        SetxattrOption::Replace => XattrHow::Replace,
    };
    let value = args.value.into_bytes();
    let wcc = export.fs().setxattr(&caller, &handle, &name, value, how).await.map_err(convert::error)?;
    Ok(XattrChangedOk { cinfo: convert::change_info(&wcc) })
}
