//! READDIR: part of a directory, from a cookie on.
//!
//! A cookie is the kernel's own position after an entry (`d_off`). Linux file systems keep it valid across
//! changes of the directory, and persistent ones across restarts, because NFS needs that. So no verifier is
//! needed: ours is always zero. A changing verifier would only break listings of directories that change.
//!
//! READDIRPLUS takes the attributes and the handle of an entry by its name, in two system calls. They must
//! be those of one file, though a client or a process may put another file under that name in between. So
//! they count only if no name of the directory has changed. Its ctime tells: it is the same before and
//! after, and each change would give it another one. [`crate::listings`] has the argument why ctime
//! suffices. Otherwise each entry is opened first, and both calls name the open file.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use rustix::path::Arg;
use vfs::{Entry, Listing, Name, Principal, ReadDir, Status};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::permission::coarse_now;
use crate::tree::{Tree, open_child};
use crate::{errno, listings, sys};

/// Approximate size of an encoded entry without its name, in READDIR and READDIRPLUS.
const ENTRY_BYTES: u32 = 24;
const ENTRY_PLUS_BYTES: u32 = 200;
/// Limit of entries in one reply, in bytes.
const BYTES_MAX: u32 = 1 << 20;
/// Bytes to ask the kernel for at a time.
const BUFFER_BYTES_MIN: usize = 4 << 10;
const BUFFER_BYTES_MAX: usize = 32 << 10;
/// Entries between two comparisons of ctime.
const ENTRIES_AT_ONCE: usize = 64;

/// What entries may take of a reply.
pub(crate) struct Budget {
    left: u32,
    each: u32,
    each_name_byte: u32,
    is_first: bool,
}

impl Budget {
    /// The bytes of a reply.
    pub(crate) fn of(part: &ReadDir) -> Budget {
        let each = if part.plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        Budget { left: part.bytes.min(BYTES_MAX), each, each_name_byte: 1, is_first: true }
    }

    /// This number of entries.
    pub(crate) fn entries(number: usize) -> Budget {
        Budget { left: number as u32, each: 1, each_name_byte: 0, is_first: true }
    }

    /// Takes what one more entry needs. The first one always fits.
    pub(crate) fn fits(&mut self, name: &Name) -> bool {
        let needed = self.each + self.each_name_byte * name.as_bytes().len() as u32;
        let left = self.left.checked_sub(needed);
        let fits = left.is_some() || self.is_first;
        (self.left, self.is_first) = (left.unwrap_or(0), false);
        fits
    }
}

/// A directory that is being listed.
pub(crate) struct Opened<'a> {
    pub(crate) directory: &'a Node,
    /// Its attributes, from before a name was read.
    pub(crate) stat: Stat,
    /// Each change of a name since then gives it another ctime.
    pub(crate) tells_changes: bool,
    pub(crate) file: OwnedFd,
}

impl Opened<'_> {
    /// Are the names that were read still those of the directory?
    pub(crate) fn is_unchanged(&self) -> bool {
        self.tells_changes && Stat::of(&self.directory.path).is_ok_and(|now| now.ctime() == self.stat.ctime())
    }
}

/// Reads from a cookie on, with the identity of the thread, which is that of `principal`.
pub(crate) fn read(
    tree: &Tree,
    principal: &Principal,
    directory: &Node,
    part: ReadDir,
) -> Result<Listing, Status> {
    // Read before the attributes: a change in between must not look old.
    let now = coarse_now();
    // Read before the entries: a later comparison detects any change since.
    let stat = tree.stat_directory(directory)?;
    let file = tree.proc.open(&directory.path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(errno::status)?;
    let tells_changes =
        tree.names_by_kernel(&directory.mount) && directory.mount.tells_changes(stat.ctime(), now);
    let opened = Opened { directory, stat, tells_changes, file };
    if part.plus
        && let Some(listing) = listings::read_again(tree, principal, &opened, &part)?
    {
        return Ok(listing);
    }
    let position = SeekFrom::Start(position(part.cookie).unwrap_or(0));
    rustix::fs::seek(&opened.file, position).map_err(|_| Status::BadCookie)?;
    let (mut entries, eof) = names(&opened.file, Budget::of(&part))?;
    if part.plus {
        describe(tree, &opened, &mut entries);
    }
    let directory = Some(stat.attributes(directory.mount.fsid));
    Ok(Listing { entries, verifier: [0; 8], eof, directory, directory_lease: None })
}

/// The entries that fit, without their files, and whether they are all.
pub(crate) fn names(file: &OwnedFd, mut budget: Budget) -> Result<(Vec<Entry>, bool), Status> {
    // A name takes less space in the kernel's format than an entry in ours. A larger buffer would be
    // wasted.
    let size = (budget.left as usize).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    let mut buffer = vec![MaybeUninit::uninit(); size];
    let mut stream = RawDir::new(file, &mut buffer);
    let mut entries = Vec::new();
    while let Some(next) = stream.next() {
        let next = match next {
            Ok(next) => next,
            Err(Errno::NOENT) => return Err(Status::Stale), // the directory was removed
            Err(errno) => return Err(errno::status(errno)),
        };
        // Skips `.`, `..` and names that no client could use.
        let Ok(name) = Name::new(next.file_name().to_bytes()) else { continue };
        if !budget.fits(&name) {
            return Ok((entries, false));
        }
        let cookie = cookie(next.next_entry_cookie());
        entries.push(Entry { fileid: next.ino(), cookie, node: None, name, file_type: None });
    }
    Ok((entries, true))
}

/// Adds handles and attributes to entries that were read after the directory's attributes.
fn describe(tree: &Tree, opened: &Opened<'_>, entries: &mut [Entry]) {
    let mut unchanged = opened.tells_changes;
    for entries in entries.chunks_mut(ENTRIES_AT_ONCE) {
        let mut described = unchanged;
        for entry in entries.iter_mut().take_while(|_| unchanged) {
            match by_name(tree, opened, &entry.name) {
                Ok(node) => entry.node = node,
                Err(_) => described = false,
            }
        }
        unchanged = unchanged && opened.is_unchanged();
        if !(described && unchanged) {
            for entry in entries {
                entry.node = by_file(tree, opened, &entry.name);
            }
        }
    }
}

/// Handle and attributes of an entry, by its name. `None` if another file system is mounted there.
fn by_name(tree: &Tree, opened: &Opened<'_>, name: &Name) -> Result<Option<vfs::Node>, Errno> {
    let mount = &opened.directory.mount;
    name.as_bytes().into_with_c_str(|name: &CStr| {
        let stat = Stat::child(&opened.file, name)?;
        if stat.mount_id() != Some(mount.id) {
            return Ok(None);
        }
        let (kernels, mount_id) = sys::child_to_handle(opened.file.as_fd(), name)?;
        if u64::try_from(mount_id) != Ok(mount.id) {
            return Ok(None);
        }
        let handle = tree.kernel_handle(mount, &kernels).ok_or(Errno::OVERFLOW)?;
        let found = tree.described(handle, mount.clone(), &stat);
        Ok(Some(vfs::Node { handle, attributes: Some(found.attributes()) }))
    })
}

/// Handle and attributes of an entry, by an open file. `None` if the caller may not see them, if the entry
/// is gone, or if another file system is mounted there. Clients look the latter up when they enter it.
fn by_file(tree: &Tree, opened: &Opened<'_>, name: &Name) -> Option<vfs::Node> {
    let path = open_child(&opened.file, name).ok()?;
    let found = tree.describe(opened.directory, Some(name), &path).ok()?;
    let is_inside = found.mount.id == opened.directory.mount.id;
    is_inside.then(|| vfs::Node { handle: found.handle, attributes: Some(found.attributes()) })
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
