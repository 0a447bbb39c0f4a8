//! Access control lists: those of NFSv4 (RFC 8881, section 6) as the POSIX lists that Linux's file systems keep.
//!
//! A POSIX list says less: read, write and execute, for owner, group, named users and groups, and everybody else. What
//! is given is mapped so that nobody gets more than it says; what is kept is told so that setting it again keeps it. The
//! kernel judges by the list, and keeps it and the mode together. Users and groups are numbers, as owners are.

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
/// What is made in a directory starts with this.
const DEFAULT: &str = "system.posix_acl_default";
/// Linux's bound for the value of an extended attribute.
const VALUE_MAX: usize = 64 << 10;

/// The list of a file; where none is kept, what the mode says.
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

/// Sets it.
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

/// Has the file system of this file any?
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
