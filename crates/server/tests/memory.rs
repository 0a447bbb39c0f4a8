//! A back end in memory below the whole stack: our clients of each version, with a cache, through the front
//! and the arbiter. The front knows nothing of the back end, and the back end knows nothing of the front.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arbiter::Arbiter;
use bytes::Bytes;
use cache::Cache;
use client::{Origin, Url};
use memory::Memory;
use rpc::{ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash, StateOptions};
use tempfile::TempDir;
use vfs::{
    Caller, CreateHow, FileSystem, FileType, Freshness, Handle, Name, ReadDir, SetAttributes, Stability,
    StateidBasis, Status, Want,
};

/// Each version, and whether it has leases.
const VERSIONS: [(&str, bool); 4] = [("3", false), ("4.1", true), ("4.2", true), ("nqnfs", true)];

/// A server of an empty file system in memory.
struct Served {
    memory: Arc<Memory>,
    server: Server,
    _state: TempDir,
}

async fn serve() -> Served {
    let state = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::default());
    let fs = Arc::new(Arbiter::new(memory.clone()));
    let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
    let export = Export::new(ExportId(1), "/".into(), fs, options);
    let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
    let options = StateOptions { directory: Some(state.path().into()), ..StateOptions::default() };
    let front = Front::with_state(Exports::new(vec![export]).unwrap(), handles, &options).unwrap();
    let listen = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let server = Server::start(listen, front, ReplyCache::open(state.path()).unwrap()).await.unwrap();
    Served { memory, server, _state: state }
}

/// A client with a cache.
struct Mounted {
    origin: Arc<dyn Origin>,
    cache: Arc<Cache>,
    _directory: TempDir,
}

impl Served {
    async fn mount(&self, vers: &str) -> Mounted {
        let url = format!("nfs://{}/?noresvport&vers={vers}", self.server.local_addr());
        let origin = client::connect(&Url::parse(&url).unwrap()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut options = cache::Options::new(directory.path(), "test");
        options.limits.min_free_bytes = 0;
        let cache = Cache::open(origin.clone(), options).await.unwrap();
        Mounted { origin, cache, _directory: directory }
    }
}

impl Mounted {
    /// The calls to the server so far.
    fn calls(&self) -> u64 {
        self.origin.calls().iter().map(|(_, counts)| counts.calls).sum()
    }
}

/// A program that opens what it uses.
fn caller() -> Caller {
    Caller::unix(0, 0, &[]).with_freshness(Freshness::Open)
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

fn mode(bits: u32) -> SetAttributes {
    SetAttributes { mode: Some(bits), ..SetAttributes::default() }
}

async fn find(fs: &dyn FileSystem, path: &str) -> Result<Handle, Status> {
    let mut at = fs.root(&caller()).await.map_err(|error| error.status)?.handle;
    for part in path.split('/') {
        let looked = fs.lookup(&caller(), &at, &name(part), Want::None).await;
        at = looked.map_err(|error| error.status)?.node.handle;
    }
    Ok(at)
}

async fn write(fs: &dyn FileSystem, file: &Handle, offset: u64, data: &[u8]) {
    for (number, part) in data.chunks(1 << 16).enumerate() {
        let (by, at) = (StateidBasis::Anonymous, offset + (number << 16) as u64);
        let part = Bytes::copy_from_slice(part);
        let written = fs.write(&caller(), file, by, at, part.clone(), Stability::Unstable).await.unwrap();
        assert_eq!(written.count as usize, part.len());
    }
    fs.commit(&caller(), file, 0, 0).await.unwrap();
}

async fn read(fs: &dyn FileSystem, file: &Handle) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let at = all.len() as u64;
        let read = fs.read(&caller(), file, StateidBasis::Anonymous, at, 1 << 20).await.unwrap();
        all.extend_from_slice(&read.data.to_bytes().unwrap());
        if read.eof {
            return all;
        }
    }
}

async fn names(fs: &dyn FileSystem, directory: &Handle) -> Vec<Name> {
    let mut names = Vec::new();
    let mut part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 700,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    loop {
        let listing = fs.readdir(&caller(), directory, part).await.unwrap();
        part.cookie = listing.entries.last().map_or(part.cookie, |entry| entry.cookie);
        part.verifier = listing.verifier;
        names.extend(listing.entries.into_iter().map(|entry| entry.name));
        if listing.eof {
            names.sort();
            return names;
        }
    }
}

/// All paths below a directory: of each file its data, its target, or nothing.
async fn tree(fs: &dyn FileSystem, directory: Handle, above: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in names(fs, &directory).await {
        let node = fs.lookup(&caller(), &directory, &name, Want::None).await.unwrap().node;
        let attributes = fs.getattr(&caller(), &node.handle).await.unwrap();
        let path = format!("{above}/{name}");
        let content = match attributes.file_type {
            FileType::Regular => read(fs, &node.handle).await,
            FileType::Symlink => fs.readlink(&caller(), &node.handle).await.unwrap().0.to_vec(),
            _ => Vec::new(),
        };
        if attributes.is_dir() {
            all.extend(Box::pin(tree(fs, node.handle, &path)).await);
        }
        all.insert(path, content);
    }
    all
}

async fn whole(fs: &dyn FileSystem) -> BTreeMap<String, Vec<u8>> {
    let root = fs.root(&caller()).await.unwrap().handle;
    tree(fs, root, "").await
}

/// Makes one of everything, changes it, and removes some.
async fn use_it(fs: &dyn FileSystem) {
    let root = fs.root(&caller()).await.unwrap().handle;
    let set = mode(0o755);
    let dir = fs.mkdir(&caller(), &root, &name("dir"), &set, Want::None).await.unwrap().node.handle;
    for number in 0..100 {
        let file = name(&format!("file-{number}"));
        fs.create(&caller(), &dir, &file, CreateHow::Guarded, &mode(0o644)).await.unwrap();
    }
    let content: Vec<u8> = (0..1_500_000_u32).map(|at| (at % 251) as u8).collect();
    let exclusive = CreateHow::Exclusive([5; 8]);
    let big = fs.create(&caller(), &root, &name("big"), exclusive, &mode(0o600)).await.unwrap();
    let big = big.node.handle;
    write(fs, &big, 0, &content).await;
    write(fs, &big, 1_000, b"changed").await;
    let cut = SetAttributes { size: Some(1_200_000), ..SetAttributes::default() };
    fs.setattr(&caller(), &big, &cut, None).await.unwrap();
    fs.symlink(&caller(), &dir, &name("link"), b"../big", &mode(0o777)).await.unwrap();
    fs.link(&caller(), &big, &dir, &name("twin")).await.unwrap();
    let pipe = FileType::Fifo;
    fs.mknod(&caller(), &dir, &name("pipe"), pipe, vfs::Device::default(), &mode(0o600)).await.unwrap();
    fs.rename(&caller(), &dir, &name("file-0"), &root, &name("moved")).await.unwrap();
    fs.rename(&caller(), &dir, &name("file-1"), &dir, &name("file-2")).await.unwrap();
    fs.remove(&caller(), &dir, &name("file-3")).await.unwrap();
    let full = fs.rmdir(&caller(), &root, &name("dir")).await.unwrap_err();
    assert_eq!(full.status, Status::NotEmpty);
    let taken = fs.create(&caller(), &dir, &name("twin"), CreateHow::Guarded, &set).await.unwrap_err();
    assert_eq!(taken.status, Status::Exist);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_reads_and_writes_it_through_the_cache() {
    for (vers, _) in VERSIONS {
        let served = serve().await;
        let mounted = served.mount(vers).await;
        use_it(&*mounted.cache).await;
        let (here, there) = (whole(&*mounted.cache).await, whole(&*served.memory).await);
        assert_eq!(here.len(), 103, "over {vers}: {:?}", here.keys());
        assert!(here == there, "over {vers}: {:?}\n{:?}", here.keys(), there.keys());
        assert_eq!(here["/big"].len(), 1_200_000);
        assert_eq!(
            (&here["/big"][998..1_009], &here["/dir/twin"]),
            (&b"\xf5\xf6changed\x03\x04"[..], &here["/big"])
        );
        assert_eq!(mounted.origin.nonsense_heard(), 0, "over {vers}");
        mounted.cache.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_file_costs_no_call_under_a_lease_and_shows_changes_of_others() {
    for (vers, leases) in VERSIONS {
        let served = serve().await;
        let (mounted, other) = (served.mount(vers).await, served.mount("3").await);
        let root = other.cache.root(&caller()).await.unwrap().handle;
        let made =
            other.cache.create(&caller(), &root, &name("file"), CreateHow::Guarded, &mode(0o644)).await;
        let written = made.unwrap().node.handle;
        for content in [&b"first"[..], b"second", b"third and longer"] {
            write(&*other.cache, &written, 0, content).await;
            let file = find(&*mounted.cache, "file").await.unwrap();
            assert_eq!(read(&*mounted.cache, &file).await, content, "over {vers}");
        }
        if leases {
            // A file that clients used in conflict gets no lease for a while.
            let quiet =
                other.cache.create(&caller(), &root, &name("quiet"), CreateHow::Guarded, &mode(0o644)).await;
            write(&*other.cache, &quiet.unwrap().node.handle, 0, b"quiet").await;
            let file = find(&*mounted.cache, "quiet").await.unwrap();
            assert_eq!(read(&*mounted.cache, &file).await, b"quiet");
            let before = mounted.calls();
            assert_eq!(read(&*mounted.cache, &file).await, b"quiet");
            assert_eq!(
                mounted.calls(),
                before,
                "over {vers}, the lease of the back end came up to the cache"
            );
        }
        mounted.cache.shutdown().await;
        other.cache.shutdown().await;
    }
}
