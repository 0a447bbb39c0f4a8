//! A front over a temporary directory, and a client of the front.
#![allow(dead_code, reason = "each test file uses its part of it")]

mod calls;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use client::{Nfs3, Url};
use local::LocalFs;
use protocol::Call;
use rpc::{Link, LinkOptions, ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;

/// A server on loopback, with its directories.
pub struct Served {
    pub tree: TempDir,
    pub front: Arc<Front>,
    pub server: Server,
    _state: TempDir,
}

/// Exports a new directory as `/export`. Root stays root.
pub async fn serve(change: impl FnOnce(&mut ExportOptions)) -> Served {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = LocalFs::open(tree.path(), local::Options::new(state.path())).unwrap();
    let mut options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
    change(&mut options);
    let export = Export::new(ExportId(1), "/export".into(), Arc::new(fs), options);
    let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
    let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let server =
        Server::start(options, front.clone(), ReplyCache::open(state.path()).unwrap()).await.unwrap();
    Served { tree, front, server, _state: state }
}

impl Served {
    /// A client for single calls.
    pub fn client(&self) -> Client {
        Client(Link::new(LinkOptions::new(self.server.local_addr())))
    }

    /// A client that mounts `/export`.
    pub async fn mount(&self, options: &str) -> Nfs3 {
        let url = format!("nfs://{}/export?{options}", self.server.local_addr());
        Nfs3::connect(&Url::parse(&url).unwrap()).await.unwrap()
    }
}

/// Makes single calls with AUTH_SYS, as root.
pub struct Client(Link);

impl Client {
    pub async fn call<C: Call>(&self, args: C::Args) -> C::Results {
        calls::call::<C>(&self.0, args).await
    }
}
