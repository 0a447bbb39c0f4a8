//! Encodes replies and notifications.

use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;

use super::abi::{EXPIRE_ONLY, Fopen, Init, MAJOR, MINOR, OUT_HEADER_BYTES};

/// `struct fuse_attr`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `struct fuse_attr`")]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
}

/// The reply to a LOOKUP. Node zero means that the name does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryOut {
    /// The node.
    pub node: u64,
    /// How long the kernel may cache the name.
    pub entry_valid: Duration,
    /// How long the kernel may cache the attributes.
    pub attr_valid: Duration,
    /// The attributes.
    pub attr: Attr,
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOut {
    /// Its file handle.
    pub fh: u64,
    /// Flags of the open.
    pub flags: Fopen,
    /// The id of the backing file, with `PASSTHROUGH`.
    pub backing: u32,
}

/// `struct fuse_kstatfs`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `struct fuse_kstatfs`")]
pub struct Statfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
}

/// The reply to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitOut {
    /// As the kernel offered it.
    pub max_readahead: u32,
    /// A subset of the offered flags.
    pub flags: Init,
    /// Limit of background requests in flight.
    pub max_background: u16,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Timestamp granularity in nanoseconds.
    pub time_gran: u32,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No reply is sent, since the request expects none.
    NoReply,
    /// Done.
    Done,
    /// A directory entry.
    Entry(EntryOut),
    /// Attributes, and how long the kernel may cache them.
    Attr(Duration, Attr),
    /// An open.
    Open(OpenOut),
    /// A directory entry and an open.
    Create(EntryOut, OpenOut),
    /// Bytes of a file, a link target or an extended attribute.
    Data(Bytes),
    /// Entries of a directory, and the nodes that they name.
    Listing(Bytes, Vec<u64>),
    /// How many bytes were written.
    Written(u32),
    /// Statistics of the file system.
    Statfs(Statfs),
    /// The conflicting lock, or `F_UNLCK`.
    Lock(super::request::FileLock),
    /// An offset.
    Seek(u64),
    /// The size that a value has.
    Size(u32),
    /// INIT.
    Init(InitOut),
}

/// The result of a request.
pub type Outcome = Result<Answer, Errno>;

/// Encodes a reply and passes its parts to `send`.
pub fn with_reply<T>(unique: u64, outcome: &Outcome, send: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
    let (error, body, tail) = match outcome {
        Err(errno) => (-errno.raw_os_error(), Vec::new(), &b""[..]),
        Ok(Answer::Data(bytes) | Answer::Listing(bytes, _)) => (0, Vec::new(), &bytes[..]),
        Ok(answer) => (0, encode(answer), &b""[..]),
    };
    let length = OUT_HEADER_BYTES + body.len() + tail.len();
    let header = out_header(length, error, unique);
    send(&[IoSlice::new(&header), IoSlice::new(&body), IoSlice::new(tail)])
}

fn out_header(length: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_BYTES] {
    let mut header = [0; OUT_HEADER_BYTES];
    header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

fn encode(answer: &Answer) -> Vec<u8> {
    let mut to = Vec::with_capacity(160);
    match answer {
        Answer::NoReply | Answer::Done | Answer::Data(_) | Answer::Listing(..) => {}
        Answer::Entry(entry) => put_entry(&mut to, entry),
        Answer::Attr(valid, attr) => {
            put(&mut to, &[valid.as_secs()]);
            put32(&mut to, &[valid.subsec_nanos(), 0]);
            put_attr(&mut to, attr);
        }
        Answer::Open(open) => put_open(&mut to, open),
        Answer::Create(entry, open) => {
            put_entry(&mut to, entry);
            put_open(&mut to, open);
        }
        Answer::Written(count) | Answer::Size(count) => put32(&mut to, &[*count, 0]),
        Answer::Statfs(stat) => {
            put(&mut to, &[stat.blocks, stat.bfree, stat.bavail, stat.files, stat.ffree]);
            put32(&mut to, &[stat.bsize, stat.namelen, stat.bsize, 0, 0, 0, 0, 0, 0, 0]);
        }
        Answer::Lock(lock) => {
            put(&mut to, &[lock.start, lock.end]);
            put32(&mut to, &[lock.kind, lock.pid]);
        }
        Answer::Seek(offset) => put(&mut to, &[*offset]),
        Answer::Init(init) => put_init(&mut to, init),
    }
    to
}

fn put(to: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| to.extend_from_slice(&word.to_ne_bytes()));
}

fn put32(to: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| to.extend_from_slice(&word.to_ne_bytes()));
}

fn put_attr(to: &mut Vec<u8>, attr: &Attr) {
    put(to, &[attr.ino, attr.size, attr.blocks]);
    put(to, &[attr.atime.0 as u64, attr.mtime.0 as u64, attr.ctime.0 as u64]);
    put32(to, &[attr.atime.1, attr.mtime.1, attr.ctime.1]);
    // The page cache works in units of the block size: use a page, whatever the transfer size is.
    put32(to, &[attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, 4096, 0]);
}

/// `struct fuse_entry_out`
fn put_entry(to: &mut Vec<u8>, entry: &EntryOut) {
    put(to, &[entry.node, 0, entry.entry_valid.as_secs(), entry.attr_valid.as_secs()]);
    put32(to, &[entry.entry_valid.subsec_nanos(), entry.attr_valid.subsec_nanos()]);
    put_attr(to, &entry.attr);
}

fn put_open(to: &mut Vec<u8>, open: &OpenOut) {
    put(to, &[open.fh]);
    put32(to, &[open.flags.bits(), open.backing]);
}

fn put_init(to: &mut Vec<u8>, init: &InitOut) {
    let flags = init.flags.bits();
    put32(to, &[MAJOR, MINOR, init.max_readahead, flags as u32]);
    let congestion = init.max_background / 4 * 3;
    to.extend_from_slice(&init.max_background.to_ne_bytes());
    to.extend_from_slice(&congestion.to_ne_bytes());
    put32(to, &[init.max_write, init.time_gran]);
    let pages = init.max_write.div_ceil(4096) as u16;
    to.extend_from_slice(&pages.to_ne_bytes());
    to.extend_from_slice(&0u16.to_ne_bytes());
    // Allow one stacked file system: ours may be the backing of one other, and no more.
    let depth = u32::from(init.flags.contains(Init::PASSTHROUGH));
    put32(to, &[(flags >> 32) as u32, depth, 0, 0, 0, 0, 0, 0]);
}

/// Appends a directory entry to a listing, with attributes if `plus` is given. False if it does not fit
/// into `max` bytes.
pub fn put_dirent(
    to: &mut Vec<u8>,
    max: usize,
    plus: Option<&EntryOut>,
    (ino, kind): (u64, u32),
    (offset, name): (u64, &[u8]),
) -> bool {
    let entry_bytes = if plus.is_some() { 128 } else { 0 };
    let length = (entry_bytes + 24 + name.len()).next_multiple_of(8);
    if to.len() + length > max {
        return false;
    }
    let end = to.len() + length;
    if let Some(entry) = plus {
        put_entry(to, entry);
    }
    put(to, &[ino, offset]);
    put32(to, &[name.len() as u32, kind]);
    to.extend_from_slice(name);
    to.resize(end, 0);
    true
}

/// A notification: its code and its body.
pub fn notification(code: i32, body: &[u8]) -> Vec<u8> {
    let mut bytes = out_header(OUT_HEADER_BYTES + body.len(), code, 0).to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Invalidates the attributes of a node, and a range of its data. With a negative offset: the attributes
/// only.
pub fn inval_inode(node: u64, offset: i64, length: i64) -> Vec<u8> {
    let mut body = Vec::with_capacity(24);
    put(&mut body, &[node, offset as u64, length as u64]);
    notification(super::abi::NOTIFY_INVAL_INODE, &body)
}

/// Invalidates a name in a directory.
pub fn inval_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    entry_notification(parent, name, 0)
}

/// Expires a name: the kernel keeps it but looks it up before the next use. Linux before 6.2 invalidates it
/// instead.
pub fn expire_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    entry_notification(parent, name, EXPIRE_ONLY)
}

fn entry_notification(parent: u64, name: &[u8], flags: u32) -> Vec<u8> {
    let mut body = Vec::with_capacity(24 + name.len());
    put(&mut body, &[parent]);
    put32(&mut body, &[name.len() as u32, flags]);
    body.extend_from_slice(name);
    body.push(0);
    notification(super::abi::NOTIFY_INVAL_ENTRY, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length_of(answer: Answer) -> usize {
        with_reply(1, &Ok(answer), |parts| parts.iter().map(|part| part.len()).sum::<usize>() - 16)
    }

    #[test]
    fn answers_have_the_size_that_the_kernel_expects() {
        let open = OpenOut { fh: 1, flags: Fopen::KEEP_CACHE, backing: 0 };
        let lock = super::super::request::FileLock { start: 0, end: 1, kind: 0, pid: 0 };
        let init = InitOut {
            max_readahead: 0,
            flags: Init::empty(),
            max_background: 16,
            max_write: 1 << 20,
            time_gran: 1,
        };
        let sizes = [
            (Answer::Done, 0),
            (Answer::Entry(EntryOut::default()), 128),
            (Answer::Attr(Duration::ZERO, Attr::default()), 104),
            (Answer::Open(open), 16),
            (Answer::Create(EntryOut::default(), open), 144),
            (Answer::Written(1), 8),
            (Answer::Statfs(Statfs::default()), 80),
            (Answer::Lock(lock), 24),
            (Answer::Seek(1), 8),
            (Answer::Init(init), 64),
            (Answer::Data(Bytes::from_static(b"abc")), 3),
        ];
        for (answer, size) in sizes {
            assert_eq!(length_of(answer.clone()), size, "{answer:?}");
        }
    }

    #[test]
    fn a_listing_is_aligned_and_bounded() {
        let mut to = Vec::new();
        assert!(put_dirent(&mut to, 64, None, (5, 8), (3, b"a")));
        assert_eq!(to.len(), 32);
        assert!(put_dirent(&mut to, 64, None, (6, 8), (4, b"12345678")));
        assert_eq!(to.len(), 64);
        assert!(!put_dirent(&mut to, 64, None, (6, 8), (4, b"x")), "full");
        let mut plus = Vec::new();
        assert!(put_dirent(&mut plus, 4096, Some(&EntryOut::default()), (5, 8), (3, b"ab")));
        assert_eq!(plus.len(), 160);
    }

    #[test]
    fn a_failure_is_a_header_with_the_error_below_zero() {
        with_reply(9, &Err(Errno::NOENT), |parts| {
            let error = i32::from_ne_bytes(parts[0][4..8].try_into().unwrap());
            assert_eq!((error, parts[1].len(), parts[2].len()), (-2, 0, 0));
        });
    }
}
