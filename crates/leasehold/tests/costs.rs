//! The v4 columns of the table "What an event may cost at the origin" in docs/reference/costs.md, measured on
//! real processes: `serve`, a `proxy` of it, and our own clients of the proxy. The clients send exactly one
//! call for each event. The calls to the origin are those that `leasehold status` counts.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Origin, Url};
use program::Running;
use serde_json::Value;
use tempfile::TempDir;
use vfs::{
    AccessMask, Caller, CreateHow, FileSystem, Handle, Lock, LockKind, LockRequest, Locked, Name,
    OpenRequest, Opened, Owner, SetAttributes, Share, Stability, StateidBasis, Status,
};

fn start(arguments: &[&str]) -> Running {
    Running::start(&[arguments, &["--no-rpcbind"]].concat())
}

/// The kind of delegation that the origin grants to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    None,
    Read,
    Write,
}

type Calls = BTreeMap<String, u64>;

fn calls<const N: usize>(calls: [(&str, u64); N]) -> Calls {
    calls.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

struct Bench {
    column: Column,
    home: TempDir,
    serve: Running,
    _proxy: Running,
    clients: [Arc<dyn Origin>; 2],
    v3: Arc<dyn FileSystem>,
    root: Handle,
}

/// The user of the file. It may write the file unless the origin must grant at most a read delegation.
fn user() -> Caller {
    Caller::unix(1000, 1000, &[])
}

fn owner(name: &'static str) -> Owner {
    Owner(Bytes::from_static(name.as_bytes()))
}

fn request(root: &Handle, owner: Owner, access: Share) -> OpenRequest {
    OpenRequest::new(*root, Some(Name::new(b"file").unwrap()), owner, access)
}

impl Bench {
    async fn new(column: Column) -> Bench {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = home.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (served, state, cache) = (at("served"), at("serve-state"), at("cache"));
        std::fs::set_permissions(&served, std::fs::Permissions::from_mode(0o777)).unwrap();
        let file = served.join("file");
        std::fs::write(&file, "content").unwrap();
        let mode = if column == Column::Write { 0o666 } else { 0o444 };
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let delegations = if column == Column::None { "never" } else { "always" };
        let serve = start(&[
            "serve",
            &text(&served),
            "--state",
            &text(&state),
            "--export",
            "/export",
            "--delegations",
            delegations,
        ]);
        let origin = format!("nfs://{}/export?noresvport&vers=4.2", serve.address);
        let proxy =
            start(&["proxy", &origin, "--cache", &text(&cache), "--min-free", "0", "--prefetch", "0"]);
        let at_proxy = |vers: &str| {
            Url::parse(&format!("nfs://{}/export?noresvport&vers={vers}", proxy.address)).unwrap()
        };
        let connect = async |vers: &str| client::connect(&at_proxy(vers)).await.unwrap();
        let clients = [connect("4.2").await, connect("4.1").await];
        let v3 = connect("3").await;
        let root = clients[0].root_handle();
        Bench { column, home, serve, _proxy: proxy, clients, v3, root }
    }

    fn status(&self, directory: &str) -> Value {
        let directory = self.home.path().join(directory);
        let output = program::run(&["status", "--json", directory.to_str().unwrap()]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Calls to the origin so far, without those that renew the lease, which concern all files.
    fn asked(&self) -> Calls {
        let status = self.status("cache");
        let of = |(name, of): (&String, &Value)| (name.clone(), of["calls"].as_u64().unwrap());
        let all = status["upstream"].as_object().unwrap().iter().map(of);
        all.filter(|(name, _)| name != "SEQUENCE").collect()
    }

    /// READs of the origin so far, including those piggybacked on OPENs.
    fn reads(&self) -> u64 {
        let status = self.status("cache");
        let of = |count: &Value| count.as_u64().unwrap_or(0);
        of(&status["upstream"]["READ"]["calls"]) + of(&status["cache"]["piggybacked_reads"])
    }

    async fn cost<T>(&self, event: impl Future<Output = T>) -> (T, Calls) {
        let before = self.asked();
        let result = event.await;
        let mut cost = self.asked();
        for (name, count) in &mut cost {
            *count -= before.get(name).copied().unwrap_or(0);
        }
        cost.retain(|_, count| *count > 0);
        (result, cost)
    }

    /// Checks which calls an event costs, by column.
    async fn costs<T, const N: usize, const R: usize, const W: usize>(
        &self,
        what: &str,
        event: impl Future<Output = T>,
        none: [(&str, u64); N],
        read: [(&str, u64); R],
        write: [(&str, u64); W],
    ) -> T {
        let (result, cost) = self.cost(event).await;
        let expected = match self.column {
            Column::None => calls(none),
            Column::Read => calls(read),
            Column::Write => calls(write),
        };
        assert_eq!(cost, expected, "{what}, {:?}", self.column);
        result
    }

    async fn open(&self, client: usize, name: &'static str) -> Opened {
        let fs = &self.clients[client];
        let reads = Share::READ;
        let access = if self.column == Column::Write { reads | Share::WRITE } else { reads };
        fs.open(&user(), &request(&self.root, owner(name), access)).await.unwrap()
    }

    async fn read(&self, client: usize, opened: &Opened) -> Bytes {
        let fs = &self.clients[client];
        let read = fs.read(&user(), &opened.handle, StateidBasis::Open(opened.id), 0, 100).await.unwrap();
        read.data.to_bytes().unwrap()
    }

    async fn close(&self, client: usize, opened: &Opened) {
        self.clients[client].close(&user(), opened.id).await.unwrap();
    }

    /// Makes the proxy look at the directory, and waits for the timestamp granularity. The cache trusts
    /// knowledge about a racy directory only briefly.
    async fn age(&self) {
        const GRANULARITY: Duration = Duration::from_millis(10);
        self.clients[0].getattr(&user(), &self.root).await.unwrap();
        tokio::time::sleep(2 * GRANULARITY).await;
    }

    /// Opens, reads and closes until the file and its directory are nonracy for the cache, and the origin's
    /// open is closed as far as it will be.
    async fn warm(&self) {
        let mut rounds = 0;
        loop {
            let before = self.reads();
            let ((), cost) = self.cost(self.round()).await;
            if self.reads() == before && !cost.contains_key("ACCESS") {
                return;
            }
            rounds += 1;
            assert!(rounds < 100, "it is read again and again");
        }
    }

    async fn round(&self) {
        let opened = self.open(0, "warm").await;
        assert_eq!(self.read(0, &opened).await, "content");
        self.close(0, &opened).await;
        self.settled().await;
    }

    /// Waits until the deferred CLOSE is sent, in the column that has one.
    async fn settled(&self) {
        let open = |calls: &Calls| {
            let of = |name: &str| calls.get(name).copied().unwrap_or(0);
            self.column == Column::None && of("CLOSE") < of("OPEN")
        };
        let waiting = async {
            while open(&self.asked()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    }
}

/// All rows of the table except the last.
async fn rows(bench: &Bench) {
    let opened = bench.costs("open for read, cached", bench.open(0, "one"), [("OPEN", 1)], [], []).await;
    let (fs, file) = (bench.clients[0].clone(), opened.handle);
    bench.costs("stat of a v4 client", fs.getattr(&user(), &file), [], [], []).await.unwrap();
    let data = bench.costs("read, cached", bench.read(0, &opened), [], [], []).await;
    assert_eq!(data, "content");
    let second = bench.open(1, "two");
    let second = bench.costs("second client opens", second, [("GETATTR", 1)], [], []).await;
    assert_eq!(bench.costs("and reads", bench.read(1, &second), [], [], []).await, "content");
    bench.costs("one of two closes", bench.close(1, &second), [], [], []).await;

    let lock = Lock { owner: owner("locker"), kind: LockKind::Shared, offset: 0, length: 10 };
    let locking = async {
        let request = LockRequest { lock: lock.clone(), wait: false, reclaim: false };
        assert_eq!(fs.lock(&user(), opened.id, &request).await.unwrap(), Locked::Granted);
        fs.unlock(&user(), opened.id, &lock.owner, (0, 10)).await.unwrap();
    };
    let both = [("LOCK", 1), ("LOCKU", 1)];
    bench.costs("byte-range lock", locking, both, both, []).await;
    let look = async { fs.getattr(&user(), &file).await.unwrap() };
    bench.costs("a look after a lock", look, [("GETATTR", 1)], [], []).await;

    // The proxy gives out the same handles in all versions.
    let name = Name::new(b"file").unwrap();
    let (v3, v3_root) = (&bench.v3, bench.v3_root().await);
    v3.access(&user(), &file, AccessMask::READ).await.unwrap();
    bench.costs("GETATTR of v3", v3.getattr(&user(), &file), [("GETATTR", 1)], [], []).await.unwrap();
    bench
        .costs("LOOKUP of v3", v3.lookup(&user(), &v3_root, &name, vfs::Want::None), [("GETATTR", 1)], [], [])
        .await
        .unwrap();
    let user = user();
    let access = v3.access(&user, &file, AccessMask::READ);
    bench.costs("ACCESS of v3", access, [("GETATTR", 1)], [], []).await.unwrap();
    let stranger = Caller::unix(2000, 2000, &[]);
    let access = v3.access(&stranger, &file, AccessMask::READ);
    let one = [("ACCESS", 1)];
    bench.costs("first use by a credential", access, one, one, one).await.unwrap();

    let closing = async {
        bench.close(0, &opened).await;
        bench.settled().await;
    };
    bench.costs("close after read", closing, [("CLOSE", 1)], [], []).await;
}

impl Bench {
    async fn v3_root(&self) -> Handle {
        self.v3.root(&user()).await.unwrap().handle
    }

    /// A client of the origin writes, and a client of the proxy reads.
    async fn remote_write(&self) {
        let opened = self.open(0, "reader").await;
        let url = Url::parse(&format!("nfs://{}/export?noresvport&vers=4.2", self.serve.address)).unwrap();
        let direct = client::connect(&url).await.unwrap();
        let fs = &direct;
        let root = Caller::unix(0, 0, &[]);
        let request = request(&direct.root_handle(), owner("writer"), Share::WRITE);
        let writing = tokio::time::timeout(Duration::from_secs(4), fs.open(&root, &request));
        let writer = writing.await.expect("held for the recall, not told DELAY").unwrap();
        let data = Bytes::from_static(b"CONTENT");
        fs.write(&root, &writer.handle, StateidBasis::Open(writer.id), 0, data, Stability::FileSync)
            .await
            .unwrap();
        fs.close(&root, writer.id).await.unwrap();
        let held = &self.status("serve-state")["held"]["/export"];
        assert_eq!((&held["read_leases"], &held["write_leases"]), (&Value::from(0), &Value::from(0)));
        if self.column != Column::None {
            assert_eq!(self.read(0, &opened).await, "CONTENT", "{:?}: seen at once", self.column);
        }
        let again = self.open(1, "reader").await;
        assert_eq!(self.read(1, &again).await, "CONTENT", "{:?}: seen at the next open", self.column);
    }
}

/// The rows about names. A request for the root of the export has fetched a lease on it; under that lease
/// lookups cost nothing.
async fn names(bench: &Bench) {
    let [one, two] = [0, 1].map(|client| bench.clients[client].clone());
    let (v3, v3_root, root) = (&bench.v3, bench.v3_root().await, bench.root);
    let absent = Name::new(b"absent").unwrap();
    bench.age().await;
    one.access(&user(), &root, AccessMask::LOOKUP).await.unwrap();
    assert_eq!(one.lookup(&user(), &root, &absent, vfs::Want::None).await.unwrap_err().status, Status::NoEnt);
    let held = &bench.status("serve-state")["held"]["/export"]["directory_leases"];
    assert_eq!(held, &Value::from(u64::from(bench.column != Column::None)));

    let getattr = [("GETATTR", 1)];
    let caller = user();
    let look = v3.lookup(&caller, &v3_root, &absent, vfs::Want::None);
    assert!(bench.costs("LOOKUP of v3, absent", look, getattr, [], []).await.is_err());
    let look = v3.getattr(&caller, &v3_root);
    bench.costs("GETATTR of v3, a directory", look, getattr, [], []).await.unwrap();
    let look = two.getattr(&caller, &root);
    bench.costs("GETATTR of v4, a directory", look, getattr, [], []).await.unwrap();
    let look = two.lookup(&caller, &root, &absent, vfs::Want::None);
    assert!(bench.costs("LOOKUP of v4, absent", look, [], [], []).await.is_err());
    let asked = OpenRequest { name: Some(absent.clone()), ..request(&root, owner("opener"), Share::READ) };
    let opening = two.open(&caller, &asked);
    assert!(bench.costs("OPEN, absent", opening, [("OPEN", 1)], [], []).await.is_err());
    // A creation by the proxy's own clients, including what the proxy must find out before.
    let set = SetAttributes { size: Some(0), mode: Some(0o644), ..SetAttributes::default() };
    let new = OpenRequest {
        name: Some(Name::new(b"new").unwrap()),
        create: Some((CreateHow::Unchecked, set)),
        ..request(&root, owner("creator"), Share::READ | Share::WRITE)
    };
    // The client asks for its rights in the same compound.
    let open = [("OPEN", 1)];
    let made = bench.costs("OPEN that creates", two.open(&caller, &new), open, open, open).await.unwrap();
    assert!(made.created);
    two.close(&caller, made.id).await.unwrap();
    let look = v3.lookup(&caller, &v3_root, &absent, vfs::Want::None);
    assert!(bench.costs("and absent still", look, getattr, [], []).await.is_err());

    // A client of the origin makes the name, and from then on every client sees it.
    let held = bench.home.path().join("served").join("absent");
    let url = Url::parse(&format!("nfs://{}/export?noresvport&vers=4.2", bench.serve.address)).unwrap();
    let direct = client::connect(&url).await.unwrap();
    let name = Name::new(b"absent").unwrap();
    let (making, directory) = (direct.clone(), direct.root_handle());
    let making = making.create(&caller, &directory, &name, CreateHow::Guarded, &set);
    tokio::time::timeout(Duration::from_secs(4), making).await.expect("the recall is answered").unwrap();
    assert!(held.exists());
    v3.lookup(&caller, &v3_root, &absent, vfs::Want::None).await.unwrap();
    if bench.column != Column::None {
        two.lookup(&caller, &root, &absent, vfs::Want::None).await.unwrap();
    }
}

/// A client that never sends ACCESS, as ours. Its first question about a directory brings the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_on_a_directory_needs_no_access() {
    let bench = Bench::new(Column::Read).await;
    let [one, two] = [0, 1].map(|client| bench.clients[client].clone());
    let (root, caller) = (bench.root, user());
    let leases = || bench.status("serve-state")["held"]["/export"]["directory_leases"].clone();
    assert_eq!(leases(), Value::from(0));
    one.getattr(&caller, &root).await.unwrap();
    assert_eq!(leases(), Value::from(1));
    let name = Name::new(b"file").unwrap();
    let (looked, asked) = bench.cost(one.lookup(&caller, &root, &name, vfs::Want::None)).await;
    assert_eq!((looked.is_ok(), asked), (true, calls([("LOOKUP", 1)])));
    assert_eq!(leases(), Value::from(1));
    let name = Name::new(b"c").unwrap();
    let first = bench.cost(one.lookup(&caller, &root, &name, vfs::Want::None)).await;
    assert_eq!(first.1, calls([("LOOKUP", 1)]));
    for fs in [one, two] {
        let request =
            OpenRequest { name: Some(name.clone()), ..request(&root, owner("opener"), Share::READ) };
        let again = async {
            assert_eq!(
                fs.lookup(&caller, &root, &name, vfs::Want::None).await.unwrap_err().status,
                Status::NoEnt
            );
            assert_eq!(fs.open(&caller, &request).await.unwrap_err().status, Status::NoEnt);
        };
        assert_eq!(bench.cost(again).await.1, calls([]));
    }
}

/// The maker of a directory fills it. MKDIR brings the lease on it and shows that it is empty, so each name
/// costs one call. What another client makes in it is seen.
// Promise: directory-leases
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_directory_is_filled_by_one_call_for_each_name() {
    let bench = Bench::new(Column::Read).await;
    let (one, root, caller) = (bench.clients[0].clone(), bench.root, user());
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let set = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    one.lookup(&caller, &root, &name("file"), vfs::Want::None).await.unwrap();
    let (made, asked) = bench.cost(one.mkdir(&caller, &root, &name("new"), &set, vfs::Want::None)).await;
    let new = made.unwrap().node.handle;
    assert_eq!(asked, calls([("CREATE", 1)]));
    for text in ["a", "b", "c"] {
        let (name, set) = (name(text), SetAttributes::default());
        let (looked, asked) = bench.cost(one.lookup(&caller, &new, &name, vfs::Want::None)).await;
        assert_eq!((looked.unwrap_err().status, asked), (Status::NoEnt, calls([])), "{text}");
        let (made, asked) = bench.cost(one.create(&caller, &new, &name, CreateHow::Guarded, &set)).await;
        assert_eq!((made.is_ok(), asked), (true, calls([("OPEN", 1)])), "{text}");
    }
    let url = Url::parse(&format!("nfs://{}/export?noresvport&vers=4.2", bench.serve.address)).unwrap();
    let direct = client::connect(&url).await.unwrap();
    let there = direct.lookup(&caller, &direct.root_handle(), &name("new"), vfs::Want::None).await.unwrap();
    let set = SetAttributes::default();
    direct.create(&caller, &there.node.handle, &name("theirs"), CreateHow::Guarded, &set).await.unwrap();
    one.lookup(&caller, &new, &name("theirs"), vfs::Want::None).await.unwrap();
}

// Promise: directory-leases
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_cost_nothing_under_a_lease_on_their_directory() {
    for column in [Column::None, Column::Read] {
        let bench = Bench::new(column).await;
        names(&bench).await;
    }
}

/// When a client of the proxy revalidates, the proxy revalidates at the origin, whatever its attribute
/// timeouts are. Another client of the origin has just made a change.
// Promise: version-4-opens
// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_of_the_proxy_confirms_is_confirmed_at_the_origin() {
    let bench = Bench::new(Column::None).await;
    let [one, two] = [0, 1].map(|client| bench.clients[client].clone());
    let url = Url::parse(&format!("nfs://{}/export?noresvport&vers=4.2", bench.serve.address)).unwrap();
    let direct = client::connect(&url).await.unwrap();
    let (elsewhere, above) = (direct.clone(), direct.root_handle());
    let (root, caller, machine) = (bench.root, user(), Caller::unix(0, 0, &[]));
    let opens = caller.clone().with_freshness(vfs::Freshness::Open);
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let names = ["a", "b", "c", "d"].map(name);
    bench.age().await;
    for name in &names {
        assert_eq!(
            one.lookup(&caller, &root, name, vfs::Want::None).await.unwrap_err().status,
            Status::NoEnt
        );
    }
    let make = async |name: &Name| {
        let set = SetAttributes::default();
        elsewhere.create(&machine, &above, name, CreateHow::Guarded, &set).await.unwrap();
        elsewhere.getattr(&machine, &above).await.unwrap().change
    };

    // A GETATTR of a directory alone, as kernels send it for opendir(3).
    let now = make(&names[0]).await;
    assert_eq!(one.getattr(&caller, &root).await.unwrap().change, now, "GETATTR");
    // With a request for a delegation, as from a cache that has none.
    let now = make(&names[1]).await;
    let accessed = two.delegate(&caller, &root, AccessMask::all()).await.unwrap().accessed;
    assert_eq!(accessed.attributes.unwrap().change, now, "ACCESS and GET_DIR_DELEGATION");
    // A name whose lookup counts as an open, and the directory's attributes in the same reply.
    let now = make(&names[2]).await;
    let looked = one.lookup(&opens, &root, &names[2], vfs::Want::None).await.unwrap();
    assert_eq!(looked.directory.unwrap().change, now, "LOOKUP");
    // A file that the client does not have open.
    let file = one.lookup(&caller, &root, &name("file"), vfs::Want::None).await.unwrap().node.handle;
    let there = elsewhere.lookup(&machine, &above, &name("file"), vfs::Want::None).await.unwrap().node.handle;
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    elsewhere.setattr(&machine, &there, &set, None).await.unwrap();
    assert_eq!(one.getattr(&opens, &file).await.unwrap().mode, 0o640, "GETATTR that counts as an open");
    // The directory's attributes in the reply to an open are current, or are left out.
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    elsewhere.setattr(&machine, &there, &set, None).await.unwrap();
    let first = bench.open(0, "first").await;
    let before = one.getattr(&caller, &root).await.unwrap().change;
    let now = make(&names[3]).await;
    let shared = bench.open(1, "second").await;
    let told = shared.directory.after.map(|after| after.change);
    assert!(
        now != before && told.is_none_or(|told| told == now),
        "{told:?} is {before}, and now it is {now}"
    );
    bench.close(0, &first).await;
    bench.close(1, &shared).await;
}

/// A lease of the directory vouches for a name, but not for the file. A LOOKUP that counts as an open, as a
/// proxy sends it for its clients of version 3, shows the file as it is at the origin.
// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_under_a_lease_leads_to_a_file_that_is_confirmed() {
    let bench = Bench::new(Column::Write).await;
    let url = Url::parse(&format!("nfs://{}/export?noresvport&vers=4.2", bench.serve.address)).unwrap();
    let direct = client::connect(&url).await.unwrap();
    let (one, root, name) = (&bench.clients[0], bench.root, Name::new(b"file").unwrap());
    let opens = user().with_freshness(vfs::Freshness::Open);
    // A writer keeps the file open, so that the origin delegates the directory alone.
    let share = Share::READ | Share::WRITE;
    let there = direct.open(&user(), &request(&direct.root_handle(), owner("writer"), share)).await.unwrap();
    for _ in 0..3 {
        one.lookup(&user(), &root, &name, vfs::Want::None).await.unwrap();
        one.getattr(&user(), &root).await.unwrap();
    }
    assert_eq!(bench.status("cache")["cache"]["leases_read"], 1, "that of the directory");
    for size in 10..20 {
        let data = Bytes::from(vec![b'x'; size]);
        let by = StateidBasis::Open(there.id);
        direct.write(&user(), &there.handle, by, 0, data, Stability::FileSync).await.unwrap();
        let looked = one.lookup(&opens, &root, &name, vfs::Want::None).await.unwrap();
        assert_eq!(looked.node.attributes.unwrap().size, size as u64);
        let accessed = one.access(&opens, &looked.node.handle, AccessMask::READ | AccessMask::EXTEND);
        assert_eq!(accessed.await.unwrap().attributes.unwrap().size, size as u64);
    }
}

/// If nothing of a file is cached, its first bytes come with the OPEN. A client without opens gets the bytes
/// that it reads. A client that opens a small file to read it gets all of it.
// Promise: first-bytes-with-the-open
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_read_costs_one_call() {
    for column in [Column::None, Column::Read, Column::Write] {
        let bench = Bench::new(column).await;
        let (large, served) = (vec![b'x'; 200_000], bench.home.path().join("served"));
        std::fs::write(served.join("large"), &large).unwrap();
        std::fs::write(served.join("small"), "content").unwrap();
        bench.age().await;
        bench.warm().await;
        let (v3, v3_root, caller) = (&bench.v3, bench.v3_root().await, user());
        let found = v3
            .lookup(&caller, &v3_root, &Name::new(b"large").unwrap(), vfs::Want::None)
            .await
            .unwrap()
            .node
            .handle;
        let one = [("OPEN", 1)];
        let before = bench.reads();
        let reading = v3.read(&caller, &found, StateidBasis::Anonymous, 0, 200_000);
        let read = bench.costs("cold READ of v3", reading, one, one, one).await.unwrap();
        assert!(read.data.to_bytes().unwrap() == large);
        let fs = &bench.clients[0];
        let small = Some(Name::new(b"small").unwrap());
        let request = OpenRequest { name: small, ..request(&bench.root, owner("reader"), Share::READ) };
        // Access rights reported for a state younger than the allowed clock skew do not answer the ACCESS of
        // this open.
        let small = std::fs::metadata(served.join("small")).unwrap().modified().unwrap();
        while small.elapsed().unwrap_or_default() < Duration::from_millis(3100) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let opening = fs.open(&caller, &request);
        let opened = bench.costs("cold open of v4", opening, one, one, one).await.unwrap();
        assert_eq!(bench.reads() - before, 2);
        let read = bench.costs("and its READ", bench.read(0, &opened), [], [], []).await;
        assert_eq!(read, "content");
    }
}

async fn column(column: Column) {
    let bench = Bench::new(column).await;
    bench.warm().await;
    let held = bench.status("serve-state")["held"]["/export"].clone();
    let leases = (held["read_leases"].as_u64().unwrap(), held["write_leases"].as_u64().unwrap());
    let expected = (u64::from(column == Column::Read), u64::from(column == Column::Write));
    assert_eq!(leases, expected, "{column:?}: the origin gives something else");
    rows(&bench).await;
    bench.remote_write().await;
}

// Promise: version-4-opens
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_delegation_events_cost_what_the_table_says() {
    column(Column::None).await;
}

// Promise: delegations-of-the-origin
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_read_delegation_events_cost_what_the_table_says() {
    column(Column::Read).await;
}

// Promise: delegations-of-the-origin
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_write_delegation_events_cost_what_the_table_says() {
    column(Column::Write).await;
}
