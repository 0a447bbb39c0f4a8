//! Weak cache consistency: the state before an operation is the state after another one.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use common::{machine, name, serve_with};
use vfs::{CreateHow, FileSystem, SetAttributes, Stability, StateidBasis, Wcc, WccAttributes};

/// The changes form one chain: each state before a change is the start, or equals the state after another
/// change, equally often. With a coarse clock, several states may be equal.
fn assert_chain(start: WccAttributes, changes: &[Wcc]) {
    let mut left: HashMap<WccAttributes, i64> = HashMap::from([(start, 1)]);
    for change in changes {
        *left.entry(change.after.unwrap().wcc()).or_default() += 1;
        *left.entry(change.before.unwrap()).or_default() -= 1;
    }
    left.retain(|_, count| *count != 0);
    assert_eq!(left.values().collect::<Vec<_>>(), [&1], "but for the last state, the chain breaks: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_writes_form_a_chain() {
    let served = Arc::new(serve_with(|options| options.sync = false));
    let file = served.create(&machine(), &served.root().await, "file").await.unwrap();
    let start = served.fs.getattr(&machine(), &file).await.unwrap().wcc();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u64 {
        let served = served.clone();
        tasks.spawn(async move {
            let mut changes = Vec::new();
            for round in 0..50_u64 {
                let offset = round * 8 + task;
                changes.push(if task % 4 == 0 {
                    let set =
                        SetAttributes { mode: Some(0o600 + round as u32 % 64), ..SetAttributes::default() };
                    served.fs.setattr(&machine(), &file, &set, None).await.unwrap()
                } else {
                    let data = Bytes::from_static(b"x");
                    let by = StateidBasis::Anonymous;
                    served
                        .fs
                        .write(&machine(), &file, by, offset, data, Stability::Unstable)
                        .await
                        .unwrap()
                        .wcc
                });
            }
            changes
        });
    }
    let mut changes = Vec::new();
    while let Some(more) = tasks.join_next().await {
        changes.extend(more.unwrap());
    }
    assert_chain(start, &changes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_changes_of_directories_form_chains() {
    let served = Arc::new(serve_with(|options| options.sync = false));
    let root = served.root().await;
    let mut directories = Vec::new();
    for directory in ["a", "b"] {
        let made = served
            .fs
            .mkdir(&machine(), &root, &name(directory), &SetAttributes::default(), vfs::Want::None)
            .await
            .unwrap();
        directories.push(made.node.handle);
    }
    let mut starts = Vec::new();
    for directory in &directories {
        starts.push(served.fs.getattr(&machine(), directory).await.unwrap().wcc());
    }
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6 {
        let (served, directories) = (served.clone(), directories.clone());
        tasks.spawn(async move {
            let fs = &served.fs;
            let set = SetAttributes::default();
            let mut changes = [Vec::new(), Vec::new()];
            let (mine, other) = (task % 2, 1 - task % 2);
            for round in 0..25 {
                let (old, new) = (name(format!("{task}-{round}")), name(format!("{task}-{round}-moved")));
                let made =
                    fs.create(&machine(), &directories[mine], &old, CreateHow::Guarded, &set).await.unwrap();
                changes[mine].push(made.directory);
                let link = name(format!("{task}"));
                let linked = fs.link(&machine(), &made.node.handle, &directories[mine], &link).await.unwrap();
                changes[mine].push(linked.directory);
                let moved =
                    fs.rename(&machine(), &directories[mine], &old, &directories[other], &new).await.unwrap();
                changes[mine].push(moved.from);
                changes[other].push(moved.to);
                changes[other].push(fs.remove(&machine(), &directories[other], &new).await.unwrap());
                changes[mine].push(fs.remove(&machine(), &directories[mine], &link).await.unwrap());
            }
            changes
        });
    }
    let mut changes = [Vec::new(), Vec::new()];
    while let Some(more) = tasks.join_next().await {
        for (all, more) in changes.iter_mut().zip(more.unwrap()) {
            all.extend(more);
        }
    }
    for (start, changes) in starts.into_iter().zip(&changes) {
        assert_chain(start, changes);
    }
}
