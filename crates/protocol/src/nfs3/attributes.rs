//! Attributes, settable attributes, weak cache consistency, and the procedures for them (RFC 1813, sections
//! 2.5, 2.6, 3.3.1, 3.3.2 and 3.3.4).

use xdr::Xdr;

use super::Handle;

/// `ftype3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum Ftype {
    /// `NF3REG`
    Reg = 1,
    /// `NF3DIR`
    Dir = 2,
    /// `NF3BLK`
    Blk = 3,
    /// `NF3CHR`
    Chr = 4,
    /// `NF3LNK`
    Lnk = 5,
    /// `NF3SOCK`
    Sock = 6,
    /// `NF3FIFO`
    Fifo = 7,
}

/// `specdata3`: major and minor number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct Specdata {
    /// Major.
    pub specdata1: u32,
    /// Minor.
    pub specdata2: u32,
}

/// `nfstime3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Xdr)]
pub struct Nfstime {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Nanoseconds in the second.
    pub nseconds: u32,
}

/// `fattr3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Fattr {
    /// Type of file.
    pub ftype: Ftype,
    /// Permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of disk in use.
    pub used: u64,
    /// Device numbers.
    pub rdev: Specdata,
    /// File system.
    pub fsid: u64,
    /// Inode number.
    pub fileid: u64,
    /// Last access.
    pub atime: Nfstime,
    /// Last change of the data.
    pub mtime: Nfstime,
    /// Last change of data or attributes.
    pub ctime: Nfstime,
}

/// `wcc_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WccAttr {
    /// Size in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Nfstime,
    /// Last change of data or attributes.
    pub ctime: Nfstime,
}

/// `wcc_data`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct WccData {
    /// State just before the operation.
    pub before: Option<WccAttr>,
    /// Attributes just after it.
    pub after: Option<Fattr>,
}

/// `set_atime` and `set_mtime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub enum SetTime {
    /// `DONT_CHANGE`
    #[default]
    #[xdr(case = 0)]
    DontChange,
    /// `SET_TO_SERVER_TIME`
    #[xdr(case = 1)]
    SetToServerTime,
    /// `SET_TO_CLIENT_TIME`
    #[xdr(case = 2)]
    SetToClientTime(Nfstime),
}

/// `sattr3`: fields that are `None` are not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct Sattr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: SetTime,
    /// Last change of the data.
    pub mtime: SetTime,
}

/// `GETATTR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetattrArgs {
    /// The object.
    pub object: Handle,
}

/// `GETATTR3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetattrOk {
    /// The object's attributes.
    pub obj_attributes: Fattr,
}

/// `SETATTR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrArgs {
    /// The object.
    pub object: Handle,
    /// What to set.
    pub new_attributes: Sattr,
    /// `sattrguard3`: set only if ctime still has this value.
    pub guard: Option<Nfstime>,
}

/// `SETATTR3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrOk {
    /// Attributes before and after the operation.
    pub obj_wcc: WccData,
}

/// Reading data, or listing a directory.
pub const ACCESS3_READ: u32 = 0x01;
/// Looking up a name in a directory.
pub const ACCESS3_LOOKUP: u32 = 0x02;
/// Overwriting existing data or entries.
pub const ACCESS3_MODIFY: u32 = 0x04;
/// Writing new data or adding entries.
pub const ACCESS3_EXTEND: u32 = 0x08;
/// Deleting an entry.
pub const ACCESS3_DELETE: u32 = 0x10;
/// Executing a file.
pub const ACCESS3_EXECUTE: u32 = 0x20;

/// `ACCESS3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArgs {
    /// The object.
    pub object: Handle,
    /// The requested bits.
    pub access: u32,
}

/// `ACCESS3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessOk {
    /// The object's attributes.
    pub obj_attributes: Option<Fattr>,
    /// The bits granted.
    pub access: u32,
}
