//! The test setting: the complete stack in this process, from a directory over `serve` and the client to
//! the kernel's FUSE. The test runs on its own thread, as a program would.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arbiter::Arbiter;
use cache::Cache;
use client::{Origin, Url};
use local::LocalFs;
use mount::{Mount, Options, Target};
use rpc::{ReplyCache, Server, ServerOptions};
use rustix::fs::FlockOperation;
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use vfs::FileSystem;

/// The NFS versions to test.
pub const VERSIONS: [&str; 2] = ["3", "4.2"];

/// The complete stack, from the origin's directory to the mount.
pub struct Setting {
    mount: Option<Mount>,
    stack: Option<Arc<Cache>>,
    pub origin: Arc<dyn Origin>,
    server: Option<Serving>,
    address: SocketAddr,
    runtime: Runtime,
    url: Url,
    options: Options,
    directory: TempDir,
    /// See [`Setting::counting`].
    kernel_caches: Option<File>,
}

/// The origin's server. It can die like a process, with all its tasks and its kernel state.
struct Serving {
    runtime: Runtime,
    server: Server,
    /// These end with the server's tasks.
    local: Weak<LocalFs>,
    arbiter: Weak<Arbiter>,
    front: Weak<Front>,
}

/// Can this process mount at all?
pub fn may_mount() -> bool {
    let may = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok()
        && rustix::process::geteuid().is_root();
    if !may {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    may
}

impl Setting {
    /// A setting with these URL options.
    pub fn new(options: &str) -> Setting {
        Setting::with(options, |_| {})
    }

    /// A setting whose calls are counted. Another test may drop the caches of this machine's kernel
    /// (`mounts/stress.rs`), which costs calls. While this setting exists, that test does not.
    pub fn counting(options: &str) -> Setting {
        let file = File::create(std::env::temp_dir().join("leasehold-kernel-caches.lock")).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockShared).unwrap();
        let mut setting = Setting::new(options);
        setting.kernel_caches = Some(file);
        setting
    }

    /// A setting with changed mount options.
    pub fn with(options: &str, change: impl FnOnce(&mut Options)) -> Setting {
        let directory = tempfile::tempdir().unwrap();
        for name in ["origin", "state", "cache", "mnt", "record"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = Serving::start(directory.path(), 0);
        let address = server.server.local_addr();
        let url = Url::parse(&format!("nfs://{address}/export?noresvport&{options}")).unwrap();
        let (origin, stack) = runtime.block_on(stack(&url, directory.path()));
        let mut mounting = Options { state: Some(directory.path().join("record")), ..Options::default() };
        change(&mut mounting);
        let mut setting = Setting {
            mount: None,
            stack: Some(stack),
            origin,
            server: Some(server),
            address,
            runtime,
            url,
            options: mounting,
            directory,
            kernel_caches: None,
        };
        setting.mount();
        setting
    }

    /// Removes a file as another client of the server.
    pub fn remove_elsewhere(&self, name: &str) {
        let caller = vfs::Caller::unix(0, 0, &[]);
        let name = vfs::Name::new(name.as_bytes()).unwrap();
        self.runtime.block_on(async {
            let other = client::connect(&self.url).await.unwrap();
            other.remove(&caller, &other.root_handle(), &name).await.unwrap();
        });
    }

    /// Removes a directory of the root with all that is in it, as another client of the server. Leases are
    /// returned first.
    pub fn remove_all_elsewhere(&self, name: &str) {
        let caller = vfs::Caller::unix(0, 0, &[]);
        let named = |name: &[u8]| vfs::Name::new(name).unwrap();
        self.runtime.block_on(async {
            let other = client::connect(&self.url).await.unwrap();
            let (fs, root) = (&other, other.root_handle());
            // From the deepest directory up.
            let mut found = vec![(root, named(name.as_bytes()))];
            let mut directories = Vec::new();
            while let Some((parent, name)) = found.pop() {
                let handle = fs.lookup(&caller, &parent, &name, vfs::Want::None).await.unwrap().node.handle;
                if !fs.getattr(&caller, &handle).await.unwrap().is_dir() {
                    fs.remove(&caller, &parent, &name).await.unwrap();
                    continue;
                }
                let part = vfs::ReadDir {
                    cookie: 0,
                    verifier: [0; 8],
                    bytes: 1 << 16,
                    plus: false,
                    want_directory_lease: false,
                    names_suffice: false,
                };
                let listing = fs.readdir(&caller, &handle, part).await.unwrap();
                found.extend(listing.entries.into_iter().map(|entry| (handle, entry.name)));
                directories.push((parent, name));
            }
            for (parent, name) in directories.into_iter().rev() {
                fs.rmdir(&caller, &parent, &name).await.unwrap();
            }
            fs.shutdown().await;
        });
    }

    /// Mounts.
    pub fn mount(&mut self) {
        let target = Target { allow_other: true, ..Target::new(self.mnt(), "test") };
        let stack = self.stack.clone().unwrap();
        let mount = self.runtime.block_on(Mount::start(stack, target, self.options.clone()));
        self.mount = Some(mount.unwrap());
    }

    /// Unmounts. The stack stays for the next mount.
    pub fn unmount(&mut self) {
        let mount = self.mount.take().unwrap();
        self.runtime.block_on(mount.stop(Duration::from_secs(2)));
    }

    /// Waits until another process has unmounted it.
    pub fn wait_for_the_end(&mut self) {
        let mount = self.mount.take().unwrap();
        let ended = async { tokio::time::timeout(Duration::from_secs(10), mount.ended()).await };
        assert!(self.runtime.block_on(ended).is_ok());
        self.runtime.block_on(mount.stop(Duration::from_secs(1)));
    }

    /// Ends everything in order, after all files were closed. Waits until no layer holds anything or has
    /// anything in flight.
    #[track_caller]
    pub fn end(mut self) {
        let kernel = |stats: mount::Stats| [stats.open, stats.waiting, stats.opening, stats.silly];
        becomes("the mount", &[0; 4], || kernel(self.stats()));
        self.unmount();
        let cache = self.stack.take().unwrap();
        self.runtime.block_on(cache.shutdown());
        // The client closes the opens that the cache kept for a while, and the cache does not hear of that.
        let held = || cache::Holdings { opens_below: 0, ..cache.held() };
        becomes("the cache", &cache::Holdings::default(), held);
        becomes("the origin", &client::Holdings::default(), || self.origin.held());
        let server = self.server.as_ref().unwrap();
        let (arbiter, front) = (server.arbiter.upgrade().unwrap(), server.front.upgrade().unwrap());
        becomes("the server", &(true, 0), || (arbiter.held().is_empty(), front.clients().known));
    }

    /// Unmounts, and mounts with a new stack over the same cache.
    pub fn remount(&mut self) {
        self.unmount();
        // The cache directory is free once the old stack is dropped.
        let old = self.stack.take().unwrap();
        self.runtime.block_on(old.shutdown());
        let gone = Arc::downgrade(&old);
        drop(old);
        super::files::wait_until(|| gone.strong_count() == 0);
        let (origin, stack) = self.runtime.block_on(stack(&self.url, self.directory.path()));
        (self.origin, self.stack) = (origin, Some(stack));
        self.mount();
    }

    /// The mount point.
    pub fn mnt(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// A path below the mount point.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mnt().join(name)
    }

    /// The same path in the server's directory.
    pub fn there(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join("origin").join(name)
    }

    /// The counters of the mount.
    pub fn stats(&self) -> mount::Stats {
        self.mount.as_ref().unwrap().stats()
    }

    /// The calls to the origin so far, by name.
    pub fn calls(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.origin.calls().into_iter().map(|(name, counts)| (name, counts.calls)).collect()
    }

    /// The calls that `work` makes to the origin, and its result.
    pub fn counted<T>(&self, work: impl FnOnce() -> T) -> (Vec<(&'static str, u64)>, T) {
        let before = self.calls();
        let result = work();
        let after = self.calls().into_iter();
        let asked = after.map(|(name, calls)| (name, calls - before.get(name).copied().unwrap_or(0)));
        (asked.filter(|(_, calls)| *calls > 0).collect(), result)
    }

    /// Kills the server.
    pub fn stop_server(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Starts the server again, on the same port.
    pub fn start_server(&mut self) {
        self.server = Some(Serving::start(self.directory.path(), self.address.port()));
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            self.runtime.block_on(mount.stop(Duration::from_secs(1)));
        }
    }
}

impl Serving {
    fn start(directory: &Path, port: u16) -> Serving {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (server, local, arbiter, front) = runtime.block_on(serve(directory, port));
        Serving { runtime, server, local, arbiter, front }
    }

    /// Ends all tasks at once. Otherwise a recall without a possible answer would go on, and keep the
    /// kernel leases of the dead server (fcntl(2), `F_SETLEASE`).
    fn kill(self) {
        drop(self.server);
        self.runtime.shutdown_timeout(Duration::from_secs(10));
        super::files::wait_until(|| self.local.strong_count() == 0);
    }
}

/// The server, and its layers.
type Served = (Server, Weak<LocalFs>, Weak<Arbiter>, Weak<Front>);

async fn serve(directory: &Path, port: u16) -> Served {
    let state = directory.join("state");
    let settings = local::Options { sync: false, crossmnt: false, ..local::Options::new(&state) };
    let fs = Arc::new(LocalFs::open(&directory.join("origin"), settings).unwrap());
    let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
    let local = Arc::downgrade(&fs);
    let arbiter = Arc::new(Arbiter::new(fs));
    let counted = Arc::downgrade(&arbiter);
    let export = Export::new(ExportId::of("test"), "/export".to_owned(), arbiter, options);
    let key = HandleKey::load_or_create(&state.join("handle.key")).unwrap();
    let handles = Handles::open(key, &state).unwrap();
    let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
    let options = ServerOptions { udp: false, ..ServerOptions::new((Ipv4Addr::LOCALHOST, port).into()) };
    for attempt in 0.. {
        match Server::start(options.clone(), front.clone(), ReplyCache::volatile()).await {
            Ok(server) => return (server, local, counted, Arc::downgrade(&front)),
            Err(error) if attempt > 100 => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    unreachable!()
}

async fn stack(url: &Url, directory: &Path) -> (Arc<dyn Origin>, Arc<Cache>) {
    let origin = client::connect(url).await.unwrap();
    let mut options = cache::Options::new(directory.join("cache"), "test");
    options.limits.min_free_bytes = 0;
    options.clock_skew = Duration::ZERO;
    let wanted = &url.options.cache;
    options.timeouts = cache::Timeouts {
        acregmin: wanted.acregmin,
        acregmax: wanted.acregmax,
        acdirmin: wanted.acdirmin,
        acdirmax: wanted.acdirmax,
    };
    // A process of another test may hold a copy of the old stack's lock until exec(2) closes it.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        match Cache::open(origin.clone(), options.clone()).await {
            Ok(cache) => return (origin, cache),
            Err(cache::OpenError::InUse { .. }) if std::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until a part of the stack shows these counts.
#[track_caller]
fn becomes<T: PartialEq + std::fmt::Debug>(part: &str, wanted: &T, counts: impl Fn() -> T) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while counts() != *wanted {
        assert!(std::time::Instant::now() < end, "{part}: {:?}, not {wanted:?}", counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}
