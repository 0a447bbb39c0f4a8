//! Share reservations over an origin that enforces them. A share that the cache keeps there without need
//! conflicts neither with our own clients nor with other clients of the origin.
//!
//! Promise: shared-opens

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::state::Policy;
use origin::{Bench, open_handle, open_request, read, root, v4, v4_opener};
use vfs::{Handle, LeaseKind, OpenId, OpenRequest, Opens, Share, Status};

const POLICIES: [Policy; 3] =
    [Policy::Never, Policy::Always(LeaseKind::Read), Policy::Always(LeaseKind::Write)];
const BOTH: Share = Share::READ.union(Share::WRITE);

async fn setup(policy: Policy) -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::with_state(policy);
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(Duration::from_secs(10));
    let cache = bench.open().await;
    (bench, cache, file)
}

fn denying(request: OpenRequest, deny: Share) -> OpenRequest {
    OpenRequest { deny, ..request }
}

async fn open(cache: &Cache, client: u64, request: &OpenRequest) -> vfs::Result<OpenId> {
    cache.open(&v4_opener(0, client), request).await.map(|opened| opened.id)
}

async fn close(cache: &Cache, client: u64, open: OpenId) {
    cache.close(&v4(0, client), open).await.unwrap();
}

/// The shares that the origin has for us.
fn held(bench: &Bench) -> Vec<(Share, Share)> {
    bench.origin.state.lock().opens.iter().map(|open| (open.access, open.deny)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_open_that_denies_is_not_denied_by_one_that_nobody_needs() {
    for policy in POLICIES {
        for by_name in [true, false] {
            let (bench, cache, file) = setup(policy).await;
            let request = |client, access| {
                if by_name {
                    open_request(&root(), "f", client, access)
                } else {
                    open_handle(&file, client, access)
                }
            };
            let idle = open(&cache, 1, &request(1, BOTH)).await.unwrap();
            close(&cache, 1, idle).await;
            assert_eq!(held(&bench), [(BOTH, Share::empty())], "{policy:?}: kept for a while");
            bench.origin.calls();
            let alone = denying(request(2, Share::READ), BOTH);
            open(&cache, 2, &alone).await.unwrap();
            assert_eq!(held(&bench), [(Share::READ, BOTH)], "{policy:?}");
            let calls = bench.origin.calls();
            let of = |name| calls.iter().find(|(call, _)| *call == name).map_or(0, |(_, count)| *count);
            assert_eq!((of("OPEN"), of("CLOSE")), (2, 1), "{policy:?}");
            // A share that is needed still conflicts.
            let denied = open(&cache, 3, &request(3, Share::WRITE)).await.unwrap_err();
            assert_eq!(denied.status, Status::ShareDenied, "{policy:?}");
            assert_eq!(held(&bench), [(Share::READ, BOTH)], "{policy:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_needed_is_kept_when_the_rest_makes_way() {
    let (bench, cache, _) = setup(Policy::Never).await;
    open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
    let writer = open(&cache, 2, &open_request(&root(), "f", 2, Share::WRITE)).await.unwrap();
    close(&cache, 2, writer).await;
    assert_eq!(held(&bench), [(BOTH, Share::empty())]);
    open(&cache, 3, &denying(open_request(&root(), "f", 3, Share::READ), Share::WRITE)).await.unwrap();
    assert_eq!(held(&bench), [(Share::READ, Share::WRITE)]);
}

#[tokio::test(start_paused = true)]
async fn a_denial_has_ended_at_the_origin_when_its_close_returns() {
    for policy in POLICIES {
        let (bench, cache, _) = setup(policy).await;
        let alone = denying(open_request(&root(), "f", 1, BOTH), BOTH);
        let alone = open(&cache, 1, &alone).await.unwrap();
        close(&cache, 1, alone).await;
        assert_eq!(held(&bench), [], "{policy:?}");
        // A client without conflict shares the same open, and keeps it.
        let denier = denying(open_request(&root(), "f", 1, Share::READ), Share::WRITE);
        let denier = open(&cache, 1, &denier).await.unwrap();
        let reader = open(&cache, 2, &open_request(&root(), "f", 2, Share::READ)).await.unwrap();
        close(&cache, 1, denier).await;
        assert_eq!(held(&bench), [(Share::READ, Share::empty())], "{policy:?}");
        close(&cache, 2, reader).await;
        bench.end(&cache).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_given_up_by_a_downgrade_has_ended_at_the_origin() {
    let (bench, cache, _) = setup(Policy::Never).await;
    open(&cache, 1, &open_request(&root(), "f", 1, Share::READ)).await.unwrap();
    let request = denying(open_request(&root(), "f", 1, Share::READ), Share::WRITE);
    let opened = open(&cache, 1, &request).await.unwrap();
    assert_eq!(held(&bench), [(Share::READ, Share::WRITE)]);
    cache.downgrade(&v4(0, 1), opened, Share::READ, Share::empty()).await.unwrap();
    assert_eq!(held(&bench), [(Share::READ, Share::empty())]);
}

#[tokio::test(start_paused = true)]
async fn an_open_waits_for_a_read_under_the_one_in_its_way() {
    let (bench, cache, file) = setup(Policy::Never).await;
    // Force a separate READ instead of the piggybacked one.
    bench.origin.fails_piggybacked.store(true, std::sync::atomic::Ordering::Relaxed);
    let reader = open(&cache, 1, &open_handle(&file, 1, Share::READ)).await.unwrap();
    let gate = bench.origin.gate("READ");
    let reading = tokio::spawn({
        let cache = cache.clone();
        async move { read(&cache, &v4(0, 1), &file, 0, 10).await }
    });
    gate.wait_for(1).await;
    close(&cache, 1, reader).await;
    let alone = denying(open_handle(&file, 2, Share::READ), BOTH);
    let opening = tokio::spawn({
        let cache = cache.clone();
        async move { open(&cache, 2, &alone).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(held(&bench), [(Share::READ, Share::empty())], "the READ is still under way");
    gate.open();
    assert_eq!(reading.await.unwrap(), "data");
    opening.await.unwrap().unwrap();
    assert_eq!(held(&bench), [(Share::READ, BOTH)]);
}
