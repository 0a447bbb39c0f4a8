//! An origin of version 4.1 that keeps sessions as a server must, and otherwise answers as a test prescribes.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nfs4::callback::{self, CbArgOp, CbCompoundArgs, CbCompoundRes, CbSequenceArgs};
use protocol::nfs4::{
    self, ArgOp, Bitmap, ChannelAttrs, CompoundHeader, CompoundRes, Fattr, Fsid, Ftype, Limited, Nfstime,
    ResOp, SequenceOk, ServerOwner, Sessionid, StateProtectOk, Status, TestStateidOk,
};
use rpc::message::{CallHeader, Refusal};
use rpc::service::Answering;
use rpc::{Connection, Outcome, Remember, ReplyCache, Server, ServerOptions, Service};
use tokio::sync::Notify;
use xdr::{Decode, List};

use client::{Nfs4, Url};

/// The script's answer to one operation.
pub enum Say {
    /// Answer like a server that has one file and grants everything.
    Usual,
    /// Answer with this result.
    Result(Box<ResOp>),
    /// Answer as usual, but delay the answer to the compound until this notification. Until then, a resend
    /// gets DELAY.
    Wait(Arc<Notify>),
    /// Execute and remember the complete compound, and end the connection without an answer.
    HangUp,
}

/// Answers with this result.
pub fn say(result: ResOp) -> Say {
    Say::Result(Box::new(result))
}

type Script = dyn FnMut(&ArgOp, &[ArgOp]) -> Say + Send;

/// The server's state.
#[derive(Default)]
struct Kept {
    /// Client ids assigned.
    clients: u64,
    confirmed: Option<u64>,
    owner: Vec<u8>,
    verifier: [u8; 8],
    session: Option<Sessionid>,
    sessions: u32,
    /// The sequence id and reply of each slot.
    slots: HashMap<u32, (u32, Bytes)>,
    /// The last sequence id of each slot, and the operations that followed SEQUENCE.
    used: HashMap<u32, (u32, Vec<ArgOp>)>,
    /// Slots whose request is being executed.
    busy: HashSet<u32>,
    /// Number of DELAYs for such slots.
    delays: u32,
    /// Number of different requests under a sequence id used before, without probes.
    mistaken: u32,
    slots_max: u32,
    flags: u32,
    back: Option<Arc<Connection>>,
    /// The sequence id of the next callback.
    callbacks: u32,
    states: u32,
    /// Compounds that arrived, without their SEQUENCE.
    seen: Vec<Vec<ArgOp>>,
    replays: u32,
    /// Did the last compound ask for a cached reply?
    cached_last: bool,
    /// Replies that need not be cached are dropped.
    forgets: bool,
    /// The next SEQUENCE is on an unbound connection.
    refuse: Option<Arc<AtomicBool>>,
    /// Number of refusals, if the server grants sessions and refuses all requests in them.
    refused: Option<u32>,
    /// Changes the next answer to SEQUENCE.
    lie: Option<fn(&mut SequenceOk)>,
}

impl Kept {
    fn forget_slots(&mut self) {
        self.slots.clear();
        self.used.clear();
        self.busy.clear();
    }
}

struct Scripted {
    script: Mutex<Box<Script>>,
    kept: Mutex<Kept>,
}

/// A running scripted origin.
pub struct Origin4 {
    service: Arc<Scripted>,
    server: Option<Server>,
    pub address: SocketAddr,
}

impl Origin4 {
    pub async fn start(script: impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send + 'static) -> Origin4 {
        let script: Box<Script> = Box::new(script);
        let kept = Kept { slots_max: 8, ..Kept::default() };
        let service = Arc::new(Scripted { script: Mutex::new(script), kept: Mutex::new(kept) });
        let server = listen(&service, ([127, 0, 0, 1], 0).into()).await;
        let address = server.local_addr();
        Origin4 { service, server: Some(server), address }
    }

    pub async fn mount(&self, options: &str) -> Nfs4 {
        let url = format!("nfs://{}/export?vers=4.1&noresvport&{options}", self.address);
        Nfs4::connect(&Url::parse(&url).unwrap()).await.unwrap()
    }

    /// Forgets everything, like a server that restarts. The connections stay.
    pub fn forget(&self) {
        let mut kept = self.service.kept.lock();
        kept.session = None;
        kept.confirmed = None;
        kept.clients += 1000;
        kept.forget_slots();
    }

    /// Forgets only the session.
    pub fn forget_session(&self) {
        let mut kept = self.service.kept.lock();
        kept.session = None;
        kept.forget_slots();
    }

    /// Sets the flags that SEQUENCE returns from now on.
    pub fn set_flags(&self, flags: u32) {
        self.service.kept.lock().flags = flags;
    }

    /// Refuses one request because its connection is not bound to the session.
    pub fn refuse_connection(&self, refused: Arc<AtomicBool>) {
        self.service.kept.lock().refuse = Some(refused);
    }

    /// From now on, each session is gone when a request comes in it.
    pub fn refuse_all(&self) {
        self.service.kept.lock().refused = Some(0);
    }

    /// Number of such refusals.
    pub fn refused(&self) -> u32 {
        self.service.kept.lock().refused.unwrap_or(0)
    }

    /// Changes the next answer to SEQUENCE.
    pub fn lie(&self, lie: fn(&mut SequenceOk)) {
        self.service.kept.lock().lie = Some(lie);
    }

    /// Was the changed answer sent?
    pub fn has_lied(&self) -> bool {
        self.service.kept.lock().lie.is_none()
    }

    /// Ends all connections and listens again.
    pub async fn reconnect(&mut self) {
        self.server = None;
        self.server = Some(listen(&self.service, self.address).await);
    }

    /// Ends all connections.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Listens again.
    pub async fn resume(&mut self) {
        self.server = Some(listen(&self.service, self.address).await);
    }

    /// The operations of all compounds that arrived, without SEQUENCE.
    pub fn seen(&self) -> Vec<Vec<&'static str>> {
        let name = |operation: &ArgOp| operation.operation().name();
        self.service.kept.lock().seen.iter().map(|compound| compound.iter().map(name).collect()).collect()
    }

    /// All operations with this name that arrived.
    pub fn operations(&self, wanted: &str) -> Vec<ArgOp> {
        let kept = self.service.kept.lock();
        let all = kept.seen.iter().flatten();
        all.filter(|operation| operation.operation().name() == wanted).cloned().collect()
    }

    /// Did the last compound ask for a cached reply?
    pub fn kept_last(&self) -> bool {
        self.service.kept.lock().cached_last
    }

    /// From now on, drops replies that need not be cached.
    pub fn forget_uncached(&self) {
        self.service.kept.lock().forgets = true;
    }

    /// Number of cached replies sent again.
    pub fn replays(&self) -> u32 {
        self.service.kept.lock().replays
    }

    /// Number of requests that got DELAY because they were being executed.
    pub fn delays(&self) -> u32 {
        self.service.kept.lock().delays
    }

    /// Number of requests in a slot under the sequence id of another request.
    pub fn mistaken(&self) -> u32 {
        self.service.kept.lock().mistaken
    }

    /// Calls back with a CB_SEQUENCE in front, and returns the answers after it. `again` repeats an earlier
    /// call.
    pub async fn call_back(&self, operation: CbArgOp, again: bool) -> CbCompoundRes {
        self.service.kept.lock().callbacks += u32::from(!again);
        self.call_back_as(operation, |_| ()).await
    }

    /// The same with a modified CB_SEQUENCE, which does not advance the session.
    pub async fn call_back_as(
        &self,
        operation: CbArgOp,
        change: impl FnOnce(&mut CbSequenceArgs),
    ) -> CbCompoundRes {
        self.call_back_with(vec![operation], change).await
    }

    /// The same with these operations.
    pub async fn call_back_with(
        &self,
        operations: Vec<CbArgOp>,
        change: impl FnOnce(&mut CbSequenceArgs),
    ) -> CbCompoundRes {
        let (connection, sequence) = {
            let kept = self.service.kept.lock();
            let mut sequence = CbSequenceArgs {
                sessionid: kept.session.unwrap(),
                sequenceid: kept.callbacks,
                slotid: 0,
                highest_slotid: 0,
                cachethis: true,
                referring_call_lists: List::default(),
            };
            change(&mut sequence);
            (kept.back.clone().unwrap(), sequence)
        };
        let args = CbCompoundArgs {
            minorversion: 1,
            argarray: List::new([vec![CbArgOp::Sequence(sequence)], operations].concat()).unwrap(),
            ..CbCompoundArgs::default()
        };
        let header = CallHeader {
            xid: connection.xid(),
            program: 0x4000_0000,
            version: callback::VERSION,
            procedure: callback::COMPOUND,
            credential: rpc::Credential::None,
        };
        let mut encoder = xdr::Encoder::new();
        xdr::Encode::encode(&args, &mut encoder);
        let mut results = connection.call(header, encoder.finish()).await.unwrap().unwrap();
        CbCompoundRes::decode(&mut results).unwrap()
    }
}

async fn listen(service: &Arc<Scripted>, address: SocketAddr) -> Server {
    for _ in 0..200 {
        match Server::start(ServerOptions::new(address), service.clone(), ReplyCache::volatile()).await {
            Ok(server) => return server,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    }
    panic!("no port to listen on");
}

impl Service for Scripted {
    fn call(self: Arc<Self>, call: rpc::Call) -> Answering {
        let outcome = match (call.header.program, call.header.version, call.header.procedure) {
            (nfs4::PROGRAM, 4, 0) => Outcome::Reply(call.reply().finish()),
            (nfs4::PROGRAM, 4, 1) => {
                if let Some((bytes, held)) = self.compound(&call) {
                    let mut encoder = call.reply();
                    encoder.raw(&bytes);
                    let reply = Outcome::Reply(encoder.finish());
                    if let Some(Held { until, slot }) = held {
                        return Box::pin(async move {
                            until.notified().await;
                            self.kept.lock().busy.retain(|busy| Some(*busy) != slot);
                            reply
                        });
                    }
                    reply
                } else {
                    call.connection.inspect(|connection| connection.close());
                    Outcome::Drop
                }
            }
            _ => Outcome::Refuse(Refusal::ProgramUnavailable),
        };
        Box::pin(std::future::ready(outcome))
    }

    fn remember(&self, _: &rpc::Call) -> Remember {
        Remember::No
    }
}

/// A delayed reply, and the slot that is busy until then.
struct Held {
    until: Arc<Notify>,
    slot: Option<u32>,
}

impl Scripted {
    fn compound(&self, call: &rpc::Call) -> Option<(Bytes, Option<Held>)> {
        let mut arguments = call.arguments.clone();
        let mut header = CompoundHeader::decode(&mut arguments).unwrap();
        let mut operations = Vec::new();
        while let Some(operation) = header.next(&mut arguments) {
            operations.push(operation.unwrap());
        }
        if header.minorversion != 1 {
            return Some((encode(Err(Status::MinorVersMismatch), Vec::new()), None));
        }
        let mut results = Vec::new();
        let mut slot = None;
        if let Some(ArgOp::Sequence(args)) = operations.first() {
            let mut kept = self.kept.lock();
            let refused = |status| Some((encode(Err(status), vec![ResOp::Sequence(Err(status))]), None));
            if kept.session != Some(args.sessionid) {
                return refused(Status::BadSession);
            }
            if let Some(count) = &mut kept.refused
                && !operations[1..].iter().any(|operation| matches!(operation, ArgOp::ReclaimComplete(_)))
            {
                *count += 1;
                kept.session = None;
                kept.forget_slots();
                return refused(Status::BadSession);
            }
            if let Some(done) = kept.refuse.take() {
                done.store(true, Ordering::Relaxed);
                return refused(Status::ConnNotBoundToSession);
            }
            let behind = &operations[1..];
            if let Some((sequence, before)) = kept.used.get(&args.slotid)
                && *sequence == args.sequenceid
            {
                kept.mistaken += u32::from(!behind.is_empty() && before != behind);
                if kept.busy.contains(&args.slotid) {
                    kept.delays += 1;
                    return refused(Status::Delay);
                }
            }
            match kept.slots.get(&args.slotid) {
                Some((sequence, _)) if *sequence == args.sequenceid && kept.forgets && !args.cachethis => {
                    // SEQUENCE itself succeeds (RFC 8881, section 18.46.3).
                    let status = Status::RetryUncachedRep;
                    let next = ResOp::failed(operations[1].operation(), status);
                    let results = vec![ResOp::Sequence(Ok(sequenced(args, &kept))), next];
                    return Some((encode(Err(status), results), None));
                }
                Some((sequence, reply)) if *sequence == args.sequenceid => {
                    let reply = reply.clone();
                    kept.replays += 1;
                    return Some((reply, None));
                }
                last if last.map_or(0, |last| last.0) + 1 != args.sequenceid => {
                    return refused(Status::SeqMisordered);
                }
                _ => {}
            }
            slot = Some((args.slotid, args.sequenceid));
            kept.used.insert(args.slotid, (args.sequenceid, behind.to_vec()));
            kept.cached_last = args.cachethis;
            let mut ok = sequenced(args, &kept);
            if let Some(lie) = kept.lie.take() {
                lie(&mut ok);
            }
            results.push(ResOp::Sequence(Ok(ok)));
            operations.remove(0);
        }
        let mut hang_up = false;
        let mut wait = None;
        let mut status = Ok(());
        for operation in &operations {
            let said = (self.script.lock())(operation, &operations);
            let result = match said {
                Say::Result(result) => *result,
                Say::Usual => self.usual(operation, call),
                Say::Wait(until) => {
                    wait = Some(until);
                    self.usual(operation, call)
                }
                Say::HangUp => {
                    hang_up = true;
                    self.usual(operation, call)
                }
            };
            status = result.status();
            results.push(result);
            if status.is_err() {
                break;
            }
        }
        let reply = encode(status, results);
        let mut kept = self.kept.lock();
        if let Some((slot, sequence)) = slot {
            kept.slots.insert(slot, (sequence, reply.clone()));
        }
        let slot = slot.map(|(slot, _)| slot);
        let held = wait.map(|until| Held { until, slot });
        kept.busy.extend(slot.filter(|_| held.is_some()));
        kept.seen.push(operations);
        (!hang_up).then_some((reply, held))
    }

    fn usual(&self, operation: &ArgOp, call: &rpc::Call) -> ResOp {
        let mut kept = self.kept.lock();
        let stateid = |kept: &mut Kept| {
            kept.states += 1;
            nfs4::Stateid { seqid: 1, other: number(kept.states) }
        };
        match operation {
            ArgOp::ExchangeId(args) => {
                let same =
                    kept.owner == args.clientowner.ownerid[..] && kept.verifier == args.clientowner.verifier;
                let known = kept.confirmed.filter(|_| same);
                kept.owner = args.clientowner.ownerid.to_vec();
                kept.verifier = args.clientowner.verifier;
                if known.is_none() {
                    kept.clients += 1;
                }
                ResOp::ExchangeId(Ok(nfs4::ExchangeIdOk {
                    clientid: known.unwrap_or(kept.clients),
                    sequenceid: 1,
                    flags: if known.is_some() { nfs4::EXCHGID4_FLAG_CONFIRMED_R } else { 0 },
                    state_protect: StateProtectOk::None,
                    server_owner: ServerOwner { minor_id: 0, major_id: Limited::default() },
                    server_scope: Limited::default(),
                    server_impl_id: None,
                }))
            }
            ArgOp::CreateSession(args) if args.clientid != kept.clients => {
                ResOp::CreateSession(Err(Status::StaleClientid))
            }
            ArgOp::CreateSession(args) => {
                kept.confirmed = Some(args.clientid);
                kept.sessions += 1;
                let sessionid = number(kept.sessions);
                kept.session = Some(sessionid);
                kept.forget_slots();
                kept.callbacks = 0;
                kept.back.clone_from(&call.connection);
                ResOp::CreateSession(Ok(nfs4::CreateSessionOk {
                    sessionid,
                    sequence: args.sequence,
                    flags: nfs4::CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
                    fore_chan_attrs: ChannelAttrs { maxrequests: kept.slots_max, ..args.fore_chan_attrs },
                    back_chan_attrs: args.back_chan_attrs,
                }))
            }
            ArgOp::BindConnToSession(args) => {
                kept.back.clone_from(&call.connection);
                kept.flags = 0;
                ResOp::BindConnToSession(Ok(nfs4::BindConnToSessionOk {
                    sessid: args.sessid,
                    dir: nfs4::ChannelDirFromServer::Both,
                    use_conn_in_rdma_mode: false,
                }))
            }
            ArgOp::Getfh(()) => {
                ResOp::Getfh(Ok(nfs4::GetfhOk { object: nfs4::Handle::new(b"file").unwrap() }))
            }
            ArgOp::Getattr(args) => {
                ResOp::Getattr(Ok(nfs4::GetattrOk { obj_attributes: Box::new(fattr(args.attr_request)) }))
            }
            ArgOp::Access(args) => {
                ResOp::Access(Ok(nfs4::AccessOk { supported: args.access, access: args.access }))
            }
            ArgOp::Open(_) => {
                let stateid = stateid(&mut kept);
                ResOp::Open(Ok(opened(stateid, nfs4::OpenDelegation::None)))
            }
            ArgOp::Close(_) => ResOp::Close(Ok(nfs4::OpenStateidOk { open_stateid: nfs4::Stateid::INVALID })),
            ArgOp::Lock(_) => ResOp::Lock(Ok(nfs4::LockOk { lock_stateid: stateid(&mut kept) })),
            ArgOp::TestStateid(args) => {
                let codes =
                    args.stateids.iter().map(|_| nfs4::Outcome::Fail(Status::BadStateid, ())).collect();
                ResOp::TestStateid(Ok(TestStateidOk { status_codes: List::new(codes).unwrap() }))
            }
            ArgOp::Remove(_) => ResOp::Remove(Ok(nfs4::RemoveOk { cinfo: cinfo() })),
            ArgOp::Create(_) => ResOp::Create(Ok(nfs4::CreateOk { cinfo: cinfo(), attrset: Bitmap::EMPTY })),
            ArgOp::Read(_) => {
                ResOp::Read(Ok(nfs4::ReadOk { eof: true, data: Bytes::from_static(b"data").into() }))
            }
            ArgOp::Write(args) => ResOp::Write(Ok(nfs4::WriteOk {
                count: args.data.len() as u32,
                committed: nfs4::StableHow::FileSync,
                writeverf: [1; 8],
            })),
            ArgOp::Putfh(_) => ResOp::Putfh(Ok(())),
            ArgOp::Putrootfh(()) => ResOp::Putrootfh(Ok(())),
            ArgOp::Savefh(()) => ResOp::Savefh(Ok(())),
            ArgOp::Restorefh(()) => ResOp::Restorefh(Ok(())),
            ArgOp::Lookup(_) => ResOp::Lookup(Ok(())),
            ArgOp::Verify(_) => ResOp::Verify(Ok(())),
            ArgOp::Nverify(_) => ResOp::Nverify(Ok(())),
            ArgOp::Delegreturn(_) => ResOp::Delegreturn(Ok(())),
            ArgOp::FreeStateid(_) => ResOp::FreeStateid(Ok(())),
            ArgOp::ReclaimComplete(_) => ResOp::ReclaimComplete(Ok(())),
            ArgOp::DestroySession(_) => ResOp::DestroySession(Ok(())),
            ArgOp::DestroyClientid(_) => ResOp::DestroyClientid(Ok(())),
            other => ResOp::failed(other.operation(), Status::NotSupp),
        }
    }
}

fn sequenced(args: &nfs4::SequenceArgs, kept: &Kept) -> SequenceOk {
    SequenceOk {
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid: kept.slots_max - 1,
        target_highest_slotid: kept.slots_max - 1,
        status_flags: kept.flags,
    }
}

fn number<const N: usize>(number: u32) -> [u8; N] {
    let mut bytes = [0xaa; N];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn encode(status: Result<(), Status>, results: Vec<ResOp>) -> Bytes {
    let resarray = List::new(results).unwrap();
    xdr::to_bytes(&CompoundRes { status, tag: nfs4::Tag::default(), resarray }).unwrap()
}

/// A directory change without another client's part in it.
pub fn cinfo() -> nfs4::ChangeInfo {
    nfs4::ChangeInfo { atomic: true, before: 7, after: 7 }
}

/// The result of a successful OPEN.
pub fn opened(stateid: nfs4::Stateid, delegation: nfs4::OpenDelegation) -> nfs4::OpenOk {
    nfs4::OpenOk { stateid, cinfo: cinfo(), rflags: 0, attrset: Bitmap::EMPTY, delegation }
}

/// Attributes of a regular file.
pub fn fattr(asked: Bitmap) -> Fattr {
    let time = Nfstime { seconds: 1_700_000_000, nseconds: 5 };
    let mut fattr = Fattr {
        ftype: Some(Ftype::Reg),
        change: Some(7),
        size: Some(4),
        fsid: Some(Fsid { major: 1, minor: 0 }),
        fileid: Some(9),
        mode: Some(0o644),
        numlinks: Some(1),
        owner: Limited::new(&b"10"[..]),
        owner_group: Limited::new(&b"20"[..]),
        time_access: Some(time),
        time_metadata: Some(time),
        time_modify: Some(time),
        lease_time: Some(LEASE_SECONDS),
        ..Fattr::default()
    };
    fattr.retain(asked);
    fattr
}

/// The lease time.
pub const LEASE_SECONDS: u32 = 3;
