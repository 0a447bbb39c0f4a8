//! A directory of this machine: what is mounted there is the kernel's business.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, fadvise, fcntl_lock};

use super::{How, Listed, OpenFile, Stat, Target};

/// What is to leave memory when file data is to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    /// Data of every file there is: what was not opened here may be in memory too, and to open it costs nothing.
    Everything,
    /// Data of those that have been opened: with a server behind, to open others would be more than forgetting.
    WhatWasOpened,
    /// All of the machine's, which is ours alone.
    WholeMachine,
}

/// See the module.
#[derive(Debug)]
pub struct Mounted {
    directory: PathBuf,
    forgetting: Forgetting,
    /// What has been opened, where that is wanted.
    opened: Mutex<BTreeSet<PathBuf>>,
    /// Where a cache of it is on this machine's disk.
    cache: Option<PathBuf>,
}

impl Mounted {
    /// The directory, which exists.
    pub fn new(directory: impl Into<PathBuf>, forgetting: Forgetting) -> Mounted {
        Mounted { directory: directory.into(), forgetting, opened: Mutex::default(), cache: None }
    }

    /// It has a cache there, whose files are to leave memory too.
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

    /// File data alone: attributes and names are the kernel's to keep.
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

/// What is gone is forgotten.
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
    file.sync_all()?; // dirty pages are not dropped
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
        // The kernel's own close tells errors of write-back; so does a descriptor that is closed as the last of a copy.
        rustix::io::dup(&*self).map(drop)?;
        drop(self);
        Ok(())
    }
}
