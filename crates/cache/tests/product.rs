//! Files that the cache keeps: pins, limits, thresholds, completed files, and damaged data.
//!
//! Promise: limits-and-pins

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::BTreeSet;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Completed, Completeness, Fill, FindError, Keeper, Options, Validity};
use origin::{Bench, id, name, opener, read, root, until, write};
use proptest::prelude::*;
use vfs::{AccessMask, FileSystem, Fsid, Handle, ReadDir};

const LONG: Duration = Duration::from_secs(100);
const BLOCK: usize = 4096;
const PART: ReadDir = ReadDir {
    cookie: 0,
    verifier: [0; 8],
    bytes: 1 << 16,
    plus: true,
    want_directory_lease: false,
    names_suffice: false,
};

fn is_complete(cache: &Cache, file: &Handle) -> bool {
    cache.info(file).completeness == Completeness::Complete
}

async fn complete(cache: &Cache, file: &Handle) -> Completed {
    cache.complete(&opener(0), file).await.unwrap()
}

/// All files of the store.
fn stored_files(bench: &Bench) -> Vec<PathBuf> {
    let shards = std::fs::read_dir(bench.directory.path().join("cache/objects")).unwrap();
    let files = |shard: PathBuf| std::fs::read_dir(shard).unwrap().map(|file| file.unwrap().path());
    shards.flat_map(|shard| files(shard.unwrap().path())).collect()
}

fn flip_a_byte(file: &PathBuf, at: u64) {
    let mut file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.seek(std::io::SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(std::io::SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 0x40]).unwrap();
}

#[tokio::test]
async fn completing_fetches_what_is_missing_and_what_is_whole_costs_nothing() {
    let bench = Bench::new();
    let data: Vec<u8> = (0..3 * (1 << 20) + 77).map(|at: usize| (at % 251) as u8).collect();
    let file = bench.origin.put(&root(), "f", &data);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    cache.access(&opener(0), &file, AccessMask::all()).await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 1 << 20, 4096).await, data[1 << 20..][..4096]);
    until(|| cache.info(&file).completeness == Completeness::Part).await;
    bench.origin.calls();
    assert_eq!(complete(&cache, &file).await, Completed::Now(data.len() as u64 - 4096));
    assert!(is_complete(&cache, &file));
    let calls = bench.origin.calls();
    assert!(calls.iter().all(|(call, _)| ["READ", "GETATTR"].contains(call)), "{calls:?}");
    assert_eq!(complete(&cache, &file).await, Completed::Was);
    assert_eq!(bench.origin.calls(), [], "within the timeout");
    assert_eq!(read(&cache, &opener(0), &file, 0, 8 << 20).await, data);
    assert_eq!(bench.origin.calls(), []);
    let directory = bench.origin.put_dir(&root(), "d");
    assert_eq!(complete(&cache, &directory).await, Completed::NoFile);
    // After another client's WRITE the file is no longer complete, and completing starts again.
    bench.origin.tree().write(&file, 5, b"other").unwrap();
    bench.origin.pass(LONG);
    cache.getattr(&opener(0), &file).await.unwrap();
    assert!(!is_complete(&cache, &file));
    assert_eq!(complete(&cache, &file).await, Completed::Now(data.len() as u64));
}

#[tokio::test]
async fn thresholds_keep_files_out() {
    let bench = Bench::new();
    let [small, right, large] =
        [100, 5000, 90_000].map(|size| bench.origin.put(&root(), &format!("f{size}"), &vec![7; size]));
    bench.origin.pass(LONG);
    let racy = bench.origin.put(&root(), "young", &vec![7; 5000]);
    let mut options = bench.options();
    options.limits.file_min_bytes = 4096;
    options.limits.file_max_bytes = 64 << 10;
    options.limits.changed_min_age = Duration::from_secs(30);
    let cache = bench.open_with(options).await;
    for (file, size) in [(small, 100), (large, 90_000), (racy, 5000)] {
        assert_eq!(complete(&cache, &file).await, Completed::NotWanted);
        assert_eq!(read(&cache, &opener(0), &file, 0, 1 << 20).await, vec![7; size]);
        write(&cache, &opener(0), &file, 0, &vec![8; size]).await;
        assert_eq!(read(&cache, &opener(0), &file, 0, 1 << 20).await, vec![8; size]);
    }
    assert_eq!(cache.stats().stored_bytes, 0);
    assert!(matches!(complete(&cache, &right).await, Completed::Now(5000)));
    bench.origin.pass(LONG);
    assert!(matches!(complete(&cache, &racy).await, Completed::Now(5000)), "it has rested since");
}

#[tokio::test]
async fn a_file_system_of_the_origin_has_a_limit_of_its_own() {
    let bench = Bench::new();
    let put = |number: usize, major: u64| {
        let file = bench.origin.put(&root(), &format!("f{major}-{number}"), &[7; 4 * BLOCK]);
        bench.origin.tree().inodes.get_mut(&id(&file)).unwrap().attributes.fsid = Fsid { major, minor: 0 };
        file
    };
    let one: Vec<Handle> = (0..10).map(|number| put(number, 1)).collect();
    let two: Vec<Handle> = (0..30).map(|number| put(number, 2)).collect();
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.limits.export_max_bytes = Some(80 * BLOCK as u64);
    let cache = bench.open_with(options.clone()).await;
    for file in one.iter().chain(&two) {
        assert!(matches!(complete(&cache, file).await, Completed::Now(_)), "the cleaner makes room");
    }
    until(|| two.iter().filter(|file| is_complete(&cache, file)).count() <= 18).await;
    assert!(one.iter().all(|file| is_complete(&cache, file)), "the other one's files stay");
    assert!(is_complete(&cache, &two[29]) && !is_complete(&cache, &two[0]), "the oldest went first");
    // The count survives a restart.
    cache.shutdown().await;
    drop(cache);
    let cache = bench.open_with(options).await;
    let more = put(99, 2);
    bench.origin.pass(LONG);
    assert!(matches!(complete(&cache, &more).await, Completed::Now(_)));
    until(|| two.iter().filter(|file| is_complete(&cache, file)).count() <= 18).await;
    assert!(one.iter().all(|file| is_complete(&cache, file)));
}

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Pin(usize),
    Unpin(usize),
    PinDirectory,
    UnpinDirectory,
}

const FILES: usize = 12;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..FILES).prop_map(Step::Read),
        1 => (0..FILES).prop_map(Step::Pin),
        1 => (0..FILES).prop_map(Step::Unpin),
        1 => Just(Step::PinDirectory),
        1 => Just(Step::UnpinDirectory),
    ]
}

/// Plays steps on a small cache. After each step, compares the cached files with a model of uses and pins.
async fn play(sizes: Vec<usize>, soft_blocks: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let bench = Bench::new();
    let directory = bench.origin.put_dir(&root(), "d");
    let above = |number: usize| if number.is_multiple_of(3) { directory } else { root() };
    let files: Vec<Handle> = (0..FILES)
        .map(|number| {
            bench.origin.put(
                &above(number),
                &format!("f{number}"),
                &vec![number as u8; sizes[number] * BLOCK],
            )
        })
        .collect();
    bench.origin.pass(LONG);
    let mut options: Options = bench.options();
    options.limits.size_max_bytes = 20 * BLOCK as u64;
    options.limits.size_soft_bytes = Some(soft_blocks * BLOCK as u64);
    let cache = bench.open_with(options).await;
    for place in [root(), directory] {
        cache.readdir(&opener(0), &place, PART).await.unwrap();
    }
    let mut last_use = [0; FILES];
    let mut pins: BTreeSet<usize> = BTreeSet::new();
    let mut complete_directory = false;
    for (now, step) in (1..).zip(steps) {
        let cached: BTreeSet<usize> =
            (0..FILES).filter(|number| is_complete(&cache, &files[*number])).collect();
        match step {
            Step::Read(number) => {
                complete(&cache, &files[number]).await;
                last_use[number] = now;
            }
            Step::Pin(number) => {
                pins.insert(number);
                cache.pin(&files[number], format!("/f{number}")).await.unwrap();
            }
            Step::Unpin(number) => {
                prop_assert_eq!(cache.unpin(&files[number]).await.unwrap(), pins.remove(&number));
            }
            Step::PinDirectory => {
                complete_directory = true;
                cache.pin(&directory, "/d".into()).await.unwrap();
            }
            Step::UnpinDirectory => {
                prop_assert_eq!(cache.unpin(&directory).await.unwrap(), complete_directory);
                complete_directory = false;
            }
        }
        let kept = |number: usize| pins.contains(&number) || (complete_directory && number.is_multiple_of(3));
        let soft = soft_blocks * BLOCK as u64;
        // The cleaner stops when there is capacity, or when no more files may go. Until then it respects
        // the pins of this step.
        until(|| {
            let stats = cache.stats();
            let nothing_may_go =
                || (0..FILES).all(|number| kept(number) || !is_complete(&cache, &files[number]));
            !stats.cleaning && ((stats.used_bytes <= soft && !stats.paused) || nothing_may_go())
        })
        .await;
        for number in 0..FILES {
            let there = is_complete(&cache, &files[number]);
            let keeper = cache.info(&files[number]).pinned;
            prop_assert_eq!(keeper.is_some(), kept(number));
            prop_assert!(!pins.contains(&number) || keeper == Some(Keeper::Itself));
            if cached.contains(&number) && !there {
                prop_assert!(!kept(number), "a pinned file went");
                // Of two files that may go, the one used less recently goes first.
                for other in
                    cached.iter().filter(|other| !kept(**other) && is_complete(&cache, &files[**other]))
                {
                    prop_assert!(
                        last_use[*other] > last_use[number],
                        "{other} should have gone before {number}"
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// The limits hold, pinned files stay, and the least recently used file goes first, whatever is read
    /// and pinned.
    #[test]
    fn the_cleaner_takes_the_oldest_and_nothing_pinned(
        sizes in prop::collection::vec(1..5usize, FILES),
        soft_blocks in 8..18u64,
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(sizes, soft_blocks, steps))?;
    }
}

/// If the cleaner finds nothing to remove, it waits longer each time. It must not do so if it has just
/// removed files among many pinned ones, or a step of this play waits for half a minute.
#[tokio::test]
async fn what_may_go_goes_soon_where_much_is_pinned() {
    use Step::{Pin, PinDirectory, Read, UnpinDirectory};
    let sizes = vec![2, 3, 3, 3, 4, 3, 1, 1, 3, 4, 3, 2];
    let mut steps = vec![Pin(10), PinDirectory, Read(9), Read(10), Read(3), Read(0)];
    steps.extend([8, 5, 11, 2, 4, 8, 5, 1].map(Read));
    steps.extend([UnpinDirectory, Read(3), Read(6)]);
    play(sizes, 9, steps).await.unwrap();
}

#[tokio::test]
async fn a_pin_outlives_the_process_and_the_index_and_keeps_what_comes_later() {
    let bench = Bench::new();
    let directory = bench.origin.put_dir(&root(), "d");
    let below = bench.origin.put_dir(&directory, "e");
    let early = bench.origin.put(&below, "early", &[1; 4 * BLOCK]);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    cache.root(&opener(0)).await.unwrap();
    for (above, text) in [(root(), "d"), (directory, "e"), (below, "early")] {
        cache.lookup(&opener(0), &above, &name(text), vfs::Want::None).await.unwrap();
    }
    cache.pin(&directory, "/d".into()).await.unwrap();
    complete(&cache, &early).await;
    cache.flush().await;
    let killed = bench.killed();
    let mut options = killed.options();
    options.limits.size_max_bytes = 8 * BLOCK as u64;
    let cache = killed.open_with(options).await;
    assert_eq!(cache.info(&early).pinned, Some(Keeper::Above(directory)), "after kill -9");
    let late = bench.origin.put(&below, "late", &[2; 4 * BLOCK]);
    bench.origin.pass(LONG);
    cache.lookup(&opener(0), &below, &name("late"), vfs::Want::None).await.unwrap();
    assert_eq!(cache.info(&late).pinned, Some(Keeper::Above(directory)), "a later file, too");
    assert!(matches!(complete(&cache, &late).await, Completed::Now(_)));
    // All cached files are pinned: they stay, and there is no capacity for others.
    let other = bench.origin.put(&root(), "other", &[3; 4 * BLOCK]);
    bench.origin.pass(LONG);
    for _ in 0..5 {
        assert_eq!(complete(&cache, &other).await, Completed::Full);
    }
    assert!(is_complete(&cache, &early) && is_complete(&cache, &late));
    cache.unpin(&directory).await.unwrap();
    assert!(matches!(complete(&cache, &other).await, Completed::Now(_)), "there is room again");
    cache.pin(&directory, "/d".into()).await.unwrap();
    // Moved out of the directory, the file is no longer pinned.
    let moved = cache.rename(&opener(0), &below, &name("late"), &root(), &name("late")).await;
    moved.unwrap();
    cache.lookup(&opener(0), &root(), &name("late"), vfs::Want::None).await.unwrap();
    assert_eq!(cache.info(&late).pinned, None);
    cache.shutdown().await;
    drop(cache);
    drop(killed.open().await);
    std::fs::remove_dir_all(killed.directory.path().join("cache/index")).unwrap();
    let cache = killed.open().await;
    assert_eq!(cache.pins().len(), 1);
    for (above, text) in [(root(), "d"), (directory, "e"), (below, "early")] {
        cache.lookup(&opener(0), &above, &name(text), vfs::Want::None).await.unwrap();
    }
    assert_eq!(
        cache.info(&early).pinned,
        Some(Keeper::Above(directory)),
        "the index is lost, the pin is not"
    );
}

// Promise: checksums
#[tokio::test]
async fn rot_on_the_disk_is_found_and_dropped() {
    let bench = Bench::new();
    let files: Vec<Handle> = (0..3)
        .map(|number| bench.origin.put(&root(), &format!("f{number}"), &vec![number; 2 * (1 << 20) + 5]))
        .collect();
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    for file in &files {
        complete(&cache, file).await;
    }
    // This holds for our own writes too, and across a restart.
    write(&cache, &opener(0), &files[0], 100, b"written here").await;
    bench.origin.pass(LONG);
    cache.shutdown().await;
    drop(cache);
    drop(bench.open().await);
    for damage in [false, true] {
        let broken = bench.killed();
        if damage {
            let stored = stored_files(&broken);
            flip_a_byte(&stored[0], 1 << 20);
            flip_a_byte(&stored[1], 7);
        }
        let cache = Cache::open_offline(&broken.directory.path().join("cache")).await.unwrap();
        let mut found = 0;
        for file in &files {
            let kept = cache.verify_disk(file, false).await;
            assert!(!kept.dropped);
            let verified = cache.verify_disk(file, true).await;
            assert_eq!(kept.damaged, verified.damaged);
            found += usize::from(!verified.damaged.is_empty());
            assert_eq!(verified.dropped, !verified.damaged.is_empty());
            assert_eq!(
                is_complete(&cache, file),
                verified.damaged.is_empty() && cache.info(file).cached_bytes > 0
            );
            let length: u64 = verified.damaged.iter().map(|range| range.end - range.start).sum();
            assert!(damage || verified.good_bytes + verified.unchecked_bytes >= 2 << 20, "{verified:?}");
            assert!(length <= 2 << 20, "only the range with the damage");
        }
        assert_eq!(found, if damage { 2 } else { 0 });
        cache.close_offline().await;
    }
}

#[tokio::test]
async fn what_differs_from_the_origin_is_found_and_dropped() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 3 << 20]);
    let other = bench.origin.put(&root(), "g", &vec![7; 3 << 20]);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    complete(&cache, &file).await;
    complete(&cache, &other).await;
    let good = cache.verify_origin(&file, true).await.unwrap();
    assert_eq!((good.good_bytes, good.damaged.len(), good.dropped), (3 << 20, 0, false));
    // The bytes change at the origin without a trace in its attributes: only a comparison can tell.
    bench.origin.tree().inodes.get_mut(&id(&file)).unwrap().data[1 << 20] = 8;
    assert_eq!(cache.verify_disk(&file, true).await.damaged, []);
    let bad = cache.verify_origin(&file, true).await.unwrap();
    assert!(bad.dropped && bad.damaged.len() == 1, "{bad:?}");
    assert_eq!(cache.stats().damaged, 1);
    assert_eq!(read(&cache, &opener(0), &file, 1 << 20, 1).await, [8][..]);
    // A file that was changed regularly is not damaged.
    bench.origin.tree().write(&other, 0, b"new").unwrap();
    bench.origin.pass(LONG);
    let changed = cache.verify_origin(&other, true).await.unwrap();
    assert!(changed.changed && changed.damaged.is_empty(), "{changed:?}");
}

#[tokio::test]
async fn files_are_completed_while_nobody_asks_the_least_first() {
    let bench = Bench::new();
    let sizes = [10usize, 40, 20, 30];
    let files: Vec<Handle> = sizes
        .iter()
        .map(|blocks| bench.origin.put(&root(), &format!("f{blocks}"), &vec![9; blocks * 100 * BLOCK]))
        .collect();
    let sliver = bench.origin.put(&root(), "sliver", &vec![9; 1000 * BLOCK]);
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.readahead_max_bytes = 0;
    options.flush_interval = Duration::from_millis(5);
    options.fill = Some(Fill { idle: Duration::from_millis(300), percent_min: 10 });
    let cache = bench.open_with(options).await;
    for (file, blocks) in files.iter().zip(sizes).chain([(&sliver, 0)]) {
        cache.access(&opener(7), file, AccessMask::all()).await.unwrap();
        read(&cache, &opener(7), file, 0, (blocks * 20 * BLOCK).max(BLOCK) as u32).await;
    }
    // Other requests keep the link busy: no file is completed meanwhile.
    for _ in 0..40 {
        cache.getattr(&opener(0), &root()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(cache.stats().filled_bytes, 0);
    bench.origin.delay.store(2000, std::sync::atomic::Ordering::Relaxed);
    let mut done = Vec::new();
    until(|| cache.stats().filled_bytes > 0).await;
    for _ in 0..10_000 {
        for (file, blocks) in files.iter().zip(sizes) {
            if is_complete(&cache, file) && !done.contains(&blocks) {
                done.push(blocks);
            }
        }
        if done.len() == files.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(done, [10, 20, 30, 40], "fewest missing bytes first");
    let missing: usize = sizes.iter().map(|blocks| blocks * 80 * BLOCK).sum();
    assert_eq!(cache.stats().filled_bytes, missing as u64);
    assert_eq!(cache.info(&sliver).completeness, Completeness::Part, "too little of it was read");
}

#[tokio::test]
async fn the_rest_of_a_file_is_fetched_after_a_restart() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![9; 300 * BLOCK]);
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.readahead_max_bytes = 0;
    let cache = bench.open_with(options.clone()).await;
    cache.access(&opener(7), &file, AccessMask::all()).await.unwrap();
    read(&cache, &opener(7), &file, 0, 100 * BLOCK as u32).await;
    until(|| cache.info(&file).completeness == Completeness::Part).await;
    cache.flush().await;
    let killed = bench.killed();
    options.directory = killed.directory.path().join("cache");
    options.fill = Some(Fill { idle: Duration::from_millis(20), percent_min: 10 });
    let cache = killed.open_with(options).await;
    until(|| is_complete(&cache, &file)).await;
    assert_eq!(cache.stats().filled_bytes, 200 * BLOCK as u64);
    assert_eq!(read(&cache, &opener(7), &file, 0, 1 << 21).await, vec![9; 300 * BLOCK]);
}

#[tokio::test]
async fn paths_lead_through_what_is_remembered_and_looking_asks_nobody() {
    let bench = Bench::new();
    let directory = bench.origin.put_dir(&root(), "d");
    let file = bench.origin.put(&directory, "f", &[1; 100]);
    bench.origin.put(&directory, "unseen", b"");
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    let error = Cache::open_offline(&bench.directory.path().join("elsewhere")).await.err().unwrap();
    assert!(error.to_string().contains("no cache directory"), "{error}");
    cache.root(&opener(0)).await.unwrap();
    cache.lookup(&opener(0), &root(), &name("d"), vfs::Want::None).await.unwrap();
    cache.lookup(&opener(0), &directory, &name("f"), vfs::Want::None).await.unwrap();
    complete(&cache, &file).await;
    bench.origin.calls();
    assert_eq!(cache.find(b"/d//f").await, Ok(file));
    assert_eq!(cache.find(b"/").await, Ok(root()));
    assert_eq!(cache.children(&directory, None, 10), [(name("f"), file)]);
    let info = cache.info(&file);
    assert_eq!(
        (info.cached_bytes, info.completeness, info.validity),
        (100, Completeness::Complete, Validity::Current)
    );
    assert_eq!(cache.path_of(&file).unwrap(), [name("d"), name("f")]);
    assert_eq!(bench.origin.calls(), []);
    assert!(cache.find(b"/d/unseen").await.is_ok(), "looked up");
    assert!(matches!(cache.find(b"/d/none").await, Err(FindError::Origin(..))));
    assert_eq!(cache.find(b"/d/../d").await, Err(FindError::NoPath));
    cache.shutdown().await;
    drop(cache);
    drop(bench.open().await);
    bench.origin.calls();
    bench.origin.pass(LONG);
    let cache = loop {
        match Cache::open_offline(&bench.directory.path().join("cache")).await {
            Err(cache::OpenError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
            other => break other.unwrap(),
        }
    };
    assert!(cache.is_offline());
    assert_eq!(cache.find(b"/d/f").await, Ok(file));
    assert!(matches!(cache.find(b"/d/none").await, Err(FindError::NotKnown(_))));
    let info = cache.info(&file);
    assert_eq!((info.completeness, info.validity), (Completeness::Complete, Validity::Unconfirmed));
    assert!(info.used_at.is_some() && info.confirmed.is_some());
    assert_eq!(cache.totals().await.complete, 1);
    assert!(cache.drop_data(&file).await > 0);
    cache.close_offline().await;
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(stored_files(&bench).len(), 0);
}

#[tokio::test]
async fn the_origin_is_told_of_reads_only_if_it_is_to_be() {
    for told in [false, true] {
        let bench = Bench::new();
        let file = bench.origin.put(&root(), "f", &[1; 100]);
        bench.origin.pass(LONG);
        let mut options = bench.options();
        options.atime_after = told.then_some(Duration::from_secs(30));
        let cache: Arc<Cache> = bench.open_with(options).await;
        cache.access(&opener(0), &file, AccessMask::all()).await.unwrap();
        complete(&cache, &file).await;
        bench.origin.calls();
        for _ in 0..5 {
            assert_eq!(read(&cache, &opener(0), &file, 0, 100).await, vec![1; 100]);
        }
        if told {
            until(|| cache.stats().atimes == 1).await;
            assert!(is_complete(&cache, &file), "our own change of the times keeps the data");
            assert_eq!(read(&cache, &opener(0), &file, 0, 100).await, vec![1; 100]);
        }
        let calls = bench.origin.calls();
        assert_eq!(calls, if told { vec![("SETATTR", 1)] } else { vec![] });
    }
}
