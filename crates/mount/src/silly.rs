//! Silly rename: a file that is removed while it is open gets a name `.nfs…`, as with every NFS client. The
//! name is removed at the last close.
//!
//! A killed process leaves such names behind. Therefore each name is recorded in a file before it is given,
//! one per line. The next mount removes all names in that file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Caller, FileSystem, Handle, Name, Status};

use crate::inodes::Silly;

/// Name of the record in the state directory.
const FILE: &str = "silly";
/// Limit of lines read from it.
const LINES_MAX: usize = 100_000;

/// The record of names to be removed.
#[derive(Debug)]
pub struct Record {
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
    /// Names given and not yet removed. When none is left, the file is truncated.
    standing: Mutex<u64>,
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
        let record =
            Record { path, file: Mutex::new(file), standing: Mutex::new(0), next: AtomicU64::new(0), nonce };
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
        *self.standing.lock()
    }

    /// Records a name that is about to be given. The caller reports its end with [`Record::done`].
    ///
    /// # Errors
    /// The name could not be recorded, and the caller must not give it.
    pub fn add(&self, silly: &Silly) -> io::Result<()> {
        *self.standing.lock() += 1;
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
                self.done();
                Err(error)
            }
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// The name was removed, or was not given after all.
    pub fn done(&self) {
        let mut standing = self.standing.lock();
        debug_assert!(*standing > 0, "a silly name is removed that was not recorded");
        *standing = standing.saturating_sub(1);
        if *standing == 0 {
            self.cut();
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

    #[test]
    fn a_name_that_cannot_be_recorded_does_not_count() {
        // A file that is open for reading only takes nothing.
        let file = Mutex::new(Some(File::open("/dev/null").unwrap()));
        let (standing, next) = (Mutex::new(0), AtomicU64::new(0));
        let record = Record { path: None, file, standing, next, nonce: 0 };
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
