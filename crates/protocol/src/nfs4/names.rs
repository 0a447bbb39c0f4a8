//! Handles, and the operations that look up, create, remove and rename names (RFC 8881, sections 18.4, 18.8,
//! 18.9, 18.13, 18.17, 18.19 and 18.25 to 18.28).

use xdr::Xdr;

use super::{ArgFattr, Bitmap, ChangeInfo, Component, Handle, Linktext, Specdata};

/// `PUTFH4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct PutfhArgs {
    /// The new current handle.
    pub object: Handle,
}

/// `GETFH4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetfhOk {
    /// The current handle.
    pub object: Handle,
}

/// `LOOKUP4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LookupArgs {
    /// The name.
    pub objname: Component,
}

/// `OPENATTR4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenattrArgs {
    /// Create the directory of named attributes if there is none.
    pub createdir: bool,
}

/// `CREATE4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArgs {
    /// The type of the object.
    pub objtype: Createtype,
    /// Its name.
    pub objname: Component,
    /// Its initial attributes.
    pub createattrs: ArgFattr,
}

/// `createtype4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Createtype {
    /// `NF4DIR`
    #[xdr(case = 2)]
    Dir,
    /// `NF4BLK`
    #[xdr(case = 3)]
    Blk(Specdata),
    /// `NF4CHR`
    #[xdr(case = 4)]
    Chr(Specdata),
    /// `NF4LNK`
    #[xdr(case = 5)]
    Lnk(Linktext),
    /// `NF4SOCK`
    #[xdr(case = 6)]
    Sock,
    /// `NF4FIFO`
    #[xdr(case = 7)]
    Fifo,
    /// A type that CREATE does not create: BADTYPE.
    #[xdr(default)]
    Other(u32),
}

/// `CREATE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateOk {
    /// Change attribute of the directory before and after the operation.
    pub cinfo: ChangeInfo,
    /// The attributes that were set.
    pub attrset: Bitmap,
}

/// `LINK4args`: links the saved file into the current directory.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LinkArgs {
    /// Its additional name.
    pub newname: Component,
}

/// `LINK4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LinkOk {
    /// Change attribute of the directory before and after the operation.
    pub cinfo: ChangeInfo,
}

/// `REMOVE4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct RemoveArgs {
    /// The name.
    pub target: Component,
}

/// `REMOVE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RemoveOk {
    /// Change attribute of the directory before and after the operation.
    pub cinfo: ChangeInfo,
}

/// `RENAME4args`: from the saved directory to the current one.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct RenameArgs {
    /// The old name.
    pub oldname: Component,
    /// The new one.
    pub newname: Component,
}

/// `RENAME4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RenameOk {
    /// Change attribute of the old directory before and after the operation.
    pub source_cinfo: ChangeInfo,
    /// Change attribute of the new directory before and after the operation.
    pub target_cinfo: ChangeInfo,
}
