//! A disk of the cache that is full for a while, or before the cache exists. Nothing fails. Nothing is
//! believed that was not written. Caching begins, or begins again, when there is space.
//!
//! Promise: full-cache-disk

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, OpenError};
use origin::{Bench, SmallDisk, name, opener, read, root, until};
use vfs::{AccessMask, Data, FileSystem, Handle, StateidBasis, Status};

const LONG: Duration = Duration::from_secs(10);
const MIB: usize = 1 << 20;
const FILES: usize = 40;

struct Setting {
    bench: Bench,
    disk: SmallDisk,
    files: Vec<Handle>,
}

impl Setting {
    /// Small files at the origin, and a disk for the cache. `None` if no disk can be mounted.
    fn new() -> Option<Setting> {
        let bench = Bench::new();
        let disk = SmallDisk::on(bench.directory.path(), 64 * MIB)?;
        let put = |number: usize| bench.origin.put(&root(), &format!("f{number}"), &content(number));
        let files = (0..FILES).map(put).collect();
        bench.origin.pass(LONG);
        Some(Setting { bench, disk, files })
    }

    async fn open(&self) -> Arc<Cache> {
        let mut options = self.bench.options();
        options.flush_interval = Duration::from_millis(5);
        self.bench.open_with(options).await
    }
}

fn content(number: usize) -> Vec<u8> {
    vec![number as u8; 300_000 + number]
}

async fn read_all(cache: &Cache, files: &[Handle]) {
    for (number, file) in files.iter().enumerate() {
        cache.lookup(&opener(0), &root(), &name(&format!("f{number}")), vfs::Want::None).await.unwrap();
        cache.access(&opener(0), file, AccessMask::all()).await.unwrap();
        assert_eq!(read(cache, &opener(0), file, 0, MIB as u32).await, content(number), "f{number}");
    }
}

/// Reads all files until the data of each comes from the disk.
async fn store_all(cache: &Cache, files: &[Handle]) {
    for (number, file) in files.iter().enumerate() {
        let length = content(FILES).len() as u32;
        for round in 0.. {
            assert!(round < 10_000, "f{number} is never stored");
            cache.getattr(&opener(0), file).await.unwrap();
            let data = cache.read(&opener(0), file, StateidBasis::Anonymous, 0, length).await.unwrap().data;
            if matches!(data, Data::File(_)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Looks up names until the index has noticed that it has no space.
async fn break_index(cache: &Cache) {
    for number in 0.. {
        if cache.stats().index_broken {
            return;
        }
        assert!(number < 100_000, "the index does not notice");
        let _ = cache
            .lookup(
                &opener(0),
                &root(),
                &name(&format!("absent{number}-{}", "x".repeat(200))),
                vfs::Want::None,
            )
            .await;
    }
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_while_stops_caching_for_a_while() {
    let Some(setting) = Setting::new() else { return };
    let Setting { bench, disk, files } = &setting;
    let cache = setting.open().await;
    read_all(&cache, files).await;
    store_all(&cache, files).await;
    disk.fill();
    break_index(&cache).await;
    // Everything works, from memory and from the origin.
    read_all(&cache, files).await;
    cache.remove(&opener(0), &root(), &name("f0")).await.unwrap();
    assert_eq!(
        cache.lookup(&opener(0), &root(), &name("f0"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    let added = bench.origin.put(&root(), "added", b"added while the disk was full");
    disk.free();
    until(|| !cache.stats().index_broken).await;
    assert_eq!(read(&cache, &opener(0), &added, 0, 100).await[..], *b"added while the disk was full");
    for (number, file) in files.iter().enumerate().skip(1) {
        cache.lookup(&opener(0), &root(), &name(&format!("f{number}")), vfs::Want::None).await.unwrap();
        assert_eq!(read(&cache, &opener(0), file, 0, MIB as u32).await, content(number));
    }
    store_all(&cache, &files[1..]).await;
    cache.flush().await;
    cache.shutdown().await;
    drop(cache);
    // Everything written to the new index is there after a restart. The rest is requested again.
    let cache = setting.open().await;
    assert!(!cache.stats().index_broken);
    bench.origin.calls();
    assert_eq!(
        cache.lookup(&opener(0), &root(), &name("f0"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    for (number, file) in files.iter().enumerate().skip(1) {
        cache.access(&opener(0), file, AccessMask::all()).await.unwrap();
        assert_eq!(read(&cache, &opener(0), file, 0, MIB as u32).await, content(number));
    }
    let calls = bench.origin.calls();
    assert!(calls.iter().all(|(call, _)| *call != "READ"), "what is on disk is known again: {calls:?}");
}

#[tokio::test]
async fn a_process_that_dies_while_the_disk_is_full_leaves_nothing_to_be_believed() {
    let Some(setting) = Setting::new() else { return };
    let Setting { bench, disk, files } = &setting;
    let cache = setting.open().await;
    read_all(&cache, files).await;
    store_all(&cache, files).await;
    disk.fill();
    break_index(&cache).await;
    drop(cache);
    // The old index is gone, whatever it held.
    assert!(!bench.directory.path().join("cache/index").exists());
    disk.free();
    let cache = setting.open().await;
    bench.origin.calls();
    read_all(&cache, files).await;
    assert!(bench.origin.calls().contains(&("READ", FILES as u64)));
    // Files without a record are removed from the disk.
    cache.sweep().await;
    until(|| bench.stored_files().len() == FILES).await;
}

#[tokio::test]
async fn a_cache_that_is_opened_on_a_full_disk_works_and_begins_when_there_is_space() {
    let Some(setting) = Setting::new() else { return };
    let Setting { bench, disk, files } = &setting;
    disk.fill();
    let cache = setting.open().await;
    assert!(cache.stats().index_broken);
    for _ in 0..2 {
        read_all(&cache, files).await;
    }
    assert_eq!(cache.stats().used_bytes, 0);
    disk.free();
    until(|| !cache.stats().index_broken).await;
    read_all(&cache, files).await;
    store_all(&cache, files).await;
    cache.shutdown().await;
    drop(cache);
    let format = std::fs::read_to_string(bench.directory.path().join("cache/format")).unwrap();
    assert!(format.contains("nfs://origin/export"), "{format}");
    // An inspection must not discard a cache on a full disk.
    disk.fill();
    let directory = bench.directory.path().join("cache");
    let mut looked = Cache::open_offline(&directory).await;
    // The previous cache may still be shutting down.
    while matches!(looked, Err(OpenError::InUse { .. })) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        looked = Cache::open_offline(&directory).await;
    }
    match looked {
        Ok(cache) => drop(cache),
        Err(error) => assert!(matches!(error, OpenError::Full(_)), "{error}"),
    }
    disk.free();
    let cache = setting.open().await;
    bench.origin.calls();
    read_all(&cache, files).await;
    assert!(bench.origin.calls().iter().all(|(call, _)| *call != "READ"), "all is cached");
}
