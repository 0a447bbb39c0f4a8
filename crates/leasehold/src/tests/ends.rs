//! The clean end of a stack: every counter of what is held or in flight is back at zero, in each layer.
//!
//! A client closes its files and shuts down. Then its cache, its connection and the server hold nothing for
//! it. After the shutdown of a proxy, the proxy's origin holds nothing either. An idle connection keeps a
//! buffer in the account of memory in flight, so that account is read after the last connection has ended.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cache::WriteBehind;
use client::Origin;
use vfs::{
    FileSystem, Lock, LockKind, LockRequest, Locked, Name, Opens, Owner, Stability, StateidBasis, Want,
};

use super::*;

/// A server, and the layer that knows what its clients hold.
struct Served {
    stack: Stack,
    arbiter: Arc<Arbiter>,
}

/// A client of a server, with its cache.
struct Client {
    cache: Arc<Cache>,
    origin: Arc<dyn Origin>,
}

impl Served {
    async fn start(fs: Arc<dyn FileSystem>, kept: &Path) -> Served {
        state::make(kept).unwrap();
        let (stack, arbiter) = start(fs, kept).await;
        Served { stack, arbiter }
    }

    async fn client(&self, vers: &str, directory: &Path, write_behind: Option<WriteBehind>) -> Client {
        let (cache, origin) = connect(self.stack.address(), vers, directory, write_behind).await;
        Client { cache, origin }
    }

    /// Waits until the server holds nothing for any client.
    async fn assert_idle(&self) {
        becomes("what the server holds", &true, || self.arbiter.held().is_empty()).await;
        becomes("clients", &0, || self.stack.front().clients().known).await;
        let load = self.stack.load();
        becomes("connections and bytes in flight", &(0, 0), || (load.connections().0, load.in_flight().0))
            .await;
    }
}

impl Client {
    /// Waits until nothing is held or in flight. The caller has shut the cache down. The layer below has
    /// closed the opens that the cache kept for a while, and the cache does not hear of that.
    async fn assert_idle(&self) {
        let held = || cache::Holdings { opens_below: 0, ..self.cache.held() };
        becomes("the cache", &cache::Holdings::default(), held).await;
        becomes("the origin", &client::Holdings::default(), || self.origin.held()).await;
    }

    async fn end(self) {
        self.cache.shutdown().await;
        self.assert_idle().await;
    }
}

/// Waits until a part of the stack shows these counts.
async fn becomes<T: PartialEq + std::fmt::Debug>(part: &str, wanted: &T, counts: impl Fn() -> T) {
    let end = Instant::now() + Duration::from_secs(20);
    while counts() != *wanted {
        assert!(Instant::now() < end, "{part}: {:?}, not {wanted:?}", counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Uses what can be held: opens, byte-range locks, delayed writes, and the leases that come with them.
async fn work(cache: &Cache) {
    let caller = Bed::caller();
    let root = cache.root(&caller).await.unwrap().handle;
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    for number in 0..4 {
        let opened = make(cache, &format!("file{number}")).await;
        let (by, data) = (StateidBasis::Open(opened.id), Bytes::from(vec![number; 10_000]));
        cache.write(&caller, &opened.handle, by, 0, data, Stability::Unstable).await.unwrap();
        let owner = Owner(Bytes::from_static(b"locker"));
        let lock = Lock { owner: owner.clone(), kind: LockKind::Exclusive, offset: 10, length: 10 };
        let request = LockRequest { lock, wait: false, reclaim: false };
        match cache.lock(&caller, opened.id, &request).await {
            Ok(locked) => assert_eq!(locked, Locked::Granted),
            Err(error) => assert_eq!(error.status, vfs::Status::NotSupp),
        }
        // The close releases the locks of every second file.
        if number % 2 == 0 {
            let _ = cache.unlock(&caller, opened.id, &owner, (10, 10)).await;
        }
        cache.read(&caller, &opened.handle, by, 5_000, 10).await.unwrap();
        cache.close(&caller, opened.id).await.unwrap();
    }
    assert!(cache.lookup(&caller, &root, &name("absent"), Want::Any).await.is_err());
    cache.remove(&caller, &root, &name("file0")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_holds_nothing_after_its_clients_have_ended() {
    for vers in ["3", "4.1", "4.2", "nqnfs"] {
        eprintln!("version {vers}");
        let directory = tempfile::tempdir().unwrap();
        let export = directory.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let kept = directory.path().join("state");
        state::make(&kept).unwrap();
        let server =
            Served::start(serve::open_local(&export, &kept, serve::How::PLAIN).unwrap(), &kept).await;
        let client = server.client(vers, &directory.path().join("cache"), Some(WriteBehind::default())).await;
        work(&client.cache).await;
        assert_ne!(client.origin.held(), client::Holdings::default(), "there is state to give back");
        client.end().await;
        assert_eq!(std::fs::read(export.join("file3")).unwrap(), vec![3; 10_000]);
        server.assert_idle().await;
        server.stack.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_holds_nothing_after_its_clients_and_then_itself_have_ended() {
    for vers in ["3", "4.1", "4.2", "nqnfs"] {
        eprintln!("version {vers}");
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        std::fs::create_dir(place("export")).unwrap();
        state::make(&place("state")).unwrap();
        let local = serve::open_local(&place("export"), &place("state"), serve::How::PLAIN).unwrap();
        let server = Served::start(local, &place("state")).await;
        let upstream = server.client("4.2", &place("proxy"), None).await;
        let proxy = Served::start(upstream.cache.clone(), &place("proxy-state")).await;
        let client = proxy.client(vers, &place("cache"), Some(WriteBehind::default())).await;
        work(&client.cache).await;
        assert_ne!(upstream.origin.held(), client::Holdings::default(), "there is state to give back");
        client.end().await;
        proxy.assert_idle().await;
        // The proxy keeps leases of its origin, and opens for a while. No client has them any more.
        let above = || cache::Holdings { opens_below: 0, leases: 0, ..upstream.cache.held() };
        becomes("the proxy's cache", &cache::Holdings::default(), above).await;
        let Served { stack, arbiter } = proxy;
        stack.stop().await;
        drop(arbiter);
        upstream.assert_idle().await;
        drop(upstream);
        server.assert_idle().await;
        server.stack.stop().await;
    }
}
