//! Procedures that look up, create, remove and rename names (RFC 1813, sections 3.3.3 and 3.3.8 to 3.3.15).

use xdr::Xdr;

use super::{Fattr, Filename, Handle, Nfspath, Sattr, Specdata, Verifier, WccData};

/// `diropargs3`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct DirOpArgs {
    /// The directory.
    pub dir: Handle,
    /// The name in it.
    pub name: Filename,
}

/// `LOOKUP3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LookupArgs {
    /// Directory and name.
    pub what: DirOpArgs,
}

/// `LOOKUP3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LookupOk {
    /// The handle of the object.
    pub object: Handle,
    /// Its attributes.
    pub obj_attributes: Option<Fattr>,
    /// The attributes of the directory.
    pub dir_attributes: Option<Fattr>,
}

/// `createhow3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum CreateHow {
    /// `UNCHECKED`: the name may exist.
    #[xdr(case = 0)]
    Unchecked(Sattr),
    /// `GUARDED`: the name must not exist.
    #[xdr(case = 1)]
    Guarded(Sattr),
    /// `EXCLUSIVE`: the name must not exist, unless it was created with this verifier.
    #[xdr(case = 2)]
    Exclusive(Verifier),
}

/// `CREATE3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArgs {
    /// Directory and name.
    pub location: DirOpArgs,
    /// The create mode.
    pub how: CreateHow,
}

/// `CREATE3resok`, `MKDIR3resok`, `SYMLINK3resok` and `MKNOD3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateOk {
    /// The new object.
    pub obj: Option<Handle>,
    /// Its attributes.
    pub obj_attributes: Option<Fattr>,
    /// Attributes of the directory before and after the operation.
    pub dir_wcc: WccData,
}

/// `MKDIR3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MkdirArgs {
    /// Directory and name.
    pub location: DirOpArgs,
    /// Its initial attributes.
    pub attributes: Sattr,
}

/// `SYMLINK3args`, with `symlinkdata3` inlined.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SymlinkArgs {
    /// Directory and name.
    pub location: DirOpArgs,
    /// Its initial attributes.
    pub symlink_attributes: Sattr,
    /// Its target.
    pub symlink_data: Nfspath,
}

/// `mknoddata3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum MknodData {
    /// `NF3BLK`
    #[xdr(case = 3)]
    Blk(Sattr, Specdata),
    /// `NF3CHR`
    #[xdr(case = 4)]
    Chr(Sattr, Specdata),
    /// `NF3SOCK`
    #[xdr(case = 6)]
    Sock(Sattr),
    /// `NF3FIFO`
    #[xdr(case = 7)]
    Fifo(Sattr),
    /// A type that MKNOD does not create: BADTYPE.
    #[xdr(default)]
    Other(u32),
}

/// `MKNOD3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MknodArgs {
    /// Directory and name.
    pub location: DirOpArgs,
    /// Type and attributes of the object.
    pub what: MknodData,
}

/// `REMOVE3args` and `RMDIR3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct RemoveArgs {
    /// Directory and name.
    pub object: DirOpArgs,
}

/// `REMOVE3resok` and `RMDIR3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RemoveOk {
    /// Attributes of the directory before and after the operation.
    pub dir_wcc: WccData,
}

/// `RENAME3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct RenameArgs {
    /// The old name.
    pub from: DirOpArgs,
    /// The new one.
    pub to: DirOpArgs,
}

/// `RENAME3resok` and `RENAME3resfail`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct RenameRes {
    /// The old directory, before and after the operation.
    pub fromdir_wcc: WccData,
    /// The new directory, before and after the operation.
    pub todir_wcc: WccData,
}

/// `LINK3args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LinkArgs {
    /// The file.
    pub file: Handle,
    /// Its additional name.
    pub link: DirOpArgs,
}

/// `LINK3resok` and `LINK3resfail`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct LinkRes {
    /// The file's attributes.
    pub file_attributes: Option<Fattr>,
    /// Attributes of the directory before and after the operation.
    pub linkdir_wcc: WccData,
}
