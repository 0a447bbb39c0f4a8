//! A file system in memory as a [`vfs::FileSystem`]: the smallest complete back end.
//!
//! [`Memory`] is one tree of files behind one lock. It is simple rather than fast. Its guarantees and their
//! limits:
//!
//! - **Contents** end with the process. Handles of an earlier [`Memory`] are stale, so nobody can mistake a
//!   new file for an old one. A call that was sent to an earlier process ([`vfs::Caller::resent`]) finds
//!   stale handles too and needs no treatment.
//! - **Handles** name a file until it has neither a name nor an open.
//! - **Rights** are those of mode, owner and groups, with the two exceptions of NFS servers: the owner may
//!   read and write, and execute permission implies read. [`vfs::Principal::Machine`] is root.
//! - **Change** is ctime in nanoseconds. No two changes of a [`Memory`] have the same ctime, even if the
//!   clock stands still or is set back. Weak cache consistency data always has the state before.
//! - **Times**: a read does not change atime.
//! - **Opens** keep the rights that were checked at the open, and keep a file without a name. The layer above
//!   decides about share reservations and locks.
//! - **Leases** are granted to every open and are never recalled: all changes come through the one layer
//!   above, which decides among its clients. They reserve no space, so their holder may delay no data beyond
//!   a close.
//! - **Durability**: every write is as durable as the process. The write verifier changes with the process.
//! - **Bounds**: see [`Options`]. Beyond them, operations fail with `NoSpc` or `Resource`. A hole takes as
//!   many bytes as data.

mod filesystem;
mod names;
mod opens;
mod rights;
mod tree;

use std::sync::Arc;

use parking_lot::Mutex;
use vfs::{Clock, Error, Handle, Result, Status, SystemClock};

use crate::tree::{Id, Tree};

/// The bounds of a file system, and its clock.
#[derive(Clone)]
pub struct Options {
    /// Limit of bytes: data, targets of symbolic links, and names with 32 bytes for each.
    pub bytes_max: u64,
    /// Limit of files of any type, the root included.
    pub files_max: u64,
    /// Limit of opens. An open takes a few hundred bytes.
    pub opens_max: usize,
    /// Where the timestamps of files come from.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    /// 256 MiB, 65,536 files, and the machine's clock.
    fn default() -> Options {
        Options { bytes_max: 256 << 20, files_max: 1 << 16, opens_max: 1 << 16, clock: Arc::new(SystemClock) }
    }
}

/// A file system in memory. See the module.
pub struct Memory {
    tree: Mutex<Tree>,
}

impl Memory {
    /// An empty file system. Its root belongs to root and has mode 755.
    pub fn new(options: Options) -> Memory {
        Memory { tree: Mutex::new(Tree::new(options)) }
    }

    /// Runs an operation on the file of a handle. Its failure carries the attributes of that file.
    fn with<T>(
        &self,
        handle: &Handle,
        operation: impl FnOnce(&mut Tree, Id) -> Result<T, Status>,
    ) -> Result<T> {
        let mut tree = self.tree.lock();
        let id = tree.id(handle)?;
        operation(&mut tree, id).map_err(|status| Error::from(status).with(tree.attributes(id).ok()))
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new(Options::default())
    }
}
