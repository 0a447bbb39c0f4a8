//! Tests of directory delegations that piggyback on a LOOKUP, OPEN or READDIR of a scripted origin of version
//! 4.1. They check the order of operations, and that the main operation succeeds whatever becomes of the
//! delegation.

use protocol::nfs4::{self, ArgOp, Fattr, Ftype, GetattrOk, ReaddirOk, ResOp, Status};
use vfs::{
    AccessMask, BringsDirectoryLease, DirectoryLease, FileSystem, LeaseKind, Leases, Looked, Name,
    OpenRequest, Opened, Opens, ReadDir, Share, Want,
};

use client::Nfs4;

use crate::directories4::{Given, give, granted, unavailable, unknown};
use crate::scripted::{caller, handle};
use crate::scripted4::{Origin4, Say, fattr, say};
use crate::state4::{request, soon, until};

/// A name that does not exist.
const ABSENT: &[u8] = b"absent";

/// An origin with directories that have every name but one.
pub fn directory(given: Given) -> impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send {
    let mut above = false;
    let mut grants = 0;
    move |operation, _| match operation {
        ArgOp::Putfh(args) => {
            above = args.object.starts_with(b"dir");
            Say::Usual
        }
        ArgOp::Restorefh(()) => {
            above = true;
            Say::Usual
        }
        ArgOp::Lookup(args) if args.objname[..] == *ABSENT => say(ResOp::Lookup(Err(Status::NoEnt))),
        ArgOp::Open(args) if matches!(&args.claim, nfs4::OpenClaim::Null(name) if name[..] == *ABSENT) => {
            say(ResOp::failed(operation.operation(), Status::NoEnt))
        }
        ArgOp::Lookup(_) | ArgOp::Open(_) => {
            above = false;
            Say::Usual
        }
        ArgOp::Readdir(_) => say(ResOp::Readdir(Ok(ReaddirOk {
            cookieverf: [1; 8],
            entries: xdr::LinkedList::default(),
            eof: true,
        }))),
        ArgOp::GetDirDelegation(_) => give(given, &mut grants),
        ArgOp::Getattr(args) if above => {
            let directory = Fattr { ftype: Some(Ftype::Dir), ..fattr(args.attr_request) };
            say(ResOp::Getattr(Ok(GetattrOk { obj_attributes: Box::new(directory) })))
        }
        _ => Say::Usual,
    }
}

fn name(text: &[u8]) -> Name {
    Name::new(text).unwrap()
}

async fn look(fs: &Nfs4, text: &[u8]) -> (bool, Option<vfs::Lease>) {
    look_in(fs, b"dir", text).await
}

async fn look_in(fs: &Nfs4, directory: &[u8], text: &[u8]) -> (bool, Option<vfs::Lease>) {
    let mut result = soon(fs.lookup(&caller(), &handle(directory), &name(text), Want::Read)).await;
    let lease = Looked::detach(&mut result);
    let there = match result {
        Ok(looked) => {
            assert!(looked.directory.unwrap().is_dir());
            true
        }
        Err(error) => {
            assert_eq!(error.status, vfs::Status::NoEnt);
            assert!(error.attributes.unwrap().is_dir());
            false
        }
    };
    (there, told(lease))
}

fn told(lease: Option<DirectoryLease>) -> Option<vfs::Lease> {
    lease.map(|DirectoryLease { lease, attributes }| {
        assert!(attributes.is_dir() && attributes.change == lease.change && lease.kind == LeaseKind::Read);
        lease
    })
}

async fn open(fs: &Nfs4, text: &[u8]) -> (vfs::Result<Opened>, Option<vfs::Lease>) {
    open_in(fs, b"dir", text).await
}

async fn open_in(fs: &Nfs4, directory: &[u8], text: &[u8]) -> (vfs::Result<Opened>, Option<vfs::Lease>) {
    let request = OpenRequest {
        handle: handle(directory),
        name: Some(name(text)),
        access: Share::READ,
        want_directory_lease: true,
        ..request(Want::Any)
    };
    let mut result = soon(fs.open(&caller(), &request)).await;
    let lease = Opened::detach(&mut result);
    (result, told(lease))
}

fn last(origin: &Origin4) -> Vec<&'static str> {
    origin.seen().pop().unwrap()
}

/// The delegation is asked for after the main operation while the origin may not support it. Afterwards it is
/// asked for first, so that missing names bring it too.
#[tokio::test]
async fn it_rides_last_and_then_first() {
    let origin = Origin4::start(directory(granted)).await;
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let before = origin.seen().len();
    let lookup = ["PUTFH", "GETATTR", "LOOKUP", "GETFH", "GETATTR"];
    let piggybacked_last = [&lookup[..], &["PUTFH", "GET_DIR_DELEGATION", "GETATTR"]].concat();
    // The compound ends before the request for the delegation.
    assert_eq!(look(&fs, ABSENT).await, (false, None));
    assert_eq!(last(&origin), piggybacked_last);
    let (there, lease) = look(&fs, b"file").await;
    assert_eq!(last(&origin), piggybacked_last);
    assert!(there);
    // The client has the delegation, so it asks for no other.
    assert_eq!(look(&fs, b"file").await, (true, None));
    assert_eq!(last(&origin), lookup);
    soon(fs.returned(&caller(), lease.unwrap().id)).await.unwrap();
    let (there, lease) = look(&fs, ABSENT).await;
    assert_eq!(last(&origin), [&["PUTFH", "GET_DIR_DELEGATION"], &lookup[1..]].concat());
    assert!(!there);
    soon(fs.returned(&caller(), lease.unwrap().id)).await.unwrap();
    let (opened, lease) = open(&fs, ABSENT).await;
    let behind = ["OPEN", "GETFH", "ACCESS", "GETATTR", "RESTOREFH", "GETATTR"];
    let piggybacked_first = [&["PUTFH", "GET_DIR_DELEGATION", "GETATTR", "SAVEFH"][..], &behind].concat();
    assert_eq!(last(&origin), piggybacked_first);
    assert_eq!(opened.unwrap_err().status, vfs::Status::NoEnt);
    soon(fs.returned(&caller(), lease.unwrap().id)).await.unwrap();
    let (opened, lease) = open(&fs, b"file").await;
    assert_eq!(last(&origin), piggybacked_first);
    assert!(opened.unwrap().directory.after.unwrap().is_dir());
    soon(fs.returned(&caller(), lease.unwrap().id)).await.unwrap();
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 4096,
        plus: true,
        want_directory_lease: true,
        names_suffice: false,
    };
    let read = soon(fs.readdir(&caller(), &handle(b"dir"), part)).await.unwrap();
    assert_eq!(last(&origin), ["PUTFH", "GET_DIR_DELEGATION", "GETATTR", "READDIR"]);
    assert!(read.eof && told(read.directory_lease).is_some());
    assert_eq!(origin.seen().len(), before + 7 + 4, "four DELEGRETURNs, and one call each");
}

#[tokio::test]
async fn an_open_brings_it_of_an_origin_that_may_not_know_it() {
    let origin = Origin4::start(directory(granted)).await;
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let (opened, lease) = open(&fs, b"file").await;
    assert!(opened.is_ok() && lease.is_some());
    let all = last(&origin);
    assert_eq!(all[all.len() - 4..], ["RESTOREFH", "GETATTR", "GET_DIR_DELEGATION", "GETATTR"]);
}

/// A refusal costs nothing, and the client stops asking. It asks for one directory at most once in half a
/// minute.
#[tokio::test]
async fn what_it_rides_on_is_had_without_it() {
    for (given, asked_max) in [(unknown as Given, 1), (unavailable, 16)] {
        let origin = Origin4::start(directory(given)).await;
        let fs = origin.mount("").await;
        let _callbacks = fs.callbacks().unwrap();
        let before = origin.seen().len();
        for round in 0..20 {
            let directory = format!("dir {round}").into_bytes();
            assert_eq!(look_in(&fs, &directory, b"file").await, (true, None));
            assert_eq!(look_in(&fs, &directory, ABSENT).await, (false, None));
            let (opened, lease) = open_in(&fs, &directory, b"file").await;
            assert!(opened.is_ok() && lease.is_none(), "{round}");
        }
        assert_eq!(origin.seen().len(), before + 60, "one call each");
        assert_eq!(origin.operations("GET_DIR_DELEGATION").len(), asked_max);
    }
}

/// An origin that supports the operation fails once. The operations after it were not executed, and are sent
/// again without it.
#[tokio::test]
async fn one_that_fails_first_is_left_out() {
    let mut asked = 0;
    let mut directory = directory(granted);
    let origin = Origin4::start(move |operation, all| match operation {
        ArgOp::GetDirDelegation(_) => {
            asked += 1;
            if asked > 1 {
                return say(ResOp::GetDirDelegation(Err(Status::Resource)));
            }
            directory(operation, all)
        }
        _ => directory(operation, all),
    })
    .await;
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let known = soon(fs.delegate(&caller(), &handle(b"dir"), AccessMask::LOOKUP)).await.unwrap();
    soon(fs.returned(&caller(), known.lease.unwrap().id)).await.unwrap();
    let before = origin.seen().len();
    // Use a directory of its own for each. A directory that was refused is not asked for again so soon.
    assert_eq!(look_in(&fs, b"dir 1", b"file").await, (true, None));
    let (opened, lease) = open_in(&fs, b"dir 2", b"file").await;
    assert!(opened.is_ok() && lease.is_none());
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 4096,
        plus: false,
        want_directory_lease: true,
        names_suffice: false,
    };
    let read = soon(fs.readdir(&caller(), &handle(b"dir 3"), part)).await.unwrap();
    assert!(read.directory_lease.is_none());
    assert_eq!(origin.seen().len(), before + 6, "each twice");
}

/// A caller that gives up waiting leaves no unknown delegation behind.
#[tokio::test]
async fn what_nobody_waits_for_goes_back() {
    let answer = std::sync::Arc::new(tokio::sync::Notify::new());
    let origin = Origin4::start({
        let (answer, mut directory) = (answer.clone(), directory(granted));
        move |operation, all| match operation {
            ArgOp::Putfh(_) if all.iter().any(|one| matches!(one, ArgOp::GetDirDelegation(_))) => {
                let _ = directory(operation, all);
                Say::Wait(answer.clone())
            }
            _ => directory(operation, all),
        }
    })
    .await;
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let (file, directory, asker) = (name(b"file"), handle(b"dir"), caller());
    let looking = fs.lookup(&asker, &directory, &file, Want::Read);
    let waited = tokio::time::timeout(std::time::Duration::from_millis(50), looking).await;
    assert!(waited.is_err());
    until(|| origin.operations("GET_DIR_DELEGATION").len() == 1).await;
    answer.notify_one();
    until(|| origin.operations("DELEGRETURN").len() == 1).await;
}
