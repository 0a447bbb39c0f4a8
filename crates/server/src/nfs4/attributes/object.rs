//! Attributes of an object of an export.

use std::sync::Arc;

use protocol::nfs4::{
    ACL4_SUPPORT_ALLOW_ACL, ACL4_SUPPORT_DENY_ACL, Ace, Acl, Attr, Bitmap, ChangeAttrType, FH4_PERSISTENT,
    Fattr, Limited, Nfstime, OpenArguments, Outcome, Status,
};
use vfs::{Attributes, Caller, Features, Freshness, FsLimits, FsStat, Handle};

use super::absent::fs_locations;
use super::{NOT_EXCLUSIVE, SETTABLE, SPACE, supported};
use crate::exports::Export;
use crate::exports::known::Known;
use crate::exports::pseudo::Pseudo;
use crate::nfs4::compound::Compound;
use crate::nfs4::{Nfs4Front, TRANSFER_MAX_BYTES, convert, owners};

/// The arguments that OPEN supports, by the numbers of RFC 9754. Access: read, write and both. Deny: any.
/// Wants: any delegation, none, or cancel an earlier want. Claims: all but those of a client's earlier
/// incarnation. All ways to create a file.
pub(super) const OPEN_ARGUMENTS: OpenArguments = OpenArguments {
    share_access: Bitmap::EMPTY.with_bit(1).with_bit(2).with_bit(3),
    share_deny: Bitmap::EMPTY.with_bit(0).with_bit(1).with_bit(2).with_bit(3),
    share_access_want: Bitmap::EMPTY.with_bit(3).with_bit(4).with_bit(5),
    open_claim: Bitmap::EMPTY.with_bit(0).with_bit(1).with_bit(2).with_bit(4).with_bit(5),
    create_mode: Bitmap::EMPTY.with_bit(0).with_bit(1).with_bit(2).with_bit(3),
};

/// Attributes requested of one or many objects of an export, and the values that all of these share.
pub(crate) struct Asked<'c> {
    front: &'c Nfs4Front,
    export: Arc<Export>,
    caller: Caller,
    minor: u32,
    known: Arc<Known>,
    /// The requested attributes that the file system has.
    wanted: Bitmap,
    space: Option<FsStat>,
}

impl<'c> Asked<'c> {
    /// Asks the export for the values that are the same for all its objects.
    pub(crate) async fn new(
        compound: &mut Compound<'c>,
        export: &Arc<Export>,
        asked: Bitmap,
    ) -> Result<Asked<'c>, Status> {
        let caller = compound.caller(export)?;
        let front: &'c Nfs4Front = compound.front;
        let known = export.known(&caller).await.map_err(convert::error)?;
        let wanted = asked & supported(compound.minor, &known.limits);
        let space = if (wanted & SPACE).is_empty() {
            None
        } else {
            Some(export.fs().fsstat(&caller, &known.root).await.map_err(convert::error)?)
        };
        Ok(Asked { front, export: export.clone(), caller, minor: compound.minor, known, wanted, space })
    }

    /// The same, for an answer at least this fresh.
    pub(crate) fn with_freshness(self, freshness: Freshness) -> Asked<'c> {
        Asked { caller: self.caller.with_freshness(freshness), ..self }
    }

    /// The attributes of one object. `attributes` carries them if the caller knows them already.
    pub(crate) async fn read(
        &self,
        handle: &Handle,
        attributes: Option<Attributes>,
    ) -> Result<Fattr, Status> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.export.fs().getattr(&self.caller, handle).await.map_err(convert::error)?,
        };
        let mut fattr = Fattr::default();
        self.of_file(&mut fattr, handle, &attributes)?;
        self.of_export(&mut fattr);
        if self.wants(Attr::Acl) {
            fattr.acl =
                Some(acl(self.export.fs().acl(&self.caller, handle).await.map_err(convert::error)?)?);
        }
        Ok(fattr)
    }

    /// The attributes of a listing entry of which only the inode number is known.
    pub(crate) fn of_name(&self, fileid: u64) -> Fattr {
        Fattr {
            rdattr_error: self.if_wanted(Attr::RdattrError, Outcome::Ok(())),
            fileid: self.if_wanted(Attr::Fileid, fileid),
            mounted_on_fileid: self.if_wanted(Attr::MountedOnFileid, fileid),
            ..Fattr::default()
        }
    }

    fn wants(&self, attr: Attr) -> bool {
        self.wanted.contains(attr)
    }

    fn if_wanted<T>(&self, attr: Attr, value: T) -> Option<T> {
        self.wants(attr).then_some(value)
    }

    /// Fills in the attributes that differ between objects.
    fn of_file(&self, fattr: &mut Fattr, handle: &Handle, is: &Attributes) -> Result<(), Status> {
        fattr.ftype = self.if_wanted(Attr::Type, convert::ftype(is.file_type));
        fattr.change = self.if_wanted(Attr::Change, is.change);
        fattr.size = self.if_wanted(Attr::Size, is.size);
        fattr.fsid = self.if_wanted(Attr::Fsid, convert::fsid(self.export.id, is.fsid));
        fattr.fileid = self.if_wanted(Attr::Fileid, is.fileid);
        fattr.mode = self.if_wanted(Attr::Mode, is.mode);
        fattr.numlinks = self.if_wanted(Attr::Numlinks, is.nlink);
        fattr.owner = self.wants(Attr::Owner).then(|| owners::string(is.uid));
        fattr.owner_group = self.wants(Attr::OwnerGroup).then(|| owners::string(is.gid));
        fattr.rawdev = self.if_wanted(Attr::Rawdev, convert::specdata(is.rdev));
        fattr.space_used = self.if_wanted(Attr::SpaceUsed, is.used);
        fattr.time_access = self.if_wanted(Attr::TimeAccess, convert::nfstime(is.atime));
        fattr.time_metadata = self.if_wanted(Attr::TimeMetadata, convert::nfstime(is.ctime));
        fattr.time_modify = self.if_wanted(Attr::TimeModify, convert::nfstime(is.mtime));
        if self.wants(Attr::MountedOnFileid) {
            fattr.mounted_on_fileid = Some(self.mounted_on(handle).unwrap_or(is.fileid));
        }
        if self.wants(Attr::Filehandle) {
            fattr.filehandle =
                Some(self.front.shared.handles.v4(self.export.id, handle).map_err(convert::status)?);
        }
        Ok(())
    }

    /// If the handle is the root of an export below another directory: the inode number of the directory
    /// that it covers.
    fn mounted_on(&self, handle: &Handle) -> Option<u64> {
        if *handle != self.known.root {
            return None;
        }
        let tree = self.front.pseudo();
        let node = tree.of_export(&self.export)?;
        (node != Pseudo::ROOT).then(|| tree.id(node))
    }

    /// Fills in the attributes that the whole file system shares.
    fn of_export(&self, fattr: &mut Fattr) {
        let FsLimits { features, .. } = self.known.limits;
        let limits = &self.known.limits;
        let acls = ACL4_SUPPORT_ALLOW_ACL | ACL4_SUPPORT_DENY_ACL;
        let aclsupport = if features.contains(Features::ACL) { acls } else { 0 };
        let supported = supported(self.minor, limits);
        fattr.supported_attrs = self.if_wanted(Attr::SupportedAttrs, supported);
        fattr.fh_expire_type = self.if_wanted(Attr::FhExpireType, FH4_PERSISTENT);
        fattr.link_support = self.if_wanted(Attr::LinkSupport, limits.hard_links);
        fattr.symlink_support = self.if_wanted(Attr::SymlinkSupport, limits.symlinks);
        fattr.named_attr = self.if_wanted(Attr::NamedAttr, false);
        fattr.unique_handles = self.if_wanted(Attr::UniqueHandles, true);
        fattr.lease_time = self.if_wanted(Attr::LeaseTime, self.front.shared.state.lease_seconds());
        fattr.rdattr_error = self.if_wanted(Attr::RdattrError, Outcome::Ok(()));
        fattr.aclsupport = self.if_wanted(Attr::Aclsupport, aclsupport);
        fattr.cansettime = self.if_wanted(Attr::Cansettime, limits.can_set_time);
        fattr.case_insensitive = self.if_wanted(Attr::CaseInsensitive, limits.case_insensitive);
        fattr.case_preserving = self.if_wanted(Attr::CasePreserving, limits.case_preserving);
        fattr.chown_restricted = self.if_wanted(Attr::ChownRestricted, limits.chown_restricted);
        fattr.fs_locations = self.wants(Attr::FsLocations).then(|| Box::new(fs_locations(&self.export)));
        fattr.homogeneous = self.if_wanted(Attr::Homogeneous, limits.homogeneous);
        fattr.maxfilesize = self.if_wanted(Attr::Maxfilesize, limits.file_size_max);
        fattr.maxlink = self.if_wanted(Attr::Maxlink, limits.link_max);
        fattr.maxname = self.if_wanted(Attr::Maxname, limits.name_max);
        fattr.maxread = self.if_wanted(Attr::Maxread, TRANSFER_MAX_BYTES.into());
        fattr.maxwrite = self.if_wanted(Attr::Maxwrite, limits.write_max.min(TRANSFER_MAX_BYTES).into());
        fattr.no_trunc = self.if_wanted(Attr::NoTrunc, limits.no_trunc);
        fattr.time_delta = self.if_wanted(Attr::TimeDelta, time_delta(limits.time_delta_nanoseconds));
        fattr.suppattr_exclcreat =
            self.if_wanted(Attr::SuppattrExclcreat, (supported & SETTABLE) - NOT_EXCLUSIVE);
        fattr.clone_blksize = limits.clone_block_bytes.filter(|_| self.wants(Attr::CloneBlksize));
        fattr.change_attr_type = self.if_wanted(Attr::ChangeAttrType, ChangeAttrType::Undefined);
        fattr.xattr_support = self.if_wanted(Attr::XattrSupport, features.contains(Features::XATTR));
        fattr.open_arguments = self.wants(Attr::OpenArguments).then(|| Box::new(OPEN_ARGUMENTS));
        if let Some(space) = &self.space {
            self.of_space(fattr, space);
        }
    }

    fn of_space(&self, fattr: &mut Fattr, space: &FsStat) {
        fattr.files_avail = self.if_wanted(Attr::FilesAvail, space.available_files);
        fattr.files_free = self.if_wanted(Attr::FilesFree, space.free_files);
        fattr.files_total = self.if_wanted(Attr::FilesTotal, space.total_files);
        fattr.space_avail = self.if_wanted(Attr::SpaceAvail, space.available_bytes);
        fattr.space_free = self.if_wanted(Attr::SpaceFree, space.free_bytes);
        fattr.space_total = self.if_wanted(Attr::SpaceTotal, space.total_bytes);
    }
}

fn time_delta(nanoseconds: u64) -> Nfstime {
    Nfstime { seconds: (nanoseconds / 1_000_000_000) as i64, nseconds: (nanoseconds % 1_000_000_000) as u32 }
}

fn acl(acl: vfs::Acl) -> Result<Acl, Status> {
    let ace = |ace: vfs::Ace| {
        let who = Limited::new(ace.who).ok_or(Status::ServerFault)?;
        Ok(Ace { acetype: ace.kind, flag: ace.flags, access_mask: ace.mask, who })
    };
    let aces = acl.0.into_iter().map(ace).collect::<Result<_, Status>>()?;
    Acl::new(aces).ok_or(Status::ServerFault)
}
