//! A client host: a caller of the lock manager at an address of its own, and the programs that the server
//! calls there (port mapper, lock manager, status monitor), all on one port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nlm::{
    CallerName, CancelArgs, Lock, LockArgs, Netobj, Res, Share, ShareArgs, Stat, TestArgs, TestReply,
    UnlockArgs, v4,
};
use protocol::{Call, portmap};
use rpc::service::{Answering, Outcome, Remember};
use rpc::{Link, LinkOptions, ReplyCache, Server, ServerOptions, Service};
use tokio::sync::mpsc;
use xdr::Encode;

use crate::calls;
use crate::setup::Incarnation;

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(30);
/// The port of the programs of every host.
const PORT: u16 = 32_111;

/// Waits for a condition.
pub async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.unwrap();
}

/// A range of bytes; zero bytes go on to the end.
#[derive(Clone, Copy)]
pub struct Range(u64, u64);

impl Range {
    pub const ALL: Range = Range(0, 0);

    pub fn of(offset: u64, length: u64) -> Range {
        Range(offset, length)
    }
}

/// How a host answers GRANTED.
#[derive(Clone, Copy)]
pub enum Answer {
    With(Stat),
    Nothing,
}

/// See the module.
pub struct Host {
    link: Link,
    address: Ipv4Addr,
    calls: mpsc::UnboundedReceiver<(u32, u32, Bytes)>,
    programs: Arc<Programs>,
    _server: Server,
}

struct Programs {
    answer: Mutex<Answer>,
    heard: mpsc::UnboundedSender<(u32, u32, Bytes)>,
}

impl Service for Programs {
    fn call(self: Arc<Self>, call: rpc::Call) -> Answering {
        let (program, procedure) = (call.header.program, call.header.procedure);
        let arguments = call.arguments.rest();
        let mut reply = call.reply();
        if program == portmap::PROGRAM {
            u32::from(PORT).encode(&mut reply);
            return Box::pin(std::future::ready(Outcome::Reply(reply.finish())));
        }
        self.heard.send((program, procedure, arguments.clone())).unwrap();
        if program == v4::PROGRAM && procedure == v4::Procedure::Granted as u32 {
            let cookie = xdr::from_bytes::<TestArgs<u64>>(arguments).unwrap().cookie;
            match *self.answer.lock() {
                Answer::With(stat) => Res { cookie, stat }.encode(&mut reply),
                Answer::Nothing => return Box::pin(std::future::ready(Outcome::Drop)),
            }
        }
        Box::pin(std::future::ready(Outcome::Reply(reply.finish())))
    }

    fn remember(&self, _: &rpc::Call) -> Remember {
        Remember::No
    }
}

impl Host {
    /// The host of this number beside this server.
    pub async fn new(incarnation: &Incarnation, number: u8) -> Host {
        // Each server has its own port, so tests of one process do not meet.
        let [high, low] = incarnation.address().port().to_be_bytes();
        let address = Ipv4Addr::new(127, high, low, number);
        let (heard, calls) = mpsc::unbounded_channel();
        let programs = Arc::new(Programs { answer: Mutex::new(Answer::With(Stat::Granted)), heard });
        let options = ServerOptions::new(SocketAddr::from((address, PORT)));
        let server = Server::start(options, programs.clone(), ReplyCache::volatile()).await.unwrap();
        Host { link: link(incarnation, address), address, calls, programs, _server: server }
    }

    /// The server has restarted.
    pub fn follow(&mut self, incarnation: &Incarnation) {
        self.link = link(incarnation, self.address);
    }

    /// From now on, it answers GRANTED so.
    pub fn answers(&self, answer: Answer) {
        *self.programs.answer.lock() = answer;
    }

    pub async fn call<C: Call>(&self, args: C::Args) -> C::Results {
        tokio::time::timeout(LONG, calls::call::<C>(&self.link, args)).await.unwrap()
    }

    /// The next call of this procedure that the server makes.
    pub async fn heard<C: Call>(&mut self) -> C::Args {
        loop {
            let call = tokio::time::timeout(LONG, self.calls.recv()).await.unwrap().unwrap();
            if (call.0, call.1) == (C::PROGRAM, C::NUMBER) {
                return xdr::from_bytes(call.2).unwrap();
            }
        }
    }

    pub async fn lock(&self, file: &[u8], svid: u32, range: Range) -> Stat {
        self.call::<v4::call::Lock>(args(file, svid, range, false)).await.stat
    }

    pub async fn lock_shared(&self, file: &[u8], svid: u32, range: Range) -> Stat {
        let args = LockArgs { exclusive: false, ..args(file, svid, range, false) };
        self.call::<v4::call::Lock>(args).await.stat
    }

    pub async fn wait_for(&self, file: &[u8], svid: u32, range: Range) -> Stat {
        self.call::<v4::call::Lock>(args(file, svid, range, true)).await.stat
    }

    pub async fn reclaim(&self, file: &[u8], svid: u32, range: Range) -> Stat {
        let args = LockArgs { reclaim: true, ..args(file, svid, range, false) };
        self.call::<v4::call::Lock>(args).await.stat
    }

    pub async fn test(&self, file: &[u8], svid: u32, range: Range) -> TestReply<u64> {
        self.call::<v4::call::Test>(test_args(file, svid, range)).await.stat
    }

    pub async fn unlock(&self, file: &[u8], svid: u32, range: Range) -> Stat {
        self.call::<v4::call::Unlock>(unlock_args(file, svid, range)).await.stat
    }

    pub async fn cancel(&self, file: &[u8], svid: u32, range: Range) -> Stat {
        let alock = alock(file, svid, range.0, range.1);
        let args = CancelArgs { cookie: cookie(), block: true, exclusive: true, alock };
        self.call::<v4::call::Cancel>(args).await.stat
    }
}

fn link(incarnation: &Incarnation, address: Ipv4Addr) -> Link {
    incarnation.front.set_mapper_port(PORT);
    Link::new(LinkOptions { local: Some(address.into()), ..LinkOptions::new(incarnation.address()) })
}

fn cookie() -> Netobj {
    object(b"cookie")
}

fn name() -> CallerName {
    CallerName::new(&b"host"[..]).unwrap()
}

fn object(bytes: &[u8]) -> Netobj {
    Netobj::new(bytes.to_vec()).unwrap()
}

fn alock<N>(file: &[u8], svid: u32, offset: N, length: N) -> Lock<N> {
    let oh = object(format!("{svid}@host").as_bytes());
    Lock { caller_name: name(), fh: object(file), oh, svid, offset, length }
}

pub fn args(file: &[u8], svid: u32, range: Range, block: bool) -> LockArgs<u64> {
    let alock = alock(file, svid, range.0, range.1);
    LockArgs { cookie: cookie(), block, exclusive: true, alock, reclaim: false, state: 3 }
}

pub fn args32(file: &[u8], svid: u32, offset: u32, length: u32) -> LockArgs<u32> {
    let alock = alock(file, svid, offset, length);
    LockArgs { cookie: cookie(), block: false, exclusive: true, alock, reclaim: false, state: 3 }
}

pub fn test_args(file: &[u8], svid: u32, range: Range) -> TestArgs<u64> {
    TestArgs { cookie: cookie(), exclusive: true, alock: alock(file, svid, range.0, range.1) }
}

pub fn unlock_args(file: &[u8], svid: u32, range: Range) -> UnlockArgs<u64> {
    UnlockArgs { cookie: cookie(), alock: alock(file, svid, range.0, range.1) }
}

pub fn share_args(file: &[u8], mode: u32, access: u32) -> ShareArgs {
    let (caller_name, fh, oh) = (name(), object(file), object(b"dos"));
    let share = Share { caller_name, fh, oh, mode, access };
    ShareArgs { cookie: cookie(), share, reclaim: false }
}
