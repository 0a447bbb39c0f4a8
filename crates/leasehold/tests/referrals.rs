//! A proxy of an origin that refers to others: its clients see one tree.
//!
//! Promise: followed-referrals

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod program;

use std::sync::Arc;
use std::time::Duration;

use client::{Origin, Url};
use program::{Running, Tree, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use vfs::{Caller, Handle, Name, StateidBasis, Status, Want};

const PATIENCE: Duration = Duration::from_secs(60);
/// A referral has no port.
const NFS_PORT: u16 = 2049;

fn me() -> Caller {
    Caller::unix(0, 0, &[])
}

/// An address of the loopback network for an origin of this process.
fn address(number: u8) -> String {
    format!("127.77.{}.{number}", std::process::id() % 250 + 1)
}

/// A tree with one file, which has its name as its contents. It is served at `/export`, with referrals.
struct Site {
    tree: Tree,
    address: String,
}

impl Site {
    fn new(name: &str, number: u8) -> Site {
        let tree = Tree::new();
        std::fs::write(tree.directory.path().join("served/file"), name).unwrap();
        Site { tree, address: format!("{}:{NFS_PORT}", address(number)) }
    }

    /// Serves it. Each referral is a path below `/export` and the address of the place.
    fn serve(&self, referrals: &[(&str, &str)]) -> Running {
        let served = self.tree.path("served");
        let export = |directory: &str, more: &str| {
            format!("[[export]]\ndirectory = '{directory}'\nsecure = false\nroot_squash = false\n{more}")
        };
        let mut text = export(&served, "path = '/export'\n");
        for (path, host) in referrals {
            let directory = format!("{served}/{path}");
            std::fs::create_dir_all(&directory).unwrap();
            let place = format!("path = '/export/{path}'\nrefer = '/export@{host}'\n");
            text.push_str(&export(&directory, &place));
        }
        let file = self.tree.path("serve.toml");
        std::fs::write(&file, text).unwrap();
        Running::start_at(&["serve", "--config", &file, "--state", &self.tree.path("state")], &self.address)
    }
}

async fn connect(proxy: &Running, version: &str) -> Arc<dyn Origin> {
    client::connect(&Url::parse(&format!("{}&vers={version}", proxy.url())).unwrap()).await.unwrap()
}

async fn find(client: &Arc<dyn Origin>, path: &str) -> vfs::Result<Handle> {
    let mut at = client.root(&me()).await?.handle;
    for name in path.split('/') {
        at = client.lookup(&me(), &at, &Name::new(name.as_bytes()).unwrap(), Want::None).await?.node.handle;
    }
    Ok(at)
}

async fn contents(client: &Arc<dyn Origin>, file: &Handle) -> vfs::Result<String> {
    let read = client.read(&me(), file, StateidBasis::Anonymous, 0, 100).await?;
    Ok(String::from_utf8(read.data.to_bytes().unwrap().to_vec()).unwrap())
}

fn status(cache: &Tree) -> Value {
    serde_json::from_slice(&run(&["status", &cache.path("cache"), "--json"]).stdout).unwrap()
}

async fn until(cache: &Tree, is_so: impl Fn(&Value) -> bool) {
    let waiting = async {
        while !is_so(&status(cache)) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{}", status(cache)));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_one_tree_of_three_servers() {
    let (a, b, c) = (Site::new("a", 1), Site::new("b", 2), Site::new("c", 3));
    let _c = c.serve(&[]);
    let running_b = b.serve(&[("deep/c", &address(3))]);
    // The last one would lead in a circle.
    let origin = a.serve(&[("b", &address(2)), ("circle", &address(1))]);
    let cache = Tree::new();
    let proxy = cache.proxy(&origin);
    let mut handles = Vec::new();
    for version in ["3", "4.2"] {
        let client = connect(&proxy, version).await;
        let mut fsids = Vec::new();
        for (path, wanted) in [("file", "a"), ("b/file", "b"), ("b/deep/c/file", "c")] {
            let file = timeout(PATIENCE, find(&client, path)).await.unwrap().unwrap();
            assert_eq!(contents(&client, &file).await.unwrap(), wanted, "version {version}");
            fsids.push(client.getattr(&me(), &file).await.unwrap().fsid);
            handles.push((version, file, wanted));
        }
        fsids.dedup();
        assert_eq!(fsids.len(), 3, "version {version}: {fsids:?}");
        assert!(timeout(PATIENCE, find(&client, "circle")).await.unwrap().is_err());
        client.shutdown().await;
    }
    let shown = status(&cache);
    assert_eq!(shown["origin"], format!("nfs://{}/export", a.address));
    assert_eq!(shown["origins"]["/export/b"]["referred_by"], shown["origin"]);
    let of_c = &shown["origins"]["/export/b/deep/c"];
    assert_eq!(of_c["referred_by"], format!("nfs://{}/export", address(2)));
    let listed = run(&["cache", "ls", of_c["directory"].as_str().unwrap()]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("file"), "{listed:?}");
    assert!(run(&["cache", "ls", &cache.path("cache")]).status.success());

    // Handles outlive the process.
    drop(proxy);
    let proxy = cache.proxy(&origin);
    for (version, file, wanted) in &handles {
        let client = connect(&proxy, version).await;
        let read = timeout(PATIENCE, contents(&client, file)).await.unwrap();
        assert_eq!(read.unwrap(), *wanted, "version {version}");
        client.shutdown().await;
    }

    // The second one does not refer to the third any more.
    drop(running_b);
    let _b = b.serve(&[]);
    std::fs::write(b.tree.directory.path().join("served/deep/c/file"), "here").unwrap();
    let client = connect(&proxy, "4.2").await;
    let in_b = find(&client, "b/file").await.unwrap();
    timeout(PATIENCE, contents(&client, &in_b)).await.unwrap().unwrap();
    kill_process(Pid::from_child(&proxy.child), Signal::HUP).unwrap();
    until(&cache, |status| status["origins"]["/export/b/deep/c"].is_null()).await;
    let (_, stale, _) = handles[5];
    assert_eq!(contents(&client, &stale).await.unwrap_err().status, Status::Stale);
    let file = find(&client, "b/deep/c/file").await.unwrap();
    assert_eq!(contents(&client, &file).await.unwrap(), "here");
    find(&client, "circle").await.unwrap_err();
    client.shutdown().await;
    let said = proxy.terminate();
    assert!(said.contains("is served at /export already; it is not followed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn referrals_are_handed_on_or_logged_if_told_so() {
    let (a, b) = (Site::new("a", 11), Site::new("b", 12));
    let _b = b.serve(&[]);
    let origin = a.serve(&[("b", &address(12))]);
    let place = format!("nfs://{}/export", address(12));
    for answer in ["pass", "report"] {
        let cache = Tree::new();
        let proxy = cache.proxy_with(&origin, &["--referrals", answer]);
        for version in ["4.2", "3"] {
            let client = connect(&proxy, version).await;
            let refused = timeout(PATIENCE, find(&client, "b")).await.unwrap();
            assert!(refused.is_err(), "{answer} by version {version}");
            client.shutdown().await;
        }
        // A client that mounts the place is sent there.
        let below = format!("nfs://{}/export/b?noresvport&vers=4.2", proxy.address);
        let refused = client::connect(&Url::parse(&below).unwrap()).await.unwrap_err().to_string();
        assert_eq!(refused.contains(&place), answer == "pass", "{answer}: {refused}");
        let said = proxy.terminate();
        assert!(said.contains("that is not followed"), "{answer}: version 3 has no word for it: {said}");
    }
}
