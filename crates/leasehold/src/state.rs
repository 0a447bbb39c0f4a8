//! Where Leasehold keeps what must last: directories of its own, by default where the system wants them.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::Failure;

/// What kind of thing is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Can be fetched again.
    Cache,
    /// Cannot.
    State,
}

/// The default directory for `name`: below /var for root, below the home directory for others.
pub fn default_directory(kind: Kind, name: &str) -> Result<PathBuf, Failure> {
    let (system, variable, home) = match kind {
        Kind::Cache => ("/var/cache", "XDG_CACHE_HOME", ".cache"),
        Kind::State => ("/var/lib", "XDG_STATE_HOME", ".local/state"),
    };
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from(system)
    } else if let Some(base) = std::env::var_os(variable) {
        PathBuf::from(base)
    } else {
        let home_directory = std::env::var_os("HOME").ok_or_else(|| {
            Failure(format!("no place for data: HOME and {variable} are not set; name a directory"))
        })?;
        Path::new(&home_directory).join(home)
    };
    Ok(base.join("leasehold").join(name))
}

/// A file name made of a path or URL.
pub fn file_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    text.trim_start_matches("nfs://").trim_matches('/').chars().map(plain).take(200).collect()
}

/// Makes a directory that only we may enter.
pub fn make(directory: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| {
        Failure(format!(
            "cannot make {}: {error}; name another directory, or make it writable",
            directory.display()
        ))
    })
}

/// Keeps other processes out of a directory until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Locks a state directory.
///
/// # Errors
/// If another process holds it.
pub fn lock(directory: &Path) -> Result<Lock, Failure> {
    let path = directory.join("lock");
    let unusable =
        |error: io::Error| Failure(format!("cannot use {}: {error}; name another directory", path.display()));
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(unusable)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { _file: file }),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure(format!(
            "{} is in use by another leasehold: stop that one, or give this one a directory of its own",
            directory.display()
        ))),
        Err(error) => Err(unusable(error.into())),
    }
}
