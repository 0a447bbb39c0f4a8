//! A server whose users have tickets, and clients that send bytes of their own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use gss::{Initiator, Library, Source};
use lab::Realm;
use parking_lot::Mutex;
use rpc::message::{CallHeader, Incoming, parse_reply_with};
use rpc::rpcsec_gss::initiator::{Beginning, Context, Error, Progress, Sent};
use rpc::rpcsec_gss::{Acceptor, Protection, Proven, UnixUser};
use rpc::service::{Answering, Outcome, Remember};
use rpc::{Call, Credential, ReplyCache, Server, ServerOptions, Service};
use tokio::runtime::Runtime;
use xdr::{Decoder, Encode, Encoder, Message};

pub const PROGRAM: (u32, u32) = (400_003, 1);
/// Answers with its arguments.
pub const ECHO: (u32, u32, u32) = (PROGRAM.0, PROGRAM.1, 1);
/// Answers how many calls of it there were before. The reply cache keeps the answer.
pub const COUNT: (u32, u32, u32) = (PROGRAM.0, PROGRAM.1, 2);
const SERVICE: &str = "nfs/localhost";
const PATIENCE: Duration = Duration::from_secs(20);

/// The program.
#[derive(Default)]
pub struct Program {
    counted: AtomicU32,
    /// The users of the calls, and their arguments.
    pub seen: Mutex<Vec<(Credential, Bytes)>>,
}

impl Program {
    /// The proven user of the newest call.
    pub fn newest(&self) -> Proven {
        match self.seen.lock().last() {
            Some((Credential::Proven(proven), _)) => proven.clone(),
            other => panic!("not a proven user: {other:?}"),
        }
    }
}

impl Service for Program {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move {
            self.seen.lock().push((call.header.credential.clone(), call.arguments.rest()));
            let mut reply = call.reply();
            match call.header.procedure {
                1 => reply.message(Message { first: call.arguments.rest(), ..Message::default() }),
                2 => reply.u32(self.counted.fetch_add(1, Ordering::SeqCst)),
                _ => return rpc::message::Refusal::ProcedureUnavailable.into(),
            }
            Outcome::Reply(reply.finish())
        })
    }

    fn remember(&self, call: &Call) -> Remember {
        if call.header.procedure == COUNT.2 { Remember::Reply } else { Remember::No }
    }
}

/// A server in a realm with the user alice.
pub struct Setting<'r> {
    pub realm: &'r Realm,
    pub program: Arc<Program>,
    pub acceptor: Arc<Acceptor>,
    pub server: Server,
    _runtime: Runtime,
}

impl Setting<'_> {
    pub fn start(realm: &Realm) -> Setting<'_> {
        realm.add_user("alice", "secret of alice");
        realm.add_service(SERVICE);
        let keytab = realm.keytab(&[SERVICE]);
        let keys = gss::Acceptor::new(&Library::open().unwrap(), Some(&keytab)).unwrap();
        let alice = |name: &str| {
            Ok((name == "alice").then(|| UnixUser { uid: 1000, gid: 100, groups: vec![100, 7] }))
        };
        let acceptor = Acceptor::new(keys, Box::new(alice)).unwrap();
        let program = Arc::<Program>::default();
        let runtime = Runtime::new().unwrap();
        let gss = Some(acceptor.clone());
        let options = ServerOptions { gss, ..ServerOptions::new((Ipv4Addr::LOCALHOST, 0).into()) };
        let starting = Server::start(options, program.clone(), ReplyCache::volatile());
        let server = runtime.block_on(starting).unwrap();
        Setting { realm, program, acceptor, server, _runtime: runtime }
    }

    pub fn wire(&self) -> Wire {
        Wire::connect(&self.server)
    }

    /// A client with a context of alice.
    pub fn alice(&self) -> (Wire, Context) {
        self.context(&self.realm.tickets("alice"))
    }

    pub fn context(&self, tickets: &Path) -> (Wire, Context) {
        let mut wire = self.wire();
        let context = wire.context(tickets).unwrap();
        (wire, context)
    }
}

/// A connection.
pub struct Wire {
    stream: TcpStream,
    xid: u32,
}

impl Wire {
    fn connect(server: &Server) -> Wire {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire { stream, xid: 100 }
    }

    pub fn xid(&mut self) -> u32 {
        self.xid += 1;
        self.xid
    }

    pub fn send(&mut self, record: &[u8]) {
        let mark = rpc::record::mark(record.len());
        self.stream.write_all(&[&mark[..], record].concat()).unwrap();
    }

    /// The reply to a call, from its status on. `None` if the server ends the connection.
    pub fn hear(&mut self, xid: u32) -> Option<Decoder> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).ok()?;
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut reply).ok()?;
        match Incoming::parse(reply.into()).unwrap() {
            Incoming::Reply { xid: of, rest } => {
                assert_eq!(of, xid, "the reply to another call");
                Some(rest)
            }
            other => panic!("not a reply: {other:?}"),
        }
    }

    /// Makes a context with the server.
    pub fn context(&mut self, tickets: &Path) -> Result<Context, Error> {
        let source = Source::Cache(format!("FILE:{}", tickets.display()));
        let initiator = Initiator::new(&Library::open()?, &source)?;
        let (mut beginning, mut token) = Beginning::new(&initiator, "nfs@localhost")?;
        loop {
            let xid = self.xid();
            let (program, version) = PROGRAM;
            let credential = beginning.credential();
            let mut encoder = Encoder::new();
            CallHeader { xid, program, version, procedure: 0, credential }.encode(&mut encoder);
            encoder.opaque(&token);
            self.send(&encoder.finish().to_bytes().unwrap());
            let (verifier, results) = parse_reply_with(self.hear(xid).expect("an answer"))?;
            match beginning.answered(&verifier, results?)? {
                Progress::Made(context) => return Ok(context),
                Progress::Again(again, next) => (beginning, token) = (again, next),
            }
        }
    }

    /// Makes a call and returns the results.
    pub fn call(
        &mut self,
        context: &Context,
        procedure: (u32, u32, u32),
        protection: Protection,
        arguments: &[u8],
    ) -> Result<Bytes, Error> {
        let xid = self.xid();
        let (sent, record) = encoded(context, procedure, xid, protection, arguments);
        self.send(&record);
        let results = context.reply(sent, self.hear(xid).expect("an answer"))?;
        Ok(results.rest())
    }
}

pub fn encoded(
    context: &Context,
    procedure: (u32, u32, u32),
    xid: u32,
    protection: Protection,
    arguments: &[u8],
) -> (Sent, Bytes) {
    let mut encoder = Encoder::new();
    encoder.raw(arguments);
    let (sent, message) = context.call(procedure, xid, protection, encoder.finish()).unwrap();
    (sent, message.to_bytes().unwrap())
}
