//! A server and its clients: each client is a cache with delayed writes over the NQNFS client.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arbiter::{Arbiter, Delegations};
use bytes::Bytes;
use cache::{Cache, WriteBehind};
use client::{Nqnfs, Url};
use local::LocalFs;
use protocol::nqnfs::Procedure;
use rpc::{ReplyCache, Server, ServerOptions, Service};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;
use tokio::time::timeout;
use vfs::{
    Caller, CreateHow, FileSystem, Freshness, Handle, HolderId, Name, OpenId, OpenRequest, Opens, Owner,
    SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, Want,
};

use super::PATIENCE;

pub struct Served {
    pub tree: TempDir,
    pub server: Server,
    _state: TempDir,
}

impl Served {
    /// Starts a server that grants leases again immediately after a conflict.
    pub async fn start() -> Served {
        Served::behind(|front| front).await
    }

    /// The same, with a service between the network and the front.
    pub async fn behind<S: Service>(put: impl FnOnce(Arc<Front>) -> Arc<S>) -> Served {
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fs = LocalFs::open(tree.path(), local::Options::new(state.path())).unwrap();
        let options = arbiter::Options { delegations: Delegations::Always, ..arbiter::Options::default() };
        let fs = Arc::new(Arbiter::with_options(Arc::new(fs), options));
        let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
        let export = Export::new(ExportId(1), "/export".into(), fs, options);
        let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
        let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
        let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let server =
            Server::start(options, put(front), ReplyCache::open(state.path()).unwrap()).await.unwrap();
        Served { tree, server, _state: state }
    }

    pub async fn client(&self, proto: &str) -> Client {
        self.client_with(proto, |_| {}).await
    }

    pub async fn client_with(&self, proto: &str, set: impl FnOnce(&mut cache::Options)) -> Client {
        let url = format!("nfs://{}/export?vers=nqnfs&proto={proto}", self.server.local_addr());
        let nqnfs = Arc::new(Nqnfs::connect(&Url::parse(&url).unwrap()).await.unwrap());
        let directory = tempfile::tempdir().unwrap();
        let mut options = cache::Options::new(directory.path(), url);
        options.limits.min_free_bytes = 0;
        options.write_behind = Some(WriteBehind::default());
        set(&mut options);
        let cache = Cache::open(nqnfs.clone(), options).await.unwrap();
        let root = cache.root(&me()).await.unwrap().handle;
        Client { nqnfs, cache, root, _directory: directory }
    }
}

/// A cache over a client, as in `leasehold mount`.
pub struct Client {
    pub nqnfs: Arc<Nqnfs>,
    pub cache: Arc<Cache>,
    pub root: Handle,
    _directory: TempDir,
}

/// A new file.
pub struct Made {
    pub handle: Handle,
    pub ctime: Timestamp,
}

pub fn me() -> Caller {
    Caller { holder: Some(HolderId(1)), ..Caller::unix(0, 0, &[]) }.with_freshness(Freshness::Open)
}

pub fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

impl Client {
    pub async fn try_open(&self, file: &str, access: Share, make: bool) -> vfs::Result<(OpenId, Handle)> {
        let empty = SetAttributes { size: Some(0), mode: Some(0o644), ..SetAttributes::default() };
        let request = OpenRequest {
            create: make.then_some((CreateHow::Unchecked, empty)),
            want: Want::Any,
            ..OpenRequest::new(self.root, Some(name(file)), Owner(Bytes::from_static(b"program")), access)
        };
        let opened = timeout(PATIENCE, self.cache.open(&me(), &request)).await.expect("an answer")?;
        Ok((opened.id, opened.handle))
    }

    /// Makes an empty file in a directory.
    pub async fn make_in(&self, directory: &Handle, file: &str) -> Made {
        let empty = SetAttributes { size: Some(0), mode: Some(0o644), ..SetAttributes::default() };
        let request = OpenRequest {
            create: Some((CreateHow::Unchecked, empty)),
            want: Want::Any,
            ..OpenRequest::new(
                *directory,
                Some(name(file)),
                Owner(Bytes::from_static(b"maker")),
                Share::READ | Share::WRITE,
            )
        };
        let opened = timeout(PATIENCE, self.cache.open(&me(), &request)).await.expect("an answer").unwrap();
        assert!(opened.created);
        self.cache.close(&me(), opened.id).await.unwrap();
        Made { handle: opened.handle, ctime: opened.attributes.ctime }
    }

    /// Opens for writing, writes at offset 0, and closes.
    pub async fn write(&self, file: &str, data: &[u8], make: bool) -> Handle {
        let (open, handle) = self.try_open(file, Share::READ | Share::WRITE, make).await.unwrap();
        let data = Bytes::copy_from_slice(data);
        let by = StateidBasis::Open(open);
        let me = me();
        let writing = self.cache.write(&me, &handle, by, 0, data, Stability::Unstable);
        timeout(PATIENCE, writing).await.expect("an answer").unwrap();
        self.cache.close(&me, open).await.unwrap();
        handle
    }

    /// Opens, reads and closes. None if there is no such file.
    pub async fn read(&self, file: &str) -> Option<Vec<u8>> {
        let (open, handle) = match self.try_open(file, Share::READ, false).await {
            Ok(opened) => opened,
            Err(error) => {
                assert_eq!(error.status, Status::NoEnt);
                return None;
            }
        };
        let me = me();
        let reading = self.cache.read(&me, &handle, StateidBasis::Open(open), 0, 1 << 20);
        let read = timeout(PATIENCE, reading).await.expect("an answer").unwrap();
        self.cache.close(&me, open).await.unwrap();
        Some(read.data.to_bytes().unwrap().to_vec())
    }

    pub async fn remove(&self, file: &str) {
        timeout(PATIENCE, self.cache.remove(&me(), &self.root, &name(file)))
            .await
            .expect("an answer")
            .unwrap();
    }

    /// The number of calls of a procedure so far.
    pub fn calls(&self, procedure: Procedure) -> u64 {
        self.nqnfs.counts().calls(procedure)
    }

    /// The number of all calls so far.
    pub fn all_calls(&self) -> u64 {
        Procedure::ALL.iter().map(|procedure| self.calls(*procedure)).sum()
    }
}
