//! Files that a hand keeps open from one act to the next, like a long-running program.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use super::sys::{self, Lock};

/// The most files that one hand may keep open.
const OPEN_MAX: usize = 4096;

/// The open files of one hand, by number.
#[derive(Debug, Default)]
pub struct Files {
    open: HashMap<u64, File>,
    last: u64,
}

impl Files {
    /// Performs a verb on an open file; `None` if the verb is another one.
    pub fn act(&mut self, verb: &[u8], arguments: &[Vec<u8>]) -> Option<io::Result<Vec<u8>>> {
        let done = |result: io::Result<()>| result.map(|()| Vec::new());
        Some(match (verb, arguments) {
            (b"open", [path, mode]) => self.open(path, mode),
            (b"close", [file]) => done(self.close(file)),
            (b"pread", [file, offset, length]) => self.read(file, offset, length),
            (b"pwrite", [file, offset, data]) => {
                done(self.with(file, |file| file.write_all_at(data, number(offset)?)))
            }
            (b"mapread", [file, offset, length]) => self.read_map(file, offset, length),
            (b"mapwrite", [file, offset, data, synced]) => {
                done(self.with(file, |file| sys::write_map(file, number(offset)?, data, synced == b"y")))
            }
            (b"fsync", [file]) => done(self.with(file, File::sync_all)),
            (b"ftruncate", [file, size]) => done(self.with(file, |file| file.set_len(number(size)?))),
            (b"lock", [file, kind, start, length]) => self.lock(file, kind, start, length),
            _ => return None,
        })
    }

    /// Opens a file. Returns its number and its inode number. The letters of `mode` begin with `r` (read) or
    /// `w` (read and write). More letters may follow: `n` creates a missing file, `c` creates it and fails if
    /// it exists, `t` truncates it, `d` is `O_DIRECT`.
    fn open(&mut self, path: &[u8], mode: &[u8]) -> io::Result<Vec<u8>> {
        if self.open.len() >= OPEN_MAX {
            return Err(io::Error::other("a hand has that many files open"));
        }
        let has = |letter: u8| mode.contains(&letter);
        let mut options = OpenOptions::new();
        options.read(true).write(!has(b'r')).create(has(b'n')).create_new(has(b'c')).truncate(has(b't'));
        if has(b'd') {
            options.custom_flags(sys::DIRECT);
        }
        let file = options.open(OsStr::from_bytes(path))?;
        let inode = file.metadata()?.ino();
        self.last += 1;
        self.open.insert(self.last, file);
        Ok(format!("{} {inode}", self.last).into_bytes())
    }

    /// Returns the error of close(2), which includes that of a failed flush. Dropping the file would lose it.
    fn close(&mut self, file: &[u8]) -> io::Result<()> {
        let file = self.open.remove(&number(file)?).ok_or_else(unknown)?;
        sys::close(file)
    }

    fn read(&self, file: &[u8], offset: &[u8], length: &[u8]) -> io::Result<Vec<u8>> {
        let (offset, mut data) = (number(offset)?, vec![0; number(length)? as usize]);
        self.with(file, |file| {
            let mut read = 0;
            while read < data.len() {
                match file.read_at(&mut data[read..], offset + read as u64)? {
                    0 => break,
                    more => read += more,
                }
            }
            data.truncate(read);
            Ok(data)
        })
    }

    /// Reads through a mapping of its own, up to the end of the file as the kernel knows it.
    fn read_map(&self, file: &[u8], offset: &[u8], length: &[u8]) -> io::Result<Vec<u8>> {
        self.with(file, |file| sys::read_map(file, number(offset)?, number(length)? as usize))
    }

    /// `kind` is `r`, `w` or `u` (unlock).
    fn lock(&self, file: &[u8], kind: &[u8], start: &[u8], length: &[u8]) -> io::Result<Vec<u8>> {
        let lock = match kind {
            b"r" => Lock::Shared,
            b"w" => Lock::Exclusive,
            _ => Lock::None,
        };
        let held = self.with(file, |file| sys::set_lock(file, lock, number(start)?, number(length)?))?;
        Ok(if held { b"held".to_vec() } else { b"denied".to_vec() })
    }

    fn with<T>(&self, file: &[u8], act: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        act(self.open.get(&number(file)?).ok_or_else(unknown)?)
    }
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no such open file")
}

fn number(digits: &[u8]) -> io::Result<u64> {
    let text = String::from_utf8_lossy(digits);
    text.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("not a number: {text}")))
}
