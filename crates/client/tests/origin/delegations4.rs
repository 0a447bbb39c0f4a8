//! Tests of delegations of an origin of version 4.1: its callbacks, and how delegations end.
//!
//! Promise: exclusion-under-a-lease

use std::sync::Arc;

use bytes::Bytes;
use protocol::nfs4::callback::{
    CbArgOp, CbGetattrArgs, CbNotifyLockArgs, CbRecallAnyArgs, CbRecallArgs, CbResOp,
};
use protocol::nfs4::{self, ArgOp, Attr, Bitmap, ResOp, Status as Wire};
use tokio::sync::Notify;
use vfs::{
    Callback, Caller, FileSystem, HolderId, Leases, Lock, LockKind, LockRequest, Locked, Opens, Owner,
    Stability, StateidBasis,
};

use crate::scripted::{caller, handle};
use crate::scripted4::{Origin4, Say, say};
use crate::state4::{
    DELEGATED, delegated, granting, open, read, read_delegation, recall, soon, until, write_delegation,
};

#[tokio::test]
async fn without_anybody_to_recall_from_no_delegation_is_asked_for_and_one_that_comes_goes_back() {
    let origin = Origin4::start(granting(read_delegation)).await;
    let fs = origin.mount("").await;
    assert!(open(&fs).await.lease.is_none());
    let asked = origin.operations("OPEN");
    let [ArgOp::Open(args)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(args.share_access, 3 | nfs4::OPEN4_SHARE_ACCESS_WANT_NO_DELEG);
    until(|| origin.operations("DELEGRETURN").len() == 1).await;
}

#[tokio::test]
async fn a_recall_is_answered_at_once_and_handed_up_once() {
    let origin = Origin4::start(granting(write_delegation)).await;
    let (fs, mut callbacks, _, lease) = delegated(&origin).await;
    let first = soon(origin.call_back(recall(), false)).await;
    assert_eq!(first.status, Ok(()));
    // The server claims that the reply was lost, and then recalls once more.
    assert_eq!(soon(origin.call_back(recall(), true)).await, first);
    assert_eq!(soon(origin.call_back(recall(), false)).await.status, Ok(()));
    let told = soon(callbacks.recv()).await.unwrap();
    let Callback::Recall(told) = told else { panic!("{told:?}") };
    assert_eq!((told.id, told.handle, told.keep), (lease.id, handle(b"file"), None));
    assert!(callbacks.try_recv().is_err());
    soon(fs.returned(&caller(), lease.id)).await.unwrap();
    assert_eq!(origin.operations("DELEGRETURN").len(), 1);
    soon(fs.returned(&caller(), lease.id)).await.unwrap();
    assert_eq!(origin.operations("DELEGRETURN").len(), 1, "it is returned once");
    // Recall another delegation, which no client has.
    let fh = nfs4::Handle::new(b"other").unwrap();
    let unknown = CbArgOp::Recall(CbRecallArgs { stateid: nfs4::Stateid::default(), truncate: false, fh });
    assert_eq!(soon(origin.call_back(unknown, false)).await.status, Err(Wire::BadStateid));
}

#[tokio::test]
async fn a_recall_that_overtakes_the_grant_waits_for_it() {
    let granted = Arc::new(Notify::new());
    let origin = Origin4::start({
        let granted = granted.clone();
        let mut granting = granting(read_delegation);
        move |operation, all| match operation {
            ArgOp::Getattr(_) if all.iter().any(|operation| matches!(operation, ArgOp::Open(_))) => {
                Say::Wait(granted.clone())
            }
            _ => granting(operation, all),
        }
    })
    .await;
    let fs = origin.mount("").await;
    let mut callbacks = fs.callbacks().unwrap();
    let recalling = async {
        until(|| origin.operations("OPEN").len() == 1).await;
        let recall = origin.call_back(recall(), false);
        let answer = async {
            tokio::task::yield_now().await;
            granted.notify_one();
        };
        tokio::join!(recall, answer).0
    };
    let (opened, recalled) = tokio::join!(open(&fs), soon(recalling));
    assert_eq!(recalled.status, Ok(()));
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Recall(told) if Some(told.id) == opened.lease.map(|lease| lease.id)));
}

#[tokio::test]
async fn reads_and_writes_without_an_open_are_done_by_the_delegation() {
    let origin = Origin4::start(granting(write_delegation)).await;
    let (fs, _callbacks, _, _) = delegated(&origin).await;
    read(&fs, StateidBasis::Anonymous).await.unwrap();
    let data = Bytes::from_static(b"x");
    let file = handle(b"file");
    soon(fs.write(&caller(), &file, StateidBasis::Anonymous, 0, data, Stability::FileSync)).await.unwrap();
    let expected = nfs4::Stateid { seqid: 0, ..DELEGATED };
    assert!(matches!(&origin.operations("READ")[..], [ArgOp::Read(args)] if args.stateid == expected));
    assert!(matches!(&origin.operations("WRITE")[..], [ArgOp::Write(args)] if args.stateid == expected));
}

// Promise: times-seen-elsewhere
#[tokio::test]
async fn the_origin_asks_what_was_made_of_a_file() {
    let origin = Origin4::start(granting(write_delegation)).await;
    let (_fs, mut callbacks, _, lease) = delegated(&origin).await;
    let [atime, mtime, ctime] = [-1, 5, 6].map(|seconds| vfs::Timestamp::new(seconds, 7));
    let answering = tokio::spawn(async move {
        let mut asked_for = Vec::new();
        for modified in [false, true, true, true] {
            let Some(Callback::Getattr(query)) = callbacks.recv().await else { panic!("a query") };
            assert_eq!((query.id, query.change), (lease.id, lease.change));
            asked_for.push(query.times);
            let times = (asked_for.len() < 4).then_some(vfs::Times { atime, mtime, ctime });
            query.answer.send(vfs::DelayedAttributes { modified, size: 4711, times }).unwrap();
        }
        let Some(Callback::Getattr(query)) = callbacks.recv().await else { panic!("a query") };
        drop(query.answer);
        asked_for
    });
    let fh = nfs4::Handle::new(b"file").unwrap();
    let asking =
        |attributes: &[Attr]| CbArgOp::Getattr(CbGetattrArgs { fh, attr_request: Bitmap::of(attributes) });
    let told = async |attributes: &[Attr]| {
        let told = soon(origin.call_back(asking(attributes), false)).await;
        let Some(CbResOp::Getattr(Ok(ok))) = told.resarray.get(1) else { panic!("{told:?}") };
        ok.obj_attributes.clone()
    };
    let (some, all) = (
        [Attr::Change, Attr::Size],
        [Attr::Change, Attr::Size, Attr::TimeAccess, Attr::TimeMetadata, Attr::TimeModify],
    );
    let unmodified = told(&some).await;
    assert_eq!((unmodified.change, unmodified.size), (Some(lease.change), Some(4711)));
    let modified = told(&some).await;
    assert_eq!(modified.change, Some(lease.change + 1));
    assert_eq!(modified.attributes(), Bitmap::of(&some), "no more than was asked for");
    let modified = told(&all).await;
    let time = |seconds| Some(nfs4::Nfstime { seconds, nseconds: 7 });
    let times = (modified.time_access, modified.time_modify, modified.time_metadata);
    assert_eq!(times, (time(-1), time(5), time(6)));
    assert_eq!(
        told(&all).await.attributes(),
        Bitmap::of(&some),
        "who does not know the times leaves them out"
    );
    assert_eq!(soon(origin.call_back(asking(&some), false)).await.status, Err(Wire::BadHandle));
    assert_eq!(soon(answering).await.unwrap(), [false, false, true, true]);
}

#[tokio::test]
async fn other_callbacks_are_passed_on_or_refused() {
    let origin = Origin4::start(|operation, _| match operation {
        ArgOp::Lock(_) => say(ResOp::Lock(Err(nfs4::LockFailure::Denied(nfs4::LockDenied {
            offset: 1,
            length: 2,
            locktype: nfs4::NfsLockType::Read,
            owner: nfs4::StateOwner::default(),
        })))),
        _ => Say::Usual,
    })
    .await;
    let fs = origin.mount("").await;
    let mut callbacks = fs.callbacks().unwrap();
    assert!(fs.callbacks().is_none());
    let opened = open(&fs).await;
    let owner = Owner(Bytes::from_static(b"waiter"));
    let lock = Lock { owner: owner.clone(), kind: LockKind::Exclusive, offset: 0, length: 10 };
    let waiter = Caller { holder: Some(HolderId(5)), ..caller() };
    let asked = LockRequest { lock, wait: true, reclaim: false };
    let Locked::Denied(in_the_way) = soon(fs.lock(&waiter, opened.id, &asked)).await.unwrap() else {
        panic!("it is denied")
    };
    assert_eq!((in_the_way.offset, in_the_way.length, in_the_way.kind), (1, 2, LockKind::Shared));

    let lock_owner = nfs4::StateOwner { clientid: 0, owner: nfs4::Limited::new(&b"waiter"[..]).unwrap() };
    let fh = nfs4::Handle::new(b"file").unwrap();
    let notify = CbArgOp::NotifyLock(CbNotifyLockArgs { fh, lock_owner });
    assert_eq!(soon(origin.call_back(notify, false)).await.status, Ok(()));
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::NotifyLock { holder: HolderId(5), owner: told, .. } if told == owner));

    let any = CbRecallAnyArgs { objects_to_keep: 12, type_mask: Bitmap::EMPTY.with_bit(0) };
    assert_eq!(soon(origin.call_back(CbArgOp::RecallAny(any), false)).await.status, Ok(()));
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::RecallAny { holder: None, keep: 12 }));
    let wants = nfs4::callback::CbWantsCancelledArgs {
        contended_wants_cancelled: true,
        resourced_wants_cancelled: false,
    };
    let refused = soon(origin.call_back(CbArgOp::WantsCancelled(wants), false)).await;
    assert_eq!(refused.status, Err(Wire::NotSupp));
}

#[tokio::test]
async fn a_delegation_ends_with_the_lease() {
    let mut origin = Origin4::start(granting(read_delegation)).await;
    let (fs, mut callbacks, opened, lease) = delegated(&origin).await;
    origin.stop();
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Revoked { id, .. } if id == lease.id), "{told:?}");
    origin.resume().await;
    // The origin does not know that the lease expired here, and still has all state.
    assert!(read(&fs, StateidBasis::Open(opened.id)).await.is_ok());
    until(|| origin.operations("DELEGRETURN").len() == 1).await;
}

#[tokio::test]
async fn a_revoked_delegation_is_found_and_freed() {
    let origin = Origin4::start(granting(read_delegation)).await;
    let (fs, mut callbacks, opened, lease) = delegated(&origin).await;
    fs.close(&caller(), opened.id).await.unwrap();
    origin.set_flags(nfs4::SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    read(&fs, StateidBasis::Anonymous).await.unwrap();
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Revoked { id, .. } if id == lease.id), "{told:?}");
    until(|| !origin.operations("FREE_STATEID").is_empty()).await;
}
