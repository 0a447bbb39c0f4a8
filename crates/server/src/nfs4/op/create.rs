//! CREATE of anything but a regular file (RFC 8881, section 18.4).

use protocol::nfs4::{Attr, Bitmap, CreateArgs, CreateOk, Createtype, Status};
use vfs::{Created, Device, FileType, Name};

use crate::nfs4::compound::{Compound, File};
use crate::nfs4::setting::Setting;
use crate::nfs4::{convert, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: CreateArgs,
) -> Result<CreateOk, Status> {
    if let Createtype::Other(_) = args.objtype {
        compound.file()?;
        return Err(Status::BadType);
    }
    let object = compound.writable()?;
    let name = convert::name(&args.objname)?;
    // Directory leases cannot be reclaimed after a restart, so no name changes until every earlier holder
    // knows of the restart.
    compound.shared.state.no_grace()?;
    let supported = compound.supported(&object.export).await?;
    let setting = Setting::of_new(compound.shared.names(), &args.createattrs, supported).await?;
    if setting.set.size.is_some() {
        return Err(Status::Inval);
    }
    let created = match make(&object, &args.objtype, &name, &setting).await {
        Ok(created) => created,
        Err(Failed::Known(status)) => return Err(status),
        Err(Failed::Below(error)) => return Err(kind::directory_error(&object, error, Status::NotDir).await),
    };
    let mut attrset = setting.asked;
    if let Some(acl) = &setting.acl
        && object.export.fs().set_acl(&object.caller, &created.node.handle, acl).await.is_err()
    {
        // The object exists already, so the reply only omits the attribute that could not be set.
        attrset = attrset - Bitmap::of(&[Attr::Acl]);
    }
    compound.set_file(File::Object(object.export, created.node.handle));
    Ok(CreateOk { cinfo: convert::change_info(&created.directory), attrset })
}

enum Failed {
    Known(Status),
    Below(vfs::Error),
}

impl From<vfs::Error> for Failed {
    fn from(error: vfs::Error) -> Failed {
        Failed::Below(error)
    }
}

async fn make(
    object: &Object,
    objtype: &Createtype,
    name: &Name,
    Setting { set, .. }: &Setting,
) -> Result<Created, Failed> {
    let Object { export, handle, caller } = object;
    let (file_type, device) = match objtype {
        Createtype::Dir => return Ok(export.fs().mkdir(caller, handle, name, set, vfs::Want::None).await?),
        Createtype::Lnk(target) if target.is_empty() || target.contains(&0) => {
            return Err(Failed::Known(Status::Inval));
        }
        Createtype::Lnk(target) => return Ok(export.fs().symlink(caller, handle, name, target, set).await?),
        Createtype::Blk(specdata) => (FileType::Block, convert::device(*specdata)),
        Createtype::Chr(specdata) => (FileType::Character, convert::device(*specdata)),
        Createtype::Sock => (FileType::Socket, Device::default()),
        Createtype::Fifo => (FileType::Fifo, Device::default()),
        Createtype::Other(_) => return Err(Failed::Known(Status::BadType)),
    };
    Ok(export.fs().mknod(caller, handle, name, file_type, device, set).await?)
}
