//! Converts values of RFC 1813 to values of the interface, and back. Statuses are mapped only here.

use protocol::nfs3;
use vfs::{
    Attributes, Device, Error, FileType, Fsid, Handle, Result, SetAttributes, SetTime, Stability, Status,
    Timestamp, Wcc, WccAttributes,
};

/// Converts a status of the origin.
pub(crate) fn status(status: nfs3::Status) -> Status {
    match status {
        nfs3::Status::Perm => Status::Perm,
        nfs3::Status::NoEnt => Status::NoEnt,
        nfs3::Status::Nxio => Status::Nxio,
        nfs3::Status::Acces => Status::Access,
        nfs3::Status::Exist => Status::Exist,
        nfs3::Status::Xdev => Status::Xdev,
        nfs3::Status::NoDev => Status::NoDev,
        nfs3::Status::NotDir => Status::NotDir,
        nfs3::Status::IsDir => Status::IsDir,
        nfs3::Status::Inval => Status::Inval,
        nfs3::Status::FBig => Status::FBig,
        nfs3::Status::NoSpc => Status::NoSpc,
        nfs3::Status::Rofs => Status::Rofs,
        nfs3::Status::Mlink => Status::Mlink,
        nfs3::Status::NameTooLong => Status::NameTooLong,
        nfs3::Status::NotEmpty => Status::NotEmpty,
        nfs3::Status::Dquot => Status::Dquot,
        nfs3::Status::Stale => Status::Stale,
        nfs3::Status::BadHandle => Status::BadHandle,
        nfs3::Status::NotSync => Status::NotSync,
        nfs3::Status::BadCookie => Status::BadCookie,
        nfs3::Status::NotSupp => Status::NotSupp,
        nfs3::Status::TooSmall => Status::TooSmall,
        nfs3::Status::ServerFault => Status::ServerFault,
        nfs3::Status::BadType => Status::BadType,
        nfs3::Status::Jukebox => Status::Delay,
        // REMOTE has no name in v4 or in the interface, and no server sends it.
        nfs3::Status::Io | nfs3::Status::Remote | nfs3::Status::Other(_) => Status::Io,
    }
}

/// Encodes a handle. A handle that does not fit never came from the origin.
pub(crate) fn to_wire(handle: &Handle) -> Result<nfs3::Handle> {
    let bytes = handle.as_bytes();
    nfs3::Handle::new(bytes).filter(|_| !bytes.is_empty()).ok_or_else(|| Error::from(Status::BadHandle))
}

/// Decodes a handle. `None` if it is empty.
pub(crate) fn from_wire(handle: &nfs3::Handle) -> Option<Handle> {
    Handle::new(handle).filter(|_| !handle.is_empty())
}

/// Decodes attributes.
pub(crate) fn attributes(from: &nfs3::Fattr) -> Attributes {
    let ctime = timestamp(from.ctime);
    Attributes {
        file_type: file_type(from.ftype),
        mode: from.mode & 0o7777,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        used: from.used,
        rdev: Device { major: from.rdev.specdata1, minor: from.rdev.specdata2 },
        fsid: Fsid { major: from.fsid, minor: 0 },
        fileid: from.fileid,
        atime: timestamp(from.atime),
        mtime: timestamp(from.mtime),
        ctime,
        // Seconds have 32 bits in version 3, so this fits.
        change: ctime.as_nanos() as u64,
    }
}

fn file_type(from: nfs3::Ftype) -> FileType {
    match from {
        nfs3::Ftype::Reg => FileType::Regular,
        nfs3::Ftype::Dir => FileType::Directory,
        nfs3::Ftype::Blk => FileType::Block,
        nfs3::Ftype::Chr => FileType::Character,
        nfs3::Ftype::Lnk => FileType::Symlink,
        nfs3::Ftype::Sock => FileType::Socket,
        nfs3::Ftype::Fifo => FileType::Fifo,
    }
}

/// Decodes a timestamp. Nanoseconds of a second or more are cut to less than one second.
pub(crate) fn timestamp(from: nfs3::Nfstime) -> Timestamp {
    Timestamp::new(from.seconds.into(), from.nseconds.min(999_999_999))
}

/// Encodes a timestamp. A time before 1970 or after 2106 becomes the nearest one that version 3 can express.
pub(crate) fn nfstime(from: Timestamp) -> nfs3::Nfstime {
    match u32::try_from(from.seconds) {
        Ok(seconds) => nfs3::Nfstime { seconds, nseconds: from.nanoseconds },
        Err(_) if from.seconds < 0 => nfs3::Nfstime { seconds: 0, nseconds: 0 },
        Err(_) => nfs3::Nfstime { seconds: u32::MAX, nseconds: 999_999_999 },
    }
}

/// Decodes weak cache consistency data.
pub(crate) fn wcc(before: Option<nfs3::WccAttr>, after: Option<Attributes>) -> Wcc {
    let before = before.map(|before| WccAttributes {
        size: before.size,
        mtime: timestamp(before.mtime),
        ctime: timestamp(before.ctime),
        change: timestamp(before.ctime).as_nanos() as u64,
    });
    Wcc { before, ..Wcc::seen(after) }
}

/// Encodes attributes to set.
pub(crate) fn sattr(from: &SetAttributes) -> nfs3::Sattr {
    let time = |time: Option<SetTime>| match time {
        None => nfs3::SetTime::DontChange,
        Some(SetTime::Server) => nfs3::SetTime::SetToServerTime,
        Some(SetTime::Client(stamp)) => nfs3::SetTime::SetToClientTime(nfstime(stamp)),
    };
    nfs3::Sattr {
        mode: from.mode.map(|mode| mode & 0o7777),
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        atime: time(from.atime),
        mtime: time(from.mtime),
    }
}

/// Encodes a stability level.
pub(crate) fn stable(from: Stability) -> nfs3::StableHow {
    match from {
        Stability::Unstable => nfs3::StableHow::Unstable,
        Stability::DataSync => nfs3::StableHow::DataSync,
        Stability::FileSync => nfs3::StableHow::FileSync,
    }
}

/// Decodes a stability level.
pub(crate) fn stability(from: nfs3::StableHow) -> Stability {
    match from {
        nfs3::StableHow::Unstable => Stability::Unstable,
        nfs3::StableHow::DataSync => Stability::DataSync,
        nfs3::StableHow::FileSync => Stability::FileSync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_keep_their_names() {
        assert_eq!(status(nfs3::Status::Stale), Status::Stale);
        assert_eq!(status(nfs3::Status::Jukebox), Status::Delay);
        assert_eq!(status(nfs3::Status::Other(4711)), Status::Io);
    }

    #[test]
    fn times_stay_within_what_v3_has() {
        assert_eq!(nfstime(Timestamp::new(-5, 1)), nfs3::Nfstime { seconds: 0, nseconds: 0 });
        assert_eq!(nfstime(Timestamp::new(1 << 40, 1)).seconds, u32::MAX);
        let stamp = Timestamp::new(4_000_000_000, 7);
        assert_eq!(timestamp(nfstime(stamp)), stamp);
    }

    #[test]
    fn handles_that_are_none_are_refused() {
        assert_eq!(to_wire(&Handle::new(&[1; 65]).unwrap()).unwrap_err().status, Status::BadHandle);
        assert_eq!(to_wire(&Handle::new(&[]).unwrap()).unwrap_err().status, Status::BadHandle);
        assert!(from_wire(&nfs3::Handle::new(&[]).unwrap()).is_none());
    }
}
