//! GETATTR, SETATTR, LOOKUP, READLINK, READ, WRITE, READDIR, STATFS (RFC 1094, section 2.2).

use protocol::nfs2::{
    DATA_MAX, DirOpArgs, DirOpOk, Fattr, Handle, Path, ReadArgs, ReadOk, ReaddirArgs, ReaddirOk, SattrArgs,
    StatfsOk, WriteArgs,
};
use vfs::{Name, StateidBasis, Status};
use xdr::Bulk;

use super::convert::set_attributes;
use crate::bulk::bulk;
use crate::narrow::convert::fattr;
use crate::narrow::{Cookies, attributes, list, write_all};
use crate::shared::{Object, Request};

pub(super) async fn getattr(request: &Request<'_>, handle: Handle) -> vfs::Result<Fattr> {
    let Object { export, handle, caller } = request.described(&handle).await?;
    Ok(fattr(&export, &export.fs().getattr(&caller, &handle).await?))
}

pub(super) async fn setattr(request: &Request<'_>, args: SattrArgs) -> vfs::Result<Fattr> {
    let object = request.writable(&args.file)?;
    let Object { export, handle, caller } = &object;
    let set = set_attributes(&args.attributes);
    let setting = || export.fs().setattr(caller, handle, &set, None);
    let wcc = request.shared.past_courtesy(&object, None, setting).await?;
    Ok(fattr(export, &attributes(export, caller, handle, wcc.after).await?))
}

pub(super) async fn lookup(request: &Request<'_>, args: DirOpArgs) -> vfs::Result<DirOpOk> {
    let directory = request.object(&args.dir)?;
    if let Some(Object { export, handle, caller }) = request.crossing(&directory, &args.name).await? {
        let attributes = export.fs().getattr(&caller, &handle).await?;
        let file = request.shared.handles.v2(export.id, &handle)?;
        return Ok(DirOpOk { file, attributes: fattr(&export, &attributes) });
    }
    let Object { export, handle, caller } = directory;
    let node = match &args.name[..] {
        b"." => vfs::Node { handle, attributes: Some(export.fs().getattr(&caller, &handle).await?) },
        b".." => export.fs().parent(&caller, &handle).await?.node,
        name => export.fs().lookup(&caller, &handle, &Name::new(name)?, vfs::Want::None).await?.node,
    };
    let attributes = attributes(&export, &caller, &node.handle, node.attributes).await?;
    Ok(DirOpOk {
        file: request.shared.handles.v2(export.id, &node.handle)?,
        attributes: fattr(&export, &attributes),
    })
}

pub(super) async fn readlink(request: &Request<'_>, handle: Handle) -> vfs::Result<Path> {
    let Object { export, handle, caller } = request.object(&handle)?;
    let (target, _) = export.fs().readlink(&caller, &handle).await?;
    Path::new(target).ok_or_else(|| Status::NameTooLong.into())
}

pub(super) async fn read(request: &Request<'_>, args: ReadArgs) -> vfs::Result<ReadOk> {
    let object = request.object(&args.file)?;
    let Object { export, handle, caller } = &object;
    let count = args.count.min(DATA_MAX);
    let read = || export.fs().read(caller, handle, StateidBasis::Anonymous, args.offset.into(), count);
    let read = request.shared.past_courtesy(&object, None, read).await?;
    request.shared.count_read(&object, read.data.len());
    let attributes = attributes(export, caller, handle, read.attributes).await?;
    Ok(ReadOk { attributes: fattr(export, &attributes), data: bulk(read.data) })
}

/// WRITE of v2 is synchronous and writes all the data.
pub(super) async fn write(request: &Request<'_>, args: WriteArgs) -> vfs::Result<Fattr> {
    let object = request.writable(&args.file)?;
    let Bulk::Bytes(data) = args.data else { return Err(Status::ServerFault.into()) };
    let offset = u64::from(args.offset);
    if offset + data.len() as u64 > u32::MAX.into() {
        return Err(Status::FBig.into());
    }
    let after = write_all(request.shared, &object, offset, data).await?;
    Ok(fattr(&object.export, &after))
}

pub(super) async fn readdir(
    request: &Request<'_>,
    cookies: &Cookies,
    args: ReaddirArgs,
) -> vfs::Result<ReaddirOk> {
    list(cookies, request.object(&args.dir)?, args.cookie, args.count).await
}

pub(super) async fn statfs(request: &Request<'_>, handle: Handle) -> vfs::Result<StatfsOk> {
    let Object { export, handle, caller } = request.described(&handle).await?;
    let stat = export.fs().fsstat(&caller, &handle).await?;
    // Clients agree on 31 bits of block counts, so larger file systems report larger blocks.
    let mut block_bytes = 4096u64;
    while stat.total_bytes / block_bytes > i32::MAX as u64 {
        block_bytes *= 2;
    }
    let blocks = |bytes: u64| (bytes / block_bytes) as u32;
    Ok(StatfsOk {
        tsize: DATA_MAX,
        bsize: block_bytes as u32,
        blocks: blocks(stat.total_bytes),
        bfree: blocks(stat.free_bytes),
        bavail: blocks(stat.available_bytes),
    })
}
