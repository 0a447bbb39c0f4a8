//! A file system that is computed from a seed, as a [`vfs::FileSystem`]: a tree of any size without a disk.
//!
//! [`Synthetic`] is an origin for measurements. Its root has directories, and each directory has files
//! ([`Shape`]). Names, attributes and bytes are functions of the seed and of a number, so an operation takes
//! the same time in a tree of any size, and a file takes no memory. What clients change is in an overlay in
//! memory. Its guarantees and their limits:
//!
//! - **Contents**: the same [`Shape`] is the same tree, in every process and on every machine. Changes end
//!   with the process. The next process serves the computed tree again, as after a restored backup: discard
//!   caches of the changed one.
//! - **Handles** of computed files hold in every process. Handles of files that clients made end with the
//!   process. A handle names its file until the file has neither a name nor an open.
//! - **Rights**: none are checked. Every caller may do everything. Owner and mode are attributes like others.
//! - **Change** is ctime in nanoseconds. No two changes have the same ctime, even if the clock stands still
//!   or is set back. A computed ctime is in January 2020. Weak cache consistency data always has the state
//!   before.
//! - **Times**: a read does not change atime.
//! - **Opens** keep a file without a name. The layer above decides about share reservations and locks.
//! - **Leases** are granted to every open and are never recalled: all changes come through the one layer
//!   above, which decides among its clients. A lease takes no memory here. It reserves no space, so its
//!   holder may delay no data beyond a close.
//! - **Durability**: every write is as durable as the process. The write verifier changes with the process.
//! - **Bounds**: see [`Options`]. Beyond them, operations fail with `NoSpc` or `Resource`. The first write to
//!   a computed file takes all its bytes.
//!
//! [`Script`] computes a sequence of changes in the same way, for a client to play.

mod filesystem;
mod listing;
mod names;
mod opens;
mod script;
mod shape;
mod tree;

use std::sync::Arc;

use parking_lot::Mutex;
use vfs::{Clock, Error, Handle, Result, Status, SystemClock};

pub use crate::script::{Change, Script};
pub use crate::shape::{Shape, ShapeError};
use crate::tree::{Id, Tree};

/// The bounds of the changes, and the clock.
#[derive(Clone)]
pub struct Options {
    /// Limit of the records of changes: a changed, new or removed object, and an added or removed name. A
    /// record takes a few hundred bytes.
    pub records_max: u64,
    /// Limit of the bytes of changed files and of the targets of symbolic links.
    pub bytes_max: u64,
    /// Limit of opens. An open takes a few hundred bytes.
    pub opens_max: usize,
    /// Where the timestamps of changes come from.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    /// 262,144 records, 256 MiB, 1,048,576 opens, and the machine's clock.
    fn default() -> Options {
        Options {
            records_max: 1 << 18,
            bytes_max: 256 << 20,
            opens_max: 1 << 20,
            clock: Arc::new(SystemClock),
        }
    }
}

/// A computed file system with the changes of its clients. See the module.
pub struct Synthetic {
    tree: Mutex<Tree>,
}

impl Synthetic {
    /// The tree of a shape, with the default bounds.
    pub fn new(shape: Shape) -> Synthetic {
        Synthetic::with_options(shape, Options::default())
    }

    /// The tree of a shape.
    pub fn with_options(shape: Shape, options: Options) -> Synthetic {
        Synthetic { tree: Mutex::new(Tree::new(shape, options)) }
    }

    /// Runs an operation on the object of a handle. Its failure carries the attributes of that object.
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
