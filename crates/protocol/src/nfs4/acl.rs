//! Access control lists (RFC 8881, section 6.2).

use xdr::{List, Xdr};

use super::Limited;

/// The most entries in a list: Linux keeps lists in 64 KiB, and no entry is smaller than 16 bytes.
pub const ACES_MAX: usize = 4096;

/// `nfsace4`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Ace {
    /// One of `ACE4_*_ACE_TYPE`.
    pub acetype: u32,
    /// `ACE4_*_INHERIT_ACE` and the like.
    pub flag: u32,
    /// `ACE4_READ_DATA` and the like.
    pub access_mask: u32,
    /// The user, group or special name that the entry applies to.
    pub who: Limited,
}

/// The value of `acl`.
pub type Acl = List<Ace, ACES_MAX>;

/// `nfsacl41`: the value of `dacl` and `sacl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Nfsacl41 {
    /// `ACL4_AUTO_INHERIT` and the like.
    pub flag: u32,
    /// The entries.
    pub aces: Acl,
}

/// `ACE4_ACCESS_ALLOWED_ACE_TYPE`
pub const ACE4_ACCESS_ALLOWED_ACE_TYPE: u32 = 0;
/// `ACE4_ACCESS_DENIED_ACE_TYPE`
pub const ACE4_ACCESS_DENIED_ACE_TYPE: u32 = 1;
/// `ACE4_SYSTEM_AUDIT_ACE_TYPE`
pub const ACE4_SYSTEM_AUDIT_ACE_TYPE: u32 = 2;
/// `ACE4_SYSTEM_ALARM_ACE_TYPE`
pub const ACE4_SYSTEM_ALARM_ACE_TYPE: u32 = 3;

/// In `aclsupport`: allow entries.
pub const ACL4_SUPPORT_ALLOW_ACL: u32 = 0x1;
/// In `aclsupport`: deny entries.
pub const ACL4_SUPPORT_DENY_ACL: u32 = 0x2;
/// In `aclsupport`: audit entries.
pub const ACL4_SUPPORT_AUDIT_ACL: u32 = 0x4;
/// In `aclsupport`: alarm entries.
pub const ACL4_SUPPORT_ALARM_ACL: u32 = 0x8;

/// Inherited by new files.
pub const ACE4_FILE_INHERIT_ACE: u32 = 0x01;
/// Inherited by new directories.
pub const ACE4_DIRECTORY_INHERIT_ACE: u32 = 0x02;
/// Inherited only by direct children.
pub const ACE4_NO_PROPAGATE_INHERIT_ACE: u32 = 0x04;
/// Inherited, but not in force for this object.
pub const ACE4_INHERIT_ONLY_ACE: u32 = 0x08;
/// Audit or alarm on success.
pub const ACE4_SUCCESSFUL_ACCESS_ACE_FLAG: u32 = 0x10;
/// Audit or alarm on failure.
pub const ACE4_FAILED_ACCESS_ACE_FLAG: u32 = 0x20;
/// `who` is a group.
pub const ACE4_IDENTIFIER_GROUP: u32 = 0x40;
/// Was inherited.
pub const ACE4_INHERITED_ACE: u32 = 0x80;

/// Read a file, or list a directory.
pub const ACE4_READ_DATA: u32 = 0x0000_0001;
/// Write a file, or make a file in a directory.
pub const ACE4_WRITE_DATA: u32 = 0x0000_0002;
/// Append to a file, or make a directory in a directory.
pub const ACE4_APPEND_DATA: u32 = 0x0000_0004;
/// Read named attributes.
pub const ACE4_READ_NAMED_ATTRS: u32 = 0x0000_0008;
/// Write named attributes.
pub const ACE4_WRITE_NAMED_ATTRS: u32 = 0x0000_0010;
/// Execute a file, or traverse a directory.
pub const ACE4_EXECUTE: u32 = 0x0000_0020;
/// Remove from a directory.
pub const ACE4_DELETE_CHILD: u32 = 0x0000_0040;
/// Read basic attributes.
pub const ACE4_READ_ATTRIBUTES: u32 = 0x0000_0080;
/// Change basic attributes.
pub const ACE4_WRITE_ATTRIBUTES: u32 = 0x0000_0100;
/// Remove this object.
pub const ACE4_DELETE: u32 = 0x0001_0000;
/// Read the list.
pub const ACE4_READ_ACL: u32 = 0x0002_0000;
/// Change the list.
pub const ACE4_WRITE_ACL: u32 = 0x0004_0000;
/// Change the owner.
pub const ACE4_WRITE_OWNER: u32 = 0x0008_0000;
/// Use the object for interprocess synchronization.
pub const ACE4_SYNCHRONIZE: u32 = 0x0010_0000;
