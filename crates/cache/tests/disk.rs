//! The cache on the disk: restarts, limits, and directories that are full, damaged, in use, or another
//! origin's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, OpenError};
use origin::{Bench, SmallDisk, name, opener, read, root, until, write};
use vfs::{
    AccessMask, Caller, CreateHow, Data, FileSystem, Handle, ReadDir, SetAttributes, StateidBasis, Status,
};

const LONG: Duration = Duration::from_secs(10);
const MIB: usize = 1 << 20;

/// An open as a v3 client does it, and a read of the complete file.
async fn open_and_read(cache: &Cache, file: &Handle) -> bytes::Bytes {
    cache.access(&opener(0), file, AccessMask::all()).await.unwrap();
    read(cache, &opener(0), file, 0, 8 << 20).await
}

/// Reads a file until the data comes from the disk: replies do not wait for that.
async fn store(cache: &Cache, file: &Handle, length: usize) -> Data {
    for _ in 0..5000 {
        cache.getattr(&opener(0), file).await.unwrap();
        let data =
            cache.read(&opener(0), file, StateidBasis::Anonymous, 0, length as u32).await.unwrap().data;
        if matches!(data, Data::File(_)) {
            return data;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never stored");
}

// Promise: cache-after-a-kill
#[tokio::test]
async fn a_restart_forgets_nothing() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 300_000]);
    let directory = bench.origin.put_dir(&root(), "d");
    bench.origin.put(&directory, "in", b"");
    bench.origin.pass(LONG);
    let user = opener(0);
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 4096,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let cache = bench.open().await;
    cache.lookup(&user, &root(), &name("f"), vfs::Want::None).await.unwrap();
    cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap_err();
    cache.readdir(&user, &directory, part).await.unwrap();
    open_and_read(&cache, &file).await;
    drop(store(&cache, &file, 300_000).await);
    cache.shutdown().await;
    drop(cache);

    let cache = bench.open().await;
    bench.origin.calls();
    assert_eq!(cache.lookup(&user, &root(), &name("f"), vfs::Want::None).await.unwrap().node.handle, file);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(
        cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(open_and_read(&cache, &file).await, vec![7; 300_000]);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    let names = ReadDir { plus: false, ..part };
    assert_eq!(cache.readdir(&user, &directory, names).await.unwrap().entries.len(), 1);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(cache.readdir(&user, &directory, part).await.unwrap().entries.len(), 1);
    assert_eq!(bench.origin.calls(), [("READDIR", 1)], "one call for the attributes of all");
    assert_eq!(cache.readdir(&user, &directory, part).await.unwrap().entries.len(), 1);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    // Without an open, the first read asks whether the file is still the same.
    let cache = {
        drop(cache);
        bench.open().await
    };
    let stat = Caller::unix(0, 0, &[]);
    assert_eq!(read(&cache, &stat, &file, 0, 10).await, vec![7; 10]);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(read(&cache, &stat, &file, 0, 10).await, vec![7; 10]);
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn what_changed_while_we_were_away_is_dropped() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 300_000]);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    open_and_read(&cache, &file).await;
    drop(store(&cache, &file, 300_000).await);
    cache.shutdown().await;
    drop(cache);
    bench.origin.tree().write(&file, 5, b"new").unwrap();
    let cache = bench.open().await;
    assert_eq!(open_and_read(&cache, &file).await, bench.origin.tree().get(&file).unwrap().data);
    until(|| bench.stored_files().len() == 1).await;
}

#[tokio::test]
async fn the_limit_is_kept_and_what_was_used_last_stays() {
    let bench = Bench::new();
    let files: Vec<Handle> =
        (0..12).map(|number| bench.origin.put(&root(), &format!("f{number}"), &vec![number; MIB])).collect();
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.limits.size_max_bytes = 8 * MIB as u64;
    let cache = bench.open_with(options).await;
    for file in &files {
        open_and_read(&cache, file).await;
        drop(store(&cache, file, MIB).await);
        // One file is used all the time.
        open_and_read(&cache, &files[0]).await;
    }
    until(|| cache.stats().used_bytes <= 8 * MIB as u64 * 9 / 10 && cache.stats().evictions >= 4).await;
    bench.origin.calls();
    open_and_read(&cache, &files[0]).await;
    open_and_read(&cache, &files[11]).await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 2)], "both are here");
    assert_eq!(open_and_read(&cache, &files[1]).await, vec![1; MIB]);
    assert!(bench.origin.calls().contains(&("READ", 1)), "the oldest went first");
    let on_disk: u64 = bench.stored_files().iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    assert!(on_disk <= 9 * MIB as u64, "{on_disk}");
}

#[tokio::test]
async fn at_the_hard_limit_reads_go_past_the_cache() {
    let bench = Bench::new();
    let (a, b) =
        (bench.origin.put(&root(), "a", &vec![1; MIB]), bench.origin.put(&root(), "b", &vec![2; MIB / 2]));
    // The second file alone is below the soft limit, so it stays once it is cached.
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.limits.size_max_bytes = MIB as u64;
    let cache = bench.open_with(options).await;
    open_and_read(&cache, &a).await;
    // A reply is being sent from the data. It stays, so there is no capacity.
    let pinned = store(&cache, &a, MIB).await;
    let before = cache.stats();
    for _ in 0..3 {
        assert_eq!(open_and_read(&cache, &b).await, vec![2; MIB / 2]);
    }
    assert_eq!(cache.stats().stored_bytes, before.stored_bytes);
    assert_eq!(pinned.to_bytes().unwrap(), vec![1; MIB]);
    drop(pinned);
    drop(store(&cache, &b, MIB / 2).await);
    assert_eq!(cache.stats().evictions, before.evictions + 1);
}

#[tokio::test]
async fn a_disk_with_too_little_room_is_left_alone() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![1; MIB]);
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.limits.min_free_bytes = 1 << 60;
    let cache = bench.open_with(options).await;
    for _ in 0..3 {
        assert_eq!(open_and_read(&cache, &file).await, vec![1; MIB]);
    }
    assert_eq!(cache.stats().stored_bytes, 0);
}

#[tokio::test]
async fn an_evicted_file_is_not_torn_under_its_reader() {
    let bench = Bench::new();
    let files: Vec<Handle> =
        (0..20).map(|number| bench.origin.put(&root(), &format!("f{number}"), &vec![number; MIB])).collect();
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.limits.size_max_bytes = 4 * MIB as u64;
    let cache = bench.open_with(options).await;
    let mut held = Vec::new();
    for (number, file) in files.iter().enumerate() {
        open_and_read(&cache, file).await;
        let read = cache.read(&opener(0), file, StateidBasis::Anonymous, 0, MIB as u32).await.unwrap();
        held.push((number, read.data));
    }
    for (number, data) in held {
        assert_eq!(data.to_bytes().unwrap(), vec![number as u8; MIB]);
    }
}

#[tokio::test]
async fn a_second_cache_on_the_directory_is_refused() {
    let bench = Bench::new();
    let _first = bench.open().await;
    let error = Cache::open(bench.origin.clone(), bench.options()).await.err().unwrap();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

#[tokio::test]
async fn the_directory_of_another_origin_is_refused() {
    let bench = Bench::new();
    drop(bench.open().await);
    let mut options = bench.options();
    options.origin = "nfs://elsewhere/export".into();
    let error = loop {
        match Cache::open(bench.origin.clone(), options.clone()).await.err().unwrap() {
            OpenError::InUse { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
            error => break error,
        }
    };
    assert!(matches!(error, OpenError::OtherOrigin { .. }), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

// Promise: cache-after-a-kill
#[tokio::test]
async fn a_damaged_index_costs_calls_and_nothing_else() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 300_000]);
    bench.origin.pass(LONG);
    for round in 1..4 {
        let cache = bench.open().await;
        assert_eq!(open_and_read(&cache, &file).await, vec![7; 300_000]);
        drop(store(&cache, &file, 300_000).await);
        cache.shutdown().await;
        drop(cache);
        // The directory is released when the last task has ended.
        drop(bench.open().await);
        let damaged = bench.killed();
        damage(&damaged.directory.path().join("cache/index"), round);
        let cache = damaged.open().await;
        assert_eq!(open_and_read(&cache, &file).await, vec![7; 300_000]);
        cache.sweep().await;
        until(|| damaged.stored_files().len() <= 1).await;
    }
}

/// Flips one byte in some files, more in each round.
fn damage(path: &Path, round: usize) {
    for (number, entry) in std::fs::read_dir(path).unwrap().enumerate() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            damage(&path, round);
        } else if number % 3 < round {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap_or_default() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte ^= 0xff;
            }
            std::fs::write(&path, bytes).unwrap();
        }
    }
}

// Promise: cache-after-a-kill
#[tokio::test]
async fn data_files_that_somebody_removed_or_cut_are_fetched_again() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 300_000]);
    bench.origin.pass(LONG);
    for cut in [true, false] {
        let cache = bench.open().await;
        open_and_read(&cache, &file).await;
        drop(store(&cache, &file, 300_000).await);
        cache.shutdown().await;
        drop(cache);
        for path in bench.stored_files() {
            if cut {
                std::fs::File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        let cache = bench.open().await;
        for (offset, length) in [(0, 100), (200_000, 100), (0, 300_000)] {
            cache.getattr(&opener(0), &file).await.unwrap();
            assert_eq!(
                read(&cache, &opener(0), &file, offset, length).await,
                vec![7; length as usize],
                "cut: {cut}"
            );
        }
    }
}

#[tokio::test]
async fn files_without_a_record_are_swept() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 300_000]);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    open_and_read(&cache, &file).await;
    drop(store(&cache, &file, 300_000).await);
    // Killed before the index had a record: the file is an orphan.
    let killed = bench.killed();
    assert_eq!(killed.stored_files().len(), 1);
    let cache = killed.open().await;
    cache.sweep().await;
    assert_eq!(killed.stored_files().len(), 0);
    assert_eq!(cache.stats().used_bytes, 0);
    // A file with a record stays, and is counted.
    open_and_read(&cache, &file).await;
    drop(store(&cache, &file, 300_000).await);
    cache.flush().await;
    let killed = killed.killed();
    let cache = killed.open().await;
    cache.sweep().await;
    assert_eq!(killed.stored_files().len(), 1);
    assert!(cache.stats().used_bytes >= 300_000);
}

#[tokio::test]
async fn more_objects_than_memory_holds() {
    let bench = Bench::new();
    let files: Vec<Handle> = (0..2000)
        .map(|number| bench.origin.put(&root(), &format!("f{number}"), &[number as u8; 100]))
        .collect();
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.objects_in_memory_max = 64;
    options.flush_interval = Duration::from_millis(2);
    let cache = bench.open_with(options).await;
    for round in 0..2 {
        for (number, file) in files.iter().enumerate() {
            assert_eq!(open_and_read(&cache, file).await, vec![number as u8; 100]);
        }
        cache.flush().await;
        let calls = bench.origin.calls();
        if round == 1 {
            assert_eq!(calls, [("GETATTR", 2000)]);
        }
    }
    assert!(cache.stats().objects_in_memory < 2000, "{}", cache.stats().objects_in_memory);
}

#[tokio::test]
async fn the_number_of_records_is_bounded() {
    let bench = Bench::new();
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.objects_max = 100;
    options.objects_in_memory_max = 64;
    options.flush_interval = Duration::from_millis(2);
    let cache = bench.open_with(options).await;
    let set = SetAttributes::default();
    for number in 0..500 {
        let text = format!("f{number}");
        let made = cache.create(&opener(0), &root(), &name(&text), CreateHow::Guarded, &set).await.unwrap();
        write(&cache, &opener(0), &made.node.handle, 0, b"some bytes").await;
        if number % 50 == 0 {
            cache.flush().await;
        }
    }
    until(|| cache.stats().evictions >= 300).await;
    for number in (0..500).step_by(50) {
        let found =
            cache.lookup(&opener(0), &root(), &name(&format!("f{number}")), vfs::Want::None).await.unwrap();
        assert_eq!(open_and_read(&cache, &found.node.handle).await, "some bytes");
    }
}

// Promise: full-cache-disk
#[tokio::test]
async fn a_full_disk_is_no_reason_to_fail() {
    let bench = Bench::new();
    let Some(_disk) = SmallDisk::on(bench.directory.path(), 24 * MIB) else { return };
    let files: Vec<Handle> =
        (0..40).map(|number| bench.origin.put(&root(), &format!("f{number}"), &vec![number; MIB])).collect();
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.flush_interval = Duration::from_millis(5);
    let cache: Arc<Cache> = bench.open_with(options).await;
    for _ in 0..2 {
        for (number, file) in files.iter().enumerate() {
            assert_eq!(open_and_read(&cache, file).await, vec![number as u8; MIB]);
        }
    }
    write(&cache, &opener(0), &files[0], 0, &vec![99; MIB]).await;
    assert_eq!(open_and_read(&cache, &files[0]).await, vec![99; MIB]);
    cache.shutdown().await;
}
