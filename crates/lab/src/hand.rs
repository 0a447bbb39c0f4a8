//! A hand: single file operations, in a guest or on the host, with one short round trip each.
//!
//! A script costs a fork and an exec per step, which takes milliseconds in a guest. Tests with hundreds of
//! rounds use a hand instead.

mod act;
mod agent;
mod files;
mod sys;
mod wire;

pub use agent::Agent;
pub(crate) use wire::{Message, receive, send};

use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// How long one act may take. A hard mount may wait that long for its server.
const PATIENCE: Duration = Duration::from_secs(120);

/// Makes file operations in one place.
#[derive(Debug)]
pub struct Hand {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Host(files::Files),
    Guest(TcpStream),
}

/// The result of `lstat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// In bytes.
    pub size: u64,
    /// In nanoseconds since 1970.
    pub mtime_ns: i128,
    /// In nanoseconds since 1970.
    pub ctime_ns: i128,
    /// Inode number.
    pub ino: u64,
    /// Link count.
    pub nlink: u64,
    /// Type and permission bits.
    pub mode: u32,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
    /// For reading and writing; the file must not exist.
    Create,
    /// With these flags.
    As(Access),
}

/// Flags for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Also for writing.
    pub write: bool,
    /// Create it if it is missing.
    pub create: bool,
    /// Create it, and fail if it exists (`O_EXCL`).
    pub exclusive: bool,
    /// Truncate it.
    pub truncate: bool,
    /// Bypass the kernel's cache (`O_DIRECT`).
    pub direct: bool,
}

impl Mode {
    /// The mode as letters of the hand's protocol.
    fn letters(self) -> String {
        let access = match self {
            Mode::Read => Access::default(),
            Mode::Write => Access { write: true, ..Access::default() },
            Mode::Create => Access { write: true, exclusive: true, ..Access::default() },
            Mode::As(access) => access,
        };
        let Access { write, create, exclusive, truncate, direct } = access;
        let letters = [(true, if write { 'w' } else { 'r' }), (create, 'n'), (exclusive, 'c')];
        let letters = letters.into_iter().chain([(truncate, 't'), (direct, 'd')]);
        letters.filter_map(|(has, letter)| has.then_some(letter)).collect()
    }
}

/// A file that a hand keeps open; valid only for that hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenFile(u64);

/// The result of opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Identifies the open file in later calls.
    pub file: OpenFile,
    /// Inode number.
    pub ino: u64,
}

impl Hand {
    /// A hand on the host.
    pub fn on_host() -> Hand {
        Hand { place: Place::Host(files::Files::default()) }
    }

    pub(crate) fn in_guest(connection: TcpStream) -> io::Result<Hand> {
        Hand::connected(connection, PATIENCE)
    }

    /// A hand at the other end of a connection. An act that takes longer than `patience` fails.
    fn connected(connection: TcpStream, patience: Duration) -> io::Result<Hand> {
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(patience))?;
        Ok(Hand { place: Place::Guest(connection) })
    }

    /// Opens a file, reads all of it, and closes it.
    pub fn read(&mut self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.act("read", path, &[])
    }

    /// Opens a file, creating or truncating it, writes and closes.
    pub fn write(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("write", path, &[data]).map(drop)
    }

    /// Opens an existing file, writes from the start without truncating, and closes it.
    pub fn overwrite(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("overwrite", path, &[data]).map(drop)
    }

    /// Opens an existing file, writes at the end, and closes it.
    pub fn append(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("append", path, &[data]).map(drop)
    }

    /// Writes `PATH.new`, closes it, and renames it over `path`.
    pub fn replace(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("replace", path, &[data]).map(drop)
    }

    /// Opens an existing file, sets its size in bytes, and closes it.
    pub fn truncate(&mut self, path: impl AsRef<Path>, size: u64) -> io::Result<()> {
        self.act("truncate", path, &[size.to_string().as_bytes()]).map(drop)
    }

    /// Renames a file.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.act("rename", from, &[bytes_of(to.as_ref())]).map(drop)
    }

    /// Unlinks a file.
    pub fn remove(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.act("remove", path, &[]).map(drop)
    }

    /// Adds another name to a file.
    pub fn link(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.act("link", from, &[bytes_of(to.as_ref())]).map(drop)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.act("rmdir", path, &[]).map(drop)
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.act("mkdir", path, &[]).map(drop)
    }

    /// The names in a directory, sorted.
    pub fn list(&mut self, path: impl AsRef<Path>) -> io::Result<Vec<Vec<u8>>> {
        let names = self.act("list", path, &[])?;
        Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Attributes of the path itself; symbolic links are not followed.
    pub fn stat(&mut self, path: impl AsRef<Path>) -> io::Result<Stat> {
        let reply = String::from_utf8_lossy(&self.act("stat", path, &[])?).into_owned();
        parse_stat(&reply).ok_or_else(|| io::Error::other(format!("a hand's stat said {reply:?}")))
    }

    /// Opens a file and keeps it open.
    pub fn open(&mut self, path: impl AsRef<Path>, mode: Mode) -> io::Result<Opened> {
        let reply = self.act("open", path, &[mode.letters().as_bytes()])?;
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let numbers =
            reply.split_once(' ').and_then(|(file, ino)| Some((file.parse().ok()?, ino.parse().ok()?)));
        let (file, ino) = numbers.ok_or_else(|| io::Error::other(format!("a hand's open said {reply:?}")))?;
        Ok(Opened { file: OpenFile(file), ino })
    }

    /// Closes a file, which flushes it. The file is closed even if this fails.
    pub fn close(&mut self, file: OpenFile) -> io::Result<()> {
        self.on(file, "close", &[]).map(drop)
    }

    /// Reads up to `length` bytes from `offset`; fewer at the end of the file.
    pub fn read_at(&mut self, file: OpenFile, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.on(file, "pread", &[offset.to_string().as_bytes(), length.to_string().as_bytes()])
    }

    /// Writes, without flushing.
    pub fn write_at(&mut self, file: OpenFile, offset: u64, data: &[u8]) -> io::Result<()> {
        self.on(file, "pwrite", &[offset.to_string().as_bytes(), data]).map(drop)
    }

    /// As [`Hand::read_at`], through a shared mapping.
    pub fn read_map(&mut self, file: OpenFile, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.on(file, "mapread", &[offset.to_string().as_bytes(), length.to_string().as_bytes()])
    }

    /// As [`Hand::write_at`] within the file, through a shared mapping; with msync(2) if `synced`.
    pub fn write_map(&mut self, file: OpenFile, offset: u64, data: &[u8], synced: bool) -> io::Result<()> {
        let synced: &[u8] = if synced { b"y" } else { b"n" };
        self.on(file, "mapwrite", &[offset.to_string().as_bytes(), data, synced]).map(drop)
    }

    /// fsync(2).
    pub fn sync(&mut self, file: OpenFile) -> io::Result<()> {
        self.on(file, "fsync", &[]).map(drop)
    }

    /// Sets the size in bytes.
    pub fn set_size(&mut self, file: OpenFile, size: u64) -> io::Result<()> {
        self.on(file, "ftruncate", &[size.to_string().as_bytes()]).map(drop)
    }

    /// Locks `range` without waiting. Returns false if another owner's lock conflicts. Each open file is a
    /// separate owner.
    pub fn lock(&mut self, file: OpenFile, exclusive: bool, range: &Range<u64>) -> io::Result<bool> {
        self.set_lock(file, if exclusive { b"w" } else { b"r" }, range)
    }

    /// Unlocks `range`.
    pub fn unlock(&mut self, file: OpenFile, range: &Range<u64>) -> io::Result<()> {
        self.set_lock(file, b"u", range).map(drop)
    }

    fn set_lock(&mut self, file: OpenFile, kind: &[u8], range: &Range<u64>) -> io::Result<bool> {
        let (start, length) = (range.start.to_string(), (range.end - range.start).to_string());
        Ok(self.on(file, "lock", &[kind, start.as_bytes(), length.as_bytes()])? == b"held")
    }

    fn on(&mut self, file: OpenFile, verb: &str, more: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.act(verb, file.0.to_string(), more)
    }

    fn act(&mut self, verb: &str, path: impl AsRef<Path>, more: &[&[u8]]) -> io::Result<Vec<u8>> {
        let path = bytes_of(path.as_ref());
        match &mut self.place {
            Place::Host(files) => {
                let arguments: Vec<Vec<u8>> =
                    std::iter::once(path).chain(more.iter().copied()).map(<[u8]>::to_vec).collect();
                files
                    .act(verb.as_bytes(), &arguments)
                    .unwrap_or_else(|| act::act(verb.as_bytes(), &arguments))
            }
            Place::Guest(connection) => {
                let fields: Vec<&[u8]> =
                    [verb.as_bytes(), path].into_iter().chain(more.iter().copied()).collect();
                send(connection, &fields)?;
                let reply = receive(connection).map_err(late)?.ok_or(io::ErrorKind::UnexpectedEof)?;
                outcome(reply)
            }
        }
    }
}

/// Reports a missing reply as a timeout, because EAGAIN must mean an error of the file system.
fn late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "a hand has not answered in time")
        }
        _ => error,
    }
}

fn outcome(mut reply: Message) -> io::Result<Vec<u8>> {
    let verdict = reply.first().map(Vec::as_slice);
    match (verdict, reply.len()) {
        (Some(b"ok"), 2) => Ok(reply.pop().unwrap_or_default()),
        (Some(b"err"), 3) => {
            let errno = String::from_utf8_lossy(&reply[1]).parse().unwrap_or(0);
            match errno {
                0 => Err(io::Error::other(String::from_utf8_lossy(&reply[2]).into_owned())),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a hand's reply makes no sense")),
    }
}

fn parse_stat(reply: &str) -> Option<Stat> {
    let mut words = reply.split(' ');
    Some(Stat {
        size: words.next()?.parse().ok()?,
        mtime_ns: words.next()?.parse().ok()?,
        ctime_ns: words.next()?.parse().ok()?,
        ino: words.next()?.parse().ok()?,
        nlink: words.next()?.parse().ok()?,
        mode: words.next()?.parse().ok()?,
    })
}

fn bytes_of(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::{Hand, Mode};

    #[test]
    fn open_files_are_read_written_and_locked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        let mut hand = Hand::on_host();
        let one = hand.open(&path, Mode::Create).expect("create").file;
        assert!(hand.open(&path, Mode::Create).is_err());
        let other = hand.open(&path, Mode::Write).expect("open").file;
        hand.write_at(one, 3, b"abc").expect("write");
        assert_eq!(hand.read_at(other, 0, 100).expect("read"), b"\0\0\0abc");
        hand.set_size(other, 4).expect("truncate");
        assert_eq!(hand.read_at(one, 3, 100).expect("read"), b"a");
        assert!(hand.lock(one, true, &(10..20)).expect("lock"));
        assert!(!hand.lock(other, false, &(19..20)).expect("lock"));
        assert!(hand.lock(other, true, &(20..30)).expect("lock"));
        hand.unlock(one, &(10..20)).expect("unlock");
        assert!(hand.lock(other, false, &(19..20)).expect("lock"));
        hand.close(other).expect("close");
        assert!(hand.read_at(other, 0, 1).is_err());
        assert!(hand.lock(one, true, &(0..100)).expect("lock"), "a closed file holds none");
    }

    #[test]
    fn acts_do_what_they_say() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("f");
        let mut hand = Hand::on_host();
        hand.write(&file, b"abcdef").expect("write");
        hand.overwrite(&file, b"XY").expect("overwrite");
        hand.append(&file, b"!").expect("append");
        assert_eq!(hand.read(&file).expect("read"), b"XYcdef!");
        let before = hand.stat(&file).expect("stat");
        hand.replace(&file, b"new").expect("replace");
        assert_ne!(hand.stat(&file).expect("stat").ino, before.ino);
        assert_eq!(hand.list(directory.path()).expect("list"), [b"f".to_vec()]);
        hand.remove(&file).expect("remove");
        assert_eq!(hand.read(&file).expect_err("gone").kind(), std::io::ErrorKind::NotFound);
    }
}
