//! The callbacks of all minor versions.

use super::*;
use crate::nfs4::callback::*;

pub fn seeds() -> Vec<Seed> {
    [delegations(), layouts(), sessions(), others()].concat()
}

fn delegations() -> Vec<Seed> {
    let known = || Box::new(Fattr { change: Some(8), size: Some(9), ..Fattr::default() });
    let get = CbGetattrArgs { fh: handle(), attr_request: Bitmap::of(&[Attr::Change, Attr::Size]) };
    let recall = CbRecallArgs { stateid: STATEID, truncate: true, fh: handle() };
    let any = CbRecallAnyArgs {
        objects_to_keep: 10,
        type_mask: Bitmap::EMPTY.with_bit(RCA4_TYPE_MASK_RDATA_DLG).with_bit(RCA4_TYPE_MASK_WDATA_DLG),
    };
    let notify = CbNotifyArgs {
        stateid: STATEID,
        fh: handle(),
        changes: list(vec![Notify { mask: Bitmap::from_words([4, 0, 0]), vals: text("gone") }]),
    };
    let wants = CbWantsCancelledArgs { contended_wants_cancelled: true, resourced_wants_cancelled: false };
    let (delegation, bytes) = super::minor0::delegations().swap_remove(1);
    vec![
        cb_arg(&CbArgOp::Getattr(get), &format!("{H} 1 24")),
        cb_res(&CbResOp::Getattr(Ok(CbGetattrOk { obj_attributes: known() })), "0 1 24 16 q8 q9"),
        cb_res(&CbResOp::Getattr(Err(Status::BadHandle)), "10001"),
        cb_arg(&CbArgOp::Recall(recall), &format!("{S} 1 {H}")),
        cb_res(&CbResOp::Recall(Ok(())), "0"),
        cb_res(&CbResOp::Recall(Err(Status::BadStateid)), "10025"),
        cb_arg(&CbArgOp::RecallAny(any), "10 1 3"),
        cb_res(&CbResOp::RecallAny(Ok(())), "0"),
        cb_arg(&CbArgOp::RecallableObjAvail(any), "10 1 3"),
        cb_res(&CbResOp::RecallableObjAvail(Err(Status::NotSupp)), "10004"),
        cb_arg(&CbArgOp::Notify(notify), &format!("{S} {H} 1 1 4 \"gone\"")),
        cb_res(&CbResOp::Notify(Ok(())), "0"),
        cb_arg(&CbArgOp::PushDeleg(CbPushDelegArgs { fh: handle(), delegation }), &format!("{H} {bytes}")),
        cb_res(&CbResOp::PushDeleg(Err(Status::RejectDeleg)), "10085"),
        cb_arg(&CbArgOp::WantsCancelled(wants), "1 0"),
        cb_res(&CbResOp::WantsCancelled(Ok(())), "0"),
    ]
}

fn layouts() -> Vec<Seed> {
    let recall = |recall| {
        CbArgOp::Layoutrecall(CbLayoutrecallArgs {
            layout_type: 4,
            iomode: LayoutIomode::Any,
            changed: true,
            recall,
        })
    };
    let file = LayoutRecall::File { fh: handle(), offset: 1, length: 2, stateid: STATEID };
    let deleted = Notify { mask: Bitmap::EMPTY.with_bit(2), vals: text("device") };
    vec![
        cb_arg(&recall(file), &format!("4 3 1 1 {H} q1 q2 {S}")),
        cb_arg(&recall(LayoutRecall::Fsid(Fsid { major: 1, minor: 2 })), "4 3 1 2 q1 q2"),
        cb_arg(&recall(LayoutRecall::All), "4 3 1 3"),
        cb_res(&CbResOp::Layoutrecall(Err(Status::NoMatchingLayout)), "10060"),
        cb_arg(
            &CbArgOp::NotifyDeviceid(CbNotifyDeviceidArgs { changes: list(vec![deleted]) }),
            "1 1 4 \"device\"",
        ),
        cb_res(&CbResOp::NotifyDeviceid(Ok(())), "0"),
    ]
}

fn sessions() -> Vec<Seed> {
    let referring = ReferringCallList {
        sessionid: ID,
        referring_calls: list(vec![ReferringCall { sequenceid: 6, slotid: 2 }]),
    };
    let sequence = CbSequenceArgs {
        sessionid: ID,
        sequenceid: 3,
        slotid: 0,
        highest_slotid: 1,
        cachethis: false,
        referring_call_lists: list(vec![referring]),
    };
    let sequenced = CbSequenceOk {
        sessionid: ID,
        sequenceid: 3,
        slotid: 0,
        highest_slotid: 15,
        target_highest_slotid: 15,
    };
    vec![
        cb_arg(&CbArgOp::Sequence(sequence), &format!("{I} 3 0 1 0 1 {I} 1 6 2")),
        cb_res(&CbResOp::Sequence(Ok(sequenced)), &format!("0 {I} 3 0 15 15")),
        cb_res(&CbResOp::Sequence(Err(Status::BadSession)), "10052"),
        cb_arg(&CbArgOp::RecallSlot(CbRecallSlotArgs { target_highest_slotid: 7 }), "7"),
        cb_res(&CbResOp::RecallSlot(Ok(())), "0"),
    ]
}

fn others() -> Vec<Seed> {
    let written =
        WriteResponse { callback_id: None, count: 3, committed: StableHow::FileSync, writeverf: VERIFIER };
    let offload =
        |offload_info| CbArgOp::Offload(CbOffloadArgs { fh: handle(), stateid: STATEID, offload_info });
    vec![
        cb_arg(
            &CbArgOp::NotifyLock(CbNotifyLockArgs { fh: handle(), lock_owner: owner() }),
            &format!("{H} {O}"),
        ),
        cb_res(&CbResOp::NotifyLock(Ok(())), "0"),
        cb_arg(&offload(crate::Reply::Ok(written)), &format!("{H} {S} 0 0 q3 2 {V}")),
        cb_arg(&offload(crate::Reply::Fail(Status::NoSpc, 4096)), &format!("{H} {S} 28 q4096")),
        cb_res(&CbResOp::Offload(Ok(())), "0"),
        cb_res(&CbResOp::Illegal(Status::OpIllegal), "10044"),
    ]
}
