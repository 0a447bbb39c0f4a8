//! OPEN and CLOSE.
//!
//! Permission is the kernel's answer for the caller at the open, without the exception that READ and WRITE make for
//! the owner; whoever may execute a file may open it for reading. Whoever makes a file has it open as asked, whatever
//! its mode.

use std::sync::Arc;

use vfs::{
    AccessMask, CreateHow, FileType, Handle, HolderId, Lease, Name, OpenId, OpenRequest, Opened, Principal,
    SetAttributes, Share, Status, Wcc,
};

use crate::change::Stop;
use crate::descriptors::{Capacity, Node, Use};
use crate::io::stat_regular;
use crate::locks::HeldLocks;
use crate::make::Making;
use crate::opens::Opener;
use crate::tree::Tree;
use crate::{identity, lookup};

/// How often a name is looked up that leads to a file which is gone before it is open.
const ATTEMPTS_MAX: u32 = 16;

/// What came before the open itself.
struct Found {
    handle: Handle,
    directory: Wcc,
    created: bool,
}

/// Opens what is there.
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
        // An OPEN that makes nothing changes nothing of the directory.
        let before = looked.directory.map(|is| is.wcc());
        let directory = Wcc { before, ..Wcc::seen(looked.directory) };
        let found = Found { handle: looked.node.handle, directory, created: false };
        match finish(tree, (principal, holder), &found, request, None) {
            // It was replaced since it was found: the name leads to another by now.
            Err(Status::Stale) if attempts < ATTEMPTS_MAX => {}
            done => return done,
        }
    }
}

/// What is to be made.
pub(crate) struct ToMake<'a> {
    pub(crate) directory: &'a Node,
    pub(crate) name: &'a Name,
    pub(crate) how: CreateHow,
    pub(crate) set: &'a SetAttributes,
}

/// Makes a file, unless it is there and that will do, and opens it.
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

/// Room for a file before it is made: one that was made and could not be opened would be in the way of the next attempt.
///
/// # Errors
/// `Resource` if there is none, unless the file is there, and open for others; `Exist` if it must not be there.
fn capacity_to_make<'t>(
    tree: &'t Tree,
    (principal, holder): (&Principal, Option<HolderId>),
    make: &ToMake<'_>,
) -> Result<Option<Capacity<'t>>, Status> {
    let none = match tree.opens.capacity(&tree.descriptors, holder, None) {
        Ok(capacity) => return Ok(capacity),
        Err(none) => none,
    };
    let missing = |error| if error == Status::NoEnt { none } else { error };
    let there = lookup::lookup(tree, principal, make.directory, make.name).map_err(missing)?;
    if make.how == CreateHow::Guarded {
        return Err(Status::Exist);
    }
    let there = tree.node(&there.node.handle)?;
    tree.opens.capacity(&tree.descriptors, holder, Some(&there))
}

fn finish(
    tree: &Tree,
    (principal, holder): (&Principal, Option<HolderId>),
    found: &Found,
    request: &OpenRequest,
    capacity: Option<Capacity<'_>>,
) -> Result<Opened, Status> {
    let node = tree.node(&found.handle)?;
    let stat = stat_regular(tree, &node)?;
    let granted = node.rights(principal, &stat)?;
    if !found.created {
        check(&node, principal, granted, request.access)?;
    }
    // Before a lease is granted, which nobody would hear of.
    let capacity = match capacity {
        Some(capacity) => Some(capacity),
        None => tree.opens.capacity(&tree.descriptors, holder, Some(&node))?,
    };
    // Before the file is opened for data: a guard wants to be alone.
    let lease = tree.leases.grant(tree, &node, request.access, request.want);
    hold_data(tree, &node, request.access)?;
    let opener = Opener { principal, holder, owner: request.owner.clone() };
    let id = tree.opens.open((&tree.descriptors, capacity), &node, opener, request.access, request.deny)?;
    // Looked at last: what changes from here on finds the open.
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

fn check(node: &Node, principal: &Principal, granted: AccessMask, access: Share) -> Result<(), Status> {
    let readable = granted.intersects(AccessMask::READ | AccessMask::EXECUTE);
    if (readable || !access.contains(Share::READ))
        && (granted.contains(AccessMask::MODIFY) || !access.contains(Share::WRITE))
    {
        return Ok(());
    }
    node.check_open(principal, access)
}

/// The kernel has a say in whether a file can be opened at all (a program that runs cannot be written). Without
/// privileges this is the last time it lets us.
fn hold_data(tree: &Tree, node: &Node, access: Share) -> Result<(), Status> {
    if access.contains(Share::WRITE) {
        tree.writing(node)?;
    }
    if access.contains(Share::READ) && !identity::is_privileged() {
        tree.reading(node)?;
    }
    Ok(())
}

/// Ends an open; of a file without a name, the last one ends the file.
pub(crate) fn close(tree: &Tree, id: OpenId) -> Result<(), Status> {
    let open = tree.opens.close(id)?;
    tree.descriptors.unpin(&open.node, Use::Open);
    if open.node.file_type == FileType::Regular && !open.node.is_open() {
        // Forgets it if it has no name.
        let _ = tree.stat(&open.node);
    }
    Ok(())
}
