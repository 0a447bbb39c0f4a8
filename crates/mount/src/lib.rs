//! The FUSE front: presents a [`vfs::FileSystem`] as a directory of this machine.
//!
//! The design follows Badros' caching client (1999), Lever's close-to-open consistency (2001) and the
//! semantics of Sun's client (1985).
//!
//! | module | what it does |
//! |---|---|
//! | `wire` | encodes and decodes the kernel's messages |
//! | `device`, `mounting`, `session` | mount, read requests, send replies |
//! | `inodes`, `files` | the nodes that the kernel knows, and the open files |
//! | `pages` | decides whether the kernel's page cache is still valid at an open |
//! | `passthrough` | reads that the kernel serves itself from the cache file |
//! | `recalls`, `notify` | leases and their recall, notifications to the kernel |
//! | `silly` | files that are removed while they are open |
//! | `credentials`, `errno` | credentials of a request, error numbers of a reply |
//! | `ops` | the operations |
//!
//! The front holds no lock while it calls the layer below. It holds none while it sends a notification on
//! which the kernel may block. If the requesting process is killed, its operation runs to completion
//! without it.

mod credentials;
mod device;
mod errno;
mod files;
mod front;
mod inodes;
mod mounting;
mod notify;
mod ops;
mod pages;
mod passthrough;
mod recalls;
mod session;
mod silly;
mod sys;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::AbortHandle;
use vfs::{Caller, Features, FileSystem};

pub use front::{LookupCache, Options};
pub use mounting::{
    How, MountError, Target, abort as break_connection, breaker, has_mounts, is_dead, mounted_at, options_at,
    remount, unmount,
};

use crate::device::Device;
use crate::front::{Counters, Front};
use crate::inodes::Inodes;
use crate::notify::Notifier;
use crate::recalls::Recalls;
use crate::session::{Refused, Session};
use crate::silly::Record;
use crate::wire::abi::Init;

/// Read-ahead limit of the kernel in KiB, set where the process may set it.
const READAHEAD_KIB: u32 = 1024;
/// How long `stop` waits for the kernel to end the connection after an unmount.
const DETACHED: Duration = Duration::from_secs(2);

/// A mounted file system. Dropping it unmounts it lazily.
pub struct Mount {
    directory: PathBuf,
    connection: Option<u32>,
    front: Arc<Front>,
    session: Session,
    tasks: Vec<AbortHandle>,
    locks: bool,
}

/// Counters and properties of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests from the kernel.
    pub requests: u64,
    /// Requests that wait for an answer now.
    pub waiting: u64,
    /// Nodes that the kernel knows.
    pub nodes: u64,
    /// Files that are open.
    pub open: u64,
    /// Opens at the layer below that are in flight and may bring a lease.
    pub opening: u64,
    /// Names of removed files that are still open.
    pub silly: u64,
    /// Opens whose reads the kernel serves from the cache file.
    pub opens_passed: u64,
    /// Other opens.
    pub opens_ordinary: u64,
    /// Requests that were given up because the requesting process was killed.
    pub abandoned: u64,
    /// Leases that the layer below recalled.
    pub recalls: u64,
    /// The kernel may read complete files from the cache file itself.
    pub passthrough: bool,
    /// The origin holds the locks. If false, locks are local to this machine.
    pub locks: bool,
}

impl Mount {
    /// Mounts, and answers requests from then on. A mount that a dead process left on the directory is
    /// detached first.
    ///
    /// # Errors
    /// One line with the cause and the way out.
    pub async fn start(
        fs: Arc<dyn FileSystem>,
        mut target: Target,
        options: Options,
    ) -> Result<Mount, MountError> {
        let directory = mounting::prepare(&target.directory)?;
        target.directory.clone_from(&directory);
        let machine = credentials::machine();
        let root = fs.root(&machine).await.map_err(|error| MountError::Root(error.status))?;
        let limits =
            fs.limits(&machine, &root.handle).await.map_err(|error| MountError::Root(error.status))?;
        let silly = record(&options, &*fs).await?;
        // If the caller drops this future, the guard detaches the mount.
        let mount = move || mounting::mount(&target).map(|fd| (fd, Detach(Some(target.directory))));
        let mounted = tokio::task::spawn_blocking(mount).await;
        let (fd, detach) = mounted.map_err(|error| MountError::Start(std::io::Error::other(error)))??;
        let device = Device::new(fd);
        let has_locks = limits.features.intersects(Features::STATE | Features::LOCKS_ALONE);
        let locks = has_locks && !options.local_locks;
        let max_write = limits.write_max.min(options.max_write).clamp(4096, 1 << 20) / 4096 * 4096;
        let (shaking, wanted) = (device.clone(), wanted(&options, locks));
        let agreed =
            tokio::task::spawn_blocking(move || session::shake_hands(&shaking, wanted, max_write)).await;
        let agreed = agreed.map_err(|error| MountError::Start(std::io::Error::other(error)))?;
        let agreed = agreed.map_err(|refused| refused_at(&directory, refused))?;
        let connection = mounting::mounted_at(&directory).map(|(_, minor)| minor);
        if let Some(minor) = connection {
            // Only root may write this file. For other users the kernel's default read-ahead stays.
            let path = format!("/sys/class/bdi/0:{minor}/read_ahead_kb");
            let _ = std::fs::write(path, READAHEAD_KIB.to_string());
        }
        let (recalls, returns) = Recalls::new();
        let notifier = Notifier::start(device.clone()).map_err(MountError::Start)?;
        let front = Arc::new_cyclic(|this| Front {
            this: this.clone(),
            notifier,
            passed: <_>::default(),
            inodes: Inodes::new(root.handle),
            files: files::Files::default(),
            silly,
            recalls,
            removals: <_>::default(),
            retries: <_>::default(),
            walks: <_>::default(),
            moves: <_>::default(),
            waits: <_>::default(),
            limits,
            root_fsid: root.attributes.map(|attributes| attributes.fsid).unwrap_or_default(),
            locks: locks && agreed.flags.contains(Init::POSIX_LOCKS),
            passthrough: agreed.flags.contains(Init::PASSTHROUGH).into(),
            counters: Counters::default(),
            fs,
            options,
            device,
        });
        let mut tasks = vec![tokio::spawn(recalls::returner(Arc::downgrade(&front), returns)).abort_handle()];
        if let Some(callbacks) = front.fs.callbacks() {
            let listener = recalls::listener(Arc::downgrade(&front), callbacks);
            tasks.push(tokio::spawn(listener).abort_handle());
        }
        let session =
            Session::start(front.clone(), agreed, front.options.threads).map_err(MountError::Start)?;
        detach.defuse();
        Ok(Mount { directory, connection, locks: front.locks, front, session, tasks })
    }

    /// The directory that it is mounted on.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number of its FUSE connection.
    pub fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// Does the origin hold the locks?
    pub fn has_locks(&self) -> bool {
        self.locks
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let counters = &self.front.counters;
        Stats {
            requests: counters.requests.load(Ordering::Relaxed),
            waiting: self.session.waiting() as u64,
            nodes: self.front.inodes.len() as u64,
            open: self.front.files.len() as u64,
            opening: self.front.recalls.opens_in_flight() as u64,
            silly: self.front.silly.standing(),
            opens_passed: counters.opens_passed.load(Ordering::Relaxed),
            opens_ordinary: counters.opens_ordinary.load(Ordering::Relaxed),
            abandoned: counters.abandoned.load(Ordering::Relaxed),
            recalls: counters.recalls.load(Ordering::Relaxed),
            passthrough: self.front.passthrough.load(Ordering::Relaxed),
            locks: self.locks,
        }
    }

    /// The files that were read and written most, except what the kernel reads and writes by itself.
    pub fn files_used(&self) -> Vec<(vfs::Handle, vfs::Used)> {
        self.front.counters.files.counts()
    }

    /// Makes the kernel ask again for all that it has of this mount: names, attributes, listings and pages.
    /// Dirty pages are sent first. Waits for the kernel, for at most `patience`.
    pub async fn make_kernel_ask(&self, patience: Duration) {
        let inodes = self.front.inodes.all();
        let names = inodes.iter().flat_map(|inode| inode.state.lock().names.clone()).collect();
        let nodes = inodes.iter().map(|inode| inode.number).collect();
        let _ = tokio::time::timeout(patience, self.front.notifier.all(nodes, names)).await;
    }

    /// Waits until another process has unmounted it.
    pub async fn ended(&self) {
        self.session.ended().await;
    }

    /// Unmounts. The mount point disappears at once, even if files are open or the server is unreachable.
    /// Then data that was written but not committed is committed, for at most `patience`. After that,
    /// requests that still wait fail.
    pub async fn stop(self, patience: Duration) {
        if !self.session.has_ended() {
            if tokio::time::timeout(patience, self.detach()).await.is_err() {
                // The mount point has disappeared already. The kernel finishes the unmount after its page
                // notifications, and these wait for a READ of the pages. Only an abort ends that wait.
                self.abort();
            }
            let _ = tokio::time::timeout(patience, self.settle()).await;
            if tokio::time::timeout(DETACHED, self.session.ended()).await.is_err() {
                self.abort();
            }
        }
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    async fn detach(&self) {
        let directory = self.directory.clone();
        let detached = tokio::task::spawn_blocking(move || unmount(&directory, How::Lazy)).await;
        if let Ok(Err(error)) = detached {
            tracing::warn!("cannot unmount {}: {error}", self.directory.display());
        }
    }

    /// Commits written data, and removes the files that were removed while they were open.
    async fn settle(&self) {
        for file in self.front.files.all() {
            let _ = self.front.fsync(file.fh).await;
        }
        for inode in self.front.inodes.all() {
            let silly = inode.opens.abandon();
            if let Some(silly) = silly {
                self.front.remove_silly(&silly).await;
            }
        }
    }

    fn abort(&self) {
        if let Some(connection) = self.connection
            && let Err(error) = mounting::abort(connection)
        {
            // The end of this process ends the connection too.
            tracing::debug!("cannot abort the connection: {error}");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        if !self.session.has_ended() {
            let _ = unmount(&self.directory, How::Lazy);
            self.abort();
        }
    }
}

/// Unmounts the directory when dropped, if the start of the mount did not finish.
struct Detach(Option<PathBuf>);

impl Detach {
    fn defuse(mut self) {
        self.0 = None;
    }
}

impl Drop for Detach {
    fn drop(&mut self) {
        if let Some(directory) = &self.0 {
            let _ = unmount(directory, How::Lazy);
        }
    }
}

async fn record(options: &Options, fs: &dyn FileSystem) -> Result<Record, MountError> {
    let unusable = |source: std::io::Error| {
        let path = options.state.clone().unwrap_or_default();
        MountError::State { path, source }
    };
    Record::open(options.state.as_deref(), fs).await.map_err(unusable)
}

fn wanted(options: &Options, locks: bool) -> Init {
    let mut wanted = Init::all() - Init::POSIX_LOCKS - Init::FLOCK_LOCKS - Init::PASSTHROUGH;
    wanted.set(Init::POSIX_LOCKS | Init::FLOCK_LOCKS, locks);
    // Only root may use passthrough. The kernel also refuses to stack another file system on such a mount.
    wanted.set(Init::PASSTHROUGH, options.passthrough && rustix::process::geteuid().is_root());
    wanted
}

fn refused_at(directory: &Path, refused: Refused) -> MountError {
    match refused {
        Refused::Version(major, minor) => MountError::Kernel { major, minor },
        Refused::Broken(errno) => MountError::Mount { directory: directory.to_owned(), source: errno.into() },
    }
}

/// The credential of the mount for calls that it makes itself.
pub fn machine() -> Caller {
    credentials::machine()
}
