//! Listings: of a directory of an export, of a directory above exports, and of an export's directory in
//! which other exports cover names.

use std::sync::Arc;

use protocol::nfs4::{
    Attr, Bitmap, Component, Entry, Fattr, Outcome, ReaddirArgs, ReaddirOk, Status, Verifier,
};
use vfs::{Freshness, Handle, ReadDir};
use xdr::LinkedList;

use super::attributes::{self, Asked};
use super::compound::{Compound, File};
use super::{convert, kind, walk};
use crate::exports::Export;
use crate::exports::pseudo::NodeIndex;
use crate::shared::Object;

/// Verifier, end of list, eof.
const FRAME_BYTES: usize = 8 + 4 + 4;
/// Operation and status, which precede every result.
const RESULT_BYTES: usize = 8;
/// Upper limit of a listing, whatever the client requests: it must fit into the largest message.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Attributes that a listing has without the handles and attributes of its entries.
const WITHOUT_NODES: Bitmap = Bitmap::of(&[Attr::Fileid, Attr::MountedOnFileid, Attr::RdattrError]);
/// The verifier of directories above exports.
const PSEUDO_VERIFIER: Verifier = [0; 8];

/// The part of a directory that a client requests.
#[derive(Clone, Copy)]
pub(super) struct Part {
    cookie: u64,
    verifier: Verifier,
    asked: Bitmap,
    /// Bytes that entries may take.
    capacity: usize,
}

impl Part {
    pub(super) fn new(compound: &Compound<'_>, args: &ReaddirArgs) -> Result<Part, Status> {
        let most = (args.maxcount as usize).min(ANSWER_BYTES_MAX);
        let capacity = most.checked_sub(FRAME_BYTES).ok_or(Status::TooSmall)?;
        let left = compound.capacity().saturating_sub(RESULT_BYTES + FRAME_BYTES);
        Ok(Part {
            cookie: args.cookie,
            verifier: args.cookieverf,
            asked: args.attr_request,
            capacity: capacity.min(left),
        })
    }
}

/// As many entries as fit.
struct Entries {
    list: Vec<Entry>,
    capacity: usize,
    /// An entry did not fit: no more are taken.
    cut: bool,
}

impl Entries {
    fn new(part: &Part) -> Entries {
        Entries { list: Vec::new(), capacity: part.capacity, cut: false }
    }

    fn push(&mut self, name: &[u8], cookie: u64, attrs: Fattr) -> Result<(), Status> {
        let name = Component::new(name.to_vec()).ok_or(Status::ServerFault)?;
        let entry = Entry { cookie, name, attrs };
        match self.capacity.checked_sub(entry.encoded_len()) {
            Some(capacity) => {
                self.capacity = capacity;
                self.list.push(entry);
            }
            None => self.cut = true,
        }
        Ok(())
    }

    fn finish(self, cookieverf: Verifier, eof: bool) -> Result<ReaddirOk, Status> {
        if self.list.is_empty() && self.cut {
            return Err(Status::TooSmall);
        }
        let entries = LinkedList::new(self.list).ok_or(Status::ServerFault)?;
        Ok(ReaddirOk { cookieverf, entries, eof: eof && !self.cut })
    }
}

/// Lists a directory above exports.
pub(super) async fn of_node(
    compound: &mut Compound<'_>,
    index: NodeIndex,
    part: Part,
) -> Result<ReaddirOk, Status> {
    let tree = compound.front.pseudo();
    let children = tree.node(index).children.values().zip(vfs::Entry::FIRST_COOKIE..);
    let mut entries = Entries::new(&part);
    for (child, cookie) in children.filter(|(_, cookie)| *cookie > part.cookie) {
        let node = tree.node(*child);
        if !walk::is_visible(compound, node) {
            continue;
        }
        let attrs = match child_attributes(compound, *child, part.asked).await {
            Ok(attrs) => attrs,
            Err(status) => rdattr_error(part.asked, status)?,
        };
        entries.push(&node.name, cookie, attrs)?;
        if entries.cut {
            break;
        }
    }
    entries.finish(PSEUDO_VERIFIER, true)
}

async fn child_attributes(
    compound: &mut Compound<'_>,
    child: NodeIndex,
    asked: Bitmap,
) -> Result<Fattr, Status> {
    let awaited = compound
        .front
        .pseudo()
        .node(child)
        .export
        .clone()
        .filter(|export| export.is_awaited() && !export.is_absent() && compound.sees(export));
    if let Some(export) = awaited {
        return attributes::absent::awaited(compound, &export, asked);
    }
    match compound.enter(child).await? {
        File::Absent(export) => attributes::absent::listed(compound, &export, asked),
        file => attributes::read(compound, &file, None, asked).await,
    }
}

/// Lists a directory of an export.
pub(super) async fn of_export(
    compound: &mut Compound<'_>,
    export: &Arc<Export>,
    handle: &Handle,
    part: Part,
) -> Result<ReaddirOk, Status> {
    let node = walk::node_of(compound, export, handle).await?;
    let asked = Asked::new(compound, export, part.asked).await?;
    // A READDIR from the beginning, directly after the client set the filehandle: the client has just
    // opened the directory.
    let opens = part.cookie == 0 && compound.is_question();
    let freshness = if opens { Freshness::Directory } else { Freshness::Timeout };
    let caller = compound.caller(export)?.with_freshness(freshness);
    let object = Object { export: export.clone(), handle: *handle, caller };
    let read = ReadDir {
        cookie: part.cookie,
        verifier: part.verifier,
        bytes: part.capacity.min(u32::MAX as usize) as u32,
        plus: !(part.asked - WITHOUT_NODES).is_empty(),
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = match export.fs().readdir(&object.caller, handle, read).await {
        Ok(listing) => listing,
        Err(error) => return Err(kind::directory_error(&object, error, Status::NotDir).await),
    };
    let mut entries = Entries::new(&part);
    entries.list.reserve(listing.entries.len());
    for entry in &listing.entries {
        let covering = node.and_then(|node| walk::visible_child(compound, node, &entry.name));
        let attrs = match covering {
            Some(child) => child_attributes(compound, child, part.asked).await,
            None => entry_attributes(&object, &asked, entry, read.plus).await,
        };
        let attrs = match attrs {
            Ok(attrs) => attrs,
            // The entry was removed after it was listed: only its inode number is known.
            Err(Status::NoEnt | Status::Stale) => asked.of_name(entry.fileid),
            Err(status) => rdattr_error(part.asked, status)?,
        };
        entries.push(entry.name.as_bytes(), entry.cookie, attrs)?;
        if entries.cut {
            break;
        }
    }
    entries.finish(listing.verifier, listing.eof)
}

async fn entry_attributes(
    directory: &Object,
    asked: &Asked<'_>,
    entry: &vfs::Entry,
    plus: bool,
) -> Result<Fattr, Status> {
    if !plus {
        return Ok(asked.of_name(entry.fileid));
    }
    if let Some(node) = &entry.node {
        return asked.read(&node.handle, node.attributes).await;
    }
    let Object { export, handle, caller } = directory;
    let looked =
        export.fs().lookup(caller, handle, &entry.name, vfs::Want::None).await.map_err(convert::error)?;
    asked.read(&looked.node.handle, looked.node.attributes).await
}

/// The attributes of an entry that cannot be read: the error, if the client requests `rdattr_error`.
/// Otherwise the whole listing fails.
fn rdattr_error(asked: Bitmap, status: Status) -> Result<Fattr, Status> {
    if !asked.contains(Attr::RdattrError) {
        return Err(status);
    }
    Ok(Fattr { rdattr_error: Some(Outcome::Fail(status, ())), ..Fattr::default() })
}
