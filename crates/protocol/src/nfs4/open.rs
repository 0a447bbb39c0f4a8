//! OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE and CLOSE (RFC 8881, sections 18.16, 18.18 and 18.2; RFC 7530, section
//! 16.18).

use xdr::Xdr;

use super::{
    ArgFattr, Bitmap, ChangeInfo, Component, OpenDelegation, OpenDelegationType, StateOwner, Stateid,
    Verifier,
};

/// In `share_access`: for reading.
pub const OPEN4_SHARE_ACCESS_READ: u32 = 0x1;
/// In `share_access`: for writing.
pub const OPEN4_SHARE_ACCESS_WRITE: u32 = 0x2;
/// In `share_access`: for both.
pub const OPEN4_SHARE_ACCESS_BOTH: u32 = 0x3;
/// In `share_deny`: others may read and write.
pub const OPEN4_SHARE_DENY_NONE: u32 = 0x0;
/// In `share_deny`: others may not read.
pub const OPEN4_SHARE_DENY_READ: u32 = 0x1;
/// In `share_deny`: others may not write.
pub const OPEN4_SHARE_DENY_WRITE: u32 = 0x2;
/// In `share_deny`: others may neither read nor write.
pub const OPEN4_SHARE_DENY_BOTH: u32 = 0x3;

/// In `share_access`: mask of the bits that state which delegation the client wants.
pub const OPEN4_SHARE_ACCESS_WANT_DELEG_MASK: u32 = 0xff00;
/// No preference.
pub const OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE: u32 = 0x0000;
/// A read delegation.
pub const OPEN4_SHARE_ACCESS_WANT_READ_DELEG: u32 = 0x0100;
/// A write delegation.
pub const OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG: u32 = 0x0200;
/// Any delegation.
pub const OPEN4_SHARE_ACCESS_WANT_ANY_DELEG: u32 = 0x0300;
/// No delegation.
pub const OPEN4_SHARE_ACCESS_WANT_NO_DELEG: u32 = 0x0400;
/// Withdraws an earlier want.
pub const OPEN4_SHARE_ACCESS_WANT_CANCEL: u32 = 0x0500;
/// In `share_access`: send `CB_RECALLABLE_OBJ_AVAIL` once there is capacity for a delegation.
pub const OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
/// In `share_access`: send `CB_PUSH_DELEG` once no other client's use conflicts with a delegation.
pub const OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
/// In `share_access`: the delegation should include the timestamps (RFC 9754).
pub const OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
/// In `share_access`: a delegation suffices, without an open stateid (RFC 9754).
pub const OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;

/// In `rflags`: OPEN_CONFIRM is needed.
pub const OPEN4_RESULT_CONFIRM: u32 = 0x2;
/// In `rflags`: locks are POSIX locks.
pub const OPEN4_RESULT_LOCKTYPE_POSIX: u32 = 0x4;
/// In `rflags`: an open file survives the removal of its name.
pub const OPEN4_RESULT_PRESERVE_UNLINKED: u32 = 0x8;
/// In `rflags`: the open stateid is invalid, because a delegation replaces it (RFC 9754).
pub const OPEN4_RESULT_NO_OPEN_STATEID: u32 = 0x10;
/// In `rflags`: the server may send CB_NOTIFY_LOCK.
pub const OPEN4_RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;

/// `OPEN4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct OpenArgs {
    /// The owner's next sequence id; only in minor version 0.
    pub seqid: u32,
    /// The access, and the wanted delegation.
    pub share_access: u32,
    /// The access denied to others.
    pub share_deny: u32,
    /// The open owner.
    pub owner: StateOwner,
    /// Whether and how to create the file.
    pub openhow: Openflag,
    /// The file, and the kind of claim.
    pub claim: OpenClaim,
}

/// `openflag4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Openflag {
    /// `OPEN4_NOCREATE`
    #[xdr(case = 0)]
    Nocreate,
    /// `OPEN4_CREATE`
    #[xdr(case = 1)]
    Create(Createhow),
}

/// `createhow4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Createhow {
    /// `UNCHECKED4`: the name may exist.
    #[xdr(case = 0)]
    Unchecked(ArgFattr),
    /// `GUARDED4`: the name must not exist.
    #[xdr(case = 1)]
    Guarded(ArgFattr),
    /// `EXCLUSIVE4`: the name must not exist, unless it was created with this verifier.
    #[xdr(case = 2)]
    Exclusive(Verifier),
    /// `EXCLUSIVE4_1`: the same, with attributes.
    #[xdr(case = 3)]
    Exclusive41(Creatverfattr),
}

/// `creatverfattr`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Creatverfattr {
    /// `cva_verf`
    pub verf: Verifier,
    /// `cva_attrs`
    pub attrs: ArgFattr,
}

/// `open_claim4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum OpenClaim {
    /// `CLAIM_NULL`: this name in the current directory.
    #[xdr(case = 0)]
    Null(Component),
    /// `CLAIM_PREVIOUS`: the current file, which was open before the server's restart, with this delegation.
    #[xdr(case = 1)]
    Previous(OpenDelegationType),
    /// `CLAIM_DELEGATE_CUR`: this name, under a delegation that the client holds.
    #[xdr(case = 2)]
    DelegateCur(Stateid, Component),
    /// `CLAIM_DELEGATE_PREV`: this name, under a delegation from before the client's restart.
    #[xdr(case = 3)]
    DelegatePrev(Component),
    /// `CLAIM_FH`: the current file.
    #[xdr(case = 4)]
    Fh,
    /// `CLAIM_DELEG_CUR_FH`: the current file, under a delegation that the client holds.
    #[xdr(case = 5)]
    DelegCurFh(Stateid),
    /// `CLAIM_DELEG_PREV_FH`: the current file, under a delegation from before the client's restart.
    #[xdr(case = 6)]
    DelegPrevFh,
}

/// `OPEN4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct OpenOk {
    /// The open.
    pub stateid: Stateid,
    /// Change attribute of the directory before and after the operation.
    pub cinfo: ChangeInfo,
    /// `OPEN4_RESULT_*`
    pub rflags: u32,
    /// The attributes that were set.
    pub attrset: Bitmap,
    /// The delegation.
    pub delegation: OpenDelegation,
}

/// `OPEN_CONFIRM4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenConfirmArgs {
    /// The open.
    pub open_stateid: Stateid,
    /// The owner's next sequence id.
    pub seqid: u32,
}

/// `OPEN_CONFIRM4resok`, `OPEN_DOWNGRADE4resok` and the result of CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenStateidOk {
    /// The open; without meaning after CLOSE.
    pub open_stateid: Stateid,
}

/// `OPEN_DOWNGRADE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenDowngradeArgs {
    /// The open.
    pub open_stateid: Stateid,
    /// The owner's next sequence id; only in minor version 0.
    pub seqid: u32,
    /// The access that remains.
    pub share_access: u32,
    /// The denial that remains.
    pub share_deny: u32,
}

/// `CLOSE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CloseArgs {
    /// The owner's next sequence id; only in minor version 0.
    pub seqid: u32,
    /// The open.
    pub open_stateid: Stateid,
}
