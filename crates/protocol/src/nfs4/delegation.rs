//! Delegations of files: the results of OPEN and WANT_DELEGATION, DELEGRETURN and DELEGPURGE (RFC 8881,
//! sections 18.16, 18.49, 18.6 and 18.5). Delegations of directories (section 18.39).

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
    /// `OPEN_DELEGATE_NONE_EXT`: none, with the reason.
    #[xdr(case = 3)]
    NoneExt(OpenNoneDelegation),
    /// `OPEN_DELEGATE_READ_ATTRS_DELEG`: includes the access time (RFC 9754).
    #[xdr(case = 4)]
    ReadAttrsDeleg(OpenReadDelegation),
    /// `OPEN_DELEGATE_WRITE_ATTRS_DELEG`: includes the timestamps (RFC 9754).
    #[xdr(case = 5)]
    WriteAttrsDeleg(OpenWriteDelegation),
}

/// `open_read_delegation4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct OpenReadDelegation {
    /// The delegation.
    pub stateid: Stateid,
    /// It was reclaimed, and the server recalls it at once.
    pub recall: bool,
    /// Users that the client may admit without asking the server.
    pub permissions: Ace,
}

/// `open_write_delegation4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct OpenWriteDelegation {
    /// The delegation.
    pub stateid: Stateid,
    /// It was reclaimed, and the server recalls it at once.
    pub recall: bool,
    /// How far the file may grow without asking the server.
    pub space_limit: NfsSpaceLimit,
    /// Users that the client may admit without asking the server.
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
        /// Number of blocks.
        num_blocks: u32,
        /// Size of a block.
        bytes_per_block: u32,
    },
}

/// `open_none_delegation4`, with `why_no_delegation4` inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum OpenNoneDelegation {
    /// `WND4_NOT_WANTED`
    #[xdr(case = 0)]
    NotWanted,
    /// `WND4_CONTENTION`: another client's use conflicts.
    #[xdr(case = 1)]
    Contention {
        /// The server will send CB_PUSH_DELEG.
        server_will_push_deleg: bool,
    },
    /// `WND4_RESOURCE`: the server has no capacity.
    #[xdr(case = 2)]
    Resource {
        /// The server will send CB_RECALLABLE_OBJ_AVAIL.
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
    /// A value that is not in the RFC.
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
    /// The client; without meaning in minor versions 1 and up.
    pub clientid: Clientid,
}

/// `WANT_DELEGATION4args`; the result is an [`OpenDelegation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WantDelegationArgs {
    /// The `OPEN4_SHARE_ACCESS_WANT_*` bits.
    pub want: u32,
    /// The claim.
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
    /// If there is no delegation now, the client wants CB_RECALLABLE_OBJ_AVAIL.
    pub signal_deleg_avail: bool,
    /// Numbers of `notify_type4`.
    pub notification_types: Bitmap,
    /// The longest delay of notifications about children's attributes.
    pub child_attr_delay: Nfstime,
    /// The longest delay of notifications about the directory's attributes.
    pub dir_attr_delay: Nfstime,
    /// The children's attributes to report.
    pub child_attributes: Bitmap,
    /// The directory's attributes to report.
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
        /// The server will send CB_RECALLABLE_OBJ_AVAIL.
        will_signal_deleg_avail: bool,
    },
}

/// `GET_DIR_DELEGATION4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirDelegation {
    /// The client passes it to READDIR together with a cookie.
    pub cookieverf: Verifier,
    /// The delegation.
    pub stateid: Stateid,
    /// Numbers of `notify_type4` that the server will send.
    pub notification: Bitmap,
    /// The children's attributes that the server will report.
    pub child_attributes: Bitmap,
    /// The directory's attributes that the server will report.
    pub dir_attributes: Bitmap,
}
