//! Parts of a profile that are brought: listings, names and files, each with the rights of its caller.
//!
//! Promise: profiles

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::{Cache, Completed, Place};
use origin::state::Policy;
use origin::{Bench, name, opener, root};
use vfs::{FileSystem, Handle, LeaseKind, SetAttributes, Status};

const USER: u32 = 7;

struct Setting {
    bench: Bench,
    cache: Arc<Cache>,
    directory: Handle,
    place: Place,
}

impl Setting {
    /// A directory with a file.
    async fn new(policy: Policy) -> Setting {
        let bench = Bench::with_state(policy);
        let directory = bench.origin.put_dir(&root(), "d");
        let handle = bench.origin.put(&directory, "f", b"text");
        bench.origin.pass(Duration::from_secs(10));
        let mut options = bench.options();
        options.prefetch_max_bytes = 64 << 20;
        let cache = bench.open_with(options).await;
        cache.root(&opener(0)).await.unwrap();
        Setting { bench, cache, directory, place: Place { directory, name: name("f"), handle } }
    }

    fn chmod(&self, handle: &Handle, mode: u32) {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.bench.origin.tree().setattr(handle, &set, None).unwrap();
        self.bench.origin.pass(Duration::from_secs(100));
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.bench.origin.calls().into_iter().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn names_without_their_objects_are_told_apart_from_names_that_are_gone() {
    let Setting { bench, cache, directory, place } = Setting::new(Policy::Never).await;
    bench.origin.bare_listings.store(true, Ordering::Relaxed);
    for was_here in [false, true] {
        let listing = cache.bring_listing(&opener(0), &directory).await.unwrap();
        assert!(listing.is_complete && listing.places.is_empty(), "{was_here}: {listing:?}");
        assert_eq!(listing.untold, [name("f")]);
    }
    assert_eq!(cache.bring_name(&opener(0), &directory, &name("f")).await.unwrap(), place.handle);
}

/// Two programs that bring one directory at the same time ask for it once.
#[tokio::test(start_paused = true)]
async fn a_listing_that_is_on_its_way_is_not_asked_for_again() {
    let setting = Setting::new(Policy::Never).await;
    setting.bench.origin.delay.store(40_000, Ordering::Relaxed);
    let caller = opener(0);
    let bring = || setting.cache.bring_listing(&caller, &setting.directory);
    let (first, second) = tokio::join!(bring(), bring());
    assert_eq!(first.unwrap().places, second.unwrap().places);
    assert_eq!(setting.calls()["READDIR"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_the_right_to_search_is_told_no_name() {
    for policy in [Policy::Never, Policy::Always(LeaseKind::Read)] {
        let setting = Setting::new(policy).await;
        let Setting { cache, directory, place, .. } = &setting;
        setting.chmod(directory, 0o744);
        cache.bring_listing(&opener(0), directory).await.unwrap();
        assert_eq!(cache.bring_name(&opener(0), directory, &place.name).await.unwrap(), place.handle);
        cache.bring_file(&opener(0), place, &[]).await.unwrap();
        let listing = cache.bring_listing(&opener(USER), directory).await.unwrap();
        assert_eq!(listing.places.len(), 1, "this caller may list the directory");
        let refused = cache.bring_name(&opener(USER), directory, &place.name).await.unwrap_err();
        assert_eq!(refused.status, Status::Access);
        let refused = cache.bring_file(&opener(USER), place, &[]).await.unwrap_err();
        assert_eq!(refused.status, Status::Access);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_an_open_is_the_answer() {
    for policy in [Policy::Never, Policy::Always(LeaseKind::Read)] {
        let setting = Setting::new(policy).await;
        let Setting { cache, place, .. } = &setting;
        setting.chmod(&place.handle, 0o600);
        for _ in 0..2 {
            let refused = cache.bring_file(&opener(USER), place, &[]).await.unwrap_err();
            assert_eq!(refused.status, Status::Access);
        }
        assert!(!setting.calls().contains_key("READ"));
        let came = cache.bring_file(&opener(0), place, &[]).await.unwrap();
        assert!(matches!(came, Completed::Now(4)), "{came:?}");
        let refused = cache.bring_file(&opener(USER), place, &[]).await.unwrap_err();
        assert_eq!(refused.status, Status::Access);
    }
}
