//! File attributes: from statx(2) to NFS.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use vfs::{Attributes, Device, FileType, Fsid, Timestamp, WccAttributes};

/// The result of one `statx`.
#[derive(Clone, Copy)]
pub(crate) struct Stat {
    statx: Statx,
    change: u64,
}

impl Stat {
    /// The attributes of `file` now. Needs no permission.
    pub(crate) fn of(file: impl AsFd) -> Result<Stat, Errno> {
        Stat::at(file, c"", AtFlags::EMPTY_PATH)
    }

    /// The attributes of the file under a name now. A symbolic link is not followed, and an automount is
    /// not triggered.
    pub(crate) fn child(directory: impl AsFd, name: &CStr) -> Result<Stat, Errno> {
        Stat::at(directory, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
    }

    fn at(file: impl AsFd, name: &CStr, flags: AtFlags) -> Result<Stat, Errno> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let statx = rustix::fs::statx(file, name, flags, wanted)?;
        Ok(Stat { statx, change: timestamp(statx.stx_ctime).as_nanos() as u64 })
    }

    pub(crate) fn attributes(&self, fsid: u64) -> Attributes {
        let stat = &self.statx;
        Attributes {
            file_type: self.file_type(),
            mode: self.mode(),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            used: stat.stx_blocks.saturating_mul(512),
            rdev: Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor },
            fsid: Fsid { major: fsid, minor: 0 },
            fileid: stat.stx_ino,
            atime: timestamp(stat.stx_atime),
            mtime: timestamp(stat.stx_mtime),
            ctime: self.ctime(),
            change: self.change,
        }
    }

    /// Permission bits.
    pub(crate) fn mode(&self) -> u32 {
        u32::from(self.statx.stx_mode) & 0o7777
    }

    pub(crate) fn wcc(&self) -> WccAttributes {
        WccAttributes {
            size: self.size(),
            mtime: timestamp(self.statx.stx_mtime),
            ctime: self.ctime(),
            change: self.change,
        }
    }

    /// The change attribute: ctime in nanoseconds, unless [`Stat::with_change`] has replaced it.
    pub(crate) fn change(&self) -> u64 {
        self.change
    }

    /// The same with the change attribute from [`crate::change_attribute`].
    pub(crate) fn with_change(self, change: u64) -> Stat {
        Stat { change, ..self }
    }

    pub(crate) fn file_type(&self) -> FileType {
        match rustix::fs::FileType::from_raw_mode(self.statx.stx_mode.into()) {
            rustix::fs::FileType::Directory => FileType::Directory,
            rustix::fs::FileType::Symlink => FileType::Symlink,
            rustix::fs::FileType::BlockDevice => FileType::Block,
            rustix::fs::FileType::CharacterDevice => FileType::Character,
            rustix::fs::FileType::Fifo => FileType::Fifo,
            rustix::fs::FileType::Socket => FileType::Socket,
            _ => FileType::Regular,
        }
    }

    pub(crate) fn ctime(&self) -> Timestamp {
        timestamp(self.statx.stx_ctime)
    }

    /// Seconds of atime and mtime, where an exclusive create stores its verifier.
    pub(crate) fn seconds(&self) -> (i64, i64) {
        (self.statx.stx_atime.tv_sec, self.statx.stx_mtime.tv_sec)
    }

    pub(crate) fn size(&self) -> u64 {
        self.statx.stx_size
    }

    /// Bytes that it takes on the disk.
    pub(crate) fn used(&self) -> u64 {
        self.statx.stx_blocks.saturating_mul(512)
    }

    pub(crate) fn uid(&self) -> u32 {
        self.statx.stx_uid
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.statx.stx_nlink > 0
    }

    pub(crate) fn inode(&self) -> u64 {
        self.statx.stx_ino
    }

    /// The device number of the file system, valid while it is mounted.
    pub(crate) fn device(&self) -> (u32, u32) {
        (self.statx.stx_dev_major, self.statx.stx_dev_minor)
    }

    /// The mount through which it was reached; `None` before Linux 5.8.
    pub(crate) fn mount_id(&self) -> Option<u64> {
        StatxFlags::from_bits_retain(self.statx.stx_mask)
            .contains(StatxFlags::MNT_ID)
            .then_some(self.statx.stx_mnt_id)
    }

    /// Creation time of the inode in nanoseconds. It distinguishes the inode from a later one with the same
    /// number. 0 if the file system does not store it.
    pub(crate) fn birth(&self) -> u64 {
        if StatxFlags::from_bits_retain(self.statx.stx_mask).contains(StatxFlags::BTIME) {
            timestamp(self.statx.stx_btime).as_nanos() as u64
        } else {
            0
        }
    }
}

fn timestamp(time: StatxTimestamp) -> Timestamp {
    Timestamp::new(time.tv_sec, time.tv_nsec)
}
