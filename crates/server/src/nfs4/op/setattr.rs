//! SETATTR (RFC 8881, section 18.30).

use protocol::nfs4::{Attr, Bitmap, SetattrArgs, SetattrFailure, SetattrOk, Status};
use vfs::Share;

use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::nfs4::setting::Setting;
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SetattrArgs,
) -> Result<SetattrOk, SetattrFailure> {
    let mut object = compound.writable()?;
    let supported = compound.supported(&object.export).await?;
    let setting = Setting::of_change(compound.shared.names(), &args.obj_attributes, supported).await?;
    if setting.set.size.is_some() {
        // Truncating is writing. If the state id is that of an open, it goes under that open.
        let stateid = compound.stateid(args.stateid)?;
        compound.io_basis(&mut object, stateid, Share::WRITE).await?;
    } else {
        compound.shared.state.may_change_attributes(compound.holder(), &object.file_key())?;
    }
    let mut attrsset = Bitmap::EMPTY;
    if !setting.is_plain() {
        let Object { export, handle, caller } = &object;
        let set = || export.fs().setattr(caller, handle, &setting.set, None);
        compound.shared.past_courtesy(&object, None, set).await.map_err(convert::io_error)?;
        attrsset = setting.asked - Bitmap::of(&[Attr::Acl]);
    }
    if let Some(acl) = &setting.acl {
        let done = object.export.fs().set_acl(&object.caller, &object.handle, acl).await;
        done.map_err(|error| SetattrFailure { status: acl_error(error.status), attrsset })?;
    }
    Ok(SetattrOk { attrsset: setting.asked })
}

/// If the file system cannot store an access control list, the attribute is unsupported.
fn acl_error(status: vfs::Status) -> Status {
    match status {
        vfs::Status::NotSupp => Status::AttrNotSupp,
        other => convert::status(other),
    }
}
