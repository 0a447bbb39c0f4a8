//! A directory that was made here: when it counts as empty, and when not.
//!
//! Promise: directory-leases

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::time::Duration;

use origin::state::Policy;
use origin::{Bench, name, root, v4};
use vfs::{AccessMask, CreateHow, FileSystem, FileType, LeaseKind, SetAttributes, Want};

/// The reply to MKDIR brings no lease, as that to a resent one. Another caller of this cache has got a lease
/// on the directory meanwhile, with the names that a third client has made there.
#[tokio::test(start_paused = true)]
async fn a_lease_that_did_not_come_with_the_directory_does_not_say_that_it_is_empty() {
    let bench = Bench::with_state(Policy::Never);
    bench.origin.state.lock().directories = true;
    bench.origin.pass(Duration::from_secs(10));
    let cache = bench.open().await;
    let caller = v4(0, 1);
    cache.getattr(&caller, &root()).await.unwrap();
    cache.access(&caller, &root(), AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.lease(&root()), Some(LeaseKind::Read));
    let gate = bench.origin.gate("MKDIR");
    let maker = cache.clone();
    let making = tokio::spawn(async move {
        maker.mkdir(&v4(0, 1), &root(), &name("x"), &SetAttributes::default(), Want::None).await
    });
    gate.wait_for(1).await;
    gate.admit(1);
    let directory = loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Ok(looked) = cache.lookup(&caller, &root(), &name("x"), Want::None).await {
            break looked.node.handle;
        }
    };
    let theirs = bench.origin.put(&directory, "theirs", b"");
    cache.access(&caller, &directory, AccessMask::LOOKUP).await.unwrap();
    assert_eq!(bench.origin.lease(&directory), Some(LeaseKind::Read));
    gate.open();
    assert_eq!(making.await.unwrap().unwrap().node.handle, directory);
    let found = cache.lookup(&caller, &directory, &name("theirs"), Want::None).await.unwrap();
    assert_eq!(found.node.handle, theirs);
    let set = SetAttributes::default();
    let made = cache.create(&caller, &directory, &name("ours"), CreateHow::Guarded, &set).await.unwrap();
    assert_eq!(made.node.attributes.unwrap().file_type, FileType::Regular);
}
