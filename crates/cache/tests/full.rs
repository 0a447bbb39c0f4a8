//! Delayed writes under write leases, before an origin that runs full. Data that a close reported as safe is
//! safe, or its loss is reported.
//!
//! Promise: closes-on-a-full-origin

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, WriteBehind};
use origin::behind::{BOTH, delaying, open, put, user};
use origin::state::{Policy, unchecked};
use origin::{Bench, id, name, open_request, read, root, until};
use proptest::prelude::*;
use vfs::{
    CreateHow, FileSystem, Fsid, Handle, LeaseKind, OpenId, OpenRequest, Opens, SetAttributes, Share,
    Stability, StateidBasis, Status,
};

const SECOND: Duration = Duration::from_secs(1);
const KIB: u64 = 1024;

/// An origin with leases and this many bytes of space.
async fn setup(capacity: u64) -> (Bench, Arc<Cache>) {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    bench.origin.hold(capacity);
    let cache = delaying(&bench, |_: &mut WriteBehind| ()).await;
    cache.root(&user()).await.unwrap();
    (bench, cache)
}

/// Makes a file and writes it, but does not close it.
async fn make(cache: &Cache, called: &str, data: &[u8]) -> (OpenId, Handle) {
    let create = Some((CreateHow::Guarded, SetAttributes::default()));
    let request = OpenRequest { create, ..open_request(&root(), called, 1, BOTH) };
    let opened = cache.open(&origin::v4_opener(0, 1), &request).await.unwrap();
    put(cache, opened.id, &opened.handle, 0, data).await;
    (opened.id, opened.handle)
}

/// The result of close(2), and the end of the open.
async fn close(cache: &Cache, id: OpenId) -> Result<(), Status> {
    let flushed = Opens::flush(cache, &user(), id).await.map_err(|error| error.status);
    let _ = cache.close(&user(), id).await;
    flushed
}

async fn write_file(cache: &Cache, called: &str, data: &[u8]) -> (Handle, Result<(), Status>) {
    let (id, file) = make(cache, called, data).await;
    (file, close(cache, id).await)
}

fn free(bench: &Bench) -> u64 {
    bench.origin.durability.free_bytes(&bench.origin.tree())
}

/// As after a restart of a server whose device numbers have changed.
#[tokio::test(start_paused = true)]
async fn what_is_kept_stays_in_its_account_when_the_file_system_gets_another_id() {
    let (bench, cache) = setup(64 << 20).await;
    let (file, closed) = write_file(&cache, "f", &[1; 8192]).await;
    assert_eq!((closed, cache.held().dirty_bytes), (Ok(()), 8192));
    bench.origin.tree().inodes.get_mut(&id(&file)).unwrap().attributes.fsid = Fsid { major: 7, minor: 0 };
    // The reply tells the new id, and half of the bytes are still kept.
    let set = SetAttributes { size: Some(4096), ..SetAttributes::default() };
    cache.setattr(&user(), &file, &set, None).await.unwrap();
    assert_eq!(cache.held().dirty_bytes, 4096);
    let again = open(&cache, &open_request(&root(), "f", 1, BOTH)).await;
    put(&cache, again, &file, 0, &[2; 100]).await;
    assert_eq!(close(&cache, again).await, Ok(()));
    cache.shutdown().await;
    assert_eq!(bench.origin.contents(&file)[..200], [[2; 100], [1; 100]].concat());
}

#[tokio::test(start_paused = true)]
async fn what_a_full_origin_does_not_take_the_close_tells() {
    let (bench, cache) = setup(2 << 20).await;
    let mut stored = Vec::new();
    let mut refused = 0;
    for n in 0..400_usize {
        let data = vec![n as u8; 1 + n * 37 % 9000];
        match write_file(&cache, &format!("file-{n}"), &data).await {
            (file, Ok(())) => stored.push((file, data)),
            (_, Err(status)) => {
                assert_eq!(status, Status::NoSpc);
                refused += 1;
            }
        }
    }
    cache.shutdown().await;
    assert!(refused > 0 && !stored.is_empty());
    for (file, data) in stored {
        assert_eq!(bench.origin.contents(&file), data, "its close has said that it is safe");
    }
    assert_eq!(cache.lost(), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_large_file_does_not_take_what_small_ones_need_that_are_closed() {
    let (bench, cache) = setup(8 << 20).await;
    let (small, closed) = write_file(&cache, "small", &vec![1; 100 * KIB as usize]).await;
    closed.unwrap();
    assert_eq!(bench.origin.contents(&small), b"", "there is space for it");
    let (_, closed) = write_file(&cache, "large", &vec![2; 9 << 20]).await;
    assert_eq!(closed, Err(Status::NoSpc));
    assert_eq!(bench.origin.contents(&small), vec![1; 100 * KIB as usize]);
    assert_eq!(cache.lost(), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn where_space_is_plentiful_a_close_costs_nothing() {
    let (bench, cache) = setup(1 << 40).await;
    let (file, closed) = write_file(&cache, "first", b"data").await;
    closed.unwrap();
    bench.origin.calls();
    for n in 0..100 {
        write_file(&cache, &format!("file-{n}"), &[7; 10_000]).await.1.unwrap();
    }
    assert_eq!(bench.origin.calls(), [("OPEN", 100)]);
    assert_eq!(bench.origin.contents(&file), b"");
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_after_a_close_is_told_by_path_and_by_the_next_use_once() {
    let (bench, cache) = setup(1 << 40).await;
    let (one, closed) = write_file(&cache, "one", &[1; 10_000]).await;
    closed.unwrap();
    let (two, closed) = write_file(&cache, "two", &[2; 10_000]).await;
    closed.unwrap();
    // Another client fills the origin.
    bench.origin.hold(0);
    tokio::time::sleep(31 * SECOND).await;
    until(|| cache.lost().1 == 2).await;
    let (mut lost, _) = cache.lost();
    lost.sort_by(|a, b| a.path.cmp(&b.path));
    let told: Vec<_> = lost.iter().map(|lost| (lost.path.as_str(), lost.status, lost.bytes)).collect();
    assert_eq!(told, [("/one", Status::NoSpc, 10_000), ("/two", Status::NoSpc, 10_000)]);
    // The next use reports the loss, once.
    let reading = open_request(&root(), "one", 1, Share::READ);
    let refused = cache.open(&origin::v4_opener(0, 1), &reading).await.unwrap_err();
    assert_eq!(refused.status, Status::Io);
    open(&cache, &reading).await;
    assert_eq!(read(&cache, &user(), &one, 0, 100).await, b""[..]);
    // A file that is written anew needs no report.
    let emptying = OpenRequest { create: Some(unchecked(Some(0))), ..open_request(&root(), "two", 1, BOTH) };
    let id = open(&cache, &emptying).await;
    assert_eq!(read(&cache, &user(), &two, 0, 100).await, b""[..]);
    // From now on, each close reports the error.
    bench.origin.calls();
    assert_eq!(write_file(&cache, "three", b"x").await.1, Err(Status::NoSpc));
    // There is space again: the first write goes to the origin, and then closes cost nothing.
    bench.origin.hold(1 << 40);
    let again =
        cache.write(&user(), &two, StateidBasis::Open(id), 0, "again".into(), Stability::Unstable).await;
    assert_eq!(again.unwrap().stability, Stability::FileSync);
    assert_eq!(close(&cache, id).await, Ok(()));
    assert_eq!(bench.origin.contents(&two), b"again");
    write_file(&cache, "four", b"x").await.1.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let (five, closed) = write_file(&cache, "five", b"x").await;
    closed.unwrap();
    assert_eq!(bench.origin.contents(&five), b"", "it is over");
    cache.shutdown().await;
    assert_eq!(bench.origin.contents(&five), b"x");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_file_makes_the_closes_of_others_send() {
    for status in [Status::NoSpc, Status::Dquot, Status::Rofs, Status::Io] {
        let (bench, cache) = setup(1 << 40).await;
        let (id, file) = make(&cache, "synced", b"data").await;
        bench.origin.durability.refuse_writes.lock().push_back(status);
        assert_eq!(cache.commit(&user(), &file, 0, 0).await.unwrap_err().status, status);
        assert_eq!(close(&cache, id).await, Ok(()));
        let (other, closed) = write_file(&cache, "other", b"data").await;
        assert_eq!((closed, bench.origin.contents(&other)), (Ok(()), b"data".to_vec()), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_origin_promises_is_kept_and_no_more() {
    let (bench, cache) = setup(1 << 20).await;
    bench.origin.state.lock().promises = Some(256 * KIB);
    // More than the cache keeps without a promise.
    let (within, closed) = write_file(&cache, "within", &vec![1; 200 * KIB as usize]).await;
    closed.unwrap();
    assert_eq!(bench.origin.contents(&within), b"");
    let (beyond, closed) = write_file(&cache, "beyond", &vec![2; 300 * KIB as usize]).await;
    closed.unwrap();
    assert_eq!(bench.origin.contents(&beyond).len() as u64, 300 * KIB);
    cache.shutdown().await;
    assert_eq!(bench.origin.contents(&within).len() as u64, 200 * KIB);
    assert!(free(&bench) > 0);
}

// Promise: renames-of-unsent-files
#[tokio::test(start_paused = true)]
async fn what_the_origin_refuses_gets_no_other_name() {
    let (bench, cache) = setup(1 << 40).await;
    let old = bench.origin.put(&root(), "file", b"complete");
    write_file(&cache, ".file.new", &[1; 10_000]).await.1.unwrap();
    bench.origin.hold(0);
    let renamed = cache.rename(&user(), &root(), &name(".file.new"), &root(), &name("file")).await;
    assert_eq!(renamed.unwrap_err().status, Status::NoSpc);
    assert_eq!(bench.origin.contents(&old), b"complete");
    let found = cache.lookup(&user(), &root(), &name("file"), vfs::Want::None).await.unwrap();
    assert_eq!(found.node.handle, old);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_file_whose_close_succeeded_is_complete(
        capacity in 0..4u64 << 20,
        promises in prop::option::of(0..64 * KIB),
        sizes in prop::collection::vec(1..200_000usize, 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (bench, cache) = setup(capacity).await;
            bench.origin.state.lock().promises = promises;
            let mut stored = Vec::new();
            for (n, size) in sizes.into_iter().enumerate() {
                let (file, closed) = write_file(&cache, &format!("file-{n}"), &vec![n as u8; size]).await;
                if closed.is_ok() {
                    stored.push((file, vec![n as u8; size]));
                }
            }
            cache.shutdown().await;
            for (file, data) in stored {
                assert_eq!(bench.origin.contents(&file), data);
            }
            assert_eq!(cache.lost(), (vec![], 0));
        });
    }
}

/// A mount reports a new verifier as an error of fsync.
#[tokio::test(start_paused = true)]
async fn the_loss_of_one_file_is_no_loss_of_another() {
    let (bench, cache) = setup(1 << 20).await;
    let (lost, file) = make(&cache, "lost", b"refused").await;
    let (other, kept) = make(&cache, "kept", b"first").await;
    let before = put(&cache, other, &kept, 5, b"second").await;
    bench.origin.durability.refuse_writes.lock().push_back(Status::Stale);
    let told = cache.commit(&user(), &file, 0, 0).await.map(|_| ()).map_err(|error| error.status);
    assert_eq!(told, Err(Status::Stale));
    assert_eq!(cache.commit(&user(), &kept, 0, 0).await.unwrap().verifier, before);
    assert_eq!((close(&cache, lost).await, close(&cache, other).await), (Ok(()), Ok(())));
    assert_eq!(bench.origin.contents(&kept), b"firstsecond");
}

/// A program that called fsync relies on its bytes, and the journal has the only copy.
// Promise: fsync-from-the-journal
#[tokio::test]
async fn what_an_fsync_was_answered_for_is_kept_if_the_origin_refuses_it() {
    for commit in [false, true] {
        let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
        bench.origin.be_volatile();
        let cache = delaying(&bench, |behind: &mut WriteBehind| behind.fsync = cache::Fsync::Journal).await;
        cache.root(&user()).await.unwrap();
        // Large data is sent by unstable WRITEs.
        let data = vec![b's'; if commit { 3 << 20 } else { 6 }];
        let (id, file) = make(&cache, "f", &data).await;
        cache.commit(&user(), &file, 0, 0).await.unwrap();
        assert_eq!(cache.stats().local_fsyncs, 1);
        let durability = &bench.origin.durability;
        let refuse = if commit { &durability.refuse_commits } else { &durability.refuse_writes };
        refuse.lock().push_back(Status::NoSpc);
        bench.origin.recall(&file);
        until(|| cache.stats().conflicts == 1 && cache.stats().dirty_bytes == 0).await;
        // A COMMIT that the origin takes meanwhile makes some bytes durable there.
        bench.origin.crash();
        let conflicts = bench.directory.path().join("cache/conflicts");
        let is_somewhere = || {
            let kept = std::fs::read_dir(&conflicts).unwrap();
            let kept: Vec<_> = kept.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
            let copies = [bench.origin.contents(&file), kept.concat()];
            kept.len() == 1 && (0..data.len()).all(|at| copies.iter().any(|copy| copy.get(at) == Some(&b's')))
        };
        until(is_somewhere).await;
        let told = cache.commit(&user(), &file, 0, 0).await.map(|_| ()).map_err(|error| error.status);
        assert_eq!(told, Err(Status::Io));
        assert_eq!(close(&cache, id).await, Ok(()), "one caller is told");
    }
}
