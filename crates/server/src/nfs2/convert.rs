//! Converts the attributes that a client sets.

use protocol::nfs2::{KEEP, Sattr, Timeval};
use vfs::{SetAttributes, SetTime, Timestamp};

/// Microseconds that mean the server's current time (a Unix convention).
const SERVER_TIME: u32 = 1_000_000;

pub(super) fn set_attributes(sattr: &Sattr) -> SetAttributes {
    let kept = |value: u32| (value != KEEP).then_some(value);
    let time = |time: Timeval| match time {
        Timeval { seconds: KEEP, .. } => None,
        Timeval { useconds: SERVER_TIME, .. } => Some(SetTime::Server),
        Timeval { seconds, useconds } => {
            let nanoseconds = useconds.min(999_999) * 1000;
            Some(SetTime::Client(Timestamp::new(seconds.into(), nanoseconds)))
        }
    };
    SetAttributes {
        mode: kept(sattr.mode).map(|mode| mode & 0o7777),
        uid: kept(sattr.uid),
        gid: kept(sattr.gid),
        size: kept(sattr.size).map(u64::from),
        atime: time(sattr.atime),
        mtime: time(sattr.mtime),
    }
}
