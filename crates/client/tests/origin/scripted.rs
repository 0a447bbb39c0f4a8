//! An origin that answers as a test prescribes, on its own port.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::{Call, Reply, mount, nfs3, portmap};
use rpc::message::Refusal;
use rpc::service::Answering;
use rpc::{Outcome, Remember, ReplyCache, Server, ServerOptions, Service};
use xdr::{Decode, Encoder};

use client::{Nfs3, Url};

/// The root handle that MOUNT returns.
pub const ROOT: &[u8] = b"root";

/// A call that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub xid: u32,
    pub procedure: u32,
    pub peer: SocketAddr,
    pub credential: rpc::Credential,
    pub arguments: xdr::Decoder,
    /// Number of earlier calls of this procedure.
    pub nth: usize,
}

impl Seen {
    /// Is the call of this procedure?
    pub fn is<C: Call>(&self) -> bool {
        self.procedure == C::NUMBER
    }

    /// The arguments of the call.
    pub fn args<C: Call>(&self) -> C::Args {
        assert!(self.is::<C>());
        C::Args::decode(&mut self.arguments.clone()).unwrap()
    }
}

/// The reaction to a call.
pub enum Act {
    Reply(Vec<u8>),
    /// No answer.
    UnansweredSince,
    /// End the connection.
    HangUp,
    Refuse(Refusal),
}

/// A reply of `C`.
pub fn reply<C: Call>(results: &C::Results) -> Act {
    Act::Reply(xdr::to_bytes(results).unwrap().to_vec())
}

type Script = dyn FnMut(&Seen) -> Act + Send;

struct Scripted {
    script: Mutex<Box<Script>>,
    seen: Mutex<Vec<Seen>>,
    port: Mutex<u16>,
}

impl Service for Scripted {
    fn call(self: Arc<Self>, call: rpc::Call) -> Answering {
        let act = match (call.header.program, call.header.procedure) {
            (nfs3::PROGRAM, _) if call.header.version != nfs3::VERSION => {
                Act::Refuse(Refusal::ProgramMismatch { low: nfs3::VERSION, high: nfs3::VERSION })
            }
            (nfs3::PROGRAM, nfs3::call::Fsinfo::NUMBER) => reply::<nfs3::call::Fsinfo>(&Reply::Ok(fsinfo())),
            (nfs3::PROGRAM, _) => self.nfs(&call),
            (mount::v3::PROGRAM, mount::v3::call::Mnt::NUMBER) => mnt(&call),
            (portmap::PROGRAM, portmap::call::Getport::NUMBER) => {
                reply::<portmap::call::Getport>(&(*self.port.lock()).into())
            }
            _ => Act::Refuse(Refusal::ProgramUnavailable),
        };
        let outcome = match act {
            Act::Reply(bytes) => {
                let mut encoder: Encoder = call.reply();
                encoder.raw(&bytes);
                Outcome::Reply(encoder.finish())
            }
            Act::UnansweredSince => Outcome::Drop,
            Act::HangUp => {
                call.connection.inspect(|connection| connection.close());
                Outcome::Drop
            }
            Act::Refuse(refusal) => Outcome::Refuse(refusal),
        };
        Box::pin(std::future::ready(outcome))
    }

    fn remember(&self, _: &rpc::Call) -> Remember {
        Remember::No
    }
}

impl Scripted {
    fn nfs(&self, call: &rpc::Call) -> Act {
        let procedure = call.header.procedure;
        let nth = self.seen.lock().iter().filter(|seen| seen.procedure == procedure).count();
        let seen = Seen {
            xid: call.header.xid,
            procedure,
            peer: call.peer,
            credential: call.header.credential.clone(),
            arguments: call.arguments.clone(),
            nth,
        };
        self.seen.lock().push(seen.clone());
        (self.script.lock())(&seen)
    }
}

fn mnt(call: &rpc::Call) -> Act {
    let path = mount::Dirpath::decode(&mut call.arguments.clone()).unwrap();
    let flavors = match &path[..] {
        b"/export" => vec![1],
        b"/kerberos" => vec![390_003, 390_004],
        b"/empty" => vec![],
        _ => return reply::<mount::v3::call::Mnt>(&Reply::Fail(mount::Stat::NoEnt, ())),
    };
    let root = if &path[..] == b"/empty" { b"" } else { ROOT };
    reply::<mount::v3::call::Mnt>(&Reply::Ok(mount::MountOk {
        fhandle: xdr::Inline::new(root).unwrap(),
        auth_flavors: xdr::List::new(flavors).unwrap(),
    }))
}

fn fsinfo() -> nfs3::FsinfoOk {
    nfs3::FsinfoOk {
        obj_attributes: None,
        rtmax: 65536,
        rtpref: 65536,
        rtmult: 4096,
        wtmax: 32768,
        wtpref: 32768,
        wtmult: 4096,
        dtpref: 8192,
        maxfilesize: 1 << 40,
        time_delta: nfs3::Nfstime { seconds: 0, nseconds: 1 },
        properties: nfs3::FSF3_LINK | nfs3::FSF3_SYMLINK,
    }
}

/// A running scripted origin.
pub struct Origin {
    service: Arc<Scripted>,
    server: Option<Server>,
    pub address: SocketAddr,
}

impl Origin {
    pub async fn start(script: impl FnMut(&Seen) -> Act + Send + 'static) -> Origin {
        let script: Box<Script> = Box::new(script);
        let service =
            Arc::new(Scripted { script: Mutex::new(script), seen: Mutex::default(), port: Mutex::default() });
        let server = listen(&service, ([127, 0, 0, 1], 0).into()).await;
        let address = server.local_addr();
        *service.port.lock() = address.port();
        Origin { service, server: Some(server), address }
    }

    /// Ends all connections and refuses new ones.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Listens again on the same port.
    pub async fn restart(&mut self) {
        self.server = Some(listen(&self.service, self.address).await);
    }

    /// The NFS calls that arrived, without FSINFO.
    pub fn seen(&self) -> Vec<Seen> {
        self.service.seen.lock().clone()
    }

    /// The xids of the calls of one procedure.
    pub fn xids<C: Call>(&self) -> Vec<u32> {
        self.seen().iter().filter(|seen| seen.is::<C>()).map(|seen| seen.xid).collect()
    }

    /// Mounts the origin with these options.
    pub async fn mount(&self, options: &str) -> Nfs3 {
        Nfs3::connect(&self.url(&format!("/export?{options}"))).await.unwrap()
    }

    pub fn url(&self, path: &str) -> Url {
        Url::parse(&format!("nfs://{}{path}", self.address)).unwrap()
    }
}

async fn listen(service: &Arc<Scripted>, address: SocketAddr) -> Server {
    // The port may linger for a moment after its last server.
    for _ in 0..200 {
        match Server::start(ServerOptions::new(address), service.clone(), ReplyCache::volatile()).await {
            Ok(server) => return server,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    }
    panic!("no port to listen on");
}

/// Attributes of a file of this type and size.
pub fn fattr(ftype: nfs3::Ftype, size: u64) -> nfs3::Fattr {
    let time = nfs3::Nfstime { seconds: 1_700_000_000, nseconds: 5 };
    nfs3::Fattr {
        ftype,
        mode: 0o100_644,
        nlink: 1,
        uid: 10,
        gid: 20,
        size,
        used: size,
        rdev: nfs3::Specdata::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

pub fn wire_handle(bytes: &[u8]) -> nfs3::Handle {
    nfs3::Handle::new(bytes).unwrap()
}

pub fn handle(bytes: &[u8]) -> vfs::Handle {
    vfs::Handle::new(bytes).unwrap()
}

pub fn name(bytes: &[u8]) -> vfs::Name {
    vfs::Name::new(bytes).unwrap()
}

pub fn caller() -> vfs::Caller {
    vfs::Caller::unix(1000, 100, &[1, 2, 3])
}
