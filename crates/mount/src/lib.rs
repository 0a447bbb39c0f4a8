//! The FUSE front: a [`vfs::FileSystem`] as a directory of this machine.
//!
//! After Badros' caching client (1999), with Lever's close-to-open (2001) and the semantics of Sun's client (1985).
//!
//! | module | what it does |
//! |---|---|
//! | `wire` | the kernel's messages |
//! | `device`, `mounting`, `session` | where they come from, and who answers them |
//! | `inodes`, `files` | what the kernel knows, and what is open |
//! | `pages` | when the kernel's page cache is still good at an open |
//! | `passthrough` | reads that the kernel does by itself |
//! | `recalls`, `notify` | leases, and what the kernel is told of their end |
//! | `silly` | files that are removed while they are open |
//! | `credentials`, `errno` | with what rights, and in what words |
//! | `ops` | the operations |
//!
//! No lock is held while the layer below is asked, and none while the kernel is told something that it may have to wait
//! for. What a killed process waits for goes on without it.

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

/// How much the kernel may read ahead, in KiB, where we may say so.
const READAHEAD_KIB: u32 = 1024;
/// How long it is waited for the kernel to let go after an unmount.
const DETACHED: Duration = Duration::from_secs(2);

/// A mounted file system. Dropping it detaches it.
pub struct Mount {
    directory: PathBuf,
    connection: Option<u32>,
    front: Arc<Front>,
    session: Session,
    tasks: Vec<AbortHandle>,
    locks: bool,
}

/// What a mount has done, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests of the kernel.
    pub requests: u64,
    /// Requests that wait for an answer now.
    pub waiting: u64,
    /// Files that the kernel knows.
    pub nodes: u64,
    /// Files that are open.
    pub open: u64,
    /// Opens whose reads the kernel does by itself, from the cache file.
    pub opens_passed: u64,
    /// Other opens.
    pub opens_ordinary: u64,
    /// Requests that were given up because the asker was killed.
    pub abandoned: u64,
    /// Leases that were taken back.
    pub recalls: u64,
    /// The kernel reads whole files by itself where it can.
    pub passthrough: bool,
    /// Locks are the origin's; else they are this machine's alone.
    pub locks: bool,
}

impl Mount {
    /// Mounts, and answers from then on. What a dead process has left mounted there is detached first.
    ///
    /// # Errors
    /// One line that says what is in the way, and the way out.
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
        // Who is not waited for any more detaches what it has mounted.
        let mount = move || mounting::mount(&target).map(|fd| (fd, Detach(Some(target.directory))));
        let mounted = tokio::task::spawn_blocking(mount).await;
        let (fd, detach) = mounted.map_err(|error| MountError::Start(std::io::Error::other(error)))??;
        let device = Device::new(fd);
        let locks = limits.features.contains(Features::STATE) && !options.local_locks;
        let max_write = limits.write_max.min(options.max_write).clamp(4096, 1 << 20) / 4096 * 4096;
        let (shaking, wanted) = (device.clone(), wanted(&options, locks));
        let agreed =
            tokio::task::spawn_blocking(move || session::shake_hands(&shaking, wanted, max_write)).await;
        let agreed = agreed.map_err(|error| MountError::Start(std::io::Error::other(error)))?;
        let agreed = agreed.map_err(|refused| refused_at(&directory, refused))?;
        let connection = mounting::mounted_at(&directory).map(|(_, minor)| minor);
        if let Some(minor) = connection {
            // Only root may; others read ahead as little as the kernel likes.
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

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number of its connection to the kernel.
    pub fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// Are locks the origin's?
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
            opens_passed: counters.opens_passed.load(Ordering::Relaxed),
            opens_ordinary: counters.opens_ordinary.load(Ordering::Relaxed),
            abandoned: counters.abandoned.load(Ordering::Relaxed),
            recalls: counters.recalls.load(Ordering::Relaxed),
            passthrough: self.front.passthrough.load(Ordering::Relaxed),
            locks: self.locks,
        }
    }

    /// Waits until somebody else has unmounted it.
    pub async fn ended(&self) {
        self.session.ended().await;
    }

    /// Unmounts: out of sight at once, also while files are open or the server is away. What was written and not yet
    /// committed is, if that takes no longer than `patience`. Then whoever still waits gets an error.
    pub async fn stop(self, patience: Duration) {
        if !self.session.has_ended() {
            if tokio::time::timeout(patience, self.detach()).await.is_err() {
                // Out of sight it is. Who finishes the unmount waits for who is told of pages, and he for their READ.
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

    /// Commits what is written, and removes what was removed while it was open.
    async fn settle(&self) {
        for file in self.front.files.all() {
            let _ = self.front.fsync(file.fh).await;
        }
        for inode in self.front.inodes.all() {
            let silly = inode.state.lock().silly.take();
            if let Some(silly) = silly {
                self.front.remove_silly(&silly).await;
            }
        }
    }

    fn abort(&self) {
        if let Some(connection) = self.connection
            && let Err(error) = mounting::abort(connection)
        {
            // The end of the process does it too.
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

/// Detaches what was mounted and cannot be answered for.
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
    // The kernel refuses it to others, and refuses such a mount as a lower one of others.
    wanted.set(Init::PASSTHROUGH, options.passthrough && rustix::process::geteuid().is_root());
    wanted
}

fn refused_at(directory: &Path, refused: Refused) -> MountError {
    match refused {
        Refused::Version(major, minor) => MountError::Kernel { major, minor },
        Refused::Broken(errno) => MountError::Mount { directory: directory.to_owned(), source: errno.into() },
    }
}

/// Who the mount is to the file system below, for what it does of its own accord.
pub fn machine() -> Caller {
    credentials::machine()
}
