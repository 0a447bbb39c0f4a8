//! The cache directory: which origin it belongs to, which process uses it, and where things are.
//!
//! ```text
//! DIR/lock      flock'ed by the process that uses the directory; holds its process id
//! DIR/format    version and origin
//! DIR/index     the index; also `index.corrupt-N`, put aside, and `index.dropped`, being deleted
//! DIR/objects   the data
//! DIR/pins      the objects that an administrator has pinned
//! DIR/writeback the journal of delayed writes
//! DIR/conflicts delayed writes that could not be sent
//! DIR/state     the state of a server over the cache; the cache itself does not use it
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};

use super::index::is_full_error;

const FORMAT: &str = "leasehold-cache 1";
const OURS: [&str; 9] =
    ["lock", "format", "index", "index.dropped", "objects", "state", "pins", "writeback", "conflicts"];

/// Why a cache directory cannot be used: one line that names the thing, the cause and the way out.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made, read or written.
    #[error("cache directory {path}: {cause}; give a directory on a writable disk with --cache")]
    Unusable {
        /// The directory, or something in it.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// There is no space to make the directory.
    #[error(
        "cache directory {0}: its disk is full; make space there, or give another directory with --cache"
    )]
    Full(PathBuf),
    /// Another process uses the directory.
    #[error(
        "cache directory {path} is in use by process {process}; stop that one, or give another directory with --cache"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that uses it.
        process: String,
    },
    /// The directory holds the files of another origin.
    #[error(
        "cache directory {path} belongs to {theirs}, not to {ours}; give another directory with --cache, or remove it"
    )]
    OtherOrigin {
        /// The directory.
        path: PathBuf,
        /// The origin that it belongs to.
        theirs: String,
        /// The origin that was asked for.
        ours: String,
    },
    /// A later version made the directory.
    #[error(
        "cache directory {path} has format \"{format}\", which this version does not know; use the version that made it, or remove it"
    )]
    UnknownFormat {
        /// The directory.
        path: PathBuf,
        /// The contents of its format file.
        format: String,
    },
    /// The directory is not a cache.
    #[error("{0} is no cache directory; name that of a proxy or a mount: its --cache, or `cache=`")]
    NoCache(PathBuf),
    /// The directory holds other files.
    #[error(
        "{path} is not a cache directory: it contains {found}; give an empty or a new directory with --cache"
    )]
    NotACache {
        /// The directory.
        path: PathBuf,
        /// A file that is no part of a cache.
        found: String,
    },
    /// The name of the origin cannot be written to a file.
    #[error("the name of the origin must be one line, not {0:?}")]
    BadOrigin(String),
    /// The index could neither be opened nor put aside.
    #[error("cache index {path}: {cause}; remove {path}, nothing but cached data is in it")]
    Index {
        /// The index.
        path: PathBuf,
        /// The error.
        cause: String,
    },
}

/// A cache directory that belongs to this process for as long as this value exists.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// There was no space to write the origin into the directory.
    unmarked: AtomicBool,
    _lock: File,
}

impl Directory {
    /// Takes the directory for an origin. Creates it if it does not exist.
    pub fn open(path: &Path, origin: &str) -> Result<Directory, OpenError> {
        if origin.is_empty() || origin.contains(['\n', '\0']) {
            return Err(OpenError::BadOrigin(origin.into()));
        }
        let unusable = |cause: io::Error| match cause.kind() {
            kind if is_full_error(kind) => OpenError::Full(path.into()),
            _ => OpenError::Unusable { path: path.into(), cause },
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        check_contents(path)?;
        let lock = take_lock(path)?;
        let marked = unless_full(check_format(path, origin))?;
        // The subdirectory of each data file is made with the file.
        let made = std::fs::create_dir_all(path.join("objects"));
        unless_full(made.map_err(unusable))?;
        Ok(Directory { path: path.into(), unmarked: AtomicBool::new(!marked), _lock: lock })
    }

    /// Writes the origin into the directory, if there was no space for that when it was taken.
    pub fn mark(&self, origin: &str) {
        if self.unmarked.load(Ordering::Relaxed) && write_format(&self.path, origin).is_ok() {
            self.unmarked.store(false, Ordering::Relaxed);
        }
    }

    /// Takes a directory that is already a cache, whatever its origin. Returns the origin, too.
    ///
    /// # Errors
    /// As [`Directory::open`]. A directory that is not a cache is left unchanged.
    pub fn reopen(path: &Path) -> Result<(Directory, String), OpenError> {
        let unusable = |cause| OpenError::Unusable { path: path.into(), cause };
        let found = match std::fs::read(path.join("format")) {
            Ok(found) => found,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::NoCache(path.into()));
            }
            Err(cause) => return Err(unusable(cause)),
        };
        let found = String::from_utf8_lossy(&found).into_owned();
        let origin = found.lines().nth(1).and_then(|line| line.strip_prefix("origin "));
        let origin = origin.unwrap_or_default().to_owned();
        judge_format(path, &origin, &found)?;
        Ok((Directory::open(path, &origin)?, origin))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the index.
    pub fn index(&self) -> PathBuf {
        self.path.join("index")
    }

    /// The path of the journal of delayed writes.
    pub fn writeback(&self) -> PathBuf {
        self.path.join("writeback")
    }

    /// The path of the delayed writes that could not be sent.
    pub fn conflicts(&self) -> PathBuf {
        self.path.join("conflicts")
    }

    /// The path of the data.
    pub fn objects(&self) -> PathBuf {
        self.path.join("objects")
    }
}

/// False if the operation failed for lack of space, which is no reason to give up.
fn unless_full(result: Result<(), OpenError>) -> Result<bool, OpenError> {
    match result {
        Ok(()) => Ok(true),
        Err(OpenError::Full(_)) => Ok(false),
        Err(OpenError::Unusable { cause, .. }) if is_full_error(cause.kind()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Has there been a cache in this directory?
pub fn is_there(path: &Path) -> bool {
    path.join("format").exists()
}

/// Refuses a directory that holds other files, before anything is written there.
fn check_contents(path: &Path) -> Result<(), OpenError> {
    let unusable = |cause| OpenError::Unusable { path: path.into(), cause };
    if is_there(path) {
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        if !OURS.iter().any(|ours| name == *ours) && name != "format.new" && name != "lost+found" {
            return Err(OpenError::NotACache { path: path.into(), found: name.to_string_lossy().into() });
        }
    }
    Ok(())
}

fn take_lock(path: &Path) -> Result<File, OpenError> {
    let unusable = |cause| OpenError::Unusable { path: path.join("lock"), cause };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut lock = options.open(path.join("lock")).map_err(unusable)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::AGAIN) => {
            let mut process = String::new();
            let _ = lock.take(32).read_to_string(&mut process);
            let process = process.trim();
            let process = if process.is_empty() { "of unknown number" } else { process };
            return Err(OpenError::InUse { path: path.into(), process: process.into() });
        }
        Err(errno) => return Err(unusable(errno.into())),
    }
    let write = |lock: &mut File| {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())
    };
    match write(&mut lock) {
        // The lock is held all the same. Only the process id is missing.
        Err(cause) if is_full_error(cause.kind()) => Ok(lock),
        written => written.map(|()| lock).map_err(unusable),
    }
}

fn check_format(path: &Path, origin: &str) -> Result<(), OpenError> {
    let file = path.join("format");
    match std::fs::read(&file) {
        Ok(found) => judge_format(path, origin, &String::from_utf8_lossy(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write_format(path, origin).map_err(|cause| OpenError::Unusable { path: file, cause })
        }
        Err(cause) => Err(OpenError::Unusable { path: file, cause }),
    }
}

fn judge_format(path: &Path, origin: &str, found: &str) -> Result<(), OpenError> {
    let mut lines = found.lines();
    let format = lines.next().unwrap_or_default();
    let theirs = lines.next().and_then(|line| line.strip_prefix("origin "));
    let Some(theirs) = theirs.filter(|_| format == FORMAT) else {
        let format = format.chars().take(60).collect();
        return Err(OpenError::UnknownFormat { path: path.into(), format });
    };
    if theirs != origin {
        return Err(OpenError::OtherOrigin { path: path.into(), theirs: theirs.into(), ours: origin.into() });
    }
    Ok(())
}

/// Writes the file completely or not at all.
fn write_format(path: &Path, origin: &str) -> io::Result<()> {
    let new = path.join("format.new");
    let mut file = File::create(&new)?;
    write!(file, "{FORMAT}\norigin {origin}\n")?;
    file.sync_all()?;
    std::fs::rename(new, path.join("format"))?;
    File::open(path)?.sync_all()
}

/// Identifies the current boot of the machine. After another boot, data that was not synced may be lost.
pub fn boot_id() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u64::from(crc32c::crc32c(&id)) | u64::from(crc32c::crc32c_append(1, &id)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "nfs://host/export";

    #[test]
    fn a_directory_is_taken_once_and_comes_back() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let first = Directory::open(&path, ORIGIN).unwrap();
        let error = Directory::open(&path, ORIGIN).unwrap_err();
        assert!(error.to_string().contains(&format!("in use by process {}", std::process::id())), "{error}");
        drop(first);
        Directory::open(&path, ORIGIN).unwrap();
    }

    #[test]
    fn foreign_directories_are_refused_in_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::write(path.join("thesis.tex"), "").unwrap();
        let error = Directory::open(path, ORIGIN).unwrap_err();
        assert!(matches!(error, OpenError::NotACache { .. }), "{error}");
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 1, "nothing was written");
        std::fs::remove_file(path.join("thesis.tex")).unwrap();

        drop(Directory::open(path, ORIGIN).unwrap());
        let error = Directory::open(path, "nfs://other/export").unwrap_err();
        assert!(matches!(error, OpenError::OtherOrigin { .. }), "{error}");
        assert!(error.to_string().contains("belongs to nfs://host/export, not to nfs://other/export"));

        for damaged in ["leasehold-cache 99\norigin x\n", "", "leasehold-cache 1\n", "\u{fffd}\u{0}"] {
            std::fs::write(path.join("format"), damaged).unwrap();
            let error = Directory::open(path, ORIGIN).unwrap_err();
            assert!(matches!(error, OpenError::UnknownFormat { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let error = Directory::open(Path::new("/proc/leasehold"), ORIGIN).unwrap_err();
        assert!(matches!(error, OpenError::Unusable { .. }), "{error}");
        assert!(matches!(Directory::open(Path::new("/tmp"), "a\nb"), Err(OpenError::BadOrigin(_))));
    }
}
