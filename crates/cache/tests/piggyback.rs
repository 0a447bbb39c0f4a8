//! READs piggybacked on an OPEN: their cost, when they are sent, and when their bytes are used.
//!
//! Promise: first-bytes-with-the-open

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::{Cache, Completeness, Fill};
use origin::state::{Policy, unchecked};
use origin::{Bench, open_handle, open_request, opener, read, root, until, v4, v4_opener, write};
use vfs::{
    AccessMask, Caller, FileSystem, Handle, LeaseKind, LocalView, OpenRequest, Opened, Opens, SetAttributes,
    Share, StateidBasis, Status,
};

const SECOND: Duration = Duration::from_secs(1);
const POLICIES: [Policy; 3] =
    [Policy::Never, Policy::Always(LeaseKind::Read), Policy::Always(LeaseKind::Write)];
const SMALL: usize = 64 << 10;

/// An origin with one file that was written some time ago.
async fn setup(policy: Policy, bytes: &[u8]) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::with_state(policy);
    let file = bench.origin.put(&root(), "f", bytes);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    (bench, cache, file)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8).collect()
}

async fn open(cache: &Cache, request: &OpenRequest) -> Opened {
    cache.open(&v4_opener(0, 1), request).await.unwrap()
}

async fn read_open(cache: &Cache, opened: &Opened, offset: u64, count: u32) -> Vec<u8> {
    let by = StateidBasis::Open(opened.id);
    let read = cache.read(&v4(0, 1), &opened.handle, by, offset, count).await.unwrap();
    read.data.to_bytes().unwrap().to_vec()
}

fn piggyback(bench: &Bench) -> u64 {
    bench.origin.piggyback_bytes.swap(0, Ordering::Relaxed)
}

/// A READ by a client without opens brings the bytes that it would have fetched first, and no more.
#[tokio::test(start_paused = true)]
async fn a_cold_read_is_one_call_of_any_size() {
    for policy in POLICIES {
        for (size, offset, count) in [(10, 0, 100), (100_000, 0, 100_000), (300_000, 70_000, 5_000)] {
            let bytes = pattern(size);
            let (bench, cache, file) = setup(policy, &bytes).await;
            let expected = &bytes[offset.min(size)..(offset + count).min(size)];
            assert_eq!(read(&cache, &opener(0), &file, offset as u64, count as u32).await, expected);
            assert_eq!(bench.origin.calls(), [("OPEN", 1)], "{policy:?} {size}");
            assert!(piggyback(&bench) < count as u64 + 2 * 4096);
            assert_eq!(cache.stats().data.misses, 1);
            assert_eq!(read(&cache, &opener(0), &file, offset as u64, count as u32).await, expected);
            assert_eq!(bench.origin.calls(), [], "{policy:?} {size}");
        }
    }
}

/// The same, if the client has asked for the file's attributes, as clients do.
#[tokio::test(start_paused = true)]
async fn what_lies_behind_the_end_is_not_asked_for() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read), b"0123456789").await;
    cache.getattr(&opener(0), &file).await.unwrap();
    bench.origin.calls();
    assert_eq!(read(&cache, &opener(0), &file, 10, 100).await, "");
    assert_eq!((piggyback(&bench), bench.origin.calls()), (0, vec![("ACCESS", 1)]));
    assert_eq!(read(&cache, &opener(0), &file, 5, 100).await, "56789");
    assert_eq!((piggyback(&bench), bench.origin.calls()), (10, vec![("OPEN", 1)]));
}

/// Another client writes between the attributes and the READ of one compound.
#[tokio::test(start_paused = true)]
async fn bytes_of_a_file_that_has_another_end_by_then_are_not_used() {
    for (now, policy) in [(12, Policy::Never), (5, Policy::Never), (0, Policy::Never)] {
        let (bench, cache, file) = setup(policy, b"0123456789").await;
        let origin = bench.origin.clone();
        let change = move || {
            let mut tree = origin.tree();
            let set = SetAttributes { size: Some(now as u64), ..SetAttributes::default() };
            tree.setattr(&file, &set, None).unwrap();
            if now > 0 {
                tree.write(&file, 0, &vec![b'x'; now]).unwrap();
            }
        };
        *bench.origin.after_effect.lock() = Some((Some("OPEN"), Box::new(change)));
        let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
        assert_eq!(read_open(&cache, &opened, 0, 100).await, vec![b'x'; now], "{now}");
    }
}

/// The same, and some bytes of the file are here. The two must not be shown as one state.
#[tokio::test(start_paused = true)]
async fn bytes_that_may_be_newer_do_not_stand_beside_older_ones() {
    let (bench, cache, file) = setup(Policy::Never, &vec![1; 20_000]).await;
    read(&cache, &opener(0), &file, 0, 4096).await;
    bench.opens_are(0).await;
    let origin = bench.origin.clone();
    let change = move || assert!(origin.tree().write(&file, 0, &vec![2; 20_000]).is_ok());
    *bench.origin.after_effect.lock() = Some((Some("OPEN"), Box::new(change)));
    read(&cache, &opener(0), &file, 4096, 4096).await;
    let both = read(&cache, &v4(0, 1), &file, 0, 8192).await;
    assert!(both.iter().all(|byte| *byte == both[0]), "bytes of two states");
}

/// Several at once cost one OPEN and one READ.
#[tokio::test]
async fn who_waits_for_the_open_shares_what_it_brings() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read), &pattern(9_000)).await;
    let gate = bench.origin.gate("OPEN");
    let reading: Vec<_> = (0..4)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { read(&cache, &opener(0), &file, 0, 9_000).await })
        })
        .collect();
    gate.wait_for(1).await;
    gate.open();
    for each in reading {
        assert_eq!(each.await.unwrap(), pattern(9_000));
    }
    assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
}

/// An open for reading brings a small file, by name and by handle, whether or not its size is known.
#[tokio::test(start_paused = true)]
async fn an_open_for_reading_brings_a_small_file() {
    for policy in POLICIES {
        for (size, known) in [(1, false), (SMALL, false), (SMALL, true)] {
            let bytes = pattern(size);
            let (bench, cache, file) = setup(policy, &bytes).await;
            if known {
                cache.getattr(&v4(0, 1), &file).await.unwrap();
            }
            bench.origin.calls();
            let by_handle = open_handle(&file, 1, Share::READ);
            let request = if known { by_handle } else { open_request(&root(), "f", 1, Share::READ) };
            let opened = open(&cache, &request).await;
            assert_eq!(read_open(&cache, &opened, 0, 1 << 20).await, bytes);
            assert_eq!(bench.origin.calls(), [("OPEN", 1)], "{policy:?} {size} {known}");
            assert_eq!(piggyback(&bench), size as u64);
            assert!(
                cache.complete_file(&v4(0, 1), opened.id).await.is_some(),
                "it is stored before the open is answered"
            );
        }
    }
}

/// If a large file's size is not known, its start comes and costs no call. If the size is known, nothing
/// comes.
#[tokio::test(start_paused = true)]
async fn an_open_of_a_large_file_costs_no_call_more_than_it_did() {
    let bytes = pattern(3 * SMALL + 5);
    for known in [false, true] {
        let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read), &bytes).await;
        if known {
            cache.getattr(&v4(0, 1), &file).await.unwrap();
        }
        bench.origin.calls();
        let opened = open(&cache, &open_handle(&file, 1, Share::READ)).await;
        assert_eq!(piggyback(&bench), if known { 0 } else { SMALL as u64 });
        assert_eq!(read_open(&cache, &opened, 0, 1 << 20).await, bytes);
        assert_eq!(bench.origin.calls(), [("OPEN", 1), ("READ", 1)], "{known}");
    }
}

/// Bytes that an open has brought of a large file do not make it a candidate for completion until a client
/// reads it.
#[tokio::test]
async fn a_file_is_not_completed_because_it_was_opened() {
    let (bench, cache, read) = setup(Policy::Always(LeaseKind::Read), &pattern(5 * SMALL)).await;
    drop(cache);
    let opened = bench.origin.put(&root(), "opened", &pattern(4 * SMALL));
    bench.origin.pass(10 * SECOND);
    let mut options = bench.options();
    options.flush_interval = Duration::from_millis(5);
    options.fill = Some(Fill { idle: Duration::from_millis(20), percent_min: 10 });
    let cache = bench.open_with(options).await;
    open(&cache, &open_handle(&opened, 1, Share::READ)).await;
    let reader = open(&cache, &open_handle(&read, 1, Share::READ)).await;
    assert_eq!(piggyback(&bench), 2 * SMALL as u64);
    read_open(&cache, &reader, 0, SMALL as u32).await;
    // The candidate with the fewest missing bytes is completed first.
    until(|| cache.info(&read).completeness == Completeness::Complete).await;
    assert_eq!(cache.stats().filled_bytes, 4 * SMALL as u64);
    assert_eq!(cache.info(&opened).cached_bytes, SMALL as u64);
}

/// No bytes come if the open is not for reading alone, if the file is cached, or if read-ahead is off.
#[tokio::test(start_paused = true)]
async fn nothing_is_read_that_is_not_likely_to_be_wanted() {
    let made = OpenRequest { create: Some(unchecked(None)), ..open_request(&root(), "new", 1, Share::READ) };
    let opens = |access| open_request(&root(), "f", 1, access);
    for request in [opens(Share::WRITE), opens(Share::READ | Share::WRITE), made] {
        let (bench, cache, _) = setup(Policy::Never, b"data").await;
        open(&cache, &request).await;
        assert_eq!(piggyback(&bench), 0);
    }
    let (bench, cache, _) = setup(Policy::Never, b"data").await;
    let opened = open(&cache, &opens(Share::READ)).await;
    assert_eq!(piggyback(&bench), 4);
    cache.close(&v4(0, 1), opened.id).await.unwrap();
    bench.opens_are(0).await;
    bench.origin.calls();
    let opened = open(&cache, &opens(Share::READ)).await;
    assert_eq!(read_open(&cache, &opened, 0, 10).await, b"data");
    assert_eq!((piggyback(&bench), bench.origin.calls()), (0, vec![("OPEN", 1)]));

    let bench = Bench::with_state(Policy::Never);
    let file = bench.origin.put(&root(), "f", b"data");
    let mut options = bench.options();
    options.readahead_max_bytes = 0;
    let cache = bench.open_with(options).await;
    open(&cache, &open_handle(&file, 1, Share::READ)).await;
    assert_eq!(piggyback(&bench), 0);
}

/// If the piggybacked READ fails, a separate READ follows.
#[tokio::test(start_paused = true)]
async fn the_open_stands_if_the_read_fails() {
    for policy in POLICIES {
        let (bench, cache, file) = setup(policy, b"data").await;
        bench.origin.fails_piggybacked.store(true, Ordering::Relaxed);
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "data");
        assert_eq!(bench.origin.calls(), [("OPEN", 1), ("READ", 1)], "{policy:?}");
        assert_eq!(bench.origin.open_count(), 1);
    }
}

/// A caller without the right does not get bytes that another caller's open brought.
#[tokio::test(start_paused = true)]
async fn what_came_along_is_for_those_who_may_read_it() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read), b"data").await;
    let set = SetAttributes { mode: Some(0o600), uid: Some(7), ..SetAttributes::default() };
    bench.origin.tree().setattr(&file, &set, None).unwrap();
    bench.origin.pass(10 * SECOND);
    assert_eq!(read(&cache, &opener(7), &file, 0, 10).await, "data");
    let stranger = Caller::unix(8, 8, &[]);
    let denied = cache.read(&stranger, &file, StateidBasis::Anonymous, 0, 10).await.unwrap_err();
    assert_eq!(denied.status, Status::Access);
    assert_eq!(cache.access(&stranger, &file, AccessMask::READ).await.unwrap().granted, AccessMask::empty());
}

/// Without a lease, bytes fetched while the state is racy are good until the next open. Under the lease
/// that came with them, they are good while it is held.
#[tokio::test(start_paused = true)]
async fn what_is_young_is_read_again_unless_the_lease_came_with_it() {
    for (policy, again) in POLICIES.into_iter().zip([true, false, false]) {
        let bench = Bench::with_state(policy);
        let file = bench.origin.put(&root(), "f", b"data");
        let cache = bench.open().await;
        let opened = open(&cache, &open_handle(&file, 1, Share::READ)).await;
        assert_eq!(read_open(&cache, &opened, 0, 10).await, b"data");
        assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
        assert_eq!(piggyback(&bench), 4);
        bench.origin.tree().write(&file, 0, b"DATA").unwrap();
        open(&cache, &open_handle(&file, 2, Share::READ)).await;
        let now: &[u8] = if again { b"DATA" } else { b"data" };
        assert_eq!(read_open(&cache, &opened, 0, 10).await, now, "{policy:?}");
        // The rights were racy too, so an OPEN is sent, and it brings the data.
        let asked: &[_] = if again { &[("GETATTR", 1), ("OPEN", 1)] } else { &[] };
        assert_eq!((piggyback(&bench), bench.origin.calls()), (if again { 4 } else { 0 }, asked.to_vec()));
    }
}

/// Another client writes between the OPEN and its READ, and no lease prevents it.
#[tokio::test(start_paused = true)]
async fn a_stranger_between_the_two_is_seen_at_the_next_open() {
    let (bench, cache, file) = setup(Policy::Never, b"data").await;
    let origin = bench.origin.clone();
    let strangers = Box::new(move || {
        let _ = origin.tree().write(&file, 0, b"DATA").unwrap();
    });
    *bench.origin.after_effect.lock() = Some((Some("OPEN"), strangers));
    let opened = open(&cache, &open_handle(&file, 1, Share::READ)).await;
    assert_eq!(read_open(&cache, &opened, 0, 10).await, b"DATA", "those of the open, or later");
    bench.origin.pass(SECOND);
    bench.origin.tree().write(&file, 0, b"more").unwrap();
    let again = open(&cache, &open_handle(&file, 2, Share::READ)).await;
    assert_eq!(read_open(&cache, &again, 0, 10).await, b"more");
}

/// A write of ours overtakes the reply: later reads return it.
#[tokio::test]
async fn a_write_of_ours_meanwhile_is_not_undone() {
    for by_name in [false, true] {
        let (bench, cache, file) = setup(Policy::Never, b"data").await;
        let gate = bench.origin.gate("OPEN");
        gate.admit(1);
        let opening = tokio::spawn({
            let cache = cache.clone();
            let by_handle = open_handle(&file, 1, Share::READ);
            let request = if by_name { open_request(&root(), "f", 1, Share::READ) } else { by_handle };
            async move { open(&cache, &request).await }
        });
        until(|| bench.origin.piggyback_bytes.load(Ordering::Relaxed) == 4).await;
        write(&cache, &opener(0), &file, 0, b"mine").await;
        gate.open();
        let opened = opening.await.unwrap();
        assert_eq!(read_open(&cache, &opened, 0, 10).await, b"mine", "{by_name}");
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "mine", "{by_name}");
    }
}

/// The same, if the write began before the OPEN and ends after it.
#[tokio::test]
async fn a_write_of_ours_around_it_is_not_undone() {
    let (bench, cache, file) = setup(Policy::Never, b"data").await;
    let gate = bench.origin.gate("WRITE");
    let writing = tokio::spawn({
        let cache = cache.clone();
        async move { write(&cache, &opener(0), &file, 0, b"mine").await }
    });
    gate.wait_for(1).await;
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    gate.open();
    writing.await.unwrap();
    assert_eq!(read_open(&cache, &opened, 0, 10).await, b"mine");
}

/// If the requester gives up on the open, nothing stays behind that keeps the file busy.
#[tokio::test]
async fn who_gives_up_leaves_nothing_behind() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read), b"data").await;
    let gate = bench.origin.gate("OPEN");
    let opening = tokio::spawn({
        let cache = cache.clone();
        async move { open(&cache, &open_handle(&file, 1, Share::READ)).await }
    });
    gate.wait_for(1).await;
    opening.abort();
    assert!(opening.await.is_err());
    gate.open();
    until(|| bench.origin.lease(&file).is_some() && cache.stats().leases_read == 1).await;
    assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "data");
    assert!(bench.origin.calls().iter().all(|(call, count)| ["OPEN", "READ"].contains(call) && *count == 1));
}
