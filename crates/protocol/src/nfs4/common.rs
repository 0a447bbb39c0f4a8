//! Types that many operations share (RFC 8881, section 3.3).

use xdr::{Opaque, Xdr};

use super::{Clientid, Limited, Verifier};

/// `nfs_ftype4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum Ftype {
    /// `NF4REG`
    Reg = 1,
    /// `NF4DIR`
    Dir = 2,
    /// `NF4BLK`
    Blk = 3,
    /// `NF4CHR`
    Chr = 4,
    /// `NF4LNK`
    Lnk = 5,
    /// `NF4SOCK`
    Sock = 6,
    /// `NF4FIFO`
    Fifo = 7,
    /// `NF4ATTRDIR`: a directory of named attributes.
    Attrdir = 8,
    /// `NF4NAMEDATTR`: a named attribute.
    Namedattr = 9,
}

/// `nfstime4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Xdr)]
pub struct Nfstime {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds in the second.
    pub nseconds: u32,
}

/// `settime4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum Settime {
    /// `SET_TO_SERVER_TIME4`
    #[xdr(case = 0)]
    SetToServerTime,
    /// `SET_TO_CLIENT_TIME4`
    #[xdr(case = 1)]
    SetToClientTime(Nfstime),
}

/// `fsid4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Xdr)]
pub struct Fsid {
    /// Major.
    pub major: u64,
    /// Minor.
    pub minor: u64,
}

/// `change_info4`: the change attribute of a directory around an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ChangeInfo {
    /// True if no other change happened between `before` and `after`.
    pub atomic: bool,
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// `stateid4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Stateid {
    /// Counts the changes of the state. In a request of minor version 1 or later, zero means the latest.
    pub seqid: u32,
    /// Identifies the state.
    pub other: [u8; 12],
}

impl Stateid {
    /// I/O without an open file (RFC 8881, section 8.2.3).
    pub const ANONYMOUS: Stateid = Stateid { seqid: 0, other: [0; 12] };
    /// READ that bypasses locks and share reservations.
    pub const BYPASS: Stateid = Stateid { seqid: u32::MAX, other: [0xff; 12] };
    /// The current stateid of the compound.
    pub const CURRENT: Stateid = Stateid { seqid: 1, other: [0; 12] };
    /// Never a valid state.
    pub const INVALID: Stateid = Stateid { seqid: u32::MAX, other: [0; 12] };

    /// True if the stateid has a special meaning, as those above have.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

/// `open_owner4`, `lock_owner4` and `state_owner4`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct StateOwner {
    /// The client; without meaning in minor versions 1 and up.
    pub clientid: Clientid,
    /// Identifies the owner within the client.
    pub owner: Limited,
}

/// `nfs_client_id4` and `client_owner4`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct ClientOwner {
    /// Identifies the incarnation of the client.
    pub verifier: Verifier,
    /// Identifies the client.
    pub ownerid: Limited,
}

/// `netaddr4`: a network address in its universal form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Netaddr {
    /// `tcp`, `tcp6`, `rdma` and the like.
    pub netid: Opaque<32>,
    /// `192.0.2.1.8.1` and the like.
    pub addr: Opaque<256>,
}
