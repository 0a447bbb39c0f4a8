//! A hand: acts on single files, in a guest or on the host, one quick round trip each.
//!
//! Scripts cost a fork and an exec per step, which a guest takes milliseconds for; a checker that wants hundreds of rounds uses this.

mod act;
mod wire;

pub(crate) use wire::{Message, receive, send};

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// How long one act may take; a hard mount waits for its server that long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Somewhere files can be acted on.
#[derive(Debug)]
pub struct Hand {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Host,
    Guest(TcpStream),
}

/// What `lstat` says.
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

impl Hand {
    /// A hand on the host itself.
    pub fn on_host() -> Hand {
        Hand { place: Place::Host }
    }

    pub(crate) fn in_guest(connection: TcpStream) -> io::Result<Hand> {
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(Hand { place: Place::Guest(connection) })
    }

    /// Opens, reads all, closes.
    pub fn read(&mut self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.act("read", path, &[])
    }

    /// Opens, creating or emptying, writes, closes.
    pub fn write(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("write", path, &[data]).map(drop)
    }

    /// Opens what exists, writes from the start without truncating, closes.
    pub fn overwrite(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("overwrite", path, &[data]).map(drop)
    }

    /// Opens what exists, writes at the end, closes.
    pub fn append(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("append", path, &[data]).map(drop)
    }

    /// Writes `PATH.new`, closes it and renames it over `path`.
    pub fn replace(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.act("replace", path, &[data]).map(drop)
    }

    /// Opens what exists, sets its size in bytes, closes.
    pub fn truncate(&mut self, path: impl AsRef<Path>, size: u64) -> io::Result<()> {
        self.act("truncate", path, &[size.to_string().as_bytes()]).map(drop)
    }

    /// Renames.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.act("rename", from, &[bytes_of(to.as_ref())]).map(drop)
    }

    /// Unlinks a file.
    pub fn remove(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.act("remove", path, &[]).map(drop)
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

    /// Status of the file itself, links not followed.
    pub fn stat(&mut self, path: impl AsRef<Path>) -> io::Result<Stat> {
        let reply = String::from_utf8_lossy(&self.act("stat", path, &[])?).into_owned();
        parse_stat(&reply).ok_or_else(|| io::Error::other(format!("a hand's stat said {reply:?}")))
    }

    fn act(&mut self, verb: &str, path: impl AsRef<Path>, more: &[&[u8]]) -> io::Result<Vec<u8>> {
        let path = bytes_of(path.as_ref());
        match &mut self.place {
            Place::Host => {
                let arguments: Vec<Vec<u8>> =
                    std::iter::once(path).chain(more.iter().copied()).map(<[u8]>::to_vec).collect();
                act::act(verb.as_bytes(), &arguments)
            }
            Place::Guest(connection) => {
                let fields: Vec<&[u8]> =
                    [verb.as_bytes(), path].into_iter().chain(more.iter().copied()).collect();
                send(connection, &fields)?;
                let reply = receive(connection)?.ok_or(io::ErrorKind::UnexpectedEof)?;
                outcome(reply)
            }
        }
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
    use super::Hand;

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
