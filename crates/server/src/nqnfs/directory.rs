//! READDIR as in v2, and READDIRLOOK: the entries with handles, attributes and leases.

use protocol::nqnfs::{
    Entry, Filename, LeaseRequest, LeaseResult, Promise, ReaddirArgs, ReaddirOk, ReaddirlookArgs,
    ReaddirlookOk,
};
use vfs::{Node, ReadDir, Status};
use xdr::{LinkedList, padding};

use super::convert::{fattr, is_start};
use super::granting::{grant, granted};
use super::{Asked, Done, wire_handle};
use crate::narrow::{Cookies, attributes, list};
use crate::shared::Object;

/// End of list, eof, status and lease.
const FRAME_BYTES: u32 = 4 + 4 + 4 + 20;
/// An entry without its name: next, cachable, duration, rev, handle, attributes, fid, length of the name,
/// cookie.
const ENTRY_BYTES: u32 = 4 + 4 + 4 + 8 + 32 + 92 + 4 + 4 + 4;
/// The most bytes in one reply: over TCP, and in a datagram.
const BYTES_MAX: [u32; 2] = [1 << 20, 32 << 10];

pub(super) async fn readdir(asked: &Asked<'_>, lease: LeaseRequest, args: ReaddirArgs) -> Done<ReaddirOk> {
    let object = asked.object(&args.dir)?;
    let lease = granted(asked, &object, lease).await?;
    Ok((lease, list(&asked.front.cookies, object, args.cookie, args.count).await?))
}

/// The entries do not include `.` and `..`. The client has the handle of the first, and looks up the second
/// if it needs it.
pub(super) async fn readdirlook(
    asked: &Asked<'_>,
    lease: LeaseRequest,
    args: ReaddirlookArgs,
) -> Done<ReaddirlookOk> {
    let object = asked.object(&args.file)?;
    let lease = granted(asked, &object, lease).await?;
    let Object { export, handle, caller } = &object;
    let most = BYTES_MAX[usize::from(asked.request.datagram)];
    let capacity = args.cnt.min(most).checked_sub(FRAME_BYTES).ok_or(Status::TooSmall)?;
    let cookies = &asked.front.cookies;
    let cookie = match args.cookie {
        start if is_start(start) => 0,
        cookie => cookies.lengthen(export, caller, handle, cookie).await?,
    };
    let part = ReadDir {
        cookie,
        verifier: [0; 8],
        bytes: capacity,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = export.fs().readdir(caller, handle, part).await?;
    let (mut entries, mut used, mut cut) = (Vec::new(), 0, false);
    for entry in &listing.entries {
        let name = entry.name.as_bytes();
        used += ENTRY_BYTES + (name.len() + padding(name.len())) as u32;
        if used > capacity || entries.len() == protocol::nqnfs::ENTRIES_MAX {
            cut = true;
            break;
        }
        let node = match entry.node {
            Some(node) => node,
            None => match export.fs().lookup(caller, handle, &entry.name, vfs::Want::None).await {
                Ok(looked) => looked.node,
                // The entry was removed.
                Err(error) if error.status == Status::NoEnt => continue,
                Err(error) => return Err(error),
            },
        };
        let name = Filename::new(name.to_vec()).ok_or(Status::ServerFault)?;
        let Some(entry) = looked(asked, &object, &node, args.duration, name, entry.cookie).await? else {
            continue;
        };
        entries.push(entry);
    }
    if entries.is_empty() && cut {
        return Err(Status::TooSmall.into());
    }
    let last = entries.last().map(|entry| entry.cookie);
    if let Some(entry) = listing.entries.iter().find(|entry| Some(Cookies::shorten(entry.cookie)) == last) {
        cookies.remember(handle, entry.cookie);
    }
    let entries = LinkedList::new(entries).ok_or(Status::ServerFault)?;
    Ok((lease, ReaddirlookOk { entries, eof: listing.eof && !cut }))
}

/// One entry, with a lease if the client wants one; `None` if the object no longer exists.
async fn looked(
    asked: &Asked<'_>,
    directory: &Object,
    node: &Node,
    duration: u32,
    name: Filename,
    cookie: u64,
) -> vfs::Result<Option<Entry>> {
    let (export, caller) = (&directory.export, &directory.caller);
    let object = Object { export: export.clone(), handle: node.handle, caller: caller.clone() };
    let wanted = if duration == 0 { LeaseRequest::None } else { LeaseRequest::Read(duration) };
    let lease = grant(asked, &object, wanted).await?;
    let brought = node.attributes.filter(|_| wanted == LeaseRequest::None);
    let attributes = match attributes(export, caller, &node.handle, brought).await {
        Ok(attributes) => fattr(asked, export, &attributes).await?,
        Err(error) if matches!(error.status, Status::Stale | Status::NoEnt) => return Ok(None),
        Err(error) => return Err(error),
    };
    let promise = match lease.at(attributes.rev) {
        LeaseResult::Read(promise) | LeaseResult::Write(promise) => promise,
        LeaseResult::None => Promise { cachable: false, duration: 0, rev: attributes.rev },
    };
    Ok(Some(Entry {
        cachable: promise.cachable.into(),
        duration: promise.duration,
        rev: promise.rev,
        entry_fh: wire_handle(asked.front, directory, &node.handle)?,
        entry_attrib: attributes,
        fid: attributes.fid,
        name,
        cookie: Cookies::shorten(cookie),
    }))
}
