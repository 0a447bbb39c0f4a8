//! Helpers for unit tests.

use vfs::{Attributes, Device, FileType, Fsid, Timestamp};

/// Attributes of a regular file with this size and ctime.
pub fn attributes(size: u64, ctime_seconds: i64) -> Attributes {
    let time = Timestamp::new(ctime_seconds, 0);
    Attributes {
        file_type: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        rdev: Device::default(),
        fsid: Fsid::default(),
        fileid: 1,
        atime: time,
        mtime: time,
        ctime: time,
        change: ctime_seconds as u64,
    }
}
