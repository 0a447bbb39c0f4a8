//! Procedures that create, remove and rename (RFC 1813, sections 3.3.8 to 3.3.15).

use protocol::nfs3::{
    CreateArgs, CreateHow as WireHow, CreateOk, LinkArgs, LinkRes, MkdirArgs, MknodArgs, MknodData,
    RemoveArgs, RemoveOk, RenameArgs, RenameRes, SymlinkArgs,
};
use vfs::{CreateHow, Created, Device, FileType, SetAttributes, Status};

use super::convert::{device, fattr, set_attributes, wcc_data};
use super::new_name;
use crate::exports::Export;
use crate::shared::{Object, Request};

pub(super) async fn create(request: &Request<'_>, args: CreateArgs) -> vfs::Result<CreateOk> {
    let object = request.writable(&args.location.dir)?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name, Status::Exist)?;
    let (how, set) = match &args.how {
        WireHow::Unchecked(sattr) => (CreateHow::Unchecked, set_attributes(sattr)),
        WireHow::Guarded(sattr) => (CreateHow::Guarded, set_attributes(sattr)),
        WireHow::Exclusive(verifier) => (CreateHow::Exclusive(*verifier), SetAttributes::default()),
    };
    let create = || export.fs().create(caller, handle, &name, how, &set);
    let created = request.shared.past_courtesy(&object, Some(&name), create).await?;
    create_ok(request, export, &created)
}

pub(super) async fn mkdir(request: &Request<'_>, args: MkdirArgs) -> vfs::Result<CreateOk> {
    let Object { export, handle, caller } = request.writable(&args.location.dir)?;
    let name = new_name(&args.location.name, Status::Exist)?;
    let created = export
        .fs()
        .mkdir(&caller, &handle, &name, &set_attributes(&args.attributes), vfs::Want::None)
        .await?;
    create_ok(request, &export, &created)
}

pub(super) async fn symlink(request: &Request<'_>, args: SymlinkArgs) -> vfs::Result<CreateOk> {
    let Object { export, handle, caller } = request.writable(&args.location.dir)?;
    let name = new_name(&args.location.name, Status::Exist)?;
    if args.symlink_data.is_empty() || args.symlink_data.contains(&0) {
        return Err(Status::Inval.into());
    }
    let set = set_attributes(&args.symlink_attributes);
    let created = export.fs().symlink(&caller, &handle, &name, &args.symlink_data, &set).await?;
    create_ok(request, &export, &created)
}

pub(super) async fn mknod(request: &Request<'_>, args: MknodArgs) -> vfs::Result<CreateOk> {
    let Object { export, handle, caller } = request.writable(&args.location.dir)?;
    let name = new_name(&args.location.name, Status::Exist)?;
    let (file_type, device, sattr) = match args.what {
        MknodData::Blk(sattr, specdata) => (FileType::Block, device(specdata), sattr),
        MknodData::Chr(sattr, specdata) => (FileType::Character, device(specdata), sattr),
        MknodData::Sock(sattr) => (FileType::Socket, Device::default(), sattr),
        MknodData::Fifo(sattr) => (FileType::Fifo, Device::default(), sattr),
        MknodData::Other(_) => return Err(Status::BadType.into()),
    };
    let set = set_attributes(&sattr);
    let created = export.fs().mknod(&caller, &handle, &name, file_type, device, &set).await?;
    create_ok(request, &export, &created)
}

fn create_ok(request: &Request<'_>, export: &Export, created: &Created) -> vfs::Result<CreateOk> {
    Ok(CreateOk {
        obj: Some(request.shared.handles.v3(export.id, &created.node.handle)?),
        obj_attributes: created.node.attributes.as_ref().map(|it| fattr(export, it)),
        dir_wcc: wcc_data(export, &created.directory),
    })
}

pub(super) async fn remove(request: &Request<'_>, args: RemoveArgs) -> vfs::Result<RemoveOk> {
    let Object { export, handle, caller } = request.writable(&args.object.dir)?;
    let name = new_name(&args.object.name, Status::Inval)?;
    let wcc = export.fs().remove(&caller, &handle, &name).await?;
    Ok(RemoveOk { dir_wcc: wcc_data(&export, &wcc) })
}

pub(super) async fn rmdir(request: &Request<'_>, args: RemoveArgs) -> vfs::Result<RemoveOk> {
    let Object { export, handle, caller } = request.writable(&args.object.dir)?;
    // RFC 1813, section 3.3.13: INVAL for ".", EXIST for "..".
    let walks = if &args.object.name[..] == b".." { Status::Exist } else { Status::Inval };
    let name = new_name(&args.object.name, walks)?;
    let wcc = export.fs().rmdir(&caller, &handle, &name).await?;
    Ok(RemoveOk { dir_wcc: wcc_data(&export, &wcc) })
}

pub(super) async fn rename(request: &Request<'_>, args: RenameArgs) -> vfs::Result<RenameRes> {
    let from = request.writable(&args.from.dir)?;
    let to = request.writable(&args.to.dir)?;
    if from.export.id != to.export.id {
        return Err(Status::Xdev.into());
    }
    let from_name = new_name(&args.from.name, Status::Inval)?;
    let to_name = new_name(&args.to.name, Status::Inval)?;
    let export = &from.export;
    let fs = export.fs();
    let renamed = fs.rename(&from.caller, &from.handle, &from_name, &to.handle, &to_name).await?;
    Ok(RenameRes { fromdir_wcc: wcc_data(export, &renamed.from), todir_wcc: wcc_data(export, &renamed.to) })
}

pub(super) async fn link(request: &Request<'_>, args: LinkArgs) -> vfs::Result<LinkRes> {
    let file = request.writable(&args.file)?;
    let directory = request.writable(&args.link.dir)?;
    if file.export.id != directory.export.id {
        return Err(Status::Xdev.into());
    }
    let name = new_name(&args.link.name, Status::Exist)?;
    let export = &file.export;
    let linked = export.fs().link(&file.caller, &file.handle, &directory.handle, &name).await?;
    Ok(LinkRes {
        file_attributes: linked.node.attributes.as_ref().map(|it| fattr(export, it)),
        linkdir_wcc: wcc_data(export, &linked.directory),
    })
}
