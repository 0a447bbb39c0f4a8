//! Attributes of a directory above exports. All clients may read it, none may change it, and it changes
//! only with the exports.

use protocol::nfs4::{
    Bitmap, ChangeAttrType, FH4_PERSISTENT, Fattr, FsLocations, Fsid, Ftype, Nfstime, Outcome, Specdata,
    Status,
};
use vfs::FsLimits;

use super::object::OPEN_ARGUMENTS;
use super::supported;
use crate::exports::pseudo::NodeIndex;
use crate::nfs4::compound::{Compound, File};
use crate::nfs4::{convert, owners};

/// The `fsid` of these directories: a number that no device has.
const FSID: Fsid = Fsid { major: u64::from_be_bytes(*b"exports\0"), minor: 0 };

/// The requested attributes.
pub(super) fn fattr(compound: &Compound<'_>, index: NodeIndex, asked: Bitmap) -> Result<Fattr, Status> {
    let tree = compound.front.pseudo();
    let node = tree.node(index);
    let made = convert::nfstime(tree.made);
    let limits = FsLimits::default();
    let mut fattr = Fattr {
        supported_attrs: Some(supported(compound.minor, &limits)),
        ftype: Some(Ftype::Dir),
        fh_expire_type: Some(FH4_PERSISTENT),
        change: Some(tree.made.as_nanos() as u64),
        size: Some(4096),
        link_support: Some(false),
        symlink_support: Some(false),
        named_attr: Some(false),
        fsid: Some(FSID),
        unique_handles: Some(true),
        lease_time: Some(compound.shared.state.lease_seconds()),
        rdattr_error: Some(Outcome::Ok(())),
        aclsupport: Some(0),
        cansettime: Some(false),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        filehandle: Some(compound.wire_handle(&File::Pseudo(index))?),
        fileid: Some(node.id),
        files_avail: Some(0),
        files_free: Some(0),
        files_total: Some(0),
        fs_locations: Some(Box::<FsLocations>::default()),
        homogeneous: Some(true),
        maxfilesize: Some(limits.file_size_max),
        maxlink: Some(limits.link_max),
        maxname: Some(limits.name_max),
        maxread: Some(limits.read_max.into()),
        maxwrite: Some(limits.write_max.into()),
        mode: Some(0o555),
        no_trunc: Some(true),
        numlinks: Some(2 + tree.count_children(node) as u32),
        owner: Some(owners::string(0)),
        owner_group: Some(owners::string(0)),
        rawdev: Some(Specdata::default()),
        space_avail: Some(0),
        space_free: Some(0),
        space_total: Some(0),
        space_used: Some(0),
        time_access: Some(made),
        time_delta: Some(Nfstime { seconds: 0, nseconds: 1 }),
        time_metadata: Some(made),
        time_modify: Some(made),
        mounted_on_fileid: Some(node.id),
        suppattr_exclcreat: Some(Bitmap::EMPTY),
        change_attr_type: Some(ChangeAttrType::Undefined),
        xattr_support: Some(false),
        open_arguments: Some(Box::new(OPEN_ARGUMENTS)),
        ..Fattr::default()
    };
    fattr.retain(asked & supported(compound.minor, &limits));
    Ok(fattr)
}
