//! Levels are killed and started again, one after another and all together. Clients of the last level keep
//! their locks, and no other client of the origin gets them meanwhile.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::Origin;
use vfs::{Lock, LockKind, LockRequest, Locked, Opened, Share, Stability, StateidBasis};

use crate::chain::{Chain, LAST, open, owner, user};

async fn lock(at: &Arc<dyn Origin>, opened: &Opened, by: &'static str) -> Locked {
    let lock = Lock { owner: owner(by), kind: LockKind::Exclusive, offset: 0, length: 10 };
    let request = LockRequest { lock, wait: false, reclaim: false };
    let locking = async {
        loop {
            match at.lock(&user(), opened.id, &request).await {
                Err(error) if error.status == vfs::Status::Delay || error.status == vfs::Status::Grace => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                told => return told.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), locking).await.expect("an answer in a minute")
}

async fn write(at: &Arc<dyn Origin>, opened: &Opened, byte: u8) {
    let (data, by, user) = (Bytes::from(vec![byte; 5]), StateidBasis::Open(opened.id), user());
    let writing = at.write(&user, &opened.handle, by, 0, data, Stability::FileSync);
    tokio::time::timeout(Duration::from_secs(60), writing).await.expect("an answer in a minute").unwrap();
}

async fn levels_are_killed(at_origin: &[&str]) {
    let mut chain = Chain::new(at_origin, &["--lease-time", "10"]);
    let file = chain.served().join("file");
    std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
    let holder = chain.client(LAST, "4.2").await;
    let opened = open(&holder, "holder", Share::READ | Share::WRITE).await;
    assert_eq!(lock(&holder, &opened, "holder").await, Locked::Granted);
    let killed: [&[usize]; 7] = [&[1], &[2], &[3], &[1, 2, 3], &[0], &[2, 0], &[0, 1, 2, 3]];
    for (byte, levels) in (b'a'..).zip(killed) {
        levels.iter().for_each(|level| chain.kill(*level));
        // A proxy may be started before the one below it, but then reports ready later.
        levels.iter().copied().collect::<std::collections::BTreeSet<_>>().into_iter().for_each(|level| {
            chain.start(level);
        });
        for level in [0, LAST - 1] {
            let rival = chain.client(level, "4.2").await;
            let other = open(&rival, "rival", Share::READ | Share::WRITE).await;
            let told = lock(&rival, &other, "rival").await;
            assert!(matches!(told, Locked::Denied(_)), "{levels:?} killed: {told:?} at level {level}");
        }
        write(&holder, &opened, byte).await;
        let there = std::fs::read(&file).unwrap();
        assert_eq!(there, [&[byte; 5][..], b"nt"].concat(), "{levels:?} killed");
    }
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_without_delegations_survive_restarts_of_all_levels() {
    levels_are_killed(&["--delegations", "never"]).await;
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_under_delegations_survive_restarts_of_all_levels() {
    levels_are_killed(&["--delegations", "always"]).await;
}
