//! LOCK, LOCKT, LOCKU and RELEASE_LOCKOWNER (RFC 8881, sections 18.10 to 18.12; RFC 7530, section 16.37).

use xdr::Xdr;

use super::{StateOwner, Stateid};

/// `nfs_lock_type4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub enum NfsLockType {
    /// `READ_LT`
    #[default]
    Read = 1,
    /// `WRITE_LT`
    Write = 2,
    /// `READW_LT`: the client will wait for it.
    Readw = 3,
    /// `WRITEW_LT`: the client will wait for it.
    Writew = 4,
}

/// `LOCK4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LockArgs {
    /// Shared (for reading) or exclusive (for writing).
    pub locktype: NfsLockType,
    /// Held before the server's restart.
    pub reclaim: bool,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones means to the end of the file, however it grows.
    pub length: u64,
    /// The lock owner.
    pub locker: Locker,
}

/// `locker4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Locker {
    /// `exist_lock_owner4`: an owner that has a lock stateid for the file.
    #[xdr(case = 0)]
    LockOwner {
        /// That stateid.
        lock_stateid: Stateid,
        /// The lock owner's next sequence id; only in minor version 0.
        lock_seqid: u32,
    },
    /// `open_to_lock_owner4`: an owner without a lock stateid.
    #[xdr(case = 1)]
    OpenOwner {
        /// The open owner's next sequence id; only in minor version 0.
        open_seqid: u32,
        /// The open.
        open_stateid: Stateid,
        /// The lock owner's first sequence id; only in minor version 0.
        lock_seqid: u32,
        /// The lock owner.
        lock_owner: StateOwner,
    },
}

/// `LOCK4resok` and the result of LOCKU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockOk {
    /// The stateid of the owner's locks on the file.
    pub lock_stateid: Stateid,
}

/// The longest lock owner, in bytes, that every client can decode in a denial.
///
/// In the reply to LOCK, Linux reserves space for an owner as long as its own owners. It does so since 6.14
/// and the stable kernels of April 2025. If the conflicting owner is longer, `lockf(3)` fails there with EIO
/// instead of EAGAIN.
pub const SHORT_OWNER_BYTES: usize = 20;

/// `LOCK4denied`: the conflicting lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct LockDenied {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones means to the end of the file.
    pub length: u64,
    /// Shared (for reading) or exclusive (for writing).
    pub locktype: NfsLockType,
    /// Its owner.
    pub owner: StateOwner,
}

super::table::failure_with_body! {
    /// The error of LOCK or LOCKT.
    LockFailure: /// `NFS4ERR_DENIED`: the conflicting lock.
    Denied(LockDenied)
}

/// `LOCKT4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LocktArgs {
    /// Shared (for reading) or exclusive (for writing).
    pub locktype: NfsLockType,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones means to the end of the file, however it grows.
    pub length: u64,
    /// The lock owner.
    pub owner: StateOwner,
}

/// `LOCKU4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockuArgs {
    /// Without meaning.
    pub locktype: NfsLockType,
    /// The lock owner's next sequence id; only in minor version 0.
    pub seqid: u32,
    /// The stateid of the owner's locks on the file.
    pub lock_stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones means to the end of the file, however it grows.
    pub length: u64,
}

/// `RELEASE_LOCKOWNER4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReleaseLockownerArgs {
    /// The owner.
    pub lock_owner: StateOwner,
}
