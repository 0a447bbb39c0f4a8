//! Rights that are withdrawn at an origin that lets every READ under an open or a delegation pass, as RFC
//! 8881 allows. A caller that lost the right gets nothing newer than the last proof of it.
//!
//! Promise: lost-rights

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cache::Cache;
use origin::state::Policy;
use origin::{Bench, open_request, opener, read, root, v4, v4_opener};
use vfs::{Caller, FileSystem, Handle, LeaseKind, Opens, Result, SetAttributes, Share, StateidBasis, Status};

const SECOND: Duration = Duration::from_secs(1);
const POLICIES: [Policy; 3] =
    [Policy::Never, Policy::Always(LeaseKind::Read), Policy::Always(LeaseKind::Write)];
const OWNER: u32 = 5;
const MEMBER: u32 = 6;
const HALF: u64 = 1 << 20;

struct Rights {
    bench: Bench,
    cache: Arc<Cache>,
    file: Handle,
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn filled(byte: u8) -> Vec<u8> {
    vec![byte; 2 * HALF as usize]
}

impl Rights {
    /// A file that every user may read.
    async fn new(policy: Policy) -> Rights {
        let bench = Bench::with_state(policy);
        bench.origin.trusting.store(true, Ordering::Relaxed);
        let file = bench.origin.put(&root(), "f", &filled(b'o'));
        let set = SetAttributes { uid: Some(OWNER), ..mode(0o644) };
        bench.origin.tree().setattr(&file, &set, None).unwrap();
        bench.origin.pass(10 * SECOND);
        let mut options = bench.options();
        options.readahead_max_bytes = 0;
        let cache = bench.open_with(options).await;
        Rights { bench, cache, file }
    }

    /// The owner, on another client of the origin, withdraws the right and then writes.
    async fn revoke(&self) {
        let file = self.file;
        self.bench
            .origin
            .others(&file, |tree| {
                tree.setattr(&file, &mode(0o600), None).unwrap();
                tree.write(&file, 0, &filled(b'N')).unwrap();
            })
            .await;
        self.bench.origin.calls();
    }

    async fn read(&self, caller: &Caller, offset: u64) -> Result<Bytes> {
        let read = self.cache.read(caller, &self.file, StateidBasis::Anonymous, offset, 4).await?;
        Ok(read.data.to_bytes().unwrap())
    }

    /// The READ must fail, so that the caller sees nothing new.
    async fn refused(&self, caller: &Caller, offset: u64) {
        assert_eq!(self.read(caller, offset).await.unwrap_err().status, Status::Access);
    }
}

#[tokio::test]
async fn who_lost_the_right_reads_nothing_new_though_the_origin_has_an_open_for_us() {
    for policy in POLICIES {
        let rights = Rights::new(policy).await;
        let member = opener(MEMBER);
        assert_eq!(rights.read(&member, 0).await.unwrap(), "oooo");
        rights.revoke().await;
        for _ in 0..3 {
            assert_eq!(rights.cache.getattr(&member, &rights.file).await.unwrap().mode, 0o600);
            rights.refused(&member, 0).await;
            rights.refused(&member, HALF).await;
        }
        // The owner reads the new contents. They are cached then, and still must not be shown to the
        // member.
        assert_eq!(rights.read(&opener(OWNER), 0).await.unwrap(), "NNNN");
        rights.refused(&member, 0).await;
        rights.refused(&member, HALF).await;
    }
}

#[tokio::test]
async fn contents_that_are_newer_than_the_proof_are_withheld_within_the_timeouts_too() {
    for policy in POLICIES {
        let rights = Rights::new(policy).await;
        let member = v4(MEMBER, 1);
        assert_eq!(read(&rights.cache, &member, &rights.file, 0, 4).await, "oooo");
        rights.revoke().await;
        // Nothing has been asked since. This part is not cached, and its READ is the first to show the new
        // state.
        rights.refused(&member, HALF).await;
        rights.refused(&member, 0).await;
    }
}

#[tokio::test]
async fn who_joins_the_fetch_of_another_needs_the_right_to_what_it_brings() {
    let rights = Rights::new(Policy::Never).await;
    let (owner, member) = (opener(OWNER), v4(MEMBER, 1));
    // Both callers are known to have the right to the present contents.
    assert_eq!(rights.read(&owner, 0).await.unwrap(), "oooo");
    assert_eq!(rights.read(&member, 0).await.unwrap(), "oooo");
    let gate = rights.bench.origin.gate("READ");
    let (cache, file) = (rights.cache.clone(), rights.file);
    let first = tokio::spawn(async move {
        let caller = v4(OWNER, 2);
        cache.read(&caller, &file, StateidBasis::Anonymous, HALF, 4).await.unwrap().data.to_bytes().unwrap()
    });
    gate.wait_for(1).await;
    let joining = rights.read(&member, HALF);
    tokio::pin!(joining);
    assert!(tokio::time::timeout(SECOND / 20, &mut joining).await.is_err(), "it waits for the same fetch");
    rights.revoke().await;
    gate.open();
    assert_eq!(first.await.unwrap(), "NNNN");
    assert_eq!(joining.await.unwrap_err().status, Status::Access);
}

#[tokio::test]
async fn a_success_that_is_told_late_proves_nothing_of_the_state_since() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"old");
    let set = SetAttributes { uid: Some(OWNER), ..mode(0o644) };
    bench.origin.tree().setattr(&file, &set, None).unwrap();
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&opener(OWNER), &file).await.unwrap();
    let gate = bench.origin.gate("READ");
    let (reading, member) = (cache.clone(), opener(MEMBER));
    let first = tokio::spawn(async move { read(&reading, &opener(MEMBER), &file, 0, 3).await });
    let carried_out = Arc::new(AtomicBool::new(false));
    let note = carried_out.clone();
    let hook = move || note.store(true, Ordering::SeqCst);
    *bench.origin.after_effect.lock() = Some((Some("READ"), Box::new(hook)));
    gate.admit(1);
    origin::until(|| carried_out.load(Ordering::SeqCst)).await;
    bench.origin.tree().setattr(&file, &mode(0o600), None).unwrap();
    bench.origin.tree().write(&file, 0, b"new").unwrap();
    cache.getattr(&opener(OWNER), &file).await.unwrap();
    gate.reply(1);
    assert_eq!(first.await.unwrap(), "old", "it was read while that was allowed");
    gate.open();
    assert_eq!(read(&cache, &opener(OWNER), &file, 0, 3).await, "new");
    let error = cache.read(&member, &file, StateidBasis::Anonymous, 0, 3).await.unwrap_err();
    assert_eq!(error.status, Status::Access);
}

// Promise: remembered-rights
#[tokio::test]
async fn owners_and_those_who_opened_the_file_go_on_as_the_origin_lets_them() {
    for policy in POLICIES {
        let rights = Rights::new(policy).await;
        let request = open_request(&root(), "f", 1, Share::READ);
        let opened = rights.cache.open(&v4_opener(MEMBER, 1), &request).await.unwrap();
        rights.revoke().await;
        let file = rights.file;
        rights.bench.origin.tree().setattr(&file, &mode(0), None).unwrap();
        assert_eq!(rights.read(&opener(OWNER), 0).await.unwrap(), "NNNN", "its owner may always");
        let by = StateidBasis::Open(opened.id);
        let read = rights.cache.read(&v4(MEMBER, 1), &file, by, 0, 4).await.unwrap();
        assert_eq!(read.data.to_bytes().unwrap(), "NNNN", "as at the origin, through its own open");
        let other = rights.cache.read(&v4(7, 1), &file, by, 0, 4).await.unwrap_err();
        assert_eq!(other.status, Status::Access, "another user's open lets nobody in");
        rights.refused(&v4(MEMBER, 1), 0).await;
    }
}

#[tokio::test]
async fn a_second_reader_under_an_open_of_ours_costs_one_access_and_no_more() {
    for policy in POLICIES {
        let rights = Rights::new(policy).await;
        rights.read(&opener(OWNER), 0).await.unwrap();
        rights.bench.origin.calls();
        rights.read(&opener(MEMBER), HALF).await.unwrap();
        assert_eq!(rights.bench.origin.calls(), [("ACCESS", 1), ("READ", 1)], "{policy:?}");
        for offset in [0, HALF] {
            rights.read(&opener(MEMBER), offset).await.unwrap();
        }
        assert_eq!(rights.bench.origin.calls(), []);
    }
}
