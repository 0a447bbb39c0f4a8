//! Opens for reading under a lease that the origin does not know of: they cost no call, and the origin is
//! told of them before anything can harm them.
//!
//! Promise: untold-opens

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cache::{Cache, Options};
use origin::state::Policy;
use origin::{Bench, name, open_handle, open_request, opener, read, root, until, v4, v4_opener};
use vfs::{
    FileSystem, Handle, LeaseKind, Leases, Lock, LockKind, LockRequest, Locked, OpenId, OpenRequest, Opens,
    SetAttributes, Share, Status,
};

const KINDS: [LeaseKind; 2] = [LeaseKind::Read, LeaseKind::Write];

/// A cache with the lease of a file, whose open at the origin has been closed, and one local open of it. No
/// call is on record.
async fn setup(kind: LeaseKind) -> (Bench, Arc<Cache>, Handle, OpenId) {
    let bench = Bench::with_state(Policy::Always(kind));
    bench.origin.state.lock().resumes = true;
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(std::time::Duration::from_secs(10));
    let cache = bench.open_with(Options { kept_opens_max: 0, ..bench.options() }).await;
    let first = open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await;
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    cache.close(&v4(0, 1), first).await.unwrap();
    bench.opens_are(0).await;
    bench.origin.calls();
    let untold = open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await;
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    assert_eq!(bench.origin.calls(), [], "{kind:?}");
    assert_eq!(bench.origin.open_count(), 0);
    (bench, cache, file, untold)
}

async fn open(cache: &Cache, client: u64, request: &OpenRequest) -> OpenId {
    cache.open(&v4_opener(0, client), request).await.unwrap().id
}

/// The shares of the opens at the origin.
fn told(bench: &Bench) -> Vec<(Share, Share)> {
    bench.origin.state.lock().opens.iter().map(|open| (open.access, open.deny)).collect()
}

#[tokio::test]
async fn the_origin_is_told_of_an_open_before_the_lease_is_returned() {
    for kind in KINDS {
        let (bench, cache, file, untold) = setup(kind).await;
        // As long as the OPEN is not answered, the lease is not returned.
        let gate = bench.origin.gate("OPEN");
        let writing = {
            let origin = bench.origin.clone();
            tokio::spawn(async move { origin.others_write(&file, 0, b"DATA").await })
        };
        gate.wait_for(1).await;
        assert_eq!(bench.origin.lease(&file), Some(kind));
        // A second reader meanwhile needs an OPEN too.
        let second = tokio::spawn({
            let cache = cache.clone();
            async move { open(&cache, 2, &open_handle(&file, 2, Share::READ)).await }
        });
        gate.open();
        writing.await.unwrap();
        let second = second.await.unwrap();
        assert_eq!(told(&bench), [(Share::READ, Share::empty())], "{kind:?}");
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "DATA");
        for (client, id) in [(1, untold), (2, second)] {
            cache.close(&v4(0, client), id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_lease_that_the_origin_ends_leaves_an_open_that_it_is_told_of() {
    for kind in KINDS {
        let (bench, cache, file, untold) = setup(kind).await;
        bench.origin.revoke(&file);
        bench.opens_are(1).await;
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
        cache.close(&v4(0, 1), untold).await.unwrap();
    }
}

#[tokio::test]
async fn an_open_is_told_before_a_removal_or_a_change_of_rights_of_our_own() {
    for kind in KINDS {
        for what in 0..3 {
            let (bench, cache, file, untold) = setup(kind).await;
            let gate = bench.origin.gate(["REMOVE", "RENAME", "SETATTR"][what]);
            let changing = tokio::spawn({
                let (cache, caller) = (cache.clone(), opener(0));
                let other = bench.origin.put(&root(), "other", b"other");
                async move {
                    match what {
                        0 => cache.remove(&caller, &root(), &name("f")).await.map(drop),
                        1 => cache
                            .rename(&caller, &root(), &name("other"), &root(), &name("f"))
                            .await
                            .map(drop),
                        _ => {
                            let set = SetAttributes { mode: Some(0), ..SetAttributes::default() };
                            cache.setattr(&caller, &file, &set, None).await.map(drop)
                        }
                    }
                    .map(|()| other)
                }
            });
            gate.wait_for(1).await;
            assert_eq!(told(&bench), [(Share::READ, Share::empty())], "{kind:?} {what}: before the change");
            gate.open();
            changing.await.unwrap().unwrap();
            cache.close(&v4(0, 1), untold).await.unwrap();
        }
    }
}

#[tokio::test]
async fn no_open_is_left_untold_while_the_file_is_being_removed() {
    let (bench, cache, file, untold) = setup(LeaseKind::Read).await;
    let gate = bench.origin.gate("REMOVE");
    let removing = tokio::spawn({
        let cache = cache.clone();
        async move { cache.remove(&opener(0), &root(), &name("f")).await }
    });
    gate.wait_for(1).await;
    bench.origin.calls();
    cache.close(&v4(0, 1), untold).await.unwrap();
    let second = open(&cache, 2, &open_handle(&file, 2, Share::READ)).await;
    assert_eq!(told(&bench), [(Share::READ, Share::empty())]);
    gate.open();
    removing.await.unwrap().unwrap();
    cache.close(&v4(0, 2), second).await.unwrap();
}

#[tokio::test]
async fn a_lock_is_taken_under_an_open_that_the_origin_knows() {
    let (bench, cache, _, untold) = setup(LeaseKind::Read).await;
    let lock = Lock { owner: origin::owner(1), kind: LockKind::Shared, offset: 0, length: 4 };
    let request = LockRequest { lock, wait: false, reclaim: false };
    assert_eq!(cache.lock(&v4(0, 1), untold, &request).await.unwrap(), Locked::Granted);
    assert_eq!(bench.origin.calls(), [("LOCK", 1), ("OPEN", 1)]);
    cache.close(&v4(0, 1), untold).await.unwrap();
}

#[tokio::test]
async fn locks_under_a_write_lease_are_told_with_their_open() {
    let (bench, cache, file, untold) = setup(LeaseKind::Write).await;
    let lock = Lock { owner: origin::owner(1), kind: LockKind::Shared, offset: 0, length: 4 };
    let request = LockRequest { lock, wait: false, reclaim: false };
    assert_eq!(cache.lock(&v4(0, 1), untold, &request).await.unwrap(), Locked::Granted);
    assert_eq!(bench.origin.calls(), []);
    bench.origin.recall(&file);
    until(|| bench.origin.lease(&file).is_none()).await;
    assert_eq!(bench.origin.state.lock().locks.len(), 1);
    assert_eq!(told(&bench), [(Share::READ, Share::empty())]);
    cache.close(&v4(0, 1), untold).await.unwrap();
}

#[tokio::test]
async fn bytes_that_are_not_here_cost_one_open_that_brings_them() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Read));
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(std::time::Duration::from_secs(10));
    let cache = bench.open_with(Options { kept_opens_max: 0, ..bench.options() }).await;
    bench.origin.fails_piggybacked.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let id = open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await;
        cache.close(&v4(0, 1), id).await.unwrap();
        bench.opens_are(0).await;
    }
    bench.origin.fails_piggybacked.store(false, Ordering::Relaxed);
    bench.origin.calls();
    let untold = open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await;
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
    cache.close(&v4(0, 1), untold).await.unwrap();
}

#[tokio::test]
async fn a_client_reclaims_an_open_that_only_the_cache_knew() {
    for kind in KINDS {
        let (bench, cache, file, _) = setup(kind).await;
        let killed = bench.killed();
        drop(cache);
        let after = killed.open_with(killed.options()).await;
        killed.origin.calls();
        let reclaim = |access| OpenRequest { reclaim: true, ..open_handle(&file, 1, access) };
        let open = after.open(&v4_opener(0, 1), &reclaim(Share::READ)).await.unwrap();
        assert_eq!(read(&after, &v4(0, 1), &file, 0, 10).await, "data");
        // A lease for reading does not tell that nobody was kept from writing.
        let refused = after.open(&v4_opener(0, 2), &reclaim(Share::WRITE)).await.unwrap_err();
        assert_eq!(refused.status, Status::ReclaimBad);
        after.end_reclaim().await;
        killed.origin.others_write(&file, 0, b"DATA").await;
        assert_eq!(told(&killed), [(Share::READ, Share::empty())], "told before the return");
        assert_eq!(read(&after, &v4(0, 1), &file, 0, 10).await, "DATA");
        after.close(&v4(0, 1), open.id).await.unwrap();
    }
}

#[tokio::test]
async fn another_user_is_let_in_by_its_own_right_only() {
    let (bench, cache, file, untold) = setup(LeaseKind::Read).await;
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    cache.setattr(&opener(0), &file, &set, None).await.unwrap();
    cache.close(&v4(0, 1), untold).await.unwrap();
    bench.opens_are(0).await;
    // The first open finds the right out again, and the second one needs no OPEN.
    for opens in [1, 0] {
        let own = open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await;
        assert_eq!(bench.origin.open_count(), opens);
        for request in [open_handle(&file, 2, Share::READ), open_request(&root(), "f", 2, Share::READ)] {
            let refused = cache.open(&v4_opener(1000, 2), &request).await.unwrap_err();
            assert_eq!(refused.status, Status::Access);
        }
        cache.close(&v4(0, 1), own).await.unwrap();
        bench.opens_are(0).await;
    }
}

#[tokio::test]
async fn an_open_is_not_untold_while_the_close_of_the_kept_one_is_under_way() {
    let (bench, cache, file, untold) = setup(LeaseKind::Read).await;
    cache.close(&v4(0, 1), untold).await.unwrap();
    let gate = bench.origin.gate("CLOSE");
    // A writer's open at the origin is closed when the next one is kept.
    let writer = open(&cache, 1, &open_handle(&file, 1, Share::WRITE)).await;
    cache.close(&v4(0, 1), writer).await.unwrap();
    gate.wait_for(1).await;
    let reader = tokio::spawn({
        let cache = cache.clone();
        async move { open(&cache, 2, &open_handle(&file, 2, Share::READ)).await }
    });
    let writing = tokio::spawn({
        let origin = bench.origin.clone();
        async move { origin.others_write(&file, 0, b"DATA").await }
    });
    until(|| bench.origin.lease(&file).is_none() || reader.is_finished()).await;
    gate.open();
    let reader = reader.await.unwrap();
    writing.await.unwrap();
    bench.opens_are(1).await;
    assert_eq!(told(&bench), [(Share::READ, Share::empty())]);
    assert_eq!(read(&cache, &v4(0, 2), &file, 0, 10).await, "DATA");
    cache.close(&v4(0, 2), reader).await.unwrap();
}

#[tokio::test]
async fn a_user_who_has_lost_the_right_does_not_cost_another_one_the_open() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Read));
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(std::time::Duration::from_secs(10));
    let cache = bench.open_with(Options { kept_opens_max: 0, ..bench.options() }).await;
    let mut opens = Vec::new();
    for round in 0..2 {
        for uid in [1000, 0] {
            let request = open_request(&root(), "f", u64::from(uid), Share::READ);
            let id = cache.open(&v4_opener(uid, u64::from(uid)), &request).await.unwrap().id;
            assert_eq!(read(&cache, &v4(uid, u64::from(uid)), &file, 0, 10).await, "data");
            if round == 0 {
                cache.close(&v4(uid, u64::from(uid)), id).await.unwrap();
                bench.opens_are(0).await;
            } else {
                opens.push((uid, id));
            }
        }
    }
    assert_eq!(bench.origin.open_count(), 0, "both are untold");
    // The origin's own rules change, which no lease tells.
    bench.origin.tree().inodes.get_mut(&origin::tree::id(&file)).unwrap().attributes.mode = 0o600;
    bench.origin.recall(&file);
    until(|| bench.origin.lease(&file).is_none()).await;
    assert_eq!(told(&bench), [(Share::READ, Share::empty())], "the OPEN of the other user");
    for (uid, id) in opens {
        cache.close(&v4(uid, u64::from(uid)), id).await.unwrap();
    }
}
