//! Tests that a killed client resumes what it held, as far as the origin still has it.
//!
//! Promise: held-state

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use client::{Incarnation, Nfs4, Origin as _, Url};
use protocol::nfs4::{self, ArgOp, OpenClaim, ResOp, Status, TestStateidOk};
use vfs::{Adopted, Leases, Lock, LockKind, LockRequest, Locked, OpenId, Opens, Owner, Share};
use xdr::List;

use crate::scripted::caller;
use crate::scripted4::{Origin4, Say, opened, say};
use crate::state4::{open, soon, write_delegation};

/// An incarnation on the record in this directory.
pub async fn live(origin: &Origin4, directory: &Path) -> Nfs4 {
    let url = Url::parse(&format!("nfs://{}/export?vers=4.1&noresvport", origin.address)).unwrap();
    let record = directory.join("client.state");
    let (incarnation, _) = Incarnation::resume(&url, Bytes::from_static(b"the proxy"), &record);
    let fs = soon(Nfs4::connect_as(&url, incarnation)).await.unwrap();
    let _callbacks = Box::leak(Box::new(fs.callbacks().unwrap()));
    fs.keep_record(&record).unwrap();
    fs
}

fn lock(offset: u64) -> LockRequest {
    let lock =
        Lock { owner: Owner(Bytes::from_static(b"locker")), kind: LockKind::Exclusive, offset, length: 10 };
    LockRequest { lock, wait: false, reclaim: false }
}

/// Grants write delegations. TEST_STATEID reports each state id as valid, or with the status that `bad`
/// returns.
fn remembering(
    bad: impl Fn(&nfs4::Stateid) -> Option<Status> + Send + 'static,
) -> impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send {
    move |operation, _| match operation {
        ArgOp::Open(_) => {
            let stateid = nfs4::Stateid { seqid: 1, other: [1; 12] };
            say(ResOp::Open(Ok(opened(stateid, write_delegation()))))
        }
        ArgOp::TestStateid(args) => {
            let outcome = |stateid: &nfs4::Stateid| match bad(stateid) {
                None => nfs4::Outcome::Ok(()),
                Some(status) => nfs4::Outcome::Fail(status, ()),
            };
            let status_codes = List::new(args.stateids.iter().map(outcome).collect()).unwrap();
            say(ResOp::TestStateid(Ok(TestStateidOk { status_codes })))
        }
        _ => Say::Usual,
    }
}

/// Opens a file with a delegation and takes a lock: the state held at a kill.
async fn hold(fs: &Nfs4) -> (OpenId, vfs::LeaseId) {
    let opened = open(fs).await;
    let locked = soon(fs.lock(&caller(), opened.id, &lock(5))).await.unwrap();
    assert_eq!(locked, Locked::Granted);
    (opened.id, opened.lease.unwrap().id)
}

fn names(adopted: &Adopted) -> (Vec<OpenId>, Vec<vfs::LeaseId>) {
    (
        adopted.opens.iter().map(|open| open.id).collect(),
        adopted.leases.iter().map(|lease| lease.id).collect(),
    )
}

#[tokio::test]
async fn what_the_origin_still_has_is_had_again_without_an_open() {
    let directory = tempfile::tempdir().unwrap();
    let origin = Origin4::start(remembering(|_| None)).await;
    let fs = live(&origin, directory.path()).await;
    let (open_id, lease_id) = hold(&fs).await;
    drop(fs);
    let before = origin.seen().len();
    let fs = live(&origin, directory.path()).await;
    let adopted = fs.adopted();
    assert_eq!(names(&adopted), (vec![open_id], vec![lease_id]));
    let again = &adopted.opens[0];
    assert_eq!((again.shares.access, again.locks.clone()), (Share::READ | Share::WRITE, vec![lock(5).lock]));
    assert_eq!(
        origin.seen()[before..],
        [
            vec!["EXCHANGE_ID"],
            vec!["CREATE_SESSION"],
            vec!["PUTROOTFH", "LOOKUP", "GETFH", "GETATTR"],
            vec!["DESTROY_SESSION"],
            vec!["TEST_STATEID"],
            vec!["RECLAIM_COMPLETE"],
        ]
    );
    // The next incarnation continues: it takes another lock for the same owner, and gives everything back.
    assert_eq!(soon(fs.lock(&caller(), open_id, &lock(50))).await.unwrap(), Locked::Granted);
    assert!(matches!(&origin.operations("LOCK")[1], ArgOp::Lock(args)
        if matches!(args.locker, nfs4::Locker::LockOwner { .. })));
    soon(fs.returned(&caller(), lease_id)).await.unwrap();
    soon(fs.close(&caller(), open_id)).await.unwrap();
    let third = live(&origin, directory.path()).await;
    assert_eq!(names(&third.adopted()), (vec![], vec![]));
    assert!(open(&third).await.id > open_id, "a name is never given twice");
}

#[tokio::test]
async fn what_was_revoked_is_freed_and_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let origin = Origin4::start(remembering(|stateid| {
        (stateid.other == [0xdd; 12] || stateid.other != [1; 12]).then_some(Status::DelegRevoked)
    }))
    .await;
    let fs = live(&origin, directory.path()).await;
    let (open_id, _) = hold(&fs).await;
    drop(fs);
    let fs = live(&origin, directory.path()).await;
    let adopted = fs.adopted();
    assert_eq!(names(&adopted), (vec![open_id], vec![]));
    assert_eq!(adopted.opens[0].locks, [], "the lock's state id is bad as well");
    assert_eq!(origin.operations("FREE_STATEID").len(), 2);
}

#[tokio::test]
async fn a_restarted_origin_gives_back_what_it_may_and_nothing_is_opened_anew() {
    for refused in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut usual = remembering(|_| None);
        let origin = Origin4::start(move |operation, all| match operation {
            ArgOp::Open(args) if refused && matches!(args.claim, OpenClaim::Previous(_)) => {
                say(ResOp::Open(Err(Status::NoGrace)))
            }
            operation => usual(operation, all),
        })
        .await;
        let fs = live(&origin, directory.path()).await;
        let (open_id, lease_id) = hold(&fs).await;
        drop(fs);
        origin.forget();
        let fs = live(&origin, directory.path()).await;
        let adopted = fs.adopted();
        let opens = origin.operations("OPEN");
        assert_eq!(opens.len(), 2, "the first, and one claim: {opens:?}");
        if refused {
            assert_eq!(names(&adopted), (vec![], vec![]));
        } else {
            assert_eq!(names(&adopted), (vec![open_id], vec![lease_id]));
            assert_eq!(adopted.opens[0].locks, [lock(5).lock]);
            assert!(matches!(&origin.operations("LOCK")[1], ArgOp::Lock(args) if args.reclaim));
        }
        assert_eq!(origin.seen().last().unwrap(), &["RECLAIM_COMPLETE"]);
    }
}

#[tokio::test]
async fn a_damaged_record_makes_a_new_incarnation() {
    let directory = tempfile::tempdir().unwrap();
    let origin = Origin4::start(remembering(|_| None)).await;
    let fs = live(&origin, directory.path()).await;
    hold(&fs).await;
    drop(fs);
    let path = directory.path().join("client.state");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let fs = live(&origin, directory.path()).await;
    assert_eq!(names(&fs.adopted()), (vec![], vec![]));
    let verifiers: Vec<_> = origin
        .operations("EXCHANGE_ID")
        .into_iter()
        .map(|operation| match operation {
            ArgOp::ExchangeId(args) => (args.clientowner.ownerid, args.clientowner.verifier),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(verifiers[0].0, verifiers[1].0, "the same owner");
    assert_ne!(verifiers[0].1, verifiers[1].1, "another verifier");
}

#[tokio::test]
async fn what_was_on_its_way_when_the_last_life_ended_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let held_up = Arc::new(AtomicBool::new(false));
    let never = Arc::new(tokio::sync::Notify::new());
    let mut usual = remembering(|_| None);
    let origin = Origin4::start({
        let (held_up, never) = (held_up.clone(), never.clone());
        move |operation, all| match operation {
            ArgOp::Open(args) if matches!(args.claim, OpenClaim::Fh) && all.len() == 3 => {
                // The probe of the next incarnation, which finds the open that the OPEN made.
                let stateid = nfs4::Stateid { seqid: 2, other: [7; 12] };
                say(ResOp::Open(Ok(opened(stateid, nfs4::OpenDelegation::None))))
            }
            ArgOp::Open(_) | ArgOp::Lock(_) | ArgOp::Close(_) if held_up.load(Ordering::Relaxed) => {
                Say::Wait(never.clone())
            }
            operation => usual(operation, all),
        }
    })
    .await;
    let fs = Arc::new(live(&origin, directory.path()).await);
    let (open_id, _) = hold(&fs).await;
    held_up.store(true, Ordering::Relaxed);
    let (opening, locking) = (fs.clone(), fs.clone());
    let opening = tokio::spawn(async move {
        let handle = crate::scripted::handle(b"other");
        let request = vfs::OpenRequest { handle, ..crate::state4::request(vfs::Want::None) };
        let _ = opening.open(&caller(), &request).await;
    });
    let locking = tokio::spawn(async move { locking.lock(&caller(), open_id, &lock(100)).await });
    crate::state4::until(|| origin.operations("OPEN").len() == 2 && origin.operations("LOCK").len() == 2)
        .await;
    opening.abort();
    locking.abort();
    // A kill leaves the record as it is now.
    let record = std::fs::read(directory.path().join("client.state")).unwrap();
    drop(fs);
    std::fs::write(directory.path().join("client.state"), record).unwrap();
    held_up.store(false, Ordering::Relaxed);
    let fs = live(&origin, directory.path()).await;
    let adopted = fs.adopted();
    assert_eq!(adopted.opens.len(), 1);
    assert_eq!(adopted.opens[0].locks, [lock(5).lock], "a lock that nobody was told of is not held");
    let unlocked = origin.operations("LOCKU");
    assert!(matches!(&unlocked[..], [ArgOp::Locku(args)] if (args.offset, args.length) == (100, 10)));
    let closed = origin.operations("CLOSE");
    assert!(matches!(&closed[..], [ArgOp::Close(args)] if args.open_stateid.other == [7; 12]), "{closed:?}");
}
