//! Tests of state at an origin of version 4.1, across lost replies, lost sessions and restarts.
//!
//! Promise: exclusion-under-a-lease

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Nfs4, Origin as _};
use protocol::nfs4::callback::{CbArgOp, CbRecallArgs};
use protocol::nfs4::{
    self, Ace, ArgOp, Attr, Bitmap, Fattr, Ftype, OpenClaim, OpenDelegation, OpenReadDelegation,
    OpenWriteDelegation, ResOp, Status as Wire,
};
use tokio::time::timeout;
use vfs::{
    Callback, Callbacks, Caller, CreateHow, Data, FileSystem, Lease, LeaseKind, Leases, Lock, LockKind,
    LockRequest, Locked, OpenRequest, Opened, Opens, Owner, SetAttributes, Share, StateidBasis, Status, Want,
};

use crate::scripted::{caller, handle, name};
use crate::scripted4::{Origin4, Say, fattr, opened, say};

pub const DELEGATED: nfs4::Stateid = nfs4::Stateid { seqid: 1, other: [0xdd; 12] };

pub fn usual(_: &ArgOp, _: &[ArgOp]) -> Say {
    Say::Usual
}

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.expect("it takes too long")
}

/// Waits until a condition holds.
pub async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub fn request(want: Want) -> OpenRequest {
    OpenRequest {
        want,
        ..OpenRequest::new(
            handle(b"file"),
            None,
            Owner(Bytes::from_static(b"owner")),
            Share::READ | Share::WRITE,
        )
    }
}

pub async fn open(fs: &Nfs4) -> Opened {
    soon(fs.open(&caller(), &request(Want::Any))).await.unwrap()
}

pub async fn read(fs: &Nfs4, by: StateidBasis) -> vfs::Result<Data> {
    soon(fs.read(&caller(), &handle(b"file"), by, 0, 100)).await.map(|read| read.data)
}

pub fn write_delegation() -> OpenDelegation {
    OpenDelegation::Write(OpenWriteDelegation {
        stateid: DELEGATED,
        recall: false,
        space_limit: nfs4::NfsSpaceLimit::Size(1 << 30),
        permissions: Ace::default(),
    })
}

pub fn read_delegation() -> OpenDelegation {
    OpenDelegation::Read(OpenReadDelegation {
        stateid: DELEGATED,
        recall: false,
        permissions: Ace::default(),
    })
}

/// Grants a delegation with each OPEN.
pub fn granting(delegation: fn() -> OpenDelegation) -> impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send {
    move |operation, _| match operation {
        ArgOp::Open(_) => {
            let stateid = nfs4::Stateid { seqid: 1, other: [1; 12] };
            say(ResOp::Open(Ok(opened(stateid, delegation()))))
        }
        _ => Say::Usual,
    }
}

pub async fn delegated(origin: &Origin4) -> (Nfs4, Callbacks, Opened, Lease) {
    let fs = origin.mount("").await;
    let callbacks = fs.callbacks().unwrap();
    let opened = open(&fs).await;
    let lease = opened.lease.unwrap();
    (fs, callbacks, opened, lease)
}

pub fn recall() -> CbArgOp {
    let fh = nfs4::Handle::new(b"file").unwrap();
    CbArgOp::Recall(CbRecallArgs { stateid: DELEGATED, truncate: false, fh })
}

#[tokio::test]
async fn an_exclusive_open_that_comes_again_finds_its_verifier() {
    let mut in_directory = false;
    let origin = Origin4::start(move |operation, _| match operation {
        ArgOp::Restorefh(()) => {
            in_directory = true;
            Say::Usual
        }
        ArgOp::Getattr(args) if in_directory => {
            let directory = Fattr { ftype: Some(Ftype::Dir), ..fattr(args.attr_request) };
            say(ResOp::Getattr(Ok(nfs4::GetattrOk { obj_attributes: Box::new(directory) })))
        }
        ArgOp::Open(_) => {
            let stateid = nfs4::Stateid { seqid: 1, other: [1; 12] };
            let verifier = Bitmap::of(&[Attr::TimeAccess, Attr::TimeModify, Attr::Mode]);
            let ok = opened(stateid, OpenDelegation::None);
            say(ResOp::Open(Ok(nfs4::OpenOk { attrset: verifier, ..ok })))
        }
        _ => Say::Usual,
    })
    .await;
    let fs = origin.mount("").await;
    let create = Some((CreateHow::Exclusive(*b"verifier"), SetAttributes::default()));
    let request =
        OpenRequest { handle: handle(b"dir"), name: Some(name(b"new")), create, ..request(Want::Any) };
    soon(fs.open(&caller(), &request)).await.unwrap();
    // The origin stores the verifier in the times, so the client sets nothing: the caller decides.
    assert!(origin.operations("SETATTR").is_empty());
}

#[tokio::test]
async fn one_operation_is_one_compound() {
    let origin = Origin4::start(usual).await;
    let fs = origin.mount("").await;
    let opened = open(&fs).await;
    read(&fs, StateidBasis::Open(opened.id)).await.unwrap();
    fs.close(&caller(), opened.id).await.unwrap();
    fs.remove(&caller(), &handle(b"dir"), &name(b"x")).await.unwrap_err();
    assert_eq!(
        origin.seen(),
        [
            vec!["EXCHANGE_ID"],
            vec!["CREATE_SESSION"],
            vec!["PUTROOTFH", "LOOKUP", "GETFH", "GETATTR"],
            vec!["RECLAIM_COMPLETE"],
            vec!["PUTFH", "OPEN", "ACCESS", "GETATTR"],
            vec!["PUTFH", "GETATTR", "READ"],
            vec!["PUTFH", "CLOSE"],
            vec!["PUTFH", "GETATTR", "SAVEFH", "LOOKUP", "NVERIFY", "RESTOREFH", "REMOVE", "GETATTR"],
        ]
    );
    // The script says that the directory is a file.
    assert_eq!(fs.nonsense_heard(), 1);
}

/// An origin that hangs up instead of answering the first OPEN.
async fn losing_the_first_open() -> Origin4 {
    let mut lost = false;
    Origin4::start(move |operation, _| match operation {
        ArgOp::Open(_) if !std::mem::replace(&mut lost, true) => Say::HangUp,
        _ => Say::Usual,
    })
    .await
}

#[tokio::test]
async fn a_reply_that_is_lost_is_given_again_from_the_slot() {
    let origin = losing_the_first_open().await;
    let fs = origin.mount("").await;
    open(&fs).await;
    assert_eq!((origin.operations("OPEN").len(), origin.replays()), (1, 1));
    // The connection was lost, and the backchannel with it.
    until(|| origin.operations("BIND_CONN_TO_SESSION").len() == 1).await;
}

#[tokio::test]
async fn a_lost_session_is_made_again_and_what_is_open_stays_open() {
    let origin = Origin4::start(usual).await;
    let fs = origin.mount("").await;
    let opened = open(&fs).await;
    origin.forget_session();
    read(&fs, StateidBasis::Open(opened.id)).await.unwrap();
    assert_eq!(origin.operations("CREATE_SESSION").len(), 2);
    assert_eq!((origin.operations("EXCHANGE_ID").len(), origin.operations("OPEN").len()), (1, 1));
}

#[tokio::test]
async fn after_a_restart_opens_locks_and_delegations_are_reclaimed_by_one_recovery() {
    let origin = Origin4::start(granting(write_delegation)).await;
    let (fs, mut callbacks, opened, lease) = delegated(&origin).await;
    assert_eq!(lease.kind, LeaseKind::Write);
    let lock = Lock {
        owner: Owner(Bytes::from_static(b"p")),
        kind: LockKind::Exclusive,
        offset: 3,
        length: u64::MAX,
    };
    let asked = LockRequest { lock: lock.clone(), wait: false, reclaim: false };
    assert_eq!(soon(fs.lock(&caller(), opened.id, &asked)).await.unwrap(), Locked::Granted);
    origin.forget();
    let by = StateidBasis::Open(opened.id);
    let (one, two, three) = tokio::join!(read(&fs, by), read(&fs, by), read(&fs, StateidBasis::Anonymous));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    let opens = origin.operations("OPEN");
    let [_, ArgOp::Open(again)] = &opens[..] else { panic!("{opens:?}") };
    assert_eq!(again.claim, OpenClaim::Previous(nfs4::OpenDelegationType::Write));
    let locks = origin.operations("LOCK");
    let [_, ArgOp::Lock(again)] = &locks[..] else { panic!("{locks:?}") };
    assert!(again.reclaim && again.offset == 3 && again.length == u64::MAX);
    assert_eq!(origin.operations("RECLAIM_COMPLETE").len(), 2);
    assert!(fs.holds_locks(opened.id, &lock.owner));
    assert!(callbacks.try_recv().is_err(), "nothing was lost");
}

#[tokio::test]
async fn what_cannot_be_reclaimed_is_lost_and_said_so() {
    let restarted = Arc::new(AtomicBool::new(false));
    let origin = Origin4::start({
        let restarted = restarted.clone();
        let mut granting = granting(read_delegation);
        move |operation, all| match operation {
            ArgOp::Open(args) if restarted.load(Ordering::Relaxed) => match args.claim {
                OpenClaim::Previous(_) => say(ResOp::Open(Err(Wire::ReclaimBad))),
                _ => Say::Usual,
            },
            _ => granting(operation, all),
        }
    })
    .await;
    let (fs, mut callbacks, opened, lease) = delegated(&origin).await;
    restarted.store(true, Ordering::Relaxed);
    origin.forget();
    assert_eq!(read(&fs, StateidBasis::Open(opened.id)).await.unwrap_err().status, Status::BadStateId);
    let told = soon(callbacks.recv()).await.unwrap();
    assert!(matches!(told, Callback::Revoked { id, .. } if id == lease.id), "{told:?}");
    // Unrelated requests continue.
    assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
    soon(fs.close(&caller(), opened.id)).await.unwrap();
}

#[tokio::test]
async fn without_grace_an_open_is_opened_anew() {
    let restarted = Arc::new(AtomicBool::new(false));
    let origin = Origin4::start({
        let restarted = restarted.clone();
        move |operation, _| match operation {
            ArgOp::Open(args) if restarted.load(Ordering::Relaxed) => match args.claim {
                OpenClaim::Previous(_) => say(ResOp::Open(Err(Wire::NoGrace))),
                _ => Say::Usual,
            },
            _ => Say::Usual,
        }
    })
    .await;
    let fs = origin.mount("").await;
    let opened = open(&fs).await;
    restarted.store(true, Ordering::Relaxed);
    origin.forget();
    assert!(read(&fs, StateidBasis::Open(opened.id)).await.is_ok());
    let claims: Vec<_> = origin
        .operations("OPEN")
        .into_iter()
        .map(|operation| if let ArgOp::Open(args) = operation { args.claim } else { OpenClaim::DelegPrevFh })
        .collect();
    let none = nfs4::OpenDelegationType::None;
    assert_eq!(claims, [OpenClaim::Fh, OpenClaim::Previous(none), OpenClaim::Fh]);
}

#[tokio::test]
async fn an_expired_state_id_is_tested_freed_and_replaced() {
    let reads = Arc::new(AtomicUsize::new(0));
    let origin = Origin4::start({
        let reads = reads.clone();
        move |operation, _| match operation {
            ArgOp::Read(_) if reads.fetch_add(1, Ordering::Relaxed) == 0 => {
                say(ResOp::Read(Err(Wire::AdminRevoked)))
            }
            _ => Say::Usual,
        }
    })
    .await;
    let fs = origin.mount("").await;
    let opened = open(&fs).await;
    assert!(read(&fs, StateidBasis::Open(opened.id)).await.is_ok());
    let names: Vec<_> = origin
        .seen()
        .into_iter()
        .skip(5)
        .map(|compound| if compound.contains(&"READ") { "READ" } else { compound[compound.len() / 2] })
        .collect();
    assert_eq!(names, ["READ", "TEST_STATEID", "FREE_STATEID", "OPEN", "READ"]);
}

#[tokio::test]
async fn delay_and_grace_are_waited_for_as_long_as_the_caller_does() {
    let reads = Arc::new(AtomicUsize::new(0));
    let origin = Origin4::start({
        let reads = reads.clone();
        move |operation, _| match operation {
            ArgOp::Read(_) => match reads.fetch_add(1, Ordering::Relaxed) {
                1 => say(ResOp::Read(Err(Wire::Grace))),
                2 => Say::Usual,
                _ => say(ResOp::Read(Err(Wire::Delay))),
            },
            _ => Say::Usual,
        }
    })
    .await;
    let fs = origin.mount("").await;
    assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
    assert_eq!(reads.load(Ordering::Relaxed), 3);
    let deadline = Some(tokio::time::Instant::now() + Duration::from_millis(100));
    let hurried = Caller { deadline, ..caller() };
    let failed = fs.read(&hurried, &handle(b"file"), StateidBasis::Anonymous, 0, 1).await.unwrap_err();
    assert_eq!(failed.status, Status::Delay);
}

#[tokio::test]
async fn delay_behind_a_create_does_not_create_again() {
    let origin = Origin4::start(|operation, all| match operation {
        ArgOp::Restorefh(()) if all.iter().any(|operation| matches!(operation, ArgOp::Create(_))) => {
            say(ResOp::Restorefh(Err(Wire::Delay)))
        }
        ArgOp::Getattr(args) => {
            let mut fattr = crate::scripted4::fattr(args.attr_request);
            fattr.ftype = fattr.ftype.map(|_| nfs4::Ftype::Dir);
            say(ResOp::Getattr(Ok(nfs4::GetattrOk { obj_attributes: Box::new(fattr) })))
        }
        _ => Say::Usual,
    })
    .await;
    let fs = origin.mount("").await;
    let none = SetAttributes::default();
    let made = soon(fs.mkdir(&caller(), &handle(b"dir"), &name(b"x"), &none, vfs::Want::None)).await.unwrap();
    assert!(made.directory.after.is_none() && made.node.attributes.is_some());
    assert_eq!(origin.operations("CREATE").len(), 1);
}

#[tokio::test]
async fn a_slot_whose_request_was_given_up_is_probed_before_it_is_used_again() {
    let origin = Origin4::start(usual).await;
    let fs = origin.mount("").await;
    let mut origin = origin;
    origin.stop();
    let deadline = Some(tokio::time::Instant::now() + Duration::from_millis(50));
    let hurried = Caller { deadline, ..caller() };
    for _ in 0..3 {
        let file = handle(b"file");
        let failed = fs.read(&hurried, &file, StateidBasis::Anonymous, 0, 1).await.unwrap_err();
        assert_eq!(failed.status, Status::Delay);
    }
    origin.resume().await;
    for _ in 0..8 {
        assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
    }
    assert_eq!(origin.operations("CREATE_SESSION").len(), 1, "the slots were never out of step");
}

#[tokio::test]
async fn a_soft_mount_gives_up_and_comes_back() {
    let mut origin = Origin4::start(usual).await;
    let fs = origin.mount("soft&timeo=1&retrans=1").await;
    origin.stop();
    for _ in 0..10 {
        assert_eq!(read(&fs, StateidBasis::Anonymous).await.unwrap_err().status, Status::Io);
    }
    origin.resume().await;
    soon(async { while read(&fs, StateidBasis::Anonymous).await.is_err() {} }).await;
    assert_eq!(origin.operations("CREATE_SESSION").len(), 1);
}

#[tokio::test]
async fn a_connection_that_is_not_of_the_session_is_bound() {
    let refused = Arc::new(AtomicBool::new(false));
    let origin = Origin4::start(usual).await;
    let fs = origin.mount("nconnect=3").await;
    for _ in 0..6 {
        assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
    }
    origin.refuse_connection(refused.clone());
    for _ in 0..6 {
        assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
    }
    assert!(refused.load(Ordering::Relaxed));
    assert_eq!(origin.operations("BIND_CONN_TO_SESSION").len(), 1);
    soon(fs.shutdown()).await;
    assert_eq!(origin.operations("DESTROY_CLIENTID").len(), 1);
}

#[tokio::test]
async fn the_backchannel_is_bound_again_when_it_is_lost_or_said_to_be() {
    let mut origin = Origin4::start(granting(read_delegation)).await;
    let (fs, mut callbacks, _, lease) = delegated(&origin).await;
    origin.reconnect().await;
    until(|| origin.operations("BIND_CONN_TO_SESSION").len() == 1).await;
    assert_eq!(soon(origin.call_back(recall(), false)).await.status, Ok(()));
    assert!(matches!(soon(callbacks.recv()).await, Some(Callback::Recall(told)) if told.id == lease.id));
    origin.set_flags(nfs4::SEQ4_STATUS_CB_PATH_DOWN);
    read(&fs, StateidBasis::Anonymous).await.unwrap();
    until(|| origin.operations("BIND_CONN_TO_SESSION").len() == 2).await;
}

#[tokio::test]
async fn the_lease_is_renewed_when_nothing_else_does_it() {
    let origin = Origin4::start(granting(read_delegation)).await;
    let (_fs, mut callbacks, _, _) = delegated(&origin).await;
    let before = origin.seen().len();
    // This takes longer than the lease.
    until(|| origin.seen().len() >= before + 4).await;
    let since = origin.seen().split_off(before);
    assert!(since.iter().all(Vec::is_empty), "{since:?}");
    assert!(callbacks.try_recv().is_err());
}

#[tokio::test]
async fn an_open_that_nobody_waited_for_is_closed() {
    let origin = losing_the_first_open().await;
    let fs = origin.mount("").await;
    let deadline = Some(tokio::time::Instant::now() + Duration::from_millis(10));
    let hurried = Caller { deadline, ..caller() };
    assert_eq!(fs.open(&hurried, &request(Want::Any)).await.unwrap_err().status, Status::Delay);
    until(|| origin.operations("CLOSE").len() == 1).await;
}

#[tokio::test]
async fn nonsense_is_an_io_error() {
    let turn = Arc::new(AtomicUsize::new(0));
    let origin = Origin4::start({
        let turn = turn.clone();
        move |operation, all| {
            let reading = all.iter().any(|operation| matches!(operation, ArgOp::Read(_)));
            match (operation, turn.load(Ordering::Relaxed)) {
                // The result of another operation than the requested one.
                (ArgOp::Read(_), 1) => say(ResOp::Savefh(Ok(()))),
                // Attributes without a size.
                (ArgOp::Getattr(_), 2) if reading => {
                    say(ResOp::Getattr(Ok(nfs4::GetattrOk { obj_attributes: Box::default() })))
                }
                // More data than asked for.
                (ArgOp::Read(_), 3) => {
                    say(ResOp::Read(Ok(nfs4::ReadOk { eof: false, data: Bytes::from(vec![0; 101]).into() })))
                }
                _ => Say::Usual,
            }
        }
    })
    .await;
    let fs = origin.mount("").await;
    for nonsense in 1..4 {
        turn.store(nonsense, Ordering::Relaxed);
        assert_eq!(read(&fs, StateidBasis::Anonymous).await.unwrap_err().status, Status::Io);
        assert_eq!(fs.nonsense_heard(), nonsense as u64);
    }
    turn.store(0, Ordering::Relaxed);
    assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
}

#[tokio::test]
async fn a_create_whose_answer_died_with_the_session_is_found_out_about() {
    let made = Arc::new(AtomicBool::new(false));
    let origin = Arc::new(
        Origin4::start({
            let made = made.clone();
            move |operation, _| match operation {
                ArgOp::Open(args) if matches!(args.claim, OpenClaim::Null(_)) => {
                    if made.swap(true, Ordering::Relaxed) {
                        say(ResOp::Open(Err(Wire::Exist)))
                    } else {
                        Say::HangUp
                    }
                }
                ArgOp::Getattr(args) => {
                    let mut fattr = crate::scripted4::fattr(args.attr_request);
                    fattr.size = fattr.size.map(|_| 0);
                    say(ResOp::Getattr(Ok(nfs4::GetattrOk { obj_attributes: Box::new(fattr) })))
                }
                _ => Say::Usual,
            }
        })
        .await,
    );
    let fs = Arc::new(origin.mount("").await);
    let creating = tokio::spawn({
        let fs = fs.clone();
        async move {
            let none = SetAttributes::default();
            fs.create(&caller(), &handle(b"dir"), &name(b"x"), CreateHow::Guarded, &none).await
        }
    });
    until(|| made.load(Ordering::Relaxed)).await;
    origin.forget_session();
    // The script says that the name leads to a file in a directory that is a file. But the client has asked.
    let _ = soon(creating).await.unwrap();
    let opens = origin.operations("OPEN").len();
    let lookups = origin.operations("LOOKUP").len();
    assert_eq!((opens, lookups), (2, 2), "the second finds it there, and then it is looked at");
}

#[tokio::test]
async fn a_file_that_moves_to_another_file_system_is_nonsense() {
    let moved = Arc::new(AtomicBool::new(false));
    let origin = Origin4::start({
        let moved = moved.clone();
        move |operation, _| match operation {
            ArgOp::Getattr(args) if moved.load(Ordering::Relaxed) => {
                let mut fattr = crate::scripted4::fattr(args.attr_request);
                fattr.fsid = fattr.fsid.map(|fsid| nfs4::Fsid { major: fsid.major + 1, ..fsid });
                say(ResOp::Getattr(Ok(nfs4::GetattrOk { obj_attributes: Box::new(fattr) })))
            }
            _ => Say::Usual,
        }
    })
    .await;
    let fs = origin.mount("").await;
    assert!(read(&fs, StateidBasis::Anonymous).await.is_ok());
    moved.store(true, Ordering::Relaxed);
    assert_eq!(read(&fs, StateidBasis::Anonymous).await.unwrap_err().status, Status::Io);
    assert_eq!(fs.nonsense_heard(), 1);
}

#[tokio::test]
async fn the_highest_version_that_the_origin_speaks_is_spoken() {
    let origin = Origin4::start(usual).await;
    let connect = async |vers: &str, address| {
        let url = format!("nfs://{address}/export?vers={vers}&noresvport");
        client::connect(&client::Url::parse(&url).unwrap()).await
    };
    for vers in ["auto", "4", "4.1"] {
        assert_eq!(connect(vers, origin.address).await.unwrap().version(), "4.1");
    }
    let refused = connect("4.2", origin.address).await.unwrap_err();
    assert!(refused.to_string().contains("does not speak NFS version 4.2;"), "{refused}");
    let old = crate::scripted::Origin::start(|_| crate::scripted::Act::NoAnswer).await;
    assert_eq!(connect("auto", old.address).await.unwrap().version(), "3");
    let refused = connect("4", old.address).await.unwrap_err();
    assert!(refused.to_string().contains("does not speak NFS version 4.1 nor 4.2"), "{refused}");
}

/// Lost replies, DELAYs, forgotten sessions and restarts, all at once. Every call gets the right answer.
#[tokio::test]
async fn nothing_is_lost_in_a_storm() {
    const TASKS: usize = 48;
    const READS: usize = 40;
    let turn = Arc::new(AtomicUsize::new(0));
    let mut origin = Origin4::start({
        let turn = turn.clone();
        move |operation, _| match operation {
            ArgOp::Read(_) | ArgOp::Open(_) => match turn.fetch_add(1, Ordering::Relaxed) % 23 {
                3 => Say::HangUp,
                7 | 11 if matches!(operation, ArgOp::Read(_)) => say(ResOp::Read(Err(Wire::Delay))),
                _ => Say::Usual,
            },
            _ => Say::Usual,
        }
    })
    .await;
    let fs = Arc::new(origin.mount("nconnect=3").await);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let fs = fs.clone();
        tasks.spawn(async move {
            let owner = Owner(Bytes::from(format!("owner {task}")));
            let opened = fs.open(&caller(), &OpenRequest { owner, ..request(Want::Any) }).await?;
            for read in 0..READS {
                let by = if read % 3 == 0 { StateidBasis::Anonymous } else { StateidBasis::Open(opened.id) };
                let read = fs.read(&caller(), &handle(b"file"), by, 0, 100).await?;
                assert_eq!(read.data.to_bytes().unwrap(), "data");
            }
            fs.close(&caller(), opened.id).await
        });
    }
    let storm = async {
        for round in 0..9 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match round % 3 {
                0 => origin.forget_session(),
                1 => origin.forget(),
                _ => origin.reconnect().await,
            }
        }
        std::future::pending::<()>().await;
    };
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap();
        }
    };
    tokio::select! {
        () = storm => {}
        done = timeout(Duration::from_secs(60), all) => done.unwrap(),
    }
    assert_eq!(fs.nonsense_heard(), 0);
    assert!(turn.load(Ordering::Relaxed) >= TASKS * READS);
}
