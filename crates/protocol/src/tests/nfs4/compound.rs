//! Compounds: a server decodes one operation at a time, and a client takes one result at a time.

use xdr::{Decode, Decoder, Encode, Encoder};

use super::*;
use crate::Call;
use crate::nfs4::callback::{CbArgOp, CbCompoundHeader, CbOperation, CbRecallSlotArgs};

/// Compounds that Linux sends.
pub fn seeds() -> Vec<Seed> {
    let session = format!("{I} 1 0 0 1");
    let mount = format!("\"mount\" 2 4 53 {session} 24 10 9 2 1048858 11575866");
    let open = format!(
        "' 1 6 53 {session} 22 {H} 18 0 3 0 {O} 1 0 2 16 2 12 q0 420 0 \"new\" 10 3 45 9 2 1048858 11575866"
    );
    let reply = format!("2 \"mount\" 2 53 0 {I} 1 0 63 63 0 24 2");
    let nothing = "10021 ' 0";
    [("args", &mount[..]), ("args", &open), ("other", &reply), ("other", nothing)]
        .into_iter()
        .map(|(case, text)| {
            let bytes = wire(text);
            if case == "args" {
                let args = xdr::from_bytes::<CompoundArgs>(bytes.clone().into()).unwrap();
                assert_eq!(xdr::to_bytes(&args).unwrap(), bytes);
            } else {
                let results = xdr::from_bytes::<CompoundRes>(bytes.clone().into()).unwrap();
                assert_eq!(xdr::to_bytes(&results).unwrap(), bytes);
            }
            seed(format!("v4-compound-{case}"), 1, text)
        })
        .collect()
}

fn ops(text: &str) -> Vec<Result<ArgOp, BadArguments>> {
    let mut decoder = Decoder::new(wire(text).into());
    let mut header = CompoundHeader::decode(&mut decoder).unwrap();
    std::iter::from_fn(|| header.next(&mut decoder)).collect()
}

#[test]
fn the_program_is_nfs_and_its_call_a_compound() {
    assert_eq!((PROGRAM, VERSION), (100_003, 4));
    assert_eq!((call::Compound::NUMBER, call::Compound::NAME), (1, "COMPOUND"));
    let args = CompoundArgs::new(1, vec![ArgOp::Putrootfh(()), ArgOp::Getfh(())]).unwrap();
    assert_eq!(xdr::to_bytes(&args).unwrap(), wire("' 1 2 24 10"));
    assert!(CompoundArgs::new(1, vec![ArgOp::Getfh(()); OPERATIONS_MAX + 1]).is_none());
}

#[test]
fn operations_before_a_bad_one_are_decoded() {
    assert_eq!(ops("\"tag\" 0 2 24 10"), [Ok(ArgOp::Putrootfh(())), Ok(ArgOp::Getfh(()))]);
    assert_eq!(ops("' 0 3 24 4711 10"), [Ok(ArgOp::Putrootfh(())), Ok(ArgOp::Illegal(4711))]);
    let cut = ops("' 0 2 24 22 8 1");
    let error = xdr::Error::Truncated;
    assert_eq!(cut, [Ok(ArgOp::Putrootfh(())), Err(BadArguments { operation: Operation::Putfh, error })]);
    assert_eq!(ops("' 0 1"), [Err(BadArguments { operation: Operation::Illegal, error })]);
    let bad = ops(&format!("' 1 2 24 18 0 1 0 {O} 0 7"));
    let error = xdr::Error::Discriminant { name: "OpenClaim", value: 7 };
    assert_eq!(bad, [Ok(ArgOp::Putrootfh(())), Err(BadArguments { operation: Operation::Open, error })]);
}

#[test]
fn an_operation_of_a_later_minor_version_is_illegal() {
    assert_eq!(ops(&format!("' 0 1 53 {I} 1 0 0 0")), [Ok(ArgOp::Illegal(53))]);
    assert!(matches!(ops(&format!("' 1 1 53 {I} 1 0 0 0"))[..], [Ok(ArgOp::Sequence(_))]));
    assert_eq!(ops("' 1 1 72 \"colour\""), [Ok(ArgOp::Illegal(72))]);
    assert!(matches!(ops("' 2 1 72 \"colour\"")[..], [Ok(ArgOp::Getxattr(_))]));
    assert!(matches!(ops("' 1 1 30 q7")[..], [Ok(ArgOp::Renew(_))]));
    assert_eq!(ops("' 2 1 10044"), [Ok(ArgOp::Illegal(10044))]);
}

#[test]
fn a_count_may_promise_what_does_not_come() {
    let cut = BadArguments { operation: Operation::Illegal, error: xdr::Error::Truncated };
    assert_eq!(ops("' 0 4294967295 24"), [Ok(ArgOp::Putrootfh(())), Err(cut)]);
}

#[test]
fn callbacks_are_decoded_one_by_one() {
    let ops = |text: &str| {
        let mut decoder = Decoder::new(wire(text).into());
        let mut header = CbCompoundHeader::decode(&mut decoder).unwrap();
        assert_eq!(header.callback_ident, 77);
        std::iter::from_fn(|| header.next(&mut decoder)).collect::<Vec<_>>()
    };
    let slot = CbArgOp::RecallSlot(CbRecallSlotArgs { target_highest_slotid: 7 });
    let cut = BadArguments { operation: CbOperation::Getattr, error: xdr::Error::Truncated };
    assert_eq!(ops("' 1 77 3 10 7 3"), [Ok(slot), Err(cut)]);
    assert_eq!(ops("' 0 77 2 10 7"), [Ok(CbArgOp::Illegal(10))]);
}

/// Encodes as a server does: first the results, then the header with their status.
fn reply(results: &[ResOp]) -> bytes::Bytes {
    let mut body = Encoder::new();
    results.iter().for_each(|result| result.encode(&mut body));
    let status = results.last().map_or(Err(Status::MinorVersMismatch), ResOp::status);
    let header = CompoundResHeader { status, tag: text("tag"), results: results.len() as u32 };
    let mut encoder = Encoder::new();
    header.encode(&mut encoder);
    encoder.message(body.finish());
    encoder.finish().to_bytes().unwrap()
}

#[test]
fn results_are_taken_in_order_up_to_the_failure() {
    let denied = LockDenied { offset: 1, ..LockDenied::default() };
    let bytes = reply(&[
        ResOp::Putfh(Ok(())),
        ResOp::Getattr(Ok(GetattrOk { obj_attributes: Box::new(fattr()) })),
        ResOp::Lock(Err(LockFailure::Denied(denied.clone()))),
    ]);
    let header = CompoundResHeader::decode(&mut Decoder::new(bytes.clone())).unwrap();
    assert_eq!(header, CompoundResHeader { status: Err(Status::Denied), tag: text("tag"), results: 3 });
    let all = xdr::from_bytes::<CompoundRes>(bytes).unwrap();
    assert_eq!(all.status, Err(Status::Denied));

    let mut results = all.clone().into_results();
    assert_eq!(results.take::<op::Putfh>(), Ok(()));
    assert_eq!(*results.take::<op::Getattr>().unwrap().obj_attributes, fattr());
    let error = results.take::<op::Lock>().unwrap_err();
    assert_eq!(error, CompoundError::Failed { operation: Operation::Lock, status: Status::Denied });
    assert_eq!(error.to_string(), "LOCK: NFS4ERR_DENIED");
    assert_eq!(results.take::<op::Getfh>().unwrap_err().status(), Some(Status::Denied));

    let mut results = all.into_results();
    assert!(results.next_result().is_some() && results.next_result().is_some());
    assert_eq!(results.result::<op::Lock>(), Ok(Err(LockFailure::Denied(denied))));
}

#[test]
fn results_that_were_not_asked_for_are_told_apart() {
    let bytes = reply(&[ResOp::Putfh(Ok(()))]);
    let mut results = xdr::from_bytes::<CompoundRes>(bytes).unwrap().into_results();
    let unexpected = results.take::<op::Getfh>().unwrap_err();
    assert_eq!(
        unexpected,
        CompoundError::Unexpected { expected: Operation::Getfh, received: Some(Operation::Putfh) }
    );
    assert_eq!(unexpected.to_string(), "a result of PUTFH where GETFH was asked for");
    assert_eq!(results.take::<op::Read>().unwrap_err().to_string(), "no result of READ");

    let mut results = xdr::from_bytes::<CompoundRes>(reply(&[])).unwrap().into_results();
    assert_eq!(results.take::<op::Putfh>().unwrap_err().status(), Some(Status::MinorVersMismatch));

    let bytes = reply(&[ResOp::Illegal(Status::OpIllegal)]);
    let mut results = xdr::from_bytes::<CompoundRes>(bytes).unwrap().into_results();
    let failed = CompoundError::Failed { operation: Operation::Getxattr, status: Status::OpIllegal };
    assert_eq!(results.take::<op::Getxattr>(), Err(failed));
}

#[test]
fn too_many_results_are_refused() {
    assert!(matches!(
        xdr::from_bytes::<CompoundRes>(wire("0 ' 257").into()),
        Err(xdr::Error::TooLong { length: 257, bound: 256 })
    ));
    let mut tag = wire("1025");
    tag.extend([0; 1036]);
    assert!(matches!(
        CompoundHeader::decode(&mut Decoder::new(tag.into())),
        Err(xdr::Error::TooLong { length: 1025, bound: 1024 })
    ));
}

#[test]
fn each_operation_can_fail_with_any_status() {
    let statuses = Status::ALL.iter().copied().chain([Status::Other(4711)]);
    for status in statuses {
        for operation in Operation::ALL.iter().copied().chain([Operation::Illegal]) {
            let failed = ResOp::failed(operation, status);
            assert_eq!((failed.operation(), failed.status()), (operation, Err(status)));
            assert_eq!(xdr::from_bytes::<ResOp>(xdr::to_bytes(&failed).unwrap()), Ok(failed));
        }
    }
}

#[test]
fn operations_are_numbered_without_gaps() {
    let numbers: Vec<u32> = Operation::ALL.iter().map(|operation| *operation as u32).collect();
    assert_eq!(numbers, (3..=75).collect::<Vec<_>>());
    let of = |minor| Operation::ALL.iter().filter(|operation| operation.minor() == minor).count();
    assert_eq!((of(0), of(1), of(2)), (37, 19, 17));
    let dropped: Vec<_> =
        Operation::ALL.iter().filter(|operation| operation.is_minor0_only()).map(|it| it.name()).collect();
    assert_eq!(dropped, ["OPEN_CONFIRM", "RENEW", "SETCLIENTID", "SETCLIENTID_CONFIRM", "RELEASE_LOCKOWNER"]);
    let numbers: Vec<u32> = CbOperation::ALL.iter().map(|operation| *operation as u32).collect();
    assert_eq!(numbers, (3..=15).collect::<Vec<_>>());
    assert_eq!(Operation::from_number(10044), Some(Operation::Illegal));
    assert_eq!(Operation::from_number(76), None);
}

#[test]
fn statuses_have_the_names_and_numbers_of_the_rfc() {
    assert_eq!(Status::from(10011), Status::Expired);
    assert_eq!(Status::Xattr2Big.to_string(), "NFS4ERR_XATTR2BIG");
    assert_eq!(Status::from(4711).to_string(), "NFS4 status 4711");
    let numbers: Vec<u32> = Status::ALL.iter().map(|status| u32::from(*status)).collect();
    assert!(numbers.is_sorted() && numbers.first() == Some(&1) && numbers.last() == Some(&10096));
    // All of 10001 to 10096 except 10002 (NOT_SYNC of version 3) and 10073 (unused).
    assert_eq!(numbers.iter().filter(|number| **number > 10000).count(), 94);
}

#[test]
fn special_state_ids_are_told_apart() {
    let special = [Stateid::ANONYMOUS, Stateid::BYPASS, Stateid::CURRENT, Stateid::INVALID];
    assert!(special.iter().all(Stateid::is_special));
    assert!(!STATEID.is_special());
}
