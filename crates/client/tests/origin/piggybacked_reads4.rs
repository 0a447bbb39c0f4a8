//! Tests of READs that piggyback on an OPEN of a scripted origin of version 4.1. They check the order of
//! operations, the state id, that the OPEN stands whatever becomes of the READ, and the effects of a lost
//! answer.
//!
//! Promise: first-bytes-with-the-open

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use client::Nfs4;
use protocol::nfs4::{self, ArgOp, OpenDelegation, ReadOk, ResOp, Status as Wire};
use vfs::{
    DirectoryLease, FileSystem, Leases, Name, OpenRequest, Opened, Opens, Read, Share, StateidBasis, Want,
};

use crate::directories4::granted;
use crate::piggybacked_leases4::directory;
use crate::scripted::{caller, handle};
use crate::scripted4::{Origin4, Say, opened, say};
use crate::state4::{DELEGATED, granting, read_delegation, recall, request, soon, until, usual};

const BY_NAME: [&str; 7] = ["PUTFH", "GETATTR", "OPEN", "GETFH", "ACCESS", "GETATTR", "READ"];

fn by_handle() -> OpenRequest {
    OpenRequest { access: Share::READ, ..request(Want::Any) }
}

fn by_name() -> OpenRequest {
    OpenRequest { handle: handle(b"dir"), name: Some(Name::new(b"file").unwrap()), ..by_handle() }
}

async fn open(fs: &Nfs4, request: &OpenRequest, count: u32) -> (vfs::Result<Opened>, Option<Read>) {
    let request = OpenRequest { read_first: Some((0, count)), ..request.clone() };
    let mut result = soon(fs.open(&caller(), &request)).await;
    let read = result.as_mut().ok().and_then(|opened| opened.read.take()).map(|read| *read);
    assert!(result.iter().all(|opened| opened.directory_lease.is_none()));
    (result, read)
}

fn data(read: Option<Read>) -> Option<Bytes> {
    read.map(|read| read.data.to_bytes().unwrap())
}

#[tokio::test]
async fn it_comes_last_and_under_the_current_state_id() {
    let origin = Origin4::start(directory(granted)).await;
    let fs = origin.mount("").await;
    let before = origin.seen().len();
    let (result, read) = open(&fs, &by_handle(), 100).await;
    let attributes = result.unwrap().attributes;
    assert_eq!(read.as_ref().map(|read| (read.eof, read.attributes)), Some((true, Some(attributes))));
    assert_eq!(data(read).unwrap(), "data");
    let (result, read) = open(&fs, &by_name(), 100).await;
    assert!(result.unwrap().directory.after.unwrap().is_dir());
    assert_eq!(data(read).unwrap(), "data");
    let seen = origin.seen().split_off(before);
    assert_eq!(seen, [&["PUTFH", "OPEN", "ACCESS", "GETATTR", "READ"][..], &BY_NAME]);
    for operation in origin.operations("READ") {
        let ArgOp::Read(args) = operation else { panic!() };
        assert_eq!((args.stateid, args.offset, args.count), (nfs4::Stateid::CURRENT, 0, 100));
    }
    // From then on it has its own state id.
    let (result, _) = open(&fs, &by_handle(), 100).await;
    let id = result.unwrap().id;
    soon(fs.read(&caller(), &handle(b"file"), StateidBasis::Open(id), 0, 100)).await.unwrap();
    let Some(ArgOp::Read(args)) = origin.operations("READ").pop() else { panic!() };
    assert_ne!(args.stateid, nfs4::Stateid::CURRENT);
}

/// A READ together with a delegation of the directory, for an origin that supports those. If the origin may
/// not support them, the delegation is asked for first, after the OPEN and without a READ. Nothing may follow
/// a READ, and a READ must not follow an operation that may fail.
#[tokio::test]
async fn a_delegation_of_the_directory_rides_too() {
    let origin = Origin4::start(directory(granted)).await;
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let behind = ["RESTOREFH", "GETATTR", "GET_DIR_DELEGATION", "GETATTR"];
    let last = [&BY_NAME[..2], &["SAVEFH"], &BY_NAME[2..6], &behind].concat();
    let first = [&BY_NAME[..1], &["GET_DIR_DELEGATION"], &BY_NAME[1..]].concat();
    for (expected, reads) in [(last, false), (first, true)] {
        let request = OpenRequest { read_first: Some((0, 100)), want_directory_lease: true, ..by_name() };
        let opened = soon(fs.open(&caller(), &request)).await.unwrap();
        assert_eq!(origin.seen().pop().unwrap(), expected);
        let DirectoryLease { lease, attributes } = *opened.directory_lease.unwrap();
        assert!(attributes.is_dir() && opened.directory.after.is_some());
        assert_eq!(data(opened.read.map(|read| *read)).is_some_and(|data| data == "data"), reads);
        soon(fs.returned(&caller(), lease.id)).await.unwrap();
    }
}

/// The OPEN stands, with its delegation. If the status says that the origin cannot do it, it is not asked
/// again.
#[tokio::test]
async fn what_becomes_of_it_does_not_matter_to_the_open() {
    for (status, again) in [(Wire::Delay, true), (Wire::Io, true), (Wire::BadStateid, false)] {
        let mut grant = granting(read_delegation);
        let origin = Origin4::start(move |operation, all| match operation {
            ArgOp::Read(args) if args.stateid == nfs4::Stateid::CURRENT => say(ResOp::Read(Err(status))),
            _ => grant(operation, all),
        })
        .await;
        let fs = origin.mount("").await;
        let _callbacks = fs.callbacks().unwrap();
        let (result, read) = open(&fs, &by_handle(), 100).await;
        let opened = result.unwrap();
        assert!(read.is_none() && opened.lease.is_some(), "{status}");
        let by = StateidBasis::Open(opened.id);
        let read = soon(fs.read(&caller(), &opened.handle, by, 0, 100)).await.unwrap();
        assert_eq!(data(Some(read)).unwrap(), "data");
        assert_eq!(origin.operations("OPEN").len(), 1, "{status}");
        open(&fs, &by_handle(), 100).await.0.unwrap();
        assert_eq!(origin.seen().pop().unwrap().contains(&"READ"), again, "{status}");
    }
}

/// If the origin sends more than was asked for, or nothing, its data is ignored.
#[tokio::test]
async fn nonsense_is_left_out() {
    for (bytes, eof) in [(&b"much more"[..], true), (b"", false)] {
        let origin = Origin4::start(move |operation, _| match operation {
            ArgOp::Read(_) => say(ResOp::Read(Ok(ReadOk { eof, data: Bytes::from_static(bytes).into() }))),
            _ => Say::Usual,
        })
        .await;
        let fs = origin.mount("").await;
        let (result, read) = open(&fs, &by_handle(), 4).await;
        assert!(result.is_ok() && read.is_none());
    }
}

/// A reply too large for the session's reply cache is not kept for a resend; every other reply is.
#[tokio::test]
async fn what_is_small_is_kept_for_a_resend() {
    let origin = Origin4::start(usual).await;
    let fs = origin.mount("").await;
    for (count, kept) in [(100, true), (8 << 10, true), (64 << 10, false)] {
        open(&fs, &by_handle(), count).await.0.unwrap();
        assert_eq!(origin.kept_last(), kept, "{count}");
    }
    soon(fs.open(&caller(), &by_handle())).await.unwrap();
    assert!(origin.kept_last());
}

/// The answer is lost, and the origin has not kept it. The OPEN is sent again, and a recall of what the first
/// one was granted makes the client return it.
#[tokio::test]
async fn a_lost_answer_leaves_nothing_behind() {
    let opens = Arc::new(AtomicUsize::new(0));
    let origin = Origin4::start({
        let opens = opens.clone();
        move |operation, _| match operation {
            ArgOp::Open(_) => {
                let delegation = match opens.fetch_add(1, Ordering::Relaxed) {
                    0 => read_delegation(),
                    _ => OpenDelegation::None,
                };
                say(ResOp::Open(Ok(opened(nfs4::Stateid { seqid: 1, other: [1; 12] }, delegation))))
            }
            ArgOp::Read(_) if opens.load(Ordering::Relaxed) == 1 => Say::HangUp,
            _ => Say::Usual,
        }
    })
    .await;
    origin.forget_uncached();
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let (result, read) = open(&fs, &by_handle(), 64 << 10).await;
    assert!(result.unwrap().lease.is_none());
    assert_eq!(data(read).unwrap(), "data");
    assert_eq!((origin.operations("OPEN").len(), origin.operations("DELEGRETURN").len()), (2, 0));
    // The backchannel is on the new connection once that is bound.
    until(|| origin.operations("BIND_CONN_TO_SESSION").len() == 1).await;
    let answer = soon(origin.call_back(recall(), false)).await;
    assert_eq!(answer.status, Ok(()));
    until(|| origin.operations("DELEGRETURN").len() == 1).await;
    let Some(ArgOp::Delegreturn(args)) = origin.operations("DELEGRETURN").pop() else { panic!() };
    assert_eq!(args.deleg_stateid.other, DELEGATED.other);
}

/// A READ whose answer is lost is sent again.
#[tokio::test]
async fn what_was_not_to_be_kept_is_asked_again() {
    let mut lost = false;
    let origin = Origin4::start(move |operation, _| match operation {
        ArgOp::Read(_) if !std::mem::replace(&mut lost, true) => Say::HangUp,
        _ => Say::Usual,
    })
    .await;
    origin.forget_uncached();
    let fs = origin.mount("").await;
    let read = soon(fs.read(&caller(), &handle(b"file"), StateidBasis::Anonymous, 0, 100)).await.unwrap();
    assert_eq!(data(Some(read)).unwrap(), "data");
    assert_eq!(origin.operations("READ").len(), 2);
}
