//! Attributes that a client requests: GETATTR, READDIR, VERIFY and NVERIFY (RFC 8881, section 5).

pub(crate) mod absent;
mod object;
mod pseudo;

use protocol::nfs4::{Attr, Bitmap, Fattr, Status};
use vfs::{Attributes, Features, Freshness, FsLimits};

use super::compound::{Compound, File};
pub(crate) use object::Asked;

/// Attributes that every file system has in minor version 0.
const ALWAYS: Bitmap = Bitmap::of(&[
    Attr::SupportedAttrs,
    Attr::Type,
    Attr::FhExpireType,
    Attr::Change,
    Attr::Size,
    Attr::LinkSupport,
    Attr::SymlinkSupport,
    Attr::NamedAttr,
    Attr::Fsid,
    Attr::UniqueHandles,
    Attr::LeaseTime,
    Attr::RdattrError,
    Attr::Aclsupport,
    Attr::Cansettime,
    Attr::CaseInsensitive,
    Attr::CasePreserving,
    Attr::ChownRestricted,
    Attr::Filehandle,
    Attr::Fileid,
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::FsLocations,
    Attr::Homogeneous,
    Attr::Maxfilesize,
    Attr::Maxlink,
    Attr::Maxname,
    Attr::Maxread,
    Attr::Maxwrite,
    Attr::Mode,
    Attr::NoTrunc,
    Attr::Numlinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::Rawdev,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
    Attr::SpaceUsed,
    Attr::TimeAccess,
    Attr::TimeAccessSet,
    Attr::TimeDelta,
    Attr::TimeMetadata,
    Attr::TimeModify,
    Attr::TimeModifySet,
    Attr::MountedOnFileid,
]);

/// Attributes that can be set but not read.
pub(crate) const WRITE_ONLY: Bitmap =
    Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet, Attr::ModeUmask]);

/// Attributes that can be set when an object is created.
pub(crate) const SETTABLE: Bitmap = Bitmap::of(&[
    Attr::Size,
    Attr::Acl,
    Attr::Mode,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::TimeAccessSet,
    Attr::TimeModifySet,
    Attr::ModeUmask,
]);

/// The attributes of these that EXCLUSIVE4_1 cannot set: back ends keep its verifier there.
pub(crate) const NOT_EXCLUSIVE: Bitmap = Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet]);

/// Attributes that need a call for the file system's space.
const SPACE: Bitmap = Bitmap::of(&[
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
]);

/// The attributes of a file system in a minor version.
pub(crate) fn supported(minor: u32, limits: &FsLimits) -> Bitmap {
    let mut supported = ALWAYS;
    if limits.features.contains(Features::ACL) {
        supported.insert(Attr::Acl);
    }
    if minor >= 1 {
        supported.insert(Attr::SuppattrExclcreat);
    }
    if minor >= 2 {
        supported.insert(Attr::ChangeAttrType);
        supported.insert(Attr::ModeUmask);
        supported.insert(Attr::OpenArguments);
        supported.insert(Attr::XattrSupport);
        if limits.clone_block_bytes.is_some() {
            supported.insert(Attr::CloneBlksize);
        }
    }
    supported
}

/// Checks that all requested attributes can be read.
pub(crate) fn readable(asked: Bitmap) -> Result<(), Status> {
    if (asked & WRITE_ONLY).is_empty() { Ok(()) } else { Err(Status::Inval) }
}

/// The requested attributes that the file has. `attributes` carries the attributes if the caller knows them
/// already.
pub(crate) async fn read(
    compound: &mut Compound<'_>,
    file: &File,
    attributes: Option<Attributes>,
    asked: Bitmap,
) -> Result<Fattr, Status> {
    match file {
        File::Pseudo(node) => pseudo::fattr(compound, *node, asked),
        File::Absent(export) => absent::fattr(compound, export, asked),
        File::Object(export, handle) => {
            let freshness = freshness(compound);
            let object = Asked::new(compound, export, asked).await?.with_freshness(freshness);
            object.read(handle, attributes).await
        }
    }
}

/// How fresh attributes must be. With a lone GETATTR a client opens a directory or confirms names. A cache
/// piggybacks a GETATTR of the directory on a LOOKUP or READDIR, and takes the answer as a confirmation of
/// other names too. For the directory of an OPEN, `change_info4` tells the client about changes.
fn freshness(compound: &Compound<'_>) -> Freshness {
    if compound.is_question() && compound.is_last() {
        Freshness::Directory
    } else if compound.precedes_names() {
        Freshness::Recent
    } else {
        Freshness::Timeout
    }
}
