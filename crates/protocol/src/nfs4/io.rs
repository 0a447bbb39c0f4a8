//! READ, WRITE, COMMIT and READLINK (RFC 8881, sections 18.22, 18.32, 18.3 and 18.24).

use xdr::{Bulk, Xdr};

use super::{Linktext, StableHow, Stateid, Verifier};

/// `READ4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub count: u32,
}

/// `READ4resok`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct ReadOk {
    /// True if the read reaches the end of the file.
    pub eof: bool,
    /// The bytes.
    pub data: Bulk,
}

/// `WRITE4args`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct WriteArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// How durable the write must be before the server replies.
    pub stable: StableHow,
    /// The bytes.
    pub data: Bulk,
}

/// `WRITE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteOk {
    /// Number of bytes written.
    pub count: u32,
    /// How durable they are.
    pub committed: StableHow,
    /// Changes if unstable writes may have been lost.
    pub writeverf: Verifier,
}

/// `COMMIT4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitArgs {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; zero means to the end of the file.
    pub count: u32,
}

/// `COMMIT4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitOk {
    /// To compare with the verifier of the writes.
    pub writeverf: Verifier,
}

/// `READLINK4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkOk {
    /// The link's target.
    pub link: Linktext,
}
