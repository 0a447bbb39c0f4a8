//! Converts from the types of `vfs` to those of v2, which NQNFS uses in part. Errors become status codes only
//! here.

use protocol::nfs2::{Fattr, Ftype, Stat, Timeval};
use vfs::{Attributes, Device, FileType, Status, Timestamp};

use crate::exports::Export;

/// `stat` of an error.
pub(crate) fn stat(status: Status) -> Stat {
    match status {
        Status::Perm => Stat::Perm,
        Status::NoEnt => Stat::NoEnt,
        Status::Nxio => Stat::Nxio,
        Status::Access
        | Status::NoTicket
        | Status::ShareDenied
        | Status::Denied
        | Status::LocksHeld
        | Status::OpenMode
        | Status::Inval
        | Status::Xdev => Stat::Acces,
        Status::Exist => Stat::Exist,
        Status::NoDev => Stat::NoDev,
        Status::NotDir => Stat::NotDir,
        Status::IsDir => Stat::IsDir,
        Status::FBig => Stat::FBig,
        Status::NoSpc => Stat::NoSpc,
        Status::Rofs => Stat::Rofs,
        Status::NameTooLong => Stat::NameTooLong,
        Status::NotEmpty => Stat::NotEmpty,
        Status::Dquot => Stat::Dquot,
        Status::Stale | Status::BadHandle => Stat::Stale,
        Status::Io
        | Status::Mlink
        | Status::NotSync
        | Status::BadCookie
        | Status::NotSupp
        | Status::TooSmall
        | Status::ServerFault
        | Status::BadType
        | Status::Delay
        | Status::Resource
        | Status::Grace
        | Status::NoGrace
        | Status::ReclaimBad
        | Status::NoXattr
        | Status::XattrTooBig
        | Status::BadStateId => Stat::Io,
    }
}

/// The attributes of a file of this export.
pub(crate) fn fattr(export: &Export, attributes: &Attributes) -> Fattr {
    Fattr {
        ftype: ftype(attributes.file_type),
        mode: attributes.mode | type_bits(attributes.file_type),
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size.min(u32::MAX.into()) as u32,
        blocksize: 4096,
        rdev: rdev(attributes.rdev),
        blocks: attributes.used.div_ceil(512).min(u32::MAX.into()) as u32,
        fsid: fileid(export.fsid_salt.over(attributes.fsid.major ^ attributes.fsid.minor.rotate_left(32))),
        fileid: fileid(attributes.fileid),
        atime: timeval(attributes.atime),
        mtime: timeval(attributes.mtime),
        ctime: timeval(attributes.ctime),
    }
}

/// Inode numbers have 32 bits in v2, so the halves are folded.
pub(super) fn fileid(fileid: u64) -> u32 {
    (fileid ^ (fileid >> 32)) as u32
}

fn ftype(file_type: FileType) -> Ftype {
    match file_type {
        FileType::Regular => Ftype::Reg,
        FileType::Directory => Ftype::Dir,
        FileType::Block => Ftype::Blk,
        FileType::Character => Ftype::Chr,
        FileType::Symlink => Ftype::Lnk,
        FileType::Socket => Ftype::Sock,
        // Named pipes are sent as character devices with this number, as by Sun's and Linux's servers.
        FileType::Fifo => Ftype::Fifo,
    }
}

/// The `S_IFMT` bits of `st_mode`.
fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Fifo => 0o010_000,
        FileType::Character => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::Block => 0o060_000,
        FileType::Regular => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

/// The type of object that the `S_IFMT` bits of a mode make CREATE create.
pub(crate) fn file_type(mode: u32) -> FileType {
    match mode & 0o170_000 {
        0o010_000 => FileType::Fifo,
        0o020_000 => FileType::Character,
        0o060_000 => FileType::Block,
        0o140_000 => FileType::Socket,
        _ => FileType::Regular,
    }
}

fn rdev(device: Device) -> u32 {
    ((device.major & 0xfff) << 8) | (device.minor & 0xff) | ((device.minor & 0xfff00) << 12)
}

/// The inverse of [`rdev`]. CREATE carries a device number in the size.
pub(crate) fn device(rdev: u32) -> Device {
    Device { major: (rdev >> 8) & 0xfff, minor: (rdev & 0xff) | ((rdev >> 12) & 0xfff00) }
}

fn timeval(time: Timestamp) -> Timeval {
    Timeval { seconds: time.seconds as u32, useconds: time.nanoseconds / 1000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for device_number in [Device { major: 1, minor: 3 }, Device { major: 259, minor: 70_000 }] {
            assert_eq!(device(rdev(device_number)), device_number);
        }
    }
}
