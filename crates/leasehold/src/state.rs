//! Where Leasehold keeps what must last: directories of its own, by default where the system wants them.

pub mod private;

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::time::Instant;

use crate::Failure;
use crate::departure::{Stage, Stuck, Waiting};

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

/// Does the system say that there is no space?
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes a directory that only we may enter.
pub fn make(directory: &Path) -> Result<(), Failure> {
    try_make(directory)?.map_err(|_| {
        Failure(format!(
            "cannot make {}: its disk is full; make space there, or name another directory",
            directory.display()
        ))
    })
}

/// The same. The inner error: there is no space.
pub fn try_make(directory: &Path) -> Result<Result<(), io::Error>, Failure> {
    private::check_link(directory)?;
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Ok(()) => private::secure(directory).map(Ok),
        Err(error) if is_full(&error) => Ok(Err(error)),
        Err(error) => Err(Failure(format!(
            "cannot make {}: {error}; name another directory, or make it writable",
            directory.display()
        ))),
    }
}

/// Keeps other processes out of a directory until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// The lock is held until the process has ended.
    pub fn until_exit(self) {
        std::mem::forget(self);
    }
}

/// How long a process may take to notice that it is to end, or to say that it does.
const NOTICED: Duration = Duration::from_secs(3);
/// How long the same may be left to do for a process that ends, before its successor gives up.
const PREDECESSOR_MAX: Duration = Duration::from_secs(150);
/// How often the lock is tried.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Locks a state directory. The process that has it is waited for if it is about to end; it is asked at its admin socket in
/// `admin`.
///
/// # Errors
/// If that process goes on, or does not come to its end.
pub async fn lock_after(directory: &Path, admin: &Path) -> Result<Lock, Failure> {
    let what = format!("the last process on {} is still at its end", admin.display());
    let mut limit = Instant::now() + NOTICED;
    loop {
        let refused = match try_lock(directory)? {
            Ok(lock) => return Ok(lock),
            Err(refused) => refused,
        };
        let ending = Waiting::on(admin).await?.filter(|waiting| waiting.last.stage != Stage::Running);
        if let Some(waiting) = ending {
            // What it may have lost is its own to tell.
            if let Err(Stuck(failure)) = waiting.gone(&what, PREDECESSOR_MAX).await {
                return Err(failure);
            }
            limit = Instant::now() + NOTICED;
        }
        if Instant::now() > limit {
            return Err(refused);
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Locks a state directory.
///
/// # Errors
/// If another process holds it.
pub fn lock(directory: &Path) -> Result<Lock, Failure> {
    try_lock(directory)?
}

/// The outer error: the lock cannot be used. The inner one: another process holds it.
fn try_lock(directory: &Path) -> Result<Result<Lock, Failure>, Failure> {
    let path = directory.join("lock");
    let unusable =
        |error: io::Error| Failure(format!("cannot use {}: {error}; name another directory", path.display()));
    let file =
        File::options().write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW).open(&path);
    let file = file.map_err(unusable)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Ok(Lock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(Err(Failure(format!(
            "{} is in use by another leasehold: stop that one, or give this one a directory of its own",
            directory.display()
        )))),
        Err(error) => Err(unusable(error.into())),
    }
}
