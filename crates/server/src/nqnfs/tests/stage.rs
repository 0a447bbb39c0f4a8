//! A server and its clients, for tests and the fuzz target: the arbiter over a file system in memory that
//! grants leases.

#![allow(dead_code, reason = "the tests and the fuzz target each use a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../../arbiter/tests/below/mod.rs"]
pub mod below;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arbiter::leases::Terms;
use arbiter::{Arbiter, Options};
use bytes::Bytes;
use protocol::nqnfs::{
    Cachetype, Fattr, GetleaseArgs, GetleaseOk, Handle, LeaseRequest, LeaseResult, Leased, Plain, Promise,
    ReadArgs, ReadOk, Reply, Stat, WriteArgs, call,
};
use rpc::message::CallHeader;
use rpc::service::Outcome;
use rpc::{AuthSys, Credential, Service};
use tokio::sync::mpsc;
use tokio::time::timeout;
use xdr::{Decode, Decoder, Encode, Encoder, Opaque};

use crate::exports::{Export, ExportId, ExportOptions, Exports, Squash};
use crate::front::Front;
use crate::handles::{HandleKey, Handles};
use crate::nqnfs::clients::Way;
use crate::nqnfs::{Nqnfs, NqnfsOptions};
use below::Below;

pub const SKEW: Duration = Duration::from_secs(3);
pub const SLACK: Duration = Duration::from_secs(5);
pub const TERM: Duration = Duration::from_secs(30);

/// A server with one file.
pub struct Stage {
    pub front: Arc<Front>,
    pub arbiter: Arc<Arbiter>,
    pub file: Handle,
    pub v3: protocol::nfs3::Handle,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(&Below::new(true), Nqnfs::default())
    }

    /// The server incarnation after one that left its record in this directory.
    pub fn after(below: &Arc<Below>, directory: &std::path::Path) -> Stage {
        let options = NqnfsOptions { directory: Some(directory.to_owned()), ..NqnfsOptions::default() };
        Stage::with(below, Nqnfs::open(&options).unwrap())
    }

    /// A server with capacity for `leases_max` leases.
    pub fn with_records(leases_max: usize) -> Stage {
        let terms = Terms { leases_max, ..Terms::default() };
        Stage::over(&Below::new(true), Nqnfs::default(), Options { terms, ..Options::default() })
    }

    fn with(below: &Arc<Below>, nqnfs: Nqnfs) -> Stage {
        let options = Options { recovery: nqnfs.recovery(), ..Options::default() };
        Stage::over(below, nqnfs, options)
    }

    /// A server over this layer, to which it adds a file.
    pub fn over(below: &Arc<Below>, nqnfs: Nqnfs, options: Options) -> Stage {
        let inner = below.add("file");
        let fs = Arc::new(Arbiter::with_options(below.clone(), options));
        let id = ExportId(1);
        let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
        let export = Export::new(id, "/export".into(), fs.clone(), options);
        let state = tempfile::tempdir().unwrap();
        let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
        let (file, v3) = (handles.v2(id, &inner).unwrap(), handles.v3(id, &inner).unwrap());
        let exports = Exports::new(vec![export]).unwrap();
        let front = Front::with_leases(exports, handles, &crate::StateOptions::default(), nqnfs).unwrap();
        Stage { front, arbiter: fs, file, v3 }
    }

    /// A client that listens for EVICTED.
    pub async fn client(&self, machine: &'static str) -> Client {
        let (tell, evicted) = mpsc::unbounded_channel();
        let client = Client { front: self.front.clone(), machine, file: self.file, evicted };
        client.call::<call::Null>(()).await;
        let holder = self.front.nqnfs.nqnfs.clients.lock().heard(&client.rpc_call::<call::Null>(&()));
        self.front.nqnfs.nqnfs.clients.lock().tell(holder, Way::Told(tell));
        client
    }
}

pub struct Client {
    front: Arc<Front>,
    machine: &'static str,
    file: Handle,
    evicted: mpsc::UnboundedReceiver<Handle>,
}

impl Client {
    fn rpc_call<C: protocol::Call>(&self, args: &C::Args) -> rpc::Call {
        let machine = Opaque::new(self.machine.as_bytes()).unwrap();
        let credential = Credential::Sys(AuthSys { machine, ..AuthSys::default() });
        let mut encoder = Encoder::new();
        args.encode(&mut encoder);
        let header =
            CallHeader { xid: 7, program: C::PROGRAM, version: C::VERSION, procedure: C::NUMBER, credential };
        rpc::Call {
            header,
            arguments: Decoder::new(encoder.finish().to_bytes().unwrap()),
            peer: SocketAddr::from(([127, 0, 0, 1], 1000)),
            connection: None,
            datagrams: None,
            resent: false,
            groups: None,
        }
    }

    /// A call with arbitrary bytes as arguments.
    pub fn raw(&self, procedure: u32, arguments: &'static [u8]) -> rpc::Call {
        let mut call = self.rpc_call::<call::Null>(&());
        call.header.procedure = procedure;
        call.arguments = Decoder::new(Bytes::from_static(arguments));
        call
    }

    /// Calls any procedure that the front serves.
    pub async fn call<C: protocol::Call>(&self, args: C::Args) -> C::Results {
        let Outcome::Reply(message) = self.front.clone().call(self.rpc_call::<C>(&args)).await else {
            panic!("{} was refused", C::NAME)
        };
        let mut decoder = Decoder::new(message.to_bytes().unwrap().slice(24..));
        let results = C::Results::decode(&mut decoder).unwrap();
        decoder.finish().unwrap();
        results
    }

    pub async fn getlease(&self, rw: Cachetype) -> Result<GetleaseOk, Stat> {
        let args = GetleaseArgs { file: self.file, rw, duration: 30 };
        match self.call::<call::Getlease>(args).await {
            Plain::Ok(ok) => Ok(ok),
            Plain::Fail(status, ()) => Err(status),
        }
    }

    /// READ with a request for a lease.
    pub async fn read(&self, lease: LeaseRequest) -> Result<(Promise, ReadOk), Stat> {
        let args = Leased { lease, args: ReadArgs { file: self.file, offset: 0, count: 100 } };
        match self.call::<call::Read>(args).await {
            Reply::Ok(granted) => Ok((promise(granted.lease), granted.results)),
            Reply::Fail(status, ()) => Err(status),
        }
    }

    /// READ, repeated until no lease of another client blocks it.
    pub async fn read_at_last(&self, lease: LeaseRequest) -> (Promise, ReadOk) {
        loop {
            match self.read(lease).await {
                Ok(read) => return read,
                Err(status) => assert_eq!(status, Stat::Trylater),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn write(&self) -> Result<Fattr, Stat> {
        let data = Bytes::from_static(b"written").into();
        let args = WriteArgs { file: self.file, offset: 0, append: false, data };
        match self.call::<call::Write>(Leased { lease: LeaseRequest::None, args }).await {
            Reply::Ok(granted) => Ok(granted.results),
            Reply::Fail(status, ()) => Err(status),
        }
    }

    pub async fn vacated(&self) {
        self.call::<call::Vacated>(self.file).await;
    }

    /// Waits for EVICTED.
    pub async fn evicted(&mut self) {
        let evicted = timeout(Duration::from_secs(60), self.evicted.recv()).await;
        assert_eq!(evicted.expect("an EVICTED"), Some(self.file));
    }

    /// How many times the client was evicted since the last call of this function.
    pub fn evictions(&mut self) -> usize {
        std::iter::from_fn(|| self.evicted.try_recv().ok()).count()
    }
}

pub const READ: LeaseRequest = LeaseRequest::Read(30);
pub const NONE: LeaseRequest = LeaseRequest::None;

fn promise(result: LeaseResult) -> Promise {
    match result {
        LeaseResult::Read(promise) | LeaseResult::Write(promise) => promise,
        LeaseResult::None => Promise { cachable: false, duration: 0, rev: 0 },
    }
}
