//! Leases on more files than the table holds. The leases rest in little memory. Each vouches, is recalled and
//! outlives the process as if its file were in the table.
//!
//! Promise: held-state

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Options};
use origin::state::Policy;
use origin::{Bench, name, open_handle, open_request, opener, read, root, v4, v4_opener, write};
use vfs::{FileSystem, Handle, LeaseKind, Leases, OpenRequest, Opens, Share};

const FILES: usize = 300;
const SECOND: Duration = Duration::from_secs(1);

/// Keeps as few objects awake as it can, and as few known states at rest as `resting_max_bytes` holds.
fn small(bench: &Bench, resting_max_bytes: usize) -> Options {
    Options { objects_in_memory_max: 0, resting_max_bytes, ..bench.options() }
}

/// An origin that gives leases of this kind, and a cache that has read all files and closed them again.
async fn leased(kind: LeaseKind, resting_max_bytes: usize) -> (Bench, Arc<Cache>, Vec<Handle>) {
    leased_with(kind, |options| options.resting_max_bytes = resting_max_bytes).await
}

async fn leased_with(kind: LeaseKind, change: impl FnOnce(&mut Options)) -> (Bench, Arc<Cache>, Vec<Handle>) {
    let bench = Bench::with_state(Policy::Always(kind));
    bench.origin.state.lock().resumes = true;
    let files: Vec<_> =
        (0..FILES).map(|number| bench.origin.put(&root(), &format!("f{number}"), b"data")).collect();
    bench.origin.pass(10 * SECOND);
    let mut options = small(&bench, 1 << 20);
    change(&mut options);
    let cache = bench.open_with(options).await;
    read_all(&cache, &files).await;
    rest(&cache).await;
    bench.origin.calls();
    (bench, cache, files)
}

async fn read_all(cache: &Cache, files: &[Handle]) {
    for (number, file) in files.iter().enumerate() {
        let request = open_request(&root(), &format!("f{number}"), 1, Share::READ);
        let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
        assert_eq!((opened.handle, opened.attributes.size), (*file, 4));
        assert_eq!(read(cache, &v4(0, 1), file, 0, 10).await, "data");
        cache.close(&v4(0, 1), opened.id).await.unwrap();
    }
}

/// Waits until all objects are at rest, but for directories.
async fn rest(cache: &Cache) {
    for _ in 0..100 {
        cache.flush().await;
        if cache.stats().objects_in_memory <= 2 {
            return;
        }
        // Opens that are being closed are awake.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{} objects stay in memory", cache.stats().objects_in_memory);
}

fn leases(cache: &Cache) -> usize {
    let stats = cache.stats();
    (stats.leases_read + stats.leases_write) as usize
}

#[tokio::test]
async fn files_at_rest_are_opened_and_read_under_their_leases_without_a_call() {
    // With room for all known states, and with room for almost none: the index has them too.
    for bytes in [1 << 20, 1] {
        for kind in [LeaseKind::Read, LeaseKind::Write] {
            let (bench, cache, files) = leased(kind, bytes).await;
            assert_eq!(leases(&cache), FILES);
            assert_eq!(cache.held().opens_below, FILES, "each lease keeps its open");
            bench.origin.pass(20 * SECOND);
            for file in &files {
                assert_eq!(cache.getattr(&opener(0), file).await.unwrap().size, 4);
            }
            read_all(&cache, &files).await;
            rest(&cache).await;
            assert_eq!(bench.origin.calls(), [], "{kind:?}, {bytes} bytes");
            assert_eq!(leases(&cache), FILES);
        }
    }
}

#[tokio::test]
async fn a_lease_at_rest_is_recalled_before_another_client_writes() {
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let (bench, cache, files) = leased(kind, 1 << 20).await;
        for file in files.iter().step_by(7) {
            bench.origin.others_write(file, 0, b"longer data").await;
            assert_eq!(cache.getattr(&opener(0), file).await.unwrap().size, 11);
            assert_eq!(read(&cache, &opener(0), file, 0, 20).await, "longer data");
        }
        rest(&cache).await;
        let held = leases(&cache);
        bench.origin.revoke(&files[1]);
        bench.origin.revoke_unheard(&files[2]);
        bench.origin.tree().write(&files[1], 0, b"revoked").unwrap();
        origin::until(|| leases(&cache) < held).await;
        assert_eq!(cache.getattr(&opener(0), &files[1]).await.unwrap().size, 7);
        assert_eq!(cache.getattr(&opener(0), &files[3]).await.unwrap().size, 4);
    }
}

#[tokio::test]
async fn what_we_change_under_a_lease_at_rest_is_seen_at_once() {
    let (bench, cache, files) = leased(LeaseKind::Write, 1 << 20).await;
    write(&cache, &opener(0), &files[3], 0, b"seven b").await;
    assert_eq!(cache.getattr(&opener(0), &files[3]).await.unwrap().size, 7);
    rest(&cache).await;
    assert_eq!(cache.getattr(&opener(0), &files[3]).await.unwrap().size, 7);
    cache.remove(&opener(0), &root(), &name("f5")).await.unwrap();
    origin::until(|| bench.origin.lease(&files[5]).is_none()).await;
}

#[tokio::test]
async fn the_leases_used_least_recently_go_back_first() {
    let (bench, cache, files) = leased(LeaseKind::Read, 1 << 20).await;
    let recall_to = async |keep: u32| {
        bench.origin.state.lock().say(vfs::Callback::RecallAny { holder: None, keep });
        origin::until(|| leases(&cache) == keep as usize).await;
    };
    recall_to(250).await;
    for file in &files[60..80] {
        assert_eq!(read(&cache, &v4(0, 1), file, 0, 10).await, "data");
    }
    rest(&cache).await;
    recall_to(100).await;
    let kept = |file: &&Handle| bench.origin.lease(file).is_some();
    assert_eq!(files[60..80].iter().filter(kept).count(), 20, "those in use stay");
    assert_eq!(files.iter().filter(kept).count(), 100);
}

#[tokio::test]
async fn leases_of_an_earlier_process_rest_until_they_are_used() {
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let (bench, cache, files) = leased(kind, 1 << 20).await;
        let after = bench.killed();
        drop(cache);
        after.origin.revoke_unheard(&files[9]);
        after.origin.tree().write(&files[9], 0, b"changed").unwrap();
        let cache = after.open_with(small(&after, 1 << 20)).await;
        assert!(cache.stats().objects_in_memory <= 1, "{} woke", cache.stats().objects_in_memory);
        assert_eq!(leases(&cache), FILES - 1);
        cache.end_reclaim().await;
        after.origin.calls();
        for (number, file) in files.iter().enumerate() {
            let size = cache.getattr(&opener(0), file).await.unwrap().size;
            assert_eq!(size, if number == 9 { 7 } else { 4 });
        }
        assert_eq!(after.origin.calls(), [("GETATTR", 1)], "only of the file whose lease was lost");
        after.origin.others_write(&files[0], 0, b"DATA!").await;
        assert_eq!(read(&cache, &opener(0), &files[0], 0, 10).await, "DATA!");
        assert_eq!(cache.held().opens_below, FILES - 1);
    }
}

// Promise: shared-opens
#[tokio::test]
async fn beyond_a_number_the_opens_unused_for_longest_are_closed_and_their_leases_stay() {
    const KEPT_MAX: usize = 64;
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let (bench, cache, files) = leased_with(kind, |options| options.kept_opens_max = KEPT_MAX).await;
        let opens_below = || cache.held().opens_below;
        assert_eq!(leases(&cache), FILES);
        origin::until(|| opens_below() <= KEPT_MAX).await;
        assert!(opens_below() >= KEPT_MAX - KEPT_MAX / 16, "{} opens", opens_below());
        bench.origin.calls();
        // The others are believed, and their data is there.
        for file in &files {
            assert_eq!(cache.getattr(&opener(0), file).await.unwrap().size, 4);
        }
        assert_eq!(bench.origin.calls(), []);
        let open = async |number: usize| {
            let request = open_request(&root(), &format!("f{number}"), 1, Share::READ);
            let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
            assert_eq!(read(&cache, &v4(0, 1), &opened.handle, 0, 10).await, "data");
            cache.close(&v4(0, 1), opened.id).await.unwrap();
        };
        open(FILES - 1).await;
        assert_eq!(bench.origin.calls(), [], "the last one has its open");
        open(0).await;
        assert_eq!(bench.origin.calls(), [], "the lease of the first one does as much");
        // The leases vouch, and are recalled, as before.
        for file in files.iter().step_by(7) {
            bench.origin.others_write(file, 0, b"longer data").await;
            assert_eq!(cache.getattr(&opener(0), file).await.unwrap().size, 11);
            assert_eq!(read(&cache, &opener(0), file, 0, 20).await, "longer data");
        }
        // A file that is in use keeps its open, whatever else is opened.
        let request = open_request(&root(), "f1", 1, Share::READ);
        let held = cache.open(&v4_opener(0, 1), &request).await.unwrap();
        for number in (0..FILES).filter(|number| *number != 1) {
            let request = open_request(&root(), &format!("f{number}"), 2, Share::READ);
            let opened = cache.open(&v4_opener(0, 2), &request).await.unwrap();
            cache.close(&v4(0, 2), opened.id).await.unwrap();
        }
        origin::until(|| opens_below() <= KEPT_MAX + 1).await;
        bench.origin.calls();
        let request = open_request(&root(), "f1", 3, Share::READ);
        let shared = cache.open(&v4_opener(0, 3), &request).await.unwrap();
        assert_eq!(bench.origin.calls(), []);
        for id in [held.id, shared.id] {
            cache.close(&v4(0, 1), id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn opens_of_an_earlier_process_count_among_those_that_a_lease_keeps() {
    let (bench, cache, files) = leased(LeaseKind::Read, 1 << 20).await;
    let after = bench.killed();
    drop(cache);
    let options = Options { kept_opens_max: 64, ..small(&after, 1 << 20) };
    let cache = after.open_with(options).await;
    // As long as clients may reclaim their opens, none is closed.
    cache.flush().await;
    let reclaim = OpenRequest { reclaim: true, ..open_handle(&files[0], 1, Share::READ) };
    let reclaimed = cache.open(&v4_opener(0, 1), &reclaim).await.unwrap();
    assert_eq!(cache.held().opens_below, FILES);
    cache.end_reclaim().await;
    origin::until(|| cache.held().opens_below <= 65).await;
    assert_eq!(read(&cache, &v4(0, 1), &files[0], 0, 10).await, "data");
    cache.close(&v4(0, 1), reclaimed.id).await.unwrap();
    assert_eq!(leases(&cache), FILES);
    assert!(after.origin.lease(&files[0]).is_some());
}
