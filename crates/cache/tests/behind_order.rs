//! Delayed writes before an origin that is slow or answers DELAY: their order, and which operations wait for
//! which.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, WriteBehind};
use origin::behind::{BOTH, delaying, open, open_file, over, put, user};
use origin::state::Policy;
use origin::{Bench, open_request, opener, root, until};
use vfs::{FileSystem, Handle, LeaseKind, Opens, SetAttributes, SetTime, Status, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

fn sizes(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

/// A file under a write lease that was written and closed, and its time of modification. The time is set with
/// the data.
async fn written_and_closed() -> (Bench, Arc<Cache>, Handle, Timestamp) {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let (bench, cache, file) = over(bench, b"").await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"first").await;
    cache.close(&user(), id).await.unwrap();
    let shown = cache.getattr(&opener(0), &file).await.unwrap().mtime;
    // The age limit sends the data before long.
    tokio::time::sleep(20 * SECOND).await;
    (bench, cache, file, shown)
}

fn mtime(bench: &Bench, file: &Handle) -> Timestamp {
    bench.origin.tree().get(file).unwrap().attributes.mtime
}

// Promise: times-of-closed-files
#[tokio::test(start_paused = true)]
async fn a_time_that_is_on_its_way_does_not_come_after_newer_writes() {
    for cuts in [false, true] {
        let (bench, cache, file, first) = written_and_closed().await;
        let gate = bench.origin.gate("SETATTR");
        // The age limit sends the data, and then the time.
        gate.wait_for(1).await;
        let id = open(&cache, &open_request(&root(), "f", 1, BOTH)).await;
        let syncing = cache.clone();
        let sync = tokio::spawn(async move {
            if cuts {
                let set = sizes(2);
                syncing.setattr(&user(), &file, &set, None).await.unwrap();
            } else {
                put(&syncing, id, &file, 0, b"newer").await;
                syncing.commit(&user(), &file, 0, 0).await.unwrap();
            }
        });
        tokio::time::sleep(SECOND).await;
        assert!(!sync.is_finished(), "what it would undo is not done before it");
        gate.open();
        sync.await.unwrap();
        assert_eq!(bench.origin.contents(&file), if cuts { b"fi".to_vec() } else { b"newer".to_vec() });
        tokio::time::sleep(40 * SECOND).await;
        assert!(mtime(&bench, &file) > first, "newer contents with the older time");
        assert_eq!(cache.stats().dirty_bytes, 0);
    }
}

// Promise: times-of-closed-files
#[tokio::test(start_paused = true)]
async fn a_time_that_the_origin_puts_off_is_not_set_after_newer_writes_or_times() {
    for touches in [false, true] {
        let (bench, cache, file, first) = written_and_closed().await;
        bench.origin.calls();
        bench.origin.durability.refuse_setattrs.lock().push_back(Status::Delay);
        until(|| bench.origin.durability.refuse_setattrs.lock().is_empty()).await;
        // While the cache waits to send the time again, newer changes are sent.
        let id = open(&cache, &open_request(&root(), "f", 1, BOTH)).await;
        put(&cache, id, &file, 0, b"newer").await;
        let begun = tokio::time::Instant::now();
        cache.commit(&user(), &file, 0, 0).await.unwrap();
        assert!(begun.elapsed() < SECOND / 20, "nothing that was put off is waited for");
        let set =
            SetAttributes { mtime: Some(SetTime::Client(Timestamp::new(7, 0))), ..SetAttributes::default() };
        if touches {
            cache.setattr(&user(), &file, &set, None).await.unwrap();
        }
        tokio::time::sleep(40 * SECOND).await;
        assert_eq!(bench.origin.contents(&file), b"newer");
        let there = mtime(&bench, &file);
        assert!(if touches { there == Timestamp::new(7, 0) } else { there > first }, "{there:?}");
        let calls = bench.origin.calls();
        let setattr = ("SETATTR", 1 + u64::from(touches));
        assert!(calls.contains(&setattr), "the one that is void is not sent again: {calls:?}");
    }
}

// Promise: refused-writes
#[tokio::test(start_paused = true)]
async fn a_file_that_the_origin_puts_off_holds_up_no_other() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let files = ["a", "b"].map(|text| bench.origin.put(&root(), text, b""));
    bench.origin.pass(10 * SECOND);
    let limits = |behind: &mut WriteBehind| (behind.in_flight_max, behind.wsize) = (2, 4096);
    let cache = delaying(&bench, limits).await;
    let mut opens = Vec::new();
    for text in ["a", "b"] {
        opens.push(open(&cache, &open_request(&root(), text, 1, BOTH)).await);
    }
    bench.origin.durability.puts_off.lock().push(files[0]);
    put(&cache, opens[0], &files[0], 0, &[1; 8192]).await;
    let (first, syncing) = (files[0], cache.clone());
    let sync = tokio::spawn(async move { syncing.commit(&user(), &first, 0, 0).await });
    tokio::time::sleep(SECOND * 60).await;
    for byte in 0..10 {
        put(&cache, opens[1], &files[1], 0, &[byte]).await;
        let sync = tokio::time::timeout(SECOND, cache.commit(&user(), &files[1], 0, 0)).await;
        sync.expect("the other file is nothing to it").unwrap();
    }
    // Nor is a recall held up.
    put(&cache, opens[1], &files[1], 0, b"recalled").await;
    bench.origin.others(&files[1], |tree| assert_eq!(tree.get(&files[1]).unwrap().data, b"recalled")).await;
    assert!(!sync.is_finished());
    bench.origin.durability.puts_off.lock().clear();
    sync.await.unwrap().unwrap();
    assert_eq!(bench.origin.contents(&files[0]), [1; 8192]);
}

// Promise: refused-writes
#[tokio::test(start_paused = true)]
async fn many_files_that_the_origin_puts_off_do_not_keep_others_from_being_sent_by_age() {
    let bench = Bench::new();
    let cache = delaying(&bench, |_| ()).await;
    for n in 0..100 {
        let text = format!("f{n}");
        let file = bench.origin.put(&root(), &text, b"");
        let id = open(&cache, &open_request(&root(), &text, 1, BOTH)).await;
        bench.origin.durability.puts_off.lock().push(file);
        put(&cache, id, &file, 0, b"put off").await;
    }
    let file = bench.origin.put(&root(), "f", b"");
    let id = open(&cache, &open_request(&root(), "f", 1, BOTH)).await;
    put(&cache, id, &file, 0, b"sent").await;
    tokio::time::sleep(SECOND * 120).await;
    assert_eq!(bench.origin.contents(&file), b"sent");
    bench.origin.durability.puts_off.lock().clear();
    until(|| cache.stats().dirty_bytes == 0).await;
}
