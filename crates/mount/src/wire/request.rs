//! Parses the kernel's requests.

use bytes::Bytes;

use super::abi::{
    Fattr, IN_HEADER_BYTES, Init, LK_FLOCK, READ_LOCKOWNER, RELEASE_FLOCK_UNLOCK, WRITE_CACHE,
    WRITE_KILL_SUIDGID, WRITE_LOCKOWNER, op,
};

/// Encoded size of one node of a BATCH_FORGET.
const FORGET_BYTES: usize = 16;

/// The header of a request: the requester and the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The id that the reply repeats.
    pub unique: u64,
    /// The node.
    pub node: u64,
    /// File system user id of the requester.
    pub uid: u32,
    /// File system group id of the requester.
    pub gid: u32,
    /// The requesting thread. Zero if it is outside our process name space, or the kernel itself.
    pub pid: u32,
}

/// A byte-range lock of the kernel. Both ends are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` is the end of the file.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The process that holds it.
    pub pid: u32,
}

/// The arguments of a SETATTR, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttr {
    /// Which of the following fields are valid.
    pub valid: Fattr,
    /// Size in bytes.
    pub size: u64,
    /// Seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Mode with type.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Flags of a READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadHow {
    /// Bypasses the page cache.
    pub direct: bool,
}

/// Flags of a WRITE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteHow {
    /// The flags of the open file: `O_APPEND`, `O_SYNC`, `O_DSYNC`.
    pub flags: u32,
    /// Bypasses the page cache: the kernel holds no page locked for it.
    pub direct: bool,
    /// The set-id bits of the file must be cleared: the writer has no privilege to keep them.
    pub kill_set_id: bool,
}

/// A request. Names and values are unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the structures of `linux/fuse.h`")]
pub enum Request {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: Init,
    },
    Destroy,
    Interrupt {
        unique: u64,
    },
    Forget(Vec<(u64, u64)>),
    Lookup {
        name: Bytes,
    },
    Getattr,
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: Bytes,
        target: Bytes,
    },
    Mknod {
        name: Bytes,
        mode: u32,
        rdev: u32,
    },
    Mkdir {
        name: Bytes,
        mode: u32,
    },
    Unlink {
        name: Bytes,
    },
    Rmdir {
        name: Bytes,
    },
    Rename {
        name: Bytes,
        new_parent: u64,
        new_name: Bytes,
        flags: u32,
    },
    Link {
        old: u64,
        name: Bytes,
    },
    Open {
        flags: u32,
    },
    Create {
        name: Bytes,
        flags: u32,
        mode: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        how: ReadHow,
    },
    Write {
        fh: u64,
        offset: u64,
        data: Bytes,
        how: WriteHow,
    },
    Statfs,
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Release {
        fh: u64,
        lock_owner: u64,
        unlock_flock: bool,
    },
    Fsync {
        fh: u64,
    },
    Opendir,
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir,
    Getxattr {
        name: Bytes,
        size: u32,
    },
    Setxattr {
        name: Bytes,
        value: Bytes,
        flags: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Bytes,
    },
    Getlk {
        fh: u64,
        owner: u64,
        lock: FileLock,
        flock: bool,
    },
    Setlk {
        fh: u64,
        owner: u64,
        lock: FileLock,
        flock: bool,
        wait: bool,
    },
    Access {
        mask: u32,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        fh: u64,
        offset: u64,
        to_node: u64,
        to_fh: u64,
        to_offset: u64,
        length: u64,
    },
    /// An opcode that this front does not know. The reply is ENOSYS, and the kernel does not send it again.
    Unknown(u32),
}

/// Parses the header of a request, and its opcode. `None` if the message is cut short.
pub fn header(bytes: &[u8]) -> Option<(Header, u32)> {
    let mut fields = Fields(bytes);
    let length = fields.u32()? as usize;
    let opcode = fields.u32()?;
    let (unique, node) = (fields.u64()?, fields.u64()?);
    let (uid, gid, pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
    fields.u32()?;
    (length == bytes.len()).then_some((Header { unique, node, uid, gid, pid }, opcode))
}

/// Parses the body of a request. `bytes` is the result of one read of the device, with its header.
pub fn parse(opcode: u32, bytes: &Bytes) -> Option<Request> {
    let complete = bytes;
    let mut fields = Fields(bytes.get(IN_HEADER_BYTES..)?);
    let f = &mut fields;
    Some(match opcode {
        op::INIT => init(f)?,
        op::DESTROY => Request::Destroy,
        op::INTERRUPT => Request::Interrupt { unique: f.u64()? },
        op::FORGET => Request::Forget(vec![(header(complete)?.0.node, f.u64()?)]),
        op::BATCH_FORGET => batch_forget(f)?,
        op::LOOKUP => Request::Lookup { name: f.name()? },
        op::GETATTR => Request::Getattr,
        op::SETATTR => Request::Setattr(set_attr(f)?),
        op::READLINK => Request::Readlink,
        op::SYMLINK => Request::Symlink { name: f.name()?, target: f.name()? },
        op::MKNOD => {
            let (mode, rdev, _umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            Request::Mknod { mode, rdev, name: f.name()? }
        }
        op::MKDIR => {
            let (mode, _umask) = (f.u32()?, f.u32()?);
            Request::Mkdir { mode, name: f.name()? }
        }
        op::UNLINK => Request::Unlink { name: f.name()? },
        op::RMDIR => Request::Rmdir { name: f.name()? },
        op::RENAME => {
            Request::Rename { new_parent: f.u64()?, flags: 0, name: f.name()?, new_name: f.name()? }
        }
        op::RENAME2 => {
            let (new_parent, flags, _) = (f.u64()?, f.u32()?, f.u32()?);
            Request::Rename { new_parent, flags, name: f.name()?, new_name: f.name()? }
        }
        op::LINK => Request::Link { old: f.u64()?, name: f.name()? },
        op::OPEN => Request::Open { flags: f.u32()? },
        op::OPENDIR => Request::Opendir,
        op::CREATE => {
            let (flags, mode, _umask, _open) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            Request::Create { flags, mode, name: f.name()? }
        }
        op::READ => read(f).map(|(fh, offset, size, how)| Request::Read { fh, offset, size, how })?,
        op::READDIR | op::READDIRPLUS => {
            let plus = opcode == op::READDIRPLUS;
            read(f).map(|(fh, offset, size, _)| Request::Readdir { fh, offset, size, plus })?
        }
        op::WRITE => write(f, complete)?,
        op::STATFS => Request::Statfs,
        op::FLUSH => {
            let (fh, _) = (f.u64()?, f.u64()?);
            Request::Flush { fh, lock_owner: f.u64()? }
        }
        op::RELEASE => {
            let (fh, _flags, release) = (f.u64()?, f.u32()?, f.u32()?);
            Request::Release { fh, unlock_flock: release & RELEASE_FLOCK_UNLOCK != 0, lock_owner: f.u64()? }
        }
        op::RELEASEDIR => Request::Releasedir { fh: f.u64()? },
        op::FSYNC => Request::Fsync { fh: f.u64()? },
        op::FSYNCDIR => Request::Fsyncdir,
        op::ACCESS => Request::Access { mask: f.u32()? },
        _ => return extended(opcode, f),
    })
}

/// Extended attributes, locks, and the opcodes added later.
fn extended(opcode: u32, f: &mut Fields<'_>) -> Option<Request> {
    Some(match opcode {
        op::GETXATTR => {
            let (size, _) = (f.u32()?, f.u32()?);
            Request::Getxattr { size, name: f.name()? }
        }
        op::LISTXATTR => Request::Listxattr { size: f.u32()? },
        op::SETXATTR => {
            let (size, flags) = (f.u32()? as usize, f.u32()?);
            let name = f.name()?;
            Request::Setxattr { name, value: Bytes::copy_from_slice(f.take(size)?), flags }
        }
        op::REMOVEXATTR => Request::Removexattr { name: f.name()? },
        op::GETLK => {
            let (fh, owner, lock, flock) = lock(f)?;
            Request::Getlk { fh, owner, lock, flock }
        }
        op::SETLK | op::SETLKW => {
            let (fh, owner, lock, flock) = lock(f)?;
            Request::Setlk { fh, owner, lock, flock, wait: opcode == op::SETLKW }
        }
        op::FALLOCATE => {
            Request::Fallocate { fh: f.u64()?, offset: f.u64()?, length: f.u64()?, mode: f.u32()? }
        }
        op::LSEEK => Request::Lseek { fh: f.u64()?, offset: f.u64()?, whence: f.u32()? },
        op::COPY_FILE_RANGE => Request::CopyFileRange {
            fh: f.u64()?,
            offset: f.u64()?,
            to_node: f.u64()?,
            to_fh: f.u64()?,
            to_offset: f.u64()?,
            length: f.u64()?,
        },
        unknown => Request::Unknown(unknown),
    })
}

fn init(f: &mut Fields<'_>) -> Option<Request> {
    let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let mut flags = u64::from(low);
    if flags & Init::INIT_EXT.bits() != 0 {
        flags |= u64::from(f.u32()?) << 32;
    }
    Some(Request::Init { major, minor, max_readahead, flags: Init::from_bits_truncate(flags) })
}

fn batch_forget(f: &mut Fields<'_>) -> Option<Request> {
    let (count, _) = (f.u32()? as usize, f.u32()?);
    if count > f.0.len() / FORGET_BYTES {
        return None;
    }
    let mut nodes = Vec::with_capacity(count);
    for _ in 0..count {
        nodes.push((f.u64()?, f.u64()?));
    }
    Some(Request::Forget(nodes))
}

fn set_attr(f: &mut Fields<'_>) -> Option<SetAttr> {
    let (valid, _, _fh, size, _owner) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?);
    let (atime, mtime, _ctime) = (f.u64()? as i64, f.u64()? as i64, f.u64()?);
    let (atime_nanos, mtime_nanos, _) = (f.u32()?, f.u32()?, f.u32()?);
    let (mode, _, uid, gid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let (atime, mtime) = ((atime, atime_nanos), (mtime, mtime_nanos));
    Some(SetAttr { valid: Fattr::from_bits_truncate(valid), size, atime, mtime, mode, uid, gid })
}

/// The beginning of `struct fuse_read_in`, which READ and READDIR share.
fn read(f: &mut Fields<'_>) -> Option<(u64, u64, u32, ReadHow)> {
    let (fh, offset, size, flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
    Some((fh, offset, size, ReadHow { direct: flags & READ_LOCKOWNER != 0 }))
}

fn write(f: &mut Fields<'_>, complete: &Bytes) -> Option<Request> {
    let (fh, offset, size, write_flags) = (f.u64()?, f.u64()?, f.u32()? as usize, f.u32()?);
    let (_owner, flags, _) = (f.u64()?, f.u32()?, f.u32()?);
    let data = f.take(size)?;
    let kill_set_id = write_flags & WRITE_KILL_SUIDGID != 0;
    let direct = write_flags & WRITE_LOCKOWNER != 0;
    // A page is written at its own offset, through any open of the file.
    let flags = if write_flags & WRITE_CACHE == 0 { flags } else { flags & !(libc::O_APPEND as u32) };
    let how = WriteHow { flags, direct, kill_set_id };
    Some(Request::Write { fh, offset, data: complete.slice_ref(data), how })
}

fn lock(f: &mut Fields<'_>) -> Option<(u64, u64, FileLock, bool)> {
    let (fh, owner) = (f.u64()?, f.u64()?);
    let lock = FileLock { start: f.u64()?, end: f.u64()?, kind: f.u32()?, pid: f.u32()? };
    Some((fh, owner, lock, f.u32()? & LK_FLOCK != 0))
}

/// The unparsed rest of a request.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Bytes up to a NUL.
    fn name(&mut self) -> Option<Bytes> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let name = Bytes::copy_from_slice(self.take(length)?);
        self.take(1)?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::abi::WRITE_OVERHEAD_BYTES;
    use proptest::prelude::*;

    fn message(opcode: u32, body: &[u8]) -> Bytes {
        let mut bytes = Vec::new();
        bytes.extend(((IN_HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(9u64.to_ne_bytes());
        for word in [1000u32, 100, 4711, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes.into()
    }

    #[test]
    fn a_request_is_its_fields() {
        let bytes = message(op::LOOKUP, b"caf\xe9\0");
        let (header, opcode) = header(&bytes).unwrap();
        assert_eq!(header, Header { unique: 7, node: 9, uid: 1000, gid: 100, pid: 4711 });
        let name = Bytes::from_static(b"caf\xe9");
        assert_eq!(parse(opcode, &bytes), Some(Request::Lookup { name }));
        let mut body = Vec::new();
        [3u64, 4096].iter().for_each(|word| body.extend(word.to_ne_bytes()));
        [5u32, WRITE_KILL_SUIDGID | WRITE_LOCKOWNER].iter().for_each(|word| body.extend(word.to_ne_bytes()));
        body.extend([0; 16]);
        body.extend(b"hello");
        let bytes = message(op::WRITE, &body);
        let data = Bytes::from_static(b"hello");
        let how = WriteHow { flags: 0, direct: true, kill_set_id: true };
        let wanted = Request::Write { fh: 3, offset: 4096, data, how };
        assert_eq!(parse(op::WRITE, &bytes), Some(wanted));
        assert_eq!(parse(9999, &message(9999, b"")), Some(Request::Unknown(9999)));
    }

    /// As many as the kernel puts into a reader's buffer: it accepts no reply to a FORGET, not even an
    /// error.
    #[test]
    fn nodes_are_given_back_as_many_at_a_time_as_the_kernel_likes() {
        let most = ((1 << 20) + WRITE_OVERHEAD_BYTES - IN_HEADER_BYTES - 8) / 16;
        let mut body = Vec::new();
        body.extend((most as u32).to_ne_bytes());
        body.extend([0; 4]);
        (0..most as u64).for_each(|node| body.extend([node, 2].map(u64::to_ne_bytes).concat()));
        let Some(Request::Forget(nodes)) = parse(op::BATCH_FORGET, &message(op::BATCH_FORGET, &body)) else {
            panic!("refused")
        };
        assert!(nodes.len() == most && most == 65_789 && nodes[most - 1] == (most as u64 - 1, 2));
        body.truncate(body.len() - 1);
        assert_eq!(parse(op::BATCH_FORGET, &message(op::BATCH_FORGET, &body)), None);
    }

    #[test]
    fn what_is_cut_or_lies_about_its_length_is_refused() {
        assert_eq!(parse(op::LOOKUP, &message(op::LOOKUP, b"no end")), None);
        let complete = message(op::GETATTR, &[0; 16]);
        assert!(header(&complete[..complete.len() - 1]).is_none());
        let mut many = Vec::new();
        many.extend(u32::MAX.to_ne_bytes());
        many.extend([0; 4]);
        assert_eq!(parse(op::BATCH_FORGET, &message(op::BATCH_FORGET, &many)), None);
    }

    proptest! {
        /// No input makes it panic, or makes it produce more data than the message has.
        #[test]
        fn nothing_panics(opcode in 0..60u32, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = message(opcode, &body);
            if let Some(Request::Write { data, .. }) = parse(opcode, &bytes) {
                prop_assert!(data.len() <= body.len());
            }
        }
    }
}
