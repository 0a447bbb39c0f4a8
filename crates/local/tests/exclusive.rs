//! Leases on a directory that no other process of this machine uses: records without descriptors.
//!
//! Promise: exclusive-exports
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Served, machine, name, serve_with};
use tokio::sync::Mutex;
use vfs::{
    AccessMask, Callback, Callbacks, FileSystem, Handle, Lease, LeaseId, LeaseKind, Leases, OpenRequest,
    Opens, Owner, Share, Want,
};

/// The tests run one at a time, because they count the descriptors of the process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Opens a file and closes it. The lease stays.
async fn lease(served: &Served, file: &Handle, access: Share) -> Option<Lease> {
    let owner = Owner(Bytes::from_static(b"process"));
    let request = OpenRequest { want: Want::Any, ..OpenRequest::new(*file, None, owner, access) };
    let opened = served.fs.open(&machine(), &request).await.unwrap();
    served.fs.close(&machine(), opened.id).await.unwrap();
    opened.lease
}

/// Makes empty files with these numbers.
async fn files(served: &Served, numbers: std::ops::Range<u32>) -> Vec<Handle> {
    let mut files = Vec::new();
    for number in numbers {
        std::fs::write(served.path(number.to_string()), "").unwrap();
        files.push(served.handle(&number.to_string()).await);
    }
    files
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The recalls that were sent and wait for an answer.
async fn recalls(callbacks: &mut Callbacks) -> Vec<LeaseId> {
    let mut recalls = Vec::new();
    while let Ok(Some(callback)) = tokio::time::timeout(Duration::from_millis(300), callbacks.recv()).await {
        match callback {
            Callback::Recall(recall) => recalls.push(recall.id),
            other => panic!("{other:?}"),
        }
    }
    recalls
}

#[tokio::test]
async fn there_are_leases_far_beyond_the_descriptors_and_none_is_recalled() {
    let _alone = ALONE.lock().await;
    let served = serve_with(|options| {
        (options.exclusive, options.sync) = (true, false);
        options.all_descriptors_max = 100;
    });
    let mut callbacks = served.fs.callbacks().unwrap();
    let before = descriptors();
    let files = files(&served, 0..20_000).await;
    for (number, file) in files.iter().enumerate() {
        let lease = lease(&served, file, Share::READ).await;
        assert_eq!(lease.map(|lease| lease.kind), Some(LeaseKind::Write), "file {number}");
    }
    assert!(descriptors() < before + 200, "{} descriptors for {} leases", descriptors(), files.len());
    assert_eq!(recalls(&mut callbacks).await, []);
    // Each is still the same lease, also for a writer.
    let first = lease(&served, &files[0], Share::READ).await.unwrap();
    let again = lease(&served, &files[0], Share::WRITE).await.unwrap();
    assert_eq!((again.id, again.kind), (first.id, LeaseKind::Write));
    assert!(first.id < lease(&served, &files[19_999], Share::READ).await.unwrap().id);
    let directory = served.root().await;
    let delegated =
        served.fs.delegate(&machine(), &directory, AccessMask::LOOKUP).await.unwrap().lease.unwrap();
    assert_eq!(delegated.kind, LeaseKind::Read);
    drop(callbacks);
}

// Promise: recalls-for-capacity
#[tokio::test]
async fn a_full_table_recalls_unused_leases_in_batches_and_nothing_for_those_in_use() {
    let _alone = ALONE.lock().await;
    let served = serve_with(|options| {
        (options.exclusive, options.sync) = (true, false);
        (options.leases_max, options.idle_min) = (320, Duration::from_secs(2));
    });
    let mut callbacks = served.fs.callbacks().unwrap();
    let files = files(&served, 0..600).await;
    let mut granted = Vec::new();
    for file in &files {
        granted.extend(lease(&served, file, Share::READ).await);
    }
    assert_eq!((granted.len(), recalls(&mut callbacks).await), (320, vec![]));
    // All of them are unused for long, except the first.
    tokio::time::sleep(Duration::from_secs(3)).await;
    lease(&served, &files[0], Share::READ).await.unwrap();
    for file in &files[320..] {
        assert_eq!(lease(&served, file, Share::READ).await, None);
    }
    let batch = recalls(&mut callbacks).await;
    let ids: Vec<LeaseId> = granted.iter().map(|lease| lease.id).collect();
    assert_eq!(batch, ids[1..=40], "twice the reserve of 20, and no more until they are back");
    for id in batch {
        served.fs.returned(&machine(), id).await.unwrap();
    }
    for file in &files[320..340] {
        assert!(lease(&served, file, Share::READ).await.is_some());
    }
    assert_eq!(recalls(&mut callbacks).await, [], "the reserve is not touched");
}

#[tokio::test]
async fn processes_of_this_machine_neither_wait_nor_are_noticed() {
    let _alone = ALONE.lock().await;
    let served = serve_with(|options| options.exclusive = true);
    let mut callbacks = served.fs.callbacks().unwrap();
    let file = files(&served, 0..1).await.remove(0);
    let root = served.root().await;
    lease(&served, &file, Share::READ | Share::WRITE).await.unwrap();
    served.fs.delegate(&machine(), &root, AccessMask::LOOKUP).await.unwrap().lease.unwrap();
    std::fs::write(served.path("0"), "theirs").unwrap();
    std::fs::write(served.path("new"), "").unwrap();
    assert_eq!(recalls(&mut callbacks).await, []);
    // A GETATTR and a READ show the change all the same.
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap().size, 6);
    assert_eq!(served.read(&machine(), &file, 0, 9).await.unwrap().0, "theirs");
    // The lease of a removed file ends with it.
    let held = lease(&served, &file, Share::READ).await.unwrap();
    served.fs.remove(&machine(), &root, &name("0")).await.unwrap();
    assert!(served.fs.getattr(&machine(), &file).await.is_err());
    served.fs.returned(&machine(), held.id).await.unwrap();
    assert_eq!(recalls(&mut callbacks).await, []);
}
