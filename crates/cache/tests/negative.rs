//! Negative entries: how long "no such name" is believed, and which events end it earlier.
//!
//! The tests look names up with a `stat`, not with an open, because attribute timeouts serve that kind of
//! request. The directory's own timeout is 30 s.
//!
//! Promise: negative-entries

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Consistency};
use origin::state::{Policy, unchecked};
use origin::tree::Tree;
use origin::{Bench, name, open_request, opener, owner, read, root, v4, v4_opener};
use vfs::{
    Caller, CreateHow, FileSystem, FileType, Handle, Lock, LockKind, LockRequest, Locked, Opens,
    SetAttributes, Share, Status,
};

const SECOND: Duration = Duration::from_secs(1);

fn stat() -> Caller {
    Caller::unix(0, 0, &[])
}

/// An origin without leases, a directory `d` with the file `old`, and a cache that knows that `d/new` is
/// absent.
async fn setup(bench: Bench) -> (Bench, Arc<Cache>, Handle) {
    let directory = bench.origin.put_dir(&root(), "d");
    bench.origin.put(&directory, "old", b"old");
    bench.origin.put(&root(), "elsewhere", b"data");
    bench.origin.pass(100 * SECOND);
    let cache = bench.open().await;
    cache.lookup(&stat(), &root(), &name("d"), vfs::Want::None).await.unwrap();
    cache.lookup(&stat(), &directory, &name("old"), vfs::Want::None).await.unwrap();
    cache.lookup(&stat(), &root(), &name("elsewhere"), vfs::Want::None).await.unwrap();
    // After this time, the origin's earlier states are no longer news.
    for _ in 0..2 {
        tokio::time::advance(2 * SECOND).await;
        bench.origin.pass(2 * SECOND);
        cache.getattr(&opener(0), &root()).await.unwrap();
    }
    assert!(is_absent(&cache, &directory).await);
    bench.origin.calls();
    (bench, cache, directory)
}

async fn is_absent(cache: &Cache, directory: &Handle) -> bool {
    match cache.lookup(&stat(), directory, &name("new"), vfs::Want::None).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.status, Status::NoEnt);
            true
        }
    }
}

fn without_leases() -> Bench {
    Bench::with_state(Policy::Never)
}

#[tokio::test(start_paused = true)]
async fn a_negative_entry_is_believed_for_a_second_and_then_costs_one_getattr() {
    for (bench, asked) in [(Bench::new(), "GETATTR"), (without_leases(), "ACCESS")] {
        let (bench, cache, directory) = setup(bench).await;
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(is_absent(&cache, &directory).await);
        assert_eq!(bench.origin.calls(), []);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(is_absent(&cache, &directory).await);
        // An origin with state is asked for a lease on the directory, too.
        assert_eq!(bench.origin.calls(), [(asked, 1)]);
        bench.origin.put(&directory, "new", b"");
        assert!(is_absent(&cache, &directory).await, "the promise allows it");
        tokio::time::advance(SECOND).await;
        assert!(!is_absent(&cache, &directory).await);
    }
}

// Promise: nocto
#[tokio::test(start_paused = true)]
async fn with_nocto_attribute_timeouts_alone_decide() {
    let bench = Bench::new();
    bench.origin.pass(100 * SECOND);
    let mut options = bench.options();
    options.consistency = Consistency::NoCto;
    let cache = bench.open_with(options).await;
    assert!(is_absent(&cache, &root()).await);
    bench.origin.calls();
    tokio::time::advance(29 * SECOND).await;
    assert!(is_absent(&cache, &root()).await);
    assert_eq!(bench.origin.calls(), []);
}

/// Git reads a new reference and then the object that it names, after a failed lookup of that object.
#[tokio::test(start_paused = true)]
async fn after_later_work_of_another_client_a_negative_entry_is_asked_again() {
    for found_new in [false, true] {
        let (bench, cache, directory) = setup(without_leases()).await;
        bench.origin.pass(SECOND / 10);
        bench.origin.put(&directory, "new", b"");
        let place = if found_new {
            bench.origin.put(&root(), "reference", b"name");
            "reference"
        } else {
            let elsewhere = cache
                .lookup(&stat(), &root(), &name("elsewhere"), vfs::Want::None)
                .await
                .unwrap()
                .node
                .handle;
            bench.origin.tree().write(&elsewhere, 0, b"name").unwrap();
            "elsewhere"
        };
        assert!(is_absent(&cache, &directory).await, "nobody could tell");
        let request = open_request(&root(), place, 1, Share::READ);
        let opened = cache.open(&v4_opener(0, 1), &request).await.unwrap();
        assert_eq!(read(&cache, &v4(0, 1), &opened.handle, 0, 4).await, "name");
        assert!(!is_absent(&cache, &directory).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_walk_through_an_old_tree_is_no_news() {
    let (bench, cache, directory) = setup(without_leases()).await;
    let past = bench.origin.put_dir(&root(), "past");
    for n in 0..10 {
        bench.origin.put(&past, &format!("f{n}"), b"");
    }
    // All of the tree is older than what was known when the negative entry was confirmed.
    for _ in 0..2 {
        bench.origin.pass(10 * SECOND);
        bench.origin.put(&root(), "clock", b"");
        cache.lookup(&stat(), &root(), &name("clock"), vfs::Want::None).await.unwrap();
        bench.origin.tree().remove(&root(), &name("clock"), false).unwrap();
        tokio::time::advance(2 * SECOND).await;
    }
    assert!(is_absent(&cache, &directory).await);
    bench.origin.calls();
    cache.lookup(&stat(), &root(), &name("past"), vfs::Want::None).await.unwrap();
    for n in 0..10 {
        cache.lookup(&stat(), &past, &name(&format!("f{n}")), vfs::Want::None).await.unwrap();
        assert!(is_absent(&cache, &directory).await);
    }
    assert_eq!(bench.origin.calls(), [("LOOKUP", 11)]);
}

#[tokio::test(start_paused = true)]
async fn own_creations_are_no_news_and_one_that_a_stranger_preceded_ends_all() {
    let (bench, cache, directory) = setup(Bench::new()).await;
    let make = async |text: &str| {
        let how = CreateHow::Guarded;
        cache.create(&stat(), &directory, &name(text), how, &SetAttributes::default()).await.unwrap();
    };
    make("a").await;
    make("b").await;
    assert!(is_absent(&cache, &directory).await);
    assert_eq!(bench.origin.calls(), [("CREATE", 2)]);
    bench.origin.pass(SECOND / 10);
    bench.origin.put(&directory, "new", b"");
    make("new.lock").await;
    assert!(!is_absent(&cache, &directory).await);
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_creation_of_a_v4_client_shows_what_a_stranger_made_before() {
    let (bench, cache, directory) = setup(without_leases()).await;
    bench.origin.put(&directory, "new", b"");
    let mut request = open_request(&directory, "new.lock", 1, Share::WRITE);
    request.create = Some((CreateHow::Guarded, unchecked(None).1));
    cache.open(&v4_opener(0, 1), &request).await.unwrap();
    assert!(!is_absent(&cache, &directory).await);
}

#[tokio::test(start_paused = true)]
async fn an_open_in_the_directory_confirms_its_negative_entries() {
    for bench in [Bench::new(), without_leases(), Bench::with_state(Policy::Always(vfs::LeaseKind::Read))] {
        let (bench, cache, directory) = setup(bench).await;
        let open = async || {
            cache.open(&v4_opener(0, 1), &open_request(&directory, "old", 1, Share::READ)).await.unwrap()
        };
        open().await;
        assert!(is_absent(&cache, &directory).await);
        let (kind, how, set) = (FileType::Regular, CreateHow::Guarded, SetAttributes::default());
        let make = |tree: &mut Tree| {
            tree.make(&directory, &name("new"), kind, how, &set, b"").unwrap();
        };
        bench.origin.others_name(&directory, "new", make).await;
        // If a lease on the file is held, this costs no call.
        open().await;
        assert!(!is_absent(&cache, &directory).await);
    }
}

// Promise: locks-as-points-of-coherence
#[tokio::test(start_paused = true)]
async fn a_lock_shows_what_its_last_holder_made() {
    let (bench, cache, directory) = setup(without_leases()).await;
    let opened =
        cache.open(&v4_opener(0, 1), &open_request(&root(), "elsewhere", 1, Share::READ)).await.unwrap();
    assert!(is_absent(&cache, &directory).await);
    bench.origin.put(&directory, "new", b"");
    let lock = Lock { owner: owner(1), kind: LockKind::Shared, offset: 0, length: 1 };
    let request = LockRequest { lock, wait: false, reclaim: false };
    assert_eq!(cache.lock(&v4(0, 1), opened.id, &request).await.unwrap(), Locked::Granted);
    assert!(!is_absent(&cache, &directory).await);
}

/// The journal of a database: its last user removed it before releasing the lock.
// Promise: locks-as-points-of-coherence
#[tokio::test(start_paused = true)]
async fn a_lock_shows_what_its_last_holder_removed() {
    for removed in [true, false] {
        let (bench, cache, directory) = setup(without_leases()).await;
        let opened =
            cache.open(&v4_opener(0, 1), &open_request(&root(), "elsewhere", 1, Share::READ)).await.unwrap();
        let old = async || cache.lookup(&stat(), &directory, &name("old"), vfs::Want::None).await.map(drop);
        old().await.unwrap();
        if removed {
            bench.origin.tree().remove(&directory, &name("old"), false).unwrap();
        }
        old().await.expect("attribute timeouts allow it");
        let lock = Lock { owner: owner(1), kind: LockKind::Shared, offset: 0, length: 1 };
        let request = LockRequest { lock, wait: false, reclaim: false };
        assert_eq!(cache.lock(&v4(0, 1), opened.id, &request).await.unwrap(), Locked::Granted);
        assert_eq!(old().await.is_err(), removed);
        bench.origin.calls();
        if !removed {
            old().await.unwrap();
            assert_eq!(bench.origin.calls(), [], "it is asked once");
        }
    }
}

// Promise: positive-entries
#[tokio::test(start_paused = true)]
async fn a_name_is_confirmed_after_a_stranger_has_changed_its_directory() {
    let (bench, cache, directory) = setup(without_leases()).await;
    let old =
        async || cache.lookup(&stat(), &directory, &name("old"), vfs::Want::None).await.unwrap().node.handle;
    let before = old().await;
    bench.origin.calls();
    bench.origin.tree().remove(&directory, &name("old"), false).unwrap();
    let after = bench.origin.put(&directory, "old", b"other");
    assert_eq!(old().await, before, "attribute timeouts allow it");
    let mut request = open_request(&directory, "lock", 1, Share::WRITE);
    request.create = Some((CreateHow::Guarded, unchecked(None).1));
    cache.open(&v4_opener(0, 1), &request).await.unwrap();
    assert_eq!(old().await, after);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_contradicts_an_entry_ends_it() {
    for bench in [Bench::new(), without_leases()] {
        let (bench, cache, directory) = setup(bench).await;
        bench.origin.put(&directory, "new", b"");
        let how = CreateHow::Guarded;
        let made = cache.create(&stat(), &directory, &name("new"), how, &SetAttributes::default()).await;
        assert_eq!(made.unwrap_err().status, Status::Exist);
        assert!(!is_absent(&cache, &directory).await);
        bench.origin.tree().remove(&directory, &name("new"), false).unwrap();
        assert!(!is_absent(&cache, &directory).await, "attribute timeouts allow it");
        let removed = cache.remove(&stat(), &directory, &name("new")).await;
        assert_eq!(removed.unwrap_err().status, Status::NoEnt);
        assert!(is_absent(&cache, &directory).await);
    }
}
