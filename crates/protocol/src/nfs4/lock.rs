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
    /// For reading or for writing.
    pub locktype: NfsLockType,
    /// Held before the server's restart.
    pub reclaim: bool,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones is to the end of the file, however it grows.
    pub length: u64,
    /// For whom.
    pub locker: Locker,
}

/// `locker4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Locker {
    /// `exist_lock_owner4`: an owner that has a state id on the file.
    #[xdr(case = 0)]
    LockOwner {
        /// That state id.
        lock_stateid: Stateid,
        /// The lock owner's next, in minor version 0 alone.
        lock_seqid: u32,
    },
    /// `open_to_lock_owner4`: one that has none yet.
    #[xdr(case = 1)]
    OpenOwner {
        /// The open owner's next, in minor version 0 alone.
        open_seqid: u32,
        /// The open.
        open_stateid: Stateid,
        /// The lock owner's first, in minor version 0 alone.
        lock_seqid: u32,
        /// The lock owner.
        lock_owner: StateOwner,
    },
}

/// `LOCK4resok` and the result of LOCKU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockOk {
    /// The owner's locks on the file.
    pub lock_stateid: Stateid,
}

/// The longest lock owner that every client can be told of, in bytes.
///
/// Linux reserves space in the reply to LOCK for an owner as long as its own are, since 6.14 and the stable kernels of April 2025.
/// If the owner in the way is longer, `lockf(3)` fails with EIO there and not with EAGAIN.
pub const SHORT_OWNER_BYTES: usize = 20;

/// `LOCK4denied`: the lock in the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct LockDenied {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones is to the end of the file.
    pub length: u64,
    /// For reading or for writing.
    pub locktype: NfsLockType,
    /// Whose it is.
    pub owner: StateOwner,
}

super::table::failure_with_body! {
    /// Why LOCK or LOCKT failed.
    LockFailure: /// `NFS4ERR_DENIED`: this lock is in the way.
    Denied(LockDenied)
}

/// `LOCKT4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LocktArgs {
    /// For reading or for writing.
    pub locktype: NfsLockType,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones is to the end of the file, however it grows.
    pub length: u64,
    /// For whom.
    pub owner: StateOwner,
}

/// `LOCKU4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockuArgs {
    /// Of no meaning.
    pub locktype: NfsLockType,
    /// The lock owner's next, in minor version 0 alone.
    pub seqid: u32,
    /// The owner's locks on the file.
    pub lock_stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all ones is to the end of the file, however it grows.
    pub length: u64,
}

/// `RELEASE_LOCKOWNER4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReleaseLockownerArgs {
    /// The owner.
    pub lock_owner: StateOwner,
}
