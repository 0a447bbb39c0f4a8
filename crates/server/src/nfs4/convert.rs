//! Converts between the types of the wire and those of `vfs`. Errors become status codes only here.

use protocol::nfs4::{ChangeInfo, Fsid, Ftype, NAME_MAX, Nfstime, Specdata, StableHow, Status};
use vfs::{Device, FileType, Name, Stability, Timestamp, Wcc};

use crate::exports::ExportId;

/// `nfsstat4` of a status.
pub(crate) fn status(status: vfs::Status) -> Status {
    match status {
        vfs::Status::Perm => Status::Perm,
        vfs::Status::NoEnt => Status::NoEnt,
        vfs::Status::Io => Status::Io,
        // v4 has no separate status for a missing device.
        vfs::Status::Nxio | vfs::Status::NoDev => Status::Nxio,
        vfs::Status::Access | vfs::Status::NoTicket => Status::Access,
        vfs::Status::Exist => Status::Exist,
        vfs::Status::Xdev => Status::Xdev,
        vfs::Status::NotDir => Status::NotDir,
        vfs::Status::IsDir => Status::IsDir,
        vfs::Status::Inval => Status::Inval,
        vfs::Status::FBig => Status::FBig,
        vfs::Status::NoSpc => Status::NoSpc,
        vfs::Status::Rofs => Status::Rofs,
        vfs::Status::Mlink => Status::Mlink,
        vfs::Status::NameTooLong => Status::NameTooLong,
        vfs::Status::NotEmpty => Status::NotEmpty,
        vfs::Status::Dquot => Status::Dquot,
        vfs::Status::Stale => Status::Stale,
        vfs::Status::BadHandle => Status::BadHandle,
        vfs::Status::BadCookie => Status::BadCookie,
        vfs::Status::NotSupp => Status::NotSupp,
        vfs::Status::TooSmall => Status::TooSmall,
        vfs::Status::BadType => Status::BadType,
        vfs::Status::Delay | vfs::Status::Resource => Status::Delay,
        vfs::Status::ShareDenied => Status::ShareDenied,
        vfs::Status::Denied => Status::Denied,
        vfs::Status::OpenMode => Status::OpenMode,
        vfs::Status::LocksHeld => Status::LocksHeld,
        vfs::Status::Grace => Status::Grace,
        vfs::Status::NoGrace => Status::NoGrace,
        vfs::Status::ReclaimBad => Status::ReclaimBad,
        vfs::Status::NoXattr => Status::NoXattr,
        vfs::Status::XattrTooBig => Status::Xattr2Big,
        vfs::Status::BadStateId => Status::BadStateid,
        // No operation of v4 has a guard.
        vfs::Status::NotSync | vfs::Status::ServerFault => Status::ServerFault,
    }
}

/// `nfsstat4` of a failure.
#[allow(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
pub(crate) fn error(error: vfs::Error) -> Status {
    status(error.status)
}

/// The `nfsstat4` of a failed READ, WRITE or other I/O, for which a conflicting lock has its own status.
#[allow(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
pub(crate) fn io_error(error: vfs::Error) -> Status {
    match error.status {
        vfs::Status::ShareDenied | vfs::Status::Denied => Status::Locked,
        other => status(other),
    }
}

/// Checks a name from the wire.
pub(crate) fn name(bytes: &[u8]) -> Result<Name, Status> {
    match bytes {
        b"" => Err(Status::Inval),
        _ if bytes.len() > NAME_MAX => Err(Status::NameTooLong),
        b"." | b".." => Err(Status::BadName),
        _ if bytes.contains(&b'/') || bytes.contains(&0) => Err(Status::BadChar),
        _ => Name::new(bytes).map_err(error),
    }
}

/// The `change_info4` of an operation on a directory or file. If the change was not observed atomically,
/// `before` is a value that no client can have seen. If the state after is unknown, `after` is such a
/// value.
pub(crate) fn change_info(wcc: &Wcc) -> ChangeInfo {
    if let Some(vfs::ChangeInfo { before, after }) = wcc.change_info() {
        return ChangeInfo { atomic: true, before, after };
    }
    match (&wcc.before, &wcc.after) {
        (_, Some(after)) => {
            ChangeInfo { atomic: false, before: after.change.wrapping_sub(1), after: after.change }
        }
        (before, None) => {
            let before = before.map_or(0, |before| before.change);
            ChangeInfo { atomic: false, before, after: before.wrapping_add(1) }
        }
    }
}

/// The `fsid` of a file. Two exports never share one, because two origins behind them may use the same
/// numbers.
pub(crate) fn fsid(export: ExportId, fsid: vfs::Fsid) -> Fsid {
    Fsid { major: fsid.major, minor: fsid.minor ^ u64::from(export.0) << 32 }
}

pub(crate) fn ftype(file_type: FileType) -> Ftype {
    match file_type {
        FileType::Regular => Ftype::Reg,
        FileType::Directory => Ftype::Dir,
        FileType::Block => Ftype::Blk,
        FileType::Character => Ftype::Chr,
        FileType::Symlink => Ftype::Lnk,
        FileType::Socket => Ftype::Sock,
        FileType::Fifo => Ftype::Fifo,
    }
}

pub(crate) fn nfstime(time: Timestamp) -> Nfstime {
    Nfstime { seconds: time.seconds, nseconds: time.nanoseconds }
}

/// Converts a client's timestamp.
pub(crate) fn timestamp(time: Nfstime) -> Result<Timestamp, Status> {
    if time.nseconds > 999_999_999 {
        return Err(Status::Inval);
    }
    Ok(Timestamp::new(time.seconds, time.nseconds))
}

pub(crate) fn specdata(device: Device) -> Specdata {
    Specdata { specdata1: device.major, specdata2: device.minor }
}

pub(crate) fn device(specdata: Specdata) -> Device {
    Device { major: specdata.specdata1, minor: specdata.specdata2 }
}

pub(crate) fn stability(stable: StableHow) -> Stability {
    match stable {
        StableHow::Unstable => Stability::Unstable,
        StableHow::DataSync => Stability::DataSync,
        StableHow::FileSync => Stability::FileSync,
    }
}

pub(crate) fn stable_how(stability: Stability) -> StableHow {
    match stability {
        Stability::Unstable => StableHow::Unstable,
        Stability::DataSync => StableHow::DataSync,
        Stability::FileSync => StableHow::FileSync,
    }
}
