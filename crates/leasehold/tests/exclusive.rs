//! `leasehold serve --exclusive`: delegations without descriptors, and clients of our own that hold them.
//!
//! Promise: exclusive-exports
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use client::{Origin, Url};
use parking_lot::Mutex;
use program::{Running, Tree};
use tokio::task::JoinSet;
use vfs::{
    Callback, Caller, FileSystem, Handle, Lease, LeaseKind, Name, OpenRequest, Opened, Opens, Owner, Share,
    Stability, StateidBasis, Want,
};

/// The limit of descriptors of the server.
const DESCRIPTORS: &str = "600";
/// Delegations that one client takes.
const DELEGATIONS: usize = 5000;
/// Limit of memory for each of them in the server, over all its layers.
const BYTES_MAX: usize = 2048;
/// Opens in flight.
const AT_ONCE: usize = 16;

/// A client that returns each lease that is recalled, and remembers its file.
struct Holder {
    origin: Arc<dyn Origin>,
    recalled: Arc<Mutex<HashSet<Handle>>>,
}

impl Holder {
    async fn connect(server: &Running) -> Holder {
        let url = Url::parse(&format!("{}&vers=4.1", server.url())).unwrap();
        let origin = client::connect(&url).await.unwrap();
        let recalled: Arc<Mutex<HashSet<Handle>>> = Arc::default();
        let mut callbacks = origin.callbacks().unwrap();
        let (returning, seen) = (origin.clone(), recalled.clone());
        tokio::spawn(async move {
            while let Some(callback) = callbacks.recv().await {
                if let Callback::Recall(recall) = callback {
                    seen.lock().insert(recall.handle);
                    returning.returned(&Caller::machine(), recall.id).await.unwrap();
                }
            }
        });
        Holder { origin, recalled }
    }

    async fn open(&self, name: &str, access: Share) -> Opened {
        let owner = Owner(Bytes::copy_from_slice(name.as_bytes()));
        let name = Name::new(name.as_bytes()).unwrap();
        let root = self.origin.root_handle();
        let request = OpenRequest { want: Want::Any, ..OpenRequest::new(root, Some(name), owner, access) };
        self.origin.open(&root_user(), &request).await.unwrap()
    }

    /// Opens a file and closes it. The delegation stays.
    async fn delegation(&self, name: &str, access: Share) -> Option<(Handle, Lease)> {
        let opened = self.open(name, access).await;
        self.origin.close(&root_user(), opened.id).await.unwrap();
        opened.lease.map(|lease| (opened.handle, lease))
    }

    fn has_returned(&self, file: &Handle) -> bool {
        self.recalled.lock().contains(file)
    }
}

fn root_user() -> Caller {
    Caller::unix(0, 0, &[])
}

fn exclusive(tree: &Tree, more: &[&str]) -> Running {
    let (served, state) = (tree.path("served"), tree.path("state"));
    let all = ["serve", &served, "--export", "/export", "--state", &state, "--exclusive", "--async"];
    Running::start_limited(&[&all, more].concat(), DESCRIPTORS)
}

fn descriptors_of(server: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count()
}

fn resident_bytes_of(server: &Running) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", server.child.id())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// Takes the delegations of these files, several at a time.
async fn take(holder: &Arc<Holder>, files: std::ops::Range<usize>) {
    let mut opens = JoinSet::new();
    for number in files {
        if opens.len() == AT_ONCE {
            opens.join_next().await.unwrap().unwrap();
        }
        let holder = holder.clone();
        opens.spawn(async move {
            let granted = holder.delegation(&format!("f{number}"), Share::READ).await;
            assert_eq!(granted.map(|(_, lease)| lease.kind), Some(LeaseKind::Read), "file {number}");
        });
    }
    while let Some(open) = opens.join_next().await {
        open.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_takes_far_more_delegations_than_the_server_has_descriptors() {
    let tree = Tree::new();
    for number in 0..DELEGATIONS {
        std::fs::write(tree.path(&format!("served/f{number}")), "").unwrap();
    }
    let server = exclusive(&tree, &[]);
    let holder = Arc::new(Holder::connect(&server).await);
    // After the first part, the cache of descriptors has its full size.
    take(&holder, 0..DELEGATIONS / 2).await;
    let before = resident_bytes_of(&server);
    take(&holder, DELEGATIONS / 2..DELEGATIONS).await;
    let each = resident_bytes_of(&server).saturating_sub(before) / (DELEGATIONS / 2);
    let descriptors = descriptors_of(&server);
    eprintln!("{DELEGATIONS} delegations: {each} bytes each, {descriptors} descriptors");
    assert!(descriptors < 550 && each <= BYTES_MAX, "{each} bytes each, {descriptors} descriptors");
    assert_eq!(holder.recalled.lock().len(), 0, "recalls");
    let listed = program::run(&["leases", "--json", &tree.path("state")]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.lines().filter(|line| line.contains("\"entry\"")).count(), DELEGATIONS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_by_another_client_recalls_the_delegation() {
    let tree = Tree::new();
    for name in ["written", "removed", "renamed", "replaced", "kept"] {
        std::fs::write(tree.path(&format!("served/{name}")), "before").unwrap();
    }
    let server = exclusive(&tree, &[]);
    let (holder, other) = (Holder::connect(&server).await, Holder::connect(&server).await);
    let mut held = Vec::new();
    for name in ["written", "removed", "renamed", "replaced", "kept"] {
        held.push(holder.delegation(name, Share::READ).await.unwrap().0);
    }
    let root = other.origin.root_handle();
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    let opened = other.open("written", Share::READ | Share::WRITE).await;
    let (by, data) = (StateidBasis::Open(opened.id), Bytes::from_static(b"after!"));
    other.origin.write(&root_user(), &opened.handle, by, 0, data, Stability::FileSync).await.unwrap();
    other.origin.remove(&root_user(), &root, &name("removed")).await.unwrap();
    other.origin.rename(&root_user(), &root, &name("renamed"), &root, &name("replaced")).await.unwrap();
    for (file, what) in held[..4].iter().zip(["written", "removed", "renamed", "replaced"]) {
        assert!(holder.has_returned(file), "{what}: the change was made before the return");
    }
    assert!(!holder.has_returned(&held[4]), "nobody has changed it");
    // A reader of the same file recalls nothing from a reader.
    assert!(other.delegation("kept", Share::READ).await.is_some());
    assert!(!holder.has_returned(&held[4]));
    // A process of this machine is not noticed, and its change is seen by the next READ.
    std::fs::write(tree.path("served/kept"), "AFTER!").unwrap();
    let read = other.origin.read(&root_user(), &held[4], StateidBasis::Anonymous, 0, 9).await.unwrap();
    assert_eq!(read.data.to_bytes().unwrap(), "AFTER!");
    assert!(!holder.has_returned(&held[4]));
}

/// Our caches keep an open as long as they have the lease that came with it.
// Promise: exclusive-exports
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_opens_far_more_files_than_the_server_has_descriptors() {
    const FILES: usize = 2000;
    let tree = Tree::new();
    for number in 0..FILES {
        std::fs::write(tree.path(&format!("served/f{number}")), "x").unwrap();
    }
    let server = exclusive(&tree, &[]);
    let url = Url::parse(&format!("{}&vers=4.2", server.url())).unwrap();
    let origin = client::connect(&url).await.unwrap();
    let mut options = cache::Options::new(Path::new(&tree.path("cache")), "test");
    options.limits.min_free_bytes = 0;
    let cache = cache::Cache::open(origin.clone(), options).await.unwrap();
    let root = cache.root(&root_user()).await.unwrap().handle;
    for number in 0..FILES {
        let (name, owner) = (format!("f{number}"), Owner(Bytes::from_static(b"o")));
        let name = Name::new(name.as_bytes()).unwrap();
        let request =
            OpenRequest { want: Want::Any, ..OpenRequest::new(root, Some(name), owner, Share::READ) };
        let opened = cache.open(&root_user(), &request).await;
        let opened = opened.unwrap_or_else(|error| panic!("file {number}: {error}"));
        cache.close(&root_user(), opened.id).await.unwrap();
    }
    assert!(descriptors_of(&server) < DESCRIPTORS.parse().unwrap());
    // None was recalled to make place for another. The root has one, too.
    let listed = program::run(&["leases", "--json", &tree.path("state")]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.lines().filter(|line| line.contains("\"entry\"")).count(), FILES + 1);
    cache.shutdown().await;
}
