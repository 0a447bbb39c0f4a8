//! CREATE, REMOVE, RENAME, LINK, SYMLINK, MKDIR, RMDIR, each with a lease in the same call (see
//! docs/reference/nqnfs.md).
//!
//! The lease of CREATE covers the new file, and that of MKDIR the new directory. The lease of the other
//! calls covers the directory: the first one of RENAME. The lease of LINK covers the file.

use protocol::nqnfs::{
    CreateArgs, DirOpOk, LeaseRequest, LeaseResult, LinkArgs, Promise, RenameArgs, SymlinkArgs, TERM_DEFAULT,
};
use vfs::{AccessMask, CreateHow, Created, FileType, Node, ReadDir, SetAttributes, Status, Verifier};

use super::convert::{Place, fattr, kind, set_attributes};
use super::granting::{Grant, grant, granted};
use super::{Asked, Done, wire_handle};
use crate::narrow::{attributes, new_name};
use crate::shared::Object;

/// Bytes of a listing that shows whether the directory has any entry.
const FIRST_NAME_BYTES: u32 = 1024;

/// CREATE also creates special files: the mode holds the type, and the size holds the device number.
pub(super) async fn create(asked: &Asked<'_>, lease: LeaseRequest, args: CreateArgs) -> Done<DirOpOk> {
    let object = asked.writable(&args.location.dir)?;
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = set_attributes(&args.attributes);
    let (made, device) = kind(&args.attributes);
    if made != FileType::Regular {
        let set = SetAttributes { size: None, ..set };
        let created = export.fs().mknod(caller, handle, &name, made, device, &set).await?;
        return without_lease(asked, &object, &created, (lease, 0)).await;
    }
    if lease != LeaseRequest::None {
        // A client that requests a lease needs to know whether the file existed before.
        match export.fs().create(caller, handle, &name, CreateHow::Guarded, &set).await {
            Ok(created) => return made_with_lease(asked, &object, &created, lease).await,
            Err(error) if error.status == Status::Exist => {}
            Err(error) => return Err(error),
        }
    }
    let create = || export.fs().create(caller, handle, &name, CreateHow::Unchecked, &set);
    let created = asked.front.shared.past_courtesy(&object, Some(&name), create).await?;
    without_lease(asked, &object, &created, (lease, 0)).await
}

/// The reply for a new file, with a lease for its creator if the creator may use the file that way. A
/// refused lease is no failure.
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
    let grant = if may(&made, rights).await { grant(asked, &made, wanted).await.ok() } else { None };
    let Some(grant) = grant else {
        return without_lease(asked, directory, created, (wanted, TERM_DEFAULT)).await;
    };
    under_lease(asked, directory, created, grant).await
}

/// Does the creator have these rights on the new object?
async fn may(made: &Object, rights: AccessMask) -> bool {
    let accessed = made.export.fs().access(&made.caller, &made.handle, rights).await;
    accessed.is_ok_and(|accessed| accessed.granted.contains(rights))
}

/// The reply for a new object, with the attributes that it has under the lease.
async fn under_lease(
    asked: &Asked<'_>,
    directory: &Object,
    created: &Created,
    grant: Grant,
) -> Done<DirOpOk> {
    let node = Node { attributes: None, ..created.node };
    let ok = made_ok(asked, directory, &Created { node, ..*created }).await?;
    Ok((grant.at(ok.attributes.rev), ok))
}

/// The reply without a lease. `duration` is how long the refusal lasts, in seconds; zero for a file that
/// existed before.
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
    let Object { export, handle, caller } = &object;
    let name = new_name(&args.location.name)?;
    let set = SetAttributes { size: None, ..set_attributes(&args.attributes) };
    let created = export.fs().mkdir(caller, handle, &name, &set, vfs::Want::None).await?;
    let made = Object { export: export.clone(), handle: created.node.handle, caller: caller.clone() };
    let grant = match lease {
        LeaseRequest::None => None,
        wanted => lease_new_directory(asked, &made, wanted).await,
    };
    match grant {
        Some(grant) => under_lease(asked, &object, &created, grant).await,
        None => without_lease(asked, &object, &created, (lease, TERM_DEFAULT)).await,
    }
}

/// A lease on a new directory for its creator, if the creator has all rights and no client has created
/// anything in it yet. A refused lease is no failure.
async fn lease_new_directory(asked: &Asked<'_>, made: &Object, wanted: LeaseRequest) -> Option<Grant> {
    let all = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::LOOKUP;
    if !may(made, all).await {
        return None;
    }
    let grant = grant(asked, made, wanted).await.ok()?;
    let part = ReadDir {
        cookie: 0,
        verifier: Verifier::default(),
        bytes: FIRST_NAME_BYTES,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = made.export.fs().readdir(&made.caller, &made.handle, part).await.ok()?;
    // If the lease is not returned to the client, the client answers the eviction of a later conflict with
    // VACATED.
    (listing.eof && listing.entries.is_empty()).then_some(grant)
}

async fn made_ok(asked: &Asked<'_>, object: &Object, created: &Created) -> vfs::Result<DirOpOk> {
    let node = created.node;
    let after = attributes(&object.export, &object.caller, &node.handle, node.attributes).await?;
    let attributes = fattr(asked, &object.export, &after).await?;
    Ok(DirOpOk { file: wire_handle(asked.front, object, &node.handle)?, attributes })
}

pub(super) async fn symlink(asked: &Asked<'_>, lease: LeaseRequest, args: SymlinkArgs) -> Done<()> {
    let object = asked.writable(&args.from.dir)?;
    let lease = granted(asked, &object, lease).await?;
    let name = new_name(&args.from.name)?;
    if args.to.is_empty() || args.to.contains(&0) {
        return Err(Status::Inval.into());
    }
    // Servers ignore the attributes, so clients send arbitrary ones.
    let set = SetAttributes::default();
    object.export.fs().symlink(&object.caller, &object.handle, &name, &args.to, &set).await?;
    Ok((lease, ()))
}

pub(super) async fn remove(asked: &Asked<'_>, lease: LeaseRequest, args: Place) -> Done<()> {
    let object = asked.writable(&args.dir)?;
    let lease = granted(asked, &object, lease).await?;
    object.export.fs().remove(&object.caller, &object.handle, &new_name(&args.name)?).await?;
    Ok((lease, ()))
}

pub(super) async fn rmdir(asked: &Asked<'_>, lease: LeaseRequest, args: Place) -> Done<()> {
    let object = asked.writable(&args.dir)?;
    let lease = granted(asked, &object, lease).await?;
    object.export.fs().rmdir(&object.caller, &object.handle, &new_name(&args.name)?).await?;
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
    from.export.fs().rename(&from.caller, &from.handle, &from_name, &to.handle, &to_name).await?;
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
    file.export.fs().link(&file.caller, &file.handle, &directory.handle, &name).await?;
    Ok((lease, ()))
}
