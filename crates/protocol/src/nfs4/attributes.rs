//! GETATTR, SETATTR, VERIFY, NVERIFY and ACCESS (RFC 8881, sections 18.7, 18.30, 18.31, 18.15 and 18.1), and
//! the attribute values that are more than a number (section 5).

use xdr::{Decode, Decoder, Encode, Encoder, Error, List, Opaque, Xdr};

use super::{ArgFattr, Bitmap, Component, Failure, Fattr, LayoutBody, Limited, Stateid, Status};

/// Reading data, or listing a directory.
pub const ACCESS4_READ: u32 = 0x01;
/// Looking up a name in a directory.
pub const ACCESS4_LOOKUP: u32 = 0x02;
/// Overwriting existing data or entries.
pub const ACCESS4_MODIFY: u32 = 0x04;
/// Writing new data or adding entries.
pub const ACCESS4_EXTEND: u32 = 0x08;
/// Deleting an entry.
pub const ACCESS4_DELETE: u32 = 0x10;
/// Executing a file.
pub const ACCESS4_EXECUTE: u32 = 0x20;
/// Reading extended attributes (RFC 8276).
pub const ACCESS4_XAREAD: u32 = 0x40;
/// Writing extended attributes (RFC 8276).
pub const ACCESS4_XAWRITE: u32 = 0x80;
/// Listing extended attributes (RFC 8276).
pub const ACCESS4_XALIST: u32 = 0x100;

/// `ACCESS4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArgs {
    /// The requested bits.
    pub access: u32,
}

/// `ACCESS4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessOk {
    /// The requested bits that the server can check.
    pub supported: u32,
    /// The requested bits that are granted.
    pub access: u32,
}

/// `GETATTR4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetattrArgs {
    /// The requested attributes.
    pub attr_request: Bitmap,
}

/// `GETATTR4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GetattrOk {
    /// The requested attributes that the object has.
    pub obj_attributes: Box<Fattr>,
}

/// `SETATTR4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrArgs {
    /// The stateid basis of a size change.
    pub stateid: Stateid,
    /// What to set.
    pub obj_attributes: ArgFattr,
}

/// `SETATTR4res` on success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrOk {
    /// The attributes that were set.
    pub attrsset: Bitmap,
}

/// `SETATTR4res` on failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetattrFailure {
    /// The error.
    pub status: Status,
    /// The attributes that were set before the failure.
    pub attrsset: Bitmap,
}

/// A failure without any attribute set.
impl From<Status> for SetattrFailure {
    fn from(status: Status) -> SetattrFailure {
        SetattrFailure { status, attrsset: Bitmap::EMPTY }
    }
}

impl Encode for SetattrFailure {
    fn encode(&self, encoder: &mut Encoder) {
        self.status.encode(encoder);
        self.attrsset.encode(encoder);
    }
}

impl Failure for SetattrFailure {
    fn status(&self) -> Status {
        self.status
    }

    fn decode(status: Status, decoder: &mut Decoder) -> Result<SetattrFailure, Error> {
        Ok(SetattrFailure { status, attrsset: Bitmap::decode(decoder)? })
    }
}

/// `VERIFY4args` and `NVERIFY4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct VerifyArgs {
    /// What to compare with.
    pub obj_attributes: ArgFattr,
}

/// In `fh_expire_type`: handles are valid as long as the object exists.
pub const FH4_PERSISTENT: u32 = 0x0;
/// In `fh_expire_type`: handles do not expire while the file is open.
pub const FH4_NOEXPIRE_WITH_OPEN: u32 = 0x1;
/// In `fh_expire_type`: handles may expire at any time.
pub const FH4_VOLATILE_ANY: u32 = 0x2;
/// In `fh_expire_type`: handles expire if the file system migrates.
pub const FH4_VOL_MIGRATION: u32 = 0x4;
/// In `fh_expire_type`: handles expire if the object is renamed.
pub const FH4_VOL_RENAME: u32 = 0x8;

/// `change_attr_type4` (RFC 7862, section 12.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum ChangeAttrType {
    /// `NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR`
    MonotonicIncr = 0,
    /// `NFS4_CHANGE_TYPE_IS_VERSION_COUNTER`
    VersionCounter = 1,
    /// `NFS4_CHANGE_TYPE_IS_VERSION_COUNTER_NOPNFS`
    VersionCounterNopnfs = 2,
    /// `NFS4_CHANGE_TYPE_IS_TIME_METADATA`
    TimeMetadata = 3,
    /// `NFS4_CHANGE_TYPE_IS_UNDEFINED`
    Undefined = 4,
}

/// `pathname4`.
pub type Pathname = List<Component, 512>;

/// `fs_locations4`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct FsLocations {
    /// The root of the file system on this server.
    pub fs_root: Pathname,
    /// Other servers that have it.
    pub locations: List<FsLocation, 64>,
}

/// `fs_location4`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct FsLocation {
    /// Names or addresses of a server.
    pub server: List<Limited, 64>,
    /// The root of the file system on that server.
    pub rootpath: Pathname,
}

/// `change_policy4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ChangePolicy {
    /// `cp_major`
    pub major: u64,
    /// `cp_minor`
    pub minor: u64,
}

/// `layouthint4`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct LayoutHint {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// `loh_body`
    pub body: LayoutBody,
}

/// `mode_masked4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ModeMasked {
    /// The bits to set.
    pub value_to_set: u32,
    /// The bits that change.
    pub mask_bits: u32,
}

/// `mode_umask4` (RFC 8275).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ModeUmask {
    /// The mode of a new object.
    pub mode: u32,
    /// The bits removed from it if the directory has no default ACL.
    pub umask: u32,
}

/// `sec_label4` (RFC 7862, section 12.2.4).
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct SecLabel {
    /// Label format.
    pub lfs: u32,
    /// Policy.
    pub pi: u32,
    /// The label.
    pub data: Opaque<4096>,
}

/// `open_arguments4` (RFC 9754): the arguments of OPEN that the server supports, as sets of bit numbers or of
/// values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct OpenArguments {
    /// `OPEN4_SHARE_ACCESS_*` bits.
    pub share_access: Bitmap,
    /// `OPEN4_SHARE_DENY_*` bits.
    pub share_deny: Bitmap,
    /// `OPEN4_SHARE_ACCESS_WANT_*` values.
    pub share_access_want: Bitmap,
    /// Cases of `open_claim4`.
    pub open_claim: Bitmap,
    /// Cases of `createhow4`.
    pub create_mode: Bitmap,
}
