//! The timestamp granularity rule: changes that leave the same timestamps.
//!
//! Time stands still unless a test moves it, so two changes certainly fall into one granularity.
//!
//! Promise: timestamp-granularity

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::{Bench, Origin, TestClock, name, opener, read, root, write};
use vfs::{CreateHow, FileSystem, Handle, ReadDir, SetAttributes, Status};

const GRANULARITY: Duration = Duration::from_millis(10);

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

fn bench() -> Bench {
    Bench::over(Origin::with_granularity(GRANULARITY))
}

async fn open_and_read(cache: &Cache, file: &Handle) -> bytes::Bytes {
    cache.getattr(&opener(0), file).await.unwrap();
    read(cache, &opener(0), file, 0, 100).await
}

#[tokio::test(start_paused = true)]
async fn a_second_change_within_the_granule_is_seen_at_the_next_open() {
    let bench = bench();
    let file = bench.origin.put(&root(), "f", b"first");
    let cache = bench.open().await;
    assert_eq!(open_and_read(&cache, &file).await, "first");
    let before = bench.origin.tree().get(&file).unwrap().attributes;
    bench.origin.tree().write(&file, 0, b"again").unwrap();
    assert_eq!(bench.origin.tree().get(&file).unwrap().attributes, before, "nothing tells them apart");
    assert_eq!(open_and_read(&cache, &file).await, "again");
}

#[tokio::test(start_paused = true)]
async fn what_was_fetched_a_granule_later_is_trusted() {
    let bench = bench();
    let file = bench.origin.put(&root(), "f", b"first");
    let cache = bench.open().await;
    open_and_read(&cache, &file).await;
    pass(GRANULARITY).await;
    open_and_read(&cache, &file).await;
    bench.origin.calls();
    open_and_read(&cache, &file).await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
}

#[tokio::test(start_paused = true)]
async fn old_files_are_trusted_at_once() {
    let bench = bench();
    let file = bench.origin.put(&root(), "f", b"first");
    bench.origin.pass(Duration::from_secs(4));
    let cache = bench.open().await;
    open_and_read(&cache, &file).await;
    bench.origin.calls();
    open_and_read(&cache, &file).await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_origin_whose_clock_is_an_hour_behind_deceives_nobody_once_it_is_known() {
    let bench = bench();
    let mut options = bench.options();
    options.clock = Arc::new(TestClock { origin: bench.origin.clone(), ahead_seconds: 3600 });
    let cache = bench.open_with(options).await;
    let set = SetAttributes::default();
    cache.create(&opener(0), &root(), &name("ours"), CreateHow::Guarded, &set).await.unwrap();
    pass(GRANULARITY).await;
    cache.create(&opener(0), &root(), &name("ours too"), CreateHow::Guarded, &set).await.unwrap();
    let file = bench.origin.put(&root(), "f", b"first");
    assert_eq!(open_and_read(&cache, &file).await, "first");
    bench.origin.tree().write(&file, 0, b"again").unwrap();
    assert_eq!(open_and_read(&cache, &file).await, "again");
}

#[tokio::test(start_paused = true)]
async fn an_origin_whose_clock_is_an_hour_ahead_costs_no_more_than_a_granule() {
    let bench = bench();
    let file = bench.origin.put(&root(), "f", b"first");
    let mut options = bench.options();
    options.clock = Arc::new(TestClock { origin: bench.origin.clone(), ahead_seconds: -3600 });
    for _ in 0..2 {
        let cache = bench.open_with(options.clone()).await;
        open_and_read(&cache, &file).await;
        pass(GRANULARITY).await;
        open_and_read(&cache, &file).await;
        bench.origin.calls();
        open_and_read(&cache, &file).await;
        assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
        cache.flush().await;
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_young_directories_and_files_are_asked_again() {
    let bench = bench();
    bench.origin.put(&root(), "f", b"");
    let cache = bench.open().await;
    let look = async |text: &str| cache.lookup(&opener(0), &root(), &name(text), vfs::Want::None).await;
    look("f").await.unwrap();
    look("g").await.unwrap_err();
    bench.origin.tree().rename((&root(), &name("f")), (&root(), &name("g"))).unwrap();
    assert_eq!(look("f").await.unwrap_err().status, Status::NoEnt);
    look("g").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn listings_of_young_directories_are_read_again() {
    let bench = bench();
    bench.origin.put(&root(), "f", b"");
    let cache = bench.open().await;
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 4096,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let count = async || cache.readdir(&opener(0), &root(), part).await.unwrap().entries.len();
    assert_eq!(count().await, 1);
    bench.origin.put(&root(), "g", b"");
    assert_eq!(count().await, 2);
    pass(GRANULARITY).await;
    count().await;
    bench.origin.calls();
    count().await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
}

/// Two changes of our own may fall into one granularity. A process may be killed after the second one has
/// taken effect and before the process knows.
#[tokio::test(start_paused = true)]
async fn killed_between_two_own_writes_within_a_granule() {
    let bench = bench();
    let cache = bench.open().await;
    let set = SetAttributes::default();
    let file =
        cache.create(&opener(0), &root(), &name("f"), CreateHow::Guarded, &set).await.unwrap().node.handle;
    write(&cache, &opener(0), &file, 0, b"first").await;
    cache.flush().await;
    let gate = bench.origin.gate("WRITE");
    let writing = cache.clone();
    let second = tokio::spawn(async move { write(&writing, &opener(0), &file, 0, b"again").await });
    gate.admit(1);
    while bench.origin.tree().get(&file).unwrap().data != b"again" {
        tokio::task::yield_now().await;
    }
    let killed = bench.killed();
    let reborn = killed.open().await;
    assert_eq!(open_and_read(&reborn, &file).await, "again");
    gate.open();
    second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn killed_between_two_own_changes_of_names_within_a_granule() {
    let bench = bench();
    let cache = bench.open().await;
    let set = SetAttributes::default();
    let look = async |cache: &Cache, text: &str| {
        cache.lookup(&opener(0), &root(), &name(text), vfs::Want::None).await
    };
    cache.create(&opener(0), &root(), &name("a"), CreateHow::Guarded, &set).await.unwrap();
    look(&cache, "b").await.unwrap_err();
    look(&cache, "a").await.unwrap();
    cache.flush().await;
    let gate = bench.origin.gate("RENAME");
    let renaming = cache.clone();
    let rename = async move { renaming.rename(&opener(0), &root(), &name("a"), &root(), &name("b")).await };
    let rename = tokio::spawn(rename);
    gate.admit(1);
    while bench.origin.tree().get(&root()).unwrap().names.contains_key(&name("a")) {
        tokio::task::yield_now().await;
    }
    let killed = bench.killed();
    let reborn = killed.open().await;
    assert_eq!(look(&reborn, "a").await.unwrap_err().status, Status::NoEnt);
    look(&reborn, "b").await.unwrap();
    gate.open();
    rename.await.unwrap().unwrap();
}

/// A record that is written later, when the state is nonracy, is worth keeping.
#[tokio::test(start_paused = true)]
async fn own_writes_outlive_a_kill_once_they_are_settled() {
    let bench = bench();
    let cache = bench.open().await;
    let set = SetAttributes::default();
    let file =
        cache.create(&opener(0), &root(), &name("f"), CreateHow::Guarded, &set).await.unwrap().node.handle;
    write(&cache, &opener(0), &file, 0, b"first").await;
    cache.flush().await;
    pass(GRANULARITY).await;
    cache.flush().await;
    drop(cache);
    let cache = bench.open().await;
    bench.origin.calls();
    assert_eq!(open_and_read(&cache, &file).await, "first");
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("GETATTR", 1)]);
}
