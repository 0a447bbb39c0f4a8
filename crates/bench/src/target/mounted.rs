//! A directory of this machine: what is mounted there is the kernel's business.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FlockOperation, fadvise, fcntl_lock};

use super::{How, Listed, OpenFile, Stat, Target};

/// See the module.
#[derive(Clone, Debug)]
pub struct Mounted {
    directory: PathBuf,
}

impl Mounted {
    /// The directory, which exists.
    pub fn new(directory: impl Into<PathBuf>) -> Mounted {
        Mounted { directory: directory.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.directory.clone() } else { self.directory.join(path) }
    }
}

impl Target for Mounted {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile + '_>> {
        let mut options = OpenOptions::new();
        options.read(true).write(how.writes()).create(how.makes()).truncate(how == How::Create);
        Ok(Box::new(options.open(self.path(path))?))
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
        forget_below(&self.directory)
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }
}

fn forget_below(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget_below(&entry.path())?;
        } else if entry.file_type()?.is_file() {
            let file = File::open(entry.path())?;
            file.sync_all()?; // dirty pages are not dropped
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
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
