//! Requests that overlap: shared calls, parallel writes, replies in any order, requests that are given up.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cache::Cache;
use origin::{Bench, id, name, opener, read, root, until, write};
use vfs::{CreateHow, Data, FileSystem, Handle, SetAttributes, Stability, StateidBasis, Status};

const LONG: Duration = Duration::from_secs(10);

/// A file of the origin that is old enough to be nonracy, and a cache that has opened it.
async fn opened(data: &[u8]) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", data);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    cache.access(&opener(0), &file, vfs::AccessMask::all()).await.unwrap();
    bench.origin.calls();
    (bench, cache, file)
}

/// Bytes that differ from block to block.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 512 % 251) as u8).collect()
}

// Promise: close-to-open
#[tokio::test]
async fn opens_share_a_getattr_that_is_not_yet_sent_and_no_other() {
    let (bench, cache, file) = opened(b"data").await;
    let gate = bench.origin.gate("GETATTR");
    let ask = || {
        let cache = cache.clone();
        tokio::spawn(async move { cache.getattr(&opener(0), &file).await.unwrap() })
    };
    let first = ask();
    gate.wait_for(1).await;
    let more: Vec<_> = (0..20).map(|_| ask()).collect();
    tokio::task::yield_now().await;
    // The first GETATTR has been sent: the others must see a change from now on.
    gate.admit(1);
    until(|| bench.origin.tree().get(&file).is_ok()).await;
    gate.reply(1);
    assert_eq!(first.await.unwrap().size, 4);
    bench.origin.tree().write(&file, 0, b"longer data").unwrap();
    gate.open();
    for one in more {
        assert_eq!(one.await.unwrap().size, 11);
    }
    let calls = bench.origin.calls();
    assert!(calls == [("GETATTR", 2)] || calls == [("GETATTR", 3)], "{calls:?}");
}

#[tokio::test]
async fn who_gives_up_waiting_leaves_no_trace() {
    let (bench, cache, file) = opened(b"data").await;
    let gate = bench.origin.gate("GETATTR");
    for _ in 0..3 {
        let asking = cache.clone();
        let first = tokio::spawn(async move { asking.getattr(&opener(0), &file).await });
        tokio::time::sleep(Duration::from_millis(2)).await;
        first.abort();
        let _ = first.await;
    }
    gate.open();
    assert_eq!(cache.getattr(&opener(0), &file).await.unwrap().size, 4);
}

#[tokio::test]
async fn misses_of_the_same_block_share_one_read() {
    let data = pattern(100_000);
    let (bench, cache, file) = opened(&data).await;
    let gate = bench.origin.gate("READ");
    let readers: Vec<_> = (0..10)
        .map(|reader| {
            let cache = cache.clone();
            tokio::spawn(async move { read(&cache, &opener(0), &file, 4096 + reader * 10, 2000).await })
        })
        .collect();
    gate.wait_for(1).await;
    gate.open();
    for (reader, bytes) in readers.into_iter().enumerate() {
        assert_eq!(bytes.await.unwrap(), data[4096 + reader * 10..][..2000]);
    }
    assert_eq!(bench.origin.calls(), [("READ", 1)]);
    assert_eq!(cache.stats().fetched_bytes, 4096, "whole blocks, and no more than was asked");
}

#[tokio::test]
async fn a_hit_does_not_wait_for_a_miss() {
    let data = pattern(100_000);
    let (bench, cache, file) = opened(&data).await;
    read(&cache, &opener(0), &file, 0, 4096).await;
    let gate = bench.origin.gate("READ");
    let waiting = cache.clone();
    let miss = tokio::spawn(async move { read(&waiting, &opener(0), &file, 50_000, 100).await });
    gate.wait_for(1).await;
    let user = opener(0);
    let hit = tokio::time::timeout(Duration::from_secs(5), read(&cache, &user, &file, 100, 100));
    assert_eq!(hit.await.unwrap(), data[100..200]);
    gate.open();
    assert_eq!(miss.await.unwrap(), data[50_000..50_100]);
}

#[tokio::test]
async fn partial_reads_cache_partially_and_join() {
    let data = pattern(300_000);
    let (bench, cache, file) = opened(&data).await;
    for (offset, length) in [(10_000, 5000), (100_000, 5000), (0, 300_000)] {
        assert_eq!(
            read(&cache, &opener(0), &file, offset, length).await,
            data[offset as usize..][..length as usize]
        );
    }
    assert_eq!(cache.stats().fetched_bytes, 300_000, "nothing was read twice");
    bench.origin.calls();
    assert_eq!(read(&cache, &opener(0), &file, 0, 300_000).await, data);
    assert_eq!(bench.origin.calls(), []);
}

/// One byte with each READ would cost a call for each byte.
#[tokio::test]
async fn an_origin_that_sends_a_few_bytes_with_each_read_is_an_error_after_a_few_calls() {
    let (bench, cache, file) = opened(&pattern(100_000)).await;
    bench.origin.read_max.store(7, std::sync::atomic::Ordering::Relaxed);
    let read = cache.read(&opener(0), &file, StateidBasis::Anonymous, 0, 65_536).await;
    assert_eq!(read.map(drop).unwrap_err().status, Status::Io);
    let reads: u64 =
        bench.origin.calls().iter().filter(|(call, _)| *call == "READ").map(|(_, calls)| calls).sum();
    assert!(reads < 100, "{reads} calls");
    // The origin answers in full again.
    bench.origin.read_max.store(1 << 20, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(read_all(&cache, &file).await, pattern(100_000));
}

async fn read_all(cache: &Cache, file: &Handle) -> Vec<u8> {
    let read = cache.read(&opener(0), file, StateidBasis::Anonymous, 0, 1 << 20).await.unwrap();
    read.data.to_bytes().unwrap().to_vec()
}

#[tokio::test]
async fn an_origin_with_small_reads_is_read_in_small_reads() {
    let data = pattern(300_000);
    let bench = Bench::new();
    bench.origin.read_max.store(10_000, std::sync::atomic::Ordering::Relaxed);
    let file = bench.origin.put(&root(), "f", &data);
    bench.origin.pass(LONG);
    let cache = bench.open().await;
    cache.getattr(&opener(0), &file).await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 300_000).await, data);
    bench.origin.calls();
    assert_eq!(read(&cache, &opener(0), &file, 0, 300_000).await, data);
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn a_large_hit_is_a_range_of_a_file_that_no_write_tears() {
    let data = pattern(1 << 20);
    let (bench, cache, file) = opened(&data).await;
    read(&cache, &opener(0), &file, 0, 1 << 20).await;
    settle(&cache, &file, 1 << 20).await;
    let pinned = cache.read(&opener(0), &file, StateidBasis::Anonymous, 4096, 500_000).await.unwrap().data;
    assert!(matches!(pinned, Data::File(_)));
    // Everything that could touch the bytes: a write of ours, a truncation, a change by another client.
    write(&cache, &opener(0), &file, 8192, &vec![0xee; 100_000]).await;
    let set = SetAttributes { size: Some(300_000), ..SetAttributes::default() };
    cache.setattr(&opener(0), &file, &set, None).await.unwrap();
    bench.origin.tree().write(&file, 0, &vec![0xdd; 200_000]).unwrap();
    cache.getattr(&opener(0), &file).await.unwrap();
    let expected = bench.origin.tree().get(&file).unwrap().data.clone();
    assert_eq!(read(&cache, &opener(0), &file, 0, 1 << 20).await, expected);
    assert_eq!(pinned.to_bytes().unwrap(), data[4096..504_096], "torn");
    drop(pinned);
    assert_eq!(read(&cache, &opener(0), &file, 0, 1 << 20).await, expected);
}

/// Waits until the fetched bytes are on the disk: replies do not wait for that.
async fn settle(cache: &Cache, file: &Handle, length: u32) {
    for _ in 0..5000 {
        let read = cache.read(&opener(0), file, StateidBasis::Anonymous, 0, length).await.unwrap();
        if matches!(read.data, Data::File(_)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never stored");
}

fn spawn_write(cache: &Arc<Cache>, file: Handle, offset: u64, byte: u8) -> tokio::task::JoinHandle<()> {
    let cache = cache.clone();
    tokio::spawn(async move {
        write(&cache, &opener(0), &file, offset, &[byte; 1000]).await;
    })
}

#[tokio::test]
async fn parallel_writes_keep_the_data_in_whatever_order_replies_come() {
    for round in 0..20 {
        let (bench, cache, file) = opened(&vec![0; 20_000]).await;
        bench.origin.tree().ticks = true;
        read(&cache, &opener(0), &file, 0, 20_000).await;
        let gate = bench.origin.gate("WRITE");
        let mut writers = Vec::new();
        for writer in 0..8u64 {
            writers.push(spawn_write(&cache, file, (writer * 7 + round) % 19 * 1000, writer as u8 + 1));
        }
        gate.wait_for(8).await;
        gate.admit(8);
        // All writes have taken effect before the first reply.
        let gone = || bench.origin.tree().history[&id(&file)].len() >= 8;
        until(gone).await;
        if round % 2 == 0 {
            // An open in between sees a state that no reply has explained yet.
            cache.getattr(&opener(0), &file).await.unwrap();
        }
        gate.reply(8);
        for writer in writers {
            writer.await.unwrap();
        }
        cache.getattr(&opener(0), &file).await.unwrap();
        bench.origin.calls();
        let expected = bench.origin.tree().get(&file).unwrap().data.clone();
        assert_eq!(read(&cache, &opener(0), &file, 0, 20_000).await, expected, "round {round}");
        assert_eq!(cache.stats().distrusted, 0, "round {round}");
    }
}

// Promise: own-changes
#[tokio::test]
async fn a_foreign_write_among_parallel_ones_of_ours_drops_the_data() {
    let (bench, cache, file) = opened(&vec![0; 20_000]).await;
    bench.origin.tree().ticks = true;
    read(&cache, &opener(0), &file, 0, 20_000).await;
    let gate = bench.origin.gate("WRITE");
    let mut writers = Vec::new();
    for writer in 0..4u64 {
        writers.push(spawn_write(&cache, file, writer * 1000, writer as u8 + 1));
    }
    gate.wait_for(4).await;
    let writes = || bench.origin.tree().history[&id(&file)].len();
    let before = writes();
    gate.admit(2);
    until(|| writes() == before + 2).await;
    bench.origin.tree().write(&file, 10_000, &[9; 100]).unwrap();
    gate.open();
    for writer in writers {
        writer.await.unwrap();
    }
    let expected = bench.origin.tree().get(&file).unwrap().data.clone();
    cache.getattr(&opener(0), &file).await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 20_000).await, expected);
    assert_eq!(cache.stats().distrusted, 1);
}

#[tokio::test]
async fn writes_of_the_same_bytes_leave_them_to_the_origin() {
    let (bench, cache, file) = opened(&vec![0; 20_000]).await;
    bench.origin.tree().ticks = true;
    let gate = bench.origin.gate("WRITE");
    let (a, b) = (spawn_write(&cache, file, 0, 1), spawn_write(&cache, file, 500, 2));
    gate.wait_for(2).await;
    gate.open();
    a.await.unwrap();
    b.await.unwrap();
    cache.getattr(&opener(0), &file).await.unwrap();
    let expected = bench.origin.tree().get(&file).unwrap().data.clone();
    assert_eq!(read(&cache, &opener(0), &file, 0, 20_000).await, expected);
}

#[tokio::test]
async fn a_fetch_that_a_write_overtakes_is_not_kept() {
    let (bench, cache, file) = opened(&vec![0; 20_000]).await;
    bench.origin.tree().ticks = true;
    let gate = bench.origin.gate("READ");
    let reading = cache.clone();
    let reader = tokio::spawn(async move { read(&reading, &opener(0), &file, 0, 4096).await });
    gate.wait_for(1).await;
    gate.admit(1);
    // The reply with the old bytes is in flight when we write.
    tokio::time::sleep(Duration::from_millis(5)).await;
    write(&cache, &opener(0), &file, 0, &[5; 4096]).await;
    gate.open();
    reader.await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 4096).await, vec![5; 4096]);
}

// Promise: own-changes
#[tokio::test]
async fn a_write_without_a_state_before_it_proves_nothing() {
    let (bench, cache, file) = opened(b"0123456789").await;
    bench.origin.without_before.store(true, std::sync::atomic::Ordering::Relaxed);
    read(&cache, &opener(0), &file, 0, 100).await;
    // Another client's write is hidden before ours.
    bench.origin.tree().write(&file, 0, b"XX").unwrap();
    write(&cache, &opener(0), &file, 8, b"89").await;
    assert_eq!(read(&cache, &opener(0), &file, 0, 100).await, "XX23456789");
}

#[tokio::test]
async fn a_write_that_is_given_up_leaves_nothing_to_be_believed() {
    let (bench, cache, file) = opened(b"0123456789").await;
    read(&cache, &opener(0), &file, 0, 100).await;
    let gate = bench.origin.gate("WRITE");
    let writing = spawn_write(&cache, file, 0, 7);
    gate.wait_for(1).await;
    gate.admit(1);
    until(|| bench.origin.tree().get(&file).unwrap().data.len() == 1000).await;
    writing.abort();
    let _ = writing.await;
    cache.getattr(&opener(0), &file).await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 2000).await, vec![7; 1000]);
}

#[tokio::test]
async fn names_changed_by_two_of_us_at_once_are_asked_again() {
    let (bench, cache, _) = opened(b"").await;
    let gate = bench.origin.gate("REMOVE");
    let removing = cache.clone();
    let remove = tokio::spawn(async move { removing.remove(&opener(0), &root(), &name("f")).await });
    gate.wait_for(1).await;
    gate.admit(1);
    until(|| bench.origin.tree().get(&root()).unwrap().names.is_empty()).await;
    // The name is made again before the reply to its removal arrives.
    let set = SetAttributes::default();
    let made = cache.create(&opener(0), &root(), &name("f"), CreateHow::Guarded, &set).await.unwrap();
    gate.open();
    remove.await.unwrap().unwrap();
    let found = cache.lookup(&opener(0), &root(), &name("f"), vfs::Want::None).await.unwrap();
    assert_eq!(found.node.handle, made.node.handle);
}

#[tokio::test]
async fn failures_of_the_origin_are_passed_on_and_forget_nothing_else() {
    let (bench, cache, file) = opened(b"data").await;
    read(&cache, &opener(0), &file, 0, 4).await;
    let set = SetAttributes::default();
    let error = cache.create(&opener(0), &root(), &name("f"), CreateHow::Guarded, &set).await.unwrap_err();
    assert_eq!(error.status, Status::Exist);
    bench.origin.tree().remove(&root(), &name("f"), false).unwrap();
    assert_eq!(cache.getattr(&opener(0), &file).await.unwrap_err().status, Status::Stale);
    let error = cache.read(&opener(0), &file, StateidBasis::Anonymous, 0, 4).await.unwrap_err();
    assert_eq!(error.status, Status::Stale);
    let data = Bytes::from_static(b"x");
    let error = cache
        .write(&opener(0), &file, StateidBasis::Anonymous, 0, data, Stability::Unstable)
        .await
        .unwrap_err();
    assert_eq!(error.status, Status::Stale);
}

#[tokio::test]
async fn a_cold_sequential_reader_is_read_ahead_of() {
    let data = pattern(24 << 20);
    let (bench, cache, file) = opened(&data).await;
    bench.origin.delay.store(5_000, std::sync::atomic::Ordering::Relaxed);
    let begin = std::time::Instant::now();
    let step = 256 << 10;
    for offset in (0..data.len()).step_by(step) {
        let bytes = read(&cache, &opener(0), &file, offset as u64, step as u32).await;
        assert!(bytes == data[offset..offset + step], "at {offset}");
    }
    let calls = bench.origin.calls();
    let [("READ", reads)] = calls[..] else { panic!("{calls:?}") };
    assert!(reads < 40, "large reads: {reads}");
    assert_eq!(cache.stats().fetched_bytes, data.len() as u64, "nothing twice, nothing in vain");
    // 96 reads of 5 ms each would take half a second.
    println!("{reads} reads, {:?}", begin.elapsed());
}
