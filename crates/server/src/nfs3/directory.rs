//! READDIR and READDIRPLUS (RFC 1813, sections 3.3.16 and 3.3.17).
//!
//! Back ends list neither `.` nor `..`, so this module adds them first, at the cookies 1 and 2. The inode
//! number of `..` is that of the directory itself. The right one would cost another call, and clients do
//! not rely on it because it is wrong at every mount point.

use protocol::nfs3::{
    Entry as WireEntry, Entryplus, Filename, ReaddirArgs, ReaddirOk, ReaddirplusArgs, ReaddirplusOk, Verifier,
};
use vfs::{Entry, Listing, ReadDir, Status};
use xdr::{LinkedList, padding};

use super::convert::fattr;
use crate::exports::Export;
use crate::shared::{Below, Object, Request};

/// Bytes around the entries: directory attributes, verifier, end of list, eof.
const FRAME_BYTES: u32 = 4 + 84 + 8 + 4 + 4 + 4;
/// Upper limit of a reply, whatever the client requests: it must fit into the largest message.
const ANSWER_MAX_BYTES: u32 = 1 << 20;
/// The same in a datagram.
const DATAGRAM_ANSWER_MAX_BYTES: u32 = 32 << 10;

pub(super) async fn readdir(request: &Request<'_>, args: ReaddirArgs) -> vfs::Result<ReaddirOk> {
    let asked = Asked {
        dir: &args.dir,
        cookie: args.cookie,
        verifier: args.cookieverf,
        bytes: args.count,
        plus: false,
    };
    let Part { export, listing, capacity, dots, .. } = read_part(request, &asked).await?;
    let mut entries = Vec::with_capacity(listing.entries.len() + 2);
    let mut used = 0;
    let mut cut = false;
    for (name, fileid, cookie) in dots {
        used += entry_bytes(name);
        entries.push(WireEntry { fileid, name: filename(name)?, cookie });
    }
    for entry in &listing.entries {
        used += entry_bytes(entry.name.as_bytes());
        if used > capacity {
            cut = true;
            break;
        }
        entries.push(WireEntry {
            fileid: entry.fileid,
            name: filename(entry.name.as_bytes())?,
            cookie: entry.cookie,
        });
    }
    if entries.is_empty() && cut {
        return Err(Status::TooSmall.into());
    }
    Ok(ReaddirOk {
        dir_attributes: listing.directory.as_ref().map(|it| fattr(&export, it)),
        cookieverf: listing.verifier,
        entries: LinkedList::new(entries).ok_or(Status::ServerFault)?,
        eof: listing.eof && !cut,
    })
}

pub(super) async fn readdirplus(request: &Request<'_>, args: ReaddirplusArgs) -> vfs::Result<ReaddirplusOk> {
    let asked = Asked {
        dir: &args.dir,
        cookie: args.cookie,
        verifier: args.cookieverf,
        bytes: args.maxcount,
        plus: true,
    };
    let Part { export, listing, capacity, dots, below } = read_part(request, &asked).await?;
    let mut entries = Vec::with_capacity(listing.entries.len() + 2);
    let mut used = 0;
    let mut cut = false;
    for (name, fileid, cookie) in dots {
        used += entry_bytes(name) + 8;
        let name = filename(name)?;
        entries.push(Entryplus { fileid, name, cookie, name_attributes: None, name_handle: None });
    }
    for entry in &listing.entries {
        // The client looks the root of another export up.
        let crosses = below.as_ref().is_some_and(|below| below.get(entry.name.as_bytes()).is_some());
        let node = entry.node.as_ref().filter(|_| !crosses);
        let wire = entryplus(request, &export, entry, node)?;
        used += entryplus_bytes(&wire);
        if used > capacity {
            cut = true;
            break;
        }
        entries.push(wire);
    }
    if entries.is_empty() && cut {
        return Err(Status::TooSmall.into());
    }
    Ok(ReaddirplusOk {
        dir_attributes: listing.directory.as_ref().map(|it| fattr(&export, it)),
        cookieverf: listing.verifier,
        entries: LinkedList::new(entries).ok_or(Status::ServerFault)?,
        eof: listing.eof && !cut,
    })
}

struct Asked<'c> {
    dir: &'c [u8],
    cookie: u64,
    verifier: Verifier,
    bytes: u32,
    plus: bool,
}

struct Part {
    export: std::sync::Arc<Export>,
    listing: Listing,
    /// Bytes that entries may take.
    capacity: u32,
    /// The entries `.` and `..` that come first: name, inode number, cookie.
    dots: Vec<(&'static [u8], u64, u64)>,
    /// The exports among them.
    below: Option<Below>,
}

async fn read_part(request: &Request<'_>, asked: &Asked<'_>) -> vfs::Result<Part> {
    let directory = request.object(asked.dir)?;
    let below = if asked.plus { request.below(&directory).await? } else { None };
    let Object { export, handle, caller } = directory;
    let most = if request.datagram { DATAGRAM_ANSWER_MAX_BYTES } else { ANSWER_MAX_BYTES };
    let capacity = asked.bytes.min(most).checked_sub(FRAME_BYTES).ok_or(Status::TooSmall)?;
    let cookie = if asked.cookie < Entry::FIRST_COOKIE { 0 } else { asked.cookie };
    let verifier = if cookie == 0 { Verifier::default() } else { asked.verifier };
    let part = ReadDir {
        cookie,
        verifier,
        bytes: capacity,
        plus: asked.plus,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = export.fs().readdir(&caller, &handle, part).await?;
    let mut dots = Vec::new();
    if asked.cookie < 2 {
        let fileid = match listing.directory {
            Some(attributes) => attributes.fileid,
            None => {
                export.fs().getattr(&caller.with_freshness(vfs::Freshness::Timeout), &handle).await?.fileid
            }
        };
        dots = vec![(&b"."[..], fileid, 1), (&b".."[..], fileid, 2)];
        dots.drain(..asked.cookie as usize);
    }
    Ok(Part { export, listing, capacity, dots, below })
}

fn entryplus(
    request: &Request<'_>,
    export: &Export,
    entry: &Entry,
    node: Option<&vfs::Node>,
) -> vfs::Result<Entryplus> {
    let (name_attributes, name_handle) = match node {
        None => (None, None),
        Some(node) => (
            node.attributes.as_ref().map(|it| fattr(export, it)),
            Some(request.shared.handles.v3(export.id, &node.handle)?),
        ),
    };
    let name = filename(entry.name.as_bytes())?;
    Ok(Entryplus { fileid: entry.fileid, name, cookie: entry.cookie, name_attributes, name_handle })
}

fn filename(name: &[u8]) -> Result<Filename, Status> {
    Filename::new(name.to_vec()).ok_or(Status::ServerFault)
}

/// Bytes on the wire: follows, fileid, name, cookie.
fn entry_bytes(name: &[u8]) -> u32 {
    (4 + 8 + 4 + name.len() + padding(name.len()) + 8) as u32
}

fn entryplus_bytes(entry: &Entryplus) -> u32 {
    let attributes = if entry.name_attributes.is_some() { 84 } else { 0 };
    let handle = entry.name_handle.map_or(0, |handle| 4 + handle.len() + padding(handle.len())) as u32;
    entry_bytes(&entry.name) + 4 + attributes + 4 + handle
}
