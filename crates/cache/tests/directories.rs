//! Leases on directories: the calls that names cost under one, and the events that end one. No name is ever
//! answered as it was before another client's change.
//!
//! Promise: directory-leases

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::Cache;
use origin::state::Policy;
use origin::{Bench, ROOT, handle, id, name, open_request, opener, root, v4, v4_opener};
use vfs::{
    AccessMask, Caller, CreateHow, FileSystem, FileType, Freshness, Handle, LeaseKind, Leases, Opens,
    ReadDir, Result, SetAttributes, Share, Status,
};

const SECOND: Duration = Duration::from_secs(1);

/// Two files and a directory at an origin that grants leases on directories only. The cache has one on the
/// root.
async fn setup() -> (Bench, Arc<Cache>) {
    let bench = Bench::with_state(Policy::Never);
    bench.origin.state.lock().directories = true;
    bench.origin.put(&root(), "f", b"data");
    bench.origin.put(&root(), "g", b"data");
    bench.origin.put_dir(&root(), "d");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&v4(0, 1), &root()).await.unwrap();
    cache.access(&v4(0, 1), &root(), AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.lease(&root()), Some(LeaseKind::Read));
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("GETATTR", 1)], "it came along");
    (bench, cache)
}

/// Another client makes a file.
async fn others_make(bench: &Bench, text: &str) {
    let make = |tree: &mut origin::Tree| {
        let (how, set) = (CreateHow::Guarded, SetAttributes::default());
        tree.make(&root(), &name(text), FileType::Regular, how, &set, b"").unwrap();
    };
    bench.origin.others_name(&root(), text, make).await;
}

/// The object that a name leads to.
async fn look(cache: &Cache, caller: &Caller, text: &str) -> Option<Handle> {
    match cache.lookup(caller, &root(), &name(text), vfs::Want::None).await {
        Ok(looked) => Some(looked.node.handle),
        Err(error) => {
            assert_eq!(error.status, Status::NoEnt);
            None
        }
    }
}

async fn create(cache: &Cache, text: &str) -> Result<Handle> {
    let (how, set) = (CreateHow::Guarded, SetAttributes::default());
    let made = cache.create(&opener(0), &root(), &name(text), how, &set).await?;
    Ok(made.node.handle)
}

async fn list(cache: &Cache, caller: &Caller) -> Vec<String> {
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 100_000,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = cache.readdir(caller, &root(), part).await.unwrap();
    assert!(listing.eof);
    let text = |entry: &vfs::Entry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
    listing.entries.iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_name_costs_one_call_and_then_none_there_or_not() {
    let (bench, cache) = setup().await;
    for text in ["f", "d", "absent"] {
        let found = look(&cache, &v4_opener(0, 1), text).await;
        assert_eq!(bench.origin.calls(), [("LOOKUP", 1)], "{text}");
        assert_eq!(look(&cache, &v4(0, 2), text).await, found);
        assert_eq!(bench.origin.calls(), [], "{text}: a client with state");
    }
    // A v3 client's request counts as an open of the object that the name leads to. A negative entry needs no
    // call.
    look(&cache, &opener(0), "f").await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    look(&cache, &opener(0), "absent").await;
    cache.getattr(&opener(0), &root()).await.unwrap();
    cache.access(&opener(0), &root(), AccessMask::LOOKUP).await.unwrap();
    let absent = cache.open(&v4_opener(0, 1), &open_request(&root(), "absent", 1, Share::READ)).await;
    assert_eq!(absent.unwrap_err().status, Status::NoEnt);
    assert_eq!(bench.origin.calls(), []);
    // Attribute timeouts do not matter for names. They matter for the attributes of a child.
    tokio::time::advance(40 * SECOND).await;
    look(&cache, &opener(0), "absent").await;
    assert_eq!(bench.origin.calls(), []);
    look(&cache, &v4(0, 1), "f").await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_made_and_filled_here_is_asked_about_twice() {
    let (bench, cache) = setup().await;
    let set = SetAttributes::default();
    let new =
        cache.mkdir(&opener(0), &root(), &name("new"), &set, vfs::Want::None).await.unwrap().node.handle;
    bench.origin.calls();
    let absent = async |text: &str| {
        let looked = cache.lookup(&v4(0, 1), &new, &name(text), vfs::Want::None).await;
        assert_eq!(looked.unwrap_err().status, Status::NoEnt);
    };
    for number in 0..20 {
        let text = format!("f{number}");
        absent(&text).await;
        cache.create(&v4(0, 1), &new, &name(&text), CreateHow::Guarded, &set).await.unwrap();
        assert!(cache.lookup(&v4(0, 1), &new, &name(&text), vfs::Want::None).await.is_ok());
    }
    let calls = [("CREATE", 20), ("LOOKUP", 1), ("READDIR", 1)];
    assert_eq!(bench.origin.calls(), calls, "a lease with the first question, all names with the second");
    // Another client's name is found all the same.
    let other = |tree: &mut origin::Tree| {
        tree.make(&new, &name("other"), FileType::Regular, CreateHow::Guarded, &set, b"").map(drop).unwrap();
    };
    bench.origin.others_name(&new, "other", other).await;
    assert!(cache.lookup(&v4(0, 1), &new, &name("other"), vfs::Want::None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_directory_in_which_a_name_was_sought_in_vain_is_listed_when_the_next_is() {
    let (bench, cache) = setup().await;
    for number in 0..20 {
        let text = format!("n{number}");
        assert_eq!(look(&cache, &v4(0, 1), &text).await, None);
        create(&cache, &text).await.unwrap();
    }
    assert_eq!(bench.origin.calls(), [("CREATE", 20), ("LOOKUP", 1), ("READDIR", 1)]);
    // Lookups of existing names are no reason to list the directory: a walk through it does not look for
    // missing names.
    others_make(&bench, "other").await;
    for text in ["f", "g", "d"] {
        assert!(look(&cache, &v4_opener(0, 1), text).await.is_some());
    }
    let calls = bench.origin.calls();
    assert!(!calls.iter().any(|(call, _)| *call == "READDIR"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_sought_after_a_name_that_is_not_there_comes_with_the_listing() {
    let (bench, cache) = setup().await;
    assert_eq!(look(&cache, &v4(0, 1), "absent").await, None);
    assert_eq!(bench.origin.calls(), [("LOOKUP", 1)]);
    assert!(look(&cache, &v4(0, 1), "f").await.is_some());
    assert_eq!(bench.origin.calls(), [("READDIR", 1)]);
    assert!(
        look(&cache, &v4(0, 1), "g").await.is_some() && look(&cache, &v4(0, 1), "nor this").await.is_none()
    );
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_too_large_for_one_answer_is_asked_for_all_names_once() {
    let (bench, cache) = setup().await;
    let there =
        |number: u32| format!("a file with a long name, so that few of them fit into an answer: {number}");
    for number in 0..2000 {
        bench.origin.put(&root(), &there(number), b"");
    }
    bench.origin.pass(10 * SECOND);
    tokio::time::advance(60 * SECOND).await;
    for number in 0..20 {
        assert_eq!(look(&cache, &v4(0, 1), &format!("n{number}")).await, None);
    }
    let calls = bench.origin.calls();
    let of = |kind: &str| calls.iter().find(|(call, _)| *call == kind).map_or(0, |(_, count)| *count);
    assert_eq!((of("READDIR"), of("LOOKUP")), (1, 20), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_whole_listing_says_which_names_there_are_not() {
    let (bench, cache) = setup().await;
    assert_eq!(list(&cache, &opener(0)).await, ["f", "g", "d"]);
    assert_eq!(bench.origin.calls(), [("READDIR", 1)]);
    assert_eq!(list(&cache, &opener(0)).await.len(), 3);
    assert_eq!(look(&cache, &opener(0), "never asked for").await, None);
    assert_eq!(bench.origin.calls(), []);
    // Our own changes are in the listing.
    create(&cache, "new").await.unwrap();
    assert_eq!(bench.origin.calls(), [("CREATE", 1)]);
    assert!(look(&cache, &v4(0, 1), "new").await.is_some());
    assert_eq!(look(&cache, &opener(0), "neither").await, None);
    assert_eq!(bench.origin.calls(), []);
    let made = cache
        .mkdir(&opener(0), &root(), &name("newer"), &SetAttributes::default(), vfs::Want::None)
        .await
        .unwrap();
    cache.remove(&opener(0), &root(), &name("new")).await.unwrap();
    bench.origin.calls();
    assert_eq!(look(&cache, &opener(0), "new").await, None);
    assert_eq!(look(&cache, &v4(0, 1), "newer").await, Some(made.node.handle));
    assert_eq!(look(&cache, &opener(0), "neither").await, None);
    assert_eq!(bench.origin.calls(), []);
    // The listing no longer answers READDIR.
    assert_eq!(list(&cache, &opener(0)).await, ["f", "g", "d", "newer"]);
    assert_eq!(bench.origin.calls(), [("READDIR", 1)]);
}

#[tokio::test(start_paused = true)]
async fn names_follow_our_own_renames() {
    let (bench, cache) = setup().await;
    let f = look(&cache, &opener(0), "f").await;
    look(&cache, &opener(0), "h").await;
    bench.origin.calls();
    cache.rename(&opener(0), &root(), &name("f"), &root(), &name("h")).await.unwrap();
    assert_eq!(bench.origin.calls(), [("RENAME", 1)]);
    assert_eq!(look(&cache, &v4(0, 1), "f").await, None);
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(look(&cache, &v4(0, 1), "h").await, f);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)], "its ctime has moved");
    assert_eq!(look(&cache, &v4(0, 1), "h").await, f);
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn whoever_else_changes_a_name_is_waited_for_and_seen() {
    let (bench, cache) = setup().await;
    list(&cache, &opener(0)).await;
    assert_eq!(look(&cache, &opener(0), "x").await, None);
    let f = look(&cache, &opener(0), "f").await;
    bench.origin.calls();
    others_make(&bench, "x").await;
    assert_eq!(bench.origin.lease(&root()), None);
    assert_eq!(bench.origin.calls(), [("RETURN", 1)]);
    assert!(look(&cache, &opener(0), "x").await.is_some());
    bench
        .origin
        .others_name(&root(), "f", |tree| {
            tree.rename((&root(), &name("f")), (&root(), &name("moved"))).unwrap();
        })
        .await;
    assert_eq!(look(&cache, &opener(0), "f").await, None);
    assert_eq!(look(&cache, &opener(0), "moved").await, f);
    assert_eq!(list(&cache, &opener(0)).await.len(), 4);
    assert_eq!(cache.stats().recalls, 2, "what asked again brought another lease");
}

/// A directory that is removed and made again is another directory.
#[tokio::test(start_paused = true)]
async fn a_directory_that_is_made_anew_is_not_the_old_one() {
    let (bench, cache) = setup().await;
    let caller = v4_opener(0, 1);
    let d = look(&cache, &caller, "d").await.unwrap();
    cache.access(&caller, &d, AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.lease(&d), Some(LeaseKind::Read));
    bench
        .origin
        .others_name(&root(), "d", |tree| {
            tree.remove(&root(), &name("d"), true).unwrap();
            let (how, set) = (CreateHow::Guarded, SetAttributes::default());
            tree.make(&root(), &name("d"), FileType::Directory, how, &set, b"").unwrap();
        })
        .await;
    let again = look(&cache, &caller, "d").await.unwrap();
    assert_ne!(again, d);
    // Our own removal first returns the lease on the directory.
    cache.access(&caller, &again, AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.lease(&again), Some(LeaseKind::Read));
    bench.origin.calls();
    cache.rmdir(&caller, &root(), &name("d")).await.unwrap();
    assert_eq!(bench.origin.calls(), [("RETURN", 1), ("RMDIR", 1)]);
}

/// The cache does not know the name yet. It returns the lease on the directory before the removal all the
/// same.
#[tokio::test(start_paused = true)]
async fn a_leased_directory_whose_name_is_not_remembered_goes_back_before_it_is_removed_or_replaced() {
    for rename in [false, true] {
        let (bench, cache) = setup().await;
        let caller = v4_opener(0, 1);
        let d = bench.origin.tree().lookup(&caller.principal, &root(), &name("d")).unwrap().node.handle;
        bench.origin.put_dir(&root(), "other");
        // By its handle, like a client that knew it before a restart.
        cache.getattr(&caller, &d).await.unwrap();
        cache.access(&caller, &d, AccessMask::LOOKUP).await.unwrap();
        assert_eq!(bench.origin.lease(&d), Some(LeaseKind::Read));
        bench.origin.calls();
        if rename {
            cache.rename(&caller, &root(), &name("other"), &root(), &name("d")).await.unwrap();
        } else {
            cache.rmdir(&caller, &root(), &name("d")).await.unwrap();
        }
        let order: Vec<_> = bench.origin.calls().into_iter().map(|(call, _)| call).collect();
        assert!(order.contains(&"RETURN"), "{order:?}");
        assert_eq!(bench.origin.lease(&d), None);
        assert!(look(&cache, &caller, "d").await.is_some() == rename);
    }
}

/// A lease that is granted again while the RMDIR is in flight has no use left.
#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_back_during_the_removal_goes_with_it() {
    let (bench, cache) = setup().await;
    let caller = v4_opener(0, 1);
    let d = look(&cache, &caller, "d").await.unwrap();
    cache.access(&caller, &d, AccessMask::LOOKUP).await.unwrap();
    let gate = bench.origin.gate("RMDIR");
    let removing = tokio::spawn({
        let (cache, caller) = (cache.clone(), caller.clone());
        async move { cache.rmdir(&caller, &root(), &name("d")).await }
    });
    gate.wait_for(1).await;
    assert_eq!(bench.origin.lease(&d), None, "returned first");
    // An ACCESS by another credential asks for a lease again.
    cache.access(&v4_opener(9, 2), &d, AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.lease(&d), Some(LeaseKind::Read));
    gate.open();
    removing.await.unwrap().unwrap();
    origin::until(|| bench.origin.lease(&d).is_none()).await;
}

/// While a change of a name in it is in flight, the index is not told that everything about the directory is
/// known.
#[tokio::test]
async fn a_directory_is_not_vouched_for_while_a_name_of_it_changes() {
    let (mut bench, cache) = setup().await;
    bench.origin.state.lock().resumes = true;
    assert_eq!(look(&cache, &opener(0), "new").await, None);
    cache.flush().await;
    let gate = bench.origin.gate("CREATE");
    let creating = tokio::spawn({
        let cache = cache.clone();
        async move { create(&cache, "new").await }
    });
    gate.wait_for(1).await;
    gate.admit(1);
    origin::until(|| bench.origin.tree().get(&root()).unwrap().names.contains_key(&name("new"))).await;
    // The name exists, and the cache does not know it. These calls write the directory to the index, which
    // must not vouch.
    cache.getattr(&opener(0), &root()).await.unwrap();
    cache.access(&v4(7, 3), &root(), AccessMask::LOOKUP).await.unwrap();
    cache.flush().await;
    let after = bench.killed();
    creating.abort();
    drop(cache);
    bench = after;
    gate.open();
    let cache = bench.open().await;
    assert!(look(&cache, &opener(0), "new").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_revoked_vouches_for_nothing() {
    let (bench, cache) = setup().await;
    look(&cache, &opener(0), "absent").await;
    bench.origin.revoke(&root());
    bench.origin.put(&root(), "absent", b"");
    tokio::time::sleep(SECOND).await;
    assert!(look(&cache, &opener(0), "absent").await.is_some());
}

/// Not every client sends ACCESS. The first LOOKUP, OPEN or READDIR also brings a lease, whether the name
/// exists or not.
#[tokio::test(start_paused = true)]
async fn who_never_sends_access_gets_one_with_the_first_question() {
    for call in ["LOOKUP", "OPEN", "READDIR"] {
        let bench = Bench::with_state(Policy::Never);
        bench.origin.state.lock().directories = true;
        bench.origin.put(&root(), "f", b"data");
        bench.origin.put(&root(), "g", b"data");
        bench.origin.pass(10 * SECOND);
        let cache = bench.open().await;
        let caller = v4_opener(0, 1);
        cache.getattr(&caller, &root()).await.unwrap();
        bench.origin.calls();
        let ask = async |text: &str| match call {
            "LOOKUP" => assert_eq!(look(&cache, &caller, text).await, None),
            "OPEN" => {
                let absent = open_request(&root(), text, 1, Share::READ);
                assert_eq!(cache.open(&caller, &absent).await.unwrap_err().status, Status::NoEnt);
            }
            _ => {
                let part = ReadDir {
                    cookie: 0,
                    verifier: [0; 8],
                    bytes: 1,
                    plus: false,
                    want_directory_lease: false,
                    names_suffice: false,
                };
                assert_eq!(cache.readdir(&caller, &root(), part).await.unwrap().entries.len(), 1);
            }
        };
        assert_eq!(bench.origin.lease(&root()), None);
        for text in ["a", "b"] {
            ask(text).await;
            assert_eq!(bench.origin.lease(&root()), Some(LeaseKind::Read), "{call}");
        }
        if call != "READDIR" {
            // The answer that came with the lease is covered, too: it belongs to the same state of the
            // directory.
            let second = if call == "LOOKUP" { "READDIR" } else { call };
            let calls = bench.origin.calls();
            assert_eq!(calls.iter().map(|(_, count)| count).sum::<u64>(), 2, "{calls:?}");
            assert!(calls.iter().any(|(kind, _)| *kind == second), "{calls:?}");
            let other = v4_opener(0, 2);
            for text in ["a", "b"] {
                assert_eq!(look(&cache, &other, text).await, None);
                let absent = open_request(&root(), text, 2, Share::READ);
                assert_eq!(cache.open(&other, &absent).await.unwrap_err().status, Status::NoEnt);
            }
            assert_eq!(bench.origin.calls(), []);
        }
        others_make(&bench, "a").await;
        assert!(look(&cache, &caller, "a").await.is_some(), "{call}");
    }
}

/// The cache asks less and less often for a lease on a directory that others change all the time.
#[tokio::test(start_paused = true)]
async fn what_is_taken_back_at_once_is_not_asked_for_each_time() {
    let bench = Bench::with_state(Policy::Never);
    bench.origin.state.lock().directories = true;
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let caller = v4_opener(0, 1);
    cache.getattr(&caller, &root()).await.unwrap();
    for round in 0..40 {
        look(&cache, &caller, &format!("absent-{round}")).await;
        bench.origin.others_name(&root(), "x", |_| ()).await;
    }
    // The first question, and then those 2, 4, 8 and 16 questions later.
    assert_eq!(cache.stats().recalls, 5);
}

/// An answer that a lease vouches for is given only to a credential that may know it.
#[tokio::test(start_paused = true)]
async fn each_credential_is_asked_for_its_right_once() {
    let (bench, cache) = setup().await;
    look(&cache, &opener(0), "absent").await;
    bench.origin.calls();
    let absent = open_request(&root(), "absent", 1, Share::READ);
    for calls in [[("ACCESS", 1)].as_slice(), &[]] {
        assert_eq!(cache.open(&v4_opener(5, 2), &absent).await.unwrap_err().status, Status::NoEnt);
        assert_eq!(bench.origin.calls(), calls);
    }
    let set = SetAttributes { mode: Some(0o700), uid: Some(7), ..SetAttributes::default() };
    bench.origin.others(&root(), |tree| assert!(tree.setattr(&root(), &set, None).is_ok())).await;
    let refused = cache.open(&v4_opener(5, 2), &absent).await.unwrap_err().status;
    assert_eq!(refused, Status::Access);
}

/// An origin without leases on directories costs as many calls as before.
#[tokio::test(start_paused = true)]
async fn without_one_absence_is_asked_for() {
    let bench = Bench::with_state(Policy::Never);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&opener(0), &root()).await.unwrap();
    cache.access(&opener(0), &root(), AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("GETATTR", 1)]);
    for call in ["LOOKUP", "GETATTR", "GETATTR"] {
        assert_eq!(look(&cache, &opener(0), "absent").await, None);
        assert_eq!(bench.origin.calls(), [(call, 1)]);
    }
    let absent = open_request(&root(), "absent", 1, Share::READ);
    assert_eq!(cache.open(&v4_opener(0, 1), &absent).await.unwrap_err().status, Status::NoEnt);
    assert_eq!(bench.origin.calls(), [("OPEN", 1)]);
}

/// Leases of the layer above depend on ours: they cost no call, and are returned before ours is.
#[tokio::test(start_paused = true)]
async fn it_is_lent_to_the_layer_above() {
    let (bench, cache) = setup().await;
    let mut callbacks = cache.callbacks().unwrap();
    let lent = cache.delegate(&v4(0, 1), &root(), AccessMask::LOOKUP).await.unwrap();
    let lease = lent.lease.unwrap();
    assert_eq!(lent.accessed.attributes.unwrap().change, lease.change);
    assert_eq!(bench.origin.calls(), []);
    let origin = bench.origin.clone();
    let changing = tokio::spawn(async move { origin.others_name(&root(), "x", |_| ()).await });
    let Some(vfs::Callback::Recall(recall)) = callbacks.recv().await else { panic!("a recall") };
    assert_eq!((recall.id, recall.handle), (lease.id, root()));
    tokio::time::sleep(SECOND).await;
    assert!(!changing.is_finished() && bench.origin.calls().is_empty());
    cache.returned(&Caller::machine(), lease.id).await.unwrap();
    changing.await.unwrap();
    assert_eq!(bench.origin.calls(), [("RETURN", 1)]);
}

/// A lease outlives a restart if the origin has kept it, and vouches if the index holds everything.
#[tokio::test]
async fn what_is_held_still_after_a_restart_vouches_still() {
    let (mut bench, cache) = setup().await;
    bench.origin.state.lock().resumes = true;
    look(&cache, &opener(0), "absent").await;
    cache.flush().await;
    let after = bench.killed();
    drop(cache);
    bench = after;
    let cache = bench.open().await;
    bench.origin.calls();
    assert_eq!(look(&cache, &opener(0), "absent").await, None);
    assert_eq!(bench.origin.calls(), []);
    // A change of ours that the index had not been told of when the process was killed.
    create(&cache, "absent").await.unwrap();
    let after = bench.killed();
    drop(cache);
    bench = after;
    let cache = bench.open().await;
    assert!(look(&cache, &opener(0), "absent").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_listing_of_before_a_restart_says_which_names_there_are_not() {
    let (mut bench, cache) = setup().await;
    assert_eq!(list(&cache, &opener(0)).await.len(), 3);
    cache.flush().await;
    let after = bench.killed();
    drop(cache);
    bench = after;
    let cache = bench.open().await;
    bench.origin.calls();
    for text in ["absent", "this too", "and this"] {
        assert_eq!(look(&cache, &opener(0), text).await, None);
    }
    let calls = bench.origin.calls();
    assert!(calls.iter().all(|(call, _)| ["ACCESS", "GETATTR"].contains(call)), "{calls:?}");
}

/// Clients of the cache and other clients, all at once. The result of a lookup was true at some moment since
/// it began.
async fn interleaved(seed: u64) -> u64 {
    let bench = Bench::with_state(Policy::Never);
    bench.origin.state.lock().directories = true;
    bench.origin.seed.store(seed, Ordering::Relaxed);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&opener(0), &root()).await.unwrap();
    bench.origin.jitter.store(300, Ordering::Relaxed);
    // Every change has a timestamp of its own, as the timestamp granularity rule assumes.
    bench.origin.tree().ticks = true;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..3 {
        let (cache, origin) = (cache.clone(), bench.origin.clone());
        clients.spawn(async move {
            // Without a lease, a request with other freshness may get an answer as old as the attribute
            // timeouts.
            let caller =
                if number == 0 { opener(0) } else { v4_opener(0, number).with_freshness(Freshness::Open) };
            for _ in 0..60 {
                let text = ["a", "b", "c"][(origin.random() % 3) as usize];
                let other = ["a", "b", "c"][(origin.random() % 3) as usize];
                let what = origin.random() % 10;
                let began = origin.tree().names_history.len() - 1;
                match what {
                    0 => drop(create(&cache, text).await),
                    1 => drop(cache.remove(&caller, &root(), &name(text)).await),
                    2 => drop(cache.rename(&caller, &root(), &name(text), &root(), &name(other)).await),
                    3 => drop(cache.access(&caller, &root(), AccessMask::LOOKUP).await),
                    4 => {
                        let found = list(&cache, &caller).await;
                        let tree = origin.tree();
                        let was = |names: &std::collections::BTreeMap<vfs::Name, u64>| {
                            names.len() == found.len()
                                && found.iter().all(|text| names.contains_key(&name(text)))
                        };
                        assert!(tree.names_history[began..].iter().any(was), "{found:?}");
                    }
                    5 => {
                        let request = open_request(&root(), text, number, Share::READ);
                        let found = match cache.open(&v4_opener(0, number), &request).await {
                            Ok(opened) => Some(opened.handle),
                            Err(error) if error.status == Status::NoEnt => None,
                            // The object that the name led to was gone.
                            Err(error) => panic!("{error}"),
                        };
                        check(&origin, began, (seed, "OPEN", text), found);
                    }
                    _ => {
                        let found = look(&cache, &caller, text).await;
                        check(&origin, began, (seed, "LOOKUP", text), found);
                    }
                }
            }
        });
    }
    let origin = bench.origin.clone();
    clients.spawn(async move {
        for _ in 0..30 {
            let text = ["a", "b", "c"][(origin.random() % 3) as usize];
            let make = origin.random().is_multiple_of(2);
            origin
                .others_name(&root(), text, |tree| {
                    if make {
                        let (how, set) = (CreateHow::Guarded, SetAttributes::default());
                        drop(tree.make(&root(), &name(text), FileType::Regular, how, &set, b""));
                    } else {
                        drop(tree.remove(&root(), &name(text), false));
                    }
                })
                .await;
            let pause = origin.random() % 3000;
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
    });
    clients.join_all().await;
    cache.stats().recalls
}

fn check(
    origin: &origin::Origin,
    began: usize,
    (seed, call, text): (u64, &str, &str),
    found: Option<Handle>,
) {
    let tree = origin.tree();
    let found = found.map(|found| id(&found));
    let was = |names: &std::collections::BTreeMap<vfs::Name, u64>| names.get(&name(text)).copied() == found;
    let history = &tree.names_history[began..];
    assert!(
        history.iter().any(was),
        "seed {seed}: {call} of {text} found {found:?}, and there was {history:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn no_name_is_answered_as_it_was_before() {
    assert_eq!(handle(ROOT), root());
    let mut recalls = 0;
    for seed in 1..100 {
        recalls += interleaved(seed).await;
    }
    assert!(recalls > 100, "{recalls}");
}

/// An answer about one name is remembered although other names in the directory are made and removed
/// meanwhile. An answer about the changed name itself is not.
#[tokio::test(start_paused = true)]
async fn a_change_of_one_name_is_none_of_another() {
    let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
    for text in ["f", "g", "old"] {
        bench.origin.put(&root(), text, b"data");
    }
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let caller = v4_opener(0, 1);
    cache.getattr(&caller, &root()).await.unwrap();
    look(&cache, &caller, "old").await;
    for (changed, costs) in [("new", 0), ("f", 1)] {
        let open = bench.origin.gate("OPEN");
        let request = open_request(&root(), "f", 1, Share::READ);
        let opening = tokio::spawn({
            let (cache, caller) = (cache.clone(), caller.clone());
            async move { cache.open(&caller, &request).await.unwrap() }
        });
        open.wait_for(1).await;
        if changed == "new" {
            create(&cache, "new").await.unwrap();
            cache.remove(&caller, &root(), &name("old")).await.unwrap();
        } else {
            // The OPEN finds the file under its name, and the name is gone when the reply arrives.
            open.admit(1);
            let file = handle(bench.origin.tree().get(&root()).unwrap().names[&name("f")].0);
            origin::until(|| bench.origin.lease(&file).is_some()).await;
            cache.rename(&caller, &root(), &name("f"), &root(), &name("moved")).await.unwrap();
        }
        open.open();
        let opened = opening.await.unwrap();
        bench.origin.calls();
        let found = look(&cache, &caller, "f").await;
        let calls: u64 = bench.origin.calls().iter().map(|(_, count)| count).sum();
        assert_eq!(calls, costs, "{changed}");
        assert_eq!(found, (changed == "new").then_some(opened.handle));
        // The file is under a lease. Ends it, so that the next round needs an OPEN again.
        cache.close(&caller, opened.id).await.unwrap();
        bench.origin.others(&opened.handle, |_| ()).await;
        tokio::time::sleep(10 * SECOND).await;
    }
}
