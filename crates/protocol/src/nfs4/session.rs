//! Sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and what else keeps a session (RFC 8881, sections 18.33 to 18.38,
//! 18.46 to 18.48, 18.50 and 18.51).

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
/// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`: the client means a record that is confirmed.
pub const EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
/// `EXCHGID4_FLAG_CONFIRMED_R`: the record is confirmed.
pub const EXCHGID4_FLAG_CONFIRMED_R: u32 = 0x8000_0000;

/// `EXCHANGE_ID4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExchangeIdArgs {
    /// Which client, and which incarnation.
    pub clientowner: ClientOwner,
    /// `EXCHGID4_FLAG_*`
    pub flags: u32,
    /// How its state is to be protected.
    pub state_protect: StateProtectArgs,
    /// Who made the client.
    pub client_impl_id: Option<NfsImplId>,
}

/// `EXCHANGE_ID4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExchangeIdOk {
    /// The client.
    pub clientid: Clientid,
    /// The first of its CREATE_SESSION.
    pub sequenceid: u32,
    /// `EXCHGID4_FLAG_*`
    pub flags: u32,
    /// How its state is protected.
    pub state_protect: StateProtectOk,
    /// Which server: the same one, if two connections are told the same.
    pub server_owner: ServerOwner,
    /// Where its client ids and state ids are good.
    pub server_scope: Limited,
    /// Who made the server.
    pub server_impl_id: Option<NfsImplId>,
}

/// `server_owner4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ServerOwner {
    /// Sessions are shared where this is the same too.
    pub minor_id: u64,
    /// Client ids are shared where this is the same.
    pub major_id: Limited,
}

/// `nfs_impl_id4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct NfsImplId {
    /// The maker's domain.
    pub domain: Limited,
    /// Product and version.
    pub name: Limited,
    /// When it was built.
    pub date: Nfstime,
}

/// `CREATE_SESSION4_FLAG_PERSIST`: replies outlive the server.
pub const CREATE_SESSION4_FLAG_PERSIST: u32 = 0x1;
/// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`: this connection is of the backchannel too.
pub const CREATE_SESSION4_FLAG_CONN_BACK_CHAN: u32 = 0x2;
/// `CREATE_SESSION4_FLAG_CONN_RDMA`
pub const CREATE_SESSION4_FLAG_CONN_RDMA: u32 = 0x4;

/// `CREATE_SESSION4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateSessionArgs {
    /// The client.
    pub clientid: Clientid,
    /// Its next.
    pub sequence: u32,
    /// `CREATE_SESSION4_FLAG_*`
    pub flags: u32,
    /// Of the client's requests.
    pub fore_chan_attrs: ChannelAttrs,
    /// Of the callbacks.
    pub back_chan_attrs: ChannelAttrs,
    /// Program number of the callbacks.
    pub cb_program: u32,
    /// Credentials for them, of which the server chooses.
    pub sec_parms: List<CallbackSecParms, 16>,
}

/// `channel_attrs4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ChannelAttrs {
    /// Padding before the data of a WRITE over RDMA, in bytes.
    pub headerpadsize: u32,
    /// The most bytes in a request, its RPC header counted.
    pub maxrequestsize: u32,
    /// The most bytes in a reply, its RPC header counted.
    pub maxresponsesize: u32,
    /// The most bytes in a reply that is cached.
    pub maxresponsesize_cached: u32,
    /// The most operations in a compound.
    pub maxoperations: u32,
    /// Slots.
    pub maxrequests: u32,
    /// RDMA reads outstanding.
    pub rdma_ird: Option<u32>,
}

/// `CREATE_SESSION4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateSessionOk {
    /// The session.
    pub sessionid: Sessionid,
    /// As given.
    pub sequence: u32,
    /// `CREATE_SESSION4_FLAG_*`
    pub flags: u32,
    /// Of the client's requests.
    pub fore_chan_attrs: ChannelAttrs,
    /// Of the callbacks.
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
    /// The slot's next.
    pub sequenceid: u32,
    /// The slot.
    pub slotid: u32,
    /// The highest slot with a request outstanding.
    pub highest_slotid: u32,
    /// The whole reply is to be cached.
    pub cachethis: bool,
}

/// `SEQUENCE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SequenceOk {
    /// As given.
    pub sessionid: Sessionid,
    /// As given.
    pub sequenceid: u32,
    /// As given.
    pub slotid: u32,
    /// The highest slot that the server will take.
    pub highest_slotid: u32,
    /// The highest slot that the client should use.
    pub target_highest_slotid: u32,
    /// `SEQ4_STATUS_*`
    pub status_flags: u32,
}

/// The callbacks do not get through on any connection.
pub const SEQ4_STATUS_CB_PATH_DOWN: u32 = 0x0001;
/// Contexts for the callbacks will end within the lease time.
pub const SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
/// Contexts for the callbacks have ended.
pub const SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
/// The lease was over, and all state is gone.
pub const SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
/// The lease was over, and some state is gone.
pub const SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
/// The administrator revoked state.
pub const SEQ4_STATUS_ADMIN_STATE_REVOKED: u32 = 0x0020;
/// A delegation or layout was revoked.
pub const SEQ4_STATUS_RECALLABLE_STATE_REVOKED: u32 = 0x0040;
/// A file system under the lease is elsewhere.
pub const SEQ4_STATUS_LEASE_MOVED: u32 = 0x0080;
/// The server has restarted: reclaim.
pub const SEQ4_STATUS_RESTART_RECLAIM_NEEDED: u32 = 0x0100;
/// The callbacks do not get through on this session.
pub const SEQ4_STATUS_CB_PATH_DOWN_SESSION: u32 = 0x0200;
/// The client does not answer callbacks as it must.
pub const SEQ4_STATUS_BACKCHANNEL_FAULT: u32 = 0x0400;
/// The mapping of a device has changed.
pub const SEQ4_STATUS_DEVID_CHANGED: u32 = 0x0800;
/// A device is gone.
pub const SEQ4_STATUS_DEVID_DELETED: u32 = 0x1000;

/// `BACKCHANNEL_CTL4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct BackchannelCtlArgs {
    /// Program number of the callbacks.
    pub cb_program: u32,
    /// Credentials for them, of which the server chooses.
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
    /// What the connection is to be for.
    pub dir: ChannelDirFromClient,
    /// As it says.
    pub use_conn_in_rdma_mode: bool,
}

/// `BIND_CONN_TO_SESSION4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct BindConnToSessionOk {
    /// As given.
    pub sessid: Sessionid,
    /// What the connection is for.
    pub dir: ChannelDirFromServer,
    /// As it says.
    pub use_conn_in_rdma_mode: bool,
}

/// `RECLAIM_COMPLETE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReclaimCompleteArgs {
    /// Of the current file system only.
    pub one_fs: bool,
}

/// `FREE_STATEID4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FreeStateidArgs {
    /// The state.
    pub stateid: Stateid,
}

/// The most state ids to test at once.
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
    /// Of each, whether it is good.
    pub status_codes: List<Outcome, TEST_STATEIDS_MAX>,
}

/// `SET_SSV4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetSsvArgs {
    /// To be mixed into the SSV.
    pub ssv: Limited,
    /// Of the request.
    pub digest: Limited,
}

/// `SET_SSV4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetSsvOk {
    /// Of the reply.
    pub digest: Limited,
}
