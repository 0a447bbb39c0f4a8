//! The cache over an NQNFS origin, end to end: two clients, each a cache with delayed writes over our client, over sockets, to
//! our server. What the server was asked is counted.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arbiter::{Arbiter, Delegations};
use bytes::Bytes;
use cache::{Cache, WriteBehind};
use client::{Nqnfs, Url};
use local::LocalFs;
use protocol::nqnfs::Procedure;
use rpc::{ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;
use tokio::time::timeout;
use vfs::{
    By, Caller, CreateHow, FileSystem, Freshness, Handle, HolderId, Name, OpenId, OpenRequest, Owner,
    SetAttributes, Share, Stability, Status, Want,
};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Served {
    tree: TempDir,
    server: Server,
    _state: TempDir,
}

impl Served {
    /// Leases are granted again at once when a file has changed hands.
    async fn start() -> Served {
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fs = LocalFs::open(tree.path(), local::Options::new(state.path())).unwrap();
        let options = arbiter::Options { delegations: Delegations::Always, ..arbiter::Options::default() };
        let fs = Arc::new(Arbiter::with_options(Arc::new(fs), options));
        let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
        let export = Export { id: ExportId(1), path: "/export".into(), fs, options };
        let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
        let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
        let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let server = Server::start(options, front, ReplyCache::open(state.path()).unwrap()).await.unwrap();
        Served { tree, server, _state: state }
    }

    async fn client(&self, proto: &str) -> Client {
        let url = format!("nfs://{}/export?vers=nqnfs&proto={proto}", self.server.local_addr());
        let nqnfs = Arc::new(Nqnfs::connect(&Url::parse(&url).unwrap()).await.unwrap());
        let directory = tempfile::tempdir().unwrap();
        let mut options = cache::Options::new(directory.path(), url);
        options.min_free_bytes = 0;
        options.write_behind = Some(WriteBehind::default());
        let cache = Cache::open(nqnfs.clone(), options).await.unwrap();
        let root = cache.root(&me()).await.unwrap().handle;
        Client { nqnfs, cache, root, _directory: directory }
    }
}

/// A cache over a client, as `leasehold mount` has them.
struct Client {
    nqnfs: Arc<Nqnfs>,
    cache: Arc<Cache>,
    root: Handle,
    _directory: TempDir,
}

fn me() -> Caller {
    Caller { holder: Some(HolderId(1)), ..Caller::unix(0, 0, &[]) }.with_freshness(Freshness::Open)
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

impl Client {
    async fn try_open(&self, file: &str, access: Share, make: bool) -> vfs::Result<(OpenId, Handle)> {
        let empty = SetAttributes { size: Some(0), mode: Some(0o644), ..SetAttributes::default() };
        let request = OpenRequest {
            handle: self.root,
            name: Some(name(file)),
            owner: Owner(Bytes::from_static(b"program")),
            access,
            deny: Share::empty(),
            create: make.then_some((CreateHow::Unchecked, empty)),
            want: Want::Any,
            reclaim: false,
        };
        let opened = timeout(PATIENCE, self.cache.open(&me(), &request)).await.expect("an answer")?;
        Ok((opened.id, opened.handle))
    }

    /// Opens for writing, writes at the beginning, closes.
    async fn write(&self, file: &str, data: &[u8], make: bool) -> Handle {
        let (open, handle) = self.try_open(file, Share::READ | Share::WRITE, make).await.unwrap();
        let data = Bytes::copy_from_slice(data);
        let by = By::Open(open);
        let me = me();
        let writing = self.cache.write(&me, &handle, by, 0, data, Stability::Unstable);
        timeout(PATIENCE, writing).await.expect("an answer").unwrap();
        self.cache.close(&me, open).await.unwrap();
        handle
    }

    /// Opens, reads, closes; nothing if there is no such file.
    async fn read(&self, file: &str) -> Option<Vec<u8>> {
        let (open, handle) = match self.try_open(file, Share::READ, false).await {
            Ok(opened) => opened,
            Err(error) => {
                assert_eq!(error.status, Status::NoEnt);
                return None;
            }
        };
        let me = me();
        let reading = self.cache.read(&me, &handle, By::Open(open), 0, 1 << 20);
        let read = timeout(PATIENCE, reading).await.expect("an answer").unwrap();
        self.cache.close(&me, open).await.unwrap();
        Some(read.data.to_bytes().unwrap().to_vec())
    }

    async fn remove(&self, file: &str) {
        timeout(PATIENCE, self.cache.remove(&me(), &self.root, &name(file)))
            .await
            .expect("an answer")
            .unwrap();
    }

    /// Calls of a kind so far.
    fn calls(&self, procedure: Procedure) -> u64 {
        self.nqnfs.counts().calls(procedure)
    }

    /// Calls of all kinds so far.
    fn all_calls(&self) -> u64 {
        Procedure::ALL.iter().map(|procedure| self.calls(*procedure)).sum()
    }
}

async fn a_delayed_write_waits_for_the_next_reader(proto: &str) {
    let served = Served::start().await;
    let (writer, reader) = (served.client(proto).await, served.client(proto).await);
    for round in 0..20u8 {
        writer.write("file", &[round; 1000], true).await;
    }
    assert_eq!(writer.calls(Procedure::Write), 0, "it is all under a lease");
    let before = writer.all_calls();
    assert_eq!(writer.read("file").await.unwrap(), [19; 1000]);
    assert_eq!(writer.all_calls(), before, "and read back for nothing");
    // The reader evicts it: pushed, vacated, and then read.
    assert_eq!(reader.read("file").await.unwrap(), [19; 1000]);
    assert_eq!((writer.calls(Procedure::Write), writer.calls(Procedure::Vacated)), (1, 1));
    // And back: the reader's lease goes when somebody writes.
    writer.write("file", &[77; 1000], false).await;
    assert_eq!(reader.read("file").await.unwrap(), [77; 1000]);
    assert_eq!(served.tree.path().join("file").metadata().unwrap().len(), 1000);
}

#[tokio::test]
async fn a_delayed_write_waits_for_the_next_reader_over_tcp() {
    a_delayed_write_waits_for_the_next_reader("tcp").await;
}

#[tokio::test]
async fn a_delayed_write_waits_for_the_next_reader_over_udp() {
    a_delayed_write_waits_for_the_next_reader("udp").await;
}

#[tokio::test]
async fn what_is_synced_is_at_the_server_and_the_lease_stays() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    let file = client.write("file", b"synced", true).await;
    // To open the file on the server's machine would be a use that takes the lease back.
    let size = || served.tree.path().join("file").metadata().unwrap().len();
    assert_eq!(size(), 0);
    client.cache.commit(&me(), &file, 0, 0).await.unwrap();
    assert_eq!(size(), 6);
    let (writes, leases) = (client.calls(Procedure::Write), client.calls(Procedure::Getlease));
    assert_eq!((writes, client.calls(Procedure::Vacated)), (1, 0));
    client.write("file", b"SYNCED", false).await;
    assert_eq!((client.calls(Procedure::Write), client.calls(Procedure::Getlease)), (1, leases));
}

/// Section 2: what is deleted or truncated first was never written.
#[tokio::test]
async fn a_delayed_write_of_what_is_deleted_or_truncated_first_is_never_sent() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    for number in 0..10 {
        let file = format!("temporary-{number}");
        client.write(&file, &vec![number; 100_000], true).await;
        client.remove(&file).await;
    }
    assert_eq!((client.calls(Procedure::Write), client.calls(Procedure::Remove)), (0, 10));
    let file = client.write("cut", &vec![1; 100_000], true).await;
    let nothing = SetAttributes { size: Some(0), ..SetAttributes::default() };
    client.cache.setattr(&me(), &file, &nothing, None).await.unwrap();
    client.cache.commit(&me(), &file, 0, 0).await.unwrap();
    assert_eq!(client.calls(Procedure::Write), 0);
    client.write("cut", b"short", false).await;
    client.cache.shutdown().await;
    assert_eq!(client.calls(Procedure::Write), 1);
    assert_eq!(std::fs::read(served.tree.path().join("cut")).unwrap(), b"short");
    assert_eq!(std::fs::read_dir(served.tree.path()).unwrap().count(), 1, "nothing else is left");
}

/// An eviction is not a change: what is cached is good as long as `modifyrev` says so.
#[tokio::test]
async fn after_an_eviction_the_cache_is_held_against_modifyrev() {
    let served = Served::start().await;
    for file in ["same", "other"] {
        std::fs::write(served.tree.path().join(file), [b'a'; 5000]).unwrap();
    }
    // Older than a granule of time stamps is sure to be told apart from.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (reader, writer) = (served.client("tcp").await, served.client("tcp").await);
    for file in ["same", "other"] {
        assert_eq!(reader.read(file).await.unwrap(), [b'a'; 5000]);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    for file in ["same", "other"] {
        assert_eq!(reader.read(file).await.unwrap(), [b'a'; 5000]);
    }
    let reads = reader.calls(Procedure::Read);
    // Opened for writing, and in one case written.
    let (open, _) = writer.try_open("same", Share::READ | Share::WRITE, false).await.unwrap();
    writer.cache.close(&me(), open).await.unwrap();
    writer.write("other", &[b'b'; 5000], false).await;
    assert_eq!(reader.calls(Procedure::Vacated), 2);
    assert_eq!(reader.read("same").await.unwrap(), [b'a'; 5000]);
    assert_eq!(reader.calls(Procedure::Read), reads, "nothing changed, nothing is fetched");
    assert_eq!(reader.read("other").await.unwrap(), [b'b'; 5000]);
    assert_eq!(reader.calls(Procedure::Read), reads + 1);
}

/// What one user has opened and cached is not there for all.
#[tokio::test]
async fn nobody_opens_what_he_may_not() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    let file = client.write("private", b"secret", true).await;
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    client.cache.setattr(&me(), &file, &mode, None).await.unwrap();
    assert_eq!(client.read("private").await.unwrap(), b"secret");
    let other = Caller { holder: Some(HolderId(1)), ..Caller::unix(12_345, 12_345, &[]) };
    let other = other.with_freshness(Freshness::Open);
    for access in [Share::READ, Share::WRITE, Share::READ | Share::WRITE] {
        for by_name in [true, false] {
            let request = OpenRequest {
                handle: if by_name { client.root } else { file },
                name: by_name.then(|| name("private")),
                owner: Owner(Bytes::from_static(b"another")),
                access,
                deny: Share::empty(),
                create: None,
                want: Want::Any,
                reclaim: false,
            };
            let refused = client.cache.open(&other, &request).await.unwrap_err();
            assert_eq!(refused.status, Status::Access);
            // Straight from the client, too, with nothing known above it.
            assert_eq!(client.nqnfs.open(&other, &request).await.unwrap_err().status, Status::Access);
        }
    }
    let read = client.cache.read(&other, &file, By::Anonymous, 0, 100).await;
    assert_eq!(read.unwrap_err().status, Status::Access);
}

/// Two clients in turns at random, each of which would rather keep what it has.
#[tokio::test]
async fn two_clients_see_one_file_system() {
    let served = Served::start().await;
    let clients = [served.client("tcp").await, served.client("udp").await];
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) % bound
    };
    for step in 0..400u32 {
        let (client, file) = (&clients[next(2) as usize], format!("file-{}", next(3)));
        match next(10) {
            0..4 => {
                let read = client.read(&file).await;
                assert_eq!(read.as_ref(), model.get(&file), "step {step}: {file}");
            }
            4..8 => {
                let data = step.to_be_bytes().repeat(1 + next(200) as usize);
                let make = !model.contains_key(&file) || next(2) == 0;
                client.write(&file, &data, make).await;
                let before = model.entry(file).or_default();
                if make {
                    before.clear();
                }
                let kept = before.split_off(data.len().min(before.len()));
                *before = [data, kept].concat();
            }
            8 if model.remove(&file).is_some() => client.remove(&file).await,
            _ => {
                // An fsync of whatever there is.
                if let Ok((open, handle)) = client.try_open(&file, Share::READ | Share::WRITE, false).await {
                    client.cache.commit(&me(), &handle, 0, 0).await.unwrap();
                    client.cache.close(&me(), open).await.unwrap();
                }
            }
        }
    }
    let hits: u64 = clients.iter().map(|client| client.cache.stats().data.hits).sum();
    assert!(hits > 20, "only {hits} reads were answered from a cache");
    for client in &clients {
        client.cache.shutdown().await;
    }
    for (file, data) in &model {
        assert_eq!(&std::fs::read(served.tree.path().join(file)).unwrap(), data, "{file}");
    }
}
