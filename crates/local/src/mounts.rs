//! File systems mounted below the exported directory. Each has its own fsid, which survives a restart.
//!
//! A mount is discovered when a name leads into it. After a restart it is found again in
//! `/proc/self/mountinfo`. Handles contain a 16-bit tag of the file system: 0 for that of the exported
//! directory, else a hash of its fsid.

use std::ffi::OsStr;
use std::hash::Hasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use siphasher::sip::SipHasher24;
use tokio::time::Instant;
use vfs::{Features, FileType, Status, Timestamp};

use crate::attributes::Stat;
use crate::descriptors::Proc;
use crate::permission::is_nonracy_at;
use crate::{acl, change_attribute, errno, identity, sys, xattr};

/// Shortest interval between scans of the mount table, which handles of unknown file systems cause.
const RESCAN_MIN: Duration = Duration::from_secs(1);
/// Unused mounts are released after this time. It is longer than [`RESCAN_MIN`], so that a released mount
/// can be found again.
const UNUSED_MAX: Duration = Duration::from_secs(5);
/// `f_type` of file systems in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// `f_type` of file systems with holes and space reservation (ext4, XFS, Btrfs, F2FS, bcachefs, and tmpfs),
/// and of those that share blocks. If one of them does not (XFS without `reflink`), the operation reports
/// that.
const WITH_EXTENTS: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, TMPFS_MAGIC];
const WITH_SHARED_BLOCKS: [u64; 3] = [0x5846_5342, 0x9123_683e, 0xca45_1a4e];
/// Limit of file systems that are served at a time.
const MOUNTS_MAX: usize = 4096;

/// One mounted file system.
#[derive(Debug)]
pub(crate) struct Mount {
    /// The kernel's id of the mount; not reused while `anchor` is open.
    pub(crate) id: u64,
    /// The fsid that clients see and handles refer to.
    pub(crate) fsid: u64,
    /// A hash of `fsid`; 0 for the file system of the exported directory.
    pub(crate) tag: u16,
    /// This process may open its files by the kernel's handle.
    pub(crate) by_handle: bool,
    /// Its data is in memory: reads never wait for a disk (except for swap).
    pub(crate) in_memory: bool,
    /// Each change by this server has a later ctime than the one before: see [`crate::change_attribute`].
    pub(crate) fine_stamps: bool,
    /// A known file system of this machine, whose stamps are those of the kernel's clock.
    kernel_stamps: bool,
    /// When it was last found in the mount table or entered.
    seen: Mutex<Instant>,
    /// A file or directory that is open in it, for `open_by_handle_at`.
    anchor: OwnedFd,
}

impl Mount {
    fn new(id: u64, fsid: u64, tag: u16, anchor: OwnedFd) -> Mount {
        let tried = sys::name_to_handle(anchor.as_fd()).and_then(|handle| {
            identity::as_self(|| sys::open_by_handle(anchor.as_fd(), &handle)).unwrap_or(Err(Errno::PERM))
        });
        let kind = rustix::fs::fstatfs(&anchor).map_or(0, |is| is.f_type as u64);
        let in_memory = [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind);
        let kernel_stamps = WITH_EXTENTS.contains(&kind);
        let by_handle = tried.is_ok();
        let fine_stamps =
            identity::as_self(|| change_attribute::has_fine_stamps(anchor.as_fd())).unwrap_or(false);
        let seen = Mutex::new(Instant::now());
        Mount { id, fsid, tag, by_handle, in_memory, fine_stamps, kernel_stamps, seen, anchor }
    }

    /// A directory here had this ctime at `now` or later. Does each change of its names since then give it
    /// another one?
    pub(crate) fn tells_changes(&self, ctime: Timestamp, now: Timestamp) -> bool {
        // In tmpfs, a directory may get the stamp of the child, which need not be new.
        let is_fine = self.fine_stamps && !self.in_memory;
        self.kernel_stamps && (is_fine || is_nonracy_at(ctime, now))
    }

    /// Its features beyond v3.
    pub(crate) fn features(&self) -> Features {
        let kind = rustix::fs::fstatfs(&self.anchor).map_or(0, |is| is.f_type as u64);
        let mut features = Features::STATE | Features::SEEK | Features::COPY;
        features.set(Features::ALLOCATE | Features::DEALLOCATE, WITH_EXTENTS.contains(&kind));
        features.set(Features::CLONE, WITH_SHARED_BLOCKS.contains(&kind));
        features.set(Features::ACL, identity::as_self(|| acl::are_known(&self.anchor)).unwrap_or(false));
        features.set(Features::XATTR, identity::as_self(|| xattr::are_known(&self.anchor)).unwrap_or(false));
        features
    }

    pub(crate) fn anchor(&self) -> BorrowedFd<'_> {
        self.anchor.as_fd()
    }
}

/// The file system of the exported directory and those below.
pub(crate) struct Mounts {
    root: Arc<Mount>,
    below: RwLock<Vec<Arc<Mount>>>,
    cross: bool,
    scanned: Mutex<Option<Instant>>,
    /// `/proc/self/mountinfo`, and how often the kernel reported a change of it. `None` if it cannot be
    /// opened.
    changes: Mutex<Option<MountChanges>>,
}

#[derive(Debug)]
struct MountChanges {
    table: OwnedFd,
    count: u64,
}

impl Mounts {
    /// `root` is the exported directory, open for reading, in the file system `fsid`. Mounts below it are
    /// served if `cross`.
    pub(crate) fn new(root: OwnedFd, fsid: u64, cross: bool) -> Result<Mounts, Errno> {
        let id = Stat::of(&root)?.mount_id().ok_or(Errno::NOSYS)?;
        let root = Arc::new(Mount::new(id, fsid, 0, root));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty());
        let changes = Mutex::new(table.ok().map(|table| MountChanges { table, count: 0 }));
        Ok(Mounts { root, below: RwLock::default(), cross, scanned: Mutex::new(None), changes })
    }

    /// A number that each change of the process's mounts changes, when mount(2) or umount(2) returns. `None`
    /// if the kernel does not tell.
    pub(crate) fn generation(&self) -> Option<u64> {
        let mut changes = self.changes.lock();
        let MountChanges { table, count } = changes.as_mut()?;
        let mut asked = [PollFd::new(table, PollFlags::PRI)];
        // The kernel reports each change once, so the lock is held until it is counted.
        if rustix::event::poll(&mut asked, Some(&Timespec::default())).ok()? > 0 {
            *count += 1;
        }
        Some(*count)
    }

    pub(crate) fn root(&self) -> &Arc<Mount> {
        &self.root
    }

    /// The mount through which `file` was reached, known or new.
    ///
    /// # Errors
    /// `Access` if mounts must not be crossed.
    pub(crate) fn of(&self, proc: &Proc, file: &OwnedFd, stat: &Stat) -> Result<Arc<Mount>, Status> {
        let id = stat.mount_id().ok_or(Status::ServerFault)?;
        if id == self.root.id {
            return Ok(self.root.clone());
        }
        if !self.cross {
            return Err(Status::Access);
        }
        if let Some(known) = self.below.read().iter().find(|mount| mount.id == id) {
            *known.seen.lock() = Instant::now();
            return Ok(known.clone());
        }
        self.enter(proc, file, stat, id)
    }

    /// The file systems with this tag: one, unless two hashes collide.
    pub(crate) fn tagged(&self, tag: u16) -> Vec<Arc<Mount>> {
        if tag == 0 {
            return vec![self.root.clone()];
        }
        let below = self.below.read();
        let mut found: Vec<Arc<Mount>> = below.iter().filter(|mount| mount.tag == tag).cloned().collect();
        found.dedup_by_key(|mount| mount.fsid);
        found
    }

    /// The file system with this fsid.
    pub(crate) fn with_fsid(&self, fsid: u64) -> Option<Arc<Mount>> {
        if fsid == self.root.fsid {
            return Some(self.root.clone());
        }
        self.below.read().iter().find(|mount| mount.fsid == fsid).cloned()
    }

    /// Does its tag suffice to find this file system?
    pub(crate) fn is_tag_unique(&self, mount: &Mount) -> bool {
        mount.tag == 0
            || !self.below.read().iter().any(|other| other.tag == mount.tag && other.fsid != mount.fsid)
    }

    fn enter(&self, proc: &Proc, file: &OwnedFd, stat: &Stat, id: u64) -> Result<Arc<Mount>, Status> {
        let anchor = identity::as_self(|| match stat.file_type() {
            FileType::Directory | FileType::Regular => proc.open(file, OFlags::RDONLY),
            _ => Err(Errno::ACCESS),
        })?
        .map_err(errno::status)?;
        let fsid = fsid(anchor.as_fd(), stat).map_err(errno::status)?;
        let tag = if fsid == self.root.fsid { 0 } else { tag(fsid) };
        let mount = Arc::new(Mount::new(id, fsid, tag, anchor));
        let mut below = self.below.write();
        if let Some(known) = below.iter().find(|mount| mount.id == id) {
            return Ok(known.clone());
        }
        if below.len() >= MOUNTS_MAX {
            return Err(Status::Delay);
        }
        below.push(mount.clone());
        // If a file system has several mounts, the lookup always finds the same one, whatever the order of
        // discovery.
        below.sort_by_key(|mount| (mount.fsid, mount.id));
        Ok(mount)
    }

    /// Releases mounts that are unused, so that they can be unmounted.
    pub(crate) fn release_unused(&self) {
        self.below
            .write()
            .retain(|mount| Arc::strong_count(mount) > 1 || mount.seen.lock().elapsed() < UNUSED_MAX);
    }

    /// Searches all mounts below the exported directory, for handles from before a restart.
    pub(crate) fn rescan(&self, proc: &Proc) {
        if !self.cross {
            return;
        }
        let mut scanned = self.scanned.lock();
        if scanned.is_some_and(|at| at.elapsed() < RESCAN_MIN) {
            return;
        }
        *scanned = Some(Instant::now());
        let _ = identity::as_self(|| self.scan(proc));
    }

    fn scan(&self, proc: &Proc) {
        let Ok(exported) = proc.path_of(&self.root.anchor) else { return };
        let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return };
        for below in mount_points(&table, &exported).take(MOUNTS_MAX) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let found = rustix::fs::openat2(&self.root.anchor, below.as_path(), flags, Mode::empty(), within)
                .and_then(|file| Stat::of(&file).map(|stat| (file, stat)));
            match found {
                Ok((file, stat)) => drop(self.of(proc, &file, &stat)),
                Err(error) => tracing::debug!("mount point {} is not served: {error}", below.display()),
            }
        }
    }
}

/// The mount points of a `mountinfo` table that lie below `exported`, relative to it. Automounts that are
/// not mounted yet are skipped.
fn mount_points<'a>(table: &'a [u8], exported: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    table.split(|&byte| byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let mount_point = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.nth(4)?)));
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let below = mount_point.strip_prefix(exported).ok()?;
        (kind != b"autofs" && below != Path::new("")).then(|| below.to_owned())
    })
}

/// Undoes the octal escapes (`\040`) of the mount table.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            plain.push(byte);
            rest = &tail[3..];
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

/// A number for the file system that survives a restart and a reboot, if the file system permits.
///
/// Most file systems derive `f_fsid` from their UUID. Some (XFS, FAT) use the device number; for these the
/// kernel reports the UUID since Linux 6.9. File systems without any (FUSE) get a hash of their type,
/// source and mount point.
pub(crate) fn fsid(file: BorrowedFd<'_>, stat: &Stat) -> Result<u64, Errno> {
    let kernels = rustix::fs::fstatvfs(file)?.f_fsid;
    let (major, minor) = stat.device();
    let device = u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12));
    if kernels != 0 && kernels != device && kernels != device << 32 {
        return Ok(kernels);
    }
    let named = sys::file_system_uuid(file).map(|uuid| hash(&uuid));
    Ok(named.or_else(|| stat.mount_id().and_then(mounted_as)).unwrap_or(if kernels == 0 {
        device
    } else {
        kernels
    }))
}

/// Hash of the type, source and place of a mount.
fn mounted_as(id: u64) -> Option<u64> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let id = id.to_string();
    let line = table
        .split(|&byte| byte == b'\n')
        .find(|line| line.split(|&byte| byte == b' ').next().is_some_and(|field| field == id.as_bytes()))?;
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let place = [fields.get(3)?, fields.get(4)?, fields.get(separator + 1)?, fields.get(separator + 2)?];
    Some(hash(&place.map(|field| OsStr::from_bytes(field).as_bytes()).join(&0)))
}

fn tag(fsid: u64) -> u16 {
    let hashed = hash(&fsid.to_be_bytes());
    (hashed as u16).max(1)
}

/// The hash of data that handles depend on: never change its key.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_below_a_directory_are_found() {
        let table = b"21 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 21 0:25 / /srv/a\\040b/shm rw shared:3 - tmpfs tmpfs rw\n\
            31 21 0:26 / /srv/a\\040bc rw - tmpfs tmpfs rw\n\
            32 21 0:27 / /srv/a\\040b/auto rw - autofs systemd-1 rw\n\
            33 21 0:28 / /srv/a\\040b rw - tmpfs tmpfs rw\nnonsense\n";
        let found: Vec<PathBuf> = mount_points(table, Path::new("/srv/a b")).collect();
        assert_eq!(found, [PathBuf::from("shm")]);
    }

    #[test]
    fn tags_stay_what_they_are() {
        assert_eq!(tag(1), tag(1));
        assert_ne!(tag(1), 0);
        assert_eq!(hash(b"leasehold"), hash(b"leasehold"));
    }
}
