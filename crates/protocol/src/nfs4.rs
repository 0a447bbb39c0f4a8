//! NFS version 4: minor versions 0 (RFC 7530), 1 (RFC 8881) and 2 (RFC 7862), extended attributes (RFC 8276),
//! and the additions of RFC 9754 to OPEN.
//!
//! Everything derives from one table, [`Operation`]. Each operation has its arguments in [`ArgOp`], its
//! results in [`ResOp`], and a type in [`op`] that connects the two. A server decodes a [`CompoundHeader`]
//! from a call, and then one [`ArgOp`] after the other. So an operation that cannot be decoded does not
//! affect the results before it. A client builds [`CompoundArgs`] and takes the expected results out of
//! [`Results`].
//!
//! Fields are named as in the RFC. If one prefix of two or three letters belongs to exactly one type, it is
//! omitted (`eia_flags` is `flags` of [`ExchangeIdArgs`]).

mod acl;
mod attributes;
mod bitmap;
pub mod callback;
mod clientid;
mod common;
mod compound;
mod copy;
mod delegation;
mod directory;
mod fattr;
mod io;
mod layout;
mod lock;
mod names;
mod open;
mod operations;
mod secinfo;
mod session;
mod space;
mod state_protect;
mod status;
mod table;
mod xattr;

pub use crate::nfs3::{Specdata, StableHow};
pub use acl::*;
pub use attributes::*;
pub use bitmap::Bitmap;
pub use clientid::*;
pub use common::*;
pub use compound::*;
pub use copy::*;
pub use delegation::*;
pub use directory::*;
pub use fattr::*;
pub use io::*;
pub use layout::*;
pub use lock::*;
pub use names::*;
pub use open::*;
pub use operations::*;
pub use secinfo::*;
pub use session::*;
pub use space::*;
pub use state_protect::*;
pub use status::{Outcome, Status};
pub use table::{Failure, Op, OpResult, Outcomes};
pub use xattr::*;

use crate::program::program;

/// `NFS4_FHSIZE`: the most bytes in a handle.
pub const FHSIZE: usize = 128;
/// `NFS4_VERIFIER_SIZE`
pub const VERIFIER_SIZE: usize = 8;
/// `NFS4_OPAQUE_LIMIT`: the most bytes in the name of an owner, a client or a server.
pub const OPAQUE_LIMIT: usize = 1024;
/// `NFS4_SESSIONID_SIZE`
pub const SESSIONID_SIZE: usize = 16;
/// `NFS4_DEVICEID4_SIZE`
pub const DEVICEID_SIZE: usize = 16;
/// The most bytes in a name on the wire. The RFC sets no bound. A name longer than [`NAME_MAX`] gets
/// NAMETOOLONG, and for that the server must be able to decode it.
pub const NAME_BOUND: usize = 4096;
/// The longest name in the file systems of this project and of Linux.
pub const NAME_MAX: usize = 255;
/// The most bytes in the target of a symbolic link.
pub const PATH_MAX: usize = 4096;
/// The most bytes in the tag of a compound.
pub const TAG_MAX: usize = 1024;
/// The most operations in a compound. Linux serves at most 200, and sends far fewer.
pub const OPERATIONS_MAX: usize = 256;
/// The most bytes in opaque data other than file data, if the RFC sets no bound: the largest transfer of
/// Linux.
pub const BODY_MAX: usize = 1 << 20;

/// `nfs_fh4`.
pub type Handle = xdr::Inline<FHSIZE>;
/// `component4`: one name of a path.
pub type Component = xdr::Opaque<NAME_BOUND>;
/// `linktext4`.
pub type Linktext = xdr::Opaque<PATH_MAX>;
/// `verifier4`.
pub type Verifier = [u8; VERIFIER_SIZE];
/// `clientid4`.
pub type Clientid = u64;
/// `sessionid4`.
pub type Sessionid = [u8; SESSIONID_SIZE];
/// `deviceid4`.
pub type Deviceid = [u8; DEVICEID_SIZE];
/// `utf8str_cs` of a compound's tag.
pub type Tag = xdr::Opaque<TAG_MAX>;
/// `opaque<NFS4_OPAQUE_LIMIT>`, and strings without a bound in the RFC that Linux does not make longer.
pub type Limited = xdr::Opaque<OPAQUE_LIMIT>;

program! {
    100_003, 4;
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Execute operations in order, up to the first one that fails.
    Compound = 1, "COMPOUND", CompoundArgs => CompoundRes;
}
