//! Answers to the origin's CB_GETATTR for a file under a write lease. The answer has the size and the times
//! that the cache has. If the origin would show other times, the cache does not answer, and the origin
//! recalls the lease.
//!
//! Promise: close-under-a-write-lease
//! Promise: times-seen-elsewhere

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::behind::{open_file, over, put, user};
use origin::state::Policy;
use origin::{Bench, opener};
use vfs::{
    Callback, DelayedAttributes, FileSystem, Handle, LeaseKind, Opens, Query, SetAttributes, SetTime,
    Timestamp,
};

const SECOND: Duration = Duration::from_secs(1);

async fn leased() -> (Bench, Arc<Cache>, Handle) {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    over(bench, b"old").await
}

/// Sends the query as the origin does.
async fn ask(bench: &Bench, file: &Handle, times: bool) -> Option<DelayedAttributes> {
    let (answer, held) = tokio::sync::oneshot::channel();
    let deadline = tokio::time::Instant::now() + SECOND;
    {
        let state = bench.origin.state.lock();
        let id = state.leases[0].id;
        state.say(Callback::Getattr(Query { id, handle: *file, change: 0, times, answer, deadline }));
    }
    held.await.ok()
}

#[tokio::test(start_paused = true)]
async fn the_times_of_what_is_delayed_are_told_and_cost_no_call() {
    let (bench, cache, file) = leased().await;
    let id = open_file(&bench, &cache).await;
    let there = bench.origin.tree().get(&file).unwrap().attributes;
    let held = ask(&bench, &file, true).await.unwrap();
    assert!(!held.modified && held.size == 3, "{held:?}");
    assert_eq!(ask(&bench, &file, false).await, Some(held));
    bench.origin.calls();
    put(&cache, id, &file, 0, b"newer").await;
    // While the file is being written, an origin that cannot show times presumes that it is modified now.
    assert!(ask(&bench, &file, false).await.unwrap().modified);
    cache.close(&user(), id).await.unwrap();
    let (long_ago, read) = (Timestamp::new(5, 6), Timestamp::new(7, 8));
    let set = SetAttributes {
        mtime: Some(SetTime::Client(long_ago)),
        atime: Some(SetTime::Client(read)),
        ..SetAttributes::default()
    };
    for explicit in [false, true] {
        if explicit {
            cache.setattr(&user(), &file, &set, None).await.unwrap();
        }
        let shown = cache.getattr(&opener(0), &file).await.unwrap();
        let held = ask(&bench, &file, true).await.unwrap();
        let times = held.times.unwrap();
        assert!(held.modified && held.size == 5 && times.ctime > there.ctime, "{held:?}");
        assert_eq!((times.mtime, times.atime), (shown.mtime, shown.atime));
        assert_eq!((times.mtime, times.atime) == (long_ago, read), explicit);
        assert_eq!(ask(&bench, &file, false).await, None, "it would show another time");
    }
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn what_has_been_sent_is_not_told_as_a_change() {
    let (bench, cache, file) = leased().await;
    let id = open_file(&bench, &cache).await;
    put(&cache, id, &file, 0, b"newer").await;
    cache.close(&user(), id).await.unwrap();
    cache.commit(&user(), &file, 0, 0).await.unwrap();
    let there = bench.origin.tree().get(&file).unwrap().attributes;
    for times in [false, true] {
        let held = ask(&bench, &file, times).await.unwrap();
        assert!(!held.modified && held.size == 5, "{held:?}");
        assert_eq!(held.times.unwrap().mtime, there.mtime);
    }
}
