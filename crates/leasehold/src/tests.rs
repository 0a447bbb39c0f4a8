//! Delayed writes through the real protocols: a cache that delays writes, over the client, against `serve`
//! behind a link with a long round trip. The tests look for the data in the exported directory itself.
//!
//! Promise: fsync-and-close
//! Promise: times-of-closed-files

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod ends;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbiter::Arbiter;
use bench::relay::{self, Relay};
use bytes::Bytes;
use cache::{Cache, WriteBehind};
use client::{Origin, Url};
use server::{ExportOptions, Squash};
use vfs::{
    Caller, CreateHow, FileSystem, Freshness, Handle, HolderId, Name, OpenRequest, Opened, Opens, Owner,
    Share, Stability, StateidBasis, Want,
};

use crate::cli::{Network, Users, Version4};
use crate::stack::{self, Keep, Listening, Stack};
use crate::{proxy, serve, state};

const RTT: Duration = Duration::from_millis(10);

struct Bed {
    export: std::path::PathBuf,
    cache: Arc<Cache>,
    origin: Arc<dyn Origin>,
    serve: Stack,
    _relay: Relay,
    _directory: tempfile::TempDir,
}

async fn bed(vers: &str, write_behind: Option<WriteBehind>) -> Bed {
    let directory = tempfile::tempdir().unwrap();
    let (export, kept) = (directory.path().join("export"), directory.path().join("state"));
    std::fs::create_dir(&export).unwrap();
    state::make(&kept).unwrap();
    let local = serve::open_local(&export, &kept, serve::How::PLAIN).unwrap();
    let (serve, _) = start(local, &kept).await;
    let relay = Relay::start(serve.address(), relay::Options::rtt(RTT)).unwrap();
    let (cache, origin) =
        connect(relay.local_addr(), vers, &directory.path().join("cache"), write_behind).await;
    Bed { export, cache, origin, serve, _relay: relay, _directory: directory }
}

/// A server of this file system, with its state in `kept`.
async fn start(fs: Arc<dyn FileSystem>, kept: &Path) -> (Stack, Arc<Arbiter>) {
    let version4 = Version4::default();
    let nqnfs = stack::nqnfs(kept).unwrap();
    let arbiter = stack::arbiter(fs, &version4, nqnfs.recovery(), true);
    let (anonuid, anongid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let open =
        ExportOptions { secure: false, squash: Squash::All, anonuid, anongid, ..ExportOptions::default() };
    let network = Network {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        no_udp: true,
        no_rpcbind: true,
        memory_in_flight: None,
        client_ops_max: None,
        client_bytes_max: None,
        metrics: None,
    };
    let listening =
        Listening { network: &network, tls: None, gss: None, version4: &version4, users: &Users::default() };
    let keep = Keep { state: kept, handle_key: None, replica: None };
    let served = stack::export("delayed", "/export".to_owned(), arbiter.clone(), open);
    let serve = Stack::start(vec![served], keep, nqnfs, listening).await.unwrap();
    (serve, arbiter)
}

/// A cache over a client of the server.
async fn connect(
    server: SocketAddr,
    vers: &str,
    directory: &Path,
    write_behind: Option<WriteBehind>,
) -> (Arc<Cache>, Arc<dyn Origin>) {
    let url = Url::parse(&format!("nfs://{server}/export?noresvport&vers={vers}")).unwrap();
    let origin = client::connect(&url).await.unwrap();
    let mut options = cache::Options { write_behind, ..proxy::cache_options(&url, directory.to_owned()) };
    options.limits.min_free_bytes = 0;
    let cache = proxy::open_cache(origin.clone(), options).await.unwrap();
    (cache, origin)
}

/// Makes a file in the root and opens it.
async fn make(cache: &Cache, name: &str) -> Opened {
    let root = cache.root(&Bed::caller()).await.unwrap().handle;
    let request = OpenRequest {
        handle: root,
        name: Some(Name::new(name.as_bytes()).unwrap()),
        owner: Owner(Bytes::copy_from_slice(name.as_bytes())),
        access: Share::all(),
        deny: Share::empty(),
        create: Some((CreateHow::Guarded, vfs::SetAttributes { mode: Some(0o644), ..Default::default() })),
        want: Want::Any,
        reclaim: false,
        read_first: None,
        want_directory_lease: false,
    };
    cache.open(&Bed::caller(), &request).await.unwrap()
}

impl Bed {
    fn caller() -> Caller {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let caller = Caller::unix(uid, gid, &[]).with_freshness(Freshness::Open);
        Caller { holder: Some(HolderId(1)), ..caller }
    }

    async fn make(&self, name: &str) -> Opened {
        make(&self.cache, name).await
    }

    async fn write(&self, opened: &Opened, offset: u64, data: Bytes, stability: Stability) {
        let by = StateidBasis::Open(opened.id);
        let length = data.len();
        let written =
            self.cache.write(&Bed::caller(), &opened.handle, by, offset, data, stability).await.unwrap();
        assert_eq!(written.count as usize, length);
    }

    async fn read(&self, file: &Handle, count: u32) -> Bytes {
        let read = self.cache.read(&Bed::caller(), file, StateidBasis::Anonymous, 0, count).await.unwrap();
        read.data.to_bytes().unwrap()
    }

    fn calls(&self, name: &str) -> u64 {
        self.origin.calls().iter().find(|(call, _)| *call == name).map_or(0, |(_, counts)| counts.calls)
    }

    async fn end(self) {
        self.cache.shutdown().await;
        self.serve.stop().await;
    }
}

/// Appends the numbers from 1 to 2,000, each with its own WRITE (Badros' "small writes").
async fn small_writes(bed: &Bed) -> (Duration, u64) {
    let start = Instant::now();
    let opened = bed.make("numbers").await;
    let mut expected = Vec::new();
    for number in 1..=2000 {
        let text = number.to_string();
        let data = Bytes::copy_from_slice(text.as_bytes());
        bed.write(&opened, expected.len() as u64, data, Stability::Unstable).await;
        expected.extend_from_slice(text.as_bytes());
    }
    assert_eq!(bed.read(&opened.handle, 10_000).await, expected);
    bed.cache.commit(&Bed::caller(), &opened.handle, 0, 0).await.unwrap();
    let took = start.elapsed();
    assert_eq!(std::fs::read(bed.export.join("numbers")).unwrap(), expected);
    bed.cache.close(&Bed::caller(), opened.id).await.unwrap();
    (took, bed.calls("WRITE") + bed.calls("COMMIT"))
}

async fn synchronous_write(bed: &Bed) -> Duration {
    let opened = bed.make("synchronous").await;
    let start = Instant::now();
    for number in 0..20 {
        bed.write(&opened, number, Bytes::from_static(b"x"), Stability::FileSync).await;
    }
    start.elapsed() / 20
}

async fn many_files(bed: &Bed) -> Duration {
    let start = Instant::now();
    for number in 0..30 {
        let opened = bed.make(&format!("file{number}")).await;
        bed.write(&opened, 0, Bytes::from(vec![number; 10_000]), Stability::Unstable).await;
        bed.cache.close(&Bed::caller(), opened.id).await.unwrap();
    }
    start.elapsed() / 30
}

async fn run(vers: &str) {
    let bed = bed(vers, Some(WriteBehind::default())).await;
    let (took, calls) = small_writes(&bed).await;
    assert_eq!(calls, 1, "version {vers}");
    let synchronous = synchronous_write(&bed).await;
    println!(
        "version {vers}, {RTT:?}: 2,000 small writes in {took:?}, a synchronous one takes {synchronous:?}"
    );
    assert!(took * 20 < synchronous * 2000, "{took:?} for what takes {:?}", synchronous * 2000);
    let (created, written) = (bed.calls("OPEN") + bed.calls("CREATE"), bed.calls("WRITE"));
    let each = many_files(&bed).await;
    let created = bed.calls("OPEN") + bed.calls("CREATE") - created;
    let written = bed.calls("WRITE") + bed.calls("COMMIT") - written;
    println!("a file of 10,000 bytes takes {each:?}");
    // Version 4.2 gives a write delegation with the new file, so its data may wait.
    assert_eq!((created, written), (30, if vers == "3" { 30 } else { 0 }), "version {vers}");
    let large = bed.make("large").await;
    for number in 0..64 {
        bed.write(&large, number << 18, Bytes::from(vec![number as u8; 1 << 18]), Stability::Unstable).await;
    }
    bed.cache.commit(&Bed::caller(), &large.handle, 0, 0).await.unwrap();
    let there = std::fs::read(bed.export.join("large")).unwrap();
    assert!(there.len() == 16 << 20 && there.chunks(1 << 18).enumerate().all(|(n, part)| part[0] == n as u8));
    let export = bed.export.clone();
    let unsent = bed.make("unsent").await;
    bed.write(&unsent, 0, Bytes::from_static(b"sent at the end"), Stability::Unstable).await;
    bed.cache.shutdown().await;
    assert_eq!(std::fs::read(export.join("unsent")).unwrap(), b"sent at the end");
    for number in 0..30 {
        let there = std::fs::read(export.join(format!("file{number}"))).unwrap();
        assert_eq!(there, vec![number; 10_000]);
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_writes_arrive_over_version_3() {
    run("3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_writes_arrive_over_version_4_2() {
    run("4.2").await;
}
