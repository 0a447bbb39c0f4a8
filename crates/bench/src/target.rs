//! What a workload works on: a file system, as a program sees it.
//!
//! Two things are one: [`Mounted`], any directory of this machine, through the kernel; and [`Unmounted`], our own client
//! (or any [`vfs::FileSystem`]) without any mount, with a memory between that behaves as that of a kernel's NFS client.
//! Calls block, as system calls do: a workload is written as a program is, with a thread for each of its threads.
//! Paths are relative, their components joined by `/`.

mod mounted;
mod unmounted;

use std::io;
use std::path::Path;

pub use mounted::{Forgetting, Mounted};
pub use unmounted::{Habits, Unmounted};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// To read what is there.
    Read,
    /// To read and write what is there.
    Update,
    /// To write anew: made if it is not there, emptied if it is.
    Create,
    /// To read and write; made if it is not there.
    Append,
}

impl How {
    /// Are writes allowed?
    pub fn writes(self) -> bool {
        self != How::Read
    }

    /// Is a file made that is not there?
    pub fn makes(self) -> bool {
        matches!(self, How::Create | How::Append)
    }
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Or else a file.
    pub is_dir: bool,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Where the listing told.
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
    /// Empties this machine's memory of file data (not a cache on disk), as if little memory were left.
    fn forget(&self) -> io::Result<()>;
    /// Where programs find it, if they do.
    fn directory(&self) -> Option<&Path>;
}

/// An open file.
pub trait OpenFile: Send {
    /// `pread`: 0 is the end of the file.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// `pwrite` of all of it.
    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Bytes, as `fstat` tells.
    fn size(&mut self) -> io::Result<u64>;
    /// `fsync`
    fn sync(&mut self) -> io::Result<()>;
    /// A lock on the whole file, for reading or (`exclusive`) writing; waits for it.
    fn lock(&mut self, exclusive: bool) -> io::Result<()>;
    /// Gives it up.
    fn unlock(&mut self) -> io::Result<()>;
    /// `close`, with the errors of writes that had not been told.
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

/// `rm -r`; nothing at all is fine too.
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
