//! GETATTR, SETATTR, LOOKUP, ACCESS, READLINK (RFC 1813, sections 3.3.1 to 3.3.5).

use protocol::nfs3::{
    AccessArgs, AccessOk, GetattrArgs, GetattrOk, LookupArgs, LookupOk, Nfspath, ReadlinkArgs, ReadlinkOk,
    SetattrArgs, SetattrOk,
};
use vfs::{AccessMask, Looked, Name, Node, Status};

use super::convert::{fattr, set_attributes, timestamp, wcc_data};
use crate::shared::{Object, Request};

pub(super) async fn getattr(request: &Request<'_>, args: GetattrArgs) -> vfs::Result<GetattrOk> {
    let Object { export, handle, caller } = request.described(&args.object).await?;
    let attributes = export.fs().getattr(&caller, &handle).await?;
    Ok(GetattrOk { obj_attributes: fattr(&export, &attributes) })
}

pub(super) async fn setattr(request: &Request<'_>, args: SetattrArgs) -> vfs::Result<SetattrOk> {
    let object = request.writable(&args.object)?;
    let Object { export, handle, caller } = &object;
    let set = set_attributes(&args.new_attributes);
    let setting = || export.fs().setattr(caller, handle, &set, args.guard.map(timestamp));
    let wcc = request.shared.past_courtesy(&object, None, setting).await?;
    Ok(SetattrOk { obj_wcc: wcc_data(export, &wcc) })
}

pub(super) async fn lookup(request: &Request<'_>, args: LookupArgs) -> vfs::Result<LookupOk> {
    let directory = request.object(&args.what.dir)?;
    if let Some(Object { export, handle, caller }) = request.crossing(&directory, &args.what.name).await? {
        let attributes = export.fs().getattr(&caller, &handle).await?;
        return Ok(LookupOk {
            object: request.shared.handles.v3(export.id, &handle)?,
            obj_attributes: Some(fattr(&export, &attributes)),
            dir_attributes: None,
        });
    }
    let Object { export, handle, caller } = directory;
    let found = match &args.what.name[..] {
        b"." => {
            let attributes = export.fs().getattr(&caller, &handle).await?;
            if !attributes.is_dir() {
                return Err(Status::NotDir.into());
            }
            Looked {
                node: Node { handle, attributes: Some(attributes) },
                directory: Some(attributes),
                directory_lease: None,
            }
        }
        b".." => export.fs().parent(&caller, &handle).await?,
        name => export.fs().lookup(&caller, &handle, &Name::new(name)?, vfs::Want::None).await?,
    };
    Ok(LookupOk {
        object: request.shared.handles.v3(export.id, &found.node.handle)?,
        obj_attributes: found.node.attributes.as_ref().map(|it| fattr(&export, it)),
        dir_attributes: found.directory.as_ref().map(|it| fattr(&export, it)),
    })
}

pub(super) async fn access(request: &Request<'_>, args: AccessArgs) -> vfs::Result<AccessOk> {
    let Object { export, handle, caller } = request.object(&args.object)?;
    let mut asked = AccessMask::from_bits_truncate(args.access);
    if export.options().read_only {
        asked -= AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE;
    }
    let accessed = export.fs().access(&caller, &handle, asked).await?;
    Ok(AccessOk {
        obj_attributes: accessed.attributes.as_ref().map(|it| fattr(&export, it)),
        access: (accessed.granted & asked).bits(),
    })
}

pub(super) async fn readlink(request: &Request<'_>, args: ReadlinkArgs) -> vfs::Result<ReadlinkOk> {
    let Object { export, handle, caller } = request.object(&args.symlink)?;
    let (target, attributes) = export.fs().readlink(&caller, &handle).await?;
    let data = Nfspath::new(target).ok_or(Status::NameTooLong)?;
    Ok(ReadlinkOk { symlink_attributes: attributes.as_ref().map(|it| fattr(&export, it)), data })
}
