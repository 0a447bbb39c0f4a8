//! Leases: a process of this machine that uses a leased file waits until the lease is returned.
//!
//! Promise: local-processes-at-the-server
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use common::{Served, machine, name, serve, serve_with};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use vfs::{
    AccessMask, Callback, Callbacks, FileSystem, Handle, Lease, LeaseKind, Leases, OpenRequest, Opened,
    Opens, Owner, Recall, SetAttributes, Share, Want,
};

/// The tests run one at a time. Between fork and exec, a child process of another test has copies of our
/// descriptors, and the kernel counts those as other users of the file.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn open_as(served: &Served, who: &str, file: &Handle, access: Share, want: Want) -> Opened {
    let request = OpenRequest {
        want,
        ..OpenRequest::new(*file, None, Owner(Bytes::copy_from_slice(who.as_bytes())), access)
    };
    served.fs.open(&machine(), &request).await.unwrap()
}

async fn open(served: &Served, file: &Handle, access: Share, want: Want) -> Option<Lease> {
    open_as(served, "process", file, access, want).await.lease
}

async fn file(served: &Served) -> Handle {
    std::fs::write(served.path("file"), "there\n").unwrap();
    served.handle("file").await
}

/// Starts a process of this machine.
fn run(served: &Served, script: &str) -> Child {
    Command::new("sh")
        .args(["-c", script])
        .current_dir(&served.directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn next(callbacks: &mut Callbacks) -> Callback {
    tokio::time::timeout(PATIENCE, callbacks.recv()).await.unwrap().unwrap()
}

async fn recalled(callbacks: &mut Callbacks) -> Recall {
    match next(callbacks).await {
        Callback::Recall(recall) => recall,
        other => panic!("{other:?}"),
    }
}

async fn output(child: Child) -> String {
    let done = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert!(done.status.success());
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test]
async fn a_local_writer_waits_for_the_lease() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    assert!(served.fs.callbacks().is_none(), "there is one stream");
    let file = file(&served).await;
    let opened = open_as(&served, "a", &file, Share::READ, Want::Any).await;
    let lease = opened.lease.unwrap();
    assert_eq!((lease.kind, lease.until, lease.change), (LeaseKind::Write, None, opened.attributes.change));
    let mut writer = run(&served, "echo more >> file");
    let recall = recalled(&mut callbacks).await;
    assert_eq!((recall.id, recall.handle, recall.keep), (lease.id, file, None));
    let left = recall.deadline - tokio::time::Instant::now();
    assert!(left > Duration::from_secs(1) && left < Duration::from_secs(45), "{left:?}");
    assert_eq!(served.read(&machine(), &file, 0, 99).await.unwrap().0, "there\n");
    assert!(writer.try_wait().unwrap().is_none(), "it waits");
    assert_eq!(open(&served, &file, Share::READ, Want::Any).await, None, "none while one is recalled");
    served.fs.returned(&machine(), recall.id).await.unwrap();
    output(writer).await;
    assert_eq!(served.read(&machine(), &file, 0, 99).await.unwrap().0, "there\nmore\n");
    let again = open(&served, &file, Share::READ, Want::Any).await.unwrap();
    assert_ne!(again.id, lease.id);
    served.fs.returned(&machine(), again.id).await.unwrap();
    served.fs.returned(&machine(), again.id).await.unwrap();
    output(run(&served, "echo again >> file")).await;
    assert!(callbacks.try_recv().is_err(), "nobody is asked for what came back");
}

#[tokio::test]
async fn a_local_reader_leaves_a_read_lease() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    let file = file(&served).await;
    let lease = open(&served, &file, Share::READ | Share::WRITE, Want::Any).await.unwrap();
    served.write(&machine(), &file, 0, b"THERE").await.unwrap();
    let reader = run(&served, "cat file");
    let recall = recalled(&mut callbacks).await;
    assert_eq!((recall.id, recall.keep), (lease.id, Some(LeaseKind::Read)));
    served.fs.returned(&machine(), recall.id).await.unwrap();
    assert_eq!(output(reader).await, "THERE\n");
    let kept = open(&served, &file, Share::READ, Want::Read).await.unwrap();
    assert_eq!((kept.id, kept.kind), (lease.id, LeaseKind::Read));
    assert_eq!(output(run(&served, "cat file")).await, "THERE\n", "readers wait no more");
    assert!(callbacks.try_recv().is_err());
    let writer = run(&served, "echo more >> file");
    assert_eq!(recalled(&mut callbacks).await.keep, None);
    served.fs.returned(&machine(), lease.id).await.unwrap();
    output(writer).await;
}

#[tokio::test]
async fn what_a_process_has_open_gets_no_lease_against_it() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    let file = file(&served).await;
    let mut writer = run(&served, "exec 3>>file; echo open; read line; echo $line >&3");
    let mut line = [0; 5];
    tokio::io::AsyncReadExt::read_exact(writer.stdout.as_mut().unwrap(), &mut line).await.unwrap();
    assert_eq!(open(&served, &file, Share::READ, Want::Any).await, None);
    drop(writer.stdin.take());
    output(writer).await;
    let mut reader = run(&served, "exec 3<file; echo open; read line; cat <&3");
    tokio::io::AsyncReadExt::read_exact(reader.stdout.as_mut().unwrap(), &mut line).await.unwrap();
    let lease = open(&served, &file, Share::READ, Want::Any).await.unwrap();
    assert_eq!(lease.kind, LeaseKind::Read, "beside a reader");
    // Our own write needs a write guard, which the reader prevents: the lease is recalled.
    served.write(&machine(), &file, 0, b"T").await.unwrap();
    let recall = recalled(&mut callbacks).await;
    assert_eq!((recall.id, recall.keep), (lease.id, None));
    served.fs.returned(&machine(), lease.id).await.unwrap();
    drop(reader.stdin.take());
    assert_eq!(output(reader).await, "There\n\n");
}

/// A reader of this machine prevents a write guard. Each open asks for one nevertheless, and for a moment
/// the file has no guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_local_writer_slips_through_while_a_guard_is_replaced() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    let file = file(&served).await;
    let _reader = std::fs::File::open(served.path("file")).unwrap();
    for round in 0..200 {
        let lease = open(&served, &file, Share::READ, Want::Any).await.unwrap();
        assert_eq!(lease.kind, LeaseKind::Read, "beside a reader");
        let path = served.path("file");
        let writer = tokio::task::spawn_blocking(move || std::fs::write(path, format!("round {round}")));
        let mut recall = None;
        while recall.is_none() && !writer.is_finished() {
            open(&served, &file, Share::READ, Want::Any).await;
            recall = callbacks.try_recv().ok();
        }
        let recall = match recall {
            Some(Callback::Recall(recall)) => recall,
            None => recalled(&mut callbacks).await,
            Some(other) => panic!("{other:?}"),
        };
        assert_eq!(recall.id, lease.id, "round {round}");
        served.fs.returned(&machine(), recall.id).await.unwrap();
        writer.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn our_own_operations_recall_nothing() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    let root = served.root().await;
    let file = file(&served).await;
    let read = open_as(&served, "a", &file, Share::READ, Want::Read).await;
    let lease = read.lease.unwrap();
    assert_eq!(lease.kind, LeaseKind::Read);
    let raised = open_as(&served, "b", &file, Share::WRITE, Want::Any).await;
    assert_eq!(raised.lease.map(|lease| (lease.id, lease.kind)), Some((lease.id, LeaseKind::Write)));
    for round in 0..3 {
        served.write(&machine(), &file, round, b"x").await.unwrap();
        assert_eq!(served.read(&machine(), &file, round, 1).await.unwrap().0, "x");
        let cut = SetAttributes { size: Some(round + 1), mode: Some(0o600), ..SetAttributes::default() };
        served.fs.setattr(&machine(), &file, &cut, None).await.unwrap();
        served.fs.commit(&machine(), &file, 0, 0).await.unwrap();
    }
    served.fs.close(&machine(), read.id).await.unwrap();
    served.fs.close(&machine(), raised.id).await.unwrap();
    served.fs.rename(&machine(), &root, &name("file"), &root, &name("moved")).await.unwrap();
    served.fs.remove(&machine(), &root, &name("moved")).await.unwrap();
    assert!(callbacks.try_recv().is_err());
    assert!(served.fs.getattr(&machine(), &file).await.is_err(), "a lease does not keep a removed file");
    served.fs.returned(&machine(), lease.id).await.unwrap();
}

#[tokio::test]
async fn leases_need_somebody_who_wants_and_hears_of_them() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let file = file(&served).await;
    assert_eq!(open(&served, &file, Share::READ, Want::Any).await, None, "nobody hears");
    let mut callbacks = served.fs.callbacks().unwrap();
    assert_eq!(open(&served, &file, Share::READ, Want::None).await, None);
    let lease = open(&served, &file, Share::READ, Want::Write).await.unwrap();
    let same = open(&served, &file, Share::READ, Want::Any).await.unwrap();
    assert_eq!((same.id, same.kind), (lease.id, LeaseKind::Write), "one at a time");
    assert!(callbacks.try_recv().is_err());
    drop(callbacks);
    // Dropping the callbacks releases the guards.
    output(run(&served, "echo more >> file")).await;
}

#[tokio::test]
async fn the_lease_that_was_useful_longest_ago_makes_room() {
    let _alone = ALONE.lock().await;
    let served = serve_with(|options| (options.leases_max, options.idle_min) = (16, Duration::ZERO));
    let mut callbacks = served.fs.callbacks().unwrap();
    let root = served.root().await;
    let mut leases = Vec::new();
    for number in 0..14 {
        let file = served.create(&machine(), &root, &number.to_string()).await.unwrap();
        leases.push((file, open(&served, &file, Share::READ, Want::Any).await.unwrap()));
    }
    assert!(callbacks.try_recv().is_err());
    open(&served, &leases[0].0, Share::READ, Want::Any).await.unwrap();
    let mut denied = 0;
    for number in 14..20 {
        let file = served.create(&machine(), &root, &number.to_string()).await.unwrap();
        denied += u32::from(open(&served, &file, Share::READ, Want::Any).await.is_none());
    }
    assert_eq!(denied, 4, "two of a reserve of two, and no more until some come back");
    let recall = recalled(&mut callbacks).await;
    let ids: Vec<_> = leases.iter().map(|(_, lease)| lease.id).collect();
    assert!(ids[1..].contains(&recall.id) && recall.keep.is_none(), "not the one that was used again");
    served.fs.returned(&machine(), recall.id).await.unwrap();
    let file = served.create(&machine(), &root, "late").await.unwrap();
    assert!(open(&served, &file, Share::READ, Want::Any).await.is_some());
}

#[tokio::test]
async fn nothing_is_recalled_for_want_of_descriptors_while_a_third_of_them_is_in_use() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    // The server has raised this limit. A leased file takes two descriptors.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = limit.min(20_000) / 6;
    if files < 500 {
        eprintln!("skipped: a limit of {limit} open files leaves none to spare");
        return;
    }
    let root = served.root().await;
    for number in 0..files {
        let file = served.create(&machine(), &root, &number.to_string()).await.unwrap();
        assert!(open(&served, &file, Share::READ, Want::Any).await.is_some(), "file {number} of {files}");
        assert!(callbacks.try_recv().is_err(), "file {number} of {files}");
    }
}

#[tokio::test]
async fn a_lease_that_does_not_come_back_is_revoked() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    let file = file(&served).await;
    let lease = open(&served, &file, Share::READ, Want::Any).await.unwrap();
    let writer = run(&served, "echo more >> file");
    recalled(&mut callbacks).await;
    tokio::time::pause();
    let revoked = callbacks.recv().await.unwrap();
    assert!(matches!(revoked, Callback::Revoked { id, handle } if id == lease.id && handle == file));
    tokio::time::resume();
    output(writer).await;
    assert_eq!(served.read(&machine(), &file, 0, 99).await.unwrap().0, "there\nmore\n");
}

#[tokio::test]
async fn a_process_that_changes_names_in_a_leased_directory_is_noticed_and_we_ourselves_are_not() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    std::fs::create_dir(served.path("dir")).unwrap();
    std::fs::create_dir(served.path("quiet")).unwrap();
    let directory = served.handle("dir").await;
    let quiet = served.handle("quiet").await;
    let delegate = async |handle: &Handle| {
        served.fs.delegate(&machine(), handle, AccessMask::LOOKUP).await.unwrap().lease
    };
    let lease = delegate(&directory).await.unwrap();
    assert_eq!(lease.kind, LeaseKind::Read);
    assert_eq!(delegate(&directory).await.unwrap().id, lease.id, "it is one");
    let kept = delegate(&quiet).await.unwrap();
    let set = SetAttributes::default();
    served.fs.mkdir(&machine(), &directory, &name("ours"), &set, vfs::Want::None).await.unwrap();
    served.fs.rmdir(&machine(), &directory, &name("ours")).await.unwrap();
    assert!(run(&served, "touch dir/theirs").wait().await.unwrap().success());
    let Callback::Recall(recall) = next(&mut callbacks).await else { panic!("a recall") };
    assert_eq!((recall.id, recall.handle), (lease.id, directory), "and it is for them");
    served.fs.returned(&machine(), lease.id).await.unwrap();
    assert_eq!(delegate(&directory).await, None, "it changes hands");
    assert_eq!(delegate(&quiet).await.unwrap().id, kept.id);
    // A file gets no lease of this kind.
    let file = file(&served).await;
    assert_eq!(delegate(&file).await, None);
}

#[tokio::test]
async fn a_process_that_moves_or_removes_a_leased_directory_is_noticed_too() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let mut callbacks = served.fs.callbacks().unwrap();
    for (directory, change) in [("moved", "mv moved elsewhere"), ("removed", "rmdir removed")] {
        std::fs::create_dir(served.path(directory)).unwrap();
        let handle = served.handle(directory).await;
        let lease = served.fs.delegate(&machine(), &handle, AccessMask::LOOKUP).await.unwrap().lease.unwrap();
        assert!(run(&served, change).wait().await.unwrap().success());
        let Callback::Recall(recall) = next(&mut callbacks).await else { panic!("a recall") };
        assert_eq!((recall.id, recall.handle), (lease.id, handle), "{change}");
        served.fs.returned(&machine(), lease.id).await.unwrap();
    }
}

// Promise: space-set-aside-by-serve
#[tokio::test]
async fn whoever_is_to_write_is_promised_space_and_nobody_else() {
    let _alone = ALONE.lock().await;
    let served = serve();
    let _callbacks = served.fs.callbacks().unwrap();
    let file = file(&served).await;
    let reading = open_as(&served, "reader", &file, Share::READ, Want::Any).await.lease.unwrap();
    assert_eq!(reading.space_limit, Lease::NO_SPACE_LIMIT);
    let writing = open_as(&served, "writer", &file, Share::WRITE, Want::Any).await.lease.unwrap();
    let free = served.fs.fsstat(&machine(), &file).await.unwrap().available_bytes;
    assert!(writing.space_limit >= 6 && writing.space_limit < free, "{} of {free}", writing.space_limit);
    let again = open_as(&served, "writer", &file, Share::WRITE, Want::Any).await.lease.unwrap();
    assert_eq!(again.space_limit, writing.space_limit, "what was said stands");
    // A file with a hole may need more space than its size shows.
    std::fs::File::create(served.path("sparse")).unwrap().set_len(1 << 20).unwrap();
    let sparse = served.handle("sparse").await;
    let lease = open_as(&served, "writer", &sparse, Share::WRITE, Want::Any).await.lease.unwrap();
    assert_eq!(lease.space_limit, 0);
}
