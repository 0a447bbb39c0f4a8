//! The change attribute grows with every change, and never goes back.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use bytes::Bytes;
use common::{machine, name, serve_in, serve_with};
use tempfile::TempDir;
use vfs::{FileSystem, SetAttributes, Stability, StateidBasis};

#[tokio::test]
async fn a_thousand_quick_writes_are_a_thousand_states() {
    let served = serve_with(|options| options.sync = false);
    let file = served.create(&machine(), &served.root().await, "file").await.unwrap();
    let mut last = served.fs.getattr(&machine(), &file).await.unwrap().change;
    for number in 0..1000_u64 {
        let data = Bytes::from_static(b"x");
        let done = served
            .fs
            .write(&machine(), &file, StateidBasis::Anonymous, number % 3, data, Stability::Unstable)
            .await
            .unwrap();
        assert_eq!(done.wcc.before.unwrap().change, last, "as it was given before");
        let after = done.wcc.after.unwrap().change;
        assert!(after > last, "write {number}: {after} after {last}");
        last = after;
    }
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap().change, last);
}

async fn grows_across_restarts(home: TempDir) {
    let mut served = serve_in(home, |options| options.sync = false);
    let file = served.create(&machine(), &served.root().await, "file").await.unwrap();
    let mut last = served.fs.getattr(&machine(), &file).await.unwrap().change;
    for round in 0..5 {
        for write in 0..20 {
            served.write(&machine(), &file, write, b"x").await.unwrap();
            let change = served.fs.getattr(&machine(), &file).await.unwrap().change;
            assert!(change > last, "write {write} of round {round}: {change} after {last}");
            last = change;
        }
        served = served.restarted();
        let change = served.fs.getattr(&machine(), &file).await.unwrap().change;
        assert!(change >= last, "after restart {round}: {change} after {last}");
        last = change;
    }
}

#[tokio::test]
async fn a_restart_does_not_turn_it_back() {
    grows_across_restarts(TempDir::new().unwrap()).await;
}

#[tokio::test]
async fn a_restart_does_not_turn_it_back_in_memory() {
    let Ok(home) = TempDir::new_in("/dev/shm") else { return };
    grows_across_restarts(home).await;
}

#[tokio::test]
async fn every_kind_of_change_is_one() {
    let served = serve_with(|options| options.sync = false);
    let root = served.root().await;
    let mut last = served.fs.getattr(&machine(), &root).await.unwrap().change;
    let mut grew = |what: &str, change: u64| {
        assert!(change > last, "{what}: {change} after {last}");
        last = change;
    };
    for round in 0..50 {
        let file = served.create(&machine(), &root, "a").await.unwrap();
        grew("create", served.fs.getattr(&machine(), &root).await.unwrap().change);
        let before = served.fs.getattr(&machine(), &file).await.unwrap().change;
        let linked = served.fs.link(&machine(), &file, &root, &name("b")).await.unwrap();
        grew("link", linked.directory.after.unwrap().change);
        assert!(linked.node.attributes.unwrap().change > before, "the file that got a name");
        let moved =
            served.fs.rename(&machine(), &root, &name("a"), &root, &name(format!("c{round}"))).await.unwrap();
        grew("rename", moved.to.after.unwrap().change);
        let before = served.fs.getattr(&machine(), &file).await.unwrap().change;
        grew("remove", served.fs.remove(&machine(), &root, &name("b")).await.unwrap().after.unwrap().change);
        assert!(
            served.fs.getattr(&machine(), &file).await.unwrap().change > before,
            "the file that lost one"
        );
        let set = SetAttributes { mode: Some(0o700 + round % 8), ..SetAttributes::default() };
        let set = served.fs.setattr(&machine(), &root, &set, None).await.unwrap();
        grew("setattr", set.after.unwrap().change);
    }
}
