//! Attribute timeouts, as nfs(5) has them. Time moves only when a test moves it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, LookupCache, Timeouts};
use origin::{Bench, name, opener, read, root};
use vfs::{AccessMask, Caller, FileSystem, Handle, Status};

fn stat() -> Caller {
    Caller::unix(0, 0, &[])
}

async fn setup(timeouts: Timeouts) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(Duration::from_secs(100));
    let mut options = bench.options();
    options.timeouts = timeouts;
    let cache = bench.open_with(options).await;
    cache.getattr(&stat(), &file).await.unwrap();
    bench.origin.calls();
    (bench, cache, file)
}

#[tokio::test(start_paused = true)]
async fn timeouts_double_from_acregmin_to_acregmax_and_begin_again_after_a_change() {
    let (bench, cache, file) = setup(Timeouts::default()).await;
    // Pairs of seconds after the last GETATTR: a `stat` is free at the first, and costs a GETATTR at the
    // second.
    let steps = async |expected: &[(u64, u64)]| {
        for (free, asked) in expected {
            tokio::time::advance(Duration::from_secs(*free)).await;
            cache.getattr(&stat(), &file).await.unwrap();
            assert_eq!(bench.origin.calls(), [], "after {free} s");
            tokio::time::advance(Duration::from_secs(asked - free)).await;
            cache.getattr(&stat(), &file).await.unwrap();
            assert_eq!(bench.origin.calls(), [("GETATTR", 1)], "after {asked} s");
        }
    };
    steps(&[(2, 3), (5, 6), (11, 12), (23, 24), (47, 48), (59, 60), (59, 60)]).await;
    bench.origin.tree().write(&file, 0, b"DATA").unwrap();
    steps(&[(59, 60), (2, 3), (5, 6)]).await;
}

#[tokio::test(start_paused = true)]
async fn directories_have_timeouts_of_their_own() {
    let (bench, cache, _) = setup(Timeouts::default()).await;
    cache.getattr(&stat(), &root()).await.unwrap();
    bench.origin.calls();
    for (wait, calls) in [(29, 0), (1, 1), (59, 0), (1, 1)] {
        tokio::time::advance(Duration::from_secs(wait)).await;
        cache.getattr(&stat(), &root()).await.unwrap();
        assert_eq!(bench.origin.calls().len(), calls, "after {wait} s more");
    }
}

#[tokio::test(start_paused = true)]
async fn actimeo_sets_them_all() {
    let (bench, cache, file) = setup(Timeouts::actimeo(Duration::from_secs(7))).await;
    for (wait, calls) in [(6, 0), (1, 1), (6, 0), (1, 1)] {
        tokio::time::advance(Duration::from_secs(wait)).await;
        cache.getattr(&stat(), &file).await.unwrap();
        assert_eq!(bench.origin.calls().len(), calls);
    }
}

// Promise: close-to-open
#[tokio::test(start_paused = true)]
async fn a_file_held_open_is_not_read_as_it_was_for_ever() {
    let (bench, cache, file) = setup(Timeouts::default()).await;
    cache.access(&opener(0), &file, AccessMask::READ).await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 4).await, "data");
    bench.origin.tree().write(&file, 0, b"DATA").unwrap();
    let begin = tokio::time::Instant::now();
    while read(&cache, &opener(0), &file, 0, 4).await == "data" {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(begin.elapsed() <= Duration::from_secs(60));
    }
}

// Promise: remembered-rights
#[tokio::test(start_paused = true)]
async fn remembered_rights_expire() {
    let (bench, cache, file) = setup(Timeouts::default()).await;
    cache.access(&opener(0), &file, AccessMask::READ).await.unwrap();
    bench.origin.calls();
    tokio::time::advance(Duration::from_secs(59)).await;
    cache.access(&opener(0), &file, AccessMask::READ).await.unwrap();
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    tokio::time::advance(Duration::from_secs(2)).await;
    cache.access(&opener(0), &file, AccessMask::READ).await.unwrap();
    assert_eq!(bench.origin.calls(), [("ACCESS", 1)], "groups may have changed without a trace on the file");
}

#[tokio::test(start_paused = true)]
async fn lookupcache_says_which_names_are_used() {
    for (which, positive, negative) in [
        (LookupCache::All, "GETATTR", "GETATTR"),
        (LookupCache::Positive, "GETATTR", "LOOKUP"),
        (LookupCache::None, "LOOKUP", "LOOKUP"),
    ] {
        let bench = Bench::new();
        bench.origin.put(&root(), "f", b"");
        bench.origin.pass(Duration::from_secs(100));
        let mut options = bench.options();
        options.lookup_cache = which;
        let cache = bench.open_with(options).await;
        for (text, call) in [("f", positive), ("none", negative)] {
            let _ = cache.lookup(&opener(0), &root(), &name(text), vfs::Want::None).await;
            bench.origin.calls();
            let found = cache.lookup(&opener(0), &root(), &name(text), vfs::Want::None).await;
            assert_eq!(found.is_err_and(|error| error.status == Status::NoEnt), text == "none");
            assert_eq!(bench.origin.calls(), [(call, 1)], "{which:?} {text}");
        }
    }
}
