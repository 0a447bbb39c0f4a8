//! A directory of this machine as a [`vfs::FileSystem`].
//!
//! [`LocalFs`] answers for the files below one directory: by the kernel's own file handles, with the rights of each
//! caller, and with nothing acknowledged that is not durable. What it promises, and what it cannot:
//!
//! - **Handles** survive restarts and renames, and are stale when the inode is gone. A process without
//!   `CAP_DAC_READ_SEARCH`, or a file system without handles, gets them through a table of names, kept in
//!   [`Options::state`]; those are found again as long as names change through us.
//! - **Rights** are the kernel's own decision for the caller's user and groups, with the two exceptions that NFS
//!   servers make (the owner reads and writes; who executes reads). A process that is not root serves its own user alone.
//!   The kernel's `fs.protected_hardlinks` applies to callers as to local users.
//! - **Weak cache consistency** data is atomic with regard to all operations through the same [`LocalFs`]. Processes of
//!   this machine that change the same files cannot be excluded, nor a second [`LocalFs`] over them.
//! - **Change** grows with every change made through us and never goes back, also across restarts, unless the clock is
//!   set back. It is ctime, or made from it: see `change_attribute`.
//! - **Opens** keep what was allowed when they were made, and keep a file that loses its last name for everybody who
//!   has its handle. Share reservations and locks among clients are the business of the layer above; processes of this
//!   machine see neither.
//! - **Leases** are granted on regular files once somebody takes the callbacks. A process of this machine that opens or
//!   truncates a leased file waits for the lease to come back, where the kernel's own leases work for us (as root or
//!   owner, on file systems that have them). Its renames, links, removals and changes of attributes are not noticed.
//! - **Extended attributes** are those of `user.`; there are no access control lists.
//! - **Durability**: with [`Options::sync`] every change of metadata is on the disk before it is acknowledged; data is
//!   when its stability says so, or after COMMIT.
//!
//! Files in use are kept open for up to a minute after their last use: so long a file system below cannot be unmounted
//! without force, and a file that a process of this machine removes keeps its space. One that was written can be run on
//! this machine some seconds later.
//!
//! Meant for file systems on this machine: what is answered without a thread would wait for those of others. Needs
//! Linux 5.8, `/proc`, and a tokio runtime. Opening the first directory starts threads that live as long as the
//! process, and raises its limit of open files. Taking the callbacks installs a handler for `SIGIO`.

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
mod sys;
mod tree;
mod watch;
mod workers;
mod xattr;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sweeper::Sweeper;
use crate::tree::Tree;

/// How a directory is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory of its own for what must survive a restart: the table of handles, if one is needed. Made when first
    /// needed.
    pub state: PathBuf,
    /// Serve what is mounted below the directory too, each file system with an fsid of its own. Without it clients see
    /// the directories underneath (or, if the process may not make mounts, get `Access` there).
    pub crossmnt: bool,
    /// `sync` of exports(5): changes of names and attributes are on the disk before they are acknowledged. Without it a
    /// machine that loses power forgets some that were.
    pub sync: bool,
    /// Where handles come from.
    pub handles: HandleKind,
    /// Most files kept open between operations, three descriptors each; less where the limit of open files demands. A
    /// server of several directories divides what there is among them.
    pub descriptors_max: usize,
    /// Most files that clients have open (three descriptors each) or leased (two), which are kept beyond that; less where
    /// the limit of open files does not leave as many. A sixteenth is left to files without a lease.
    pub opened_max: usize,
    /// Most leases; less where `opened_max` or the limit of open files demands. Near it, or near those, the one that was
    /// of use for longest ago is recalled for each new one.
    pub leases_max: usize,
    /// Most files known to the table of handles; about 200 bytes of memory each.
    pub table_entries_max: usize,
}

impl Options {
    /// What is usual, with this directory for durable state.
    pub fn new(state: impl Into<PathBuf>) -> Options {
        Options {
            state: state.into(),
            crossmnt: true,
            sync: true,
            handles: HandleKind::Kernel,
            descriptors_max: 4096,
            opened_max: 1 << 18,
            leases_max: 1 << 17,
            table_entries_max: 1 << 20,
        }
    }
}

/// Where handles come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandleKind {
    /// From the kernel, where the process may and the file system can; else from the table.
    #[default]
    Kernel,
    /// From the table, always.
    Table,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory itself.
    #[error("cannot serve {}: {cause}; it must be a directory that this user may read", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        cause: std::io::Error,
    },
    /// The directory for durable state.
    #[error("cannot keep file handles in {}: {cause}; give a directory that this user may write and no other server uses", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        cause: std::io::Error,
    },
    /// `/proc`.
    #[error("cannot use /proc/self/fd: {0}; mount /proc")]
    Proc(std::io::Error),
    /// Threads.
    #[error("cannot start threads: {0}; raise the limit of processes")]
    Threads(std::io::Error),
    /// The kernel lacks something.
    #[error("the kernel has no handle for the directory; Linux 5.8 or later is needed")]
    Kernel,
}

/// A directory of this machine as a file system.
pub struct LocalFs {
    // Dropped first: afterwards nobody else refers to the tree.
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

    /// The fsid that clients see for the directory's own file system: the same after a restart.
    pub fn fsid(&self) -> u64 {
        self.tree.mounts.root().fsid
    }

    /// Can callers of any uid be served, or only that of the process?
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
