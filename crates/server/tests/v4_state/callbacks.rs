//! A client that receives callbacks, over the connection of its session or at a listening port. It answers
//! correctly or in a way that the test sets.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nfs4::callback::{self, CbArgOp, CbCompoundHeader, CbGetattrOk, CbResOp, CbSequenceOk};
use protocol::nfs4::{
    ArgOp, CREATE_SESSION4_FLAG_CONN_BACK_CHAN, CompoundArgs, CompoundRes, CompoundResHeader, Fattr, Nfstime,
    Op, ResOp, SequenceArgs, Sessionid, Status, op,
};
use rpc::service::{Answering, Outcome, Remember};
use rpc::{AuthSys, Call, Credential, Link, LinkOptions, Outgoing, Patience, ReplyCache, Service};
use tempfile::TempDir;
use tokio::sync::mpsc;
use xdr::{Decode, Encode, Encoder};

use crate::setup::{Incarnation, create_session_args, exchange_id, reclaim_complete};

/// The delayed write of the client, for CB_GETATTR: size and change attribute.
pub const WRITTEN: (u64, u64) = (4711, 99);
/// Its times of modification, access and change. The last is later than any time at the server.
pub const TIMES: [i64; 3] = [1_000_000_000, 1_100_000_000, 30_000_000_000];

/// A callback that the client received.
#[derive(Debug)]
pub struct Called {
    pub minor: u32,
    pub ident: u32,
    pub operation: CbArgOp,
}

/// How a client answers callbacks that require an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It answers all with success.
    Obliging,
    /// It receives callbacks and sends no answer, like a stopped process.
    Mute,
    /// It fails each with this status.
    Refusing(Status),
    /// It answers with garbage.
    Babbling,
}

/// The client's end of the callbacks: answers them and reports them to the test.
#[derive(Debug)]
struct Callee {
    manner: Mutex<Manner>,
    called: mpsc::UnboundedSender<Called>,
    /// The next sequence id of each slot.
    slots: Mutex<Vec<u32>>,
}

impl Callee {
    fn new(manner: Manner) -> (Arc<Callee>, mpsc::UnboundedReceiver<Called>) {
        let (called, calls) = mpsc::unbounded_channel();
        (Arc::new(Callee { manner: manner.into(), called, slots: Mutex::new(vec![1; 16]) }), calls)
    }

    fn answer(&self, operation: CbArgOp, minor: u32, ident: u32) -> CbResOp {
        let manner = *self.manner.lock();
        let result = match &operation {
            CbArgOp::Sequence(args) => {
                let mut slots = self.slots.lock();
                // A caller that gets no answer may send the request again.
                let again = matches!(manner, Manner::Mute | Manner::Babbling);
                assert!(again || args.sequenceid == slots[args.slotid as usize], "exactly once, in order");
                slots[args.slotid as usize] = args.sequenceid + 1;
                return CbResOp::Sequence(Ok(CbSequenceOk {
                    sessionid: args.sessionid,
                    sequenceid: args.sequenceid,
                    slotid: args.slotid,
                    highest_slotid: args.highest_slotid,
                    target_highest_slotid: args.highest_slotid,
                }));
            }
            _ if let Manner::Refusing(status) = manner => CbResOp::failed(operation.operation(), status),
            CbArgOp::Getattr(_) => {
                let (size, change) = WRITTEN;
                let [mtime, atime, ctime] = TIMES.map(|seconds| Some(Nfstime { seconds, nseconds: 7 }));
                let fattr = Fattr {
                    size: Some(size),
                    change: Some(change),
                    time_modify: mtime,
                    time_access: atime,
                    time_metadata: ctime,
                    ..Fattr::default()
                };
                CbResOp::Getattr(Ok(CbGetattrOk { obj_attributes: Box::new(fattr) }))
            }
            CbArgOp::Recall(_) => CbResOp::Recall(Ok(())),
            CbArgOp::NotifyLock(_) => CbResOp::NotifyLock(Ok(())),
            CbArgOp::RecallAny(_) => CbResOp::RecallAny(Ok(())),
            other => panic!("{other:?}"),
        };
        self.called.send(Called { minor, ident, operation }).unwrap();
        result
    }
}

impl Service for Callee {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        assert_eq!((call.header.program, call.header.version), (0x4000_0000, callback::VERSION));
        let mut reply = call.reply();
        if call.header.procedure == callback::COMPOUND {
            let mut arguments = call.arguments.clone();
            let mut header = CbCompoundHeader::decode(&mut arguments).unwrap();
            let (mut results, mut body, mut status) = (0, Encoder::new(), Ok(()));
            while let Some(operation) = header.next(&mut arguments) {
                let result = self.answer(operation.unwrap(), header.minorversion, header.callback_ident);
                result.encode(&mut body);
                status = result.status();
                results += 1;
            }
            match *self.manner.lock() {
                Manner::Mute => return Box::pin(std::future::pending()),
                Manner::Babbling => reply.raw(&[0xa5; 36]),
                Manner::Obliging | Manner::Refusing(_) => {
                    CompoundResHeader { status, tag: header.tag, results }.encode(&mut reply);
                    reply.message(body.finish());
                }
            }
        }
        Box::pin(std::future::ready(Outcome::Reply(reply.finish())))
    }

    fn remember(&self, _: &Call) -> Remember {
        Remember::No
    }
}

/// A client with a session whose one connection carries both channels.
pub struct Reachable {
    link: Link,
    callee: Arc<Callee>,
    pub calls: mpsc::UnboundedReceiver<Called>,
    pub session: Sessionid,
    sequence: u32,
    /// The flags of the last SEQUENCE.
    pub status_flags: u32,
    _replies: TempDir,
}

impl Reachable {
    pub async fn new(incarnation: &Incarnation, ownerid: &[u8]) -> Reachable {
        Reachable::with_manner(incarnation, ownerid, Manner::Obliging).await
    }

    pub async fn with_manner(incarnation: &Incarnation, ownerid: &[u8], manner: Manner) -> Reachable {
        let replies = tempfile::tempdir().unwrap();
        let (callee, calls) = Callee::new(manner);
        let cache = ReplyCache::open(replies.path()).unwrap();
        let link = Link::with_service(LinkOptions::new(incarnation.address()), callee.clone(), cache);
        let mut client = Reachable {
            link,
            callee,
            calls,
            session: [0; 16],
            sequence: 0,
            status_flags: 0,
            _replies: replies,
        };
        let known = client.send(vec![exchange_id(ownerid, 1, 0)]).await;
        let known = known.into_results().take::<op::ExchangeId>().unwrap();
        let mut args = create_session_args(known.clientid, known.sequenceid, 4);
        args.flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
        args.back_chan_attrs.maxrequests = 4;
        let made = client.send(vec![ArgOp::CreateSession(args)]).await;
        let made = made.into_results().take::<op::CreateSession>().unwrap();
        assert_eq!(made.flags, CREATE_SESSION4_FLAG_CONN_BACK_CHAN);
        client.session = made.sessionid;
        client.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await.unwrap();
        client
    }

    async fn send(&self, operations: Vec<ArgOp>) -> CompoundRes {
        let mut encoder = Encoder::new();
        CompoundArgs::new(1, operations).unwrap().encode(&mut encoder);
        let call = Outgoing {
            program: 100_003,
            version: 4,
            procedure: 1,
            credential: Credential::Sys(AuthSys::default()),
            arguments: encoder.finish(),
        };
        let mut results = self.link.call(call, Patience::Hard).await.unwrap().results;
        CompoundRes::decode(&mut results).unwrap()
    }

    /// The result of the last operation. The operations before it must succeed.
    pub async fn last<O: Op<ResOp = ResOp>>(&mut self, operations: Vec<ArgOp>) -> Result<O::Ok, O::Failure> {
        self.sequence += 1;
        let sequence = ArgOp::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.sequence,
            slotid: 0,
            highest_slotid: 0,
            cachethis: false,
        });
        let before = operations.len() - 1;
        let operations = std::iter::once(sequence).chain(operations).collect();
        let mut results = self.send(operations).await.into_results();
        self.status_flags = results.take::<op::Sequence>().unwrap().status_flags;
        for _ in 0..before {
            let result = results.next_result().unwrap();
            assert_eq!(result.status(), Ok(()), "{}", result.operation());
        }
        results.result::<O>().unwrap()
    }

    /// Sets how the client answers callbacks from now on.
    pub fn set_manner(&self, manner: Manner) {
        *self.callee.manner.lock() = manner;
    }

    /// The next callback.
    pub async fn called(&mut self) -> CbArgOp {
        called(&mut self.calls).await.operation
    }
}

pub async fn called(calls: &mut mpsc::UnboundedReceiver<Called>) -> Called {
    tokio::time::timeout(Duration::from_secs(10), calls.recv()).await.unwrap().unwrap()
}

/// The listening port of a client of minor version 0.
pub struct Listening {
    pub server: rpc::Server,
    callee: Arc<Callee>,
    pub calls: mpsc::UnboundedReceiver<Called>,
    _replies: TempDir,
}

impl Listening {
    pub async fn new() -> Listening {
        let replies = tempfile::tempdir().unwrap();
        let (callee, calls) = Callee::new(Manner::Obliging);
        let cache = ReplyCache::open(replies.path()).unwrap();
        let options = rpc::ServerOptions::new((std::net::Ipv4Addr::LOCALHOST, 0).into());
        let server = rpc::Server::start(options, callee.clone(), cache).await.unwrap();
        Listening { server, callee, calls, _replies: replies }
    }

    /// Sets how the client answers callbacks from now on.
    pub fn set_manner(&self, manner: Manner) {
        *self.callee.manner.lock() = manner;
    }

    /// The port as a universal address.
    pub fn universal(&self) -> String {
        let port = self.server.local_addr().port();
        format!("127.0.0.1.{}.{}", port >> 8, port & 0xff)
    }
}
