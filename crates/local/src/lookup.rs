//! From a name to a file: LOOKUP, and the way up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use vfs::{Looked, Name, Principal, Status};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::permission::EXECUTE;
use crate::tree::{Described, Tree, open_child};
use crate::{errno, identity};

/// Deepest directory whose way up is followed.
const DEPTH_MAX: usize = 4096;

/// What a name leads to, if the kernel knows without asking the disk (`None` if not).
pub(crate) fn lookup_cached(
    tree: &Tree,
    principal: &Principal,
    directory: &Node,
    name: &Name,
) -> Result<Option<Looked>, Status> {
    lookup_with(tree, principal, directory, name, |directory, name| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat2(directory, name.as_bytes(), flags, Mode::empty(), ResolveFlags::CACHED)
    })
}

/// What a name leads to. May wait for the disk.
pub(crate) fn lookup(
    tree: &Tree,
    principal: &Principal,
    directory: &Node,
    name: &Name,
) -> Result<Looked, Status> {
    let found = lookup_with(tree, principal, directory, name, |directory, name| open_child(directory, name))?;
    found.ok_or(Status::Delay)
}

fn lookup_with(
    tree: &Tree,
    principal: &Principal,
    directory: &Node,
    name: &Name,
    open: impl FnOnce(&OwnedFd, &Name) -> Result<OwnedFd, Errno>,
) -> Result<Option<Looked>, Status> {
    // Taken before the name is looked up: whoever compares it later sees any change since.
    let stat = tree.stat_directory(directory)?;
    let opened = if directory.is_granted(principal, &stat, EXECUTE) {
        open(&directory.path, name)
    } else {
        let _worn = identity::wear(principal)?;
        let opened = open(&directory.path, name);
        if matches!(opened, Ok(_) | Err(Errno::NOENT)) {
            directory.note_grant(principal, &stat, EXECUTE, EXECUTE);
        }
        opened
    };
    let path = match opened {
        Ok(path) => path,
        Err(Errno::AGAIN | Errno::NOSYS) => return Ok(None),
        Err(errno) => return Err(errno::status(errno)),
    };
    let found = tree.describe(directory, Some(name), &path)?;
    let node = vfs::Node { handle: found.handle, attributes: Some(found.attributes()) };
    tree.keep(&found, path);
    Ok(Some(Looked { node, directory: Some(stat.attributes(directory.mount.fsid)), directory_lease: None }))
}

/// What a name in a directory leads to, for operations that are about to change it. It gets no handle by this.
pub(crate) fn peek(tree: &Tree, directory: &Node, name: &Name) -> Result<(Described, OwnedFd), Status> {
    let path = open_child(&directory.path, name).map_err(errno::status)?;
    Ok((tree.describe(directory, None, &path)?, path))
}

/// The directory above, which is never above the export.
///
/// # Errors
/// `Access` if the directory is not below the exported one any more (a process of this machine moved it out).
pub(crate) fn parent(tree: &Tree, principal: &Principal, directory: &Arc<Node>) -> Result<Looked, Status> {
    let stat = tree.stat_directory(directory)?;
    let root = Stat::of(&tree.root.path).map_err(errno::status)?;
    let attributes = Some(stat.attributes(directory.mount.fsid));
    if same(&stat, &root) {
        let node = vfs::Node { handle: tree.root.handle, attributes };
        return Ok(Looked { node, directory: attributes, directory_lease: None });
    }
    let _worn = identity::wear(principal)?;
    let path = open_parent(&directory.path).map_err(errno::status)?;
    if !identity::as_self(|| is_within(&path, &root))?.map_err(errno::status)? {
        return Err(Status::Access);
    }
    let found = tree.describe(directory, None, &path)?;
    let node = vfs::Node { handle: found.handle, attributes: Some(found.attributes()) };
    tree.keep(&found, path);
    Ok(Looked { node, directory: attributes, directory_lease: None })
}

/// Does the way up from `directory` come by the exported directory?
fn is_within(directory: &OwnedFd, root: &Stat) -> Result<bool, Errno> {
    let mut here = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
    let mut stat = Stat::of(&here)?;
    for _ in 0..DEPTH_MAX {
        if same(&stat, root) {
            return Ok(true);
        }
        let above = open_parent(&here)?;
        let stat_above = Stat::of(&above)?;
        if same(&stat_above, &stat) {
            return Ok(false);
        }
        (here, stat) = (above, stat_above);
    }
    Ok(false)
}

fn open_parent(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c"..", flags, Mode::empty())
}

fn same(a: &Stat, b: &Stat) -> bool {
    (a.device(), a.inode()) == (b.device(), b.inode())
}
