//! Sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and the other operations on sessions (RFC 8881, sections
//! 18.33 to 18.38, 18.46 to 18.48, 18.50 and 18.51).

use xdr::{List, Xdr};

use super::{
    CallbackSecParms, ClientOwner, Clientid, Limited, Nfstime, Outcome, Sessionid, StateProtectArgs,
    StateProtectOk, Stateid,
};

/// `EXCHGID4_FLAG_SUPP_MOVED_REFER`
pub const EXCHGID4_FLAG_SUPP_MOVED_REFER: u32 = 0x0000_0001;
/// `EXCHGID4_FLAG_SUPP_MOVED_MIGR`
pub const EXCHGID4_FLAG_SUPP_MOVED_MIGR: u32 = 0x0000_0002;
/// `EXCHGID4_FLAG_SUPP_FENCE_OPS` (RFC 7862)
pub const EXCHGID4_FLAG_SUPP_FENCE_OPS: u32 = 0x0000_0004;
/// `EXCHGID4_FLAG_BIND_PRINC_STATEID`
pub const EXCHGID4_FLAG_BIND_PRINC_STATEID: u32 = 0x0000_0100;
/// `EXCHGID4_FLAG_USE_NON_PNFS`
pub const EXCHGID4_FLAG_USE_NON_PNFS: u32 = 0x0001_0000;
/// `EXCHGID4_FLAG_USE_PNFS_MDS`
pub const EXCHGID4_FLAG_USE_PNFS_MDS: u32 = 0x0002_0000;
/// `EXCHGID4_FLAG_USE_PNFS_DS`
pub const EXCHGID4_FLAG_USE_PNFS_DS: u32 = 0x0004_0000;
/// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`: the client refers to a confirmed record.
pub const EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
/// `EXCHGID4_FLAG_CONFIRMED_R`: the record is confirmed.
pub const EXCHGID4_FLAG_CONFIRMED_R: u32 = 0x8000_0000;

/// `EXCHANGE_ID4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExchangeIdArgs {
    /// The client and its incarnation.
    pub clientowner: ClientOwner,
    /// `EXCHGID4_FLAG_*`
    pub flags: u32,
    /// How the server should protect the client's state.
    pub state_protect: StateProtectArgs,
    /// The implementation of the client.
    pub client_impl_id: Option<NfsImplId>,
}

/// `EXCHANGE_ID4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExchangeIdOk {
    /// The client.
    pub clientid: Clientid,
    /// The sequence id of its first CREATE_SESSION.
    pub sequenceid: u32,
    /// `EXCHGID4_FLAG_*`
    pub flags: u32,
    /// How the server protects the client's state.
    pub state_protect: StateProtectOk,
    /// The server's identity. Two connections lead to the same server if their values are equal.
    pub server_owner: ServerOwner,
    /// The scope in which its client ids and stateids are valid.
    pub server_scope: Limited,
    /// The implementation of the server.
    pub server_impl_id: Option<NfsImplId>,
}

/// `server_owner4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ServerOwner {
    /// Servers with equal major and minor ids share sessions.
    pub minor_id: u64,
    /// Servers with equal major ids share client ids.
    pub major_id: Limited,
}

/// `nfs_impl_id4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct NfsImplId {
    /// The domain of the implementer.
    pub domain: Limited,
    /// Product and version.
    pub name: Limited,
    /// When it was built.
    pub date: Nfstime,
}

/// `CREATE_SESSION4_FLAG_PERSIST`: cached replies survive a server restart.
pub const CREATE_SESSION4_FLAG_PERSIST: u32 = 0x1;
/// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`: this connection also belongs to the backchannel.
pub const CREATE_SESSION4_FLAG_CONN_BACK_CHAN: u32 = 0x2;
/// `CREATE_SESSION4_FLAG_CONN_RDMA`
pub const CREATE_SESSION4_FLAG_CONN_RDMA: u32 = 0x4;

/// `CREATE_SESSION4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateSessionArgs {
    /// The client.
    pub clientid: Clientid,
    /// Its next sequence id.
    pub sequence: u32,
    /// `CREATE_SESSION4_FLAG_*`
    pub flags: u32,
    /// Limits for the client's requests.
    pub fore_chan_attrs: ChannelAttrs,
    /// Limits for callbacks.
    pub back_chan_attrs: ChannelAttrs,
    /// Program number of the callbacks.
    pub cb_program: u32,
    /// Credentials for callbacks; the server chooses one of them.
    pub sec_parms: List<CallbackSecParms, 16>,
}

/// `channel_attrs4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ChannelAttrs {
    /// Padding before the data of a WRITE over RDMA, in bytes.
    pub headerpadsize: u32,
    /// The most bytes in a request, including its RPC header.
    pub maxrequestsize: u32,
    /// The most bytes in a reply, including its RPC header.
    pub maxresponsesize: u32,
    /// The most bytes in a cached reply.
    pub maxresponsesize_cached: u32,
    /// The most operations in a compound.
    pub maxoperations: u32,
    /// Number of slots.
    pub maxrequests: u32,
    /// Outstanding RDMA reads.
    pub rdma_ird: Option<u32>,
}

/// `CREATE_SESSION4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateSessionOk {
    /// The session.
    pub sessionid: Sessionid,
    /// As in the request.
    pub sequence: u32,
    /// `CREATE_SESSION4_FLAG_*`
    pub flags: u32,
    /// Limits for the client's requests.
    pub fore_chan_attrs: ChannelAttrs,
    /// Limits for callbacks.
    pub back_chan_attrs: ChannelAttrs,
}

/// `DESTROY_SESSION4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DestroySessionArgs {
    /// The session.
    pub sessionid: Sessionid,
}

/// `DESTROY_CLIENTID4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DestroyClientidArgs {
    /// The client.
    pub clientid: Clientid,
}

/// `SEQUENCE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SequenceArgs {
    /// The session.
    pub sessionid: Sessionid,
    /// The next sequence id of the slot.
    pub sequenceid: u32,
    /// The slot.
    pub slotid: u32,
    /// The highest slot with an outstanding request.
    pub highest_slotid: u32,
    /// The server should cache the complete reply.
    pub cachethis: bool,
}

/// `SEQUENCE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SequenceOk {
    /// As in the request.
    pub sessionid: Sessionid,
    /// As in the request.
    pub sequenceid: u32,
    /// As in the request.
    pub slotid: u32,
    /// The highest slot that the server accepts.
    pub highest_slotid: u32,
    /// The highest slot that the client should use.
    pub target_highest_slotid: u32,
    /// `SEQ4_STATUS_*`
    pub status_flags: u32,
}

/// Callbacks do not get through on any connection.
pub const SEQ4_STATUS_CB_PATH_DOWN: u32 = 0x0001;
/// GSS contexts for callbacks will expire within the lease time.
pub const SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
/// GSS contexts for callbacks have expired.
pub const SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
/// The lease has expired and the server has revoked all state.
pub const SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
/// The lease has expired and the server has revoked some state.
pub const SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
/// The administrator revoked state.
pub const SEQ4_STATUS_ADMIN_STATE_REVOKED: u32 = 0x0020;
/// A delegation or layout was revoked.
pub const SEQ4_STATUS_RECALLABLE_STATE_REVOKED: u32 = 0x0040;
/// A file system of the lease has moved to another server.
pub const SEQ4_STATUS_LEASE_MOVED: u32 = 0x0080;
/// The server has restarted; the client must reclaim its state.
pub const SEQ4_STATUS_RESTART_RECLAIM_NEEDED: u32 = 0x0100;
/// Callbacks do not get through on this session.
pub const SEQ4_STATUS_CB_PATH_DOWN_SESSION: u32 = 0x0200;
/// The client does not reply to callbacks correctly.
pub const SEQ4_STATUS_BACKCHANNEL_FAULT: u32 = 0x0400;
/// The mapping of a device has changed.
pub const SEQ4_STATUS_DEVID_CHANGED: u32 = 0x0800;
/// A device was removed.
pub const SEQ4_STATUS_DEVID_DELETED: u32 = 0x1000;

/// `BACKCHANNEL_CTL4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct BackchannelCtlArgs {
    /// Program number of the callbacks.
    pub cb_program: u32,
    /// Credentials for callbacks; the server chooses one of them.
    pub sec_parms: List<CallbackSecParms, 16>,
}

/// `channel_dir_from_client4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum ChannelDirFromClient {
    /// `CDFC4_FORE`
    Fore = 1,
    /// `CDFC4_BACK`
    Back = 2,
    /// `CDFC4_FORE_OR_BOTH`
    ForeOrBoth = 3,
    /// `CDFC4_BACK_OR_BOTH`
    BackOrBoth = 7,
}

/// `channel_dir_from_server4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum ChannelDirFromServer {
    /// `CDFS4_FORE`
    Fore = 1,
    /// `CDFS4_BACK`
    Back = 2,
    /// `CDFS4_BOTH`
    Both = 3,
}

/// `BIND_CONN_TO_SESSION4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct BindConnToSessionArgs {
    /// The session.
    pub sessid: Sessionid,
    /// The requested use of the connection.
    pub dir: ChannelDirFromClient,
    /// True to use the connection in RDMA mode.
    pub use_conn_in_rdma_mode: bool,
}

/// `BIND_CONN_TO_SESSION4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct BindConnToSessionOk {
    /// As in the request.
    pub sessid: Sessionid,
    /// The use of the connection.
    pub dir: ChannelDirFromServer,
    /// True if the connection is used in RDMA mode.
    pub use_conn_in_rdma_mode: bool,
}

/// `RECLAIM_COMPLETE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReclaimCompleteArgs {
    /// For the current file system only.
    pub one_fs: bool,
}

/// `FREE_STATEID4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FreeStateidArgs {
    /// The state.
    pub stateid: Stateid,
}

/// The most stateids to test at once.
pub const TEST_STATEIDS_MAX: usize = 4096;

/// `TEST_STATEID4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct TestStateidArgs {
    /// The states.
    pub stateids: List<Stateid, TEST_STATEIDS_MAX>,
}

/// `TEST_STATEID4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct TestStateidOk {
    /// The status of each stateid.
    pub status_codes: List<Outcome, TEST_STATEIDS_MAX>,
}

/// `SET_SSV4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetSsvArgs {
    /// Value to mix into the SSV.
    pub ssv: Limited,
    /// Digest of the request.
    pub digest: Limited,
}

/// `SET_SSV4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetSsvOk {
    /// Digest of the reply.
    pub digest: Limited,
}
