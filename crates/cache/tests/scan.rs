//! A scan of more objects than the table holds: what was learnt is believed as long as its timeout lasts, in
//! little memory, and no longer.
//!
//! Promise: close-to-open

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Options};
use origin::{Bench, name, opener, root, write};
use vfs::{Caller, FileSystem, Handle, ReadDir, Want};

const FILES: usize = 1000;
const LONG: Duration = Duration::from_secs(3600);

/// A `stat`: attribute timeouts decide.
fn stat() -> Caller {
    Caller::unix(0, 0, &[])
}

/// The options of a cache that keeps as few objects awake as it can, and believes attributes for long.
fn long_timeouts(bench: &Bench) -> Options {
    let mut options = Options { objects_in_memory_max: 0, ..bench.options() };
    (options.timeouts.acregmin, options.timeouts.acregmax) = (LONG, LONG);
    (options.timeouts.acdirmin, options.timeouts.acdirmax) = (LONG, LONG);
    options
}

/// An origin with a directory of files, and a cache that keeps as few objects awake as it can.
async fn scanned() -> (Bench, Arc<Cache>, Vec<Handle>) {
    let bench = Bench::new();
    let files = (0..FILES).map(|number| bench.origin.put(&root(), &format!("f{number}"), b"data")).collect();
    bench.origin.pass(LONG);
    let cache = bench.open_with(long_timeouts(&bench)).await;
    list(&cache).await;
    // The right to look names up is asked for once.
    cache.lookup(&stat(), &root(), &name("f0"), Want::None).await.unwrap();
    rest(&cache).await;
    bench.origin.calls();
    (bench, cache, files)
}

/// The sizes in the listing of the root; `None` for a name without attributes.
async fn list(cache: &Cache) -> Vec<Option<u64>> {
    let mut part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 64 << 10,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let mut sizes = Vec::new();
    loop {
        let listing = cache.readdir(&stat(), &root(), part).await.unwrap();
        let size = |entry: &vfs::Entry| Some(entry.node?.attributes?.size);
        sizes.extend(listing.entries.iter().map(size));
        match listing.entries.last() {
            Some(last) if !listing.eof => {
                part = ReadDir { cookie: last.cookie, verifier: listing.verifier, ..part };
            }
            _ => return sizes,
        }
    }
}

/// Waits until all objects are at rest, but for those that are still racy.
async fn rest(cache: &Cache) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(20);
    while cache.stats().objects_in_memory > 1 {
        assert!(
            tokio::time::Instant::now() < patience,
            "{} objects stay in memory",
            cache.stats().objects_in_memory
        );
        cache.flush().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_second_scan_asks_nothing_and_wakes_nobody() {
    let (bench, cache, files) = scanned().await;
    assert_eq!(list(&cache).await, vec![Some(4); FILES]);
    for file in &files {
        assert_eq!(cache.getattr(&stat(), file).await.unwrap().size, 4);
    }
    assert_eq!(bench.origin.calls(), []);
    let stats = cache.stats();
    assert!(stats.objects_in_memory <= 2, "{} objects woke", stats.objects_in_memory);
    assert!(stats.objects_at_rest >= FILES as u64, "{} objects rest", stats.objects_at_rest);
    for (number, file) in files.iter().enumerate() {
        let found = cache.lookup(&stat(), &root(), &name(&format!("f{number}")), Want::None).await.unwrap();
        assert_eq!(found.node.handle, *file);
    }
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn an_open_asks_and_sees_what_another_client_wrote() {
    let (bench, cache, files) = scanned().await;
    bench.origin.tree().write(&files[7], 0, b"longer data").unwrap();
    assert_eq!(cache.getattr(&stat(), &files[7]).await.unwrap().size, 4, "within the timeout");
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(cache.getattr(&opener(0), &files[7]).await.unwrap().size, 11);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(cache.getattr(&stat(), &files[7]).await.unwrap().size, 11);
    rest(&cache).await;
    assert_eq!(cache.getattr(&stat(), &files[7]).await.unwrap().size, 11, "and at rest again");
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn a_change_of_ours_is_seen_at_once() {
    let (_bench, cache, files) = scanned().await;
    write(&cache, &opener(0), &files[3], 0, b"seven b").await;
    assert_eq!(cache.getattr(&stat(), &files[3]).await.unwrap().size, 7);
    let set = vfs::SetAttributes { size: Some(2), ..vfs::SetAttributes::default() };
    cache.setattr(&stat(), &files[4], &set, None).await.unwrap();
    assert_eq!(cache.getattr(&stat(), &files[4]).await.unwrap().size, 2);
    cache.remove(&opener(0), &root(), &name("f5")).await.unwrap();
    assert!(cache.lookup(&stat(), &root(), &name("f5"), Want::None).await.is_err());
    rest(&cache).await;
    let sizes = list(&cache).await;
    assert_eq!(sizes.len(), FILES - 1);
    assert!(sizes.contains(&Some(7)) && sizes.contains(&Some(2)));
}

#[tokio::test]
async fn memory_for_resting_states_is_bounded() {
    let bench = Bench::new();
    let files: Vec<_> =
        (0..FILES).map(|number| bench.origin.put(&root(), &format!("f{number}"), b"data")).collect();
    bench.origin.pass(LONG);
    let options = Options { objects_in_memory_max: 0, resting_max_bytes: 64 << 10, ..bench.options() };
    let cache = bench.open_with(options).await;
    list(&cache).await;
    rest(&cache).await;
    let resting = cache.stats().objects_at_rest;
    assert!((64..=320).contains(&resting), "{resting} objects rest in 64 KiB");
    bench.origin.calls();
    for file in &files {
        assert_eq!(cache.getattr(&opener(0), file).await.unwrap().size, 4, "what was dropped is asked for");
    }
    assert_eq!(bench.origin.calls(), [("GETATTR", FILES as u64)]);
}

/// The directory was heard to be changed by another client and then left memory. The names of its files at
/// rest must be confirmed all the same.
#[tokio::test]
async fn a_doubt_of_names_is_not_forgotten_with_the_directory() {
    let bench = Bench::new();
    let directory = bench.origin.put_dir(&root(), "d");
    let old = bench.origin.put(&directory, "n", b"old");
    bench.origin.put(&directory, "m", b"other");
    bench.origin.pass(LONG);
    let mut options = Options { objects_in_memory_max: 0, ..bench.options() };
    (options.timeouts.acregmin, options.timeouts.acregmax) = (LONG, LONG);
    let cache = bench.open_with(options).await;
    let look = async |text: &str| cache.lookup(&stat(), &directory, &name(text), Want::None).await;
    assert_eq!(look("n").await.unwrap().node.handle, old);
    look("m").await.unwrap();
    rest(&cache).await;
    bench.origin.tree().remove(&directory, &name("n"), false).unwrap();
    let new = bench.origin.put(&directory, "n", b"new");
    // The reply to a creation of ours shows a change that is not ours alone.
    bench.origin.without_before.store(true, std::sync::atomic::Ordering::Relaxed);
    let set = vfs::SetAttributes::default();
    cache.create(&stat(), &directory, &name("x"), vfs::CreateHow::Guarded, &set).await.unwrap();
    bench.origin.pass(LONG);
    rest(&cache).await;
    look("m").await.unwrap();
    assert_eq!(look("n").await.unwrap().node.handle, new);
}

/// The sweep of the index meets a listing whose directory is not in the index yet.
#[tokio::test]
async fn a_sweep_leaves_what_was_just_listed() {
    let bench = Bench::new();
    for number in 0..FILES {
        bench.origin.put(&root(), &format!("f{number}"), b"data");
    }
    bench.origin.pass(LONG);
    let cache = bench.open_with(long_timeouts(&bench)).await;
    list(&cache).await;
    cache.sweep().await;
    rest(&cache).await;
    bench.origin.calls();
    assert_eq!(list(&cache).await, vec![Some(4); FILES]);
    assert_eq!(bench.origin.calls(), []);
}
