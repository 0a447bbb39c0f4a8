//! What is open: files with the credential of their opener, and directories with how far they have been read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{Caller, Entry, Listing, OpenId, Owner, Pass, Share, StateidBasis, Verifier, WccAttributes};

use crate::inodes::Inode;

/// An open file.
#[derive(Debug)]
pub struct File {
    /// Its number with the kernel.
    pub fh: u64,
    /// The file.
    pub inode: Arc<Inode>,
    /// Who opened it: all that is done with it is done with these rights.
    pub caller: Caller,
    /// Its open below; none where the file system below has no opens.
    pub open: Option<OpenId>,
    /// What it may do.
    pub access: Share,
    /// Its reads go to the backing file.
    pub passed: bool,
    /// The verifier of what was written and not committed.
    pub unstable: Mutex<Option<Verifier>>,
    /// Something was written that a close has to see to.
    pub dirty: AtomicBool,
}

impl File {
    /// On what ground it reads and writes.
    pub fn by(&self) -> StateidBasis {
        self.open.map_or(StateidBasis::Anonymous, StateidBasis::Open)
    }
}

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    /// The directory.
    pub inode: Arc<Inode>,
    /// Who opened it.
    pub caller: Caller,
    /// In which state it was found, if what the kernel reads with it is kept.
    pub state: Option<WccAttributes>,
    /// How far it has been read. An async lock: the kernel reads a directory one call after the other.
    pub position: tokio::sync::Mutex<Position>,
}

/// Entries that are kept with an open directory, so that seekdir(3) to one of them costs no new fetch.
const ENTRIES_MAX: usize = 1 << 14;

/// How far a directory has been read, and what has been fetched around that place.
#[derive(Debug, Default)]
pub struct Position {
    /// The kernel has been told everything up to this cookie.
    pub cookie: u64,
    /// What has been fetched in one pass: first what the kernel has been told, then what follows.
    entries: VecDeque<Entry>,
    /// So many of these the kernel has been told.
    told: usize,
    /// The cookie before the first of them.
    start: u64,
    /// They were fetched with attributes.
    pub plus: bool,
    /// Of the listing.
    pub verifier: Verifier,
    /// Nothing follows the last of the entries.
    pub eof: bool,
    /// All from the beginning was told with attributes, which are believed until then.
    pub good: Option<Instant>,
    /// What has come so far does not go round.
    pub pass: Pass,
    /// What was known of other clients in the directory (`Front::doubted`) before the first of the entries was fetched.
    pub doubted: Option<u64>,
}

impl Position {
    /// Behind a cookie, with nothing fetched.
    pub fn behind(cookie: u64, plus: bool, verifier: Verifier) -> Position {
        Position { cookie, start: cookie, plus, verifier, ..Position::default() }
    }

    /// Of a directory that has been removed, in which there is nothing.
    pub fn at_the_end() -> Position {
        Position { eof: true, ..Position::default() }
    }

    /// Goes to a place within what has been fetched. False if that is not known.
    pub fn seek(&mut self, cookie: u64) -> bool {
        let told = if cookie == self.start {
            Some(0)
        } else {
            let found = self.entries.iter().position(|entry| entry.cookie == cookie);
            found.map(|found| found + 1)
        };
        let Some(told) = told else { return false };
        // What lies between has not been told in one pass.
        (self.cookie, self.told, self.good) = (cookie, told, None);
        true
    }

    /// What comes next.
    pub fn next(&self) -> Option<&Entry> {
        self.entries.get(self.told)
    }

    /// The kernel has been told that.
    pub fn advance(&mut self) {
        if let Some(entry) = self.entries.get(self.told) {
            self.cookie = entry.cookie;
            self.told += 1;
        }
    }

    /// Takes what the layer below told from here on.
    ///
    /// # Errors
    ///
    /// ELOOP if the listing goes round, as the kernel's own client has it; then nothing is taken.
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

/// All opens.
#[derive(Debug, Default)]
pub struct Files {
    next: AtomicU64,
    regular: Mutex<HashMap<u64, Arc<File>>>,
    directories: Mutex<HashMap<u64, Arc<Directory>>>,
}

impl Files {
    /// A number that was never used.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A file has been opened.
    pub fn insert(&self, file: File) -> Arc<File> {
        let file = Arc::new(file);
        self.regular.lock().insert(file.fh, file.clone());
        file
    }

    /// An open file.
    pub fn get(&self, fh: u64) -> Option<Arc<File>> {
        self.regular.lock().get(&fh).cloned()
    }

    /// It is closed.
    pub fn remove(&self, fh: u64) -> Option<Arc<File>> {
        self.regular.lock().remove(&fh)
    }

    /// A directory has been opened.
    pub fn insert_directory(&self, fh: u64, directory: Directory) {
        self.directories.lock().insert(fh, Arc::new(directory));
    }

    /// An open directory.
    pub fn directory(&self, fh: u64) -> Option<Arc<Directory>> {
        self.directories.lock().get(&fh).cloned()
    }

    /// It is closed.
    pub fn remove_directory(&self, fh: u64) -> Option<Arc<Directory>> {
        self.directories.lock().remove(&fh)
    }

    /// How many files are open.
    pub fn len(&self) -> usize {
        self.regular.lock().len()
    }

    /// An open of this node that the kernel reads by itself.
    pub fn passed_of(&self, inode: &Arc<Inode>) -> Option<Arc<File>> {
        self.all().into_iter().find(|file| file.passed && Arc::ptr_eq(&file.inode, inode))
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<File>> {
        self.regular.lock().values().cloned().collect()
    }
}

/// The owner of an open: each open of the kernel is one of its own.
pub fn open_owner(fh: u64) -> Owner {
    Owner(Bytes::copy_from_slice(&fh.to_be_bytes()))
}

/// The owner of locks: a table of open files for `fcntl`, an open file for `flock`. They never are the same.
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
            let entry =
                |cookie| Entry { name: Name::new(b"name").unwrap(), fileid: cookie, cookie, node: None };
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
            let entry =
                |cookie| Entry { name: Name::new(b"name").unwrap(), fileid: cookie, cookie, node: None };
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
