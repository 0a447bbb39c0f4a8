//! Rules of every compound: tags, minor versions, order, unknown operations.

use protocol::nfs4::{
    ArgOp, Attr, Operation, ReclaimCompleteArgs, RenewArgs, SecinfoStyle, SequenceArgs, Status,
};

use crate::wire::{ROOT, bytes, getattr, serve_root, tagged};

#[tokio::test]
async fn tags_come_back_and_must_be_utf8() {
    let served = serve_root().await;
    let mut client = served.client(0).await;
    for tag in [&b""[..], b"x", "gr\u{fc}n".as_bytes()] {
        let results = client.send(&tagged(0, tag, vec![ROOT])).await;
        assert_eq!((&results.tag[..], results.status, results.resarray.len()), (tag, Ok(()), 1));
    }
    let results = client.send(&tagged(0, b"\xff", vec![ROOT])).await;
    assert_eq!((results.status, results.resarray.len()), (Err(Status::Inval), 0));
    assert_eq!(&results.tag[..], b"\xff");
}

#[tokio::test]
async fn other_minor_versions_are_refused_and_empty_compounds_are_not() {
    let served = serve_root().await;
    let mut client = served.client(0).await;
    for minor in 0..=2 {
        let results = client.send(&tagged(minor, b"", vec![])).await;
        assert_eq!(results.status, Ok(()), "minor version {minor}");
    }
    let results = client.send(&tagged(3, b"", vec![ROOT])).await;
    assert_eq!((results.status, results.resarray.len()), (Err(Status::MinorVersMismatch), 0));
}

#[tokio::test]
async fn what_is_no_operation_is_illegal_in_every_minor_version() {
    let served = serve_root().await;
    for minor in 0..=2 {
        let mut client = served.client(minor).await;
        for number in [0, 1, 2, 76, 200, 10_044, u32::MAX] {
            let mut results = client.compound(vec![ArgOp::Illegal(number)]).await;
            let result = results.next_result().unwrap();
            assert_eq!((result.operation(), result.status()), (Operation::Illegal, Err(Status::OpIllegal)));
        }
    }
    let mut client = served.client(0).await;
    let of_1 = client.status(vec![ROOT, ArgOp::SecinfoNoName(SecinfoStyle::CurrentFh)]).await;
    assert_eq!(of_1, Err(Status::OpIllegal), "an operation of a later minor version");
}

#[tokio::test]
async fn without_a_session_there_is_little_that_may_come_first() {
    let served = serve_root().await;
    let mut client = served.client(1).await;
    for first in [ROOT, ArgOp::Getfh(()), ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })] {
        assert_eq!(client.status(vec![first]).await, Err(Status::OpNotInSession));
    }
    let renew = ArgOp::Renew(RenewArgs { clientid: 1 });
    assert_eq!(client.status(vec![renew]).await, Err(Status::OpNotInSession));
    let destroy = ArgOp::DestroyClientid(protocol::nfs4::DestroyClientidArgs { clientid: 1 });
    assert_eq!(client.status(vec![destroy, ROOT]).await, Err(Status::NotOnlyOp));
    let sequence =
        SequenceArgs { sessionid: [7; 16], sequenceid: 1, slotid: 0, highest_slotid: 0, cachethis: false };
    assert!(client.status(vec![ArgOp::Sequence(sequence), ROOT]).await.is_err(), "no such session");
}

#[tokio::test]
async fn a_compound_ends_at_its_first_failure_and_says_where() {
    let served = serve_root().await;
    let mut client = served.client(0).await;
    let results = client.send(&tagged(0, b"", vec![ROOT, ArgOp::Readlink(()), ArgOp::Getfh(())])).await;
    assert_eq!((results.status, results.resarray.len()), (Err(Status::Inval), 2));
    assert_eq!(client.status(vec![ArgOp::Getfh(())]).await, Err(Status::NoFileHandle));
    assert_eq!(client.status(vec![ArgOp::Savefh(())]).await, Err(Status::NoFileHandle));
    assert_eq!(client.status(vec![ArgOp::Restorefh(())]).await, Err(Status::RestoreFh));
    assert_eq!(client.status(vec![getattr(&[Attr::Size])]).await, Err(Status::NoFileHandle));
}

#[tokio::test]
async fn arguments_that_end_early_are_bad_xdr_behind_what_was_done() {
    let served = serve_root().await;
    let mut client = served.client(0).await;
    let complete = bytes(&tagged(0, b"", vec![ROOT, ROOT, getattr(&[Attr::Size])]));
    for cut in [4, 8, 12] {
        let reply = client.raw(&complete[..complete.len() - cut]).await;
        let results = rpc::message::parse_reply(xdr::Decoder::new(reply)).unwrap().unwrap();
        let results: protocol::nfs4::CompoundRes = xdr::from_bytes(results.rest()).unwrap();
        assert_eq!((results.status, results.resarray.len()), (Err(Status::BadXdr), 3), "{cut} bytes less");
    }
}

#[tokio::test]
async fn operations_are_counted() {
    let served = serve_root().await;
    let mut client = served.client(0).await;
    client.status(vec![ROOT, getattr(&[Attr::Size]), getattr(&[Attr::Size])]).await.unwrap();
    let counts = served.front.counts();
    assert_eq!((counts.nfs4(Operation::Putrootfh), counts.nfs4(Operation::Getattr)), (1, 2));
}
