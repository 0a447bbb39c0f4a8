//! A proxy of several origins: one name space, origins that are away, that come and that go, and a restart.
//!
//! Promise: many-origins

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod program;

use std::io::{BufRead, BufReader};
use std::process::ChildStderr;
use std::sync::Arc;
use std::time::Duration;

use client::{Origin, Url};
use program::{Running, Tree, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use vfs::{
    Caller, CreateHow, Handle, Name, OpenRequest, Owner, ReadDir, SetAttributes, Share, StateidBasis, Status,
    Want,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a hit or a call to an origin nearby takes, and shorter than an outage.
const SOON: Duration = Duration::from_secs(20);

/// Origins, and the proxy of them.
struct Site {
    trees: Vec<(&'static str, Tree)>,
    cache: Tree,
}

struct Proxy {
    running: Running,
    messages: BufReader<ChildStderr>,
}

fn me() -> Caller {
    Caller::unix(0, 0, &[])
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Site {
    /// One tree for each path; its file has the path as its contents.
    fn new(paths: &[&'static str]) -> Site {
        let tree = |path: &&'static str| {
            let tree = Tree::new();
            std::fs::write(tree.directory.path().join("served/file"), path).unwrap();
            (*path, tree)
        };
        Site { trees: paths.iter().map(tree).collect(), cache: Tree::new() }
    }

    fn serve(&self, path: &str, address: &str) -> Running {
        self.trees.iter().find(|(of, _)| *of == path).unwrap().1.serve_at(address)
    }

    /// The configuration for these origins.
    fn text(origins: &[(&str, &str)]) -> String {
        let table = |(path, address): &(&str, &str)| {
            format!("[[origin]]\nurl = 'nfs://{address}/export?noresvport'\npath = '{path}'\n")
        };
        let tables: String = origins.iter().map(table).collect();
        format!(
            "min_free = 0\nprefetch = 0\nsecure = false\nroot_squash = false\noffline_after = 1\n{tables}"
        )
    }

    fn proxy(&self, origins: &[(&str, &str)]) -> Proxy {
        let (file, cache) = (self.cache.path("site.toml"), self.cache.path("cache"));
        std::fs::write(&file, Site::text(origins)).unwrap();
        Proxy::of(Running::start(&["proxy", "--config", &file, "--cache", &cache]))
    }

    fn status(&self) -> Value {
        let shown = run(&["status", &self.cache.path("cache"), "--json"]);
        serde_json::from_slice(&shown.stdout).unwrap()
    }

    /// Waits until the status says so.
    async fn until(&self, is_so: impl Fn(&Value) -> bool) {
        let waiting = async {
            while !is_so(&self.status()) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{}", self.status()));
    }

    async fn until_served(&self, paths: &[&str]) {
        let is_served = |status: &Value, path: &&str| status["origins"][*path]["cache"].is_object();
        self.until(|status| paths.iter().all(|path| is_served(status, path))).await;
    }
}

impl Proxy {
    fn of(mut running: Running) -> Proxy {
        let messages = BufReader::new(running.child.stderr.take().unwrap());
        Proxy { running, messages }
    }

    async fn connect(&self, path: &str, version: &str) -> Arc<dyn Origin> {
        let url = format!("nfs://{}{path}?noresvport&vers={version}", self.running.address);
        client::connect(&Url::parse(&url).unwrap()).await.unwrap()
    }

    /// Writes the file and sends SIGHUP. Returns the messages up to the one that contains `last`.
    fn reload(&mut self, site: &Site, text: &str, last: &str) -> String {
        std::fs::write(site.cache.path("site.toml"), text).unwrap();
        kill_process(Pid::from_child(&self.running.child), Signal::HUP).unwrap();
        let mut all = String::new();
        while !all.contains(last) {
            assert!(self.messages.read_line(&mut all).unwrap() > 0, "the process has ended: {all}");
        }
        all
    }
}

fn signal(running: &Running, signal: Signal) {
    kill_process(Pid::from_child(&running.child), signal).unwrap();
}

/// The file of an export, and its contents.
async fn read(client: &Arc<dyn Origin>) -> (Handle, String) {
    let root = client.root(&me()).await.unwrap().handle;
    let file = client.lookup(&me(), &root, &name("file"), Want::None).await.unwrap().node.handle;
    (file, contents(client, &file).await)
}

async fn contents(client: &Arc<dyn Origin>, file: &Handle) -> String {
    let read = client.read(&me(), file, StateidBasis::Anonymous, 0, 100).await.unwrap();
    String::from_utf8(read.data.to_bytes().unwrap().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn several_origins_are_one_name_space() {
    let site = Site::new(&["/a", "/deep/b"]);
    let (a, b) = (site.serve("/a", "127.0.0.1:0"), site.serve("/deep/b", "127.0.0.1:0"));
    let proxy = site.proxy(&[("/a", &a.address), ("/deep/b", &b.address)]);
    site.until_served(&["/a", "/deep/b"]).await;
    let mut handles = Vec::new();
    for version in ["3", "4.1", "4.2"] {
        for path in ["/a", "/deep/b"] {
            let client = proxy.connect(path, version).await;
            let (handle, contents) = read(&client).await;
            assert_eq!(contents, path, "version {version}");
            let fsid = client.getattr(&me(), &handle).await.unwrap().fsid;
            handles.push((version, path, handle, fsid));
            client.shutdown().await;
        }
    }
    for (version, path, _, fsid) in &handles {
        let is_same = |other: &&(&str, &str, Handle, vfs::Fsid)| other.0 == *version && other.3 == *fsid;
        assert_eq!(handles.iter().filter(is_same).count(), 1, "{path} by version {version}: {fsid:?}");
    }
    // The directories above the exports.
    let client = proxy.connect("/", "4.2").await;
    let root = client.root(&me()).await.unwrap().handle;
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 1 << 16,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = client.readdir(&me(), &root, part).await.unwrap();
    let names: Vec<String> = listing.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, ["a", "deep"]);
    let deep = client.lookup(&me(), &root, &name("deep"), Want::None).await.unwrap().node.handle;
    let crossed = client.lookup(&me(), &deep, &name("b"), Want::None).await.unwrap().node.handle;
    let file = client.lookup(&me(), &crossed, &name("file"), Want::None).await.unwrap().node.handle;
    assert_eq!(contents(&client, &file).await, "/deep/b");
    client.shutdown().await;

    // The state of all of them, and of each by itself.
    let status = site.status();
    assert_eq!(status["origin"], "2 origins");
    let calls = |of: &Value| {
        of["upstream"]["READ"]["calls"].as_u64().unwrap_or(0)
            + of["upstream"]["OPEN"]["calls"].as_u64().unwrap_or(0)
    };
    let each = ["/a", "/deep/b"].map(|path| calls(&status["origins"][path]));
    assert!(each.iter().all(|calls| *calls > 0) && calls(&status) == each.iter().sum::<u64>(), "{status}");
    let directory = status["origins"]["/a"]["directory"].as_str().unwrap();
    let listed = run(&["cache", "ls", directory, "/file"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("/file"), "{listed:?}");
    let one: Value = serde_json::from_slice(&run(&["status", directory, "--json"]).stdout).unwrap();
    assert_eq!((&one["role"], &one["exports"][0]), (&"proxy".into(), &"/a".into()));
    let refused = run(&["cache", "ls", &site.cache.path("cache")]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        told.contains("each origin of this proxy has a cache of its own") && told.contains(directory),
        "{told}"
    );

    // Handles outlive the process, and are good at another proxy with the same key.
    drop(proxy);
    let proxy = site.proxy(&[("/deep/b", &b.address), ("/a", &a.address)]);
    site.until_served(&["/a", "/deep/b"]).await;
    let elsewhere = Tree::new();
    let (key, cache) = (site.cache.path("cache/state/handle.key"), elsewhere.path("cache"));
    let (file, more) = (site.cache.path("site.toml"), ["--handle-key", &key, "--cache", &cache]);
    let other = Proxy::of(Running::start(&[&["proxy", "--config", &file], &more[..]].concat()));
    for (version, path, handle, fsid) in handles {
        let client = other.connect(path, version).await;
        assert_eq!(contents(&client, &handle).await, path, "version {version} at another proxy");
        assert_eq!(client.getattr(&me(), &handle).await.unwrap().fsid, fsid, "version {version}");
        client.shutdown().await;
        let client = proxy.connect(path, version).await;
        assert_eq!(contents(&client, &handle).await, path, "version {version}");
        assert_eq!(client.getattr(&me(), &handle).await.unwrap().fsid, fsid, "version {version}");
        client.shutdown().await;
    }
}

/// One origin is not there when the proxy starts, and later does not answer. Its clients wait, and go on as
/// soon as it is there; clients of another notice nothing, on the same connection.
#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_away_does_not_touch_the_others() {
    let site = Site::new(&["/a", "/b"]);
    let (a, b) = (site.serve("/a", "127.0.0.1:0"), site.serve("/b", "127.0.0.1:0"));
    let address = b.address.clone();
    drop(b);
    let proxy = site.proxy(&[("/a", &a.address), ("/b", &address)]);
    for version in ["3", "4.2"] {
        let client = timeout(SOON, proxy.connect("/a", version)).await.unwrap();
        assert_eq!(timeout(SOON, read(&client)).await.unwrap().1, "/a");
        client.shutdown().await;
    }
    let above = proxy.connect("/", "4.2").await;
    let root = above.root(&me()).await.unwrap().handle;
    let early = above.clone();
    let waiting = tokio::spawn(async move {
        let crossed = early.lookup(&me(), &root, &name("b"), Want::None).await.unwrap().node.handle;
        let file = early.lookup(&me(), &crossed, &name("file"), Want::None).await.unwrap().node.handle;
        (crossed, file)
    });
    let crossed = above.lookup(&me(), &root, &name("a"), Want::None).await.unwrap().node.handle;
    let of_a = above.lookup(&me(), &crossed, &name("file"), Want::None).await.unwrap().node.handle;
    assert!(!waiting.is_finished() && site.status()["origins"]["/b"]["awaited_ms"].is_u64());
    let b = site.serve("/b", &address);
    let (root_of_b, of_b) = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(contents(&above, &of_b).await, "/b");

    // More requests than a session has slots, none of which is a hit.
    signal(&b, Signal::STOP);
    let asking: Vec<_> = (0..300)
        .map(|number| {
            let client = above.clone();
            tokio::spawn(async move {
                let absent = name(&format!("absent{number}"));
                client.lookup(&me(), &root_of_b, &absent, Want::None).await.map(drop)
            })
        })
        .collect();
    site.until(|status| status["origins"]["/b"]["link"]["unanswered_ms"].as_u64() > Some(1500)).await;
    for _ in 0..10 {
        let hit = timeout(SOON, contents(&above, &of_a)).await;
        assert_eq!(hit.unwrap(), "/a");
    }
    let shown = run(&["status", &site.cache.path("cache")]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("trouble"), "{shown:?}");
    // A few may have come before it stopped.
    assert!(asking.iter().filter(|asked| !asked.is_finished()).count() > 200);
    signal(&b, Signal::CONT);
    for asked in asking {
        let absent = timeout(PATIENCE, asked).await.unwrap().unwrap();
        assert_eq!(absent.unwrap_err().status, Status::NoEnt);
    }
    above.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn origins_come_and_go_while_the_proxy_runs() {
    let site = Site::new(&["/a", "/b"]);
    let (a, b) = (site.serve("/a", "127.0.0.1:0"), site.serve("/b", "127.0.0.1:0"));
    let (of_a, of_b) = (("/a", a.address.as_str()), ("/b", b.address.as_str()));
    let mut proxy = site.proxy(&[of_a]);
    let client = proxy.connect("/a", "4.2").await;
    let (handle, _) = read(&client).await;
    let request = OpenRequest::new(handle, None, Owner(bytes::Bytes::from_static(b"me")), Share::READ);
    client.open(&me(), &request).await.unwrap();

    let said = proxy.reload(&site, &Site::text(&[of_a, of_b]), "1 change is in force");
    assert!(said.contains("origin /b is new"), "{said}");
    site.until_served(&["/a", "/b"]).await;
    let other = proxy.connect("/b", "3").await;
    assert_eq!(read(&other).await.1, "/b");
    assert_eq!(contents(&client, &handle).await, "/a");

    // Options of one origin, and then its place in the name space.
    let text = Site::text(&[of_a, of_b]);
    let said = proxy.reload(&site, &format!("{text}ro = true\n"), "1 change is in force");
    assert!(said.contains("origin /b ro is true, and was false"), "{said}");
    let root = other.root(&me()).await.unwrap().handle;
    let make = async |client: &Arc<dyn Origin>, root: Handle, text: &str| {
        let (name, set) = (name(text), SetAttributes::default());
        let made = client.create(&me(), &root, &name, CreateHow::Guarded, &set).await;
        made.map(drop).map_err(|error| error.status)
    };
    assert_eq!(make(&other, root, "no").await, Err(Status::Rofs));
    let said = proxy.reload(&site, &Site::text(&[of_a, ("/moved", of_b.1)]), "is not served any more");
    assert!(said.contains("origin /moved is new") && said.contains("origin /b is gone"), "{said}");
    site.until_served(&["/a", "/moved"]).await;
    let moved = proxy.connect("/moved", "3").await;
    assert_eq!(read(&moved).await.1, "/b");

    // What clients hold of an origin that goes is given back, and its handles are stale.
    let opens = || String::from_utf8(run(&["opens", &site.cache.path("cache")]).stdout).unwrap();
    assert!(opens().contains("/file"), "{}", opens());
    let said = proxy.reload(&site, &Site::text(&[("/moved", of_b.1)]), "is not served any more");
    assert!(said.contains("origin /a is gone"), "{said}");
    assert!(!opens().contains("/file"), "{}", opens());
    let stale = client.read(&me(), &handle, StateidBasis::Anonymous, 0, 9).await.unwrap_err();
    assert_eq!(stale.status, Status::Stale);

    // It comes back, with the same handles.
    proxy.reload(&site, &Site::text(&[("/moved", of_b.1), of_a]), "1 change is in force");
    site.until_served(&["/a"]).await;
    assert_eq!(contents(&client, &handle).await, "/a");

    // A file with a mistake changes nothing.
    let wrong = format!(
        "{}path = '/moved'\n",
        Site::text(&[("/moved", of_b.1), ("/x", of_a.1)]).replace("path = '/x'\n", "")
    );
    let said = proxy.reload(&site, &wrong, "stays");
    assert!(said.contains("are both at `/moved`"), "{said}");
    let said = proxy.reload(&site, "origin = 'nfs://127.0.0.1/x'\n", "stays");
    assert!(said.contains("by a restart"), "{said}");
    assert_eq!(contents(&client, &handle).await, "/a");
    for client in [client, other, moved] {
        client.shutdown().await;
    }
    let mut rest = String::new();
    signal(&proxy.running, Signal::TERM);
    std::io::Read::read_to_string(&mut proxy.messages, &mut rest).unwrap();
    assert!(proxy.running.child.wait().unwrap().success(), "{rest}");
}
