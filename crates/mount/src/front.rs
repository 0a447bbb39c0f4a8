//! The state of a mount: the file system below, the kernel's view of it, and the helpers that the
//! operations share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{
    Attributes, Caller, Clock, Features, FileSystem, FileType, Freshness, FsLimits, Fsid, Handle, Name, Node,
    SystemClock, Tally, Timestamp,
};

use crate::device::Device;
use crate::errno;
use crate::files::{File, Files};
use crate::inodes::{Inode, Inodes, NAMES_MAX, is_valid};
use crate::notify::Notifier;
use crate::ops::deadlock::Waits;
use crate::ops::moved::Moves;
use crate::ops::opening::Removals;
use crate::ops::reopen::Retries;
use crate::ops::walks::Walks;
use crate::passthrough::refill::PassedFiles;
use crate::recalls::Recalls;
use crate::silly::Record;
use crate::wire::reply::{Answer, Attr, EntryOut, Outcome};
use crate::wire::request::{Header, Request};

/// How long the kernel may cache attributes and names under a lease without an end, unless the mount
/// invalidates them earlier.
pub const LEASED: Duration = Duration::from_secs(3600);

/// Which name lookups the kernel may cache: the mount option `lookupcache`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupCache {
    /// Positive and negative entries.
    #[default]
    All,
    /// Positive entries only.
    Positive,
    /// None.
    None,
}

/// How a mount behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which name lookups the kernel may cache.
    pub lookup_cache: LookupCache,
    /// The origin has the data when a write returns: the mount options `sync` and `noac`.
    pub sync: bool,
    /// Let the kernel read complete files from the cache itself, where the kernel supports it and the
    /// process may.
    pub passthrough: bool,
    /// Leave `flock` and `fcntl` locks to the kernel of this machine, even if the origin supports locks:
    /// `local_lock=all`.
    pub local_locks: bool,
    /// Largest WRITE of the kernel in bytes.
    pub max_write: u32,
    /// Threads that read requests.
    pub threads: usize,
    /// Directory for the record of silly names to remove after a crash.
    pub state: Option<std::path::PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get().clamp(2, 8));
        Options {
            lookup_cache: LookupCache::All,
            sync: false,
            passthrough: true,
            local_locks: false,
            max_write: 1 << 20,
            threads,
            state: None,
        }
    }
}

/// Counters since the mount.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests from the kernel.
    pub requests: AtomicU64,
    /// Opens whose reads the kernel serves from the cache file.
    pub opens_passed: AtomicU64,
    /// Other opens.
    pub opens_ordinary: AtomicU64,
    /// Requests that were given up because the requesting process was killed.
    pub abandoned: AtomicU64,
    /// Leases that the layer below recalled.
    pub recalls: AtomicU64,
    /// The files that are read and written most.
    pub files: Tally<Handle>,
}

/// A mount, as the kernel sees it.
pub struct Front {
    /// For tasks that the front starts.
    pub this: Weak<Front>,
    pub fs: Arc<dyn FileSystem>,
    pub options: Options,
    pub device: Device,
    pub inodes: Inodes,
    pub files: Files,
    pub notifier: Notifier,
    pub silly: Record,
    pub recalls: Recalls,
    /// Removals of names in progress.
    pub removals: Removals,
    /// Opens that the kernel will send again.
    pub retries: Retries,
    /// Threads that walk a path once more.
    pub walks: Walks,
    /// Threads that met a moved directory.
    pub moves: Moves,
    /// Processes that wait for locks.
    pub waits: Waits,
    pub limits: FsLimits,
    pub root_fsid: Fsid,
    /// The kernel forwards lock requests to this mount.
    pub locks: bool,
    /// The kernel and the rights of this process allow passthrough. The first refusal clears it.
    pub passthrough: AtomicBool,
    /// Backing files that are in use.
    pub passed: PassedFiles,
    pub counters: Counters,
}

impl Drop for Front {
    /// Every request borrows or owns the front, so none is in flight any more.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            debug_assert_eq!(self.recalls.opens_in_flight(), 0, "opens in flight at the end of a mount");
            debug_assert_eq!(self.waits.len(), 0, "processes that wait for locks at the end of a mount");
        }
    }
}

/// Tells an operation that its requester does not wait any more.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Interrupted>);

#[derive(Debug, Default)]
struct Interrupted {
    yes: AtomicBool,
    wake: tokio::sync::Notify,
}

impl Interrupt {
    /// Signals that the requesting process got a signal.
    pub fn raise(&self) {
        self.0.yes.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }

    /// Was the signal raised?
    pub fn is_raised(&self) -> bool {
        self.0.yes.load(Ordering::Acquire)
    }

    /// Waits until the signal is raised.
    pub async fn raised(&self) {
        while !self.is_raised() {
            self.0.wake.notified().await;
        }
    }
}

impl Front {
    /// Carries a request out.
    pub async fn carry_out(
        self: &Arc<Front>,
        header: &Header,
        request: Request,
        interrupt: &Interrupt,
    ) -> Outcome {
        match request {
            Request::Lookup { name } => self.lookup(header, &name).await,
            Request::Getattr => self.getattr(header).await,
            Request::Setattr(set) => self.setattr(header, &set).await,
            Request::Access { mask } => self.access(header, mask).await,
            Request::Statfs => self.statfs(header).await,
            Request::Readlink => self.readlink(header).await,
            Request::Symlink { name, target } => {
                self.changing(header, None, self.symlink(header, &name, &target)).await
            }
            Request::Mknod { name, mode, rdev } => {
                self.changing(header, None, self.mknod(header, &name, mode, rdev)).await
            }
            Request::Mkdir { name, mode } => {
                self.changing(header, None, self.mkdir(header, &name, mode)).await
            }
            Request::Unlink { name } => self.changing(header, None, self.unlink(header, &name)).await,
            Request::Rmdir { name } => self.changing(header, None, self.rmdir(header, &name)).await,
            Request::Rename { name, new_parent, new_name, flags } => {
                let renamed = self.rename(header, &name, (new_parent, &new_name), flags);
                self.changing(header, Some(new_parent), renamed).await
            }
            Request::Link { old, name } => self.changing(header, None, self.link(header, old, &name)).await,
            Request::Open { flags } => self.open(header, flags).await,
            Request::Create { name, flags, mode } => {
                self.changing(header, None, self.create(header, &name, flags, mode)).await
            }
            Request::Flush { fh, lock_owner } => self.flush(fh, lock_owner).await,
            Request::Release { fh, lock_owner, unlock_flock } => {
                self.release(fh, unlock_flock.then_some(lock_owner)).await
            }
            Request::Fsync { fh } => self.fsync(fh).await,
            Request::Read { fh, offset, size, how } => self.read(fh, offset, size, how).await,
            Request::Write { fh, offset, data, how } => self.write(fh, offset, data, how).await,
            Request::Lseek { fh, offset, whence } => self.lseek(fh, offset, whence).await,
            Request::Fallocate { fh, offset, length, mode } => {
                self.fallocate(fh, (offset, length), mode).await
            }
            Request::CopyFileRange { fh, offset, to_fh, to_offset, length, .. } => {
                self.copy_file_range((fh, offset), (to_fh, to_offset), length).await
            }
            Request::Opendir => self.opendir(header).await,
            Request::Readdir { fh, offset, size, plus } => {
                self.readdir(fh, offset, size as usize, plus).await
            }
            Request::Releasedir { fh } => {
                self.releasedir(fh);
                Ok(Answer::Done)
            }
            Request::Fsyncdir => Ok(Answer::Done),
            Request::Getxattr { name, size } => self.getxattr(header, &name, size).await,
            Request::Setxattr { name, value, flags } => self.setxattr(header, &name, value, flags).await,
            Request::Listxattr { size } => self.listxattr(header, size).await,
            Request::Removexattr { name } => self.removexattr(header, &name).await,
            Request::Getlk { fh, owner, lock, flock } => self.getlk(fh, owner, lock, flock).await,
            Request::Setlk { fh, owner, lock, flock, wait } => {
                self.setlk(fh, (owner, flock), lock, wait.then_some(interrupt)).await
            }
            // The session handles these when they arrive.
            Request::Init { .. } | Request::Destroy | Request::Interrupt { .. } | Request::Forget(_) => {
                Ok(Answer::NoReply)
            }
            Request::Unknown(_) => Err(Errno::NOSYS),
        }
    }

    /// An answer could not be delivered: undoes its effect, closes the open and forgets the nodes.
    pub async fn abandon(&self, answer: Answer) {
        match answer {
            Answer::Entry(entry) if entry.node != 0 => self.forget(entry.node, 1),
            Answer::Open(open) => {
                self.releasedir(open.fh);
                let _ = self.release(open.fh, None).await;
            }
            Answer::Create(entry, open) => {
                let _ = self.release(open.fh, None).await;
                self.forget(entry.node, 1);
            }
            Answer::Listing(_, nodes) => nodes.into_iter().for_each(|node| self.forget(node, 1)),
            _ => {}
        }
    }

    /// FORGET: the kernel drops `count` lookups of a node.
    pub fn forget(&self, node: u64, count: u64) {
        let Some(inode) = self.inodes.forget(node, count) else { return };
        let lease = inode.state.lock().lease.take();
        if let Some(lease) = lease {
            // The file may have another node already.
            self.give_back(lease.id, &inode.handle());
        }
    }

    /// A node was found under a name, but the reply will not say so.
    pub fn take_back(&self, node: u64, at: &(u64, Name)) {
        if let Some(inode) = self.inodes.get(node) {
            self.inodes.unname(&inode, at);
        }
        self.forget(node, 1);
    }

    /// The inode of a node number. A number that is not in use is ESTALE.
    pub fn inode(&self, node: u64) -> Result<Arc<Inode>, Errno> {
        self.inodes.get(node).ok_or(Errno::STALE)
    }

    /// An open file.
    pub fn file(&self, fh: u64) -> Result<Arc<File>, Errno> {
        self.files.get(fh).ok_or(Errno::BADF)
    }

    /// A directory entry for the kernel. Asks the layer below for the attributes if the node came without
    /// them.
    pub async fn entry(
        &self,
        caller: &Caller,
        node: &Node,
        at: Option<(u64, Name)>,
    ) -> Result<EntryOut, Errno> {
        let attributes = match node.attributes {
            Some(attributes) => attributes,
            None => self.fs.getattr(caller, &node.handle).await.map_err(errno::of)?,
        };
        Ok(self.entry_of(&node.handle, &attributes, at))
    }

    /// The same, with known attributes.
    pub fn entry_of(
        &self,
        handle: &vfs::Handle,
        attributes: &Attributes,
        at: Option<(u64, Name)>,
    ) -> EntryOut {
        self.entry_for(&self.inodes.remember(handle), attributes, at)
    }

    /// The same, for a node whose lookup count already includes this reply.
    pub fn entry_for(&self, inode: &Inode, attributes: &Attributes, at: Option<(u64, Name)>) -> EntryOut {
        let parent = at.as_ref().map(|(parent, _)| *parent);
        let attr_valid = self.valid(inode);
        // An open checks only the remembered names. A file with more links may be opened by a forgotten
        // name, so the kernel must not cache its names.
        let many = !attributes.is_dir() && attributes.nlink as usize > NAMES_MAX;
        let locked = !attributes.is_dir() && parent.is_some_and(|parent| self.has_locks(parent));
        let kept = self.options.lookup_cache != LookupCache::None && !many && !locked;
        let entry_valid = if kept { attr_valid } else { Duration::ZERO };
        if let Some(at) = at
            && let Some((parent, name)) =
                self.inodes.name(inode, at, attributes.is_dir(), Instant::now() + entry_valid)
        {
            self.notifier.name_later(parent, &name);
        }
        let attr = self.attr(inode, attributes);
        EntryOut { node: inode.number, entry_valid, attr_valid, attr }
    }

    /// Attributes for the kernel. If they show that another client has written the file, its pages are
    /// dropped.
    pub fn attr(&self, inode: &Inode, attributes: &Attributes) -> Attr {
        let (foreign, silly) = {
            let mut state = inode.state.lock();
            let ours = state.opened.writers > 0 || state.lease.is_some_and(|lease| is_valid(&lease));
            state.told = Some(attributes.wcc());
            state.told_size = attributes.size;
            if attributes.is_dir() {
                state.directory.seen = Some(*attributes);
                state.directory.removed = None;
            }
            if let Some(passed) = &state.opened.backing
                && !passed.is_of(attributes.wcc())
            {
                passed.poke();
            }
            let opened = if ours { None } else { state.opened.used() };
            let foreign = opened.is_some_and(|opened| opened.pages.told(attributes));
            (foreign, inode.opens.have_silly_of(attributes.nlink))
        };
        if foreign {
            self.notifier.data(inode.number);
        }
        let mut attr = attr_of(attributes, self.number_of(attributes));
        // The silly name exists only until the last close; programs must not see it in the link count.
        attr.nlink = attr.nlink.saturating_sub(u32::from(silly));
        attr
    }

    /// The inode number that programs see: the origin's `fileid`. For another file system below the root,
    /// the fsid is mixed in to avoid collisions.
    pub fn number_of(&self, attributes: &Attributes) -> u64 {
        if attributes.fsid == self.root_fsid {
            return attributes.fileid;
        }
        let fsid = attributes.fsid.major.rotate_left(17) ^ attributes.fsid.minor;
        attributes.fileid ^ fsid.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1)
    }

    /// How long the kernel may cache the attributes of a file. Under a lease: until its end, at most
    /// `LEASED`. Otherwise: as long as the layer below trusts its own cache. Zero while names in the
    /// directory are doubted.
    pub fn valid(&self, inode: &Inode) -> Duration {
        let now = Instant::now();
        let lease = {
            let state = inode.state.lock();
            if state.directory.doubt.is_raised() {
                return Duration::ZERO;
            }
            state.lease.filter(is_valid)
        };
        if let Some(lease) = lease {
            return lease.until.map_or(LEASED, |until| until.saturating_duration_since(now).min(LEASED));
        }
        let until = self.fs.believed_until(&inode.handle());
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Does the layer below have this feature?
    pub fn has(&self, feature: Features) -> bool {
        self.limits.features.contains(feature)
    }
}

/// The time of day.
pub fn wall() -> Timestamp {
    SystemClock.wall()
}

/// Checks a name from the kernel.
pub fn name(bytes: &[u8]) -> Result<Name, Errno> {
    Name::new(bytes).map_err(errno::of)
}

/// Attributes of a removed directory, for processes that have it open.
pub fn attr_of_removed(front: &Front, attributes: &Attributes) -> Attr {
    attr_of(attributes, front.number_of(attributes))
}

/// The caller of an open, which demands fresh attributes.
pub fn opening(caller: &Caller) -> Caller {
    caller.clone().with_freshness(Freshness::Open)
}

fn attr_of(attributes: &Attributes, ino: u64) -> Attr {
    let time = |at: Timestamp| (at.seconds, at.nanoseconds);
    Attr {
        ino,
        size: attributes.size,
        blocks: attributes.used.div_ceil(512),
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        mode: file_mode(attributes.file_type) | (attributes.mode & 0o7777),
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: device_number(attributes.rdev),
    }
}

/// The type bits of `st_mode`.
pub fn file_mode(file_type: FileType) -> u32 {
    match file_type {
        FileType::Regular => libc::S_IFREG,
        FileType::Directory => libc::S_IFDIR,
        FileType::Block => libc::S_IFBLK,
        FileType::Character => libc::S_IFCHR,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Socket => libc::S_IFSOCK,
        FileType::Fifo => libc::S_IFIFO,
    }
}

/// The file type of `st_mode`.
pub fn file_type(mode: u32) -> Result<FileType, Errno> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Ok(FileType::Regular),
        libc::S_IFBLK => Ok(FileType::Block),
        libc::S_IFCHR => Ok(FileType::Character),
        libc::S_IFSOCK => Ok(FileType::Socket),
        libc::S_IFIFO => Ok(FileType::Fifo),
        _ => Err(Errno::INVAL),
    }
}

/// The kernel's 32 bits for a device: 12 of major, 20 of minor (`new_encode_dev`).
fn device_number(device: vfs::Device) -> u32 {
    let (major, minor) = (device.major & 0xfff, device.minor & 0xf_ffff);
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse of `device_number`.
pub fn device_of(number: u32) -> vfs::Device {
    vfs::Device { major: (number >> 8) & 0xfff, minor: (number & 0xff) | ((number >> 12) & 0xf_ff00) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (4095, 0xf_ffff), (1, 256)] {
            let device = vfs::Device { major, minor };
            assert_eq!(device_of(device_number(device)), device);
        }
        assert_eq!(device_number(vfs::Device { major: 8, minor: 1 }), 0x801);
    }

    #[tokio::test]
    async fn an_interrupt_that_came_before_anybody_waits_is_not_lost() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        interrupt.raised().await;
        assert!(interrupt.is_raised());
    }
}
