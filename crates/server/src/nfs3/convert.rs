//! Converts between the types of the wire and those of `vfs`. Errors become status codes only here.

use protocol::nfs3;
use vfs::{
    Attributes, Device, FileType, Fsid, SetAttributes, SetTime, Stability, Status, Timestamp, Wcc,
    WccAttributes,
};

use crate::exports::{Export, FsidSalt};

/// `nfsstat3` of an error.
pub(super) fn status(status: Status) -> nfs3::Status {
    match status {
        Status::Perm => nfs3::Status::Perm,
        Status::NoEnt => nfs3::Status::NoEnt,
        Status::Io => nfs3::Status::Io,
        Status::Nxio => nfs3::Status::Nxio,
        // Another client's share or lock conflicts: v3 has no better status.
        Status::Access
        | Status::NoTicket
        | Status::ShareDenied
        | Status::Denied
        | Status::LocksHeld
        | Status::OpenMode => nfs3::Status::Acces,
        Status::Exist => nfs3::Status::Exist,
        Status::Xdev => nfs3::Status::Xdev,
        Status::NoDev => nfs3::Status::NoDev,
        Status::NotDir => nfs3::Status::NotDir,
        Status::IsDir => nfs3::Status::IsDir,
        Status::Inval => nfs3::Status::Inval,
        Status::FBig => nfs3::Status::FBig,
        Status::NoSpc => nfs3::Status::NoSpc,
        Status::Rofs => nfs3::Status::Rofs,
        Status::Mlink => nfs3::Status::Mlink,
        Status::NameTooLong => nfs3::Status::NameTooLong,
        Status::NotEmpty => nfs3::Status::NotEmpty,
        Status::Dquot => nfs3::Status::Dquot,
        Status::Stale => nfs3::Status::Stale,
        Status::BadHandle => nfs3::Status::BadHandle,
        Status::NotSync => nfs3::Status::NotSync,
        Status::BadCookie => nfs3::Status::BadCookie,
        Status::NotSupp => nfs3::Status::NotSupp,
        Status::TooSmall => nfs3::Status::TooSmall,
        Status::BadType => nfs3::Status::BadType,
        Status::Delay | Status::Grace | Status::Resource => nfs3::Status::Jukebox,
        // Errors of operations that v3 does not have.
        Status::NoGrace
        | Status::ReclaimBad
        | Status::NoXattr
        | Status::XattrTooBig
        | Status::ServerFault
        | Status::BadStateId => nfs3::Status::ServerFault,
    }
}

/// The results of a failed procedure beside its status.
pub(super) trait Failure {
    /// The results with the attributes that the error carries, if any.
    fn with(attributes: Option<&Attributes>, salt: FsidSalt) -> Self;
}

impl Failure for () {
    fn with(_: Option<&Attributes>, _: FsidSalt) {}
}

impl Failure for Option<nfs3::Fattr> {
    fn with(attributes: Option<&Attributes>, salt: FsidSalt) -> Self {
        attributes.map(|it| salted(it, salt))
    }
}

impl Failure for nfs3::WccData {
    fn with(attributes: Option<&Attributes>, salt: FsidSalt) -> Self {
        nfs3::WccData { before: None, after: attributes.map(|it| salted(it, salt)) }
    }
}

impl Failure for nfs3::RenameRes {
    fn with(_: Option<&Attributes>, _: FsidSalt) -> Self {
        nfs3::RenameRes::default()
    }
}

impl Failure for nfs3::LinkRes {
    fn with(_: Option<&Attributes>, _: FsidSalt) -> Self {
        nfs3::LinkRes::default()
    }
}

/// The attributes of a file of this export.
pub(super) fn fattr(export: &Export, attributes: &Attributes) -> nfs3::Fattr {
    salted(attributes, export.fsid_salt)
}

fn salted(attributes: &Attributes, salt: FsidSalt) -> nfs3::Fattr {
    nfs3::Fattr {
        ftype: ftype(attributes.file_type),
        mode: attributes.mode,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.used,
        rdev: nfs3::Specdata { specdata1: attributes.rdev.major, specdata2: attributes.rdev.minor },
        fsid: salt.over(fsid(attributes.fsid)),
        fileid: attributes.fileid,
        atime: nfstime(attributes.atime),
        mtime: nfstime(attributes.mtime),
        ctime: nfstime(attributes.ctime),
    }
}

pub(super) fn wcc_data(export: &Export, wcc: &Wcc) -> nfs3::WccData {
    let before = |wcc: WccAttributes| nfs3::WccAttr {
        size: wcc.size,
        mtime: nfstime(wcc.mtime),
        ctime: nfstime(wcc.ctime),
    };
    nfs3::WccData { before: wcc.before.map(before), after: wcc.after.as_ref().map(|it| fattr(export, it)) }
}

/// v3 has one number where v4 has two. The second is folded into the first, and is zero if the origin is
/// v3.
pub(super) fn fsid(fsid: Fsid) -> u64 {
    fsid.major ^ fsid.minor.rotate_left(32)
}

pub(super) fn ftype(file_type: FileType) -> nfs3::Ftype {
    match file_type {
        FileType::Regular => nfs3::Ftype::Reg,
        FileType::Directory => nfs3::Ftype::Dir,
        FileType::Block => nfs3::Ftype::Blk,
        FileType::Character => nfs3::Ftype::Chr,
        FileType::Symlink => nfs3::Ftype::Lnk,
        FileType::Socket => nfs3::Ftype::Sock,
        FileType::Fifo => nfs3::Ftype::Fifo,
    }
}

/// Seconds are sent modulo 2³², as every server does. Times before 1970 survive the round trip that way.
pub(super) fn nfstime(time: Timestamp) -> nfs3::Nfstime {
    nfs3::Nfstime { seconds: time.seconds as u32, nseconds: time.nanoseconds }
}

pub(super) fn timestamp(time: nfs3::Nfstime) -> Timestamp {
    Timestamp::new(i64::from(time.seconds), time.nseconds.min(999_999_999))
}

pub(super) fn set_attributes(sattr: &nfs3::Sattr) -> SetAttributes {
    let time = |time: nfs3::SetTime| match time {
        nfs3::SetTime::DontChange => None,
        nfs3::SetTime::SetToServerTime => Some(SetTime::Server),
        nfs3::SetTime::SetToClientTime(time) => Some(SetTime::Client(timestamp(time))),
    };
    SetAttributes {
        mode: sattr.mode.map(|mode| mode & 0o7777),
        uid: sattr.uid,
        gid: sattr.gid,
        size: sattr.size,
        atime: time(sattr.atime),
        mtime: time(sattr.mtime),
    }
}

pub(super) fn device(specdata: nfs3::Specdata) -> Device {
    Device { major: specdata.specdata1, minor: specdata.specdata2 }
}

pub(super) fn stability(stable: nfs3::StableHow) -> Stability {
    match stable {
        nfs3::StableHow::Unstable => Stability::Unstable,
        nfs3::StableHow::DataSync => Stability::DataSync,
        nfs3::StableHow::FileSync => Stability::FileSync,
    }
}

pub(super) fn stable_how(stability: Stability) -> nfs3::StableHow {
    match stability {
        Stability::Unstable => nfs3::StableHow::Unstable,
        Stability::DataSync => nfs3::StableHow::DataSync,
        Stability::FileSync => nfs3::StableHow::FileSync,
    }
}
