//! Tests of directory delegations of a scripted origin of version 4.1: asked for with ACCESS, recalled,
//! returned, lost.
//!
//! Promise: directory-leases

use std::sync::Arc;

use protocol::nfs4::callback::{CbArgOp, CbRecallArgs};
use protocol::nfs4::{
    self, ArgOp, Attr, Bitmap, DirDelegation, Fattr, Ftype, GetDirDelegationOk, GetattrOk, ResOp, Status,
};
use tokio::sync::Notify;
use vfs::{AccessMask, Callback, Callbacks, Delegated, FileSystem, LeaseKind, Leases};

use client::Nfs4;

use crate::restart4::live;
use crate::scripted::{caller, handle};
use crate::scripted4::{Origin4, Say, fattr, say};
use crate::state4::{DELEGATED, open, soon, until};

/// The origin's answer to GET_DIR_DELEGATION.
pub type Given = fn() -> ResOp;

pub fn granted() -> ResOp {
    ResOp::GetDirDelegation(Ok(GetDirDelegationOk::Ok(DirDelegation {
        cookieverf: [0; 8],
        stateid: DELEGATED,
        notification: Bitmap::EMPTY,
        child_attributes: Bitmap::EMPTY,
        dir_attributes: Bitmap::EMPTY,
    })))
}

pub fn unavailable() -> ResOp {
    ResOp::GetDirDelegation(Ok(GetDirDelegationOk::Unavail { will_signal_deleg_avail: false }))
}

pub fn unknown() -> ResOp {
    ResOp::GetDirDelegation(Err(Status::NotSupp))
}

/// Answers with one more delegation.
pub fn give(given: Given, grants: &mut u8) -> Say {
    match given() {
        ResOp::GetDirDelegation(Ok(GetDirDelegationOk::Ok(mut one))) => {
            one.stateid.other = [DELEGATED.other[0] + *grants; 12];
            *grants += 1;
            say(ResOp::GetDirDelegation(Ok(GetDirDelegationOk::Ok(one))))
        }
        other => say(other),
    }
}

/// An origin with one directory.
fn directory(given: Given) -> impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send {
    // Each delegation has its own state id; the first is the one that is recalled.
    let mut grants = 0;
    move |operation, all| match operation {
        ArgOp::GetDirDelegation(_) => give(given, &mut grants),
        ArgOp::Getattr(args)
            if all.iter().any(|operation| matches!(operation, ArgOp::Access(_)))
                && !all.iter().any(|operation| matches!(operation, ArgOp::Open(_))) =>
        {
            let directory = Fattr { ftype: Some(Ftype::Dir), ..fattr(args.attr_request) };
            say(ResOp::Getattr(Ok(GetattrOk { obj_attributes: Box::new(directory) })))
        }
        _ => Say::Usual,
    }
}

fn recall() -> CbArgOp {
    let fh = nfs4::Handle::new(b"dir").unwrap();
    CbArgOp::Recall(CbRecallArgs { stateid: DELEGATED, truncate: false, fh })
}

async fn mounted(origin: &Origin4) -> (Nfs4, Callbacks) {
    let fs = origin.mount("").await;
    let callbacks = fs.callbacks().unwrap();
    (fs, callbacks)
}

async fn ask(fs: &Nfs4) -> Delegated {
    let delegated = soon(fs.delegate(&caller(), &handle(b"dir"), AccessMask::LOOKUP)).await.unwrap();
    assert_eq!(delegated.accessed.granted, AccessMask::LOOKUP);
    assert!(delegated.accessed.attributes.unwrap().is_dir());
    delegated
}

fn last(origin: &Origin4) -> Vec<&'static str> {
    origin.seen().pop().unwrap()
}

#[tokio::test]
async fn it_comes_with_the_access_that_is_made_anyway() {
    let origin = Origin4::start(directory(granted)).await;
    let (fs, mut callbacks) = mounted(&origin).await;
    let before = origin.seen().len();
    let lease = ask(&fs).await.lease.unwrap();
    assert_eq!((lease.kind, lease.change), (LeaseKind::Read, 7));
    assert_eq!(last(&origin), ["PUTFH", "ACCESS", "GETATTR", "GET_DIR_DELEGATION", "GETATTR"]);
    assert_eq!(origin.seen().len(), before + 1);
    let asked = origin.operations("GET_DIR_DELEGATION");
    assert!(
        matches!(&asked[..], [ArgOp::GetDirDelegation(args)] if args.notification_types == Bitmap::EMPTY)
    );
    // The client has the delegation, so it asks for no other.
    assert!(ask(&fs).await.lease.is_none());
    assert_eq!(last(&origin), ["PUTFH", "ACCESS", "GETATTR"]);
    // The origin recalls it, and the client returns it.
    assert_eq!(soon(origin.call_back(recall(), false)).await.status, Ok(()));
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Recall(told) if told.id == lease.id && told.handle == handle(b"dir")));
    soon(fs.returned(&caller(), lease.id)).await.unwrap();
    assert!(matches!(&origin.operations("DELEGRETURN")[..],
        [ArgOp::Delegreturn(args)] if args.deleg_stateid == DELEGATED));
    // An origin that is known to support the operation gets a shorter compound.
    ask(&fs).await;
    assert_eq!(last(&origin), ["PUTFH", "ACCESS", "GET_DIR_DELEGATION", "GETATTR"]);
}

#[tokio::test]
async fn an_origin_that_has_none_costs_nothing_more_and_is_asked_less_and_less() {
    for (given, asked_max) in [(unknown as Given, 1), (unavailable, 16)] {
        let origin = Origin4::start(directory(given)).await;
        let (fs, _callbacks) = mounted(&origin).await;
        let before = origin.seen().len();
        // Ask for each of many directories twice. A directory that was just refused is not asked for again.
        for number in 0..20_u8 {
            let (asker, directory) = (caller(), handle(&[b'd', number]));
            for _ in 0..2 {
                let asking = fs.delegate(&asker, &directory, AccessMask::LOOKUP);
                assert!(soon(asking).await.unwrap().lease.is_none());
            }
        }
        assert_eq!(origin.seen().len(), before + 40, "one call each");
        assert_eq!(origin.operations("GET_DIR_DELEGATION").len(), asked_max);
    }
}

#[tokio::test]
async fn without_anybody_to_recall_from_none_is_asked_for() {
    let origin = Origin4::start(directory(granted)).await;
    let fs = origin.mount("").await;
    assert!(ask(&fs).await.lease.is_none());
    assert!(origin.operations("GET_DIR_DELEGATION").is_empty());
}

#[tokio::test]
async fn what_is_no_directory_and_what_cannot_be_looked_at_goes_back() {
    // A file, for which an origin should give no directory delegation.
    let origin = Origin4::start(|operation, _| match operation {
        ArgOp::GetDirDelegation(_) => say(granted()),
        _ => Say::Usual,
    })
    .await;
    let (fs, _callbacks) = mounted(&origin).await;
    let asked = soon(fs.delegate(&caller(), &handle(b"dir"), AccessMask::READ)).await.unwrap();
    assert!(asked.lease.is_none());
    until(|| origin.operations("DELEGRETURN").len() == 1).await;
    // A directory whose attributes fail after the delegation.
    let mut directory = directory(granted);
    let origin = Origin4::start(move |operation, all| match operation {
        ArgOp::Getattr(args)
            if args.attr_request.contains(Attr::Change)
                && all.iter().filter(|operation| matches!(operation, ArgOp::Getattr(_))).count() == 1
                && all.iter().any(|operation| matches!(operation, ArgOp::GetDirDelegation(_))) =>
        {
            say(ResOp::Getattr(Err(Status::Stale)))
        }
        _ => directory(operation, all),
    })
    .await;
    let (fs, _callbacks) = mounted(&origin).await;
    let lease = ask(&fs).await.lease.unwrap();
    soon(fs.returned(&caller(), lease.id)).await.unwrap();
    let failed = soon(fs.delegate(&caller(), &handle(b"dir"), AccessMask::LOOKUP)).await;
    assert_eq!(failed.unwrap_err().status, vfs::Status::Stale);
    until(|| origin.operations("DELEGRETURN").len() == 2).await;
}

#[tokio::test]
async fn a_recall_that_overtakes_the_grant_waits_for_it() {
    let answer = Arc::new(Notify::new());
    let origin = Origin4::start({
        let answer = answer.clone();
        let mut directory = directory(granted);
        move |operation, all| match operation {
            ArgOp::Putfh(_)
                if all.iter().any(|operation| matches!(operation, ArgOp::GetDirDelegation(_))) =>
            {
                Say::Wait(answer.clone())
            }
            _ => directory(operation, all),
        }
    })
    .await;
    let (fs, mut callbacks) = mounted(&origin).await;
    let recalling = async {
        until(|| origin.operations("GET_DIR_DELEGATION").len() == 1).await;
        let recall = origin.call_back(recall(), false);
        let answered = async {
            tokio::task::yield_now().await;
            answer.notify_one();
        };
        tokio::join!(recall, answered).0
    };
    let (delegated, recalled) = tokio::join!(ask(&fs), soon(recalling));
    assert_eq!(recalled.status, Ok(()));
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Recall(told) if Some(told.id) == delegated.lease.map(|lease| lease.id)));
}

/// Directory delegations cannot be reclaimed. After a restart of the origin they are gone, while opens are
/// reclaimed.
#[tokio::test]
async fn an_origin_that_restarts_ends_it() {
    let origin = Origin4::start(directory(granted)).await;
    let (fs, mut callbacks) = mounted(&origin).await;
    let lease = ask(&fs).await.lease.unwrap();
    open(&fs).await;
    let opens = origin.operations("OPEN").len();
    origin.forget();
    let _ = soon(fs.getattr(&caller(), &handle(b"file"))).await;
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Revoked { id, .. } if id == lease.id));
    assert_eq!(origin.operations("OPEN").len(), opens + 1, "the open alone is reclaimed");
    assert!(origin.operations("DELEGRETURN").is_empty());
    assert!(ask(&fs).await.lease.is_some(), "and it can be had anew");
}

#[tokio::test]
async fn recall_any_of_directories_is_passed_on() {
    let origin = Origin4::start(directory(granted)).await;
    let (_fs, mut callbacks) = mounted(&origin).await;
    let type_mask = Bitmap::EMPTY.with_bit(nfs4::callback::RCA4_TYPE_MASK_DIR_DLG);
    let args = nfs4::callback::CbRecallAnyArgs { objects_to_keep: 3, type_mask };
    soon(origin.call_back(CbArgOp::RecallAny(args), false)).await;
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::RecallAny { holder: None, keep: 3 }));
}

/// A directory delegation survives the process like any other delegation, if the origin still has it.
#[tokio::test]
async fn the_next_life_goes_on_with_it() {
    for good in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let mut directory = directory(granted);
        let origin = Origin4::start(move |operation, all| match operation {
            ArgOp::TestStateid(args) => {
                let outcome =
                    if good { nfs4::Outcome::Ok(()) } else { nfs4::Outcome::Fail(Status::DelegRevoked, ()) };
                let codes = args.stateids.iter().map(|_| outcome).collect();
                let status_codes = xdr::List::new(codes).unwrap();
                say(ResOp::TestStateid(Ok(nfs4::TestStateidOk { status_codes })))
            }
            _ => directory(operation, all),
        })
        .await;
        let fs = live(&origin, home.path()).await;
        let lease = ask(&fs).await.lease.unwrap();
        drop(fs);
        let fs = live(&origin, home.path()).await;
        let adopted: Vec<_> = fs.adopted().leases.iter().map(|held| (held.id, held.kind)).collect();
        assert_eq!(adopted, if good { vec![(lease.id, LeaseKind::Read)] } else { vec![] });
        // The origin has restarted too, so no directory delegation can be reclaimed.
        drop(fs);
        origin.forget();
        let fs = live(&origin, home.path()).await;
        assert!(fs.adopted().leases.is_empty());
        assert!(origin.operations("OPEN").is_empty(), "a directory is not opened");
    }
}
