//! Clients that are gone: the state that they held must not keep other clients waiting.
//!
//! `serve` runs with so few descriptors that it can keep only some dozens of open files.
//!
//! Promise: courtesy-clients
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Incarnation, Nfs4, Origin as _, Url};
use program::{Running, Tree, run};
use serde_json::Value;
use vfs::{
    Caller, CreateHow, FileSystem, Handle, Leases, Name, OpenRequest, Opened, Opens, Owner, Result,
    SetAttributes, Share, Want,
};

/// Descriptor limit of `serve`: one client cannot have more than 60 files open, each of which may take three
/// descriptors.
const DESCRIPTORS: &str = "716";
const FILES: usize = 60;
/// The shortest lease time that is allowed.
const LEASE: Duration = Duration::from_secs(5);
/// How long the server holds a request while it recalls a lease.
const HELD: Duration = Duration::from_secs(5);

fn serve(tree: &Tree) -> Running {
    let (served, state) = (tree.path("served"), tree.path("state"));
    let lease = LEASE.as_secs().to_string();
    let arguments =
        ["serve", &served, "--export", "/export", "--state", &state, "--lease-time", &lease, "--no-rpcbind"];
    Running::start_limited(&arguments, DESCRIPTORS)
}

fn status(tree: &Tree) -> Value {
    let output = run(&["status", "--json", &tree.path("state")]);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Opens, leases and clients.
fn held(tree: &Tree) -> [u64; 3] {
    let status = status(tree);
    let held = &status["held"]["/export"];
    let count = |name: &str| held[name].as_u64().unwrap();
    let leases = count("read_leases") + count("write_leases") + count("directory_leases");
    [count("opens"), leases, status["clients"]["known"].as_u64().unwrap()]
}

async fn connect(serve: &Running, incarnation: Option<Incarnation>) -> Nfs4 {
    let url = Url::parse(&serve.url()).unwrap();
    let incarnation = incarnation.unwrap_or_else(|| Incarnation::volatile(&url));
    Nfs4::connect_as(&url, incarnation).await.unwrap()
}

async fn create(fs: &Nfs4, root: &Handle, name: &str) -> Result<Opened> {
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let request = OpenRequest {
        create: Some((CreateHow::Guarded, set)),
        want: Want::Any,
        ..OpenRequest::new(
            *root,
            Some(Name::new(name.as_bytes()).unwrap()),
            Owner(Bytes::copy_from_slice(name.as_bytes())),
            Share::READ | Share::WRITE,
        )
    };
    fs.open(&Caller::machine(), &request).await
}

/// Makes files and leaves them open.
async fn fill(fs: &Nfs4, root: &Handle, whose: &str, files: usize) {
    for number in 0..files {
        create(fs, root, &format!("{whose}-{number}")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_without_closing_is_in_nobodys_way_once_the_lease_is_over() {
    let tree = Tree::new();
    let serve = serve(&tree);
    let gone = connect(&serve, None).await;
    let _callbacks = gone.callbacks().unwrap();
    let root = gone.root_handle();
    fill(&gone, &root, "gone", FILES).await;
    // Like a client process that was killed.
    drop(gone);
    let left = Instant::now();
    assert_eq!(held(&tree)[0], FILES as u64);
    let fs = connect(&serve, None).await;
    // More files than a client that holds most of the capacity leaves to others.
    let mut kept = Vec::new();
    for number in 0..FILES / 4 {
        kept.push(create(&fs, &root, &format!("kept-{number}")).await.unwrap());
    }
    for opened in kept {
        fs.close(&Caller::machine(), opened.id).await.unwrap();
    }
    for number in 0..2 * FILES {
        let name = format!("new-{number}");
        let started = Instant::now();
        let opened = create(&fs, &root, &name).await.unwrap();
        if number > 0 {
            assert!(started.elapsed() < HELD, "{name}: {:?}", started.elapsed());
        }
        fs.close(&Caller::machine(), opened.id).await.unwrap();
    }
    assert!(left.elapsed() < LEASE + 2 * HELD + Duration::from_secs(5), "{:?}", left.elapsed());
    assert_eq!(held(&tree), [0, 0, 1], "nothing is left of who is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_from_a_proxy_without_closing_is_in_nobodys_way_at_its_origin() {
    let tree = Tree::new();
    let serve = serve(&tree);
    let lease = LEASE.as_secs().to_string();
    let proxy = tree.proxy_with(&serve, &["--lease-time", &lease, "--no-rpcbind"]);
    let gone = connect(&proxy, None).await;
    let _callbacks = gone.callbacks().unwrap();
    let root = gone.root_handle();
    // The proxy itself holds an open or a lease on the directory, too.
    fill(&gone, &root, "gone", FILES - 2).await;
    drop(gone);
    let left = Instant::now();
    let fs = connect(&proxy, None).await;
    for number in 0..FILES / 2 {
        let opened = create(&fs, &root, &format!("new-{number}")).await.unwrap();
        fs.close(&Caller::machine(), opened.id).await.unwrap();
    }
    // The origin answers DELAY to the proxy, whose lease is valid. The proxy then finds state that its
    // clients need no longer.
    assert!(left.elapsed() < LEASE + 3 * HELD + Duration::from_secs(5), "{:?}", left.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_in_order_leaves_nothing() {
    let tree = Tree::new();
    let serve = serve(&tree);
    let record = tree.path("client.state");
    for round in 0..3 {
        let fs = connect(&serve, None).await;
        fs.keep_record(record.as_ref()).unwrap();
        let _callbacks = fs.callbacks().unwrap();
        let root = fs.root_handle();
        let started = Instant::now();
        fill(&fs, &root, &format!("round-{round}"), FILES).await;
        assert!(started.elapsed() < HELD, "nobody is waited for: {:?}", started.elapsed());
        let [opens, leases, clients] = held(&tree);
        assert_eq!((opens, clients), (FILES as u64, 1));
        assert!(leases > 0);
        fs.leave_nothing();
        fs.shutdown().await;
        assert_eq!(held(&tree), [0, 0, 0]);
    }
}
