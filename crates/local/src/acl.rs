//! Access control lists: NFSv4 lists (RFC 8881, section 6), stored as the POSIX lists of Linux's file
//! systems.
//!
//! A POSIX list is less expressive: read, write and execute, for owner, group, named users and groups, and
//! all others. The mapping from NFSv4 never grants more than the given list. The mapping to NFSv4 is such
//! that setting the result again restores the POSIX list. The kernel checks access by the POSIX list, and
//! keeps it consistent with the mode. Users and groups are numbers, as in the owner attributes.

mod map;
mod posix;

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use vfs::{Acl, FileType, Status, Wcc};

use crate::descriptors::Node;
use crate::errno;
use crate::locks::HeldLocks;
use crate::tree::Tree;
use crate::xattr::path;
use posix::Posix;

const ACCESS: &str = "system.posix_acl_access";
/// The initial list of objects created in a directory.
const DEFAULT: &str = "system.posix_acl_default";
/// Linux's limit for the value of an extended attribute.
const VALUE_MAX: usize = 64 << 10;

/// The list of a file; if it has none, the list that is equivalent to its mode.
pub(crate) fn get(tree: &Tree, node: &Node) -> Result<Acl, Status> {
    let stat = tree.stat(node)?;
    let access = match node.file_type {
        FileType::Symlink => None,
        _ => read(node, ACCESS)?,
    };
    let default = match node.file_type {
        FileType::Directory => read(node, DEFAULT)?,
        _ => None,
    };
    let access = access.unwrap_or_else(|| Posix::of_mode(stat.mode()));
    Ok(map::told(&access, default.as_ref(), node.is_dir()))
}

/// Sets the list.
pub(crate) fn set(tree: &Tree, node: &Node, acl: &Acl, held: HeldLocks) -> Result<Wcc, Status> {
    let before = tree.stat(node)?;
    if node.file_type == FileType::Symlink {
        return Err(Status::NotSupp);
    }
    let kept = map::kept(acl, node.is_dir())?;
    write(node, ACCESS, &kept.access)?;
    let done = match &kept.default {
        _ if !node.is_dir() => Ok(()),
        Some(default) => write(node, DEFAULT, default),
        None => match rustix::fs::removexattr(path(&node.path), DEFAULT) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(errno) => Err(errno::status(errno)),
        },
    };
    let wcc = Wcc::around(before.wcc(), tree.changed(node));
    done?;
    drop(held);
    tree.persist_if_sync(node)?;
    Ok(wcc)
}

/// Does the file system of this file support lists?
pub(crate) fn are_known(file: impl AsFd) -> bool {
    rustix::fs::getxattr_query(path(file), ACCESS) != Err(Errno::OPNOTSUPP)
}

fn read(node: &Node, which: &str) -> Result<Option<Posix>, Status> {
    let mut buffer = vec![0; 1024];
    loop {
        match rustix::fs::getxattr(path(&node.path), which, &mut buffer[..]) {
            Ok(length) => return Posix::parse(&buffer[..length]).map(Some).ok_or(Status::Io),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(Errno::RANGE) if buffer.len() < VALUE_MAX => buffer.resize(VALUE_MAX, 0),
            Err(errno) => return Err(errno::status(errno)),
        }
    }
}

fn write(node: &Node, which: &str, list: &Posix) -> Result<(), Status> {
    let set = rustix::fs::setxattr(path(&node.path), which, &list.to_bytes(), XattrFlags::empty());
    set.map_err(|errno| match errno {
        Errno::OPNOTSUPP => Status::NotSupp,
        other => errno::status(other),
    })
}
