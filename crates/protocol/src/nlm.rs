//! NLM, the Network Lock Manager: byte-range locks and DOS shares for clients of NFS versions 2 and 3
//! (X/Open XNFS C702, chapters 9 and 10, for versions 1 and 3; chapter 14 for version 4).
//!
//! Versions 1 and 3 have offsets of 32 bits, and version 4 has 64. The messages are otherwise the same, so
//! the types are generic over the offset. Each procedure has an asynchronous form: `_MSG` carries the
//! arguments and has no results, and the answer is a call of `_RES` in the other direction.

use xdr::{Opaque, Xdr};

/// `LM_MAXSTRLEN`: the most bytes in the name of a host.
pub const CALLER_MAX: usize = 1024;
/// `MAXNETOBJ_SZ`: the most bytes in a handle, an owner or a cookie.
pub const NETOBJ_MAX: usize = 1024;

/// `netobj`.
pub type Netobj = Opaque<NETOBJ_MAX>;
/// `caller_name`.
pub type CallerName = Opaque<CALLER_MAX>;

crate::reply::failures! {
    /// `nlm4_stats`. Versions 1 and 3 end at [`Stat::DeniedGracePeriod`].
    Stat {
        /// `NLM4_GRANTED`: done.
        Granted = 0,
        /// `NLM4_DENIED`: another lock conflicts, or there is nothing to cancel.
        Denied = 1,
        /// `NLM4_DENIED_NOLOCKS`: the server has no resources, or does not lock this file.
        DeniedNolocks = 2,
        /// `NLM4_BLOCKED`: the server calls GRANTED when the lock is free.
        Blocked = 3,
        /// `NLM4_DENIED_GRACE_PERIOD`: the server only lets clients reclaim now.
        DeniedGracePeriod = 4,
        /// `NLM4_DEADLCK`: the request would wait for itself.
        Deadlck = 5,
        /// `NLM4_ROFS`: the file system is read-only.
        Rofs = 6,
        /// `NLM4_STALE_FH`: the handle names no file.
        StaleFh = 7,
        /// `NLM4_FBIG`: the range is beyond the largest offset.
        Fbig = 8,
        /// `NLM4_FAILED`: another failure.
        Failed = 9,
    }
}

/// `nlm_lock`: a range of a file, and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Lock<N> {
    /// The name of the client host.
    pub caller_name: CallerName,
    /// The file.
    pub fh: Netobj,
    /// The owner, as the client encodes it.
    pub oh: Netobj,
    /// The process of the owner.
    pub svid: u32,
    /// First byte.
    pub offset: N,
    /// Number of bytes. Zero means to the end of the file, however far it grows.
    pub length: N,
}

/// `nlm_lockargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LockArgs<N> {
    /// Returned in the reply.
    pub cookie: Netobj,
    /// If the lock is denied, wait for it and call GRANTED.
    pub block: bool,
    /// A write lock.
    pub exclusive: bool,
    /// The lock.
    pub alock: Lock<N>,
    /// The client held the lock before the server restarted.
    pub reclaim: bool,
    /// The state number of the client's status monitor.
    pub state: u32,
}

/// `nlm_cancargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CancelArgs<N> {
    /// Returned in the reply.
    pub cookie: Netobj,
    /// As in the LOCK to cancel.
    pub block: bool,
    /// As in the LOCK to cancel.
    pub exclusive: bool,
    /// The lock of the LOCK to cancel.
    pub alock: Lock<N>,
}

/// `nlm_testargs`: the arguments of TEST and GRANTED.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct TestArgs<N> {
    /// Returned in the reply.
    pub cookie: Netobj,
    /// A write lock.
    pub exclusive: bool,
    /// The lock.
    pub alock: Lock<N>,
}

/// `nlm_unlockargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct UnlockArgs<N> {
    /// Returned in the reply.
    pub cookie: Netobj,
    /// The range and its owner.
    pub alock: Lock<N>,
}

/// `nlm_holder`: a lock that conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Holder<N> {
    /// A write lock.
    pub exclusive: bool,
    /// The process that holds it.
    pub svid: u32,
    /// The owner.
    pub oh: Netobj,
    /// First byte.
    pub offset: N,
    /// Number of bytes; zero means to the end of the file.
    pub length: N,
}

/// `nlm_testrply`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum TestReply<N> {
    /// `NLM_DENIED`: this lock conflicts.
    #[xdr(case = 1)]
    Denied(Holder<N>),
    /// Any other [`Stat`].
    #[xdr(default)]
    Other(u32),
}

/// `nlm_testres`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct TestRes<N> {
    /// Of the arguments.
    pub cookie: Netobj,
    /// The result.
    pub stat: TestReply<N>,
}

/// `nlm_res`: the results of all other procedures on locks.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Res {
    /// Of the arguments.
    pub cookie: Netobj,
    /// The result.
    pub stat: Stat,
}

/// `nlm_share`: an open of a DOS program. It reads or writes, and denies reading or writing to others.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Share {
    /// The name of the client host.
    pub caller_name: CallerName,
    /// The file.
    pub fh: Netobj,
    /// The owner.
    pub oh: Netobj,
    /// `fsh_mode`: what it denies to others. 1 is reading, 2 is writing, 3 is both.
    pub mode: u32,
    /// `fsh_access`: what it does. 1 is reading, 2 is writing, 3 is both.
    pub access: u32,
}

/// `nlm_shareargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ShareArgs {
    /// Returned in the reply.
    pub cookie: Netobj,
    /// The share.
    pub share: Share,
    /// The client held the share before the server restarted.
    pub reclaim: bool,
}

/// `nlm_shareres`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ShareRes {
    /// Of the arguments.
    pub cookie: Netobj,
    /// The result.
    pub stat: Stat,
    /// Unused.
    pub sequence: u32,
}

/// `nlm_notify`: the arguments of FREE_ALL. This client host has restarted.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Notify {
    /// The name of the client host.
    pub name: CallerName,
    /// The state number of its status monitor.
    pub state: u32,
}

/// The program of one version. `shares` are the procedures that version 1 lacks.
macro_rules! version {
    ($version:literal, $number:ty; $($shares:tt)*) => {
        use super::{CancelArgs, LockArgs, Res, TestArgs, UnlockArgs};
        use crate::program::program;

        program! {
            100_021, $version;
            /// Do nothing.
            Null = 0, "NULL", () => ();
            /// Ask for a lock that conflicts.
            Test = 1, "TEST", TestArgs<$number> => super::super::TestRes<$number>;
            /// Take a lock.
            Lock = 2, "LOCK", LockArgs<$number> => Res;
            /// Stop waiting for a lock.
            Cancel = 3, "CANCEL", CancelArgs<$number> => Res;
            /// Give up a lock.
            Unlock = 4, "UNLOCK", UnlockArgs<$number> => Res;
            /// From server to client: the lock that the client waits for is granted.
            Granted = 5, "GRANTED", TestArgs<$number> => Res;
            /// TEST, answered by TEST_RES.
            TestMsg = 6, "TEST_MSG", TestArgs<$number> => ();
            /// LOCK, answered by LOCK_RES.
            LockMsg = 7, "LOCK_MSG", LockArgs<$number> => ();
            /// CANCEL, answered by CANCEL_RES.
            CancelMsg = 8, "CANCEL_MSG", CancelArgs<$number> => ();
            /// UNLOCK, answered by UNLOCK_RES.
            UnlockMsg = 9, "UNLOCK_MSG", UnlockArgs<$number> => ();
            /// GRANTED, answered by GRANTED_RES.
            GrantedMsg = 10, "GRANTED_MSG", TestArgs<$number> => ();
            /// The answer to TEST_MSG.
            TestRes = 11, "TEST_RES", super::super::TestRes<$number> => ();
            /// The answer to LOCK_MSG.
            LockRes = 12, "LOCK_RES", Res => ();
            /// The answer to CANCEL_MSG.
            CancelRes = 13, "CANCEL_RES", Res => ();
            /// The answer to UNLOCK_MSG.
            UnlockRes = 14, "UNLOCK_RES", Res => ();
            /// The answer to GRANTED_MSG.
            GrantedRes = 15, "GRANTED_RES", Res => ();
            $($shares)*
        }
    };
}

/// Version 1: 32-bit offsets.
pub mod v1 {
    version! { 1, u32; }
}

/// Version 3: version 1 with DOS shares and locks without a monitor.
pub mod v3 {
    use super::{Notify, ShareArgs, ShareRes};

    version! {
        3, u32;
        /// Enter a DOS share.
        Share = 20, "SHARE", ShareArgs => ShareRes;
        /// Remove a DOS share.
        Unshare = 21, "UNSHARE", ShareArgs => ShareRes;
        /// LOCK of a host without a status monitor.
        NmLock = 22, "NM_LOCK", LockArgs<u32> => Res;
        /// The host has restarted: release all that it holds.
        FreeAll = 23, "FREE_ALL", Notify => ();
    }
}

/// Version 4: 64-bit offsets, for NFS version 3.
pub mod v4 {
    use super::{Notify, ShareArgs, ShareRes};

    version! {
        4, u64;
        /// Enter a DOS share.
        Share = 20, "SHARE", ShareArgs => ShareRes;
        /// Remove a DOS share.
        Unshare = 21, "UNSHARE", ShareArgs => ShareRes;
        /// LOCK of a host without a status monitor.
        NmLock = 22, "NM_LOCK", LockArgs<u64> => Res;
        /// The host has restarted: release all that it holds.
        FreeAll = 23, "FREE_ALL", Notify => ();
    }
}
