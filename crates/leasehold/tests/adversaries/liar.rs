//! An origin of version 4.2 that lies. It has a root directory with a few files, keeps sessions as a server
//! must, and decides about rights by mode and owner. A test chooses one lie at a time. All else is honest.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nfs4::callback::{self, CbArgOp, CbCompoundArgs, CbCompoundRes, CbRecallArgs, CbSequenceArgs};
use protocol::nfs4::{
    self, Ace, ArgOp, Bitmap, ChannelAttrs, CompoundHeader, CompoundRes, Fattr, Fsid, Ftype, Limited,
    Nfstime, OpenClaim, OpenDelegation, ResOp, Sessionid, StateProtectOk, Stateid, Status,
};
use rpc::message::{CallHeader, Refusal};
use rpc::service::Answering;
use rpc::{Connection, Credential, Outcome, Remember, ReplyCache, Server, ServerOptions, Service};
use tokio::sync::oneshot;
use xdr::{Decode, Encode, Encoder, LinkedList, List};

/// The owner of the file `secret`, which nobody else may read.
pub const OWNER: u32 = 2001;
pub const SECRET: &[u8] = b"a secret of its owner";
pub const FILE: &[u8] = b"what the file has";
pub const TWIN: &[u8] = b"what its twin has";
pub const HONEST: &[u8] = b"honest data";
/// The program of callbacks, as the client asks for it.
const CB_PROGRAM: u32 = 0x4000_0000;

/// Requests that a session lasts for, if the origin lies about sessions.
const SESSION_REQUESTS: u32 = 4;

/// The subject of a lie of the origin. A lie about attributes, data or opens is about `file` alone, and one
/// about listings about `many` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    #[default]
    None,
    /// Sessions are granted, and gone when a few requests have come in them.
    Sessions,
    /// Each OPEN brings a write delegation, whatever was asked for.
    Delegations,
    /// Each OPEN brings a delegation that is recalled already.
    RecalledDelegations,
    /// The size changes, and the change attribute does not.
    Size,
    /// It is a directory each second time.
    Type,
    /// It is on another file system each second time.
    Fsid,
    /// It has the fileid of `secret` and of `twin`.
    Fileid,
    /// A READ brings more bytes than it asks for.
    LongReads,
    /// A READ brings bytes of `secret`, beyond those that it asks for.
    SecretBehind,
    /// An OPEN leads to its twin.
    OtherFile,
    /// Each OPEN has the same state id, which is also that of the delegations.
    OneStateid,
    /// A listing begins again behind its last entry.
    Circle,
    /// All entries have the same cookie.
    OneCookie,
    /// A listing has no end.
    NoEnd,
    /// A listing has no entries, and no end either.
    NoEntries,
}

impl Lie {
    pub const ALL: [Lie; 16] = [
        Lie::None,
        Lie::Sessions,
        Lie::Delegations,
        Lie::RecalledDelegations,
        Lie::Size,
        Lie::Type,
        Lie::Fsid,
        Lie::Fileid,
        Lie::LongReads,
        Lie::SecretBehind,
        Lie::OtherFile,
        Lie::OneStateid,
        Lie::Circle,
        Lie::OneCookie,
        Lie::NoEnd,
        Lie::NoEntries,
    ];
}

/// An object. Its number is its fileid and the last byte of its handle.
struct Object {
    name: &'static str,
    number: u8,
    data: &'static [u8],
    mode: u32,
    owner: u32,
}

const ROOT: u8 = 1;
const FILE_NUMBER: u8 = 2;
const TWIN_NUMBER: u8 = 3;
const SECRET_NUMBER: u8 = 4;
const MANY: u8 = 6;

const OBJECTS: [Object; 6] = [
    Object { name: "", number: ROOT, data: b"", mode: 0o755, owner: 0 },
    Object { name: "file", number: FILE_NUMBER, data: FILE, mode: 0o644, owner: 0 },
    Object { name: "twin", number: TWIN_NUMBER, data: TWIN, mode: 0o644, owner: 0 },
    Object { name: "secret", number: SECRET_NUMBER, data: SECRET, mode: 0o600, owner: OWNER },
    Object { name: "honest", number: 5, data: HONEST, mode: 0o644, owner: 0 },
    Object { name: "many", number: MANY, data: b"", mode: 0o755, owner: 0 },
];

fn object(number: u8) -> &'static Object {
    OBJECTS.iter().find(|object| object.number == number).unwrap()
}

fn is_directory(number: u8) -> bool {
    matches!(number, ROOT | MANY)
}

/// Handles have the greatest length, and differ in the last byte only.
fn wire(number: u8) -> nfs4::Handle {
    let mut bytes = [7; nfs4::FHSIZE];
    bytes[nfs4::FHSIZE - 1] = number;
    nfs4::Handle::new(&bytes).unwrap()
}

#[derive(Default)]
struct Kept {
    lie: Lie,
    /// How often it has lied.
    lies: u32,
    numbers: u32,
    /// The sessions, with the last sequence id and reply of each slot.
    sessions: HashMap<Sessionid, HashMap<u32, (u32, Bytes)>>,
    /// The last session, and the connection on which it was made.
    back: Option<(Sessionid, Arc<Connection>)>,
    callbacks: u32,
    minor: u32,
    /// The state id of the last delegation of `file`.
    delegation: Option<Stateid>,
    returned: Vec<Stateid>,
}

impl Kept {
    fn number<const N: usize>(&mut self) -> [u8; N] {
        self.numbers += 1;
        let mut bytes = [0xaa; N];
        bytes[..4].copy_from_slice(&self.numbers.to_be_bytes());
        bytes
    }

    /// True each second time, if this is the lie.
    fn lies_now(&mut self, lie: Lie) -> bool {
        if self.lie != lie {
            return false;
        }
        self.lies += 1;
        self.lies.is_multiple_of(2)
    }

    fn lies_always(&mut self, lie: Lie) -> bool {
        self.lies += u32::from(self.lie == lie);
        self.lie == lie
    }
}

#[derive(Default)]
struct Origin(Mutex<Kept>);

/// A running origin. It has a thread of its own, because tests wait for the processes that use it.
pub struct Liar {
    origin: Arc<Origin>,
    pub address: SocketAddr,
    _end: oneshot::Sender<()>,
}

impl Liar {
    pub fn start() -> Liar {
        let origin = Arc::new(Origin::default());
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let service = origin.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let options = ServerOptions::new(([127, 0, 0, 1], 0).into());
                let server = Server::start(options, service, ReplyCache::volatile()).await.unwrap();
                tell.send(server.local_addr()).unwrap();
                let _ = ended.await;
            });
        });
        Liar { origin, address: told.recv().unwrap(), _end: end }
    }

    pub fn url(&self) -> String {
        format!("nfs://{}/export?vers=4.2&noresvport", self.address)
    }

    /// Lies about this from now on.
    pub fn lie(&self, lie: Lie) {
        let mut kept = self.origin.0.lock();
        (kept.lie, kept.lies) = (lie, 0);
    }

    /// How often it has lied about this.
    pub fn lies(&self) -> u32 {
        self.origin.0.lock().lies
    }

    /// The delegation of `file`, if there is one that has not come back.
    pub fn delegation(&self) -> Option<Stateid> {
        let kept = self.origin.0.lock();
        kept.delegation.filter(|stateid| !kept.returned.contains(stateid))
    }

    /// A CB_COMPOUND with a recall of this state of `file`, as it would be sent in the session.
    pub fn recall_of(&self, stateid: Stateid) -> (CallHeader, Encoder) {
        let mut kept = self.origin.0.lock();
        kept.callbacks += 1;
        let sequence = CbSequenceArgs {
            sessionid: kept.back.as_ref().unwrap().0,
            sequenceid: kept.callbacks,
            slotid: 0,
            highest_slotid: 0,
            cachethis: false,
            referring_call_lists: List::default(),
        };
        let recall = CbRecallArgs { stateid, truncate: false, fh: wire(FILE_NUMBER) };
        let args = CbCompoundArgs {
            minorversion: kept.minor,
            argarray: List::new(vec![CbArgOp::Sequence(sequence), CbArgOp::Recall(recall)]).unwrap(),
            ..CbCompoundArgs::default()
        };
        let (program, version, procedure) = (CB_PROGRAM, callback::VERSION, callback::COMPOUND);
        let mut encoder = Encoder::new();
        args.encode(&mut encoder);
        (CallHeader { xid: 1, program, version, procedure, credential: Credential::None }, encoder)
    }

    /// Recalls this state of `file`. Returns the status of the callback.
    pub async fn recall(&self, stateid: Stateid) -> Result<(), Status> {
        let (header, encoder) = self.recall_of(stateid);
        let connection = self.origin.0.lock().back.as_ref().unwrap().1.clone();
        let header = CallHeader { xid: connection.xid(), ..header };
        let mut results = connection.call(header, encoder.finish()).await.unwrap().unwrap();
        CbCompoundRes::decode(&mut results).unwrap().status
    }

    /// Gives back the number of the callback that was not sent in the session.
    pub fn unsent(&self) {
        self.origin.0.lock().callbacks -= 1;
    }
}

impl Service for Origin {
    fn call(self: Arc<Self>, call: rpc::Call) -> Answering {
        let outcome = match (call.header.program, call.header.version, call.header.procedure) {
            (nfs4::PROGRAM, 4, 0) => Outcome::Reply(call.reply().finish()),
            (nfs4::PROGRAM, 4, 1) => {
                let mut encoder = call.reply();
                encoder.raw(&self.compound(&call));
                Outcome::Reply(encoder.finish())
            }
            _ => Outcome::Refuse(Refusal::ProgramUnavailable),
        };
        Box::pin(std::future::ready(outcome))
    }

    fn remember(&self, _: &rpc::Call) -> Remember {
        Remember::No
    }
}

/// One compound.
struct Compound<'k> {
    kept: &'k mut Kept,
    call: &'k rpc::Call,
    uid: u32,
    current: u8,
    saved: u8,
}

impl Origin {
    fn compound(&self, call: &rpc::Call) -> Bytes {
        let mut arguments = call.arguments.clone();
        let mut header = CompoundHeader::decode(&mut arguments).unwrap();
        let mut kept = self.0.lock();
        let kept = &mut *kept;
        if header.minorversion != 2 {
            return encode(Err(Status::MinorVersMismatch), Vec::new());
        }
        kept.minor = header.minorversion;
        let uid = if let Credential::Sys(sys) = &call.header.credential { sys.uid } else { u32::MAX };
        let mut compound = Compound { kept, call, uid, current: 0, saved: 0 };
        let mut results = Vec::new();
        let mut place = None;
        let mut status = Ok(());
        while status.is_ok()
            && let Some(operation) = header.next(&mut arguments)
        {
            let operation = operation.unwrap();
            if let ArgOp::Sequence(args) = &operation {
                match compound.sequence(args) {
                    Ok(None) => place = Some((args.sessionid, args.slotid, args.sequenceid)),
                    Ok(Some(reply)) => return reply,
                    Err(status) => return encode(Err(status), vec![ResOp::Sequence(Err(status))]),
                }
            }
            let result = compound.operation(operation);
            status = result.status();
            results.push(result);
        }
        let reply = encode(status, results);
        if let Some((session, slot, sequence)) = place
            && let Some(slots) = compound.kept.sessions.get_mut(&session)
        {
            slots.insert(slot, (sequence, reply.clone()));
        }
        reply
    }
}

impl Compound<'_> {
    /// None for a new request; the reply of a repeated one.
    fn sequence(&mut self, args: &nfs4::SequenceArgs) -> Result<Option<Bytes>, Status> {
        let kept = &mut *self.kept;
        let granted = kept.sessions.contains_key(&args.sessionid);
        if granted && kept.lies_always(Lie::Sessions) && kept.lies.is_multiple_of(SESSION_REQUESTS) {
            kept.sessions.clear();
        }
        let slots = self.kept.sessions.get(&args.sessionid).ok_or(Status::BadSession)?;
        match slots.get(&args.slotid) {
            Some((last, reply)) if *last == args.sequenceid => Ok(Some(reply.clone())),
            last if last.map_or(0, |(last, _)| *last) + 1 == args.sequenceid => Ok(None),
            _ => Err(Status::SeqMisordered),
        }
    }

    fn operation(&mut self, operation: ArgOp) -> ResOp {
        match operation {
            ArgOp::ExchangeId(_) => ResOp::ExchangeId(Ok(nfs4::ExchangeIdOk {
                clientid: 1,
                sequenceid: 1,
                flags: if self.kept.back.is_some() { nfs4::EXCHGID4_FLAG_CONFIRMED_R } else { 0 },
                state_protect: StateProtectOk::None,
                server_owner: nfs4::ServerOwner { minor_id: 0, major_id: Limited::default() },
                server_scope: Limited::default(),
                server_impl_id: None,
            })),
            ArgOp::CreateSession(args) => ResOp::CreateSession(Ok(self.create_session(&args))),
            ArgOp::BindConnToSession(args) => ResOp::BindConnToSession(self.bind(&args)),
            ArgOp::Sequence(args) => ResOp::Sequence(Ok(nfs4::SequenceOk {
                sessionid: args.sessionid,
                sequenceid: args.sequenceid,
                slotid: args.slotid,
                highest_slotid: 7,
                target_highest_slotid: 7,
                status_flags: 0,
            })),
            ArgOp::Putrootfh(()) => ResOp::Putrootfh(self.go(Some(ROOT))),
            ArgOp::Putfh(args) => ResOp::Putfh(self.go(number_of(&args.object))),
            ArgOp::Lookup(args) => ResOp::Lookup(self.look_up(&args.objname)),
            ArgOp::Lookupp(()) => ResOp::Lookupp(self.go(Some(ROOT))),
            ArgOp::Savefh(()) => {
                self.saved = self.current;
                ResOp::Savefh(Ok(()))
            }
            ArgOp::Restorefh(()) => ResOp::Restorefh(self.go(Some(self.saved))),
            ArgOp::Getfh(()) => ResOp::Getfh(Ok(nfs4::GetfhOk { object: wire(self.current) })),
            ArgOp::Getattr(args) => ResOp::Getattr(Ok(nfs4::GetattrOk {
                obj_attributes: Box::new(self.attributes(args.attr_request)),
            })),
            ArgOp::Access(args) => ResOp::Access(Ok(nfs4::AccessOk {
                supported: args.access,
                access: args.access & if self.may_read() { 0x23 } else { 0 },
            })),
            ArgOp::Open(args) => ResOp::Open(self.open(&args)),
            ArgOp::Read(args) => ResOp::Read(self.read(&args)),
            ArgOp::Readdir(args) => ResOp::Readdir(self.list(&args)),
            other => self.ended(&other),
        }
    }

    /// Operations that end something, or that the origin does not have.
    fn ended(&mut self, operation: &ArgOp) -> ResOp {
        match operation {
            ArgOp::Close(_) => ResOp::Close(Ok(nfs4::OpenStateidOk { open_stateid: Stateid::INVALID })),
            ArgOp::Delegreturn(args) => {
                self.kept.returned.push(args.deleg_stateid);
                ResOp::Delegreturn(Ok(()))
            }
            ArgOp::FreeStateid(_) => ResOp::FreeStateid(Ok(())),
            ArgOp::ReclaimComplete(_) => ResOp::ReclaimComplete(Ok(())),
            ArgOp::DestroySession(args) => {
                self.kept.sessions.remove(&args.sessionid);
                ResOp::DestroySession(Ok(()))
            }
            ArgOp::DestroyClientid(_) => ResOp::DestroyClientid(Ok(())),
            other => ResOp::failed(other.operation(), Status::NotSupp),
        }
    }

    fn create_session(&mut self, args: &nfs4::CreateSessionArgs) -> nfs4::CreateSessionOk {
        let sessionid = self.kept.number();
        self.kept.sessions.insert(sessionid, HashMap::new());
        self.kept.back = self.call.connection.clone().map(|connection| (sessionid, connection));
        self.kept.callbacks = 0;
        nfs4::CreateSessionOk {
            sessionid,
            sequence: args.sequence,
            flags: nfs4::CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            fore_chan_attrs: ChannelAttrs { maxrequests: 8, ..args.fore_chan_attrs },
            back_chan_attrs: args.back_chan_attrs,
        }
    }

    fn bind(&mut self, args: &nfs4::BindConnToSessionArgs) -> Result<nfs4::BindConnToSessionOk, Status> {
        if !self.kept.sessions.contains_key(&args.sessid) {
            return Err(Status::BadSession);
        }
        let (sessid, dir) = (args.sessid, nfs4::ChannelDirFromServer::Both);
        Ok(nfs4::BindConnToSessionOk { sessid, dir, use_conn_in_rdma_mode: false })
    }

    fn go(&mut self, to: Option<u8>) -> Result<(), Status> {
        self.current = to.ok_or(Status::BadHandle)?;
        Ok(())
    }

    fn look_up(&mut self, name: &[u8]) -> Result<(), Status> {
        // The path of the export is the root.
        let found = OBJECTS.iter().find(|object| object.name.as_bytes() == name);
        match found {
            _ if name == b"export" => self.go(Some(ROOT)),
            Some(found) if self.current == ROOT => self.go(Some(found.number)),
            _ => Err(Status::NoEnt),
        }
    }

    fn may_read(&self) -> bool {
        let object = object(self.current);
        object.mode & 0o004 != 0 || self.uid == object.owner
    }

    fn attributes(&mut self, asked: Bitmap) -> Fattr {
        let time = Nfstime { seconds: 1_700_000_000, nseconds: 5 };
        let of = object(self.current);
        let lies = self.current == FILE_NUMBER;
        let size = if lies && self.kept.lies_now(Lie::Size) { 3 } else { of.data.len() as u64 };
        let directory = is_directory(self.current) != (lies && self.kept.lies_now(Lie::Type));
        let major = if lies && self.kept.lies_now(Lie::Fsid) { 2 } else { 1 };
        let shared = [FILE_NUMBER, TWIN_NUMBER].contains(&self.current) && self.kept.lies_always(Lie::Fileid);
        let fileid = if shared { SECRET_NUMBER } else { of.number };
        let mut fattr = Fattr {
            ftype: Some(if directory { Ftype::Dir } else { Ftype::Reg }),
            change: Some(7),
            size: Some(size),
            fsid: Some(Fsid { major, minor: 0 }),
            fileid: Some(fileid.into()),
            filehandle: Some(wire(self.current)),
            mode: Some(of.mode),
            numlinks: Some(1),
            owner: Limited::new(of.owner.to_string()),
            owner_group: Limited::new(&b"0"[..]),
            time_access: Some(time),
            time_metadata: Some(time),
            time_modify: Some(time),
            lease_time: Some(60),
            ..Fattr::default()
        };
        fattr.retain(asked);
        fattr
    }

    fn open(&mut self, args: &nfs4::OpenArgs) -> Result<nfs4::OpenOk, Status> {
        match &args.claim {
            OpenClaim::Null(name) => self.look_up(name)?,
            OpenClaim::Fh | OpenClaim::Previous(_) => {}
            _ => return Err(Status::NotSupp),
        }
        if args.share_access & nfs4::OPEN4_SHARE_ACCESS_WRITE != 0 {
            return Err(Status::Rofs);
        }
        if is_directory(self.current) {
            return Err(Status::IsDir);
        }
        if !self.may_read() {
            return Err(Status::Access);
        }
        let is_file = self.current == FILE_NUMBER;
        if is_file && self.kept.lies_always(Lie::OtherFile) {
            self.current = TWIN_NUMBER;
        }
        let other = if self.kept.lies_always(Lie::OneStateid) { [1; 12] } else { self.kept.number() };
        let stateid = Stateid { seqid: 1, other };
        let cinfo = nfs4::ChangeInfo { atomic: true, before: 7, after: 7 };
        let delegation = if is_file { self.delegation(stateid) } else { OpenDelegation::None };
        Ok(nfs4::OpenOk { stateid, cinfo, rflags: 0, attrset: Bitmap::EMPTY, delegation })
    }

    fn delegation(&mut self, open: Stateid) -> OpenDelegation {
        let unwanted = self.kept.lies_always(Lie::Delegations);
        let recall = self.kept.lies_always(Lie::RecalledDelegations);
        let shared = self.kept.lie == Lie::OneStateid;
        if !unwanted && !recall && !shared {
            return OpenDelegation::None;
        }
        let stateid = if shared { open } else { Stateid { seqid: 1, other: self.kept.number() } };
        self.kept.delegation = Some(stateid);
        OpenDelegation::Write(nfs4::OpenWriteDelegation {
            stateid,
            recall,
            space_limit: nfs4::NfsSpaceLimit::Size(u64::MAX),
            permissions: Ace::default(),
        })
    }

    fn read(&mut self, args: &nfs4::ReadArgs) -> Result<nfs4::ReadOk, Status> {
        if is_directory(self.current) {
            return Err(Status::IsDir);
        }
        if !self.may_read() {
            return Err(Status::Access);
        }
        let all = object(self.current).data;
        let from = all.len().min(args.offset as usize);
        let until = all.len().min(from + args.count as usize);
        let mut data = all[from..until].to_vec();
        let eof = until == all.len();
        if self.current == FILE_NUMBER {
            let longer = args.count as usize + 1;
            if self.kept.lies_always(Lie::LongReads) {
                data.resize(longer, b'!');
            }
            if self.kept.lies_always(Lie::SecretBehind) {
                data.extend(SECRET.iter().cycle().take(longer));
            }
        }
        Ok(nfs4::ReadOk { eof, data: Bytes::from(data).into() })
    }

    fn list(&mut self, args: &nfs4::ReaddirArgs) -> Result<nfs4::ReaddirOk, Status> {
        let entries: Vec<(u64, String, u8)> = match self.current {
            ROOT => {
                let entry =
                    |object: &Object| (u64::from(object.number) + 10, object.name.to_owned(), object.number);
                OBJECTS[1..].iter().map(entry).filter(|(cookie, ..)| *cookie > args.cookie).collect()
            }
            MANY => {
                let from = args.cookie.max(10);
                let lies = [Lie::Circle, Lie::OneCookie, Lie::NoEnd, Lie::NoEntries];
                self.kept.lies += u32::from(lies.contains(&self.kept.lie));
                let entry = |cookie: u64| (cookie, format!("entry {cookie}"), TWIN_NUMBER);
                match self.kept.lie {
                    Lie::Circle => (1..=20).map(|step| entry(10 + (from - 10 + step) % 50)).collect(),
                    Lie::OneCookie => {
                        (1..=20).map(|step| (11, format!("entry {step}"), TWIN_NUMBER)).collect()
                    }
                    Lie::NoEnd => (1..=20).map(|step| entry(from + step)).collect(),
                    Lie::NoEntries => Vec::new(),
                    _ => (from + 1..=60).map(entry).collect(),
                }
            }
            _ => return Err(Status::NotDir),
        };
        let honest = !matches!(self.kept.lie, Lie::Circle | Lie::OneCookie | Lie::NoEnd | Lie::NoEntries);
        let eof = self.current == ROOT || honest;
        let directory = self.current;
        let mut listed = Vec::new();
        for (cookie, name, number) in entries {
            self.current = number;
            let attrs = self.attributes(args.attr_request);
            listed.push(nfs4::Entry {
                cookie,
                name: nfs4::Component::new(name.into_bytes()).unwrap(),
                attrs,
            });
        }
        self.current = directory;
        Ok(nfs4::ReaddirOk { cookieverf: [0; 8], entries: LinkedList::new(listed).unwrap(), eof })
    }
}

fn number_of(handle: &nfs4::Handle) -> Option<u8> {
    OBJECTS.iter().map(|object| object.number).find(|number| wire(*number) == *handle)
}

fn encode(status: Result<(), Status>, results: Vec<ResOp>) -> Bytes {
    let resarray = List::new(results).unwrap();
    xdr::to_bytes(&CompoundRes { status, tag: nfs4::Tag::default(), resarray }).unwrap()
}
