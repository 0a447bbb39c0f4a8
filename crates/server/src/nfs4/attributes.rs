//! Attributes that a client asks for: GETATTR, READDIR, VERIFY and NVERIFY (RFC 8881, section 5).

pub(crate) mod absent;
mod object;
mod pseudo;

use protocol::nfs4::{Attr, Bitmap, Fattr, Status};
use vfs::{Attributes, Features, Freshness, FsLimits};

use super::compound::{Compound, File};
pub(crate) use object::Asked;

/// What every file system of ours has, in minor version 0.
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

/// Can be set, but not asked for.
pub(crate) const WRITE_ONLY: Bitmap =
    Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet, Attr::ModeUmask]);

/// Can be set when an object is made.
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

/// Of those, what does not go with EXCLUSIVE4_1: back ends keep its verifier there.
pub(crate) const NOT_EXCLUSIVE: Bitmap = Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet]);

/// What costs a question about the file system.
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

/// What is asked for can be asked for.
pub(crate) fn readable(asked: Bitmap) -> Result<(), Status> {
    if (asked & WRITE_ONLY).is_empty() { Ok(()) } else { Err(Status::Inval) }
}

/// Those attributes of a file that are asked for and there are. `attributes` are given if they are known already.
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

/// How old attributes may be. A GETATTR alone is how a client opens a directory, or confirms names. A cache asks for a
/// directory along with a LOOKUP or READDIR, and takes the answer for a confirmation of other names too. Of a directory that
/// goes with an OPEN, `change_info4` tells.
fn freshness(compound: &Compound<'_>) -> Freshness {
    if compound.is_question() && compound.is_last() {
        Freshness::Directory
    } else if compound.precedes_names() {
        Freshness::Recent
    } else {
        Freshness::Timeout
    }
}
