//! READDIR: part of a directory, from a cookie on.
//!
//! A cookie is the kernel's own position after an entry (`d_off`). Linux file systems keep it valid across
//! changes of the directory, and persistent ones across restarts, because NFS needs that. So no verifier is
//! needed: ours is always zero. A changing verifier would only break listings of directories that change.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use vfs::{Entry, Listing, Name, ReadDir, Status};

use crate::descriptors::Node;
use crate::errno;
use crate::tree::{Tree, open_child};

/// Approximate size of an encoded entry without its name, in READDIR and READDIRPLUS.
const ENTRY_BYTES: u32 = 24;
const ENTRY_PLUS_BYTES: u32 = 200;
/// Limit of entries in one reply, in bytes.
const BYTES_MAX: u32 = 1 << 20;
/// Bytes to ask the kernel for at a time.
const BUFFER_BYTES_MIN: usize = 4 << 10;
const BUFFER_BYTES_MAX: usize = 32 << 10;

/// Reads from a cookie on, with the identity of the thread.
pub(crate) fn read(tree: &Tree, directory: &Node, part: ReadDir) -> Result<Listing, Status> {
    let stat = tree.stat_directory(directory)?;
    let listed =
        tree.proc.open(&directory.path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(errno::status)?;
    if let Some(position) = position(part.cookie) {
        rustix::fs::seek(&listed, SeekFrom::Start(position)).map_err(|_| Status::BadCookie)?;
    }
    let budget = part.bytes.min(BYTES_MAX);
    let (entries, eof) = entries(tree, directory, &listed, budget, part.plus)?;
    Ok(Listing {
        entries,
        verifier: [0; 8],
        eof,
        // Read before the entries: a later comparison detects any change since.
        directory: Some(stat.attributes(directory.mount.fsid)),
        directory_lease: None,
    })
}

fn entries(
    tree: &Tree,
    directory: &Node,
    listed: &OwnedFd,
    budget: u32,
    plus: bool,
) -> Result<(Vec<Entry>, bool), Status> {
    // A name takes less space in the kernel's format than an entry in ours. A larger buffer would be
    // wasted.
    let size = (budget as usize).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    let mut buffer = vec![MaybeUninit::uninit(); size];
    let mut stream = RawDir::new(listed, &mut buffer);
    let mut entries = Vec::new();
    let mut bytes = 0;
    while let Some(next) = stream.next() {
        let next = match next {
            Ok(next) => next,
            Err(Errno::NOENT) => return Err(Status::Stale), // the directory was removed
            Err(errno) => return Err(errno::status(errno)),
        };
        // Skips `.`, `..` and names that no client could use.
        let Ok(name) = Name::new(next.file_name().to_bytes()) else { continue };
        let each = if plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        bytes += each + name.as_bytes().len() as u32;
        if bytes > budget && !entries.is_empty() {
            return Ok((entries, false));
        }
        let node = if plus { node(tree, directory, listed, &name) } else { None };
        entries.push(Entry {
            fileid: next.ino(),
            cookie: cookie(next.next_entry_cookie()),
            node,
            name,
            file_type: None,
        });
    }
    Ok((entries, true))
}

/// Handle and attributes of an entry. `None` if the caller may not see them, if the entry is gone, or if
/// another file system is mounted there. Clients look the latter up when they enter it.
fn node(tree: &Tree, directory: &Node, listed: &OwnedFd, name: &Name) -> Option<vfs::Node> {
    let path = open_child(listed, name).ok()?;
    let found = tree.describe(directory, Some(name), &path).ok()?;
    let same = found.mount.id == directory.mount.id;
    same.then(|| vfs::Node { handle: found.handle, attributes: Some(found.attributes()) })
}

/// The cookie for a position. It avoids the cookies of the fronts: these positions are counted down from
/// the top, where no position is.
fn cookie(position: u64) -> u64 {
    if position < Entry::FIRST_COOKIE { u64::MAX - position } else { position }
}

/// The position for a cookie; `None` for the start.
fn position(cookie: u64) -> Option<u64> {
    if cookie < Entry::FIRST_COOKIE {
        None
    } else if cookie > u64::MAX - Entry::FIRST_COOKIE {
        Some(u64::MAX - cookie)
    } else {
        Some(cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_come_back_and_leave_the_fronts_theirs() {
        for at in [0, 1, 2, 3, 4, 1 << 40, i64::MAX as u64] {
            assert!(cookie(at) >= Entry::FIRST_COOKIE);
            assert_eq!(position(cookie(at)), Some(at));
        }
        assert_eq!([0, 1, 2].map(position), [None; 3]);
    }
}
