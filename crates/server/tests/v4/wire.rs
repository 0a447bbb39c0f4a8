//! A server over new directories, and a client that sends given operations.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use arbiter::Arbiter;
use bytes::{Bytes, BytesMut};
use local::LocalFs;
use protocol::nfs4::{
    self, ArgFattr, ArgOp, Attr, Bitmap, Component, CompoundArgs, CompoundRes, CreateArgs, Createtype, Fattr,
    GetattrArgs, Handle, LookupArgs, Op, PutfhArgs, ResOp, Results, Status, Tag, op,
};
use rpc::auth::AuthSys;
use rpc::message::{CallHeader, Incoming, Refusal};
use rpc::{Credential, ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use xdr::Encode;

pub struct Served {
    pub trees: Vec<TempDir>,
    pub front: Arc<Front>,
    pub server: Server,
    _state: TempDir,
}

/// Export options for the addresses of a list alone.
pub fn open_to(clients: &str) -> ExportOptions {
    ExportOptions { clients: clients.parse().unwrap(), ..open_to_all() }
}

pub fn open_to_all() -> ExportOptions {
    ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() }
}

/// Exports new directories at these paths.
pub async fn serve(exports: Vec<(&str, ExportOptions)>) -> Served {
    let state = tempfile::tempdir().unwrap();
    let mut trees = Vec::new();
    let mut table = Vec::new();
    for (path, options) in exports {
        let (tree, fs_state) = (tempfile::tempdir().unwrap(), state.path().join(trees.len().to_string()));
        std::fs::create_dir(&fs_state).unwrap();
        let fs = LocalFs::open(tree.path(), local::Options::new(&fs_state)).unwrap();
        let fs = Arc::new(Arbiter::new(Arc::new(fs)));
        table.push(Export::new(ExportId::of(path), path.into(), fs, options));
        trees.push(tree);
    }
    let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
    let front = Front::new(Exports::new(table).unwrap(), handles);
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let server =
        Server::start(options, front.clone(), ReplyCache::open(state.path()).unwrap()).await.unwrap();
    Served { trees, front, server, _state: state }
}

/// Exports one new directory at the root.
pub async fn serve_root() -> Served {
    serve(vec![("/", open_to_all())]).await
}

impl Served {
    pub fn tree(&self) -> &Path {
        self.trees[0].path()
    }

    pub async fn client(&self, minor: u32) -> Client {
        Client::connect(self.server.local_addr(), minor).await
    }

    /// A client at another address of the loopback network.
    pub async fn client_from(&self, source: Ipv4Addr, minor: u32) -> Client {
        Client::connect_from(source, self.server.local_addr(), minor).await
    }
}

/// One connection of a client.
pub struct Client {
    stream: TcpStream,
    pub minor: u32,
    /// The requesting user: root, unless a test sets another.
    pub credential: Credential,
    xid: u32,
}

impl Client {
    pub async fn connect(server: SocketAddr, minor: u32) -> Client {
        Client::connect_from(Ipv4Addr::LOCALHOST, server, minor).await
    }

    /// As [`Client::connect`], from another address of the loopback network.
    pub async fn connect_from(source: Ipv4Addr, server: SocketAddr, minor: u32) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        let stream = socket.connect(server).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let credential = Credential::Sys(AuthSys::default());
        Client { stream, minor, credential, xid: 0 }
    }

    /// Sends a compound that the server must refuse because no export admits the client.
    pub async fn refusal(&mut self, operations: Vec<ArgOp>) -> Refusal {
        let args = CompoundArgs::new(self.minor, operations).unwrap();
        let reply = self.raw(&xdr::to_bytes(&args).unwrap()).await;
        rpc::message::parse_reply(xdr::Decoder::new(reply)).unwrap().unwrap_err()
    }

    /// Sends bytes as the arguments of COMPOUND. Returns the reply from the accept status on.
    pub async fn raw(&mut self, arguments: &[u8]) -> Bytes {
        self.xid += 1;
        let credential = self.credential.clone();
        let header = CallHeader { xid: self.xid, program: 100_003, version: 4, procedure: 1, credential };
        let mut record = BytesMut::new();
        record.extend_from_slice(&xdr::to_bytes(&header).unwrap());
        record.extend_from_slice(arguments);
        let mark = record.len() as u32 | 1 << 31;
        self.stream.write_all(&mark.to_be_bytes()).await.unwrap();
        self.stream.write_all(&record).await.unwrap();
        let mut reply = BytesMut::new();
        loop {
            let mark = self.stream.read_u32().await.unwrap();
            let from = reply.len();
            reply.resize(from + (mark & 0x7fff_ffff) as usize, 0);
            self.stream.read_exact(&mut reply[from..]).await.unwrap();
            if mark >> 31 == 1 {
                break;
            }
        }
        let Incoming::Reply { xid, rest } = Incoming::parse(reply.freeze()).unwrap() else {
            panic!("a reply")
        };
        assert_eq!(xid, self.xid);
        rest.rest()
    }

    /// Sends arguments. Returns the results, which must be well-formed to the last byte.
    pub async fn send(&mut self, args: &CompoundArgs) -> CompoundRes {
        let reply = self.raw(&xdr::to_bytes(args).unwrap()).await;
        let results = rpc::message::parse_reply(xdr::Decoder::new(reply)).unwrap().unwrap();
        xdr::from_bytes(results.rest()).unwrap()
    }

    pub async fn compound(&mut self, operations: Vec<ArgOp>) -> Results {
        let minor = self.minor;
        self.send(&CompoundArgs::new(minor, operations).unwrap()).await.into_results()
    }

    /// The status of a compound, which must be that of the last operation in its results.
    pub async fn status(&mut self, operations: Vec<ArgOp>) -> Result<(), Status> {
        let results = self.compound(operations).await;
        let status = results.status();
        let mut last = Ok(());
        let mut rest = results;
        while let Some(result) = rest.next_result() {
            assert_eq!(last, Ok(()), "nothing is done behind a failure");
            last = result.status();
        }
        assert_eq!(last, status, "the compound's status is the last operation's");
        status
    }

    /// The result of the last operation of a compound that must succeed.
    pub async fn last<O: Op<ResOp = ResOp>>(&mut self, operations: Vec<ArgOp>) -> O::Ok {
        let count = operations.len();
        let mut results = self.compound(operations).await;
        for _ in 1..count {
            let result = results.next_result().unwrap();
            assert_eq!(result.status(), Ok(()), "{}", result.operation());
        }
        results.take::<O>().map_err(|error| error.to_string()).unwrap()
    }

    /// The filehandle at a path.
    pub async fn handle(&mut self, path: &str) -> Handle {
        let mut operations = walk(path);
        operations.push(ArgOp::Getfh(()));
        self.last::<op::Getfh>(operations).await.object
    }

    pub async fn getattr(&mut self, mut operations: Vec<ArgOp>, attributes: &[Attr]) -> Fattr {
        operations.push(getattr(attributes));
        *self.last::<op::Getattr>(operations).await.obj_attributes
    }
}

/// PUTROOTFH and a LOOKUP for each name of a path.
pub fn walk(path: &str) -> Vec<ArgOp> {
    let names = path.split('/').filter(|name| !name.is_empty());
    std::iter::once(ArgOp::Putrootfh(())).chain(names.map(|name| lookup(name.as_bytes()))).collect()
}

pub fn then(mut operations: Vec<ArgOp>, more: impl IntoIterator<Item = ArgOp>) -> Vec<ArgOp> {
    operations.extend(more);
    operations
}

pub fn name(name: &[u8]) -> Component {
    Component::new(name.to_vec()).unwrap()
}

pub fn lookup(name: &[u8]) -> ArgOp {
    ArgOp::Lookup(LookupArgs { objname: self::name(name) })
}

pub fn putfh(object: Handle) -> ArgOp {
    ArgOp::Putfh(PutfhArgs { object })
}

pub fn getattr(attributes: &[Attr]) -> ArgOp {
    ArgOp::Getattr(GetattrArgs { attr_request: Bitmap::of(attributes) })
}

pub fn create(name: &[u8], objtype: Createtype, attributes: Fattr) -> ArgOp {
    let createattrs = ArgFattr::from(attributes);
    ArgOp::Create(CreateArgs { objtype, objname: self::name(name), createattrs })
}

pub fn tagged(minorversion: u32, tag: &[u8], operations: Vec<ArgOp>) -> CompoundArgs {
    let mut args = CompoundArgs::new(minorversion, operations).unwrap();
    args.tag = Tag::new(tag.to_vec()).unwrap();
    args
}

pub fn bytes(value: &impl Encode) -> Vec<u8> {
    xdr::to_bytes(value).unwrap().to_vec()
}

pub const ROOT: ArgOp = nfs4::ArgOp::Putrootfh(());
