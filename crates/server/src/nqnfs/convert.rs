//! Converts between the types of the wire and those of `vfs`. Errors become status codes only here.

use protocol::nfs2;
use protocol::nqnfs::{Fattr, KEEP, KEEP_SIZE, Sattr, Stat, Time};
use vfs::{Attributes, SetAttributes, SetTime, Status, Timestamp};

use super::Asked;
use crate::exports::Export;
use crate::narrow::convert as v2;

/// Nanoseconds that mean the server's current time: v2's convention in this unit.
const SERVER_TIME: u32 = 1_000_000_000;

/// `stat` of an error: that of v2, and TRYLATER for conditions that pass.
pub(super) fn stat(status: Status) -> Stat {
    match status {
        Status::Delay | Status::Grace | Status::Resource => Stat::Trylater,
        other => Stat::V2(v2::stat(other)),
    }
}

/// Attributes with their `modifyrev`.
///
/// # Errors
/// `Delay` if the `modifyrev` cannot be given out.
pub(super) async fn fattr(
    asked: &Asked<'_>,
    export: &Export,
    attributes: &Attributes,
) -> Result<Fattr, Status> {
    let rev = asked.front.nqnfs.rev(attributes.change).await?;
    let narrow = v2::fattr(export, attributes);
    Ok(Fattr {
        ftype: narrow.ftype,
        mode: narrow.mode,
        nlink: narrow.nlink,
        uid: narrow.uid,
        gid: narrow.gid,
        size: attributes.size,
        blocksize: narrow.blocksize,
        rdev: narrow.rdev,
        bytes: attributes.used,
        fsid: narrow.fsid,
        fid: narrow.fileid,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        flags: 0,
        generation: 0,
        rev,
    })
}

/// Seconds are sent modulo 2³², as in v2. Times before 1970 survive the round trip that way.
fn time(time: Timestamp) -> Time {
    Time { seconds: time.seconds as u32, nano_seconds: time.nanoseconds }
}

/// The attributes to set. `flags` and `rev` have no meaning here.
pub(super) fn set_attributes(sattr: &Sattr) -> SetAttributes {
    let kept = |value: u32| (value != KEEP).then_some(value);
    let time = |time: Time| match time {
        Time { seconds: KEEP, .. } => None,
        Time { nano_seconds: SERVER_TIME, .. } => Some(SetTime::Server),
        Time { seconds, nano_seconds } => {
            Some(SetTime::Client(Timestamp::new(seconds.into(), nano_seconds.min(999_999_999))))
        }
    };
    SetAttributes {
        mode: kept(sattr.mode).map(|mode| mode & 0o7777),
        uid: kept(sattr.uid),
        gid: kept(sattr.gid),
        size: (sattr.size != KEEP_SIZE).then_some(sattr.size),
        atime: time(sattr.atime),
        mtime: time(sattr.mtime),
    }
}

/// The type of object that CREATE creates, and its device number.
pub(super) fn kind(sattr: &Sattr) -> (vfs::FileType, vfs::Device) {
    let size = if sattr.size == KEEP_SIZE { 0 } else { sattr.size as u32 };
    (v2::file_type(sattr.mode), v2::device(size))
}

/// The cookies have 32 bits, as in v2.
pub(super) fn is_start(cookie: u32) -> bool {
    u64::from(cookie) < vfs::Entry::FIRST_COOKIE
}

/// A name in a directory, as in v2.
pub(super) type Place = nfs2::DirOpArgs;
