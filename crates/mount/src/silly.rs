//! Silly rename: a file that is removed while it is open gets a name `.nfs…`, as with every NFS client. The
//! name is removed at the last close.
//!
//! The kernel does not wait for the RELEASE of a file. So a program that closes the file and then removes its
//! directory would often find the silly name there. RMDIR waits for names that are about to go.
//!
//! A killed process leaves such names behind. Therefore each name is recorded in a file before it is given,
//! one per line. The next mount removes all names in that file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use vfs::{Caller, FileSystem, Handle, Name, Status};

use crate::inodes::Silly;

/// Name of the record in the state directory.
const FILE: &str = "silly";
/// Limit of lines read from it.
const LINES_MAX: usize = 100_000;

/// How long RMDIR waits for the last close of a file: the kernel has sent its RELEASE before.
const RELEASE_MAX: Duration = Duration::from_millis(100);
/// How long it waits for the removal of a name.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// The silly names in a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    given: u64,
    /// Those that are being removed.
    leaving: u64,
}

/// The record of names to be removed.
#[derive(Debug)]
pub struct Record {
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
    /// Names given and not yet removed, by directory. When none is left, the file is truncated.
    standing: Mutex<HashMap<Handle, Standing>>,
    /// Woken when a name has gone.
    gone: Notify,
    next: AtomicU64,
    nonce: u32,
}

impl Record {
    /// Opens the record in a directory, or one that is kept in memory only. Removes the names that a killed
    /// process left in it.
    pub async fn open(directory: Option<&Path>, fs: &dyn FileSystem) -> io::Result<Record> {
        let nonce = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
        let path = directory.map(|directory| directory.join(FILE));
        let mut file = None;
        if let Some(path) = &path {
            if let Ok(left) = std::fs::read_to_string(path) {
                clean(&left, fs).await;
            }
            file = match File::options().create(true).append(true).open(path) {
                Err(error) if is_full(&error) => None,
                opened => Some(opened?),
            };
        }
        let record = Record {
            path,
            file: Mutex::new(file),
            standing: Mutex::default(),
            gone: Notify::new(),
            next: AtomicU64::new(0),
            nonce,
        };
        record.cut();
        Ok(record)
    }

    /// A unique silly name for a file: `.nfs`, its inode number, a nonce and a counter.
    pub fn name(&self, fileid: u64) -> Name {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!(".nfs{fileid:016x}{:08x}{number:08x}", self.nonce);
        Name::new(text.as_bytes()).unwrap_or_else(|_| unreachable!("36 plain characters"))
    }

    /// Number of names that are given and not yet removed.
    pub fn standing(&self) -> u64 {
        self.standing.lock().values().map(|standing| standing.given).sum()
    }

    /// Records a name that is about to be given. The caller reports its end with [`Record::done`] or
    /// [`Record::left`].
    ///
    /// # Errors
    /// The name could not be recorded, and the caller must not give it.
    pub fn add(&self, silly: &Silly) -> io::Result<()> {
        self.standing.lock().entry(silly.directory).or_default().given += 1;
        let (uid, gid) = match &silly.caller.principal {
            vfs::Principal::Unix(credential) => (credential.uid, credential.gid),
            vfs::Principal::Machine => (0, 0),
        };
        let line = format!("{} {} {uid} {gid}\n", silly.directory, hex(silly.name.as_bytes()));
        let written = self.file.lock().as_mut().map(|file| file.write_all(line.as_bytes()));
        match written {
            // The record is lost, but the program may remove its file.
            Some(Err(error)) if is_full(&error) => {
                tracing::warn!(
                    "the disk of the cache is full: if this process is killed, {} stays",
                    silly.name
                );
                Ok(())
            }
            Some(Err(error)) => {
                self.done(&silly.directory);
                Err(error)
            }
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// A name in this directory was not given after all.
    pub fn done(&self, directory: &Handle) {
        self.end(directory, 1, 0);
    }

    /// A name in this directory is about to be removed.
    pub fn leave(&self, directory: &Handle) {
        self.standing.lock().entry(*directory).or_default().leaving += 1;
    }

    /// Its removal has ended. If it failed, the name stands.
    pub fn left(&self, directory: &Handle, removed: bool) {
        self.end(directory, removed.into(), 1);
    }

    fn end(&self, directory: &Handle, given: u64, leaving: u64) {
        let mut all = self.standing.lock();
        let Some(standing) = all.get_mut(directory) else {
            debug_assert!(false, "a silly name is removed that was not recorded");
            return;
        };
        standing.given = standing.given.saturating_sub(given);
        standing.leaving = standing.leaving.saturating_sub(leaving);
        if standing.given == 0 {
            all.remove(directory);
        }
        if all.is_empty() {
            self.cut();
        }
        drop(all);
        self.gone.notify_waiters();
    }

    /// Are there names in this directory?
    pub fn has(&self, directory: &Handle) -> bool {
        self.standing.lock().contains_key(directory)
    }

    /// Waits until no name is left in a directory, as long as names are about to go. True if none is left.
    pub async fn cleared(&self, directory: &Handle) -> bool {
        let standing = || self.standing.lock().get(directory).copied();
        let started = Instant::now();
        loop {
            let mut gone = std::pin::pin!(self.gone.notified());
            gone.as_mut().enable();
            let Some(standing) = standing() else { return true };
            let most = if standing.leaving > 0 { REMOVAL_MAX } else { RELEASE_MAX };
            if started.elapsed() >= most {
                return false;
            }
            let _ = timeout_at(started + most, gone).await;
        }
    }

    fn cut(&self) {
        if let (Some(file), Some(path)) = (&*self.file.lock(), &self.path)
            && let Err(error) = file.set_len(0)
        {
            tracing::warn!("cannot cut {}: {error}", path.display());
        }
    }
}

/// Is the error a lack of space or quota?
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Removes the recorded names.
async fn clean(lines: &str, fs: &dyn FileSystem) {
    for line in lines.lines().take(LINES_MAX) {
        let Some((directory, name, uid, gid)) = parse(line) else { continue };
        // Remove only names that a mount gave; never any other name that the record contains.
        if !name.as_bytes().starts_with(b".nfs") {
            continue;
        }
        let caller = Caller::unix(uid, gid, &[]);
        match fs.remove(&caller, &directory, &name).await {
            Ok(_) => tracing::info!("removed {name}, which was deleted while it was open"),
            Err(error) if matches!(error.status, Status::NoEnt | Status::Stale) => {}
            Err(error) => {
                tracing::warn!("cannot remove {name}, which was deleted while it was open: {error}");
            }
        }
    }
}

fn parse(line: &str) -> Option<(Handle, Name, u32, u32)> {
    let mut words = line.split(' ');
    let directory = Handle::new(&unhex(words.next()?)?)?;
    let name = Name::new(&unhex(words.next()?)?).ok()?;
    Some((directory, name, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silly() -> Silly {
        Silly {
            directory: Handle::new(&[1, 0xff]).unwrap(),
            name: Name::new(b".nfs\xff").unwrap(),
            of: (1, Name::new(b"file").unwrap()),
            caller: Caller::unix(7, 8, &[9]),
        }
    }

    fn in_memory() -> Record {
        Record {
            path: None,
            file: Mutex::new(None),
            standing: Mutex::default(),
            gone: Notify::new(),
            next: AtomicU64::new(0),
            nonce: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_is_cleared_if_its_names_are_about_to_go() {
        let (record, at) = (in_memory(), silly().directory);
        assert!(!record.has(&at) && record.cleared(&at).await, "it has no names");
        record.add(&silly()).unwrap();
        let started = Instant::now();
        assert!(!record.cleared(&at).await, "the file is open");
        assert_eq!(started.elapsed(), RELEASE_MAX);
        // The last close comes soon, and the removal takes its time.
        let removal = async {
            tokio::time::sleep(RELEASE_MAX / 2).await;
            record.leave(&at);
            tokio::time::sleep(RELEASE_MAX * 5).await;
            record.left(&at, true);
        };
        let (cleared, ()) = tokio::join!(record.cleared(&at), removal);
        assert!(cleared);
        assert_eq!(record.standing(), 0);
        // A removal that fails.
        record.add(&silly()).unwrap();
        record.leave(&at);
        let (cleared, ()) = tokio::join!(record.cleared(&at), async { record.left(&at, false) });
        assert!(!cleared);
        assert_eq!(record.standing(), 1);
    }

    #[test]
    fn a_name_that_cannot_be_recorded_does_not_count() {
        // A file that is open for reading only takes nothing.
        let file = Mutex::new(Some(File::open("/dev/null").unwrap()));
        let record = Record { file, ..in_memory() };
        assert!(record.add(&silly()).is_err());
        assert_eq!(record.standing(), 0);
    }

    #[test]
    fn a_line_is_what_was_written() {
        let silly = silly();
        let line = format!("{} {} 7 8", silly.directory, hex(silly.name.as_bytes()));
        assert_eq!(parse(&line), Some((silly.directory, silly.name, 7, 8)));
        for torn in ["", "01ff", "01ff 2e", "01ff 2e6e6673 7", "zz 2e 1 1", "01 2f 1 1"] {
            assert_eq!(parse(torn), None, "{torn}");
        }
    }
}
