//! Overlapping changes of ours, as v4 reports them, and overlapping LOOKUPs of ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::atomic::Ordering;
use std::time::Duration;

use origin::state::Policy;
use origin::{Bench, name, open_request, opener, root, v4, v4_opener};
use vfs::{
    AccessMask, CreateHow, FileSystem, LeaseKind, Opens, SetAttributes, Share, Stability, StateidBasis,
    Status,
};

const LONG: Duration = Duration::from_secs(10);

/// Four files are made in one directory at once. If another client makes one between them, the cache
/// notices. If not, its knowledge of the directory stays.
// Promise: own-changes
#[tokio::test]
async fn overlapping_creations_leave_what_is_known_of_the_directory_unless_a_stranger_was_there() {
    for stranger in [false, true] {
        let bench = Bench::new();
        let directory = bench.origin.put_dir(&root(), "d");
        bench.origin.change_info_alone.store(true, Ordering::Relaxed);
        bench.origin.pass(LONG);
        let cache = bench.open().await;
        let user = opener(0);
        cache.access(&user, &directory, AccessMask::all()).await.unwrap();
        let absent = async || {
            cache.lookup(&user, &directory, &name("absent"), vfs::Want::None).await.unwrap_err().status
        };
        assert_eq!(absent().await, Status::NoEnt);
        if stranger {
            let origin = bench.origin.clone();
            let put = move || {
                origin.put(&directory, "strange", b"");
            };
            *bench.origin.after_effect.lock() = Some((Some("CREATE"), Box::new(put)));
        }
        let gate = bench.origin.gate("CREATE");
        let make = |number: u32| {
            let (cache, made) = (cache.clone(), name(&format!("made {number}")));
            let (how, set) = (CreateHow::Guarded, SetAttributes::default());
            tokio::spawn(async move { cache.create(&opener(0), &directory, &made, how, &set).await })
        };
        let making: Vec<_> = (0..4).map(make).collect();
        gate.wait_for(4).await;
        gate.open();
        for made in making {
            made.await.unwrap().unwrap();
        }
        bench.origin.calls();
        assert_eq!(absent().await, Status::NoEnt);
        let asked = if stranger { "LOOKUP" } else { "GETATTR" };
        assert_eq!(bench.origin.calls(), [(asked, 1)]);
    }
}

/// Many requests look up the same name at once, and one LOOKUP serves them all. An open needs a LOOKUP sent
/// after it arrived.
#[tokio::test]
async fn walkers_of_the_same_way_share_a_lookup_and_openers_do_not() {
    for (walker, calls) in [(v4(0, 1), 1), (opener(0), 4)] {
        let bench = Bench::new();
        bench.origin.put_dir(&root(), "d");
        bench.origin.pass(LONG);
        let cache = bench.open().await;
        cache.access(&walker, &root(), AccessMask::all()).await.unwrap();
        bench.origin.calls();
        let gate = bench.origin.gate("LOOKUP");
        let look = |_: u32| {
            let (cache, walker) = (cache.clone(), walker.clone());
            tokio::spawn(async move { cache.lookup(&walker, &root(), &name("d"), vfs::Want::None).await })
        };
        let looking: Vec<_> = (0..4).map(look).collect();
        gate.wait_for(calls).await;
        // The requests that send no LOOKUP wait by now.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        gate.open();
        for looked in looking {
            looked.await.unwrap().unwrap();
        }
        assert_eq!(bench.origin.calls(), [("LOOKUP", calls)]);
    }
}

/// Two clients write one file at once under its lease. When the first WRITE is answered, its client sees
/// the file's state without a call, although the other is in flight. When both are answered, every client
/// does.
// Promise: own-changes
// Promise: own-changes-under-a-lease
#[tokio::test]
async fn a_write_that_was_answered_tells_the_state_while_another_is_under_way() {
    for effects in [1, 2] {
        // The origin may have carried out both when it answers the first.
        let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
        bench.origin.change_info_alone.store(true, Ordering::Relaxed);
        let file = bench.origin.put(&root(), "f", b"data");
        bench.origin.pass(LONG);
        let cache = bench.open().await;
        let request = open_request(&root(), "f", 1, Share::READ | Share::WRITE);
        let by = StateidBasis::Open(cache.open(&v4_opener(0, 1), &request).await.unwrap().id);
        let gate = bench.origin.gate("WRITE");
        let write = |at: u64| {
            let cache = cache.clone();
            let written = async move {
                cache.write(&v4(0, 1), &file, by, at, "more".into(), Stability::Unstable).await
            };
            tokio::spawn(written)
        };
        let first = write(4);
        gate.wait_for(1).await;
        let second = write(8);
        gate.wait_for(2).await;
        bench.origin.calls();
        gate.admit(effects);
        gate.reply(1);
        first.await.unwrap().unwrap();
        let size = async || cache.getattr(&v4(0, 1), &file).await.unwrap().size;
        assert_eq!((size().await, bench.origin.calls()), (8, vec![]), "as the reply tells");
        gate.open();
        second.await.unwrap().unwrap();
        assert_eq!((size().await, bench.origin.calls()), (12, vec![]));
    }
}
