//! OPEN and CLOSE.
//!
//! At an open, the kernel decides about the caller's permission, without the owner's exception of READ and
//! WRITE. Execute permission suffices to open a file for reading. The creator of a file gets the open as
//! asked for, whatever the mode.

use std::sync::Arc;

use vfs::{
    AccessMask, CreateHow, FileType, Handle, HolderId, Lease, Name, OpenId, OpenRequest, Opened, Principal,
    SetAttributes, Share, Status, Wcc,
};

use crate::attributes::Stat;
use crate::change::Stop;
use crate::descriptors::{Node, Use};
use crate::handles::Parsed;
use crate::io::stat_regular;
use crate::locks::HeldLocks;
use crate::make::Making;
use crate::opens::{Hold, Opener};
use crate::tree::Tree;
use crate::{identity, lookup};

/// How often a name is looked up if its file is gone each time before it can be opened.
pub(crate) const ATTEMPTS_MAX: u32 = 16;

/// The file to open, and the result of the step before.
struct Found {
    handle: Handle,
    directory: Wcc,
    created: bool,
}

/// Opens an existing file.
pub(crate) fn open(
    tree: &Tree,
    principal: &Principal,
    holder: Option<HolderId>,
    node: &Arc<Node>,
    request: &OpenRequest,
) -> Result<Opened, Status> {
    let Some(name) = &request.name else {
        let found = Found { handle: node.handle, directory: Wcc::default(), created: false };
        return finish(tree, (principal, holder), &found, request, None);
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let looked = lookup::lookup(tree, principal, node, name)?;
        // An OPEN without creation does not change the directory.
        let before = looked.directory.map(|is| is.wcc());
        let directory = Wcc { before, ..Wcc::seen(looked.directory) };
        let found = Found { handle: looked.node.handle, directory, created: false };
        match finish(tree, (principal, holder), &found, request, None) {
            // The file was replaced after the lookup: the name leads to another one now.
            Err(Status::Stale) if attempts < ATTEMPTS_MAX => {}
            done => return done,
        }
    }
}

/// The file to create.
pub(crate) struct ToMake<'a> {
    pub(crate) directory: &'a Node,
    pub(crate) name: &'a Name,
    pub(crate) how: CreateHow,
    pub(crate) set: &'a SetAttributes,
}

/// Creates a file, or accepts an existing one, and opens it. The caller makes the directory of a created one
/// durable.
pub(crate) fn create(
    tree: &Tree,
    principal: &Principal,
    holder: Option<HolderId>,
    make: &ToMake<'_>,
    request: &OpenRequest,
    held: HeldLocks,
) -> Result<Opened, Stop> {
    let capacity = capacity_to_make(tree, (principal, holder), make)?;
    let making = Making { tree, principal, directory: make.directory, name: make.name, held };
    let (made, created) = making.file(make.how, make.set, request.access)?;
    let found = Found { handle: made.node.handle, directory: made.directory, created };
    Ok(finish(tree, (principal, holder), &found, request, capacity)?)
}

/// Reserves capacity before a file is created. A file that was created but could not be opened would block
/// the next attempt.
///
/// # Errors
/// `Resource` if there is no capacity, unless the file exists and is open already; `Exist` if it must not
/// exist.
fn capacity_to_make<'t>(
    tree: &'t Tree,
    (principal, holder): (&Principal, Option<HolderId>),
    make: &ToMake<'_>,
) -> Result<Option<Hold<'t>>, Status> {
    let by_handle = tree.holds_by_handle(&make.directory.mount);
    let none = match tree.opens.capacity(&tree.descriptors, holder, (None, by_handle)) {
        Ok(hold) => return Ok(Some(hold)),
        Err(none) => none,
    };
    let missing = |error| if error == Status::NoEnt { none } else { error };
    let there = lookup::lookup(tree, principal, make.directory, make.name).map_err(missing)?;
    if make.how == CreateHow::Guarded {
        return Err(Status::Exist);
    }
    let there = tree.node(&there.node.handle)?;
    tree.opens.capacity(&tree.descriptors, holder, (Some(&there), by_handle)).map(Some)
}

fn finish(
    tree: &Tree,
    (principal, holder): (&Principal, Option<HolderId>),
    found: &Found,
    request: &OpenRequest,
    hold: Option<Hold<'_>>,
) -> Result<Opened, Status> {
    let node = tree.node(&found.handle)?;
    let stat = stat_regular(tree, &node)?;
    let granted = node.rights(principal, &stat)?;
    if !found.created {
        check(&node, principal, granted, request.access)?;
    }
    // Before a lease is granted: after a failure no client would know of the lease.
    let hold = match (hold, is_held_by_handle(tree, &node, &stat)) {
        (Some(hold @ Hold::Descriptors(_)), _) | (Some(hold), true) => hold,
        (_, by_handle) => tree.opens.capacity(&tree.descriptors, holder, (Some(&node), by_handle))?,
    };
    // Before the file is opened for data: a guard fails if there is another descriptor.
    let lease = tree.leases.grant(tree, &node, request.access, request.want);
    let opener = Opener { principal, holder, owner: request.owner.clone() };
    let opened = hold_data(tree, &node, request.access).and_then(|()| {
        tree.opens.open((&tree.descriptors, hold), &node, opener, request.access, request.deny)
    });
    let id = opened.inspect_err(|_| {
        // Another open may have got the same lease meanwhile: it is recalled and not ended.
        lease.iter().for_each(|lease| tree.leases.recall(lease.id));
    })?;
    // Read last: any later change sees the open.
    let attributes = match tree.stat(&node) {
        Ok(stat) => stat.attributes(node.mount.fsid),
        Err(status) => {
            close(tree, id)?;
            return Err(status);
        }
    };
    let asked = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::EXECUTE;
    Ok(Opened {
        id,
        handle: node.handle,
        attributes,
        lease: lease.map(|lease| Lease { change: attributes.change, ..lease }),
        directory: found.directory,
        created: found.created,
        granted: Some(granted & asked),
        directory_lease: None,
        read: None,
    })
}

/// May an open of this file be held by its handle? A file without a name is not found by it.
fn is_held_by_handle(tree: &Tree, node: &Node, stat: &Stat) -> bool {
    Parsed::is_kernels(&node.handle) && stat.is_linked() && tree.holds_by_handle(&node.mount)
}

fn check(node: &Node, principal: &Principal, granted: AccessMask, access: Share) -> Result<(), Status> {
    let readable = granted.intersects(AccessMask::READ | AccessMask::EXECUTE);
    if (readable || !access.contains(Share::READ))
        && (granted.contains(AccessMask::MODIFY) || !access.contains(Share::WRITE))
    {
        return Ok(());
    }
    node.check_open(principal, access)
}

/// The kernel may refuse to open a file at all (a running program cannot be written). Without privileges
/// this is the last chance to open it.
fn hold_data(tree: &Tree, node: &Node, access: Share) -> Result<(), Status> {
    if access.contains(Share::WRITE) {
        tree.writing(node)?;
    }
    if access.contains(Share::READ) && !identity::is_privileged() {
        tree.reading(node)?;
    }
    Ok(())
}

/// Ends an open. If the file has no name, the last close ends the file.
pub(crate) fn close(tree: &Tree, id: OpenId) -> Result<(), Status> {
    // An open that was held by its handle leaves nothing.
    let Some(node) = tree.opens.close(id)? else { return Ok(()) };
    tree.descriptors.unpin(&node, Use::Open);
    if node.file_type == FileType::Regular && !node.is_open() {
        // Forgets the file if it has no name.
        let _ = tree.stat(&node);
    }
    Ok(())
}
