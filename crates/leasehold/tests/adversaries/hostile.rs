//! An origin of version 4.2 that lies, behind a proxy and behind a mount. Whatever it lies about, every call
//! ends, honest files are served as usual, and no user gets data of another. The process neither panics nor
//! grows without bound.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::Url;
use protocol::nfs4::{Stateid, Status as Wire4};
use vfs::{Caller, FileSystem, Handle, Name, OpenRequest, Owner, ReadDir, Share, StateidBasis, Status, Want};

use crate::liar::{FILE, HONEST, Liar, Lie, OWNER, SECRET, TWIN};
use crate::program::{Running, Tree, leasehold, path};
use crate::wire::{Wire, rss};

/// The longest that a call may take. A call to an honest origin takes milliseconds.
const BOUND: Duration = Duration::from_secs(20);
/// Replies of one listing that a client takes.
const LISTING_MAX: usize = 100;
const MEMORY_MAX: usize = 256 << 20;
const STRANGER: u32 = 2005;

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("{what} does not end"))
}

/// Waits until a condition holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn user(uid: u32) -> Caller {
    Caller::unix(uid, uid, &[])
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

struct Proxied {
    liar: Liar,
    proxy: Running,
    /// Clients of versions 3 and 4.2.
    clients: Vec<Arc<dyn FileSystem>>,
    _tree: Tree,
}

impl Proxied {
    async fn new() -> Proxied {
        let (liar, tree) = (Liar::start(), Tree::new());
        let proxy =
            Running::start(&["proxy", &liar.url(), "--cache", &tree.path("cache"), "--min-free", "0"]);
        let mut clients: Vec<Arc<dyn FileSystem>> = Vec::new();
        for vers in ["3", "4.2"] {
            let url = format!("{}&vers={vers}", proxy.url());
            clients.push(client::connect(&Url::parse(&url).unwrap()).await.unwrap());
        }
        Proxied { liar, proxy, clients, _tree: tree }
    }

    /// The process has not panicked, is not large, and ends in order.
    async fn end(self) {
        assert!(rss(&self.proxy) < MEMORY_MAX, "{} MiB", rss(&self.proxy) >> 20);
        drop(self.clients);
        let proxy = self.proxy;
        let said = soon("the proxy", tokio::task::spawn_blocking(move || proxy.terminate())).await.unwrap();
        assert!(!said.contains("panicked"), "{said}");
    }
}

async fn find(fs: &dyn FileSystem, caller: &Caller, text: &str) -> vfs::Result<Handle> {
    let root = soon("GETATTR", fs.root(caller)).await?.handle;
    Ok(soon("LOOKUP", fs.lookup(caller, &root, &name(text), Want::None)).await?.node.handle)
}

async fn read(fs: &dyn FileSystem, caller: &Caller, text: &str) -> vfs::Result<Bytes> {
    let file = find(fs, caller, text).await?;
    let read = soon("READ", fs.read(caller, &file, StateidBasis::Anonymous, 0, 4096)).await?;
    Ok(read.data.to_bytes().unwrap())
}

/// The same under an open.
async fn open_and_read(fs: &dyn FileSystem, caller: &Caller, text: &str) -> vfs::Result<Bytes> {
    let root = soon("GETATTR", fs.root(caller)).await?.handle;
    let owner = Owner(Bytes::from_static(b"owner"));
    let request = OpenRequest::new(root, Some(name(text)), owner, Share::READ);
    let opened = soon("OPEN", fs.open(caller, &request)).await?;
    let basis = StateidBasis::Open(opened.id);
    let read = soon("READ", fs.read(caller, &opened.handle, basis, 0, 4096)).await;
    let closed = soon("CLOSE", fs.close(caller, opened.id)).await;
    let read = read?.data.to_bytes().unwrap();
    closed.map(|()| read)
}

/// Reads a directory as a program does: until its end, or until it is long enough.
async fn list(fs: &dyn FileSystem, caller: &Caller, text: &str, plus: bool) -> vfs::Result<()> {
    let directory = match text {
        "" => soon("GETATTR", fs.root(caller)).await?.handle,
        _ => find(fs, caller, text).await?,
    };
    let mut part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 4096,
        plus,
        want_directory_lease: false,
        names_suffice: false,
    };
    for _ in 0..LISTING_MAX {
        let listing = soon("READDIR", fs.readdir(caller, &directory, part)).await?;
        let Some(last) = listing.entries.last().filter(|_| !listing.eof) else { break };
        (part.cookie, part.verifier) = (last.cookie, listing.verifier);
    }
    Ok(())
}

/// Bytes that the origin gave for the file. It may have given fewer than all.
fn is_of_the_file(bytes: &[u8], lie: Lie) -> bool {
    FILE.starts_with(bytes) || (lie == Lie::OtherFile && TWIN.starts_with(bytes))
}

/// Uses what the origin lies about.
async fn be_lied_to(fs: &dyn FileSystem, lie: Lie) {
    let caller = user(STRANGER);
    for round in 0..4 {
        // It may fail, but not tell what no file of this user has.
        if let Ok(bytes) = read(fs, &caller, "file").await {
            assert!(is_of_the_file(&bytes, lie), "{lie:?}: {bytes:?}");
        }
        if let Ok(bytes) = open_and_read(fs, &caller, "file").await {
            assert!(is_of_the_file(&bytes, lie), "{lie:?}: {bytes:?}");
        }
        let _ = read(fs, &caller, "twin").await;
        if let Ok(file) = find(fs, &caller, "file").await {
            let _ = soon("GETATTR", fs.getattr(&caller, &file)).await;
        }
        for directory in ["many", ""] {
            let _ = list(fs, &caller, directory, round % 2 == 0).await;
        }
    }
}

/// The layer serves the honest part, and no user gets data that only another user may read.
async fn be_served(fs: &dyn FileSystem, lie: Lie) {
    for _ in 0..4 {
        assert_eq!(read(fs, &user(STRANGER), "honest").await.as_deref(), Ok(HONEST), "{lie:?}");
        assert_eq!(read(fs, &user(OWNER), "secret").await.as_deref(), Ok(SECRET), "{lie:?}");
        let stolen = read(fs, &user(STRANGER), "secret").await.map_err(|error| error.status);
        assert_eq!(stolen, Err(Status::Access), "{lie:?}");
        let opened = open_and_read(fs, &user(STRANGER), "secret").await;
        assert!(opened.is_err(), "{lie:?}: {opened:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_of_an_origin_that_lies_serves_what_is_honest_to_those_who_may_have_it() {
    for lie in Lie::ALL {
        let proxied = Proxied::new().await;
        proxied.liar.lie(lie);
        let (three, four) = (&*proxied.clients[0], &*proxied.clients[1]);
        be_served(three, lie).await;
        tokio::join!(
            be_lied_to(three, lie),
            be_lied_to(four, lie),
            be_served(three, lie),
            be_served(four, lie)
        );
        assert!(lie == Lie::None || proxied.liar.lies() > 0, "{lie:?} was not told");
        if lie == Lie::RecalledDelegations {
            until("DELEGRETURN", || proxied.liar.delegation().is_none()).await;
        }
        proxied.end().await;
    }
}

/// A delegation that nobody asked for, and callbacks that are not the origin's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_from_elsewhere_or_of_the_unknown_takes_no_delegation_from_a_proxy() {
    let proxied = Proxied::new().await;
    let (liar, four) = (&proxied.liar, &*proxied.clients[1]);
    liar.lie(Lie::Delegations);
    assert_eq!(open_and_read(four, &user(STRANGER), "file").await.as_deref(), Ok(FILE));
    let delegation = liar.delegation().expect("a proxy makes use of a delegation");
    // From another address, and from the address of the origin, but not on its connection.
    for from in [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST] {
        let (header, arguments) = liar.recall_of(delegation);
        liar.unsent();
        let mut wire = Wire::connect(from, &proxied.proxy.address).await;
        assert!(wire.is_refused(&header, arguments).await);
    }
    let unknown = Stateid { seqid: 1, other: [0xee; 12] };
    assert_eq!(soon("CB_RECALL", liar.recall(unknown)).await, Err(Wire4::BadStateid));
    assert_eq!(liar.delegation(), Some(delegation));
    assert_eq!(soon("CB_RECALL", liar.recall(delegation)).await, Ok(()));
    until("DELEGRETURN", || liar.delegation().is_none()).await;
    be_served(four, Lie::Delegations).await;
    proxied.end().await;
}

/// A mount of an origin that lies.
struct Mounted {
    liar: Liar,
    child: Child,
    tree: Tree,
}

fn may_mount() -> bool {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let may = device && rustix::process::geteuid().is_root();
    if !may {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    may
}

impl Mounted {
    fn new() -> Mounted {
        let (liar, tree) = (Liar::start(), Tree::new());
        std::fs::create_dir(tree.path("mount")).unwrap();
        // Other users must reach the mount.
        std::fs::set_permissions(tree.directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let said = std::fs::File::create(tree.path("said")).unwrap();
        let words =
            format!("vers=4.2,noresvport,minfree=0,cache={},log={}", tree.path("cache"), tree.path("log"));
        let url = format!("nfs://{}/export", liar.address);
        let mut child = leasehold(&["mount", "--foreground", &url, &tree.path("mount"), "-o", &words])
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(line.contains(" is mounted on "), "{line:?}");
        Mounted { liar, child, tree }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.tree.directory.path().join("mount").join(name)
    }

    /// The content of a file, or None if it cannot be read.
    fn cat(&self, uid: u32, name: &str) -> Option<Vec<u8>> {
        let output = run(uid, &["cat"], &self.at(name));
        output.status.success().then_some(output.stdout)
    }

    fn be_lied_to(&self, lie: Lie) {
        for _ in 0..4 {
            if let Some(bytes) = self.cat(STRANGER, "file") {
                assert!(is_of_the_file(&bytes, lie), "{lie:?}: {}", bytes.escape_ascii());
            }
            run(STRANGER, &["stat"], &self.at("file"));
            run(STRANGER, &["ls", "-l"], &self.at(""));
            // A listing without end goes on for as long as the program does. All others end.
            let shell =
                if lie == Lie::NoEnd { "ls -f \"$0\" | head -n 2000 > /dev/null" } else { "ls -f \"$0\"" };
            run(STRANGER, &["sh", "-c", shell], &self.at("many"));
        }
    }

    fn be_served(&self, lie: Lie) {
        for _ in 0..4 {
            assert_eq!(self.cat(STRANGER, "honest").as_deref(), Some(HONEST), "{lie:?}");
            assert_eq!(self.cat(OWNER, "secret").as_deref(), Some(SECRET), "{lie:?}");
            assert_eq!(self.cat(STRANGER, "secret"), None, "{lie:?}");
        }
    }

    /// The process is not large, and ends in order.
    fn end(mut self, lie: Lie) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: usize = line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap();
        assert!(kib << 10 < MEMORY_MAX, "{lie:?}: {kib} KiB");
        let began = Instant::now();
        let unmounted = leasehold(&["umount", path(&self.at(""))]).status().unwrap();
        assert!(unmounted.success() && began.elapsed() < BOUND, "{lie:?}: {unmounted}");
        assert!(self.child.wait().unwrap().success(), "{lie:?}");
        for file in ["said", "log"] {
            let said = std::fs::read_to_string(self.tree.path(file)).unwrap_or_default();
            assert!(!said.contains("panicked"), "{lie:?}: {said}");
        }
    }
}

/// Runs a program as a user. It must end by itself, and say less than a pipe holds.
fn run(uid: u32, program: &[&str], at: &Path) -> Output {
    let uid = uid.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).args(program).arg(at);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, began) = (command.spawn().unwrap(), Instant::now());
    // A program that waits for a request without an answer cannot be killed, so nothing waits for it.
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < BOUND, "{program:?} {} hangs", at.display());
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-lq").arg(self.at("")).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_mount_of_an_origin_that_lies_serves_what_is_honest_to_those_who_may_have_it() {
    if !may_mount() {
        return;
    }
    for lie in Lie::ALL {
        let mounted = Mounted::new();
        mounted.liar.lie(lie);
        mounted.be_served(lie);
        std::thread::scope(|scope| {
            scope.spawn(|| mounted.be_lied_to(lie));
            scope.spawn(|| mounted.be_served(lie));
        });
        assert!(lie == Lie::None || mounted.liar.lies() > 0, "{lie:?} was not told");
        mounted.end(lie);
    }
}
