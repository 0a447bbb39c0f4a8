//! A directory of this machine, used through the kernel, whatever is mounted there.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, fadvise, fcntl_lock};

use super::{How, Listed, OpenFile, Stat, Target};

/// Which file data `forget` drops from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    /// Data of every file. Files that were not opened here may be in memory too, and opening them is cheap.
    Everything,
    /// Data of the files that were opened here. With a server behind the mount, opening other files would
    /// send calls.
    WhatWasOpened,
    /// Data of the entire machine, which nothing else may use.
    WholeMachine,
}

/// A target in a directory; see the module.
#[derive(Debug)]
pub struct Mounted {
    directory: PathBuf,
    forgetting: Forgetting,
    /// The files that were opened, if `forgetting` needs them.
    opened: Mutex<BTreeSet<PathBuf>>,
    /// The directory of its disk cache on this machine.
    cache: Option<PathBuf>,
}

impl Mounted {
    /// A target in an existing directory.
    pub fn new(directory: impl Into<PathBuf>, forgetting: Forgetting) -> Mounted {
        Mounted { directory: directory.into(), forgetting, opened: Mutex::default(), cache: None }
    }

    /// Sets the directory of its disk cache. `forget` drops the cache files from memory too.
    #[must_use]
    pub fn with_cache(mut self, cache: impl Into<PathBuf>) -> Mounted {
        self.cache = Some(cache.into());
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.directory.clone() } else { self.directory.join(path) }
    }
}

impl Target for Mounted {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile + '_>> {
        let mut options = OpenOptions::new();
        options.read(true).write(how.writes()).create(how.makes()).truncate(how == How::Create);
        let path = self.path(path);
        let file = options.open(&path)?;
        if self.forgetting == Forgetting::WhatWasOpened {
            self.opened.lock().insert(path);
        }
        Ok(Box::new(file))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        let metadata = fs::symlink_metadata(self.path(path))?;
        Ok(Stat { size: metadata.len(), is_dir: metadata.is_dir() })
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        let entries = fs::read_dir(self.path(path))?.map(|entry| {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok(Listed { name, is_dir: entry.file_type()?.is_dir() })
        });
        let mut entries = entries.collect::<io::Result<Vec<Listed>>>()?;
        entries.sort();
        Ok(entries)
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.path(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.path(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    /// Drops only file data. The kernel keeps attributes and names.
    fn forget(&self) -> io::Result<()> {
        match self.forgetting {
            Forgetting::Everything => forget_below(&self.directory),
            Forgetting::WholeMachine => {
                rustix::fs::sync();
                fs::write("/proc/sys/vm/drop_caches", "1")
            }
            Forgetting::WhatWasOpened => {
                let opened = std::mem::take(&mut *self.opened.lock());
                opened.iter().try_for_each(|path| forget_file(path))?;
                self.cache.as_deref().map_or(Ok(()), forget_below)
            }
        }
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }
}

/// Drops the data of all files below a directory; a missing directory is no error.
fn forget_below(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget_below(&entry.path())?;
        } else if entry.file_type()?.is_file() {
            forget_file(&entry.path())?;
        }
    }
    Ok(())
}

fn forget_file(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    file.sync_all()?; // the kernel does not drop dirty pages
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

impl OpenFile for File {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn size(&mut self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }

    fn lock(&mut self, exclusive: bool) -> io::Result<()> {
        let operation = if exclusive { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        Ok(fcntl_lock(&*self, operation)?)
    }

    fn unlock(&mut self) -> io::Result<()> {
        Ok(fcntl_lock(&*self, FlockOperation::Unlock)?)
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        // Closing a copy of the descriptor makes NFS and FUSE flush the file. Errors of that flush are
        // discarded.
        rustix::io::dup(&*self).map(drop)?;
        drop(self);
        Ok(())
    }
}
