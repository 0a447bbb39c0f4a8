//! Open files with the credential of their opener, and open directories with their read position.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{Caller, Entry, Listing, OpenId, Owner, Pass, Share, StateidBasis, Verifier, WccAttributes};

use crate::inodes::Inode;
use crate::ops::opening::Fetched;

/// An open file.
#[derive(Debug)]
pub struct File {
    /// Its file handle in the kernel's requests.
    pub fh: u64,
    /// Its node.
    pub inode: Arc<Inode>,
    /// The credential of the opener. All operations on the open use it.
    pub caller: Caller,
    /// The open in the layer below; none if that layer has no opens.
    pub open: Option<OpenId>,
    /// The access mode of the open.
    pub access: Share,
    /// Reads go to the backing file (passthrough).
    pub passed: bool,
    /// The write verifier of data that is written but not committed.
    pub unstable: Mutex<Option<Verifier>>,
    /// Data was written that a close must flush.
    pub dirty: AtomicBool,
}

impl File {
    /// The stateid basis of its READs and WRITEs.
    pub fn by(&self) -> StateidBasis {
        self.open.map_or(StateidBasis::Anonymous, StateidBasis::Open)
    }
}

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    /// Its node.
    pub inode: Arc<Inode>,
    /// The credential of the opener.
    pub caller: Caller,
    /// The state of the directory at the open, if the kernel keeps the listing that it reads through it.
    pub state: Option<WccAttributes>,
    /// The read position. An async lock: the kernel sends one READDIR at a time.
    pub position: tokio::sync::Mutex<Position>,
}

/// Limit of entries kept with an open directory. A seekdir(3) to one of them needs no new fetch.
const ENTRIES_MAX: usize = 1 << 14;

/// The read position in a directory, with the entries fetched around it.
#[derive(Debug, Default)]
pub struct Position {
    /// The cookie of the last entry sent to the kernel.
    pub cookie: u64,
    /// The entries fetched in one pass: first those already sent to the kernel, then the rest.
    entries: VecDeque<Entry>,
    /// How many of `entries` were sent to the kernel.
    told: usize,
    /// The cookie before the first of `entries`.
    start: u64,
    /// The entries were fetched with attributes.
    pub plus: bool,
    /// The cookie verifier of the listing.
    pub verifier: Verifier,
    /// Nothing follows the last of `entries`.
    pub eof: bool,
    /// All entries from the beginning were sent with attributes, which are valid until this time.
    pub good: Option<Instant>,
    /// Detects a listing that loops.
    pub pass: Pass,
    /// The value of `Front::doubted` before the first of `entries` was fetched.
    pub doubted: Option<u64>,
    /// Detects names that were removed since `entries` were fetched, if these have attributes.
    pub fetched: Option<Fetched>,
}

impl Position {
    /// The position after a cookie, with nothing fetched.
    pub fn behind(cookie: u64, plus: bool, verifier: Verifier) -> Position {
        Position { cookie, start: cookie, plus, verifier, ..Position::default() }
    }

    /// The position in a removed directory, which has no entries.
    pub fn at_the_end() -> Position {
        Position { eof: true, ..Position::default() }
    }

    /// Moves to a cookie among the fetched entries. False if the cookie is not among them.
    pub fn seek(&mut self, cookie: u64) -> bool {
        let told = if cookie == self.start {
            Some(0)
        } else {
            let found = self.entries.iter().position(|entry| entry.cookie == cookie);
            found.map(|found| found + 1)
        };
        let Some(told) = told else { return false };
        // The skipped entries were not sent in one pass.
        (self.cookie, self.told, self.good) = (cookie, told, None);
        self.fetched.iter_mut().for_each(Fetched::go_back);
        true
    }

    /// The next entry.
    pub fn next(&self) -> Option<&Entry> {
        self.entries.get(self.told)
    }

    /// Records that the next entry was sent to the kernel.
    pub fn advance(&mut self) {
        if let Some(entry) = self.entries.get(self.told) {
            self.cookie = entry.cookie;
            self.told += 1;
        }
    }

    /// Adds the entries that the layer below returned for this position.
    ///
    /// # Errors
    ///
    /// ELOOP if the listing loops, as in the kernel's NFS client; then nothing is added.
    pub fn take(&mut self, listing: Listing) -> Result<(), Errno> {
        if listing.entries.iter().any(|entry| self.pass.goes_round(entry.cookie)) {
            return Err(Errno::LOOP);
        }
        self.verifier = listing.verifier;
        self.eof = listing.eof;
        self.entries.extend(listing.entries);
        let most = self.entries.len().saturating_sub(ENTRIES_MAX).min(self.told);
        if let Some(last) = self.entries.drain(..most).next_back() {
            self.start = last.cookie;
            self.told -= most;
        }
        Ok(())
    }
}

/// All open files and directories.
#[derive(Debug, Default)]
pub struct Files {
    next: AtomicU64,
    regular: Mutex<HashMap<u64, Arc<File>>>,
    directories: Mutex<HashMap<u64, Arc<Directory>>>,
}

impl Files {
    /// A new file handle, never used before.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds an open file.
    pub fn insert(&self, file: File) -> Arc<File> {
        let file = Arc::new(file);
        self.regular.lock().insert(file.fh, file.clone());
        file
    }

    /// An open file.
    pub fn get(&self, fh: u64) -> Option<Arc<File>> {
        self.regular.lock().get(&fh).cloned()
    }

    /// Removes an open file.
    pub fn remove(&self, fh: u64) -> Option<Arc<File>> {
        self.regular.lock().remove(&fh)
    }

    /// Adds an open directory.
    pub fn insert_directory(&self, fh: u64, directory: Directory) {
        self.directories.lock().insert(fh, Arc::new(directory));
    }

    /// An open directory.
    pub fn directory(&self, fh: u64) -> Option<Arc<Directory>> {
        self.directories.lock().get(&fh).cloned()
    }

    /// Removes an open directory.
    pub fn remove_directory(&self, fh: u64) -> Option<Arc<Directory>> {
        self.directories.lock().remove(&fh)
    }

    /// Number of open files.
    pub fn len(&self) -> usize {
        self.regular.lock().len()
    }

    /// An open of this node that uses passthrough.
    pub fn passed_of(&self, inode: &Arc<Inode>) -> Option<Arc<File>> {
        self.all().into_iter().find(|file| file.passed && Arc::ptr_eq(&file.inode, inode))
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<File>> {
        self.regular.lock().values().cloned().collect()
    }
}

/// The open-owner of an open. Each open of the kernel has its own owner.
pub fn open_owner(fh: u64) -> Owner {
    Owner(Bytes::copy_from_slice(&fh.to_be_bytes()))
}

/// The lock-owner: a table of open files for `fcntl`, an open file for `flock`. The prefix keeps the two
/// apart.
pub fn lock_owner(kernel: u64, flock: bool) -> Owner {
    let mut bytes = [0; 9];
    bytes[0] = if flock { b'f' } else { b'p' };
    bytes[1..].copy_from_slice(&kernel.to_be_bytes());
    Owner(Bytes::copy_from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Name;

    #[test]
    fn a_seek_to_what_has_been_fetched_goes_on_there_and_no_more_is_kept_than_may_be() {
        let part = |cookies: std::ops::Range<u64>, eof| {
            let entry = |cookie| Entry {
                name: Name::new(b"name").unwrap(),
                fileid: cookie,
                cookie,
                node: None,
                file_type: None,
            };
            Listing {
                entries: cookies.map(entry).collect(),
                verifier: [1; 8],
                eof,
                directory: None,
                directory_lease: None,
            }
        };
        let mut position = Position::behind(2, false, [0; 8]);
        position.take(part(3..10, false)).unwrap();
        (0..7).for_each(|_| position.advance());
        assert!(position.cookie == 9 && position.next().is_none());
        assert!(position.seek(4) && position.next().unwrap().cookie == 5);
        assert!(position.seek(2) && position.next().unwrap().cookie == 3);
        assert!(!position.seek(11) && position.cookie == 2, "it is not known yet");
        assert!(position.seek(9));
        let many = 10 + 2 * ENTRIES_MAX as u64;
        position.take(part(10..many, false)).unwrap();
        assert!(!position.seek(5), "what was told goes first");
        assert!(position.seek(9) && position.next().unwrap().cookie == 10);
        while position.next().is_some() {
            position.advance();
        }
        position.take(part(many..many + 1, true)).unwrap();
        assert_eq!(position.entries.len(), ENTRIES_MAX);
        assert!(position.eof && position.next().unwrap().cookie == many && position.cookie == many - 1);
    }

    #[test]
    fn a_listing_that_goes_round_ends_with_an_error() {
        let mut position = Position::default();
        let part = |cookies: std::ops::Range<u64>| {
            let entry = |cookie| Entry {
                name: Name::new(b"name").unwrap(),
                fileid: cookie,
                cookie,
                node: None,
                file_type: None,
            };
            Listing {
                entries: cookies.map(entry).collect(),
                verifier: [1; 8],
                eof: false,
                directory: None,
                directory_lease: None,
            }
        };
        position.take(part(3..10)).unwrap();
        position.take(part(10..200)).unwrap();
        let noticed = (0..10).find_map(|_| position.take(part(3..200)).err());
        assert_eq!(noticed, Some(Errno::LOOP));
        assert!(position.entries.len() < 5 * 197 && !position.eof);
        // From the beginning again, as after rewinddir(3).
        assert_eq!(Position::default().take(part(3..200)), Ok(()));
    }
}
