//! Trees of files that workloads start with.

use std::io;

use super::source::Source;
use super::{STEP_BYTES, write_file};
use crate::random::Random;
use crate::target::{Target, make_all};

/// Writes a source tree below `at`.
pub(super) fn put_source(target: &dyn Target, at: &str, source: &Source) -> io::Result<()> {
    make_all(target, at)?;
    source.directories.iter().try_for_each(|name| target.mkdir(&format!("{at}/{name}")))?;
    source
        .files()
        .try_for_each(|(name, text)| write_file(target, &format!("{at}/{name}"), text.as_bytes(), STEP_BYTES))
}

/// Files of random sizes, `width` in each directory, as in filebench's file sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSet {
    pub(super) files: u64,
    /// Mean of the file sizes, which have filebench's (gamma) distribution.
    pub(super) mean_bytes: u64,
    /// Files per directory.
    pub(super) width: u64,
}

impl FileSet {
    /// The path of a file; `at` is the directory of the set.
    pub(super) fn path(&self, at: &str, file: u64) -> String {
        format!("{at}/{:04}/{file:06}", file / self.width.max(1))
    }

    /// Writes all files.
    pub(super) fn put(&self, target: &dyn Target, at: &str, random: &mut Random) -> io::Result<()> {
        for file in 0..self.files {
            if file % self.width.max(1) == 0 {
                make_all(target, &format!("{at}/{:04}", file / self.width.max(1)))?;
            }
            let most = self.mean_bytes * 10;
            let size = (random.exponential(self.mean_bytes as f64) as u64).clamp(1, most) as usize;
            write_file(target, &self.path(at, file), &random.bytes(size), STEP_BYTES)?;
        }
        Ok(())
    }
}

/// Files of one size in one directory, identified by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    /// The directory.
    pub(super) at: &'static str,
    pub(super) bytes: usize,
}

impl Numbered {
    /// The path of a file.
    pub(super) fn path(&self, file: u64) -> String {
        format!("{}/{file}", self.at)
    }

    /// Writes `files` files.
    pub(super) fn put(&self, target: &dyn Target, files: u64, random: &mut Random) -> io::Result<()> {
        make_all(target, self.at)?;
        (0..files)
            .try_for_each(|file| write_file(target, &self.path(file), &random.bytes(self.bytes), self.bytes))
    }
}

/// Writes one large file.
pub(super) fn put_large(target: &dyn Target, path: &str, bytes: u64, random: &mut Random) -> io::Result<()> {
    if let Some((directory, _)) = path.rsplit_once('/') {
        make_all(target, directory)?;
    }
    let mut file = target.open(path, crate::target::How::Create)?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let count = (bytes - offset).min(buffer.len() as u64);
        random.fill(&mut buffer[..count as usize]);
        file.write_at(&buffer[..count as usize], offset)?;
        offset += count;
    }
    file.close()
}

/// Lists all files and all directories below a directory, by path, parents first.
pub(super) fn walk(target: &dyn Target, at: &str) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut files, mut directories) = (Vec::new(), vec![at.to_owned()]);
    let mut next = 0;
    while let Some(directory) = directories.get(next).cloned() {
        next += 1;
        for entry in target.list(&directory)? {
            let path = format!("{directory}/{}", entry.name);
            if entry.is_dir { directories.push(path) } else { files.push(path) }
        }
    }
    Ok((files, directories))
}
