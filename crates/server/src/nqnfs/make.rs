//! CREATE, REMOVE, RENAME, LINK, SYMLINK, MKDIR, RMDIR. The lease asked for along with CREATE is on the file that it makes,
//! with the others on the directory (of RENAME the first, of LINK the file): see docs/nqnfs.md.

use protocol::nqnfs::{
    CreateArgs, DirOpOk, LeaseRequest, LeaseResult, LinkArgs, Promise, RenameArgs, SymlinkArgs, TERM_DEFAULT,
};
use vfs::{AccessMask, CreateHow, Created, FileType, Node, SetAttributes, Status};

use super::convert::{Place, fattr, kind, set_attributes};
use super::granting::{grant, granted};
use super::{Asked, Done, wire_handle};
use crate::front::Object;
use crate::nfs2::{attributes, new_name};

/// CREATE also makes special files: the type is in the mode, the device number in the size.
pub(super) async fn create(asked: &Asked<'_>, lease: LeaseRequest, args: CreateArgs) -> Done<DirOpOk> {
    let object = asked.writable(&args.location.dir)?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = set_attributes(&args.attributes);
    let (made, device) = kind(&args.attributes);
    if made != FileType::Regular {
        let set = SetAttributes { size: None, ..set };
        let created = export.fs.mknod(caller, handle, &name, made, device, &set).await?;
        return without_lease(asked, &object, &created, (lease, 0)).await;
    }
    if lease != LeaseRequest::None {
        // Whether it was there before is of use to who asks for a lease.
        match export.fs.create(caller, handle, &name, CreateHow::Guarded, &set).await {
            Ok(created) => return made_with_lease(asked, &object, &created, lease).await,
            Err(error) if error.status == Status::Exist => {}
            Err(error) => return Err(error),
        }
    }
    let created = export.fs.create(caller, handle, &name, CreateHow::Unchecked, &set).await?;
    without_lease(asked, &object, &created, (lease, 0)).await
}

/// A file that was made just now, with a lease for its maker, if he may use it so again. That there is none is no failure.
async fn made_with_lease(
    asked: &Asked<'_>,
    directory: &Object,
    created: &Created,
    wanted: LeaseRequest,
) -> Done<DirOpOk> {
    let Object { export, caller, .. } = directory;
    let made = Object { export: export.clone(), handle: created.node.handle, caller: caller.clone() };
    let rights = match wanted {
        LeaseRequest::Write(_) => AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND,
        _ => AccessMask::READ,
    };
    let accessed = export.fs.access(caller, &made.handle, rights).await;
    let may = accessed.is_ok_and(|accessed| accessed.granted.contains(rights));
    let grant = if may { grant(asked, &made, wanted).await.ok() } else { None };
    let Some(grant) = grant else {
        return without_lease(asked, directory, created, (wanted, TERM_DEFAULT)).await;
    };
    // As they are under the lease.
    let node = Node { attributes: None, ..created.node };
    let ok = made_ok(asked, directory, &Created { node, ..*created }).await?;
    Ok((grant.at(ok.attributes.rev), ok))
}

/// No lease, for so many seconds: of a file that was there before, none at all.
async fn without_lease(
    asked: &Asked<'_>,
    directory: &Object,
    created: &Created,
    (wanted, duration): (LeaseRequest, u32),
) -> Done<DirOpOk> {
    let ok = made_ok(asked, directory, created).await?;
    let promise = Promise { cachable: false, duration, rev: ok.attributes.rev };
    let lease = match wanted {
        LeaseRequest::None => LeaseResult::None,
        LeaseRequest::Read(_) => LeaseResult::Read(promise),
        LeaseRequest::Write(_) => LeaseResult::Write(promise),
    };
    Ok((lease, ok))
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
