//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR (RFC 8276, section 8.4).

use xdr::{List, Opaque, Xdr};

use super::{BODY_MAX, ChangeInfo, Component};

/// The most bytes in a value on Linux. Longer values are decoded, so that the server can reply XATTR2BIG.
pub const XATTR_SIZE_MAX: usize = 1 << 16;
/// The most names in one reply: more than the shortest names fill Linux's 64 KiB.
pub const XATTR_NAMES_MAX: usize = 1 << 14;

/// `xattrvalue4`.
pub type XattrValue = Opaque<BODY_MAX>;

/// `GETXATTR4args` and `REMOVEXATTR4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct XattrArgs {
    /// Its name, without `user.`.
    pub name: Component,
}

/// The result of GETXATTR.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GetxattrOk {
    /// Its value.
    pub value: XattrValue,
}

/// `setxattr_option4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum SetxattrOption {
    /// `SETXATTR4_EITHER`
    Either = 0,
    /// `SETXATTR4_CREATE`: it must not exist.
    Create = 1,
    /// `SETXATTR4_REPLACE`: it must exist.
    Replace = 2,
}

/// `SETXATTR4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetxattrArgs {
    /// Whether it must exist.
    pub option: SetxattrOption,
    /// Its name, without `user.`.
    pub key: Component,
    /// Its value.
    pub value: XattrValue,
}

/// The results of SETXATTR and REMOVEXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct XattrChangedOk {
    /// Change attribute of the file before and after the operation.
    pub cinfo: ChangeInfo,
}

/// `LISTXATTRS4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ListxattrsArgs {
    /// Cookie of the name to continue after; zero for the start.
    pub cookie: u64,
    /// The most bytes in the reply.
    pub maxcount: u32,
}

/// `LISTXATTRS4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ListxattrsOk {
    /// Cookie for continuing.
    pub cookie: u64,
    /// Names, without `user.`.
    pub names: List<Component, XATTR_NAMES_MAX>,
    /// True if there are no more names.
    pub eof: bool,
}
