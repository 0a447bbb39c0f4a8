//! Operations that change existing files and names: SETATTR, REMOVE, RMDIR and RENAME.
//!
//! All run with the caller's identity and the files locked. A SETATTR of several attributes makes several
//! system calls. Their order makes each permitted if all are: size, owner, mode, times. If one fails, the
//! earlier ones stay.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use vfs::{FileType, Name, Principal, Renamed, SetAttributes, SetTime, Status, Timestamp, Wcc};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::errno;
use crate::handles::Parsed;
use crate::io::stat_regular;
use crate::locks::{Blocked, HeldLocks, Stripe};
use crate::make::{chown, peek_locked};
use crate::opens::DataRight;
use crate::ranges::Out;
use crate::tree::{Described, Tree};
use crate::workers;

/// The blocks of a file of this size are freed at once.
const SMALL_BYTES: u64 = 1 << 20;

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It needs this lock too.
    Blocked(Stripe),
    /// It must wait for ranges that replies have not sent yet. Nothing has been changed.
    Out(Out),
    /// It failed.
    Failed(Status),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Stop {
        Stop::Failed(status)
    }
}

impl From<Blocked> for Stop {
    fn from(blocked: Blocked) -> Stop {
        Stop::Blocked(blocked.0)
    }
}

impl From<Out> for Stop {
    fn from(out: Out) -> Stop {
        Stop::Out(out)
    }
}

/// Sets attributes, if `guard` matches ctime.
pub(crate) fn set_attributes(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    set: &SetAttributes,
    guard: Option<Timestamp>,
    held: HeldLocks,
) -> Result<Wcc, Stop> {
    let before = tree.stat(node)?;
    if guard.is_some_and(|ctime| ctime != before.ctime()) {
        return Err(Status::NotSync.into());
    }
    if *set == SetAttributes::default() {
        return Ok(Wcc::around(before.wcc(), Some(before.attributes(node.mount.fsid))));
    }
    let done = apply(tree, (principal, right), node, set);
    let wcc = Wcc::around(before.wcc(), tree.changed(node));
    done?;
    drop(held);
    tree.persist_if_sync(node)?;
    Ok(wcc)
}

fn apply(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    set: &SetAttributes,
) -> Result<(), Stop> {
    if let Some(size) = set.size {
        let stat = stat_regular(tree, node)?;
        right.check_write(&tree.opens, node, principal, &stat)?;
        cut_or_extend(tree, node, &stat, size)?;
    }
    if set.uid.is_some() || set.gid.is_some() {
        set_owner(&node.path, set)?;
    }
    if let Some(mode) = set.mode {
        set_mode(tree, node, mode)?;
    }
    Ok(set_times(&node.path, set).map(drop)?)
}

/// Sets the size of a file that other clients may be reading.
pub(crate) fn cut_or_extend(tree: &Tree, node: &Node, stat: &Stat, size: u64) -> Result<(), Stop> {
    let file = tree.writing(node)?;
    let _cut = (size < stat.size()).then(|| node.ranges.cut()).transpose()?;
    set_size(file.as_fd(), size)?;
    tree.leases.promises.cut(&node.handle, stat.size(), size);
    Ok(())
}

pub(crate) fn set_size(file: BorrowedFd<'_>, size: u64) -> Result<(), Status> {
    if size > i64::MAX as u64 {
        return Err(Status::FBig);
    }
    rustix::fs::ftruncate(file, size).map_err(errno::status)
}

pub(crate) fn set_owner(file: &OwnedFd, set: &SetAttributes) -> Result<(), Status> {
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Status::Inval); // the kernel reads this id as "leave unchanged"
    }
    chown(file, set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw))
}

/// Sets the mode. A symbolic link has no meaningful mode, so it is left alone.
pub(crate) fn set_mode(tree: &Tree, node: &Node, mode: u32) -> Result<(), Status> {
    if node.file_type == FileType::Symlink {
        return Ok(());
    }
    tree.proc.chmod(&node.path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno::status)
}

/// Sets the given times. True if there are any.
pub(crate) fn set_times(file: &OwnedFd, set: &SetAttributes) -> Result<bool, Status> {
    if set.atime.is_none() && set.mtime.is_none() {
        return Ok(false);
    }
    let times = Timestamps { last_access: timespec(set.atime)?, last_modification: timespec(set.mtime)? };
    rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH).map_err(errno::status)?;
    Ok(true)
}

fn timespec(time: Option<SetTime>) -> Result<Timespec, Status> {
    Ok(match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Server) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::Client(time)) if time.nanoseconds < 1_000_000_000 => {
            Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
        }
        Some(SetTime::Client(_)) => return Err(Status::Inval),
    })
}

/// Removes a name; with `AtFlags::REMOVEDIR` that of a directory. The caller makes the directory durable.
pub(crate) fn remove(
    tree: &Tree,
    directory: &Node,
    name: &Name,
    flags: AtFlags,
    mut held: HeldLocks,
) -> Result<Wcc, Stop> {
    let before = tree.stat_directory(directory)?;
    let (victim, path) = peek_locked(tree, directory, name, &mut held)?;
    let removal = tree.begin_removal(&victim, &path)?;
    rustix::fs::unlinkat(&directory.path, name.as_bytes(), flags).map_err(|errno| match errno {
        Errno::EXIST => Status::NotEmpty, // some file systems return EXIST
        other => errno::status(other),
    })?;
    tree.changed_beside(&victim);
    tree.gone(directory, name, &victim, &path);
    drop(removal);
    let wcc = wcc(tree, directory, &before);
    drop(held);
    if victim.stat.used() > SMALL_BYTES {
        workers::about_to_wait(); // freeing its blocks may take long
    }
    drop(path);
    Ok(wcc)
}

/// One end of a RENAME.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) directory: &'a Node,
    pub(crate) name: &'a Name,
}

/// Renames, and replaces an existing target. The caller makes the directories durable.
pub(crate) fn rename(tree: &Tree, from: End<'_>, to: End<'_>, mut held: HeldLocks) -> Result<Renamed, Stop> {
    let before = (tree.stat_directory(from.directory)?, tree.stat_directory(to.directory)?);
    if from.directory.mount.fsid != to.directory.mount.fsid {
        return Err(Status::Xdev.into());
    }
    let moved = peek_locked(tree, from.directory, from.name, &mut held)?;
    let victim = match peek_locked(tree, to.directory, to.name, &mut held) {
        Err(Stop::Failed(Status::NoEnt)) => None,
        other => Some(other?),
    };
    let replaced = victim.as_ref().map(|(victim, path)| tree.begin_removal(victim, path)).transpose()?;
    let (old, new) = (from.name.as_bytes(), to.name.as_bytes());
    rustix::fs::renameat(&from.directory.path, old, &to.directory.path, new).map_err(errno::status)?;
    for (file, _) in [Some(&moved), victim.as_ref()].into_iter().flatten() {
        tree.changed_beside(file);
    }
    if victim.as_ref().is_none_or(|victim| victim.0.handle != moved.0.handle) {
        follow(tree, from, to, &moved, victim.as_ref())?;
    }
    drop(replaced);
    let renamed =
        Renamed { from: wcc(tree, from.directory, &before.0), to: wcc(tree, to.directory, &before.1) };
    drop(held);
    workers::about_to_wait();
    drop((moved, victim));
    Ok(renamed)
}

/// Records the new places of the files. (A RENAME between two names of one file changes nothing.)
fn follow(
    tree: &Tree,
    from: End<'_>,
    to: End<'_>,
    moved: &(Described, OwnedFd),
    victim: Option<&(Described, OwnedFd)>,
) -> Result<(), Status> {
    if let Some((victim, path)) = victim {
        tree.gone(to.directory, to.name, victim, path);
    }
    if matches!(Parsed::parse(&moved.0.handle), Some(Parsed::Table(_))) {
        tree.describe(to.directory, Some(to.name), &moved.1)?;
        tree.gone(from.directory, from.name, &moved.0, &moved.1);
    }
    Ok(())
}

fn wcc(tree: &Tree, node: &Node, before: &Stat) -> Wcc {
    Wcc::around(before.wcc(), tree.changed(node))
}
