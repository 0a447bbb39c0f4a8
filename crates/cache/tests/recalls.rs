//! Leases that end: recalled, revoked, or crossed by calls in flight.
//!
//! Promise: delegations-of-the-origin
//! Promise: shared-opens

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::state::Policy;
use origin::{Bench, open_handle, open_request, opener, owner, read, root, until, v4, v4_opener};
use vfs::{
    Callback, FileSystem, Handle, LeaseKind, Leases, Lock, LockKind, LockRequest, Locked, OpenRequest,
    Opened, Opens, Share, StateidBasis, Status, Want,
};

const SECOND: Duration = Duration::from_secs(1);

async fn open(cache: &Cache, request: &OpenRequest) -> Opened {
    cache.open(&v4_opener(0, 1), request).await.unwrap()
}

async fn setup(kind: LeaseKind) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::with_state(Policy::Always(kind));
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    (bench, cache, file)
}

fn request(client: u64, kind: LockKind, offset: u64) -> LockRequest {
    let lock = Lock { owner: owner(client), kind, offset, length: 10 };
    LockRequest { lock, wait: false, reclaim: false }
}

#[tokio::test(start_paused = true)]
async fn a_recall_that_comes_before_the_grant_is_not_lost() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    let gate = bench.origin.gate("OPEN");
    gate.admit(1);
    let opening = {
        let cache = cache.clone();
        tokio::spawn(async move { open(&cache, &open_request(&root(), "f", 1, Share::READ)).await })
    };
    until(|| bench.origin.lease(&file).is_some()).await;
    // The origin has granted the lease, and recalls it before its reply is sent.
    let origin = bench.origin.clone();
    let writing = tokio::spawn(async move { origin.others_write(&file, 0, b"DATA").await });
    tokio::time::sleep(SECOND).await;
    assert!(!writing.is_finished(), "the recall waits for the grant");
    gate.open();
    let opened = opening.await.unwrap();
    writing.await.unwrap();
    assert_eq!(read(&cache, &v4(0, 1), &opened.handle, 0, 10).await, "DATA");
    assert_eq!(cache.stats().leases_read, 0);
}

#[tokio::test(start_paused = true)]
async fn a_recall_of_a_lease_that_nobody_has_is_answered() {
    let (bench, _cache, file) = setup(LeaseKind::Read).await;
    let recall = vfs::Recall {
        id: vfs::LeaseId(4711),
        handle: file,
        keep: None,
        deadline: tokio::time::Instant::now() + SECOND,
    };
    bench.origin.state.lock().say(Callback::Recall(recall));
    let returned = std::sync::atomic::AtomicBool::new(false);
    until(|| {
        let calls = bench.origin.calls();
        returned.fetch_or(calls == [("RETURN", 1)], std::sync::atomic::Ordering::Relaxed);
        returned.load(std::sync::atomic::Ordering::Relaxed)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_revoked_lease_is_not_believed() {
    let (bench, cache, file) = setup(LeaseKind::Write).await;
    let mut callbacks = cache.callbacks().unwrap();
    assert!(cache.callbacks().is_none());
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    read(&cache, &v4(0, 1), &file, 0, 10).await;
    let lease = opened.lease.unwrap();
    assert_eq!((lease.kind, lease.change), (LeaseKind::Write, opened.attributes.change));
    bench.origin.revoke(&file);
    bench.origin.tree().write(&file, 0, b"DATA").unwrap();
    let Some(Callback::Revoked { id, handle }) = callbacks.recv().await else { panic!() };
    assert_eq!((id, handle), (lease.id, file));
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "DATA");
    assert_eq!((cache.stats().revoked, cache.stats().leases_write), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_recall_goes_up_first_and_waits_for_the_return() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    let mut callbacks = cache.callbacks().unwrap();
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    let unwanted = OpenRequest { want: Want::None, ..open_request(&root(), "f", 2, Share::READ) };
    assert!(open(&cache, &unwanted).await.lease.is_none());
    let lease = opened.lease.unwrap();
    bench.origin.recall(&file);
    let Some(Callback::Recall(recall)) = callbacks.recv().await else { panic!() };
    assert_eq!((recall.id, recall.handle), (lease.id, file));
    tokio::time::sleep(5 * SECOND).await;
    assert!(bench.origin.lease(&file).is_some(), "the layer above still has it");
    assert!(open(&cache, &open_request(&root(), "f", 3, Share::READ)).await.lease.is_none());
    cache.returned(&v4(0, 1), lease.id).await.unwrap();
    until(|| bench.origin.lease(&file).is_none()).await;
    // If the layer above does not return its lease, it is revoked before the origin would revoke ours.
    bench.origin.pass(SECOND);
    let again =
        cache.open(&v4_opener(0, 1), &open_handle(&file, 4, Share::READ | Share::WRITE)).await.unwrap();
    let lease = again.lease.unwrap();
    bench.origin.recall(&file);
    assert!(matches!(callbacks.recv().await, Some(Callback::Recall(_))));
    let Some(Callback::Revoked { id, .. }) = callbacks.recv().await else { panic!() };
    assert_eq!(id, lease.id);
    until(|| bench.origin.lease(&file).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_read_that_a_recall_overtakes_is_not_kept_for_later() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    // Force a separate READ instead of the piggybacked one.
    bench.origin.fails_piggybacked.store(true, std::sync::atomic::Ordering::Relaxed);
    open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    for effect_first in [true, false] {
        let gate = bench.origin.gate("READ");
        gate.admit(usize::from(effect_first));
        let reading = {
            let cache = cache.clone();
            tokio::spawn(async move { read(&cache, &v4(0, 1), &file, 0, 10).await })
        };
        gate.wait_for(1).await;
        tokio::time::sleep(SECOND / 100).await;
        let before = bench.origin.tree().get(&file).unwrap().data.clone();
        let after = before.iter().map(|byte| byte.wrapping_add(1)).collect::<Vec<_>>();
        bench.origin.others_write(&file, 0, &after).await;
        gate.open();
        let first = reading.await.unwrap();
        assert!(first == before || first == after);
        open(&cache, &open_request(&root(), "f", 2, Share::READ)).await;
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, after);
        // For the other order, begin with nothing cached.
        let cut = bench.origin.tree().get(&file).unwrap().data.clone();
        bench.origin.others_write(&file, 0, &cut).await;
        open(&cache, &open_request(&root(), "f", 2, Share::READ)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_unlinked_gives_back_lease_and_open_with_the_last_close() {
    let (bench, cache, file) = setup(LeaseKind::Write).await;
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    bench.origin.calls();
    cache.close(&v4(0, 1), opened.id).await.unwrap();
    cache.remove(&v4(0, 1), &root(), &origin::name("f")).await.unwrap();
    until(|| bench.origin.lease(&file).is_none() && bench.origin.open_count() == 0).await;
    assert_eq!(bench.origin.calls(), [("CLOSE", 1), ("REMOVE", 1), ("RETURN", 1)]);
    // While a local open exists, the origin's open stays.
    let file = bench.origin.put(&root(), "g", b"data");
    let opened = open(&cache, &open_request(&root(), "g", 1, Share::READ)).await;
    cache.remove(&v4(0, 1), &root(), &origin::name("g")).await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(bench.origin.open_count(), 1);
    cache.close(&v4(0, 1), opened.id).await.unwrap();
    until(|| bench.origin.lease(&file).is_none() && bench.origin.open_count() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_rename_of_ours_keeps_the_data_of_a_leased_file() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    read(&cache, &v4(0, 1), &file, 0, 10).await;
    cache.rename(&v4(0, 1), &root(), &origin::name("f"), &root(), &origin::name("g")).await.unwrap();
    bench.origin.calls();
    let missing = cache.open(&v4_opener(0, 1), &open_request(&root(), "f", 2, Share::READ)).await;
    assert_eq!(missing.unwrap_err().status, Status::NoEnt);
    let opened = open(&cache, &open_request(&root(), "g", 2, Share::READ)).await;
    assert_eq!(opened.handle, file);
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    assert!(!bench.origin.calls().iter().any(|(call, _)| *call == "READ"));
}

// Promise: lock-queries
#[tokio::test(start_paused = true)]
async fn a_conflict_at_the_origin_that_begins_before_ours_is_named() {
    let bench = Bench::with_state(Policy::Never);
    let file = bench.origin.put(&root(), "f", b"data");
    let cache = bench.open().await;
    let one = open(&cache, &open_request(&root(), "f", 1, Share::READ | Share::WRITE)).await;
    for offset in [40, 20] {
        cache.lock(&v4(0, 1), one.id, &request(1, LockKind::Exclusive, offset)).await.unwrap();
    }
    let foreign = request(7, LockKind::Shared, 0).lock;
    bench.origin.state.lock().locks.insert(0, (file, foreign.clone()));
    bench.origin.calls();
    let test = async |kind, offset| {
        let mut wanted = request(2, kind, offset).lock;
        wanted.length = u64::MAX;
        cache.test(&v4(0, 2), &file, &wanted).await.unwrap()
    };
    assert_eq!(test(LockKind::Exclusive, 0).await, Some(foreign));
    assert_eq!(test(LockKind::Shared, 0).await, Some(request(1, LockKind::Exclusive, 20).lock));
    assert_eq!(bench.origin.calls(), [("TEST", 2)]);
    assert_eq!(test(LockKind::Shared, 25).await, Some(request(1, LockKind::Exclusive, 20).lock));
    assert_eq!(bench.origin.calls(), [], "none can begin earlier");
}

#[tokio::test(start_paused = true)]
async fn locks_under_a_write_lease_are_told_before_it_is_returned() {
    let (bench, cache, file) = setup(LeaseKind::Write).await;
    let both = Share::READ | Share::WRITE;
    let one = open(&cache, &open_request(&root(), "f", 1, both)).await;
    let two = cache.open(&v4_opener(0, 2), &open_request(&root(), "f", 2, both)).await.unwrap();
    bench.origin.calls();
    let granted = cache.lock(&v4(0, 1), one.id, &request(1, LockKind::Exclusive, 0)).await.unwrap();
    assert_eq!(granted, Locked::Granted);
    let denied = cache.lock(&v4(0, 2), two.id, &request(2, LockKind::Shared, 5)).await.unwrap();
    assert_eq!(denied, Locked::Denied(request(1, LockKind::Exclusive, 0).lock));
    cache.lock(&v4(0, 2), two.id, &request(2, LockKind::Shared, 10)).await.unwrap();
    let tested = cache.test(&v4(0, 2), &file, &request(3, LockKind::Exclusive, 12).lock).await.unwrap();
    assert_eq!(tested, Some(request(2, LockKind::Shared, 10).lock));
    assert_eq!(bench.origin.calls(), []);
    bench.origin.recall(&file);
    until(|| bench.origin.lease(&file).is_none()).await;
    assert_eq!(bench.origin.calls(), [("LOCK", 2), ("RETURN", 1)]);
    let at_origin: Vec<_> = bench.origin.state.lock().locks.iter().map(|(_, lock)| lock.clone()).collect();
    let expected = [request(1, LockKind::Exclusive, 0).lock, request(2, LockKind::Shared, 10).lock];
    assert_eq!(at_origin, expected);
    // From now on the origin holds the locks. They end with the local open.
    cache.unlock(&v4(0, 1), one.id, &owner(1), (0, 10)).await.unwrap();
    assert_eq!(bench.origin.calls(), [("UNLOCK", 1)]);
    cache.close(&v4(0, 2), two.id).await.unwrap();
    assert_eq!(bench.origin.calls(), [("UNLOCK", 1)]);
    assert!(bench.origin.state.lock().locks.is_empty());
}

/// A lock under a write lease that is being recalled. The layer above has not returned the lease yet.
async fn locked_and_recalled(
    kind: LockKind,
) -> (Bench, Arc<Cache>, Handle, vfs::OpenId, impl Future<Output = ()>) {
    let (bench, cache, file) = setup(LeaseKind::Write).await;
    let mut callbacks = cache.callbacks().unwrap();
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ | Share::WRITE)).await;
    let granted = cache.lock(&v4(0, 1), opened.id, &request(1, kind, 0)).await.unwrap();
    assert_eq!(granted, Locked::Granted);
    bench.origin.recall(&file);
    assert!(matches!(callbacks.recv().await, Some(Callback::Recall(_))));
    let (above, origin) = (cache.clone(), bench.origin.clone());
    let give_back = async move {
        above.returned(&v4(0, 1), opened.lease.unwrap().id).await.unwrap();
        until(|| origin.lease(&file).is_none()).await;
        drop(callbacks);
    };
    (bench, cache, file, opened.id, give_back)
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_given_up_while_the_lease_goes_back_is_not_left_at_the_origin() {
    for part in [10, 4] {
        let (bench, cache, file, id, give_back) = locked_and_recalled(LockKind::Exclusive).await;
        let gate = bench.origin.gate("UNLOCK");
        let unlocking = {
            let cache = cache.clone();
            tokio::spawn(async move { cache.unlock(&v4(0, 1), id, &owner(1), (0, part)).await })
        };
        // The origin knows no lock yet, and its reply is in flight while the lease is returned.
        gate.admit(1);
        gate.wait_for(1).await;
        give_back.await;
        gate.open();
        unlocking.await.unwrap().unwrap();
        let left = |(_, lock): &(Handle, Lock)| (lock.offset, lock.length);
        let left: Vec<_> = bench.origin.state.lock().locks.iter().map(left).collect();
        assert_eq!(left, if part == 10 { vec![] } else { vec![(4, 6)] });
        let others = vfs::Owner(bytes::Bytes::from_static(b"other"));
        let wanted = Lock { owner: others, length: part, ..request(2, LockKind::Exclusive, 0).lock };
        assert!(bench.origin.others_lock(&file, &wanted).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_changed_while_the_lease_goes_back_is_what_it_was_changed_to() {
    let (bench, cache, _, id, give_back) = locked_and_recalled(LockKind::Shared).await;
    let gate = bench.origin.gate("LOCK");
    let locking = {
        let cache = cache.clone();
        tokio::spawn(async move { cache.lock(&v4(0, 1), id, &request(1, LockKind::Exclusive, 0)).await })
    };
    gate.wait_for(1).await;
    let give_back = tokio::spawn(give_back);
    // The old lock is sent to the origin while the change is in flight.
    gate.wait_for(2).await;
    gate.admit(1);
    gate.reply(1);
    assert_eq!(locking.await.unwrap().unwrap(), Locked::Granted);
    gate.open();
    give_back.await.unwrap();
    let at_origin: Vec<_> = bench.origin.state.lock().locks.iter().map(|(_, lock)| lock.clone()).collect();
    assert_eq!(at_origin, [request(1, LockKind::Exclusive, 0).lock]);
}

#[tokio::test(start_paused = true)]
async fn an_open_that_crosses_a_close_is_sent_again() {
    let bench = Bench::with_state(Policy::Never);
    let file = bench.origin.put(&root(), "f", b"data");
    let cache = bench.open().await;
    let opened = open(&cache, &open_handle(&file, 1, Share::READ)).await;
    let gate = bench.origin.gate("CLOSE");
    cache.close(&v4(0, 1), opened.id).await.unwrap();
    gate.wait_for(1).await;
    // The name is not known here. The origin upgrades the open, and then closes it.
    let opening = {
        let cache = cache.clone();
        tokio::spawn(async move { open(&cache, &open_request(&root(), "f", 2, Share::READ)).await })
    };
    tokio::time::sleep(SECOND).await;
    gate.open();
    let opened = opening.await.unwrap();
    assert_eq!(bench.origin.open_count(), 1);
    let data = cache.read(&v4(0, 1), &file, StateidBasis::Open(opened.id), 0, 10).await.unwrap().data;
    assert_eq!(data.to_bytes().unwrap(), "data");
    assert_eq!(bench.origin.calls(), [("CLOSE", 1), ("OPEN", 3)], "the second has brought the data");
}

#[tokio::test(start_paused = true)]
async fn an_open_that_the_origin_has_forgotten_does_not_fail_a_read() {
    let bench = Bench::with_state(Policy::Never);
    let file = bench.origin.put(&root(), "f", b"data");
    let cache = bench.open().await;
    let opened = open(&cache, &open_handle(&file, 1, Share::READ)).await;
    bench.origin.state.lock().opens.clear();
    let data = cache.read(&v4(0, 1), &file, StateidBasis::Open(opened.id), 0, 10).await.unwrap().data;
    assert_eq!(data.to_bytes().unwrap(), "data");
    cache.close(&v4(0, 1), opened.id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_on_an_open_leaves_no_lease_behind_that_cannot_be_recalled() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    let gate = bench.origin.gate("OPEN");
    let request = open_request(&root(), "f", 1, Share::READ);
    let caller = v4_opener(0, 1);
    assert!(tokio::time::timeout(SECOND, cache.open(&caller, &request)).await.is_err());
    gate.open();
    until(|| bench.origin.lease(&file).is_some()).await;
    bench.origin.others_write(&file, 0, b"DATA").await;
    bench.opens_are(0).await;
}

#[tokio::test(start_paused = true)]
async fn without_state_below_opens_and_locks_are_known_here_alone() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let first = open(&cache, &open_request(&root(), "f", 1, Share::READ | Share::WRITE)).await;
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("LOOKUP", 1)]);
    assert!(first.lease.is_none() && !first.created && first.handle == file);
    let second = cache.open(&v4_opener(0, 2), &open_request(&root(), "f", 2, Share::READ)).await.unwrap();
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    let locked = cache.lock(&v4(0, 1), first.id, &request(1, LockKind::Exclusive, 0)).await.unwrap();
    assert_eq!(locked, Locked::Granted);
    let other = cache.lock(&v4(0, 2), second.id, &request(2, LockKind::Shared, 0)).await.unwrap();
    assert!(matches!(other, Locked::Denied(_)));
    cache.close(&v4(0, 1), first.id).await.unwrap();
    let other = cache.lock(&v4(0, 2), second.id, &request(2, LockKind::Shared, 0)).await.unwrap();
    assert_eq!(other, Locked::Granted);
    assert_eq!(bench.origin.calls(), []);
    // The open creates the file, and the next one finds it.
    for created in [true, false] {
        let mut request = open_request(&root(), "new", 1, Share::WRITE);
        request.create = Some(origin::state::unchecked(None));
        assert_eq!(open(&cache, &request).await.created, created);
    }
    assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "data");
}

/// The reply to an OPEN is slow. Meanwhile its lease was recalled and returned, and another one was granted.
#[tokio::test(start_paused = true)]
async fn a_late_reply_that_names_a_lease_from_before_ends_no_other_lease() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    let mut callbacks = cache.callbacks().unwrap();
    let unwanted = || OpenRequest { want: Want::None, ..open_request(&root(), "f", 1, Share::READ) };
    let gate = bench.origin.gate("OPEN");
    gate.admit(1);
    let late = {
        let (cache, request) = (cache.clone(), unwanted());
        tokio::spawn(async move { open(&cache, &request).await })
    };
    until(|| bench.origin.lease(&file).is_some()).await;
    // Later calls do not wait.
    bench.origin.gate("OPEN").open();
    open(&cache, &OpenRequest { owner: owner(2), ..unwanted() }).await;
    bench.origin.others_write(&file, 0, b"DATA").await;
    let opened = open(&cache, &open_request(&root(), "f", 3, Share::READ | Share::WRITE)).await;
    let lease = opened.lease.unwrap();
    gate.open();
    late.await.unwrap();
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "DATA");
    let origin = bench.origin.clone();
    let writing = tokio::spawn(async move { origin.others_write(&file, 0, b"data").await });
    let Some(Callback::Recall(recall)) = callbacks.recv().await else { panic!() };
    assert_eq!(recall.id, lease.id);
    cache.returned(&v4(0, 1), lease.id).await.unwrap();
    writing.await.unwrap();
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    assert_eq!(cache.stats().leases_read, 0);
}

/// The origin has ended a lease, and grants another one before it is heard.
// Promise: delegations-of-the-origin
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_one_replaces_is_revoked_above() {
    let (bench, cache, file) = setup(LeaseKind::Read).await;
    let mut callbacks = cache.callbacks().unwrap();
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ)).await;
    let lease = opened.lease.unwrap();
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    bench.origin.revoke_unheard(&file);
    bench.origin.others_write(&file, 0, b"DATA").await;
    let again = open(&cache, &open_request(&root(), "f", 2, Share::READ | Share::WRITE)).await;
    assert_ne!(again.lease.map(|lease| lease.id), Some(lease.id));
    let callback = callbacks.recv().await;
    let Some(Callback::Revoked { id, handle }) = callback else { panic!("{callback:?}") };
    assert_eq!((id, handle), (lease.id, file));
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "DATA");
    assert_eq!((cache.stats().revoked, cache.stats().leases_read), (1, 1));
}

/// The layer above ends while the shutdown waits for its lease.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_layer_above_that_has_ended() {
    let (bench, cache, file) = setup(LeaseKind::Write).await;
    let mut callbacks = cache.callbacks().unwrap();
    let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ | Share::WRITE)).await;
    assert!(opened.lease.is_some(), "the layer above has the lease");
    cache.close(&v4_opener(0, 1), opened.id).await.unwrap();
    let started = tokio::time::Instant::now();
    let ending = {
        let cache = cache.clone();
        tokio::spawn(async move { cache.shutdown().await })
    };
    assert!(matches!(callbacks.recv().await, Some(Callback::Recall(_))));
    drop(callbacks);
    ending.await.unwrap();
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    assert_eq!(cache::Holdings { opens_below: 0, ..cache.held() }, cache::Holdings::default());
    assert!(bench.origin.lease(&file).is_none());
}
