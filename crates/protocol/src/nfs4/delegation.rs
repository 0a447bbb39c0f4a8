//! Delegations: what OPEN and WANT_DELEGATION give, DELEGRETURN and DELEGPURGE (RFC 8881, sections 18.16, 18.49, 18.6
//! and 18.5), and those of directories (section 18.39).

use xdr::Xdr;

use super::{Ace, Bitmap, Clientid, Nfstime, Stateid, Verifier};

/// `open_delegation_type4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum OpenDelegationType {
    /// `OPEN_DELEGATE_NONE`
    None = 0,
    /// `OPEN_DELEGATE_READ`
    Read = 1,
    /// `OPEN_DELEGATE_WRITE`
    Write = 2,
    /// `OPEN_DELEGATE_NONE_EXT`
    NoneExt = 3,
    /// `OPEN_DELEGATE_READ_ATTRS_DELEG` (RFC 9754)
    ReadAttrsDeleg = 4,
    /// `OPEN_DELEGATE_WRITE_ATTRS_DELEG` (RFC 9754)
    WriteAttrsDeleg = 5,
}

/// `open_delegation4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum OpenDelegation {
    /// `OPEN_DELEGATE_NONE`
    #[xdr(case = 0)]
    None,
    /// `OPEN_DELEGATE_READ`
    #[xdr(case = 1)]
    Read(OpenReadDelegation),
    /// `OPEN_DELEGATE_WRITE`
    #[xdr(case = 2)]
    Write(OpenWriteDelegation),
    /// `OPEN_DELEGATE_NONE_EXT`: none, and why.
    #[xdr(case = 3)]
    NoneExt(OpenNoneDelegation),
    /// `OPEN_DELEGATE_READ_ATTRS_DELEG`: of the access time too (RFC 9754).
    #[xdr(case = 4)]
    ReadAttrsDeleg(OpenReadDelegation),
    /// `OPEN_DELEGATE_WRITE_ATTRS_DELEG`: of the timestamps too (RFC 9754).
    #[xdr(case = 5)]
    WriteAttrsDeleg(OpenWriteDelegation),
}

/// `open_read_delegation4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct OpenReadDelegation {
    /// The delegation.
    pub stateid: Stateid,
    /// It was reclaimed, and is recalled at once.
    pub recall: bool,
    /// Who may be let in without asking.
    pub permissions: Ace,
}

/// `open_write_delegation4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct OpenWriteDelegation {
    /// The delegation.
    pub stateid: Stateid,
    /// It was reclaimed, and is recalled at once.
    pub recall: bool,
    /// How far the file may grow without asking.
    pub space_limit: NfsSpaceLimit,
    /// Who may be let in without asking.
    pub permissions: Ace,
}

/// `nfs_space_limit4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum NfsSpaceLimit {
    /// `NFS_LIMIT_SIZE`: the size in bytes.
    #[xdr(case = 1)]
    Size(u64),
    /// `NFS_LIMIT_BLOCKS`
    #[xdr(case = 2)]
    Blocks {
        /// How many.
        num_blocks: u32,
        /// How large each is.
        bytes_per_block: u32,
    },
}

/// `open_none_delegation4`, with `why_no_delegation4` in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum OpenNoneDelegation {
    /// `WND4_NOT_WANTED`
    #[xdr(case = 0)]
    NotWanted,
    /// `WND4_CONTENTION`: another is in the way.
    #[xdr(case = 1)]
    Contention {
        /// CB_PUSH_DELEG will come.
        server_will_push_deleg: bool,
    },
    /// `WND4_RESOURCE`: there is no room.
    #[xdr(case = 2)]
    Resource {
        /// CB_RECALLABLE_OBJ_AVAIL will come.
        server_will_signal_avail: bool,
    },
    /// `WND4_NOT_SUPP_FTYPE`
    #[xdr(case = 3)]
    NotSuppFtype,
    /// `WND4_WRITE_DELEG_NOT_SUPP_FTYPE`
    #[xdr(case = 4)]
    WriteDelegNotSuppFtype,
    /// `WND4_NOT_SUPP_UPGRADE`
    #[xdr(case = 5)]
    NotSuppUpgrade,
    /// `WND4_NOT_SUPP_DOWNGRADE`
    #[xdr(case = 6)]
    NotSuppDowngrade,
    /// `WND4_CANCELLED`
    #[xdr(case = 7)]
    Cancelled,
    /// `WND4_IS_DIR`
    #[xdr(case = 8)]
    IsDir,
    /// A value that the RFC does not have.
    #[xdr(default)]
    Other(u32),
}

/// `DELEGRETURN4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DelegreturnArgs {
    /// The delegation.
    pub deleg_stateid: Stateid,
}

/// `DELEGPURGE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DelegpurgeArgs {
    /// The client; of no meaning in minor version 1 and up.
    pub clientid: Clientid,
}

/// `WANT_DELEGATION4args`; the result is an [`OpenDelegation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WantDelegationArgs {
    /// The `OPEN4_SHARE_ACCESS_WANT_*` bits.
    pub want: u32,
    /// By what right.
    pub claim: DelegClaim,
}

/// `deleg_claim4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum DelegClaim {
    /// `CLAIM_PREVIOUS`: held before the server's restart.
    #[xdr(case = 1)]
    Previous(OpenDelegationType),
    /// `CLAIM_FH`
    #[xdr(case = 4)]
    Fh,
    /// `CLAIM_DELEG_PREV_FH`: held before the client's restart.
    #[xdr(case = 6)]
    DelegPrevFh,
}

/// `GET_DIR_DELEGATION4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetDirDelegationArgs {
    /// CB_RECALLABLE_OBJ_AVAIL is wanted if there is none now.
    pub signal_deleg_avail: bool,
    /// Numbers of `notify_type4`.
    pub notification_types: Bitmap,
    /// How late changes of children's attributes may be told.
    pub child_attr_delay: Nfstime,
    /// How late changes of the directory's attributes may be told.
    pub dir_attr_delay: Nfstime,
    /// The children's attributes to tell of.
    pub child_attributes: Bitmap,
    /// The directory's attributes to tell of.
    pub dir_attributes: Bitmap,
}

/// `GET_DIR_DELEGATION4res_non_fatal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum GetDirDelegationOk {
    /// `GDD4_OK`
    #[xdr(case = 0)]
    Ok(DirDelegation),
    /// `GDD4_UNAVAIL`
    #[xdr(case = 1)]
    Unavail {
        /// CB_RECALLABLE_OBJ_AVAIL will come.
        will_signal_deleg_avail: bool,
    },
}

/// `GET_DIR_DELEGATION4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirDelegation {
    /// To be given with READDIR's cookies.
    pub cookieverf: Verifier,
    /// The delegation.
    pub stateid: Stateid,
    /// Numbers of `notify_type4` that will come.
    pub notification: Bitmap,
    /// The children's attributes that will be told of.
    pub child_attributes: Bitmap,
    /// The directory's attributes that will be told of.
    pub dir_attributes: Bitmap,
}
