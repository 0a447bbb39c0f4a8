//! `leasehold clients`, `opens`, `locks`, `leases` and `revoke`, with clients of our own.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::process::Output;
use std::sync::Arc;

use bytes::Bytes;
use client::{Origin, Url};
use program::{Running, Tree};
use serde_json::Value;
use vfs::{Caller, Lock, LockKind, LockRequest, Locked, Name, OpenRequest, Opened, Owner, Share, Want};

async fn connect(server: &Running) -> Arc<dyn Origin> {
    let url = Url::parse(&format!("{}&vers=4.2", server.url())).unwrap();
    client::connect(&url).await.unwrap()
}

fn root() -> Caller {
    Caller::unix(0, 0, &[])
}

fn owner() -> Owner {
    Owner(Bytes::from_static(b"owner"))
}

async fn open(client: &Arc<dyn Origin>, access: Share) -> Opened {
    let name = Name::new(b"file").unwrap();
    let request = OpenRequest {
        want: Want::Write,
        ..OpenRequest::new(client.root_handle(), Some(name), owner(), access)
    };
    client.open(&root(), &request).await.unwrap()
}

async fn lock(client: &Arc<dyn Origin>, opened: &Opened, kind: LockKind) -> Result<Locked, vfs::Error> {
    let lock = Lock { owner: owner(), kind, offset: 0, length: 10 };
    client.lock(&root(), opened.id, &LockRequest { lock, wait: false, reclaim: false }).await
}

/// The entries that a command prints.
fn entries(arguments: &[&str]) -> Vec<Value> {
    let output = program::run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).unwrap().get("entry").cloned())
        .collect()
}

fn printed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A server and the directory at which it is asked.
async fn who_holds_what(server: &Running, directory: &str) {
    let holder = connect(server).await;
    // Without somebody who hears recalls, a client asks for no delegations.
    let _callbacks = holder.callbacks().unwrap();
    let opened = open(&holder, Share::READ | Share::WRITE).await;
    assert_eq!(lock(&holder, &opened, LockKind::Exclusive).await.unwrap(), Locked::Granted);

    let clients = entries(&["clients", "--json", directory]);
    assert_eq!(clients.len(), 1, "{clients:?}");
    let client = &clients[0];
    assert_eq!((&client["address"], &client["version"]), (&"127.0.0.1".into(), &"4.1+".into()));
    assert_eq!((&client["opens"], &client["courtesy"]), (&1.into(), &false.into()));

    let opens = entries(&["opens", "--json", directory, "/file"]);
    assert_eq!(opens.len(), 1, "{opens:?}");
    assert_eq!((&opens[0]["path"], &opens[0]["access"]), (&"/file".into(), &"read-write".into()));
    assert_eq!((&opens[0]["client"], &opens[0]["export"]), (&client["id"], &"/export".into()));
    assert!(entries(&["opens", "--json", directory, "/other"]).is_empty());
    let locks = entries(&["locks", "--json", directory]);
    assert_eq!((locks.len(), &locks[0]["path"]), (1, &"/file".into()), "{locks:?}");
    let leases = entries(&["leases", "--json", directory, "/file"]);
    assert_eq!((leases.len(), &leases[0]["kind"]), (1, &"write".into()), "{leases:?}");
    assert_eq!(&leases[0]["name"], &client["name"]);
    let text = printed(program::run(&["leases", directory]));
    assert!(text.contains("/export  /file  write  127.0.0.1  "), "{text}");

    // Once it is revoked, another client has the lock at once.
    let id = client["id"].as_str().unwrap();
    let text = printed(program::run(&["revoke", directory, id]));
    assert!(text.starts_with(&format!("revoked: {id}  127.0.0.1")), "{text}");
    assert!(entries(&["opens", "--json", directory]).is_empty());
    let other = connect(server).await;
    let opened = open(&other, Share::READ | Share::WRITE).await;
    assert_eq!(lock(&other, &opened, LockKind::Exclusive).await.unwrap(), Locked::Granted);
    // The revoked client makes itself known again.
    open(&holder, Share::READ).await;
    assert!(entries(&["clients", "--json", directory]).len() >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serve_says_who_holds_what_and_takes_it() {
    let tree = Tree::new();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let serve = Running::start(&[
        "serve",
        &served,
        "--export",
        "/export",
        "--state",
        &state,
        "--delegations",
        "always",
    ]);
    who_holds_what(&serve, &state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_says_who_holds_what_and_takes_it() {
    let tree = Tree::new();
    let serve = tree.serve();
    let proxy = tree.proxy_with(&serve, &["--delegations", "always"]);
    who_holds_what(&proxy, &tree.path("cache")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_listed_with_their_file() {
    let tree = Tree::new();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let serve = Running::start(&[
        "serve",
        &served,
        "--export",
        "/export",
        "--state",
        &state,
        "--delegations",
        "never",
    ]);
    let holder = connect(&serve).await;
    let opened = open(&holder, Share::READ | Share::WRITE).await;
    assert_eq!(lock(&holder, &opened, LockKind::Exclusive).await.unwrap(), Locked::Granted);
    let locks = entries(&["locks", "--json", &state]);
    assert_eq!((locks.len(), &locks[0]["path"]), (1, &"/file".into()), "{locks:?}");
    assert!(entries(&["leases", "--json", &state]).is_empty());
    // By name, too.
    let name = locks[0]["name"].as_str().unwrap().to_owned();
    printed(program::run(&["revoke", &state, &name]));
    assert!(entries(&["locks", "--json", &state]).is_empty());
}

#[test]
fn mistakes_are_named_with_the_way_out() {
    let tree = Tree::new();
    let state = tree.path("state");
    program::fails_with(&program::run(&["clients", &state]), &["nothing runs on", "state directory"]);
    let _serve = tree.serve();
    let output = program::run(&["revoke", &state, "10.9.9.9"]);
    program::fails_with(&output, &["no client", "10.9.9.9", "leasehold clients"]);
}
