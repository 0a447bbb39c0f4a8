//! Converts values of RFC 8881 to values of the interface, and back. Statuses are mapped only here.

use bytes::Bytes;
use protocol::nfs4::{
    ArgFattr, Attr, Bitmap, Component, Fattr, Ftype, Handle as WireHandle, Limited, Nfstime, Settime,
    StableHow, Status as Wire,
};
use vfs::{
    Attributes, Device, Error, FileType, Fsid, Handle, Name, Result, SetAttributes, SetTime, Stability,
    Status, Timestamp, WccAttributes,
};

use super::idmap::Idmap;

/// The attributes to ask of every file.
pub(super) const ATTRIBUTES: Bitmap = Bitmap::of(&[
    Attr::Type,
    Attr::Change,
    Attr::Size,
    Attr::Fsid,
    Attr::Fileid,
    Attr::Mode,
    Attr::Numlinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::Rawdev,
    Attr::SpaceUsed,
    Attr::TimeAccess,
    Attr::TimeMetadata,
    Attr::TimeModify,
]);

/// The attributes to ask of a file or directory before it changes.
pub(super) const BEFORE: Bitmap =
    Bitmap::of(&[Attr::Change, Attr::Size, Attr::TimeMetadata, Attr::TimeModify]);
/// The same, for the directory in which an OPEN creates a file: `NFS4ERR_SYMLINK` may refer to either.
pub(super) const BEFORE_OPEN: Bitmap = BEFORE.with(Attr::Type);

/// Converts a status of the origin.
pub(super) fn status(status: Wire) -> Status {
    match status {
        Wire::Perm => Status::Perm,
        Wire::NoEnt => Status::NoEnt,
        Wire::Nxio => Status::Nxio,
        // FILE_OPEN: the server does not remove or rename open files.
        Wire::Access | Wire::WrongSec | Wire::WrongCred | Wire::FileOpen => Status::Access,
        Wire::Exist => Status::Exist,
        Wire::Xdev => Status::Xdev,
        Wire::NotDir => Status::NotDir,
        Wire::IsDir => Status::IsDir,
        Wire::Inval
        | Wire::BadOwner
        | Wire::BadChar
        | Wire::BadName
        | Wire::BadRange
        | Wire::Symlink
        | Wire::WrongType => Status::Inval,
        Wire::FBig => Status::FBig,
        Wire::NoSpc => Status::NoSpc,
        Wire::Rofs => Status::Rofs,
        Wire::Mlink => Status::Mlink,
        Wire::NameTooLong => Status::NameTooLong,
        Wire::NotEmpty => Status::NotEmpty,
        Wire::Dquot => Status::Dquot,
        Wire::Stale | Wire::FhExpired => Status::Stale,
        Wire::BadHandle => Status::BadHandle,
        Wire::NotSame => Status::NotSync,
        Wire::BadCookie => Status::BadCookie,
        Wire::NotSupp
        | Wire::OpIllegal
        | Wire::AttrNotSupp
        | Wire::UnionNotSupp
        | Wire::LockRange
        | Wire::LockNotSupp
        | Wire::OffloadDenied
        | Wire::OffloadNoReqs
        | Wire::PartnerNotSupp => Status::NotSupp,
        Wire::TooSmall => Status::TooSmall,
        Wire::ServerFault => Status::ServerFault,
        Wire::BadType => Status::BadType,
        Wire::Delay | Wire::RetryUncachedRep => Status::Delay,
        Wire::ShareDenied => Status::ShareDenied,
        Wire::Denied | Wire::Locked | Wire::Deadlock => Status::Denied,
        Wire::OpenMode => Status::OpenMode,
        Wire::LocksHeld => Status::LocksHeld,
        Wire::Grace => Status::Grace,
        Wire::NoGrace | Wire::ReclaimBad | Wire::ReclaimConflict => Status::NoGrace,
        Wire::NoXattr => Status::NoXattr,
        Wire::Xattr2Big => Status::XattrTooBig,
        status if lost_state(status) => Status::BadStateId,
        _ => Status::Io,
    }
}

/// Does the origin say that it does not have the state that a request named?
pub(super) fn lost_state(status: Wire) -> bool {
    matches!(
        status,
        Wire::BadStateid
            | Wire::OldStateid
            | Wire::StaleStateid
            | Wire::Expired
            | Wire::AdminRevoked
            | Wire::DelegRevoked
    )
}

/// Encodes a handle. An empty handle never came from the origin.
pub(super) fn to_wire(handle: &Handle) -> Result<WireHandle> {
    let bytes = handle.as_bytes();
    WireHandle::new(bytes).filter(|_| !bytes.is_empty()).ok_or_else(|| Error::from(Status::BadHandle))
}

/// Decodes a handle. `None` if it is empty.
pub(super) fn from_wire(handle: &WireHandle) -> Option<Handle> {
    Handle::new(handle).filter(|_| !handle.is_empty())
}

/// Encodes a name.
pub(super) fn component(name: &Name) -> Component {
    // The limit of a name is below that of a component.
    Component::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_default()
}

/// Decodes attributes. The error names a missing attribute that every file must have.
pub(super) fn attributes(from: &Fattr, ids: &Idmap) -> Result<Attributes, &'static str> {
    let ftype = from.ftype.ok_or("type")?;
    let change = from.change.ok_or("change")?;
    let size = from.size.ok_or("size")?;
    let fsid = from.fsid.ok_or("fsid")?;
    let fileid = from.fileid.or(from.mounted_on_fileid).ok_or("fileid")?;
    let ctime = from.time_metadata.or(from.time_modify).map(timestamp).unwrap_or_default();
    let mtime = from.time_modify.map_or(ctime, timestamp);
    let rdev = from.rawdev.unwrap_or_default();
    Ok(Attributes {
        file_type: file_type(ftype),
        mode: from.mode.unwrap_or(0) & 0o7777,
        nlink: from.numlinks.unwrap_or(1),
        uid: from.owner.as_ref().map_or(super::idmap::NOBODY, |owner| ids.uid(owner)),
        gid: from.owner_group.as_ref().map_or(super::idmap::NOBODY, |group| ids.gid(group)),
        size,
        used: from.space_used.unwrap_or(size),
        rdev: Device { major: rdev.specdata1, minor: rdev.specdata2 },
        fsid: Fsid { major: fsid.major, minor: fsid.minor },
        fileid,
        atime: from.time_access.map_or(mtime, timestamp),
        mtime,
        ctime,
        change,
    })
}

/// Decodes the attributes that weak cache consistency compares. `None` unless all are present.
pub(super) fn wcc_attributes(from: &Fattr) -> Option<WccAttributes> {
    Some(WccAttributes {
        size: from.size?,
        mtime: timestamp(from.time_modify?),
        ctime: timestamp(from.time_metadata?),
        change: from.change?,
    })
}

fn file_type(from: Ftype) -> FileType {
    match from {
        Ftype::Reg | Ftype::Namedattr => FileType::Regular,
        Ftype::Dir | Ftype::Attrdir => FileType::Directory,
        Ftype::Blk => FileType::Block,
        Ftype::Chr => FileType::Character,
        Ftype::Lnk => FileType::Symlink,
        Ftype::Sock => FileType::Socket,
        Ftype::Fifo => FileType::Fifo,
    }
}

/// Decodes a timestamp. Nanoseconds of a second or more are cut to less than one second.
pub(super) fn timestamp(from: Nfstime) -> Timestamp {
    Timestamp::new(from.seconds, from.nseconds.min(999_999_999))
}

/// Encodes a timestamp.
pub(super) fn nfstime(from: Timestamp) -> Nfstime {
    Nfstime { seconds: from.seconds, nseconds: from.nanoseconds }
}

/// Encodes attributes to set.
pub(super) fn to_set(from: &SetAttributes) -> Fattr {
    let time = |time: SetTime| match time {
        SetTime::Server => Settime::SetToServerTime,
        SetTime::Client(stamp) => Settime::SetToClientTime(nfstime(stamp)),
    };
    Fattr {
        size: from.size,
        mode: from.mode.map(|mode| mode & 0o7777),
        owner: from.uid.map(number),
        owner_group: from.gid.map(number),
        time_access_set: from.atime.map(time),
        time_modify_set: from.mtime.map(time),
        ..Fattr::default()
    }
}

/// Encodes attributes to set, as an argument.
pub(super) fn arg(from: &SetAttributes) -> ArgFattr {
    to_set(from).into()
}

/// Encodes an owner as digits (RFC 8881, section 5.9).
fn number(id: u32) -> Limited {
    Limited::new(id.to_string()).unwrap_or_default()
}

/// Encodes a stability level.
pub(super) fn stable(from: Stability) -> StableHow {
    crate::convert::stable(from)
}

/// Decodes a stability level.
pub(super) fn stability(from: StableHow) -> Stability {
    crate::convert::stability(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_one_of_ours() {
        assert_eq!(status(Wire::Stale), Status::Stale);
        assert_eq!(status(Wire::AdminRevoked), Status::BadStateId);
        assert_eq!(status(Wire::Other(4711)), Status::Io);
        let io = Wire::ALL.iter().filter(|it| status(**it) == Status::Io).count();
        assert!(io < Wire::ALL.len() / 2, "{io}");
    }

    #[test]
    fn what_no_file_can_be_without_is_named() {
        let ids = Idmap::default();
        let mut fattr = Fattr { ftype: Some(Ftype::Reg), change: Some(3), ..Fattr::default() };
        assert_eq!(attributes(&fattr, &ids), Err("size"));
        fattr.size = Some(10);
        fattr.fsid = Some(protocol::nfs4::Fsid { major: 1, minor: 2 });
        fattr.fileid = Some(9);
        let came = attributes(&fattr, &ids).unwrap();
        assert_eq!((came.change, came.size, came.used, came.fsid.minor), (3, 10, 10, 2));
    }

    #[test]
    fn owners_are_sent_in_digits() {
        let set = SetAttributes {
            uid: Some(0),
            gid: Some(4711),
            mode: Some(0o100_644),
            ..SetAttributes::default()
        };
        let fattr = to_set(&set);
        assert_eq!(fattr.owner.as_deref(), Some(&b"0"[..]));
        assert_eq!(fattr.owner_group.as_deref(), Some(&b"4711"[..]));
        assert_eq!(fattr.mode, Some(0o644));
    }
}
