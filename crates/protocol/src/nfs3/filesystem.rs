//! FSSTAT, FSINFO and PATHCONF (RFC 1813, sections 3.3.18 to 3.3.20).

use xdr::Xdr;

use super::{Fattr, Handle, Nfstime};

/// `FSSTAT3args`, `FSINFO3args` and `PATHCONF3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsArgs {
    /// An object of the file system; for FSINFO its root.
    pub object: Handle,
}

/// `FSSTAT3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsstatOk {
    /// The object's attributes.
    pub obj_attributes: Option<Fattr>,
    /// Total bytes.
    pub tbytes: u64,
    /// Free bytes.
    pub fbytes: u64,
    /// Free bytes available to the caller.
    pub abytes: u64,
    /// Total files.
    pub tfiles: u64,
    /// Free files.
    pub ffiles: u64,
    /// Free files available to the caller.
    pub afiles: u64,
    /// Seconds for which the values above are not expected to change.
    pub invarsec: u32,
}

/// The file system supports hard links.
pub const FSF3_LINK: u32 = 0x0001;
/// The file system supports symbolic links.
pub const FSF3_SYMLINK: u32 = 0x0002;
/// PATHCONF is the same for the entire file system.
pub const FSF3_HOMOGENEOUS: u32 = 0x0008;
/// SETATTR can set times.
pub const FSF3_CANSETTIME: u32 = 0x0010;

/// `FSINFO3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsinfoOk {
    /// The object's attributes.
    pub obj_attributes: Option<Fattr>,
    /// Most bytes in a READ.
    pub rtmax: u32,
    /// Preferred bytes in a READ.
    pub rtpref: u32,
    /// READ sizes should be a multiple of this.
    pub rtmult: u32,
    /// Most bytes in a WRITE.
    pub wtmax: u32,
    /// Preferred bytes in a WRITE.
    pub wtpref: u32,
    /// WRITE sizes should be a multiple of this.
    pub wtmult: u32,
    /// Preferred bytes in a READDIR.
    pub dtpref: u32,
    /// Largest file.
    pub maxfilesize: u64,
    /// Timestamp granularity.
    pub time_delta: Nfstime,
    /// The `FSF3_…` bits.
    pub properties: u32,
}

/// `PATHCONF3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct PathconfOk {
    /// The object's attributes.
    pub obj_attributes: Option<Fattr>,
    /// Most links to a file.
    pub linkmax: u32,
    /// Longest name.
    pub name_max: u32,
    /// Longer names are an error; the server does not truncate them.
    pub no_trunc: bool,
    /// Only the superuser may change an owner.
    pub chown_restricted: bool,
    /// Names are case-insensitive.
    pub case_insensitive: bool,
    /// Names keep their case.
    pub case_preserving: bool,
}
