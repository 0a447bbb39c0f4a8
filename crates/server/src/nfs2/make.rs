//! CREATE, REMOVE, RENAME, LINK, SYMLINK, MKDIR, RMDIR (RFC 1094, sections 2.2.10 to 2.2.16).

use protocol::nfs2::{CreateArgs, DirOpArgs, DirOpOk, LinkArgs, RenameArgs, SymlinkArgs};
use vfs::{CreateHow, Created, FileType, SetAttributes, Status};

use super::convert::set_attributes;
use crate::narrow::convert::{device, fattr, file_type};
use crate::narrow::{attributes, new_name};
use crate::shared::{Object, Request};

/// CREATE also creates special files: the mode holds the type, and the size holds the device number.
pub(super) async fn create(request: &Request<'_>, args: CreateArgs) -> vfs::Result<DirOpOk> {
    let object = request.writable(&args.location.dir)?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = set_attributes(&args.attributes);
    let made = file_type(args.attributes.mode);
    let created = if made == FileType::Regular {
        let create = || export.fs().create(caller, handle, &name, CreateHow::Unchecked, &set);
        request.shared.past_courtesy(&object, Some(&name), create).await?
    } else {
        let device = device(set.size.unwrap_or(0) as u32);
        let set = SetAttributes { size: None, ..set };
        export.fs().mknod(caller, handle, &name, made, device, &set).await?
    };
    dir_op_ok(request, &object, &created).await
}

pub(super) async fn mkdir(request: &Request<'_>, args: CreateArgs) -> vfs::Result<DirOpOk> {
    let object = request.writable(&args.location.dir)?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = SetAttributes { size: None, ..set_attributes(&args.attributes) };
    let created = export.fs().mkdir(caller, handle, &name, &set, vfs::Want::None).await?;
    dir_op_ok(request, &object, &created).await
}

async fn dir_op_ok(request: &Request<'_>, object: &Object, created: &Created) -> vfs::Result<DirOpOk> {
    let Object { export, caller, .. } = object;
    let node = created.node;
    let attributes = attributes(export, caller, &node.handle, node.attributes).await?;
    Ok(DirOpOk {
        file: request.shared.handles.v2(export.id, &node.handle)?,
        attributes: fattr(export, &attributes),
    })
}

pub(super) async fn symlink(request: &Request<'_>, args: SymlinkArgs) -> vfs::Result<()> {
    let Object { export, handle, caller } = request.writable(&args.from.dir)?;
    let name = new_name(&args.from.name)?;
    if args.to.is_empty() || args.to.contains(&0) {
        return Err(Status::Inval.into());
    }
    // Servers ignore the attributes, so clients send arbitrary ones.
    export.fs().symlink(&caller, &handle, &name, &args.to, &SetAttributes::default()).await.map(drop)
}

pub(super) async fn remove(request: &Request<'_>, args: DirOpArgs) -> vfs::Result<()> {
    let Object { export, handle, caller } = request.writable(&args.dir)?;
    export.fs().remove(&caller, &handle, &new_name(&args.name)?).await.map(drop)
}

pub(super) async fn rmdir(request: &Request<'_>, args: DirOpArgs) -> vfs::Result<()> {
    let Object { export, handle, caller } = request.writable(&args.dir)?;
    export.fs().rmdir(&caller, &handle, &new_name(&args.name)?).await.map(drop)
}

pub(super) async fn rename(request: &Request<'_>, args: RenameArgs) -> vfs::Result<()> {
    let from = request.writable(&args.from.dir)?;
    let to = request.writable(&args.to.dir)?;
    if from.export.id != to.export.id {
        return Err(Status::Xdev.into());
    }
    let (from_name, to_name) = (new_name(&args.from.name)?, new_name(&args.to.name)?);
    from.export.fs().rename(&from.caller, &from.handle, &from_name, &to.handle, &to_name).await.map(drop)
}

pub(super) async fn link(request: &Request<'_>, args: LinkArgs) -> vfs::Result<()> {
    let file = request.writable(&args.from)?;
    let directory = request.writable(&args.to.dir)?;
    if file.export.id != directory.export.id {
        return Err(Status::Xdev.into());
    }
    file.export
        .fs()
        .link(&file.caller, &file.handle, &directory.handle, &new_name(&args.to.name)?)
        .await
        .map(drop)
}
