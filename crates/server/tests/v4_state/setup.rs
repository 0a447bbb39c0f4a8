//! A server whose state survives a restart, and clients with sessions or with a client id of minor version
//! 0.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arbiter::Arbiter;
use local::LocalFs;
use protocol::nfs4::{
    ArgFattr, ArgOp, CbClient, ChannelAttrs, ClientOwner, Clientid, CompoundRes, CreateSessionArgs,
    CreateSessionOk, Createhow, ExchangeIdArgs, ExchangeIdOk, Handle, Limited, Netaddr, Op, OpenArgs,
    OpenClaim, Openflag, ReclaimCompleteArgs, ResOp, Results, SequenceArgs, Sessionid, SetclientidArgs,
    SetclientidConfirmArgs, StateOwner, StateProtectArgs, Stateid, Status, op,
};
use rpc::{ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Bounds, Export, Exports, Front, HandleKey, Handles, StateOptions};
use tempfile::TempDir;
use vfs::FileSystem;
use xdr::List;

use crate::wire::{Client, ROOT, name, open_to_all, putfh};

/// The directories that survive a server.
pub struct Home {
    pub tree: TempDir,
    pub state: TempDir,
}

/// One incarnation of a server.
pub struct Incarnation {
    server: Server,
    /// Counts the state that its clients hold.
    pub arbiter: Arc<Arbiter>,
    pub front: Arc<Front>,
}

/// The limits of a server.
#[derive(Clone, Copy)]
pub struct Scarcity {
    /// The number of files that may be open.
    pub opened_max: usize,
    pub bounds: Bounds,
    /// How long requests that wait for capacity or for the end of grace are held.
    pub patience: Duration,
}

impl Default for Scarcity {
    fn default() -> Scarcity {
        Scarcity { opened_max: 1200, bounds: Bounds::default(), patience: PATIENCE }
    }
}

pub const LEASE: Duration = Duration::from_secs(90);

/// How long requests without state are held during grace.
pub const PATIENCE: Duration = Duration::from_millis(300);

impl Home {
    pub fn new() -> Home {
        Home { tree: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap() }
    }

    pub fn tree(&self) -> &Path {
        self.tree.path()
    }

    /// Serves the tree at the root.
    pub async fn serve(&self, lease: Duration) -> Incarnation {
        self.serve_with(lease, arbiter::Options::default()).await
    }

    /// As [`Home::serve`], with leases granted according to `options`.
    pub async fn serve_with(&self, lease: Duration, options: arbiter::Options) -> Incarnation {
        self.serve_scarce(lease, options, Scarcity::default()).await
    }

    /// As [`Home::serve_with`], with low limits.
    pub async fn serve_scarce(
        &self,
        lease: Duration,
        options: arbiter::Options,
        scarcity: Scarcity,
    ) -> Incarnation {
        let below =
            local::Options { opened_max: scarcity.opened_max, ..local::Options::new(self.state.path()) };
        let fs = LocalFs::open(self.tree.path(), below).unwrap();
        self.serve_over(Arc::new(fs), lease, options, scarcity).await
    }

    /// Serves another file system instead of the tree, at the root.
    pub async fn serve_over(
        &self,
        below: Arc<dyn FileSystem>,
        lease: Duration,
        options: arbiter::Options,
        scarcity: Scarcity,
    ) -> Incarnation {
        let Scarcity { bounds, patience, .. } = scarcity;
        let fs = Arc::new(Arbiter::with_options(below, options));
        let arbiter = fs.clone();
        let export = Export::new(ExportId(1), "/".into(), fs, open_to_all());
        let handles = Handles::open(HandleKey::new([1; 16]), self.state.path()).unwrap();
        let directory = Some(self.state.path().into());
        let options = StateOptions { directory, lease, grace: lease, patience, bounds, replica: None };
        let front = Front::with_state(Exports::new(vec![export]).unwrap(), handles, &options).unwrap();
        let listen = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let replies = ReplyCache::open(self.state.path()).unwrap();
        let server = Server::start(listen, front.clone(), replies).await.unwrap();
        Incarnation { server, arbiter, front }
    }
}

impl Incarnation {
    pub fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    pub async fn client(&self, minor: u32) -> Client {
        Client::connect(self.address(), minor).await
    }

    /// A client with a session, which has sent RECLAIM_COMPLETE.
    pub async fn session(&self, ownerid: &[u8]) -> Session {
        let mut session = self.reclaiming(ownerid, 1).await;
        session.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
        session
    }

    /// A client with a session, which has not sent RECLAIM_COMPLETE yet.
    pub async fn reclaiming(&self, ownerid: &[u8], verifier: u8) -> Session {
        Session::of(self.client(1).await, ownerid, verifier).await
    }

    /// A confirmed client of minor version 0.
    pub async fn minor0(&self, ownerid: &[u8], verifier: u8) -> Minor0 {
        Minor0::of(self.client(0).await, ownerid, verifier).await
    }
}

pub fn owner(ownerid: &[u8], verifier: u8) -> ClientOwner {
    ClientOwner { verifier: [verifier; 8], ownerid: Limited::new(ownerid.to_vec()).unwrap() }
}

pub fn exchange_id(ownerid: &[u8], verifier: u8, flags: u32) -> ArgOp {
    ArgOp::ExchangeId(ExchangeIdArgs {
        clientowner: owner(ownerid, verifier),
        flags,
        state_protect: StateProtectArgs::None,
        client_impl_id: None,
    })
}

pub fn channel(slots: u32) -> ChannelAttrs {
    ChannelAttrs {
        headerpadsize: 0,
        maxrequestsize: 1 << 20,
        maxresponsesize: 1 << 20,
        maxresponsesize_cached: 4096,
        maxoperations: 16,
        maxrequests: slots,
        rdma_ird: None,
    }
}

pub fn create_session(known: &ExchangeIdOk, slots: u32) -> ArgOp {
    ArgOp::CreateSession(create_session_args(known.clientid, known.sequenceid, slots))
}

pub fn create_session_args(clientid: Clientid, sequence: u32, slots: u32) -> CreateSessionArgs {
    CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_chan_attrs: channel(slots),
        back_chan_attrs: channel(1),
        cb_program: 0x4000_0000,
        sec_parms: List::default(),
    }
}

pub fn reclaim_complete() -> ArgOp {
    ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })
}

pub fn setclientid(ownerid: &[u8], verifier: u8) -> ArgOp {
    let callback = CbClient { cb_program: 0x4000_0000, cb_location: Netaddr::default() };
    ArgOp::Setclientid(SetclientidArgs { client: owner(ownerid, verifier), callback, callback_ident: 1 })
}

/// A client with a session, on one connection, in slot 0.
pub struct Session {
    pub client: Client,
    pub clientid: Clientid,
    pub id: Sessionid,
    pub sequence: u32,
}

impl Session {
    /// A client with a session, which has not sent RECLAIM_COMPLETE yet.
    pub async fn of(mut client: Client, ownerid: &[u8], verifier: u8) -> Session {
        let known = client.last::<op::ExchangeId>(vec![exchange_id(ownerid, verifier, 0)]).await;
        let made = client.last::<op::CreateSession>(vec![create_session(&known, 8)]).await;
        Session { client, clientid: known.clientid, id: made.sessionid, sequence: 0 }
    }

    pub fn sequence(&self, sequenceid: u32, slotid: u32, cachethis: bool) -> ArgOp {
        ArgOp::Sequence(SequenceArgs { sessionid: self.id, sequenceid, slotid, highest_slotid: 0, cachethis })
    }

    fn with_sequence(&mut self, operations: Vec<ArgOp>) -> Vec<ArgOp> {
        self.sequence += 1;
        std::iter::once(self.sequence(self.sequence, 0, true)).chain(operations).collect()
    }

    /// The results after that of SEQUENCE.
    pub async fn compound(&mut self, operations: Vec<ArgOp>) -> Results {
        let operations = self.with_sequence(operations);
        let mut results = self.client.compound(operations).await;
        results.take::<op::Sequence>().unwrap();
        results
    }

    pub async fn status(&mut self, operations: Vec<ArgOp>) -> Result<(), Status> {
        let operations = self.with_sequence(operations);
        self.client.status(operations).await
    }

    pub async fn last<O: Op<ResOp = ResOp>>(&mut self, operations: Vec<ArgOp>) -> O::Ok {
        let operations = self.with_sequence(operations);
        self.client.last::<O>(operations).await
    }

    /// Opens a file in the root. Also returns its filehandle.
    pub async fn open(&mut self, args: OpenArgs) -> (Stateid, Handle) {
        let mut results = self.compound(vec![ROOT, ArgOp::Open(args), ArgOp::Getfh(())]).await;
        results.take::<op::Putrootfh>().unwrap();
        let opened = results.take::<op::Open>().unwrap();
        (opened.stateid, results.take::<op::Getfh>().unwrap().object)
    }

    /// The status of `operation` on a file.
    pub async fn on(&mut self, file: Handle, operation: ArgOp) -> Result<(), Status> {
        self.status(vec![putfh(file), operation]).await
    }
}

/// A client of minor version 0.
pub struct Minor0 {
    pub client: Client,
    pub clientid: Clientid,
}

impl Minor0 {
    /// A confirmed client.
    pub async fn of(mut client: Client, ownerid: &[u8], verifier: u8) -> Minor0 {
        let given = client.last::<op::Setclientid>(vec![setclientid(ownerid, verifier)]).await;
        let confirm = SetclientidConfirmArgs {
            clientid: given.clientid,
            setclientid_confirm: given.setclientid_confirm,
        };
        client.last::<op::SetclientidConfirm>(vec![ArgOp::SetclientidConfirm(confirm)]).await;
        Minor0 { client, clientid: given.clientid }
    }

    pub fn owner(&self, owner: &[u8]) -> StateOwner {
        StateOwner { clientid: self.clientid, owner: Limited::new(owner.to_vec()).unwrap() }
    }

    pub fn open_args(&self, file: &[u8], seqid: u32, access: u32, deny: u32) -> OpenArgs {
        OpenArgs { seqid, owner: self.owner(b"opener"), ..open(file, b"", access, deny) }
    }

    pub async fn open(&mut self, args: OpenArgs) -> (Stateid, Handle, u32) {
        let mut results = self.client.compound(vec![ROOT, ArgOp::Open(args), ArgOp::Getfh(())]).await;
        results.take::<op::Putrootfh>().unwrap();
        let opened = results.take::<op::Open>().unwrap();
        (opened.stateid, results.take::<op::Getfh>().unwrap().object, opened.rflags)
    }
}

/// OPEN of an existing file.
pub fn open(file: &[u8], owner: &[u8], access: u32, deny: u32) -> OpenArgs {
    OpenArgs {
        seqid: 0,
        share_access: access,
        share_deny: deny,
        owner: StateOwner { clientid: 0, owner: Limited::new(owner.to_vec()).unwrap() },
        openhow: Openflag::Nocreate,
        claim: OpenClaim::Null(name(file)),
    }
}

/// OPEN that creates the file if it does not exist.
pub fn create(file: &[u8], owner: &[u8], access: u32) -> OpenArgs {
    let attributes = ArgFattr::from(protocol::nfs4::Fattr { mode: Some(0o644), ..Default::default() });
    OpenArgs { openhow: Openflag::Create(Createhow::Unchecked(attributes)), ..open(file, owner, access, 0) }
}

/// The result of CREATE_SESSION, which must be the first result.
pub fn created(results: CompoundRes) -> Result<CreateSessionOk, Status> {
    let taken = results.into_results().take::<op::CreateSession>();
    taken.map_err(|error| error.status().unwrap())
}
