//! `nqnfs_fattr`, `nqnfs_sattr` and their times.

use xdr::Xdr;

use super::Modifyrev;
use crate::nfs2::Ftype;

/// A word of [`Sattr`] with this value is not changed. For its times, this applies to the seconds.
pub const KEEP: u32 = u32::MAX;
/// A size of [`Sattr`] with this value is not changed.
pub const KEEP_SIZE: u64 = u64::MAX;

/// `nqnfs_time`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Xdr)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Nanoseconds in the second.
    pub nano_seconds: u32,
}

/// `nqnfs_fattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Fattr {
    /// Type of file.
    pub ftype: Ftype,
    /// The complete `st_mode`: permission bits, and the type again.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes in a block of disk.
    pub blocksize: u32,
    /// Device number.
    pub rdev: u32,
    /// Bytes of disk in use.
    pub bytes: u64,
    /// File system.
    pub fsid: u32,
    /// Inode number.
    pub fid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// 4.4BSD's `va_flags`.
    pub flags: u32,
    /// 4.4BSD's `va_gen`.
    pub generation: u32,
    /// See [`Modifyrev`].
    pub rev: Modifyrev,
}

/// `nqnfs_sattr`: fields equal to [`KEEP`] or [`KEEP_SIZE`] are not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Sattr {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// 4.4BSD's `va_flags`.
    pub flags: u32,
    /// 32 bits in the paper's appendix, which does not state its purpose.
    pub rev: u32,
}

impl Sattr {
    /// Changes nothing.
    pub const KEEP: Sattr = Sattr {
        mode: KEEP,
        uid: KEEP,
        gid: KEEP,
        size: KEEP_SIZE,
        atime: Time { seconds: KEEP, nano_seconds: KEEP },
        mtime: Time { seconds: KEEP, nano_seconds: KEEP },
        flags: KEEP,
        rev: KEEP,
    };
}
