//! What v4 has and v3 has not: access control lists, extended attributes (RFC 8276), extents and copies (RFC 7862).
//!
//! A back end says in its `FsLimits` which of it there is; whatever it does not offer is `NotSupp`.

use bitflags::bitflags;
use bytes::Bytes;

use crate::Verifier;
use crate::attributes::{Attributes, Wcc};
use crate::error::{Result, Status};
use crate::filesystem::Stability;
use crate::handle::Handle;
use crate::open::StateidBasis;

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
        /// Leases, and no opens that the origin knows: what an open asks for there is the lease and the caller's right, of a
        /// file that may as well be named by its handle. Rights are told one by one, and so best asked for when needed.
        const LEASES_ALONE = 0x100;
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
    /// Whose: `OWNER@`, or a name as owners have it. At most 1,024 bytes.
    pub who: Bytes,
}

/// An access control list, at most [`Acl::MAX`] entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl(pub Vec<Ace>);

impl Acl {
    /// The most entries: Linux's bound for what fits into its POSIX lists and back.
    pub const MAX: usize = 1024;
}

/// The name of an extended attribute, without the `user.` that it has on Linux.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XattrName(Bytes);

impl XattrName {
    /// The longest: Linux's 255 less `user.`.
    pub const MAX: usize = 250;

    /// # Errors
    /// `Inval` if it is empty or has a NUL, `NameTooLong`.
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
    /// Make it or replace it.
    Either,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// Some names of extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedXattrs {
    /// The names.
    pub names: Vec<XattrName>,
    /// Listing goes on from here.
    pub cookie: u64,
    /// There are no more.
    pub eof: bool,
}

/// `data_content4`, as far as SEEK has it.
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
    /// Where it begins.
    pub offset: u64,
    /// That is the end of the file.
    pub eof: bool,
    /// The file's attributes at that time or later, if they came along.
    pub attributes: Option<Attributes>,
}

/// A place in a file, and on what ground it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub handle: Handle,
    /// The ground.
    pub by: StateidBasis,
    /// The first byte.
    pub offset: u64,
}

/// The result of a COPY.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// How many bytes.
    pub count: u64,
    /// How durable.
    pub stability: Stability,
    /// As of WRITE.
    pub verifier: Verifier,
    /// The file copied to.
    pub wcc: Wcc,
}
