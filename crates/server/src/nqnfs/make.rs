//! CREATE, REMOVE, RENAME, LINK, SYMLINK, MKDIR, RMDIR. The lease asked for along with them is on the directory (of
//! RENAME the first, of LINK the file), which is not cachable today: see docs/nqnfs.md.

use protocol::nqnfs::{CreateArgs, DirOpOk, LeaseRequest, LinkArgs, RenameArgs, SymlinkArgs};
use vfs::{CreateHow, Created, FileType, SetAttributes, Status};

use super::convert::{Place, fattr, kind, set_attributes};
use super::granting::granted;
use super::{Asked, Done, wire_handle};
use crate::front::Object;
use crate::nfs2::{attributes, new_name};

/// CREATE also makes special files: the type is in the mode, the device number in the size.
pub(super) async fn create(asked: &Asked<'_>, lease: LeaseRequest, args: CreateArgs) -> Done<DirOpOk> {
    let object = asked.writable(&args.location.dir)?;
    let lease = granted(asked, &object, lease).await?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = set_attributes(&args.attributes);
    let (made, device) = kind(&args.attributes);
    let created = if made == FileType::Regular {
        export.fs.create(caller, handle, &name, CreateHow::Unchecked, &set).await?
    } else {
        let set = SetAttributes { size: None, ..set };
        export.fs.mknod(caller, handle, &name, made, device, &set).await?
    };
    Ok((lease, made_ok(asked, &object, &created).await?))
}

pub(super) async fn mkdir(asked: &Asked<'_>, lease: LeaseRequest, args: CreateArgs) -> Done<DirOpOk> {
    let object = asked.writable(&args.location.dir)?;
    let lease = granted(asked, &object, lease).await?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = SetAttributes { size: None, ..set_attributes(&args.attributes) };
    let created = export.fs.mkdir(caller, handle, &name, &set).await?;
    Ok((lease, made_ok(asked, &object, &created).await?))
}

async fn made_ok(asked: &Asked<'_>, object: &Object, created: &Created) -> vfs::Result<DirOpOk> {
    let node = created.node;
    let after = attributes(&object.export, &object.caller, &node.handle, node.attributes).await?;
    let attributes = fattr(asked, &after).await?;
    Ok(DirOpOk { file: wire_handle(asked.front, object, &node.handle)?, attributes })
}

pub(super) async fn symlink(asked: &Asked<'_>, lease: LeaseRequest, args: SymlinkArgs) -> Done<()> {
    let object = asked.writable(&args.from.dir)?;
    let lease = granted(asked, &object, lease).await?;
    let name = new_name(&args.from.name)?;
    if args.to.is_empty() || args.to.contains(&0) {
        return Err(Status::Inval.into());
    }
    // Servers ignore the attributes, so clients fill them with anything.
    let set = SetAttributes::default();
    object.export.fs.symlink(&object.caller, &object.handle, &name, &args.to, &set).await?;
    Ok((lease, ()))
}

pub(super) async fn remove(asked: &Asked<'_>, lease: LeaseRequest, args: Place) -> Done<()> {
    let object = asked.writable(&args.dir)?;
    let lease = granted(asked, &object, lease).await?;
    object.export.fs.remove(&object.caller, &object.handle, &new_name(&args.name)?).await?;
    Ok((lease, ()))
}

pub(super) async fn rmdir(asked: &Asked<'_>, lease: LeaseRequest, args: Place) -> Done<()> {
    let object = asked.writable(&args.dir)?;
    let lease = granted(asked, &object, lease).await?;
    object.export.fs.rmdir(&object.caller, &object.handle, &new_name(&args.name)?).await?;
    Ok((lease, ()))
}

pub(super) async fn rename(asked: &Asked<'_>, lease: LeaseRequest, args: RenameArgs) -> Done<()> {
    let from = asked.writable(&args.from.dir)?;
    let to = asked.writable(&args.to.dir)?;
    if from.export.id != to.export.id {
        return Err(Status::Xdev.into());
    }
    let lease = granted(asked, &from, lease).await?;
    let (from_name, to_name) = (new_name(&args.from.name)?, new_name(&args.to.name)?);
    from.export.fs.rename(&from.caller, &from.handle, &from_name, &to.handle, &to_name).await?;
    Ok((lease, ()))
}

pub(super) async fn link(asked: &Asked<'_>, lease: LeaseRequest, args: LinkArgs) -> Done<()> {
    let file = asked.writable(&args.from)?;
    let directory = asked.writable(&args.to.dir)?;
    if file.export.id != directory.export.id {
        return Err(Status::Xdev.into());
    }
    let lease = granted(asked, &file, lease).await?;
    let name = new_name(&args.to.name)?;
    file.export.fs.link(&file.caller, &file.handle, &directory.handle, &name).await?;
    Ok((lease, ()))
}
