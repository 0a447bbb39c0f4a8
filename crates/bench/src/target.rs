//! The target of a workload: a file system, as a program sees it.
//!
//! There are two targets. [`Mounted`] is any directory of this machine, used through the kernel.
//! [`Unmounted`] is our own client, or any [`vfs::FileSystem`], without a mount. It has a cache that behaves
//! like that of a kernel's NFS client.
//!
//! Calls block, as system calls do, so a workload is written like a program: one thread for each of its
//! threads. Paths are relative, with components separated by `/`.

mod mounted;
mod unmounted;

use std::io;
use std::path::Path;

pub use mounted::{Forgetting, Mounted};
pub use unmounted::{Habits, Unmounted};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// For reading an existing file.
    Read,
    /// For reading and writing an existing file.
    Update,
    /// For writing a new file: created if missing, truncated if it exists.
    Create,
    /// For reading and writing; created if missing.
    Append,
}

impl How {
    /// True if the mode permits writes.
    pub fn writes(self) -> bool {
        self != How::Read
    }

    /// True if the mode creates a missing file.
    pub fn makes(self) -> bool {
        matches!(self, How::Create | How::Append)
    }
}

/// The result of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Size in bytes.
    pub size: u64,
    /// True for a directory, false for a file.
    pub is_dir: bool,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// True for a directory, if the listing contained the type.
    pub is_dir: bool,
}

/// A file system. Errors are those of the system calls of the same names.
pub trait Target: Send + Sync {
    /// `open`
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile + '_>>;
    /// `stat`
    fn stat(&self, path: &str) -> io::Result<Stat>;
    /// `opendir`, `readdir` to the end, `closedir`; sorted by name.
    fn list(&self, path: &str) -> io::Result<Vec<Listed>>;
    /// `mkdir`
    fn mkdir(&self, path: &str) -> io::Result<()>;
    /// `unlink`
    fn remove(&self, path: &str) -> io::Result<()>;
    /// `rmdir`
    fn rmdir(&self, path: &str) -> io::Result<()>;
    /// `rename`
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Drops file data from this machine's memory, but not from a disk cache, as under memory pressure.
    fn forget(&self) -> io::Result<()>;
    /// The directory in which programs can access it, if there is one.
    fn directory(&self) -> Option<&Path>;
}

/// An open file.
pub trait OpenFile: Send {
    /// `pread`: 0 is the end of the file.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// `pwrite` of all of `data`.
    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Size in bytes, as returned by `fstat`.
    fn size(&mut self) -> io::Result<u64>;
    /// `fsync`
    fn sync(&mut self) -> io::Result<()>;
    /// Locks the entire file, for reading or (`exclusive`) for writing; waits for the lock.
    fn lock(&mut self, exclusive: bool) -> io::Result<()>;
    /// Releases the lock.
    fn unlock(&mut self) -> io::Result<()>;
    /// `close`. Returns errors of earlier writes that were not reported yet.
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// `mkdir -p`
pub fn make_all(target: &dyn Target, path: &str) -> io::Result<()> {
    for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
        match target.mkdir(&path[..at]) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// `rm -r`; a missing path is no error.
pub fn remove_all(target: &dyn Target, path: &str) -> io::Result<()> {
    let listed = match target.list(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for entry in listed {
        let path = format!("{path}/{}", entry.name);
        if entry.is_dir { remove_all(target, &path)? } else { target.remove(&path)? }
    }
    target.rmdir(path)
}
