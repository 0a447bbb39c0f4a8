//! READ, WRITE, COMMIT and READLINK (RFC 1813, sections 3.3.5 to 3.3.7 and 3.3.21).

use xdr::{Bulk, Xdr};

use super::{Fattr, Handle, Nfspath, Verifier, WccData};

/// `READLINK3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkArgs {
    /// The link.
    pub symlink: Handle,
}

/// `READLINK3resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkOk {
    /// The link's attributes.
    pub symlink_attributes: Option<Fattr>,
    /// Its target.
    pub data: Nfspath,
}

/// `READ3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArgs {
    /// The file.
    pub file: Handle,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub count: u32,
}

/// `READ3resok`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct ReadOk {
    /// The file's attributes.
    pub file_attributes: Option<Fattr>,
    /// Number of bytes read: the length of `data`.
    pub count: u32,
    /// True if the read reaches the end of the file.
    pub eof: bool,
    /// The bytes.
    pub data: Bulk,
}

/// `stable_how`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Xdr)]
pub enum StableHow {
    /// `UNSTABLE`
    Unstable = 0,
    /// `DATA_SYNC`
    DataSync = 1,
    /// `FILE_SYNC`
    FileSync = 2,
}

/// `WRITE3args`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct WriteArgs {
    /// The file.
    pub file: Handle,
    /// First byte.
    pub offset: u64,
    /// Number of bytes: the length of `data`.
    pub count: u32,
    /// How durable the write must be before the server replies.
    pub stable: StableHow,
    /// The bytes.
    pub data: Bulk,
}

/// `WRITE3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteOk {
    /// Attributes before and after the operation.
    pub file_wcc: WccData,
    /// Number of bytes written.
    pub count: u32,
    /// How durable they are.
    pub committed: StableHow,
    /// Changes if unstable writes may have been lost.
    pub verf: Verifier,
}

/// `COMMIT3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitArgs {
    /// The file.
    pub file: Handle,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; zero means to the end of the file.
    pub count: u32,
}

/// `COMMIT3resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitOk {
    /// Attributes before and after the operation.
    pub file_wcc: WccData,
    /// To compare with the verifier of the writes.
    pub verf: Verifier,
}
