//! Tests with a hostile origin of version 4.1. It lies about sessions, and calls back about state that it
//! never granted and slots that do not exist. It grants what no caller wanted, and sends more than was asked
//! for. The affected call fails or recovers, data of one file is never taken for another's, and the next
//! honest answer counts as usual.

use bytes::Bytes;
use client::Origin as _;
use protocol::nfs4::callback::{CbArgOp, CbRecallArgs, CbRecallSlotArgs};
use protocol::nfs4::{self, ArgOp, ReadOk, ResOp, SequenceOk, Status as Wire};
use vfs::{FileSystem, Leases, Opens, StateidBasis, Want};

use crate::directories4::granted;
use crate::piggybacked_leases4::directory;
use crate::scripted::{caller, handle, name};
use crate::scripted4::{Origin4, Say, opened, say};
use crate::state4::{delegated, granting, open, read, read_delegation, recall, request, soon, until, usual};

#[tokio::test]
async fn sessions_that_answer_for_another_call_are_left() {
    let lies: [fn(&mut SequenceOk); 4] = [
        |ok| ok.sessionid = [0xee; 16],
        |ok| ok.slotid += 1,
        |ok| ok.sequenceid = ok.sequenceid.wrapping_add(1),
        |ok| (ok.highest_slotid, ok.target_highest_slotid) = (0, 0),
    ];
    for lie in lies {
        let origin = Origin4::start(usual).await;
        let fs = origin.mount("").await;
        origin.lie(lie);
        // The call fails or is repeated. It never takes the answer to another call.
        if let Ok(attributes) = soon(fs.getattr(&caller(), &handle(b"file"))).await {
            assert_eq!(attributes.size, 4);
        }
        assert!(origin.has_lied());
        for _ in 0..20 {
            assert_eq!(read(&fs, StateidBasis::Anonymous).await.unwrap().to_bytes().unwrap(), "data");
        }
        assert_eq!(origin.mistaken(), 0, "each slot goes on from where it was");
    }
}

#[tokio::test]
async fn an_origin_that_grants_sessions_and_refuses_each_is_not_asked_as_fast_as_it_answers() {
    let origin = Origin4::start(usual).await;
    let fs = origin.mount("").await;
    assert_eq!(soon(fs.getattr(&caller(), &handle(b"file"))).await.unwrap().size, 4);
    origin.refuse_all();
    let (caller, file) = (caller(), handle(b"file"));
    let asked = tokio::time::timeout(std::time::Duration::from_secs(1), fs.getattr(&caller, &file)).await;
    assert!(asked.is_err(), "{asked:?}");
    // The client retries once at once, and then after pauses of 10, 20, 40 ms and so on.
    let refused = origin.refused();
    assert!((2..16).contains(&refused), "{refused} in a second");
}

#[tokio::test]
async fn callbacks_in_the_name_of_another_session_slot_or_turn_do_nothing() {
    let origin = Origin4::start(granting(read_delegation)).await;
    let (fs, mut callbacks, _, lease) = delegated(&origin).await;
    let refused = async |change: fn(&mut nfs4::callback::CbSequenceArgs)| {
        soon(origin.call_back_as(recall(), change)).await.status
    };
    assert_eq!(refused(|args| args.sessionid = [0xee; 16]).await, Err(Wire::BadSession));
    assert_eq!(refused(|args| args.slotid = u32::MAX).await, Err(Wire::BadSlot));
    assert_eq!(refused(|args| args.sequenceid = 77).await, Err(Wire::SeqMisordered));
    assert!(callbacks.try_recv().is_err(), "nothing was recalled");
    assert_eq!(origin.operations("DELEGRETURN").len(), 0);
    // The honest callback is executed, and only once.
    assert_eq!(soon(origin.call_back(recall(), false)).await.status, Ok(()));
    assert_eq!(soon(origin.call_back(recall(), true)).await.status, Ok(()));
    let another = CbArgOp::RecallSlot(CbRecallSlotArgs { target_highest_slotid: 0 });
    assert_eq!(soon(origin.call_back(another.clone(), true)).await.status, Err(Wire::SeqFalseRetry));
    let many = vec![another; 8];
    assert_eq!(
        soon(origin.call_back_with(many, |args| args.sequenceid += 1)).await.status,
        Err(Wire::TooManyOps)
    );
    assert!(matches!(soon(callbacks.recv()).await, Some(vfs::Callback::Recall(told)) if told.id == lease.id));
    assert!(callbacks.try_recv().is_err(), "a repetition is one");
    soon(fs.returned(&caller(), lease.id)).await.unwrap();
}

#[tokio::test]
async fn recalls_of_what_was_never_given_are_refused_and_take_nothing_else() {
    let origin = Origin4::start(granting(read_delegation)).await;
    let (_fs, mut callbacks, _, lease) = delegated(&origin).await;
    for number in 0..100_u8 {
        let fh = nfs4::Handle::new(&[number; 128]).unwrap();
        let stateid = nfs4::Stateid { seqid: 1, other: [number; 12] };
        let made_up = CbArgOp::Recall(CbRecallArgs { stateid, truncate: true, fh });
        let status = soon(origin.call_back(made_up, false)).await.status;
        assert!(matches!(status, Err(Wire::BadStateid | Wire::BadHandle)), "{status:?}");
    }
    assert!(callbacks.try_recv().is_err());
    assert_eq!(soon(origin.call_back(recall(), false)).await.status, Ok(()));
    assert!(matches!(soon(callbacks.recv()).await, Some(vfs::Callback::Recall(told)) if told.id == lease.id));
}

#[tokio::test]
async fn a_delegation_that_nobody_wanted_goes_back() {
    let origin = Origin4::start(granting(read_delegation)).await;
    let fs = origin.mount("").await;
    let _callbacks = fs.callbacks().unwrap();
    let opened = soon(fs.open(&caller(), &request(Want::None))).await.unwrap();
    assert!(opened.lease.is_none());
    until(|| origin.operations("DELEGRETURN").len() == 1).await;
    assert_eq!(read(&fs, StateidBasis::Open(opened.id)).await.unwrap().to_bytes().unwrap(), "data");
}

#[tokio::test]
async fn more_than_was_asked_is_an_error_of_that_read() {
    for eof in [true, false] {
        let mut honest = false;
        let origin = Origin4::start(move |operation, _| match operation {
            ArgOp::Read(_) if !std::mem::replace(&mut honest, true) => {
                say(ResOp::Read(Ok(ReadOk { eof, data: Bytes::from(vec![b'x'; 5000]).into() })))
            }
            _ => Say::Usual,
        })
        .await;
        let fs = origin.mount("").await;
        read(&fs, StateidBasis::Anonymous).await.unwrap_err();
        assert_eq!(fs.nonsense_heard(), 1);
        assert_eq!(read(&fs, StateidBasis::Anonymous).await.unwrap().to_bytes().unwrap(), "data");
    }
}

/// Handles of the greatest length that differ only in the last byte: a request for one never goes to another.
#[tokio::test]
async fn the_longest_handles_are_kept_apart() {
    let long = |last: u8| {
        let mut bytes = [7; 128];
        bytes[127] = last;
        bytes
    };
    let (mut last, mut rest) = (0, directory(granted));
    let origin = Origin4::start(move |operation, all| match operation {
        ArgOp::Getfh(()) => {
            last += 1;
            say(ResOp::Getfh(Ok(nfs4::GetfhOk { object: nfs4::Handle::new(&long(last)).unwrap() })))
        }
        _ => rest(operation, all),
    })
    .await;
    let fs = origin.mount("").await;
    let mut found = Vec::new();
    for text in [&b"one"[..], b"two"] {
        found.push(
            soon(fs.lookup(&caller(), &handle(b"dir"), &name(text), vfs::Want::None))
                .await
                .unwrap()
                .node
                .handle,
        );
    }
    assert!(found[0] != found[1] && found.iter().all(|handle| handle.as_bytes().len() == 128));
    for handle in &found {
        soon(fs.read(&caller(), handle, StateidBasis::Anonymous, 0, 10)).await.unwrap();
        let Some(ArgOp::Putfh(asked)) = origin.operations("PUTFH").pop() else { panic!() };
        assert_eq!(&asked.object[..], handle.as_bytes());
    }
}

/// If the origin gives one state id to two files, one file cannot be read through the other's open.
#[tokio::test]
async fn an_open_is_good_for_its_own_file_whatever_state_id_it_has() {
    let origin = Origin4::start(move |operation, _| match operation {
        ArgOp::Open(_) => {
            let stateid = nfs4::Stateid { seqid: 1, other: [1; 12] };
            say(ResOp::Open(Ok(opened(stateid, nfs4::OpenDelegation::None))))
        }
        _ => Say::Usual,
    })
    .await;
    let fs = origin.mount("").await;
    let first = open(&fs).await;
    let other = soon(fs.read(&caller(), &handle(b"other"), StateidBasis::Open(first.id), 0, 10)).await;
    assert_eq!(other.unwrap_err().status, vfs::Status::BadStateId);
    assert_eq!(read(&fs, StateidBasis::Open(first.id)).await.unwrap().to_bytes().unwrap(), "data");
}
