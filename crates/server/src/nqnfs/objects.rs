//! GETATTR, SETATTR, LOOKUP, READLINK, READ, WRITE, STATFS, ACCESS.

use protocol::nqnfs::{
    AccessArgs, DATA_MAX, Fattr, Handle, LeaseRequest, LookupArgs, LookupOk, Path, ReadArgs, ReadOk,
    SattrArgs, StatfsOk, WriteArgs,
};
use vfs::{AccessMask, Name, Node, StateidBasis, Status};
use xdr::Bulk;

use super::convert::{fattr, set_attributes};
use super::granting::{grant, granted};
use super::{Asked, Done, wire_handle};
use crate::bulk::bulk;
use crate::narrow::{attributes, write_all};
use crate::shared::Object;

/// A call in a datagram gets its reply in a datagram, which holds this many bytes beside the headers.
const DATAGRAM_DATA_MAX: u32 = 32 << 10;

pub(super) async fn getattr(asked: &Asked<'_>, lease: LeaseRequest, file: Handle) -> Done<Fattr> {
    let object = asked.object(&file)?;
    let grant = grant(asked, &object, lease).await?;
    let attributes = object.export.fs().getattr(&object.caller, &object.handle).await?;
    let attributes = fattr(asked, &object.export, &attributes).await?;
    Ok((grant.at(attributes.rev), attributes))
}

pub(super) async fn setattr(asked: &Asked<'_>, lease: LeaseRequest, args: SattrArgs) -> Done<Fattr> {
    let object = asked.writable(&args.file)?;
    let grant = grant(asked, &object, lease).await?;
    let Object { export, handle, caller } = &object;
    let set = set_attributes(&args.attributes);
    let setting = || export.fs().setattr(caller, handle, &set, None);
    let wcc = asked.front.shared.past_courtesy(&object, None, setting).await?;
    let attributes = fattr(asked, export, &attributes(export, caller, handle, wcc.after).await?).await?;
    Ok((grant.at(attributes.rev), attributes))
}

/// The lease on the target of the name is a read lease. A client that wants to write requests a lease with
/// the WRITE.
pub(super) async fn lookup(asked: &Asked<'_>, lease: LeaseRequest, args: LookupArgs) -> Done<LookupOk> {
    let directory = asked.object(&args.dir)?;
    let lease = granted(asked, &directory, lease).await?;
    let crossed = asked.request.crossing(&directory, &args.name).await?;
    let is_crossing = crossed.is_some();
    let Object { export, handle, caller } = &crossed.unwrap_or(directory);
    let node = match &args.name[..] {
        _ if is_crossing => Node { handle: *handle, attributes: None },
        b"." => Node { handle: *handle, attributes: None },
        b".." => export.fs().parent(caller, handle).await?.node,
        name => export.fs().lookup(caller, handle, &Name::new(name)?, vfs::Want::None).await?.node,
    };
    let found = Object { export: export.clone(), handle: node.handle, caller: caller.clone() };
    let wanted = match args.duration {
        0 => LeaseRequest::None,
        duration => LeaseRequest::Read(duration),
    };
    let grant = grant(asked, &found, wanted).await?;
    // With a lease, attributes from before the lease must not be used.
    let brought = node.attributes.filter(|_| wanted == LeaseRequest::None);
    let attributes = attributes(export, caller, &node.handle, brought).await?;
    let attributes = fattr(asked, export, &attributes).await?;
    let file = wire_handle(asked.front, &found, &node.handle)?;
    Ok((lease, LookupOk { lookup_lease: grant.at(attributes.rev), file, attributes }))
}

pub(super) async fn readlink(asked: &Asked<'_>, lease: LeaseRequest, file: Handle) -> Done<Path> {
    let object = asked.object(&file)?;
    let lease = granted(asked, &object, lease).await?;
    let (target, _) = object.export.fs().readlink(&object.caller, &object.handle).await?;
    Ok((lease, Path::new(target).ok_or(Status::NameTooLong)?))
}

pub(super) async fn read(asked: &Asked<'_>, lease: LeaseRequest, args: ReadArgs) -> Done<ReadOk> {
    let object = asked.object(&args.file)?;
    let grant = grant(asked, &object, lease).await?;
    let Object { export, handle, caller } = &object;
    let most = if asked.request.datagram { DATAGRAM_DATA_MAX } else { DATA_MAX };
    let count = args.count.min(most);
    let read = || export.fs().read(caller, handle, StateidBasis::Anonymous, args.offset, count);
    let read = asked.front.shared.past_courtesy(&object, None, read).await?;
    asked.front.shared.count_read(&object, read.data.len());
    let attributes =
        fattr(asked, export, &attributes(export, caller, handle, read.attributes).await?).await?;
    Ok((grant.at(attributes.rev), ReadOk { attributes, data: bulk(read.data) }))
}

/// WRITE is synchronous and writes all the data. A WRITE that arrives after its lease has ended is executed
/// all the same (section 4).
pub(super) async fn write(asked: &Asked<'_>, lease: LeaseRequest, args: WriteArgs) -> Done<Fattr> {
    let object = asked.writable(&args.file)?;
    if asked.front.nqnfs.recovery.is_on(asked.came) {
        if lease != LeaseRequest::None {
            // A client that requests a lease has none, so this is no delayed write of the previous
            // incarnation. And clients may still hold read leases of that incarnation.
            return Err(Status::Delay.into());
        }
        asked.front.nqnfs.recovery.wrote(asked.came);
    }
    let grant = grant(asked, &object, lease).await?;
    let Object { export, handle, caller } = &object;
    let Bulk::Bytes(data) = args.data else { return Err(Status::ServerFault.into()) };
    let _turn = if args.append { Some(asked.front.nqnfs.appends.lock().await) } else { None };
    let offset = if args.append { export.fs().getattr(caller, handle).await?.size } else { args.offset };
    offset.checked_add(data.len() as u64).filter(|end| i64::try_from(*end).is_ok()).ok_or(Status::FBig)?;
    let after = write_all(&asked.front.shared, &object, offset, data).await?;
    let attributes = fattr(asked, export, &after).await?;
    Ok((grant.at(attributes.rev), attributes))
}

pub(super) async fn statfs(asked: &Asked<'_>, lease: LeaseRequest, file: Handle) -> Done<StatfsOk> {
    let object = asked.object(&file)?;
    let lease = granted(asked, &object, lease).await?;
    let stat = object.export.fs().fsstat(&object.caller, &object.handle).await?;
    // Clients agree on 31 bits of block counts, so larger file systems report larger blocks.
    let mut block_bytes = 4096u64;
    while stat.total_bytes / block_bytes > i32::MAX as u64 {
        block_bytes *= 2;
    }
    let blocks = |bytes: u64| (bytes / block_bytes) as u32;
    let files = |files: u64| files.min(u32::MAX.into()) as u32;
    let results = StatfsOk {
        tsize: if asked.request.datagram { DATAGRAM_DATA_MAX } else { DATA_MAX },
        bsize: block_bytes as u32,
        blocks: blocks(stat.total_bytes),
        bfree: blocks(stat.free_bytes),
        bavail: blocks(stat.available_bytes),
        files: files(stat.total_files),
        files_free: files(stat.available_files),
    };
    Ok((lease, results))
}

/// All requested rights must be granted.
pub(super) async fn access(asked: &Asked<'_>, lease: LeaseRequest, args: AccessArgs) -> Done<()> {
    let object = asked.object(&args.file)?;
    let Object { export, handle, caller } = &object;
    let is_dir = export.fs().getattr(caller, handle).await?.is_dir();
    let mut wanted = AccessMask::empty();
    wanted.set(AccessMask::READ, args.read);
    wanted.set(AccessMask::MODIFY | AccessMask::EXTEND, args.write);
    wanted.set(if is_dir { AccessMask::LOOKUP } else { AccessMask::EXECUTE }, args.exec);
    if args.write && export.options().read_only {
        return Err(Status::Rofs.into());
    }
    let accessed = export.fs().access(caller, handle, wanted).await?;
    if !accessed.granted.contains(wanted) {
        return Err(Status::Access.into());
    }
    // A failure reply has no space for a lease, so the lease is taken only after all checks.
    Ok((granted(asked, &object, lease).await?, ()))
}
