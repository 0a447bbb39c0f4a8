//! A recall of the origin passes through all levels in time. A level that does not answer loses its lease
//! before the one below would lose its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::Origin;
use rustix::process::Signal;
use vfs::{Share, Stability, StateidBasis};

use crate::chain::{Chain, LAST, open, read, until, user};

async fn write(at: &Arc<dyn Origin>, content: &'static [u8]) {
    let writer = open(at, "writer", Share::WRITE).await;
    let (data, by) = (Bytes::from_static(content), StateidBasis::Open(writer.id));
    at.write(&user(), &writer.handle, by, 0, data, Stability::FileSync).await.unwrap();
    at.close(&user(), writer.id).await.unwrap();
}

/// Opens until all levels hold a delegation, each of the level below.
async fn all_hold(chain: &Chain, at: &Arc<dyn Origin>) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let opened = open(at, "reader", Share::READ).await;
        read(at, &opened).await;
        at.close(&user(), opened.id).await.unwrap();
        if (0..LAST).all(|level| chain.held(level, "read_leases") == 1) {
            return;
        }
        assert!(Instant::now() < until, "a level holds no delegation");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_passes_through_all_levels() {
    let chain = Chain::new(&["--delegations", "always"], &[]);
    make_writable(&chain);
    let (reader, direct) = (chain.client(LAST, "4.2").await, chain.client(0, "4.2").await);
    all_hold(&chain, &reader).await;
    let opened = open(&reader, "holder", Share::READ).await;
    let begun = Instant::now();
    write(&direct, b"CONTENT").await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(read(&reader, &opened).await, "CONTENT", "seen at once");
    for level in 0..LAST {
        assert_eq!((chain.held(level, "read_leases"), chain.held(level, "revoked")), (0, 0), "{level}");
    }
}

/// Clients of two levels are in each other's way. The level that both use decides, and the levels below it
/// hear nothing of it.
// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_ends_at_the_level_that_both_use() {
    let chain = Chain::new(&["--delegations", "always"], &[]);
    make_writable(&chain);
    let (reader, beside) = (chain.client(LAST, "4.2").await, chain.client(LAST - 1, "4.2").await);
    let share = Share::READ | Share::WRITE;
    until("a level holds no write delegation", || {
        let opening = async { reader.close(&user(), open(&reader, "opener", share).await.id).await.unwrap() };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(opening));
        (0..LAST).all(|level| chain.held(level, "write_leases") == 1)
    })
    .await;
    let recalled = |level| chain.held(level, "recalls");
    let before: Vec<_> = (0..LAST).map(recalled).collect();
    write(&beside, b"CONTENT").await;
    let after: Vec<_> = (0..LAST).map(recalled).collect();
    let expected: Vec<_> = before.iter().zip([0, 0, 1]).map(|(before, more)| before + more).collect();
    assert_eq!(after, expected);
    let opened = open(&reader, "reader", Share::READ).await;
    assert_eq!(read(&reader, &opened).await, "CONTENT");
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_does_not_answer_loses_its_lease_before_the_one_below() {
    const LEASE_TIME: Duration = Duration::from_secs(8);
    let chain = Chain::new(&["--delegations", "always"], &["--lease-time", "8"]);
    make_writable(&chain);
    let (reader, direct) = (chain.client(LAST, "4.2").await, chain.client(0, "4.2").await);
    let beside = chain.client(LAST - 1, "4.2").await;
    all_hold(&chain, &reader).await;
    let opened = open(&reader, "holder", Share::READ).await;
    assert_eq!(read(&reader, &opened).await, "content");
    chain.signal(LAST, Signal::STOP);
    let begun = Instant::now();
    let writing = async {
        // The origin answers DELAY while the recall is under way.
        write(&direct, b"CONTENT").await;
        begun.elapsed()
    };
    let took = tokio::time::timeout(4 * LEASE_TIME, writing).await.unwrap();
    eprintln!("the writer waited {took:?}");
    let revoked: Vec<_> = (0..LAST).map(|level| chain.held(level, "revoked")).collect();
    assert_eq!(revoked, [0, 0, 1], "only the level that did not answer has lost its lease");
    let seen = open(&beside, "beside", Share::READ).await;
    assert_eq!(read(&beside, &seen).await, "CONTENT");

    chain.signal(LAST, Signal::CONT);
    let again = open(&reader, "again", Share::READ).await;
    assert_eq!(read(&reader, &again).await, "CONTENT");
}

fn make_writable(chain: &Chain) {
    use std::os::unix::fs::PermissionsExt;
    let file = chain.served().join("file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
}
