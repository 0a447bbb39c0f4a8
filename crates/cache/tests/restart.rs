//! A cache that is killed and restarted over an origin that still holds all of its state. The tests check
//! which state is reclaimed, which knowledge is believed without a call, and which state is given up.
//!
//! Promise: held-state

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::behind::{self, BOTH, delaying, open};
use origin::state::Policy;
use origin::{Bench, name, open_handle, open_request, opener, owner, read, root, v4, v4_opener, write};
use proptest::prelude::*;
use vfs::{
    FileSystem, Handle, LeaseKind, Leases, Lock, LockKind, LockRequest, Locked, OpenRequest, Opens, Share,
    Stability, StateidBasis, Status,
};

const SECOND: Duration = Duration::from_secs(1);

async fn setup(policy: Policy) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::with_state(policy);
    bench.origin.state.lock().resumes = true;
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    (bench, cache, file)
}

/// Kills the process and starts the next one.
async fn restart(bench: &mut Bench, cache: Arc<Cache>) -> Arc<Cache> {
    let after = bench.killed();
    drop(cache);
    *bench = after;
    bench.open().await
}

fn reclaim(file: &Handle, client: u64, access: Share) -> OpenRequest {
    OpenRequest { reclaim: true, ..open_handle(file, client, access) }
}

fn lock_request(client: u64, offset: u64, reclaim: bool) -> LockRequest {
    let lock = Lock { owner: owner(client), kind: LockKind::Exclusive, offset, length: 10 };
    LockRequest { lock, wait: false, reclaim }
}

fn others_lock(offset: u64) -> Lock {
    let owner = vfs::Owner(bytes::Bytes::from_static(b"other"));
    Lock { owner, kind: LockKind::Exclusive, offset, length: 10 }
}

#[tokio::test]
async fn under_a_lease_that_is_held_still_nothing_is_asked_again() {
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let (mut bench, cache, file) = setup(Policy::Always(kind)).await;
        cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
        cache.flush().await;
        let cache = restart(&mut bench, cache).await;
        bench.origin.calls();
        let opened = cache.open(&v4_opener(0, 1), &reclaim(&file, 1, Share::READ)).await.unwrap();
        assert_eq!(opened.attributes.size, 4);
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
        cache.getattr(&opener(0), &file).await.unwrap();
        cache.end_reclaim().await;
        // An open by name is free too.
        cache.open(&v4_opener(0, 2), &open_request(&root(), "f", 2, Share::READ)).await.unwrap();
        assert_eq!(bench.origin.calls(), [], "{kind:?}");
        assert_eq!(bench.origin.lease(&file), Some(kind));
        // Another client still gets the file only after a recall.
        bench.origin.others_write(&file, 0, b"DATA").await;
        assert_eq!(bench.origin.lease(&file), None);
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "DATA");
    }
}

/// A client that has the lease from an earlier incarnation of the cache believes in it until it learns of
/// the restart.
#[tokio::test(start_paused = true)]
async fn an_adopted_lease_is_kept_until_nobody_of_before_can_believe_in_it() {
    for grace_seconds in [3, 300] {
        let (mut bench, cache, file) = setup(Policy::Always(LeaseKind::Read)).await;
        cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
        let cache = restart(&mut bench, cache).await;
        let began = tokio::time::Instant::now();
        let origin = bench.origin.clone();
        let changing = tokio::spawn(async move {
            origin.others_write(&file, 0, b"DATA").await;
            tokio::time::Instant::now()
        });
        tokio::time::sleep(SECOND * grace_seconds).await;
        cache.end_reclaim().await;
        let waited = changing.await.unwrap() - began;
        // The cache returns it no later than just before the origin would revoke it.
        let limits = if grace_seconds < 30 { 3..4 } else { 29..30 };
        assert!(limits.contains(&waited.as_secs()), "{waited:?}");
        assert_eq!(bench.origin.lease(&file), None, "it was returned, not revoked");
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "DATA");
    }
}

/// What a killed process has left of many files is settled for many of them at once.
// Promise: killed-mounts
#[tokio::test]
async fn what_was_delayed_of_many_files_is_sent_side_by_side() {
    const FILES: usize = 100;
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    let origin = bench.origin.clone();
    let put = |n: usize| origin.put(&root(), &n.to_string(), b"of the origin");
    let files: Vec<_> = (0..FILES).map(put).collect();
    origin.pass(10 * SECOND);
    let cache = delaying(&bench, |_| ()).await;
    for (n, file) in files.iter().enumerate() {
        let by = open(&cache, &open_request(&root(), &n.to_string(), 1, BOTH)).await;
        behind::put(&cache, by, file, 0, format!("of program {n}").as_bytes()).await;
    }
    let killed = bench.killed();
    drop(cache);
    files.iter().for_each(|file| origin.revoke_unheard(file));
    assert!(files.iter().all(|file| origin.contents(file) == b"of the origin"), "they were delayed");
    origin.others_write(&files[7], 0, b"of another").await;
    let cache = delaying(&killed, |_| ()).await;
    assert_eq!(cache.unsettled(), FILES);
    let asked = origin.gate("GETATTR");
    let settling = tokio::spawn({
        let cache = cache.clone();
        async move { cache.settle_restored().await }
    });
    asked.wait_for(16).await;
    assert_eq!(cache.unsettled(), FILES, "none is answered yet");
    asked.open();
    settling.await.unwrap().unwrap();
    assert_eq!(cache.unsettled(), 0);
    for (n, file) in files.iter().enumerate().filter(|(n, _)| *n != 7) {
        let mut wanted = b"of the origin".to_vec();
        wanted.splice(..format!("of program {n}").len().min(wanted.len()), format!("of program {n}").bytes());
        assert_eq!(origin.contents(file), wanted);
    }
    assert_eq!(origin.contents(&files[7]), b"of anothergin", "a change of another client stays");
    assert_eq!(cache.stats().conflicts, 1);
}

#[tokio::test]
async fn what_the_index_was_not_told_of_is_asked() {
    let (mut bench, cache, file) = setup(Policy::Always(LeaseKind::Write)).await;
    let request = open_request(&root(), "f", 1, Share::READ | Share::WRITE);
    let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    cache.flush().await;
    let bytes = bytes::Bytes::from_static(b"more data");
    let by = StateidBasis::Open(opened.id);
    cache.write(&v4(0, 1), &file, by, 0, bytes, Stability::FileSync).await.unwrap();
    let cache = restart(&mut bench, cache).await;
    bench.origin.calls();
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "more data");
    let calls = bench.origin.calls();
    assert!(calls.contains(&("READ", 1)), "{calls:?}");
    // From then on, reads cost nothing.
    assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "more data");
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn a_lease_that_was_lost_meanwhile_vouches_for_nothing() {
    let (mut bench, cache, file) = setup(Policy::Always(LeaseKind::Read)).await;
    cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    cache.flush().await;
    let after = bench.killed();
    drop(cache);
    bench = after;
    bench.origin.revoke_unheard(&file);
    bench.origin.others_write(&file, 0, b"DATA").await;
    let cache = bench.open().await;
    assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "DATA");
    // A new lease on the same file does not make the old record valid either.
    let (mut bench, cache, file) = setup(Policy::Always(LeaseKind::Read)).await;
    cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
    cache.flush().await;
    let after = bench.killed();
    drop(cache);
    bench = after;
    bench.origin.revoke_unheard(&file);
    bench.origin.others_write(&file, 0, b"longer data").await;
    let other = bench.origin.clone();
    let request = OpenRequest { want: vfs::Want::Any, ..open_handle(&file, 1, Share::READ) };
    let _ = other.open(&v4(0, 1), &request).await.unwrap();
    let cache = bench.open().await;
    assert_eq!(cache.getattr(&v4(0, 1), &file).await.unwrap().size, 11);
}

#[tokio::test]
async fn a_lock_is_had_again_by_whoever_had_it_and_by_nobody_else() {
    for policy in [Policy::Never, Policy::Always(LeaseKind::Read)] {
        let (mut bench, cache, file) = setup(policy).await;
        let request = open_request(&root(), "f", 1, Share::READ | Share::WRITE);
        let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
        for offset in [0, 100] {
            let locked = cache.lock(&v4(0, 1), opened.id, &lock_request(1, offset, false)).await.unwrap();
            assert_eq!(locked, Locked::Granted);
        }
        let cache = restart(&mut bench, cache).await;
        assert!(!bench.origin.others_lock(&file, &others_lock(5)).await, "it was never free");
        let both = Share::READ | Share::WRITE;
        let again = cache.open(&v4_opener(0, 1), &reclaim(&file, 1, both)).await.unwrap();
        bench.origin.calls();
        let locked = cache.lock(&v4(0, 1), again.id, &lock_request(1, 0, true)).await.unwrap();
        assert_eq!((locked, bench.origin.calls()), (Locked::Granted, vec![]), "{policy:?}");
        let second = cache.open(&v4_opener(0, 2), &reclaim(&file, 2, both)).await.unwrap();
        for wrong in [lock_request(2, 0, true), lock_request(2, 500, true), lock_request(1, 500, true)] {
            let refused = cache.lock(&v4(0, 2), second.id, &wrong).await.unwrap_err();
            assert_eq!(refused.status, Status::NoGrace);
        }
        // Locks that were not reclaimed are free for other clients after the grace period, and not before.
        assert!(!bench.origin.others_lock(&file, &others_lock(100)).await);
        cache.end_reclaim().await;
        assert!(bench.origin.others_lock(&file, &others_lock(100)).await);
        assert!(!bench.origin.others_lock(&file, &others_lock(5)).await, "reclaimed, and held");
        let late = cache.lock(&v4(0, 1), again.id, &lock_request(1, 0, true)).await.unwrap_err();
        assert_eq!(late.status, Status::NoGrace);
        cache.unlock(&v4(0, 1), again.id, &owner(1), (0, 10)).await.unwrap();
        assert!(bench.origin.others_lock(&file, &others_lock(5)).await);
    }
}

#[tokio::test]
async fn a_lock_under_a_lease_for_writing_is_reclaimed_although_the_origin_never_heard_of_it() {
    let (mut bench, cache, file) = setup(Policy::Always(LeaseKind::Write)).await;
    let both = Share::READ | Share::WRITE;
    let opened = cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, both)).await.unwrap();
    let locked = cache.lock(&v4(0, 1), opened.id, &lock_request(1, 0, false)).await.unwrap();
    assert_eq!(locked, Locked::Granted);
    let cache = restart(&mut bench, cache).await;
    let again = cache.open(&v4_opener(0, 1), &reclaim(&file, 1, both)).await.unwrap();
    let locked = cache.lock(&v4(0, 1), again.id, &lock_request(1, 0, true)).await.unwrap();
    assert_eq!(locked, Locked::Granted);
    let rival = cache.open(&v4_opener(0, 2), &reclaim(&file, 2, both)).await.unwrap();
    assert!(
        cache
            .lock(&v4(0, 2), rival.id, &lock_request(2, 5, true))
            .await
            .is_ok_and(|it| it != Locked::Granted)
    );
    // The recall sends the lock to the origin after the grace period, when all owners have reclaimed
    // theirs.
    cache.end_reclaim().await;
    assert!(!bench.origin.others_lock(&file, &others_lock(5)).await);
}

#[tokio::test]
async fn what_was_not_held_is_not_reclaimed_and_what_nobody_reclaims_is_closed() {
    let (mut bench, cache, file) = setup(Policy::Never).await;
    let other = bench.origin.put(&root(), "g", b"other");
    cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
    let cache = restart(&mut bench, cache).await;
    for wrong in [reclaim(&file, 1, Share::WRITE), reclaim(&other, 1, Share::READ)] {
        let refused = cache.open(&v4_opener(0, 1), &wrong).await.unwrap_err();
        assert_eq!(refused.status, Status::ReclaimBad);
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(bench.origin.open_count(), 1, "until it is over, it is kept");
    cache.end_reclaim().await;
    bench.opens_are(0).await;
    let late = cache.open(&v4_opener(0, 1), &reclaim(&file, 1, Share::READ)).await.unwrap_err();
    assert_eq!(late.status, Status::NoGrace);
    // Over an origin that has lost the state, nothing can be reclaimed.
    bench.origin.state.lock().resumes = false;
    let cache = restart(&mut bench, cache).await;
    let refused = cache.open(&v4_opener(0, 1), &reclaim(&file, 1, Share::READ)).await.unwrap_err();
    assert_eq!(refused.status, Status::NoGrace);
}

#[tokio::test]
async fn an_adopted_open_is_narrowed_to_what_it_once_was() {
    let (mut bench, cache, file) = setup(Policy::Never).await;
    let both = Share::READ | Share::WRITE;
    cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
    cache.open(&v4_opener(0, 2), &open_request(&root(), "f", 2, both)).await.unwrap();
    let cache = restart(&mut bench, cache).await;
    cache.open(&v4_opener(0, 1), &reclaim(&file, 1, Share::READ)).await.unwrap();
    cache.end_reclaim().await;
    origin::until(|| bench.origin.state.lock().opens.iter().all(|open| open.access == Share::READ)).await;
    assert_eq!(bench.origin.open_count(), 1);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read,
    Stat,
    Write(u8),
    Cut(u64),
    Rename,
    Flush,
    Kill,
    /// Kills the process after the next change has taken effect and before its reply.
    KillIn(u8),
    /// Another client writes, after a recall of the lease.
    Other(u8),
    /// Another client writes while the process is down, so that the lease is revoked.
    KillAndOther(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Read),
        1 => Just(Step::Stat),
        3 => any::<u8>().prop_map(Step::Write),
        1 => (0u64..12).prop_map(Step::Cut),
        1 => Just(Step::Rename),
        3 => Just(Step::Flush),
        2 => Just(Step::Kill),
        3 => any::<u8>().prop_map(Step::KillIn),
        1 => any::<u8>().prop_map(Step::Other),
        1 => any::<u8>().prop_map(Step::KillAndOther),
    ]
}

async fn put(cache: &Cache, file: &Handle, offset: u64, byte: u8) {
    write(cache, &opener(0), file, offset, &[byte; 3]).await;
}

async fn cut(cache: &Cache, file: &Handle, size: u64) {
    let set = vfs::SetAttributes { size: Some(size), ..vfs::SetAttributes::default() };
    cache.setattr(&opener(0), file, &set, None).await.unwrap();
}

async fn rename(cache: &Cache, from: &str, to: &str) {
    cache.rename(&opener(0), &root(), &name(from), &root(), &name(to)).await.unwrap();
}

async fn play(steps: &[Step], kind: LeaseKind) {
    let (mut bench, mut cache, file) = setup(Policy::Always(kind)).await;
    let (mut here, mut there) = ("f", "h");
    for (turn, step) in steps.iter().enumerate() {
        match *step {
            Step::Read => {}
            Step::Stat => {
                cache.getattr(&opener(0), &file).await.unwrap();
            }
            Step::Write(byte) => put(&cache, &file, u64::from(byte % 7), byte).await,
            Step::Cut(size) => cut(&cache, &file, size).await,
            Step::Rename => {
                rename(&cache, here, there).await;
                std::mem::swap(&mut here, &mut there);
            }
            Step::KillIn(what) => {
                let call = ["WRITE", "SETATTR", "RENAME"][usize::from(what % 3)];
                let after = bench.killed_at_next(Some(call));
                match what % 3 {
                    0 => put(&cache, &file, 2, what).await,
                    1 => cut(&cache, &file, u64::from(what % 10)).await,
                    _ => {
                        rename(&cache, here, there).await;
                        std::mem::swap(&mut here, &mut there);
                    }
                }
                drop(cache);
                bench = after;
                cache = bench.open().await;
            }
            Step::Flush => cache.flush().await,
            Step::Kill => cache = restart(&mut bench, cache).await,
            Step::Other(byte) => {
                cache.end_reclaim().await;
                bench.origin.others_write(&file, 1, &[byte; 4]).await;
            }
            Step::KillAndOther(byte) => {
                let after = bench.killed();
                drop(cache);
                bench = after;
                bench.origin.revoke_unheard(&file);
                bench.origin.others_write(&file, 1, &[byte; 4]).await;
                cache = bench.open().await;
            }
        }
        let really = bench.origin.tree().get(&file).unwrap().attributes;
        let complete = bench.origin.tree().read(&vfs::Principal::Machine, &file, 0, 100).unwrap();
        // This counts as an open. Without a lease, as after a READ of an empty file, nothing else would ask
        // the origin.
        let known = cache.getattr(&opener(0), &file).await.unwrap();
        let seen = read(&cache, &opener(0), &file, 0, 100).await;
        assert_eq!(seen, complete.data.to_bytes().unwrap(), "after step {turn}: {step:?}");
        assert_eq!(
            (known.size, known.ctime, known.change),
            (really.size, really.ctime, really.change),
            "{turn}"
        );
        let looked = cache.lookup(&opener(0), &root(), &name(here), vfs::Want::None).await.unwrap();
        assert_eq!(looked.node.handle, file);
        assert!(cache.lookup(&opener(0), &root(), &name(there), vfs::Want::None).await.is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A read returns the origin's contents, whatever had been flushed to the index at the kill.
    #[test]
    fn no_kill_makes_it_lie(steps in proptest::collection::vec(step(), 0..24), writes in any::<bool>()) {
        let kind = if writes { LeaseKind::Write } else { LeaseKind::Read };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(&steps, kind));
    }
}
