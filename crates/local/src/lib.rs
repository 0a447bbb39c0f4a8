//! A directory of this machine as a [`vfs::FileSystem`].
//!
//! [`LocalFs`] serves the files below one directory. It uses the kernel's own file handles and the rights
//! of each caller, and acknowledges no change that is not durable. Its guarantees and their limits:
//!
//! - **Handles** survive restarts and renames, and become stale with the inode. A process without
//!   `CAP_DAC_READ_SEARCH`, or a file system without handles, uses a table of names in [`Options::state`].
//!   Such handles are found again as long as all renames go through this server.
//! - **Rights** are decided by the kernel for the caller's user and groups. The two exceptions of NFS
//!   servers apply: the owner may read and write, and execute permission implies read. A process that is
//!   not root serves its own user only. The kernel's `fs.protected_hardlinks` applies to callers as to
//!   local users.
//! - **Weak cache consistency** data is atomic with regard to all operations through the same [`LocalFs`].
//!   It cannot exclude other processes of this machine, nor a second [`LocalFs`] over the same files.
//! - **Change** grows with every change through this server and never goes back, even after a restart,
//!   unless the clock is set back. It is ctime, or derived from ctime: see `change_attribute`.
//! - **Opens** keep the rights that were checked at the open. They keep a file without a name for all
//!   clients that have its handle, as long as this process runs. The layer above handles share reservations
//!   and locks among clients; processes of this machine see neither.
//! - **Leases** on regular files are granted once a layer above takes the callbacks. If a process of this
//!   machine opens or truncates a leased file, it waits until the lease is returned. This needs the
//!   kernel's own leases (as root or owner, on file systems that have them). Renames, links, removals and
//!   attribute changes by such a process are not noticed. With [`Options::exclusive`], nothing that such a
//!   process does is noticed.
//! - **Extended attributes** are those of `user.`. NFSv4 access control lists are mapped to POSIX lists:
//!   see `acl`.
//! - **Durability**: with [`Options::sync`], every change of metadata is on the disk before it is
//!   acknowledged. Changes of one directory that wait at the same time share an fsync. A new file reaches
//!   the disk with its directory, as on file systems with a journal. Data is on the disk when its stability
//!   says so, or after COMMIT.
//!
//! Files in use stay open for up to a minute after their last use. During that time a file system below
//! cannot be unmounted without force, and a file that a process of this machine removes keeps its space. A
//! program that was just written can be run on this machine some seconds later.
//!
//! The directory should be on a file system of this machine. Operations that run without a thread of their
//! own would block on a network file system. It needs Linux 5.8, `/proc`, and a tokio runtime. The first
//! open of a directory starts threads that live as long as the process, and raises the process's limit of
//! open files. Taking the callbacks installs a handler for `SIGIO`.

mod acl;
mod attributes;
mod change;
mod change_attribute;
mod copy;
mod descriptors;
mod directory;
mod errno;
mod extents;
mod filesystem;
mod guard;
mod handles;
mod identity;
mod io;
mod leases;
mod listings;
mod locks;
mod lookup;
mod make;
mod mounts;
mod opening;
mod opens;
mod permission;
mod promises;
mod ranges;
mod sweeper;
mod syncs;
mod sys;
mod tree;
mod watch;
mod workers;
mod xattr;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::sweeper::Sweeper;
use crate::tree::Tree;

/// How a directory is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// A private directory for state that must survive a restart: the table of handles, if one is needed.
    /// It is created at the first use.
    pub state: PathBuf,
    /// Serve the file systems mounted below the directory too, each with its own fsid. Without this,
    /// clients see the directories under the mount points; if the process may not create mounts, they get
    /// `Access` there.
    pub crossmnt: bool,
    /// `sync` of exports(5): changes of names and attributes are on the disk before they are acknowledged.
    /// Without it, a machine that loses power may lose acknowledged changes.
    pub sync: bool,
    /// The source of file handles.
    pub handles: HandleKind,
    /// Limit of files kept open between operations, with three descriptors each. It shrinks with the limit
    /// of open files. A server of several directories divides the descriptors among them.
    pub descriptors_max: usize,
    /// Limit of files that clients have open (three descriptors each) or leased (two), in addition to
    /// `descriptors_max`. It shrinks with the limit of open files. A sixteenth is reserved for files
    /// without a lease.
    pub opened_max: usize,
    /// No process of this machine uses the directory except this one. Leases then take no descriptors, and
    /// a process that changes the directory all the same is not detected. If this process is root and the
    /// kernel has handles of the files, opens take no descriptors either; a file that such a process removes
    /// is then lost to those who have it open.
    pub exclusive: bool,
    /// Limit of leases, with up to 250 bytes each. Unless `exclusive` is set, it shrinks with `opened_max`
    /// and the limit of open files. Near the limit, leases that were not used for `idle_min` are recalled.
    pub leases_max: usize,
    /// A lease that was used within this time is not recalled to grant another one.
    pub idle_min: Duration,
    /// Limit of descriptors for all files together. It shrinks with the limit of open files.
    pub all_descriptors_max: usize,
    /// Limit of files in the table of handles; each takes about 200 bytes of memory.
    pub table_entries_max: usize,
}

impl Options {
    /// The defaults, with this directory for durable state.
    pub fn new(state: impl Into<PathBuf>) -> Options {
        Options {
            state: state.into(),
            crossmnt: true,
            sync: true,
            handles: HandleKind::Kernel,
            descriptors_max: 4096,
            opened_max: 1 << 18,
            exclusive: false,
            leases_max: 1 << 17,
            idle_min: Duration::from_secs(30),
            all_descriptors_max: usize::MAX,
            table_entries_max: 1 << 20,
        }
    }
}

/// The source of file handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandleKind {
    /// The kernel, if the process may use its handles and the file system has them; else the table.
    #[default]
    Kernel,
    /// Always the table.
    Table,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory itself cannot be used.
    #[error("cannot serve {}: {cause}; it must be a directory that this user may read", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The directory for durable state cannot be used.
    #[error("cannot keep file handles in {}: {cause}; give a directory that this user may write and no other server uses", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// `/proc` is not available.
    #[error("cannot use /proc/self/fd: {0}; mount /proc")]
    Proc(std::io::Error),
    /// Threads cannot be started.
    #[error("cannot start threads: {0}; raise the limit of processes")]
    Threads(std::io::Error),
    /// The kernel lacks a required feature.
    #[error("the kernel has no handle for the directory; Linux 5.8 or later is needed")]
    Kernel,
}

/// A directory of this machine as a file system.
pub struct LocalFs {
    // Dropped first: afterwards this is the only reference to the tree.
    sweeper: Option<Sweeper>,
    tree: Arc<Tree>,
}

impl LocalFs {
    /// Starts to serve `directory`.
    pub fn open(directory: &Path, options: Options) -> Result<LocalFs, OpenError> {
        workers::start().map_err(OpenError::Threads)?;
        let tree = Arc::new(Tree::open(directory, options)?);
        let sweeper = Some(Sweeper::start(&tree).map_err(OpenError::Threads)?);
        Ok(LocalFs { sweeper, tree })
    }

    /// The fsid that clients see for the directory's own file system. It survives a restart.
    pub fn fsid(&self) -> u64 {
        self.tree.mounts.root().fsid
    }

    /// The path of a file below the directory, as far as the kernel knows: one of its names, or none. Waits
    /// for the disk.
    pub fn path_of(&self, handle: &vfs::Handle) -> Option<Vec<u8>> {
        self.tree.path_of(handle)
    }

    /// Can callers of any uid be served, or only those of the process's uid?
    pub fn serves_all_users() -> bool {
        identity::is_privileged()
    }
}

impl Drop for LocalFs {
    fn drop(&mut self) {
        drop(self.sweeper.take());
        self.tree.sync_table();
    }
}
