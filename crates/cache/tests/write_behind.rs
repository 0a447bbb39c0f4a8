//! Delayed writes: their cost at the origin, counted call by call, and their promises.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::time::Duration;

use cache::{Cache, WriteBehind};
use origin::behind::{BOTH, delaying, open, open_file, over, put, setup, user};
use origin::durability::Came;
use origin::state::{Policy, unchecked};
use origin::{Bench, name, open_handle, open_request, opener, read, root, until, v4, v4_opener, write};
use vfs::{
    AccessMask, Callback, Caller, FileSystem, Handle, LeaseKind, OpenId, OpenRequest, Opens, Query,
    SetAttributes, SetTime, Share, Stability, StateidBasis, Status, Timestamp,
};

const SECOND: Duration = Duration::from_secs(1);
const MIB: usize = 1 << 20;

async fn size(cache: &Cache, file: &Handle) -> u64 {
    cache.getattr(&user(), file).await.unwrap().size
}

fn sizes(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_small_appends_are_one_write() {
    let (bench, cache, file) = setup(b"").await;
    let id = open_file(&bench, &cache).await;
    for n in 0..1000 {
        put(&cache, id, &file, n * 100, &[n as u8; 100]).await;
        assert_eq!(size(&cache, &file).await, (n as u64 + 1) * 100);
    }
    assert_eq!(bench.origin.calls(), [], "all of it is in memory");
    assert_eq!(cache.stats().dirty_bytes, 100_000);
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.calls(), [("WRITE", 1)]);
    let came = Came { uid: 0, offset: 0, length: 100_000, stability: Stability::FileSync };
    assert_eq!(bench.origin.came(), [came], "durable by itself: no COMMIT");
    let expected: Vec<u8> = (0..1000).flat_map(|n| [n as u8; 100]).collect();
    assert_eq!(bench.origin.contents(&file), expected);
    let stats = cache.stats();
    assert_eq!((stats.dirty_bytes, stats.merged_writes, stats.flushed_bytes), (0, 999, 100_000));
    // Written bytes are read back from the cache.
    assert_eq!(read(&cache, &user(), &file, 0, 100_000).await, expected);
    assert_eq!(bench.origin.calls(), []);
    bench.end(&cache).await;
}

#[tokio::test]
async fn sixty_four_mebibytes_are_sixty_four_writes_and_one_commit() {
    let (bench, cache, file) = setup(b"").await;
    bench.origin.tree().forgetful = true;
    let id = open_file(&bench, &cache).await;
    let block = vec![7; MIB / 4];
    for n in 0..256 {
        put(&cache, id, &file, n * block.len(), &block).await;
    }
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.calls(), [("COMMIT", 1), ("WRITE", 64)]);
    assert!(bench.origin.came().iter().all(|came| came.length == MIB && came.offset % MIB as u64 == 0));
    assert_eq!(bench.origin.contents(&file).len(), 64 * MIB);
    bench.end(&cache).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_of_one_wsize_is_one_call_and_fsync_of_nothing_is_none() {
    let (bench, cache, file) = setup(b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, &vec![1; MIB]).await;
    cache.commit(&user(), &file, 0, 0).await.unwrap();
    assert_eq!(bench.origin.calls(), [("WRITE", 1)]);
    cache.commit(&user(), &file, 0, 0).await.unwrap();
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.calls(), []);
    // A WRITE that must be durable is durable when it is answered.
    let id = open_file(&bench, &cache).await;
    let by = StateidBasis::Open(id);
    let written = cache.write(&user(), &file, by, 5, "x".into(), Stability::DataSync).await.unwrap();
    assert!(written.stability >= Stability::DataSync);
    assert_eq!(bench.origin.calls(), [("WRITE", 1)]);
    cache.close(&user(), id).await.unwrap();
    bench.end(&cache).await;
}

// Promise: local-visibility
#[tokio::test(start_paused = true)]
async fn what_waits_is_what_everybody_here_sees() {
    let (bench, cache, file) = setup(&[1; 10_000]).await;
    let id = open_file(&bench, &cache).await;
    assert_eq!(read(&cache, &user(), &file, 0, 10_000).await, [1; 10_000][..]);
    bench.origin.calls();
    put(&cache, id, &file, 100, &[2; 50]).await;
    put(&cache, id, &file, 12_000, &[3; 100]).await;
    let mut expected = vec![1; 10_000];
    expected[100..150].fill(2);
    expected.resize(12_000, 0);
    expected.resize(12_100, 3);
    for caller in [user(), v4(7, 2)] {
        if caller.holder != user().holder {
            cache.access(&caller, &file, vfs::AccessMask::READ).await.unwrap();
        }
        bench.origin.calls();
        assert_eq!(read(&cache, &caller, &file, 0, 20_000).await, expected);
        assert_eq!(read(&cache, &caller, &file, 110, 20).await, [2; 20][..]);
        assert_eq!(read(&cache, &caller, &file, 9990, 2050).await, expected[9990..12_040]);
        let end = cache.read(&caller, &file, StateidBasis::Anonymous, 12_050, 100).await.unwrap();
        assert!(end.eof && end.data.len() == 50);
        let middle = cache.read(&caller, &file, StateidBasis::Anonymous, 9000, 1000).await.unwrap();
        assert!(!middle.eof && middle.data.len() == 1000, "there is more");
        assert_eq!(bench.origin.calls(), []);
    }
    // The attributes show the delayed bytes, whatever call returns them.
    let before = bench.origin.tree().get(&file).unwrap().attributes;
    for attributes in [
        cache.getattr(&user(), &file).await.unwrap(),
        cache.lookup(&user(), &root(), &name("f"), vfs::Want::None).await.unwrap().node.attributes.unwrap(),
        cache.open(&v4_opener(0, 3), &open_handle(&file, 3, Share::READ)).await.unwrap().attributes,
    ] {
        assert_eq!(attributes.size, 12_100);
        assert!(attributes.mtime >= before.mtime && attributes.ctime >= before.ctime);
        assert_ne!(attributes.change, before.change);
    }
    bench.origin.calls();
    cache.commit(&user(), &file, 0, 0).await.unwrap();
    assert_eq!(bench.origin.contents(&file), expected);
    // Our own writes have not invalidated the rest of the file.
    bench.origin.calls();
    assert_eq!(read(&cache, &user(), &file, 0, 10_000).await, expected[..10_000]);
    assert_eq!(bench.origin.calls(), []);
}

// Promise: close-under-a-write-lease
#[tokio::test(start_paused = true)]
async fn what_is_old_is_sent_and_committed_unasked() {
    let (bench, cache, file) = setup(b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"one").await;
    put(&cache, id, &file, 100, b"two").await;
    tokio::time::sleep(29 * SECOND).await;
    assert!(cache.stats().dirty_age.unwrap() >= 29 * SECOND);
    put(&cache, id, &file, 200, b"three").await;
    assert_eq!(bench.origin.calls(), []);
    until(|| cache.stats().dirty_bytes == 0).await;
    assert_eq!(bench.origin.calls(), [("COMMIT", 1), ("WRITE", 3)]);
    put(&cache, id, &file, 0, b"ONE").await;
    tokio::time::sleep(29 * SECOND).await;
    assert_eq!(bench.origin.calls(), [], "the age begins anew");
    until(|| cache.stats().dirty_bytes == 0).await;
    assert_eq!(bench.origin.calls(), [("WRITE", 1)]);
}

// Promise: refused-writes
#[tokio::test]
async fn a_writer_waits_for_room_and_a_reader_does_not() {
    let bench = Bench::new();
    bench.origin.be_volatile();
    let file = bench.origin.put(&root(), "f", b"");
    let other = bench.origin.put(&root(), "g", b"cached");
    bench.origin.pass(10 * SECOND);
    let limits = |behind: &mut WriteBehind| {
        behind.wsize = 64 << 10;
        behind.file_max_bytes = 256 << 10;
        behind.dirty_max_bytes = 1 << 20;
    };
    let cache = delaying(&bench, limits).await;
    let stat = v4(0, 1);
    assert_eq!(read(&cache, &stat, &other, 0, 10).await, "cached");
    let id = open(&cache, &open_request(&root(), "f", 1, BOTH)).await;
    let gate = bench.origin.gate("WRITE");
    let writer = {
        let cache = cache.clone();
        tokio::spawn(async move {
            for n in 0..32 {
                put(&cache, id, &file, n << 15, &vec![n as u8; 32 << 10]).await;
            }
        })
    };
    until(|| cache.stats().writers_held > 0).await;
    assert!(!writer.is_finished());
    let held = cache.stats().dirty_bytes;
    assert!(held <= 256 << 10, "{held} bytes wait");
    // The origin does not answer, and cached bytes are still served.
    assert_eq!(read(&cache, &stat, &other, 0, 10).await, "cached");
    assert_eq!(read(&cache, &stat, &file, 32 << 10, 5).await, [1; 5][..]);
    assert_eq!(size(&cache, &file).await, held);
    gate.open();
    writer.await.unwrap();
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.contents(&file).len(), 1 << 20);
    assert!(bench.origin.came().iter().all(|came| came.length <= 64 << 10));
}

// Promise: restart-of-the-origin-before-commit
#[tokio::test(start_paused = true)]
async fn an_origin_that_goes_down_before_the_commit_gets_it_all_again() {
    let (bench, cache, file) = setup(b"old").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, &vec![1; 2 * MIB + 5]).await;
    until(|| bench.origin.contents(&file).len() >= 2 * MIB).await;
    bench.origin.crash();
    assert_eq!(bench.origin.contents(&file), b"old");
    // A client that asks for attributes or data meanwhile sees the file as it was written.
    assert_eq!(cache.getattr(&opener(0), &file).await.unwrap().size, 2 * MIB as u64 + 5);
    assert_eq!(read(&cache, &user(), &file, 0, 10).await, [1; 10][..]);
    cache.close(&user(), id).await.unwrap();
    bench.origin.crash();
    assert_eq!(bench.origin.contents(&file), vec![1; 2 * MIB + 5]);
}

// Promise: refused-writes
#[tokio::test(start_paused = true)]
async fn an_error_is_told_once_at_fsync_or_close() {
    for status in [Status::NoSpc, Status::Dquot, Status::Io, Status::Access] {
        let (bench, cache, file) = setup(b"old").await;
        let id = open_file(&bench, &cache).await;
        put(&cache, id, &file, 0, b"new").await;
        bench.origin.durability.refuse_writes.lock().push_back(status);
        // A client that only reads does not get the error.
        let reader = open(&cache, &open_handle(&file, 9, Share::READ)).await;
        tokio::time::sleep(31 * SECOND).await;
        until(|| cache.stats().dirty_bytes == 0).await;
        cache.close(&user(), reader).await.unwrap();
        assert_eq!(cache.commit(&user(), &file, 0, 0).await.unwrap_err().status, status);
        cache.commit(&user(), &file, 0, 0).await.unwrap();
        // The refused bytes are lost, and a READ returns the origin's bytes.
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "old");
        // After an error, nothing is delayed until the origin takes something.
        bench.origin.calls();
        bench.origin.durability.refuse_writes.lock().push_back(status);
        let again =
            cache.write(&user(), &file, StateidBasis::Open(id), 0, "abc".into(), Stability::Unstable).await;
        assert_eq!(again.unwrap_err().status, status);
        put_through(&cache, id, &file, b"abc").await;
        assert_eq!(bench.origin.calls(), [("WRITE", 2)]);
        put(&cache, id, &file, 0, b"def").await;
        assert_eq!(bench.origin.calls(), []);
        bench.origin.durability.refuse_writes.lock().push_back(status);
        assert_eq!(cache.close(&user(), id).await.unwrap_err().status, status, "and the open is closed");
        let gone = cache.close(&user(), id).await.unwrap_err();
        assert_eq!(gone.status, Status::BadStateId);
    }
}

async fn put_through(cache: &Cache, by: OpenId, file: &Handle, data: &'static [u8]) {
    let written = cache
        .write(&user(), file, StateidBasis::Open(by), 0, data.into(), Stability::Unstable)
        .await
        .unwrap();
    assert_eq!(written.stability, Stability::FileSync);
}

// Promise: refused-writes
#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_is_told_and_patience_is_had() {
    let (bench, cache, file) = setup(b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"one").await;
    put(&cache, id, &file, 10, b"two").await;
    bench.origin.durability.refuse_writes.lock().extend([Status::Delay, Status::Grace]);
    bench.origin.durability.refuse_commits.lock().extend([Status::Delay, Status::Io]);
    assert_eq!(cache.commit(&user(), &file, 0, 0).await.unwrap_err().status, Status::Io);
    assert_eq!(bench.origin.calls(), [("COMMIT", 2), ("WRITE", 4)]);
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.calls(), []);
}

// Promise: order-at-the-origin
#[tokio::test(start_paused = true)]
async fn what_is_cut_off_is_never_sent() {
    let (bench, cache, file) = setup(&[1; 100]).await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 50, &[2; 100]).await;
    cache.setattr(&user(), &file, &sizes(60), None).await.unwrap();
    assert_eq!(bench.origin.calls(), [("SETATTR", 1)]);
    assert_eq!(size(&cache, &file).await, 60);
    let mut expected = vec![1; 50];
    expected.resize(60, 2);
    assert_eq!(read(&cache, &user(), &file, 0, 1000).await, expected);
    // The file is extended again, with zeros.
    cache.setattr(&user(), &file, &sizes(80), None).await.unwrap();
    expected.resize(80, 0);
    assert_eq!(read(&cache, &user(), &file, 0, 1000).await, expected);
    put(&cache, id, &file, 90, b"x").await;
    cache.close(&user(), id).await.unwrap();
    expected.resize(90, 0);
    expected.push(b'x');
    assert_eq!(bench.origin.contents(&file), expected);
    assert!(
        bench.origin.came().iter().all(|came| came.offset == 50 && came.length == 10 || came.offset == 90)
    );
    // An open that truncates.
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"never").await;
    let cutting = OpenRequest { create: Some(unchecked(Some(0))), ..open_request(&root(), "f", 2, BOTH) };
    let second = open(&cache, &cutting).await;
    put(&cache, second, &file, 0, b"new").await;
    cache.close(&user(), id).await.unwrap();
    cache.close(&user(), second).await.unwrap();
    assert_eq!(bench.origin.contents(&file), b"new");
    assert_eq!(bench.origin.came().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_is_refused_loses_nothing_and_one_waits_for_what_is_on_its_way() {
    let (bench, cache, file) = setup(&[1; 10]).await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 5, b"kept").await;
    let guard = Some(Timestamp::new(1, 1));
    let refused = cache.setattr(&user(), &file, &sizes(0), guard).await.unwrap_err();
    assert_eq!(refused.status, Status::NotSync);
    assert_eq!(read(&cache, &user(), &file, 5, 4).await, "kept");
    // A WRITE is in flight that would extend the file again.
    put(&cache, id, &file, 20, b"tail").await;
    bench.origin.calls();
    let gate = bench.origin.gate("WRITE");
    let (cache2, file2) = (cache.clone(), file);
    let sync = tokio::spawn(async move { cache2.commit(&user(), &file2, 0, 0).await });
    gate.wait_for(1).await;
    let (cache2, file2) = (cache.clone(), file);
    let cut = tokio::spawn(async move { cache2.setattr(&user(), &file2, &sizes(3), None).await });
    tokio::time::sleep(SECOND).await;
    assert!(!cut.is_finished() && !bench.origin.calls().iter().any(|(call, _)| *call == "SETATTR"));
    gate.open();
    cut.await.unwrap().unwrap();
    sync.await.unwrap().unwrap();
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.contents(&file), [1; 3]);
}

// Promise: order-at-the-origin
#[tokio::test(start_paused = true)]
async fn times_that_are_set_stay_set() {
    let (bench, cache, file) = setup(b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"data").await;
    let then = Timestamp::new(1_000_000_000, 0);
    let set = SetAttributes { mtime: Some(SetTime::Client(then)), ..SetAttributes::default() };
    cache.setattr(&user(), &file, &set, None).await.unwrap();
    cache.close(&user(), id).await.unwrap();
    assert_eq!(cache.getattr(&opener(0), &file).await.unwrap().mtime, then);
    assert_eq!(bench.origin.tree().get(&file).unwrap().attributes.mtime, then);
    let calls = bench.origin.calls();
    let of = |kind| calls.iter().find(|(call, _)| *call == kind).map_or(0, |(_, count)| *count);
    assert_eq!((of("WRITE"), of("SETATTR"), of("COMMIT")), (1, 1, 0), "{calls:?}");
}

// Promise: times-of-closed-files
#[tokio::test(start_paused = true)]
async fn under_a_write_lease_a_file_is_made_with_one_call_and_its_times_do_not_move() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let (bench, cache, _) = over(bench, b"").await;
    let then = Timestamp::new(1_000_000_000, 0);
    let set = SetAttributes { mtime: Some(SetTime::Client(then)), ..SetAttributes::default() };
    let mut files = Vec::new();
    for text in ["extracted", "made"] {
        let create = Some(unchecked(None));
        let request = OpenRequest { create, ..open_request(&root(), text, 1, BOTH) };
        let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
        put(&cache, opened.id, &opened.handle, 0, text.as_bytes()).await;
        if text == "extracted" {
            cache.setattr(&user(), &opened.handle, &set, None).await.unwrap();
        }
        cache.close(&user(), opened.id).await.unwrap();
        assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
        files.push(opened.handle);
    }
    let mut seen = Vec::new();
    for file in &files {
        seen.push(cache.getattr(&opener(0), file).await.unwrap().mtime);
    }
    assert_eq!(seen[0], then);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(bench.origin.calls(), []);
    until(|| cache.stats().dirty_bytes == 0).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(bench.origin.calls(), [("SETATTR", 2), ("WRITE", 2)]);
    for (file, seen) in files.iter().zip(seen) {
        assert_eq!(cache.getattr(&opener(0), file).await.unwrap().mtime, seen);
        assert_eq!(bench.origin.tree().get(file).unwrap().attributes.mtime, seen);
    }
    // After another write, the origin's time counts.
    let id = open(&cache, &open_request(&root(), "extracted", 1, BOTH)).await;
    put(&cache, id, &files[0], 0, b"E").await;
    assert!(cache.getattr(&opener(0), &files[0]).await.unwrap().mtime > then);
}

// Promise: times-of-closed-files
#[tokio::test(start_paused = true)]
async fn what_the_owner_sets_to_what_it_is_waits_with_the_data_and_a_change_does_not() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let (bench, cache, _) = over(bench, b"").await;
    let (how, _) = unchecked(None);
    let private = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let request = OpenRequest { create: Some((how, private)), ..open_request(&root(), "unpacked", 1, BOTH) };
    let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
    let file = opened.handle;
    put(&cache, opened.id, &file, 0, b"text").await;
    let made = cache.getattr(&opener(0), &file).await.unwrap();
    bench.origin.calls();
    let owner = SetAttributes { uid: Some(made.uid), gid: Some(made.gid), ..SetAttributes::default() };
    for set in [owner, private] {
        let wcc = cache.setattr(&user(), &file, &set, None).await.unwrap();
        assert_eq!(wcc.after.unwrap().size, 4);
    }
    assert_eq!(bench.origin.calls(), []);
    // Another client asks the origin for rights, and that recalls no lease.
    let shared = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    cache.setattr(&user(), &file, &shared, None).await.unwrap();
    let there = bench.origin.tree().get(&file).unwrap().attributes;
    assert_eq!((there.mode & 0o777, there.size), (0o644, 4));
    let times =
        SetAttributes { mtime: Some(SetTime::Client(Timestamp::new(7, 0))), ..SetAttributes::default() };
    cache.setattr(&user(), &file, &times, None).await.unwrap();
    put(&cache, opened.id, &file, 0, b"public").await;
    cache.setattr(&user(), &file, &times, None).await.unwrap();
    bench.origin.calls();
    let wide = SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
    cache.setattr(&user(), &file, &wide, None).await.unwrap();
    assert_eq!(bench.origin.calls(), [("SETATTR", 1), ("WRITE", 1)], "what waited goes with it");
    let there = bench.origin.tree().get(&file).unwrap().attributes;
    assert_eq!((there.mode & 0o777, there.mtime), (0o666, Timestamp::new(7, 0)));
    put(&cache, opened.id, &file, 0, b"secret").await;
    cache.setattr(&user(), &file, &private, None).await.unwrap();
    assert_eq!(bench.origin.tree().get(&file).unwrap().attributes.mode & 0o777, 0o600);
    let stranger = Caller::unix(7, 7, &[]);
    assert!(cache.access(&stranger, &file, AccessMask::READ).await.unwrap().granted.is_empty());
    cache.close(&user(), opened.id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_writer_is_sent_in_its_own_name_and_one_who_may_not_is_left_to_the_origin() {
    let (bench, cache, file) = setup(b"").await;
    let mode = SetAttributes { mode: Some(0o664), uid: Some(1), gid: Some(5), ..SetAttributes::default() };
    bench.origin.tree().setattr(&file, &mode, None).unwrap();
    for (uid, offset) in [(1, 0), (2, 10), (1, 20)] {
        let caller = Caller::unix(uid, 5, &[]);
        write(&cache, &caller, &file, offset, b"0123456789").await;
    }
    // A caller that may write neither by an open nor by the mode.
    let stranger = Caller::unix(9, 9, &[]);
    cache.commit(&Caller::unix(1, 5, &[]), &file, 0, 0).await.unwrap();
    let came: Vec<_> = bench.origin.came().iter().map(|came| (came.uid, came.offset, came.length)).collect();
    assert_eq!(came, [(1, 0, 10), (2, 10, 10), (1, 20, 10)]);
    let written = write(&cache, &stranger, &file, 0, b"through").await;
    assert_eq!(written.stability, Stability::FileSync);
    assert_eq!(bench.origin.came().len(), 1, "at once");
}

// Promise: close-under-a-write-lease
#[tokio::test(start_paused = true)]
async fn under_a_write_lease_close_is_free_and_a_recall_sends_all() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let (bench, cache, file) = over(bench, b"old").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"newer").await;
    cache.close(&user(), id).await.unwrap();
    assert_eq!(cache.getattr(&opener(0), &file).await.unwrap().size, 5);
    assert_eq!(read(&cache, &user(), &file, 0, 10).await, "newer");
    assert_eq!(bench.origin.calls(), []);
    // The origin asks for the file's size (CB_GETATTR).
    let lease = bench.origin.state.lock().leases[0].id;
    let (answer, held) = tokio::sync::oneshot::channel();
    let deadline = tokio::time::Instant::now() + SECOND;
    let query = Query { id: lease, handle: file, change: 0, times: true, answer, deadline };
    bench.origin.state.lock().say(Callback::Getattr(query));
    let held = held.await.unwrap();
    assert_eq!((held.modified, held.size), (true, 5));
    assert_eq!(bench.origin.calls(), []);
    // Another client wants the file.
    bench.origin.others(&file, |tree| assert_eq!(tree.get(&file).unwrap().data, b"newer")).await;
    let calls = bench.origin.calls();
    assert!(calls.contains(&("WRITE", 1)) && !calls.iter().any(|(call, _)| *call == "COMMIT"), "{calls:?}");
    assert_eq!(bench.origin.contents(&file), b"newer");
}

// Promise: order-at-the-origin
#[tokio::test(start_paused = true)]
async fn a_file_that_is_removed_first_is_never_written() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let (bench, cache, file) = over(bench, b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"scratch").await;
    cache.close(&user(), id).await.unwrap();
    cache.remove(&user(), &root(), &name("f")).await.unwrap();
    tokio::time::sleep(40 * SECOND).await;
    assert!(bench.origin.came().is_empty());
    assert_eq!(cache.stats().dirty_bytes, 0);
    // A file that is renamed over another is sent first, and the replaced file is not sent.
    for text in ["a", "b"] {
        bench.origin.put(&root(), text, b"");
    }
    bench.origin.pass(10 * SECOND);
    for (text, data) in [("a", "moved"), ("b", "replaced")] {
        let request = open_request(&root(), text, 1, BOTH);
        let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
        put(&cache, opened.id, &opened.handle, 0, data.as_bytes()).await;
        cache.close(&user(), opened.id).await.unwrap();
    }
    cache.rename(&user(), &root(), &name("a"), &root(), &name("b")).await.unwrap();
    tokio::time::sleep(40 * SECOND).await;
    assert_eq!(bench.origin.came().iter().map(|came| came.length).collect::<Vec<_>>(), [5]);
    let there = bench.origin.tree().lookup(&user().principal, &root(), &name("b")).unwrap().node.handle;
    assert_eq!(bench.origin.contents(&there), b"moved");
}

// Promise: renames-of-unsent-files
#[tokio::test(start_paused = true)]
async fn a_file_that_gets_another_name_is_sent_first_whoever_has_it_open() {
    for policy in [Policy::Never, Policy::Always(LeaseKind::Write)] {
        let (bench, cache, file) = over(Bench::with_state(policy), b"").await;
        let id = open_file(&bench, &cache).await;
        let mut sent = 0;
        let mut put_more = async |data: &[u8]| {
            put(&cache, id, &file, sent, data).await;
            sent += data.len();
        };
        put_more(b"one ").await;
        cache.rename(&user(), &root(), &name("f"), &root(), &name("g")).await.unwrap();
        assert_eq!(bench.origin.contents(&file), b"one ");
        // The new name is not remembered.
        put_more(b"two ").await;
        cache.rename(&user(), &root(), &name("g"), &root(), &name("h")).await.unwrap();
        assert_eq!(bench.origin.contents(&file), b"one two ");
        put_more(b"three").await;
        cache.link(&user(), &file, &root(), &name("i")).await.unwrap();
        assert_eq!(bench.origin.contents(&file), b"one two three");
        // All of it is durable: a crash of the origin loses nothing.
        bench.origin.crash();
        assert_eq!(bench.origin.contents(&file), b"one two three");
        // A client uses such a name only until it closes the removed file, so nothing needs to be sent for
        // it.
        put_more(b"four").await;
        cache.rename(&user(), &root(), &name("h"), &root(), &name(".nfs0001")).await.unwrap();
        assert_eq!(bench.origin.contents(&file), b"one two three");
        cache.close(&user(), id).await.unwrap();
    }
}

// Promise: removed-unsent-files
#[tokio::test(start_paused = true)]
async fn what_is_delayed_of_a_file_that_is_gone_is_read_until_its_close_and_not_sent() {
    for policy in [Policy::Never, Policy::Always(LeaseKind::Write)] {
        let (bench, cache, file) = over(Bench::with_state(policy), b"").await;
        let first = open_file(&bench, &cache).await;
        let other = OpenRequest { owner: origin::owner(7), ..open_request(&root(), "f", 1, BOTH) };
        let second = open(&cache, &other).await;
        put(&cache, first, &file, 0, b"scratch").await;
        cache.rename(&user(), &root(), &name("f"), &root(), &name(".nfs0001")).await.unwrap();
        assert_eq!(read(&cache, &user(), &file, 0, 10).await, "scratch");
        cache.remove(&user(), &root(), &name(".nfs0001")).await.unwrap();
        cache.close(&user(), first).await.unwrap();
        assert_eq!(cache.stats().dirty_bytes, 7, "somebody has it open still");
        cache.close(&user(), second).await.unwrap();
        tokio::time::sleep(40 * SECOND).await;
        assert!(bench.origin.came().is_empty());
        assert_eq!(cache.stats().dirty_bytes, 0);
    }
}

// Promise: removed-unsent-files
#[tokio::test(start_paused = true)]
async fn a_file_that_has_another_link_is_sent_although_nobody_here_knows_of_it() {
    for policy in [Policy::Never, Policy::Always(LeaseKind::Write)] {
        let (bench, cache, file) = over(Bench::with_state(policy), b"").await;
        let id = open_file(&bench, &cache).await;
        put(&cache, id, &file, 0, b"kept").await;
        // The link count is the origin's to know, whatever was known of it here.
        bench.origin.tree().link(&file, &root(), &name("link")).unwrap();
        cache.remove(&user(), &root(), &name("f")).await.unwrap();
        cache.close(&user(), id).await.unwrap();
        tokio::time::sleep(40 * SECOND).await;
        assert_eq!(bench.origin.contents(&file), b"kept");
        bench.end(&cache).await;
    }
}

// Promise: close-under-a-write-lease
#[tokio::test(start_paused = true)]
async fn the_end_of_the_process_sends_all_and_waits_no_longer_than_it_may() {
    let (bench, cache, file) = setup(b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"one").await;
    put(&cache, id, &file, 10, b"two").await;
    cache.shutdown().await;
    assert_eq!(bench.origin.calls(), [("COMMIT", 1), ("WRITE", 2)]);
    put(&cache, id, &file, 0, b"more").await;
    let _gate = bench.origin.gate("WRITE");
    let before = tokio::time::Instant::now();
    cache.shutdown().await;
    assert!(before.elapsed() >= 60 * SECOND && before.elapsed() < 70 * SECOND);
}

/// One origin takes a WRITE of a MiB every 45 s, and another stops taking anything.
// Promise: unmount
#[tokio::test(start_paused = true)]
async fn the_end_of_the_process_waits_for_an_origin_that_is_slow_as_long_as_it_takes_something() {
    for (takes, left) in [(6, 0), (2, 4 * MIB as u64)] {
        let (bench, cache, file) = setup(b"").await;
        let id = open_file(&bench, &cache).await;
        for n in 0..6 {
            put(&cache, id, &file, n * MIB, &vec![n as u8; MIB]).await;
        }
        let gate = bench.origin.gate("WRITE");
        gate.reply(100);
        let slow = async {
            for _ in 0..takes {
                tokio::time::sleep(45 * SECOND).await;
                gate.admit(1);
            }
            std::future::pending::<()>().await;
        };
        let before = tokio::time::Instant::now();
        tokio::select! {
            () = slow => {}
            () = cache.shutdown() => {}
        }
        assert!(before.elapsed() >= takes * 45 * SECOND, "{:?}", before.elapsed());
        assert!(before.elapsed() < (takes * 45 + 130) * SECOND, "{:?}", before.elapsed());
        assert_eq!(cache.stats().dirty_files, u64::from(left > 0));
        if left == 0 {
            assert_eq!(bench.origin.contents(&file).len(), 6 * MIB);
        }
    }
}
