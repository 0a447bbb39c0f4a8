//! Client id and session: EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION, RECLAIM_COMPLETE, and their
//! destruction (RFC 8881, sections 18.33 to 18.38, 18.50 and 18.51).

use std::time::Duration;

use bytes::Bytes;
use protocol::nfs4::{
    ArgOp, AuthsysParms, BindConnToSessionArgs, CREATE_SESSION4_FLAG_CONN_BACK_CHAN, CallbackSecParms,
    ChannelAttrs, ChannelDirFromClient, ClientOwner, CompoundArgs, CompoundError, CreateSessionArgs,
    DestroyClientidArgs, DestroySessionArgs, EXCHGID4_FLAG_CONFIRMED_R, EXCHGID4_FLAG_USE_NON_PNFS,
    ExchangeIdArgs, Limited, NfsImplId, Nfstime, Op, Operation, ReclaimCompleteArgs, Results, Sessionid,
    StateProtectArgs, Status as Wire, op,
};
use rpc::Connected;
use tokio::time::Instant;
use vfs::Principal;
use xdr::{List, Opaque};

use super::Nfs4Client;
use super::channel::Sending;
use super::session::Session;
use crate::url::Url;

/// The program number of our callbacks.
pub(crate) const CB_PROGRAM: u32 = 0x4000_0000;
/// Most slots to ask for.
///
/// A READ of 1 MiB in each of them covers a bandwidth-delay product of 512 MiB.
pub(crate) const SLOTS_MAX: u32 = 512;
/// Most slots for the server's callbacks.
pub(crate) const BACK_SLOTS: u32 = 16;
/// Most operations in a callback, CB_SEQUENCE included.
pub(crate) const BACK_OPERATIONS_MAX: u32 = 8;
/// Most bytes in a request or reply: our largest transfer and its headers.
const MESSAGE_MAX_BYTES: u32 = (1 << 20) + (16 << 10);
/// Most bytes in a reply that the server must cache for resends.
const CACHED_MAX_BYTES: u32 = 16 << 10;
/// Most operations in a compound.
const OPERATIONS_MAX: u32 = 32;
const BACK_MESSAGE_MAX_BYTES: u32 = 16 << 10;

/// The identity of this client at the origin (RFC 8881, section 2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `co_ownerid`, at most 1,024 bytes. All incarnations of one client have the same. Two clients with the
    /// same one expel each other.
    pub owner: Bytes,
    /// `co_verifier`. A new value makes the origin drop what the last incarnation held. An incarnation that
    /// takes over that state has the same value.
    pub verifier: [u8; 8],
}

impl Identity {
    /// An identity that no other process has, and no later incarnation of this one. If the process is killed,
    /// the origin keeps its state until the lease ends.
    pub fn volatile(url: &Url) -> Identity {
        let mut random = [0; 24];
        // Without randomness, use the process id.
        if getrandom::fill(&mut random).is_err() {
            random[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        }
        let (unique, verifier) = random.split_at(16);
        let unique = u128::from_be_bytes(unique.try_into().unwrap_or_default());
        let host = crate::transport::machine_name();
        let host = String::from_utf8_lossy(&host);
        Identity {
            owner: format!("leasehold {host} {url} {unique:032x}").into_bytes().into(),
            verifier: verifier.try_into().unwrap_or_default(),
        }
    }

    fn client_owner(&self) -> ClientOwner {
        let owner = self.owner.slice(..self.owner.len().min(protocol::nfs4::OPAQUE_LIMIT));
        ClientOwner { verifier: self.verifier, ownerid: Limited::new(owner).unwrap_or_default() }
    }
}

/// The result of EXCHANGE_ID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) id: u64,
    /// The sequence id of the next CREATE_SESSION.
    pub(crate) sequence: u32,
    /// The server knows this client and has not lost its state.
    pub(crate) confirmed: bool,
    /// `so_major_id`.
    pub(crate) server: Bytes,
    /// The scope in which the client id is valid.
    pub(crate) scope: Bytes,
}

/// Why a session cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMade {
    /// The server answered with this status.
    Status(Wire),
    /// The server takes no calls of ours.
    Denied,
    /// There was no answer, or it made no sense.
    NoAnswer,
}

impl From<CompoundError> for NotMade {
    fn from(error: CompoundError) -> NotMade {
        error.status().map_or(NotMade::NoAnswer, NotMade::Status)
    }
}

/// The connection that carried a call, from the link's state before the call and after the answer. `None` if
/// it is not certain.
fn only(before: Connected, after: Connected) -> Option<u64> {
    let first = if before.up { before.generation } else { before.generation + 1 };
    (after.up && after.generation == first).then_some(first)
}

impl Nfs4Client {
    /// Sends a compound of one operation without SEQUENCE, over one link.
    async fn alone(
        &self,
        operation: ArgOp,
        link: usize,
        deadline: Option<Instant>,
    ) -> Result<Results, NotMade> {
        let main = operation.operation();
        let args = CompoundArgs::new(self.minor, vec![operation]).ok_or(NotMade::NoAnswer)?;
        let principal = &Principal::Machine;
        let sending = Sending { principal, args: &args, main, link: Some(link), deadline };
        let answer = self.channel.send(sending).await.map_err(|error| match error.status {
            vfs::Status::Access => NotMade::Denied,
            _ => NotMade::NoAnswer,
        })?;
        Ok(answer.compound.into_results())
    }

    pub(super) async fn exchange_id(&self, deadline: Option<Instant>) -> Result<Client, NotMade> {
        let implementation = NfsImplId {
            domain: Limited::new(&b"leasehold"[..]).unwrap_or_default(),
            name: Limited::new(concat!("leasehold ", env!("CARGO_PKG_VERSION"))).unwrap_or_default(),
            date: Nfstime::default(),
        };
        let args = ExchangeIdArgs {
            clientowner: self.identity.client_owner(),
            flags: EXCHGID4_FLAG_USE_NON_PNFS,
            state_protect: StateProtectArgs::None,
            client_impl_id: Some(implementation),
        };
        let ok = self.alone(op::ExchangeId::with(args), 0, deadline).await?.take::<op::ExchangeId>()?;
        let confirmed = ok.flags & EXCHGID4_FLAG_CONFIRMED_R != 0;
        let (server, scope) = (ok.server_owner.major_id.into_bytes(), ok.server_scope.into_bytes());
        Ok(Client { id: ok.clientid, sequence: ok.sequenceid, confirmed, server, scope })
    }

    pub(super) async fn create_session(
        &self,
        client: &Client,
        deadline: Option<Instant>,
    ) -> Result<Session, NotMade> {
        let fore = ChannelAttrs {
            headerpadsize: 0,
            maxrequestsize: MESSAGE_MAX_BYTES,
            maxresponsesize: MESSAGE_MAX_BYTES,
            maxresponsesize_cached: CACHED_MAX_BYTES,
            maxoperations: OPERATIONS_MAX,
            maxrequests: SLOTS_MAX,
            rdma_ird: None,
        };
        let back = ChannelAttrs {
            maxrequestsize: BACK_MESSAGE_MAX_BYTES,
            maxresponsesize: BACK_MESSAGE_MAX_BYTES,
            maxresponsesize_cached: BACK_MESSAGE_MAX_BYTES,
            maxoperations: BACK_OPERATIONS_MAX,
            maxrequests: BACK_SLOTS,
            ..fore
        };
        let args = CreateSessionArgs {
            clientid: client.id,
            sequence: client.sequence,
            flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            fore_chan_attrs: fore,
            back_chan_attrs: back,
            cb_program: CB_PROGRAM,
            sec_parms: self.callback_credentials(),
        };
        let before = self.channel.links().first().connected();
        let ok = self.alone(op::CreateSession::with(args), 0, deadline).await?.take::<op::CreateSession>()?;
        let after = self.channel.links().first().connected();
        let bound = ok.flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN != 0;
        self.back.started(ok.sessionid, only(before, after).filter(|_| bound));
        Ok(Session::new(ok.sessionid, client.id, ok.fore_chan_attrs, SLOTS_MAX))
    }

    fn callback_credentials(&self) -> List<CallbackSecParms, 16> {
        let machinename = Opaque::new(Bytes::copy_from_slice(self.channel.machine())).unwrap_or_default();
        let sys = AuthsysParms { machinename, ..AuthsysParms::default() };
        List::new(vec![CallbackSecParms::AuthSys(sys), CallbackSecParms::AuthNone]).unwrap_or_default()
    }

    /// Binds the current connection of a link to the session. The first link is also bound to the
    /// backchannel.
    pub(super) async fn bind_connection(&self, session: &Session, link: usize) -> Result<(), NotMade> {
        let back = link == 0;
        let dir = if back { ChannelDirFromClient::ForeOrBoth } else { ChannelDirFromClient::Fore };
        let args = BindConnToSessionArgs { sessid: session.id, dir, use_conn_in_rdma_mode: false };
        let before = self.channel.links().get(link).connected();
        let deadline = Some(Instant::now() + Duration::from_secs(30));
        let mut results = self.alone(op::BindConnToSession::with(args), link, deadline).await?;
        results.take::<op::BindConnToSession>()?;
        let after = self.channel.links().get(link).connected();
        if back && let Some(generation) = only(before, after) {
            self.back.bound(session.id, generation);
        }
        Ok(())
    }

    pub(super) async fn destroy_session(
        &self,
        sessionid: Sessionid,
        deadline: Instant,
    ) -> Result<(), NotMade> {
        let args = DestroySessionArgs { sessionid };
        let mut results = self.alone(op::DestroySession::with(args), 0, Some(deadline)).await?;
        Ok(results.take::<op::DestroySession>()?)
    }

    pub(super) async fn destroy_clientid(&self, clientid: u64, deadline: Instant) -> Result<(), NotMade> {
        let args = DestroyClientidArgs { clientid };
        let mut results = self.alone(op::DestroyClientid::with(args), 0, Some(deadline)).await?;
        Ok(results.take::<op::DestroyClientid>()?)
    }

    /// Says that the client will reclaim nothing more. A server grants no new opens before that.
    pub(super) async fn reclaim_complete(&self, session: &std::sync::Arc<Session>) -> Result<(), NotMade> {
        let args = op::ReclaimComplete::with(ReclaimCompleteArgs { one_fs: false });
        let mut results =
            self.within(session, &Principal::Machine, Operation::ReclaimComplete, vec![args]).await?;
        match results.take::<op::ReclaimComplete>() {
            Err(CompoundError::Failed { status: Wire::CompleteAlready, .. }) => Ok(()),
            result => Ok(result?),
        }
    }
}
