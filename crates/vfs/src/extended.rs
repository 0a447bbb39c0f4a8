//! Operations that v4 has and v3 lacks: access control lists, extended attributes (RFC 8276), extents and
//! copies (RFC 7862).
//!
//! A back end says in its `FsLimits` which of them it offers. The others fail with `NotSupp`.

use async_trait::async_trait;
use bitflags::bitflags;
use bytes::Bytes;

use crate::Verifier;
use crate::attributes::{Attributes, Wcc};
use crate::caller::Caller;
use crate::error::{Result, Status};
use crate::handle::Handle;
use crate::open::StateidBasis;
use crate::results::Stability;

bitflags! {
    /// Which of the operations of this module a file system offers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Features: u16 {
        /// Opens, share reservations and byte-range locks that the origin knows.
        const STATE = 0x01;
        /// Access control lists.
        const ACL = 0x02;
        /// Extended attributes.
        const XATTR = 0x04;
        /// SEEK.
        const SEEK = 0x08;
        /// ALLOCATE.
        const ALLOCATE = 0x10;
        /// DEALLOCATE.
        const DEALLOCATE = 0x20;
        /// COPY.
        const COPY = 0x40;
        /// CLONE.
        const CLONE = 0x80;
        /// Leases, but no opens at the origin (NQNFS). An open asks for the lease and the caller's right, and
        /// may name the file by its handle. The origin answers one right at a time, so a layer asks for a
        /// right when it needs it.
        const LEASES_ALONE = 0x100;
        /// Byte-range locks, but no opens at the origin (NLM). A file is opened by its handle so that it can
        /// be locked: the origin does not see that open.
        const LOCKS_ALONE = 0x200;
    }
}

/// One entry of an access control list: `nfsace4` (RFC 8881, section 6.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ace {
    /// Allow, deny, audit, alarm.
    pub kind: u32,
    /// Inheritance, and whether `who` is a group.
    pub flags: u32,
    /// Which rights.
    pub mask: u32,
    /// The user or group: `OWNER@` and the like, or a name in the form of owner names. At most 1,024 bytes.
    pub who: Bytes,
}

/// An access control list, at most [`Acl::MAX`] entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl(pub Vec<Ace>);

impl Acl {
    /// The most entries: Linux's bound for what fits into its POSIX lists and back.
    pub const MAX: usize = 1024;
}

/// The name of an extended attribute, without Linux's prefix `user.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XattrName(Bytes);

impl XattrName {
    /// The longest: Linux's 255 less `user.`.
    pub const MAX: usize = 250;

    /// Parses a name.
    ///
    /// # Errors
    /// `Inval` if it is empty or contains a NUL; `NameTooLong` beyond [`XattrName::MAX`] bytes.
    pub fn new(name: &[u8]) -> Result<XattrName> {
        match name.len() {
            0 => Err(Status::Inval.into()),
            length if length > XattrName::MAX => Err(Status::NameTooLong.into()),
            _ if name.contains(&0) => Err(Status::Inval.into()),
            _ => Ok(XattrName(Bytes::copy_from_slice(name))),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// `setxattr_option4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XattrHow {
    /// Make or replace the attribute.
    Either,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

/// Part of a list of extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedXattrs {
    /// The names.
    pub names: Vec<XattrName>,
    /// The cookie for the next LISTXATTRS.
    pub cookie: u64,
    /// The list has no further names.
    pub eof: bool,
}

/// `data_content4` of SEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Bytes.
    Data,
    /// Zeros that take no space.
    Hole,
}

/// The result of a SEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought {
    /// The first byte of the extent.
    pub offset: u64,
    /// The extent is the end of the file.
    pub eof: bool,
    /// The file's attributes at that time or later, if the reply has them.
    pub attributes: Option<Attributes>,
}

/// A place in a file, and the state under which it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub handle: Handle,
    /// The open, if there is one.
    pub by: StateidBasis,
    /// The first byte.
    pub offset: u64,
}

/// The result of a COPY.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Number of bytes copied.
    pub count: u64,
    /// How durable they are.
    pub stability: Stability,
    /// The verifier, as of WRITE.
    pub verifier: Verifier,
    /// The target file before and after.
    pub wcc: Wcc,
}

/// Access control lists, extended attributes, holes and copies.
#[async_trait]
pub trait Extended {
    /// The access control list.
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl>;

    /// Sets the access control list.
    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc>;

    /// The value of an extended attribute.
    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes>;

    /// Sets an extended attribute.
    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc>;

    /// Names of extended attributes behind `cookie` (zero: from the first), about `bytes` bytes of them.
    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs>;

    /// Removes an extended attribute.
    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc>;

    /// The next data or hole at or behind `offset`.
    ///
    /// # Errors
    /// `Nxio` if `offset` is at or behind the end of the file, or if no data follows.
    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought>;

    /// Reserves space for `length` bytes, and grows the file to the end of the range.
    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc>;

    /// Makes `length` bytes a hole.
    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc>;

    /// Copies `count` bytes (zero: to the end of the file) between two places of this file system.
    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied>;

    /// Makes a range share its blocks with another range, or fails. A `count` of zero means to the end of the
    /// file.
    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc>;
}
