//! Upstream calls per operation over an origin with state: the v4 columns of docs/reference/costs.md, row by
//! row.
//!
//! Promise: exclusion-under-a-lease
//! Promise: delegations-of-the-origin
//! Promise: shared-opens

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::state::{Policy, unchecked};
use origin::{Bench, name, open_handle, open_request, opener, owner, read, root, v4, v4_opener, write};
use vfs::{
    AccessMask, FileSystem, Handle, LeaseKind, Lock, LockKind, LockRequest, Locked, OpenId, OpenRequest,
    Opened, Opens, Share, Stability, StateidBasis,
};

const SECOND: Duration = Duration::from_secs(1);
const POLICIES: [Policy; 3] =
    [Policy::Never, Policy::Always(LeaseKind::Read), Policy::Always(LeaseKind::Write)];

type Calls<'a> = &'a [(&'static str, u64)];

async fn open(cache: &Cache, request: &OpenRequest, uid: u32, client: u64) -> Opened {
    cache.open(&v4_opener(uid, client), request).await.unwrap()
}

async fn setup(policy: Policy) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::with_state(policy);
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    (bench, cache, file)
}

fn lock_request(client: u64, kind: LockKind, offset: u64, length: u64) -> LockRequest {
    let lock = Lock { owner: owner(client), kind, offset, length };
    LockRequest { lock, wait: false, reclaim: false }
}

async fn lock(cache: &Cache, open: OpenId, client: u64) {
    let request = lock_request(client, LockKind::Shared, 0, u64::MAX);
    assert_eq!(cache.lock(&v4(0, client), open, &request).await.unwrap(), Locked::Granted);
}

#[tokio::test(start_paused = true)]
async fn the_first_open_is_one_open_and_the_next_costs_what_the_lease_says() {
    for (policy, next) in POLICIES.into_iter().zip([[("GETATTR", 1)].as_slice(), &[], &[]]) {
        let (bench, cache, _) = setup(policy).await;
        let request = open_request(&root(), "f", 1, Share::READ);
        let opened = open(&cache, &request, 0, 1).await;
        assert_eq!(opened.attributes.size, 4);
        assert_eq!(bench.origin.calls(), [("OPEN", 1)], "{policy:?}");
        // A second local client, by name and by handle; it has the same credential.
        for request in
            [open_request(&root(), "f", 2, Share::READ), open_handle(&opened.handle, 3, Share::READ)]
        {
            let second = open(&cache, &request, 0, 2).await;
            assert_ne!(second.id, opened.id);
            assert_eq!(bench.origin.calls(), next, "{policy:?}");
        }
        // The same owner again is the same open.
        assert_eq!(open(&cache, &request, 0, 1).await.id, opened.id);
        assert_eq!(bench.origin.calls(), next, "{policy:?}");
        assert_eq!(cache.stats().opens_shared, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn v3_requests_cost_one_getattr_without_a_lease_and_nothing_under_one() {
    for (policy, each) in POLICIES.into_iter().zip([[("GETATTR", 1)].as_slice(), &[], &[]]) {
        let (bench, cache, file) = setup(policy).await;
        open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
        cache.access(&opener(0), &file, AccessMask::READ).await.unwrap();
        bench.origin.calls();
        for _ in 0..2 {
            cache.getattr(&opener(0), &file).await.unwrap();
            assert_eq!(bench.origin.calls(), each, "GETATTR {policy:?}");
            cache.lookup(&opener(0), &root(), &name("f"), vfs::Want::None).await.unwrap();
            assert_eq!(bench.origin.calls(), each, "LOOKUP {policy:?}");
            cache.access(&opener(0), &file, AccessMask::READ).await.unwrap();
            assert_eq!(bench.origin.calls(), each, "ACCESS {policy:?}");
            cache.getattr(&v4(0, 1), &file).await.unwrap();
            assert_eq!(bench.origin.calls(), [], "a stat within the timeout, {policy:?}");
        }
        // Beyond all timeouts, too.
        tokio::time::advance(120 * SECOND).await;
        cache.getattr(&v4(0, 1), &file).await.unwrap();
        assert_eq!(bench.origin.calls(), each, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_of_a_v3_client_opens_on_its_behalf_and_is_then_free() {
    for (policy, idle) in POLICIES.into_iter().zip([[("CLOSE", 1)].as_slice(), &[], &[]]) {
        let (bench, cache, file) = setup(policy).await;
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "data");
        assert_eq!(bench.origin.calls(), [("OPEN", 1)], "the READ is in it, {policy:?}");
        assert_eq!(read(&cache, &opener(0), &file, 0, 10).await, "data");
        assert_eq!(bench.origin.calls(), [], "{policy:?}");
        tokio::time::sleep(3 * SECOND).await;
        assert_eq!(bench.origin.calls(), idle, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_v3_reader_that_may_not_open_reads_all_the_same() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read)).await;
    // The owner may read, whatever the mode says. An OPEN checks the mode.
    let set = vfs::SetAttributes { mode: Some(0), uid: Some(7), ..vfs::SetAttributes::default() };
    bench.origin.tree().setattr(&file, &set, None).unwrap();
    assert_eq!(read(&cache, &opener(7), &file, 0, 10).await, "data");
    assert_eq!(bench.origin.calls(), [("OPEN", 1), ("READ", 1)]);
    assert_eq!(read(&cache, &opener(7), &file, 0, 10).await, "data");
    assert!(!bench.origin.calls().iter().any(|(call, _)| *call == "OPEN"), "not tried again at once");
}

#[tokio::test(start_paused = true)]
async fn a_second_credential_costs_one_access_even_under_a_lease() {
    for policy in POLICIES {
        let (bench, cache, file) = setup(policy).await;
        let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
        read(&cache, &v4(0, 1), &file, 0, 10).await;
        assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
        let second = open(&cache, &open_handle(&file, 2, Share::READ), 5, 2).await;
        assert_eq!(bench.origin.calls(), [("ACCESS", 1)], "{policy:?}");
        assert_eq!(read(&cache, &v4(5, 2), &file, 0, 10).await, "data");
        assert_eq!(bench.origin.calls(), [], "{policy:?}");
        // The origin refuses a credential without the right.
        let write = open_handle(&file, 3, Share::WRITE);
        let denied = cache.open(&v4_opener(5, 3), &write).await.unwrap_err();
        assert_eq!(denied.status, vfs::Status::Access);
        for id in [opened.id, second.id] {
            cache.close(&v4(0, 1), id).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_is_deferred_and_shared_or_waits_for_the_lease() {
    for (policy, later) in POLICIES.into_iter().zip([[("CLOSE", 1)].as_slice(), &[], &[]]) {
        let (bench, cache, file) = setup(policy).await;
        let mut ids = Vec::new();
        for client in 0..4 {
            ids.push(open(&cache, &open_request(&root(), "f", client, Share::READ), 0, client).await.id);
        }
        bench.origin.calls();
        for id in ids {
            cache.close(&v4(0, 1), id).await.unwrap();
            assert!(cache.close(&v4(0, 1), id).await.is_err());
        }
        assert_eq!(bench.origin.calls(), [], "{policy:?}");
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(bench.origin.calls(), [], "{policy:?}");
        tokio::time::sleep(3 * SECOND).await;
        assert_eq!(bench.origin.calls(), later, "{policy:?}");
        if policy != Policy::Never {
            bench.origin.recall(&file);
            bench.opens_are(0).await;
            let mut calls = bench.origin.calls();
            calls.sort_unstable();
            assert_eq!(calls, [("CLOSE", 1), ("RETURN", 1)]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_one_lock_and_one_unlock_but_under_a_write_lease() {
    let both: Calls = &[("LOCK", 1), ("UNLOCK", 1)];
    for (policy, calls) in POLICIES.into_iter().zip([both, both, &[]]) {
        let (bench, cache, _) = setup(policy).await;
        let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
        bench.origin.calls();
        lock(&cache, opened.id, 1).await;
        assert!(cache.holds_locks(opened.id, &owner(1)));
        cache.unlock(&v4(0, 1), opened.id, &owner(1), (0, u64::MAX)).await.unwrap();
        assert!(!cache.holds_locks(opened.id, &owner(1)));
        assert_eq!(bench.origin.calls(), calls, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_writer_is_seen_at_once_after_a_recall_and_at_the_next_open_without() {
    for policy in POLICIES {
        let (bench, cache, file) = setup(policy).await;
        open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
        bench.origin.others_write(&file, 0, b"DATA").await;
        if policy != Policy::Never {
            assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "DATA", "{policy:?}");
            assert_eq!(cache.stats().recalls, 1);
        }
        open(&cache, &open_request(&root(), "f", 2, Share::READ), 0, 2).await;
        assert_eq!(read(&cache, &v4(0, 2), &file, 0, 10).await, "DATA", "{policy:?}");
    }
}

/// Nache's second table, on a small scale.
#[tokio::test(start_paused = true)]
async fn a_hundred_files_eight_times_by_two_clients_are_a_hundred_opens_with_their_reads() {
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let bench = Bench::with_state(Policy::Always(kind));
        let names: Vec<_> = (0..100).map(|n| format!("f{n}")).collect();
        for text in &names {
            bench.origin.put(&root(), text, b"data");
        }
        let cache = bench.open().await;
        for _ in 0..8 {
            for client in [1, 2] {
                for text in &names {
                    let request = open_request(&root(), text, client, Share::READ);
                    let opened = open(&cache, &request, 0, client).await;
                    lock(&cache, opened.id, client).await;
                    let by = StateidBasis::Open(opened.id);
                    let caller = v4(0, client);
                    let data = cache.read(&caller, &opened.handle, by, 0, 100).await.unwrap().data;
                    assert_eq!(data.to_bytes().unwrap(), "data");
                    cache.unlock(&caller, opened.id, &owner(client), (0, u64::MAX)).await.unwrap();
                    cache.close(&caller, opened.id).await.unwrap();
                }
            }
        }
        tokio::time::sleep(10 * SECOND).await;
        let mut expected = vec![("LOCK", 1600), ("OPEN", 100), ("UNLOCK", 1600)];
        expected.retain(|(call, _)| kind == LeaseKind::Read || !call.contains("LOCK"));
        assert_eq!(bench.origin.calls(), expected);
        let stats = cache.stats();
        let held = if kind == LeaseKind::Read { (100, 0) } else { (0, 100) };
        assert_eq!((stats.leases_read, stats.leases_write), held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_is_widened_narrowed_and_closed_with_the_last() {
    let (bench, cache, _) = setup(Policy::Never).await;
    let reader = open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
    let writer = open(&cache, &open_request(&root(), "f", 2, Share::WRITE), 0, 2).await;
    assert_eq!(bench.origin.calls(), [("OPEN", 2)]);
    assert_eq!(bench.origin.open_count(), 1);
    cache.close(&v4(0, 2), writer.id).await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(bench.origin.calls(), [("DOWNGRADE", 1)]);
    assert_eq!(bench.origin.state.lock().opens[0].access, Share::READ);
    cache.close(&v4(0, 1), reader.id).await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(bench.origin.calls(), [("CLOSE", 1)]);
}

// Promise: own-changes-under-a-lease
#[tokio::test(start_paused = true)]
async fn own_writes_under_a_lease_keep_data_and_attributes() {
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        let (bench, cache, file) = setup(Policy::Always(kind)).await;
        // As the Linux server, which reports no state before a WRITE.
        bench.origin.without_before.store(true, std::sync::atomic::Ordering::Relaxed);
        let opened = open(&cache, &open_request(&root(), "f", 1, Share::READ | Share::WRITE), 0, 1).await;
        read(&cache, &v4(0, 1), &file, 0, 10).await;
        bench.origin.calls();
        write(&cache, &v4(0, 1), &file, 4, b" and more").await;
        assert_eq!(bench.origin.calls(), [("WRITE", 1)]);
        assert_eq!(cache.getattr(&opener(0), &file).await.unwrap().size, 13);
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 100).await, "data and more");
        assert_eq!(bench.origin.calls(), [], "{kind:?}");
        // Several at a time: one GETATTR tells which was last, and the data stays.
        let writes = (0..4u64).map(|n| {
            let cache = cache.clone();
            async move {
                let by = StateidBasis::Open(opened.id);
                cache.write(&v4(0, 1), &file, by, n * 4, b"abcd".as_slice().into(), Stability::Unstable).await
            }
        });
        let tasks: Vec<_> = writes.map(tokio::spawn).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        bench.origin.calls();
        assert_eq!(read(&cache, &v4(0, 1), &file, 0, 100).await, "abcdabcdabcdabcd");
        let asked: u64 = bench.origin.calls().iter().map(|(_, count)| count).sum();
        assert!(asked <= 1, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_that_makes_or_cuts_is_one_open() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Write)).await;
    let mut request = open_request(&root(), "new", 1, Share::READ | Share::WRITE);
    request.create = Some(unchecked(None));
    let made = open(&cache, &request, 0, 1).await;
    assert!(made.created);
    assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
    assert!(!open(&cache, &request, 0, 1).await.created);
    assert_eq!(bench.origin.calls(), [], "it is there, and nothing is to be cut");
    // Truncates a file that is cached.
    open(&cache, &open_request(&root(), "f", 1, Share::READ | Share::WRITE), 0, 1).await;
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    bench.origin.calls();
    let mut request = open_request(&root(), "f", 2, Share::WRITE);
    request.create = Some(unchecked(Some(0)));
    let cut = open(&cache, &request, 0, 2).await;
    assert_eq!((cut.created, cut.attributes.size), (false, 0));
    assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "");
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn data_on_disk_after_a_restart_is_confirmed_by_the_open() {
    let (bench, cache, file) = setup(Policy::Always(LeaseKind::Read)).await;
    open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
    read(&cache, &v4(0, 1), &file, 0, 10).await;
    tokio::time::sleep(SECOND).await;
    cache.shutdown().await;
    drop(cache);
    // The origin has forgotten the client, too.
    bench.origin.state.lock().leases.clear();
    bench.origin.state.lock().opens.clear();
    let cache = bench.open().await;
    bench.origin.calls();
    open(&cache, &open_request(&root(), "f", 1, Share::READ), 0, 1).await;
    assert_eq!(read(&cache, &v4(0, 1), &file, 0, 10).await, "data");
    assert_eq!(bench.origin.calls(), [("OPEN", 1)], "attributes came with the open");
}

#[tokio::test(start_paused = true)]
async fn surplus_leases_are_returned_least_recently_used_first() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Read));
    let files: Vec<_> = (0..10).map(|n| bench.origin.put(&root(), &format!("f{n}"), b"data")).collect();
    let mut options = bench.options();
    options.leases_max = 4;
    let cache = bench.open_with(options).await;
    for file in &files {
        read(&cache, &opener(0), file, 0, 10).await;
        tokio::time::sleep(SECOND / 10).await;
    }
    bench.opens_are(4).await;
    let held: Vec<_> = files.iter().map(|file| bench.origin.lease(file).is_some()).collect();
    assert_eq!(held, [false, false, false, false, false, false, true, true, true, true]);
    assert_eq!(cache.stats().leases_read, 4);
    bench.end(&cache).await;
}
