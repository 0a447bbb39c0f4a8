//! Extended attributes (RFC 8276): those of Linux's `user.` namespace, without that prefix.
//!
//! The kernel checks the caller's permission: read permission to read them, write permission to set them.
//! Only regular files and directories have any. For other files the list is empty, a value does not exist,
//! and a change fails with `Perm`.

use std::os::fd::{AsFd, AsRawFd};

use bytes::Bytes;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use vfs::{FileType, ListedXattrs, Principal, Status, Wcc, XattrHow, XattrName};

use crate::descriptors::Node;
use crate::errno;
use crate::locks::HeldLocks;
use crate::permission::READ;
use crate::tree::Tree;

const PREFIX: &[u8] = b"user.";
/// Linux's limits for a value and for all names of a file.
const VALUE_MAX: usize = 64 << 10;
const LIST_MAX: usize = 64 << 10;
/// Size of the first attempt, which suffices for most.
const VALUE_USUAL: usize = 512;
/// Space that a name takes in a reply in addition to its bytes: its length, and up to three bytes of
/// padding.
const NAME_BYTES: usize = 8;

/// The value of an attribute.
pub(crate) fn get(tree: &Tree, node: &Node, name: &XattrName) -> Result<Bytes, Status> {
    tree.stat(node)?;
    if !may_have(node.file_type) {
        return Err(Status::NoXattr);
    }
    let value =
        grow(VALUE_USUAL, VALUE_MAX, |buffer| rustix::fs::getxattr(path(&node.path), full(name), buffer));
    value.map(Bytes::from).map_err(errno::status)
}

/// Sets an attribute.
pub(crate) fn set(
    tree: &Tree,
    node: &Node,
    name: &XattrName,
    value: &[u8],
    how: XattrHow,
    held: HeldLocks,
) -> Result<Wcc, Status> {
    if value.len() > VALUE_MAX {
        return Err(Status::XattrTooBig);
    }
    let flags = match how {
        XattrHow::Either => XattrFlags::empty(),
        XattrHow::Create => XattrFlags::CREATE,
        XattrHow::Replace => XattrFlags::REPLACE,
    };
    change(tree, node, held, || rustix::fs::setxattr(path(&node.path), full(name), value, flags))
}

/// Removes an attribute.
pub(crate) fn remove(tree: &Tree, node: &Node, name: &XattrName, held: HeldLocks) -> Result<Wcc, Status> {
    change(tree, node, held, || rustix::fs::removexattr(path(&node.path), full(name)))
}

/// Names from the `cookie`th on, in the order of their bytes.
pub(crate) fn list(
    tree: &Tree,
    principal: &Principal,
    node: &Node,
    cookie: u64,
    bytes: u32,
) -> Result<ListedXattrs, Status> {
    let stat = tree.stat(node)?;
    if !may_have(node.file_type) {
        return Ok(ListedXattrs { cookie, names: Vec::new(), eof: true });
    }
    // The kernel would list the names for any user.
    node.check(principal, &stat, READ)?;
    let all = grow(VALUE_USUAL, LIST_MAX, |buffer| rustix::fs::listxattr(path(&node.path), buffer))
        .map_err(errno::status)?;
    let mut names: Vec<XattrName> = all
        .split(|&byte| byte == 0)
        .filter_map(|name| XattrName::new(name.strip_prefix(PREFIX)?).ok())
        .collect();
    names.sort_unstable();
    let skipped = usize::try_from(cookie).unwrap_or(usize::MAX).min(names.len());
    part(names.split_off(skipped), cookie, bytes as usize)
}

/// As many names as fit into `bytes`.
fn part(mut names: Vec<XattrName>, cookie: u64, bytes: usize) -> Result<ListedXattrs, Status> {
    let mut capacity = bytes;
    let fitting = names
        .iter()
        .take_while(|name| {
            let taken = capacity.checked_sub(NAME_BYTES + name.as_bytes().len());
            capacity = taken.unwrap_or(0);
            taken.is_some()
        })
        .count();
    if fitting == 0 && !names.is_empty() {
        return Err(Status::TooSmall);
    }
    let eof = fitting == names.len();
    names.truncate(fitting);
    Ok(ListedXattrs { cookie: cookie.saturating_add(fitting as u64), names, eof })
}

fn change(
    tree: &Tree,
    node: &Node,
    held: HeldLocks,
    change: impl FnOnce() -> Result<(), Errno>,
) -> Result<Wcc, Status> {
    let before = tree.stat(node)?;
    if !may_have(node.file_type) {
        return Err(Status::Perm);
    }
    change().map_err(errno::status)?;
    let wcc = Wcc::around(before.wcc(), tree.changed(node));
    drop(held);
    tree.persist_if_sync(node)?;
    Ok(wcc)
}

/// May this type of file have attributes? For others the `/proc` path would follow a symbolic link, or
/// reach the data of a pipe or device, so no call is made.
fn may_have(file_type: FileType) -> bool {
    matches!(file_type, FileType::Regular | FileType::Directory)
}

/// Does the file system of this file support them?
pub(crate) fn are_known(file: impl AsFd) -> bool {
    rustix::fs::getxattr_query(path(file), "user.leasehold") != Err(Errno::OPNOTSUPP)
}

/// A path for calls that accept no `O_PATH` descriptor.
pub(crate) fn path(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn full(name: &XattrName) -> Vec<u8> {
    [PREFIX, name.as_bytes()].concat()
}

/// Calls with a small buffer first, then with the largest that is ever needed.
fn grow(
    usual: usize,
    max: usize,
    mut ask: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; usual];
    let length = match ask(&mut buffer) {
        Err(Errno::RANGE) => {
            buffer.resize(max, 0);
            ask(&mut buffer)?
        }
        other => other?,
    };
    buffer.truncate(length);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_cut_where_the_room_ends() {
        let names = || ["a", "bb", "ccc"].map(|name| XattrName::new(name.as_bytes()).unwrap()).to_vec();
        let two = part(names(), 4, 9 + 10 + 10).unwrap();
        assert_eq!((two.names.len(), two.cookie, two.eof), (2, 6, false));
        let all = part(names(), 4, 9 + 10 + 11).unwrap();
        assert_eq!((all.names.len(), all.cookie, all.eof), (3, 7, true));
        assert_eq!(part(names(), 0, 8), Err(Status::TooSmall));
        assert_eq!(part(vec![], 3, 0), Ok(ListedXattrs { names: vec![], cookie: 3, eof: true }));
    }
}
