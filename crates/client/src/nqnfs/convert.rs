//! Converts values of the protocol's appendix to values of the interface, and back. Statuses are mapped only
//! here.

use bytes::Bytes;
use protocol::nfs2::{self, DirOpArgs, Filename, Ftype};
use protocol::nqnfs::{self, AccessArgs, Fattr, KEEP, KEEP_SIZE, Sattr, Stat, StatfsOk, Time};
use vfs::{
    AccessMask, Attributes, Device, Error, Features, FileType, FsLimits, FsStat, Fsid, Handle, Name, Result,
    SetAttributes, SetTime, Status, Timestamp,
};

/// The nanoseconds that mean the server's own time.
const SERVER_TIME: u32 = 1_000_000_000;

/// Converts a status of the server.
pub(super) fn status(status: Stat) -> Status {
    match status {
        Stat::V2(status) => status_v2(status),
        Stat::Autherr => Status::Access,
        Stat::Expired | Stat::Trylater => Status::Delay,
    }
}

fn status_v2(status: nfs2::Stat) -> Status {
    use nfs2::Stat;
    match status {
        Stat::Perm => Status::Perm,
        Stat::NoEnt => Status::NoEnt,
        Stat::Nxio => Status::Nxio,
        Stat::Acces => Status::Access,
        Stat::Exist => Status::Exist,
        Stat::NoDev => Status::NoDev,
        Stat::NotDir => Status::NotDir,
        Stat::IsDir => Status::IsDir,
        Stat::FBig => Status::FBig,
        Stat::NoSpc => Status::NoSpc,
        Stat::Rofs => Status::Rofs,
        Stat::NameTooLong => Status::NameTooLong,
        Stat::NotEmpty => Status::NotEmpty,
        Stat::Dquot => Status::Dquot,
        Stat::Stale => Status::Stale,
        Stat::Io | Stat::Wflush | Stat::Other(_) => Status::Io,
    }
}

/// Encodes a handle. A handle of another length never came from the server.
pub(super) fn to_wire(handle: &Handle) -> Result<nqnfs::Handle> {
    handle.as_bytes().try_into().map_err(|_| Error::from(Status::BadHandle))
}

/// Decodes a handle.
pub(super) fn from_wire(handle: &nqnfs::Handle) -> Result<Handle> {
    Handle::new(handle).ok_or_else(|| Status::ServerFault.into())
}

/// Encodes a directory and a name.
pub(super) fn place(directory: &Handle, name: &Name) -> Result<DirOpArgs> {
    Ok(DirOpArgs { dir: to_wire(directory)?, name: filename(name.as_bytes())? })
}

/// Encodes a name.
pub(super) fn filename(name: &[u8]) -> Result<Filename> {
    Filename::new(Bytes::copy_from_slice(name)).ok_or_else(|| Status::NameTooLong.into())
}

/// The arguments of ACCESS; the protocol has three rights.
pub(super) fn rights(handle: &Handle, asked: AccessMask) -> Result<AccessArgs> {
    Ok(AccessArgs {
        file: to_wire(handle)?,
        read: asked.intersects(READ),
        write: asked.intersects(WRITE),
        exec: asked.intersects(EXEC),
    })
}

/// The three rights of ACCESS in terms of the interface.
pub(super) const READ: AccessMask = AccessMask::READ;
pub(super) const WRITE: AccessMask = AccessMask::MODIFY.union(AccessMask::EXTEND).union(AccessMask::DELETE);
pub(super) const EXEC: AccessMask = AccessMask::LOOKUP.union(AccessMask::EXECUTE);

/// Decodes attributes. The change attribute is `modifyrev`.
pub(super) fn attributes(from: &Fattr) -> Attributes {
    Attributes {
        file_type: file_type(from),
        mode: from.mode & 0o7777,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        used: from.bytes,
        rdev: Device {
            major: (from.rdev >> 8) & 0xfff,
            minor: (from.rdev & 0xff) | ((from.rdev >> 12) & 0xfff00),
        },
        fsid: Fsid { major: from.fsid.into(), minor: 0 },
        fileid: from.fid.into(),
        atime: timestamp(from.atime),
        mtime: timestamp(from.mtime),
        ctime: timestamp(from.ctime),
        change: from.rev,
    }
}

/// The file type. As in version 2, a named pipe comes as a character device with its own type in the mode.
fn file_type(from: &Fattr) -> FileType {
    match from.ftype {
        _ if from.mode & 0o170_000 == 0o010_000 => FileType::Fifo,
        Ftype::Dir => FileType::Directory,
        Ftype::Blk => FileType::Block,
        Ftype::Chr => FileType::Character,
        Ftype::Lnk => FileType::Symlink,
        Ftype::Sock => FileType::Socket,
        Ftype::Fifo => FileType::Fifo,
        Ftype::Reg | Ftype::Non | Ftype::Bad => FileType::Regular,
    }
}

fn timestamp(from: Time) -> Timestamp {
    Timestamp::new(from.seconds.into(), from.nano_seconds.min(999_999_999))
}

/// Encodes attributes to set.
pub(super) fn sattr(from: &SetAttributes) -> Sattr {
    let time = |time: Option<SetTime>| match time {
        None => Time { seconds: KEEP, nano_seconds: KEEP },
        Some(SetTime::Server) => Time { seconds: 0, nano_seconds: SERVER_TIME },
        Some(SetTime::Client(stamp)) => Time {
            seconds: stamp.seconds.clamp(0, i64::from(KEEP - 1)) as u32,
            nano_seconds: stamp.nanoseconds,
        },
    };
    Sattr {
        mode: from.mode.map_or(KEEP, |mode| mode & 0o7777),
        uid: from.uid.unwrap_or(KEEP),
        gid: from.gid.unwrap_or(KEEP),
        size: from.size.unwrap_or(KEEP_SIZE),
        atime: time(from.atime),
        mtime: time(from.mtime),
        ..Sattr::KEEP
    }
}

/// The `S_IFMT` bits of an object to CREATE, and its device number.
pub(super) fn special(file_type: FileType, device: Device) -> Option<(u32, u64)> {
    let number = ((device.major & 0xfff) << 8) | (device.minor & 0xff) | ((device.minor & 0xfff00) << 12);
    match file_type {
        FileType::Fifo => Some((0o010_000, 0)),
        FileType::Character => Some((0o020_000, number.into())),
        FileType::Block => Some((0o060_000, number.into())),
        FileType::Socket => Some((0o140_000, 0)),
        FileType::Regular | FileType::Directory | FileType::Symlink => None,
    }
}

/// Decodes the results of STATFS.
pub(super) fn space(ok: &StatfsOk) -> FsStat {
    let bytes = |blocks: u32| u64::from(blocks) * u64::from(ok.bsize);
    FsStat {
        total_bytes: bytes(ok.blocks),
        free_bytes: bytes(ok.bfree),
        available_bytes: bytes(ok.bavail),
        total_files: ok.files.into(),
        free_files: ok.files_free.into(),
        available_files: ok.files_free.into(),
        invariant_seconds: 0,
    }
}

/// The limits. Leases come with opens, so the client offers opens.
pub(super) fn limits(transfer_max: u32) -> FsLimits {
    FsLimits {
        read_max: transfer_max,
        read_preferred: transfer_max,
        write_max: transfer_max,
        write_preferred: transfer_max,
        features: Features::STATE | Features::LEASES_ALONE,
        ..FsLimits::default()
    }
}
