//! The exported tree: the state that all operations share, and the translation between handles and open
//! files.

use std::collections::HashSet;
use std::hash::Hasher;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::Resource;
use vfs::{Attributes, FileType, Handle, Name, Status, Verifier};

use crate::attributes::Stat;
use crate::descriptors::{Bounds, Descriptors, Node, PER_LEASED_FILE, PER_NODE, Proc};
use crate::handles::table::{Place, Table};
use crate::handles::{Key, Parsed};
use crate::leases::Leases;
use crate::listings::Listings;
use crate::locks::Locks;
use crate::mounts::{self, Mount, Mounts};
use crate::opens::{Opens, Removal};
use crate::permission::{TICK_NANOSECONDS, is_nonracy};
use crate::sys::KernelHandle;
use crate::{HandleKind, OpenError, Options, errno, identity, sys, workers};

/// Descriptors reserved for the rest of the process, in addition to those for connections.
const DESCRIPTORS_SPARE: u64 = 384;
/// Descriptors for connections: an eighth of the limit within these bounds, as `rpc::Server` uses.
const CONNECTIONS: std::ops::RangeInclusive<u64> = 128..=4096;
/// Nodes that get descriptors, whatever the limit of open files.
const NODES_MIN: usize = 64;
/// Upper bound of descriptors for nodes, whatever the limit.
const DESCRIPTORS_MAX: usize = 1 << 22;
/// How often a handle is opened again if the kernel reports a lack of memory.
const OPEN_TRIES_MAX: usize = 16;
/// Deepest directory that the table finds again.
const DEPTH_MAX: usize = 1024;

/// One exported directory.
pub(crate) struct Tree {
    pub(crate) root: Arc<Node>,
    pub(crate) proc: Proc,
    pub(crate) mounts: Mounts,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) locks: Locks,
    pub(crate) opens: Opens,
    pub(crate) leases: Arc<Leases>,
    pub(crate) listings: Listings,
    /// Metadata is durable before it is acknowledged.
    pub(crate) sync: bool,
    /// No other process of this machine uses the directory.
    exclusive: bool,
    /// The key of the root in the table.
    root_key: Key,
    handles: HandleKind,
    state: PathBuf,
    entries_max: usize,
    table: Mutex<Option<Arc<Table>>>,
    verifier: AtomicU64,
}

/// A file found under a name.
pub(crate) struct Described {
    pub(crate) handle: Handle,
    pub(crate) mount: Arc<Mount>,
    pub(crate) stat: Stat,
}

impl Described {
    pub(crate) fn attributes(&self) -> Attributes {
        self.stat.attributes(self.mount.fsid)
    }
}

impl Tree {
    pub(crate) fn open(directory: &Path, options: Options) -> Result<Tree, OpenError> {
        let fault = |cause: Errno| OpenError::Directory { path: directory.to_owned(), cause: cause.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(fault)?;
        let fsid = mounts::fsid(opened.as_fd(), &Stat::of(&opened).map_err(fault)?).map_err(fault)?;
        let anchor = if options.crossmnt { opened } else { without_mounts(opened) };
        let proc = Proc::new().map_err(|cause| OpenError::Proc(cause.into()))?;
        let path = proc
            .open(&anchor, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|cause| OpenError::Proc(cause.into()))?;
        let stat = Stat::of(&path).map_err(fault)?;
        let mounts = Mounts::new(anchor, fsid, options.crossmnt).map_err(fault)?;
        let root_key = Key { tag: 0, inode: stat.inode(), birth: stat.birth() };
        let handle = kernel_handle(mounts.root(), path.as_fd(), options.handles)
            .unwrap_or(None)
            .and_then(|kernels| Parsed::Kernel(0, kernels).handle())
            .or_else(|| Parsed::Table(root_key).handle())
            .ok_or(OpenError::Kernel)?;
        let root = Arc::new(Node::new(handle, mounts.root().clone(), &stat, path));
        let bounds = bounds(&options, descriptors_allowed().min(options.all_descriptors_max));
        let descriptors = Arc::new(Descriptors::new(bounds));
        let leases = crate::leases::Bounds {
            leases: leases_max(&options, &bounds),
            idle_min: options.idle_min,
            exclusive: options.exclusive,
        };
        let leases = Leases::new(descriptors.clone(), leases);
        let tree = Tree {
            root,
            proc,
            mounts,
            leases: Arc::new(leases),
            descriptors,
            locks: Locks::new(),
            opens: Opens::default(),
            listings: Listings::new(),
            sync: options.sync,
            exclusive: options.exclusive,
            root_key,
            handles: options.handles,
            state: options.state,
            entries_max: options.table_entries_max.max(64),
            table: Mutex::new(None),
            verifier: AtomicU64::new(random()),
        };
        if !tree.root.mount.fine_stamps {
            // Numbers counted before a restart belong to ticks that are over.
            std::thread::sleep(Duration::from_nanos(TICK_NANOSECONDS as u64));
        }
        if matches!(Parsed::parse(&tree.root.handle), Some(Parsed::Table(_))) {
            tree.open_table().map_err(|cause| OpenError::State { path: tree.state.clone(), cause })?;
        }
        Ok(tree)
    }

    /// The node of a handle, if it is in use.
    pub(crate) fn cached(&self, handle: &Handle) -> Option<Arc<Node>> {
        if *handle == self.root.handle { Some(self.root.clone()) } else { self.descriptors.get(handle) }
    }

    /// The path of a file below the root, as far as the kernel knows.
    pub(crate) fn path_of(&self, handle: &Handle) -> Option<Vec<u8>> {
        let node = self.node(handle).ok()?;
        let (root, file) = (self.proc.path_of(&self.root.path).ok()?, self.proc.path_of(&node.path).ok()?);
        let below = file.strip_prefix(&root).ok()?.as_os_str().as_bytes();
        // The kernel marks a file that has no name any more.
        (!below.ends_with(b" (deleted)")).then(|| [b"/", below].concat())
    }

    /// The node of a handle. May wait for the disk.
    pub(crate) fn node(&self, handle: &Handle) -> Result<Arc<Node>, Status> {
        if let Some(node) = self.cached(handle) {
            return Ok(node);
        }
        let opened = self.open_again(handle);
        // If its last name was removed meanwhile, the removal has kept the node for the file's opens.
        opened.or_else(|status| self.cached(handle).filter(|_| status == Status::Stale).ok_or(status))
    }

    fn open_again(&self, handle: &Handle) -> Result<Arc<Node>, Status> {
        match Parsed::parse(handle).ok_or(Status::BadHandle)? {
            Parsed::Kernel(tag, kernels) => self.open_kernel(*handle, &self.mount_tagged(tag)?, &kernels),
            Parsed::KernelLong(fsid, kernels) => {
                if self.mounts.with_fsid(fsid).is_none() {
                    self.mounts.rescan(&self.proc);
                }
                let mount = self.mounts.with_fsid(fsid).ok_or(Status::Stale)?;
                self.open_kernel(*handle, &mount, &kernels)
            }
            Parsed::Table(key) => self.walk(*handle, key, &mut HashSet::new()),
        }
    }

    fn mount_tagged(&self, tag: u16) -> Result<Arc<Mount>, Status> {
        if self.mounts.tagged(tag).is_empty() {
            self.mounts.rescan(&self.proc);
        }
        match self.mounts.tagged(tag).as_slice() {
            [mount] => Ok(mount.clone()),
            _ => Err(Status::Stale),
        }
    }

    fn open_kernel(
        &self,
        handle: Handle,
        mount: &Arc<Mount>,
        kernels: &KernelHandle,
    ) -> Result<Arc<Node>, Status> {
        let opened = identity::as_self(|| open_by_handle(mount, kernels))?;
        let path = opened.map_err(|errno| match errno {
            Errno::INVAL => Status::BadHandle,
            Errno::NOENT => Status::Stale,
            other => errno::status(other),
        })?;
        let stat = Stat::of(&path).map_err(errno::status)?;
        if !stat.is_linked() {
            return Err(Status::Stale);
        }
        // Some file systems ignore part of a handle, but a file must have only one.
        if sys::name_to_handle(path.as_fd()) != Ok(*kernels) {
            return Err(Status::BadHandle);
        }
        Ok(self.descriptors.insert(Node::new(handle, mount.clone(), &stat, path)))
    }

    /// Finds a file by the places in the table. `tried` are the keys already tried on this path.
    fn walk(&self, handle: Handle, key: Key, tried: &mut HashSet<Key>) -> Result<Arc<Node>, Status> {
        if key == self.root_key {
            return Ok(self.root.clone());
        }
        if tried.len() >= DEPTH_MAX || !tried.insert(key) {
            return Err(Status::Stale);
        }
        for place in self.table()?.places(key) {
            let directory = match Parsed::parse(&place.directory) {
                Some(Parsed::Table(key)) if self.cached(&place.directory).is_none() => {
                    self.walk(place.directory, key, tried)
                }
                _ => self.node(&place.directory),
            };
            let Ok(directory) = directory else { continue };
            let found = identity::as_self(|| open_child(&directory.path, &place.name))?;
            let Ok(path) = found else { continue };
            let stat = Stat::of(&path).map_err(errno::status)?;
            let mount = self.mount_of(&directory, &path, &stat)?;
            if (Key { tag: mount.tag, inode: stat.inode(), birth: stat.birth() }) == key {
                return Ok(self.descriptors.insert(Node::new(handle, mount, &stat, path)));
            }
        }
        Err(Status::Stale)
    }

    /// Describes `file`, found in `directory` under `name`. With a name, the client may use the handle
    /// later, so a table handle is recorded.
    pub(crate) fn describe(
        &self,
        directory: &Node,
        name: Option<&Name>,
        file: &OwnedFd,
    ) -> Result<Described, Status> {
        let stat = Stat::of(file).map_err(errno::status)?;
        let mount = self.mount_of(directory, file, &stat)?;
        let kernels = kernel_handle(&mount, file.as_fd(), self.handles).map_err(errno::status)?;
        let handle = match kernels.and_then(|kernels| self.kernel_handle(&mount, &kernels)) {
            Some(handle) => handle,
            None => self.table_handle(directory, name, &mount, &stat)?,
        };
        Ok(self.described(handle, mount, &stat))
    }

    /// May opens of files of this mount be held by their handles? Files must lose their names through this
    /// process alone, and be opened again whatever their rights are.
    pub(crate) fn holds_by_handle(&self, mount: &Mount) -> bool {
        self.exclusive && identity::is_privileged() && self.names_by_kernel(mount)
    }

    /// A name of this file is about to be removed: keeps the file for its opens, if they have only its
    /// handle.
    ///
    /// # Errors
    /// `Delay` if there are no descriptors for this.
    pub(crate) fn begin_removal(
        &self,
        file: &Described,
        path: &OwnedFd,
    ) -> Result<Option<Removal<'_>>, Status> {
        let by_handle = self.holds_by_handle(&file.mount) && Parsed::is_kernels(&file.handle);
        if !by_handle || file.stat.file_type() != FileType::Regular {
            return Ok(None);
        }
        let node = match self.cached(&file.handle) {
            Some(node) => node,
            None => self.keep(file, path.try_clone().map_err(|_| Status::Delay)?),
        };
        Removal::begin(&self.opens, &self.descriptors, node).map(Some)
    }

    /// Do files of this mount have handles of the kernel? (One of them may be too long.)
    pub(crate) fn names_by_kernel(&self, mount: &Mount) -> bool {
        mount.by_handle && self.handles == HandleKind::Kernel
    }

    /// The handle with the kernel's handle of a file, if it fits.
    pub(crate) fn kernel_handle(&self, mount: &Mount, kernels: &KernelHandle) -> Option<Handle> {
        if self.mounts.is_tag_unique(mount) {
            Parsed::Kernel(mount.tag, *kernels).handle()
        } else {
            Parsed::KernelLong(mount.fsid, *kernels).handle()
        }
    }

    /// The description of a file with this handle and these attributes.
    pub(crate) fn described(&self, handle: Handle, mount: Arc<Mount>, stat: &Stat) -> Described {
        let in_use = if mount.fine_stamps { None } else { self.cached(&handle) };
        let stat = self.numbered(stat, &mount, in_use.as_deref());
        Described { handle, mount, stat }
    }

    fn table_handle(
        &self,
        directory: &Node,
        name: Option<&Name>,
        mount: &Mount,
        stat: &Stat,
    ) -> Result<Handle, Status> {
        let key = Key { tag: mount.tag, inode: stat.inode(), birth: stat.birth() };
        if key == self.root_key {
            return Ok(self.root.handle);
        }
        if let Some(name) = name {
            let place = Place { directory: directory.handle, name: name.clone() };
            self.table()?.seen(key, &place).map_err(|cause| self.table_fault(&cause))?;
        }
        Parsed::Table(key).handle().ok_or(Status::ServerFault)
    }

    fn mount_of(&self, directory: &Node, file: &OwnedFd, stat: &Stat) -> Result<Arc<Mount>, Status> {
        if stat.mount_id() == Some(directory.mount.id) {
            return Ok(directory.mount.clone());
        }
        self.mounts.of(&self.proc, file, stat)
    }

    /// Keeps a file that was just found for later operations.
    pub(crate) fn keep(&self, found: &Described, path: OwnedFd) -> Arc<Node> {
        if found.handle == self.root.handle {
            return self.root.clone();
        }
        self.descriptors.insert(Node::new(found.handle, found.mount.clone(), &found.stat, path))
    }

    /// The attributes of a file now.
    ///
    /// # Errors
    /// `Stale` if the file has no name and no opens.
    pub(crate) fn stat(&self, node: &Node) -> Result<Stat, Status> {
        let stat = Stat::of(&node.path).map_err(errno::status)?;
        if stat.is_linked() || node.is_open() {
            return Ok(self.numbered(&stat, &node.mount, Some(node)));
        }
        // This node may have been evicted, and opened again for an open.
        if let Some(node) = self.descriptors.get(&node.handle).filter(|node| node.is_open()) {
            return Ok(self.numbered(&stat, &node.mount, Some(&node)));
        }
        self.leases.gone(&node.handle);
        self.descriptors.forget(&node.handle);
        Err(Status::Stale)
    }

    /// The attributes of a directory now.
    ///
    /// # Errors
    /// As [`Tree::stat`], and `NotDir`.
    pub(crate) fn stat_directory(&self, node: &Node) -> Result<Stat, Status> {
        let stat = self.stat(node)?;
        if node.is_dir() { Ok(stat) } else { Err(Status::NotDir) }
    }

    /// The attributes of a file now, if they are available.
    pub(crate) fn attributes(&self, node: &Node) -> Option<Attributes> {
        self.stat(node).ok().map(|stat| stat.attributes(node.mount.fsid))
    }

    /// The attributes of a file that this server has just changed.
    pub(crate) fn changed(&self, node: &Node) -> Option<Attributes> {
        if !node.mount.fine_stamps {
            let stat = Stat::of(&node.path).ok()?;
            node.change.changed(stat.ctime().as_nanos() as u64, &self.descriptors.forgotten);
        }
        self.attributes(node)
    }

    /// As [`Tree::changed`], for a file that may or may not be in use.
    pub(crate) fn changed_beside(&self, file: &Described) {
        if !file.mount.fine_stamps
            && let Some(node) = self.cached(&file.handle)
        {
            self.changed(&node);
        }
    }

    /// The same attributes with the change attribute.
    pub(crate) fn numbered(&self, stat: &Stat, mount: &Mount, node: Option<&Node>) -> Stat {
        if mount.fine_stamps {
            return *stat;
        }
        let (ctime, nonracy) = (stat.ctime().as_nanos() as u64, is_nonracy(stat.ctime()));
        let forgotten = &self.descriptors.forgotten;
        stat.with_change(match node {
            Some(node) => node.change.look(ctime, nonracy, forgotten),
            None => forgotten.look(ctime, nonracy),
        })
    }

    /// A name was removed from a directory: removes the state that belongs to it.
    pub(crate) fn gone(&self, directory: &Node, name: &Name, file: &Described, path: &OwnedFd) {
        if let Some(Parsed::Table(key)) = Parsed::parse(&file.handle)
            && let Ok(table) = self.table()
        {
            let place = Place { directory: directory.handle, name: name.clone() };
            if let Err(cause) = table.gone(key, &place) {
                self.table_fault(&cause); // a leftover entry costs only its space
            }
        }
        if !Stat::of(path).is_ok_and(|stat| stat.is_linked()) {
            self.leases.gone(&file.handle);
            self.descriptors.forget(&file.handle);
        }
    }

    fn table(&self) -> Result<Arc<Table>, Status> {
        self.open_table().map_err(|cause| self.table_fault(&cause))
    }

    fn open_table(&self) -> std::io::Result<Arc<Table>> {
        let mut table = self.table.lock();
        if let Some(table) = &*table {
            return Ok(table.clone());
        }
        let opened = identity::as_self(|| Table::open(&self.state, self.entries_max))
            .unwrap_or_else(|_| Err(std::io::ErrorKind::PermissionDenied.into()))?;
        Ok(table.insert(Arc::new(opened)).clone())
    }

    fn table_fault(&self, cause: &std::io::Error) -> Status {
        tracing::error!("the handle table in {} cannot be used: {cause}", self.state.display());
        Errno::from_io_error(cause).map_or(Status::ServerFault, errno::status)
    }

    /// Writes the handle table to the disk.
    pub(crate) fn sync_table(&self) {
        let table = self.table.lock().clone();
        if let Some(Err(cause)) = table.map(|table| table.sync()) {
            self.table_fault(&cause);
        }
    }

    pub(crate) fn verifier(&self) -> Verifier {
        self.verifier.load(Ordering::Acquire).to_be_bytes()
    }

    /// Unstable writes may have been lost: the new verifier makes all clients send theirs again.
    pub(crate) fn writes_lost(&self) {
        self.verifier.store(random(), Ordering::Release);
    }

    /// Makes changes of a file or directory durable.
    pub(crate) fn persist(&self, node: &Node) -> Result<(), Status> {
        workers::about_to_wait();
        let real = match node.file_type {
            FileType::Regular | FileType::Directory => self.reading(node).ok(),
            _ => None,
        };
        // Links and special files cannot be synced individually, and directories not on every file system.
        let all = || rustix::fs::syncfs(node.mount.anchor());
        let synced = match real.map(|file| rustix::fs::fsync(&*file)) {
            None | Some(Err(Errno::INVAL | Errno::OPNOTSUPP)) => all(),
            Some(synced) => synced,
        };
        synced.map_err(|errno| {
            self.writes_lost();
            errno::status(errno)
        })
    }
}

/// Opens (`O_PATH`) a name in a directory, with the identity of the thread.
pub(crate) fn open_child(directory: impl AsFd, name: &Name) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_bytes(), flags, Mode::empty())
}

/// The kernel's handle of a file, if it exists, may be used and fits.
fn kernel_handle(mount: &Mount, file: impl AsFd, handles: HandleKind) -> Result<Option<KernelHandle>, Errno> {
    if !mount.by_handle || handles == HandleKind::Table {
        return Ok(None);
    }
    match sys::name_to_handle(file.as_fd()) {
        Ok(kernels) => Ok(Some(kernels)),
        Err(Errno::OPNOTSUPP | Errno::OVERFLOW) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens by the kernel's handle. ext4 also reports `NOMEM` for an inode number that is just being given to
/// a new file. In that case the handle is stale a moment later.
fn open_by_handle(mount: &Mount, kernels: &KernelHandle) -> Result<OwnedFd, Errno> {
    for _ in 0..OPEN_TRIES_MAX {
        match sys::open_by_handle(mount.anchor(), kernels) {
            Err(Errno::NOMEM) => std::thread::yield_now(),
            other => return other,
        }
    }
    Err(Errno::NOMEM)
}

/// The same directory in a private copy of its mount without the mounts below. Needs `CAP_SYS_ADMIN`;
/// without it, names that lead into mounts are refused instead.
fn without_mounts(directory: OwnedFd) -> OwnedFd {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let reopened = rustix::mount::open_tree(&directory, c"", flags).and_then(|path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(path, c".", flags, Mode::empty())
    });
    reopened.unwrap_or(directory)
}

/// Divides `allowed` descriptors. Open and leased files may take descriptors from idle ones, except a
/// sixteenth.
fn bounds(options: &Options, allowed: usize) -> Bounds {
    let idle_min = options.descriptors_max.min(allowed / PER_NODE / 16).max(1);
    Bounds {
        idle: options.descriptors_max,
        kept: options.opened_max.max(1),
        spent: allowed - idle_min * PER_NODE,
        descriptors: allowed,
    }
}

/// Reserves a sixteenth of the kept files for opens without a lease, so that few opens wait for the return
/// of a lease. A lease on an exclusive directory takes no descriptor.
fn leases_max(options: &Options, bounds: &Bounds) -> usize {
    if options.exclusive {
        return options.leases_max;
    }
    let for_leases = |of: usize| of - of.div_ceil(16);
    let by_descriptors = for_leases(bounds.spent) / PER_LEASED_FILE;
    options.leases_max.min(for_leases(bounds.kept)).min(by_descriptors)
}

/// Raises the limit of open files to its maximum. Returns the number of descriptors for nodes.
fn descriptors_allowed() -> usize {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
            limit.current = limit.maximum;
        }
    }
    let limit = limit.current.unwrap_or(u64::MAX);
    let connections = (limit / 8).clamp(*CONNECTIONS.start(), *CONNECTIONS.end());
    let allowed = limit.saturating_sub(DESCRIPTORS_SPARE + connections);
    usize::try_from(allowed).unwrap_or(usize::MAX).clamp(NODES_MIN * PER_NODE, DESCRIPTORS_MAX)
}

/// A number that no other instance has. Without system randomness it is derived from the time.
fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let mut hasher = siphasher::sip::SipHasher13::new();
        hasher.write_u128(std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos());
        hasher.finish()
    })
}
