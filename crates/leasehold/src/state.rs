//! The directories in which Leasehold keeps durable data. By default they are at the system's usual places.

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

/// The two kinds of durable data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data that can be fetched again.
    Cache,
    /// Data that cannot.
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
            Failure(format!(
                "no directory for data: HOME and {variable} are not set; set one, or name a directory"
            ))
        })?;
        Path::new(&home_directory).join(home)
    };
    Ok(base.join("leasehold").join(name))
}

/// A file name for a path or URL.
pub fn file_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    text.trim_start_matches("nfs://").trim_matches('/').chars().map(plain).take(200).collect()
}

/// Does the error say that the disk or the quota is full?
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes a directory that only this user may enter.
pub fn make(directory: &Path) -> Result<(), Failure> {
    try_make(directory)?.map_err(|_| {
        Failure(format!(
            "cannot make {}: its disk is full; free some space, or name another directory",
            directory.display()
        ))
    })
}

/// The same. The inner error says that the disk is full.
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

/// A lock on a directory against other processes; dropping the value releases it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Keeps the lock until the process exits.
    pub fn until_exit(self) {
        std::mem::forget(self);
    }
}

/// How long another process may take to notice that it must stop, or to report it.
const NOTICED: Duration = Duration::from_secs(3);
/// How long a process that shuts down may make no progress before its successor gives up.
const PREDECESSOR_MAX: Duration = Duration::from_secs(150);
/// How often to try the lock.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Locks a state directory. If the process that holds the lock is shutting down, waits for it. Its admin
/// socket is in `admin`.
///
/// # Errors
/// If that process goes on, or if its shutdown makes no progress.
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
            // That process reports its own losses.
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

/// The outer error says that the lock file cannot be used, the inner one that another process holds the
/// lock.
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
