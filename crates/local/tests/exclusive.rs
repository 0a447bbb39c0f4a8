//! Leases and opens in a directory that no other process of this machine uses: records without descriptors.
//!
//! Promise: exclusive-exports
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Served, is_root, machine, name, serve_with, user};
use tokio::sync::Mutex;
use vfs::{
    AccessMask, Callback, Callbacks, Caller, CreateHow, FileSystem, Handle, HolderId, Lease, LeaseId,
    LeaseKind, Leases, OpenId, OpenRequest, Opened, Opens, Owner, SetAttributes, Share, Stability,
    StateidBasis, Status, Want,
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

/// Opens a file for reading and writing, as holder 1.
async fn open(served: &Served, caller: &Caller, file: &Handle) -> Result<Opened, Status> {
    let caller = Caller { holder: Some(HolderId(1)), ..caller.clone() };
    let owner = Owner(Bytes::from_static(b"process"));
    let request = OpenRequest::new(*file, None, owner, Share::READ | Share::WRITE);
    served.fs.open(&caller, &request).await.map_err(|error| error.status)
}

async fn read(served: &Served, opened: &Opened) -> Result<Bytes, Status> {
    let by = StateidBasis::Open(opened.id);
    let read = served.fs.read(&machine(), &opened.handle, by, 0, 100).await;
    read.map(|read| read.data.to_bytes().unwrap()).map_err(|error| error.status)
}

async fn close(served: &Served, open: OpenId) {
    served.fs.close(&machine(), open).await.unwrap();
}

#[tokio::test]
async fn there_are_opens_far_beyond_the_descriptors_and_each_keeps_its_rights() {
    if !is_root() {
        return; // in another process, opens keep their descriptors
    }
    let _alone = ALONE.lock().await;
    let served = serve_with(|options| {
        (options.exclusive, options.sync) = (true, false);
        options.all_descriptors_max = 100;
    });
    let before = descriptors();
    let files = files(&served, 0..3000).await;
    let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    let mut opens = Vec::new();
    for file in &files {
        served.fs.setattr(&machine(), file, &mode(0o666), None).await.unwrap();
        opens.push(open(&served, &user(1000), file).await.unwrap());
        served.fs.setattr(&machine(), file, &mode(0), None).await.unwrap();
    }
    assert!(descriptors() < before + 200, "{} descriptors for {} opens", descriptors(), opens.len());
    assert_eq!(open(&served, &user(1001), &files[0]).await.unwrap_err(), Status::Access);
    for opened in &opens {
        let (by, data) = (StateidBasis::Open(opened.id), Bytes::from_static(b"mine"));
        let caller = user(1000);
        let written = served.fs.write(&caller, &opened.handle, by, 0, data, Stability::Unstable).await;
        assert_eq!(written.unwrap().count, 4);
    }
    assert!(served.fs.free_capacity(&machine()).await);
    for opened in opens {
        assert_eq!(read(&served, &opened).await.unwrap(), "mine");
        close(&served, opened.id).await;
    }
}

#[tokio::test]
async fn an_open_file_that_loses_its_name_takes_descriptors_and_the_last_of_them_are_not_given() {
    if !is_root() {
        return;
    }
    let _alone = ALONE.lock().await;
    let served = serve_with(|options| {
        (options.exclusive, options.sync) = (true, false);
        options.all_descriptors_max = 100;
    });
    let root = served.root().await;
    let mut opens = Vec::new();
    for file in &files(&served, 0..300).await {
        served.write(&machine(), file, 0, b"there").await.unwrap();
        opens.push(open(&served, &machine(), file).await.unwrap());
    }
    // One of two names takes none, whether it is removed or replaced.
    for opened in &opens {
        served.fs.link(&machine(), &opened.handle, &root, &name("link")).await.unwrap();
        served.fs.remove(&machine(), &root, &name("link")).await.unwrap();
    }
    let mut removed = 0;
    let refused = loop {
        let file = name(removed.to_string());
        let gone = if removed % 2 == 0 {
            served.fs.remove(&machine(), &root, &file).await.map(drop)
        } else {
            served.create(&machine(), &root, "new").await.unwrap();
            served.fs.rename(&machine(), &root, &name("new"), &root, &file).await.map(drop)
        };
        match gone {
            Ok(()) => removed += 1,
            Err(error) => break error.status,
        }
    };
    assert!(refused == Status::Delay && (20..100).contains(&removed), "{refused:?} after {removed}");
    assert_eq!(served.fs.getattr(&machine(), &opens[removed].handle).await.unwrap().nlink, 1);
    // Those that have no name are read, and opened again; the next one is removed when one of them is closed.
    for opened in &opens {
        assert_eq!(read(&served, opened).await.unwrap(), "there");
    }
    let again = open(&served, &machine(), &opens[0].handle).await.unwrap();
    assert_eq!(again.id, opens[0].id);
    close(&served, opens[0].id).await;
    assert_eq!(served.fs.getattr(&machine(), &opens[0].handle).await.unwrap_err().status, Status::Stale);
    served.fs.remove(&machine(), &root, &name(removed.to_string())).await.unwrap();
    for opened in &opens[1..] {
        assert_eq!(read(&served, opened).await.unwrap(), "there");
        close(&served, opened.id).await;
    }
}

/// An open file is there until its close, although its names are removed and its node is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_is_there_whatever_loses_its_name() {
    let _alone = ALONE.lock().await;
    let served = std::sync::Arc::new(serve_with(|options| {
        (options.exclusive, options.sync) = (true, false);
        (options.descriptors_max, options.all_descriptors_max) = (16, 400);
    }));
    let root = served.root().await;
    let making = |file: &str| {
        let create = Some((CreateHow::Unchecked, SetAttributes::default()));
        let owner = Owner(Bytes::from_static(b"process"));
        OpenRequest { create, ..OpenRequest::new(root, Some(name(file)), owner, Share::READ | Share::WRITE) }
    };
    let client = |number: u64| {
        let (served, makes) = (served.clone(), ["a", "b", "c"].map(making));
        async move {
            let caller = Caller { holder: Some(HolderId(number)), ..machine() };
            let mut state = number;
            for round in 0..400 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number);
                let (what, at) = ((state >> 33) % 5, (state >> 40) as usize % 3);
                let make = &makes[at];
                let names = [&makes[at], &makes[(at + 1) % 3]].map(|make| make.name.clone().unwrap());
                match what {
                    0 => drop(served.fs.remove(&caller, &root, &names[0]).await),
                    1 => drop(served.fs.rename(&caller, &root, &names[0], &root, &names[1]).await),
                    2 => {
                        let Ok(found) = served.fs.lookup(&caller, &root, &names[0], Want::None).await else {
                            continue;
                        };
                        drop(served.fs.link(&caller, &found.node.handle, &root, &names[1]).await);
                    }
                    _ => {
                        let opened = served.fs.open(&caller, make).await.unwrap();
                        for _ in 0..3 {
                            tokio::task::yield_now().await;
                            let by = StateidBasis::Open(opened.id);
                            let read = served.fs.read(&caller, &opened.handle, by, 0, 9).await;
                            assert!(read.is_ok(), "round {round} of {number}: {:?}", read.err());
                        }
                        // This evicts what can be opened again.
                        served
                            .fs
                            .lookup(&caller, &root, &name((round % 64).to_string()), Want::None)
                            .await
                            .unwrap();
                        let read = served.fs.getattr(&caller, &opened.handle).await;
                        assert!(read.is_ok(), "round {round} of {number}: {:?}", read.err());
                        served.fs.close(&caller, opened.id).await.unwrap();
                    }
                }
            }
        }
    };
    files(&served, 0..64).await;
    let clients: Vec<_> = (1..=6).map(|number| tokio::spawn(client(number))).collect();
    for client in clients {
        client.await.unwrap();
    }
}
