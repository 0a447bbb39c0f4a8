//! Delegations: granted to clients that can be called back, recalled, returned and revoked.
//!
//! Promise: exclusion-under-a-lease

use std::time::Duration;

use protocol::nfs4::callback::CbArgOp;
use protocol::nfs4::{
    ArgOp, Attr, BindConnToSessionArgs, Bitmap, CbClient, ChannelDirFromClient, DelegreturnArgs,
    FreeStateidArgs, Handle, Limited, LockArgs, LockFailure, Locker, LockuArgs, Netaddr, NfsLockType,
    Nfstime, OpenArgs, OpenClaim, OpenConfirmArgs, OpenDelegation, ReadArgs, SEQ4_STATUS_CB_PATH_DOWN,
    SEQ4_STATUS_CB_PATH_DOWN_SESSION, SEQ4_STATUS_RECALLABLE_STATE_REVOKED, SetclientidArgs,
    SetclientidConfirmArgs, StateOwner, Stateid, Status, op,
};
use xdr::Opaque;

use crate::callbacks::{Listening, Manner, Reachable, TIMES, WRITTEN, called};
use crate::setup::{Home, Incarnation, LEASE, Minor0, open, owner};
use crate::wire::{ROOT, getattr, lookup, putfh};

/// A server that grants delegations whenever it may, with a file to open.
async fn granting(home: &Home, recall_deadline: Duration) -> Incarnation {
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let delegations = arbiter::Delegations::Always;
    let options = arbiter::Options { delegations, recall_deadline, ..arbiter::Options::default() };
    home.serve_with(LEASE, options).await
}

fn opening(access: u32) -> Vec<ArgOp> {
    vec![ROOT, ArgOp::Open(open(b"file", b"owner", access, 0))]
}

fn stateid_of(delegation: &OpenDelegation) -> Option<Stateid> {
    match delegation {
        OpenDelegation::Read(read) => Some(read.stateid),
        OpenDelegation::Write(write) => Some(write.stateid),
        _ => None,
    }
}

async fn file(client: &mut Reachable) -> Handle {
    client.last::<op::Getfh>(vec![ROOT, lookup(b"file"), ArgOp::Getfh(())]).await.unwrap().object
}

#[tokio::test]
async fn a_delegation_is_recalled_and_returned_before_another_writes() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    let file = file(&mut holder).await;
    let opened = holder.last::<op::Open>(opening(1)).await.unwrap();
    let OpenDelegation::Read(delegation) = opened.delegation else { panic!("{:?}", opened.delegation) };
    let read = ArgOp::Read(ReadArgs { stateid: delegation.stateid, offset: 0, count: 7 });
    assert_eq!(
        &holder.last::<op::Read>(vec![putfh(file), read.clone()]).await.unwrap().data.to_bytes().unwrap()[..],
        b"content"
    );
    let mut writer = incarnation.session(b"writer").await;
    let writing = tokio::spawn(async move { writer.status(opening(2)).await });
    let CbArgOp::Recall(recall) = holder.called().await else { panic!("a recall") };
    assert_eq!((recall.stateid, recall.fh), (delegation.stateid, file));
    assert!(!writing.is_finished());
    let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: delegation.stateid });
    assert_eq!(holder.last::<op::Delegreturn>(vec![putfh(file), returning.clone()]).await, Ok(()));
    assert_eq!(writing.await.unwrap(), Ok(()));
    assert_eq!(holder.last::<op::Delegreturn>(vec![putfh(file), returning]).await, Err(Status::BadStateid));
    assert_eq!(holder.last::<op::Read>(vec![putfh(file), read]).await.err(), Some(Status::BadStateid));
    assert_eq!(holder.status_flags, 0);
    incarnation.end(&[b"holder", b"writer"]).await;
}

#[tokio::test]
async fn a_delegation_that_is_not_returned_is_revoked_and_the_client_learns_it() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_millis(300)).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    let file = file(&mut holder).await;
    let opened = holder.last::<op::Open>(opening(1)).await.unwrap();
    let stateid = stateid_of(&opened.delegation).unwrap();
    let mut writer = incarnation.session(b"writer").await;
    assert_eq!(writer.status(opening(2)).await, Ok(()), "after the deadline");
    assert!(matches!(holder.called().await, CbArgOp::Recall(_)));
    let read = ArgOp::Read(ReadArgs { stateid, offset: 0, count: 1 });
    assert_eq!(holder.last::<op::Read>(vec![putfh(file), read]).await.err(), Some(Status::DelegRevoked));
    assert_eq!(holder.status_flags, SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    let free = || vec![ArgOp::FreeStateid(FreeStateidArgs { stateid })];
    assert_eq!(holder.last::<op::FreeStateid>(free()).await, Ok(()));
    assert_eq!(holder.last::<op::FreeStateid>(free()).await, Err(Status::BadStateid));
    assert_eq!(holder.status_flags, 0);
    incarnation.end(&[b"holder", b"writer"]).await;
}

// Promise: times-seen-elsewhere
#[tokio::test]
async fn the_holder_of_a_write_delegation_is_asked_for_attributes() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    let opened = holder.last::<op::Open>(opening(3)).await.unwrap();
    assert!(matches!(opened.delegation, OpenDelegation::Write(_)), "{:?}", opened.delegation);
    let mut other = incarnation.session(b"other").await;
    let all = [Attr::Size, Attr::TimeAccess, Attr::TimeModify];
    let told = other.last::<op::Getattr>(vec![ROOT, lookup(b"file"), getattr(&all)]).await.obj_attributes;
    assert_eq!(told.size, Some(WRITTEN.0));
    let time = |at: usize| Some(Nfstime { seconds: TIMES[at], nseconds: 7 });
    assert_eq!((told.time_modify, told.time_access), (time(0), time(1)));
    let CbArgOp::Getattr(args) = holder.called().await else { panic!("a question") };
    let asked = [Attr::Change, Attr::Size, Attr::TimeAccess, Attr::TimeMetadata, Attr::TimeModify];
    assert_eq!(args.attr_request, Bitmap::of(&asked));
    incarnation.end(&[b"holder", b"other"]).await;
}

#[tokio::test]
async fn nothing_is_delegated_to_who_cannot_be_called_back() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut session = incarnation.session(b"client").await;
    let opened = session.last::<op::Open>(opening(1)).await;
    assert_eq!(opened.delegation, OpenDelegation::None);
    // A callback path that existed and was lost.
    let other = incarnation.client(1).await;
    let bind = |client: &crate::setup::Session| {
        let (sessid, dir) = (client.id, ChannelDirFromClient::Back);
        ArgOp::BindConnToSession(BindConnToSessionArgs { sessid, dir, use_conn_in_rdma_mode: false })
    };
    let mut other = other;
    other.last::<op::BindConnToSession>(vec![bind(&session)]).await;
    let flags = async |session: &mut crate::setup::Session| {
        session.sequence += 1;
        let alone = session.sequence(session.sequence, 0, false);
        session.client.last::<op::Sequence>(vec![alone]).await.status_flags
    };
    assert_eq!(flags(&mut session).await, 0);
    drop(other);
    let down = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
    tokio::time::timeout(Duration::from_secs(10), async {
        while flags(&mut session).await != down {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_client_that_waits_for_a_lock_is_told_when_it_is_free() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut waiter = Reachable::new(&incarnation, b"waiter").await;
    let unwanted = |client: &[u8]| vec![ROOT, ArgOp::Open(open(b"file", client, 0x0403, 0))];
    let file = file(&mut waiter).await;
    let waiting = waiter.last::<op::Open>(unwanted(b"waiter")).await.unwrap().stateid;
    let mut holder = incarnation.session(b"holder").await;
    let held = holder.last::<op::Open>(unwanted(b"holder")).await.stateid;
    let lock = |open_stateid, locktype| {
        let lock_owner = StateOwner { clientid: 0, owner: Limited::new(&b"locker"[..]).unwrap() };
        let locker = Locker::OpenOwner { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
        let args = LockArgs { locktype, reclaim: false, offset: 0, length: 10, locker };
        vec![putfh(file), ArgOp::Lock(args)]
    };
    let locked = holder.last::<op::Lock>(lock(held, NfsLockType::Write)).await.lock_stateid;
    let denied = waiter.last::<op::Lock>(lock(waiting, NfsLockType::Writew)).await;
    assert!(matches!(denied, Err(LockFailure::Denied(_))), "{denied:?}");
    let unlock =
        LockuArgs { locktype: NfsLockType::Write, seqid: 0, lock_stateid: locked, offset: 0, length: 10 };
    assert_eq!(holder.on(file, ArgOp::Locku(unlock)).await, Ok(()));
    let CbArgOp::NotifyLock(notify) = waiter.called().await else { panic!("CB_NOTIFY_LOCK") };
    assert_eq!((notify.fh, &notify.lock_owner.owner[..]), (file, &b"locker"[..]));
    assert!(waiter.last::<op::Lock>(lock(waiting, NfsLockType::Writew)).await.is_ok());
    incarnation.end(&[b"holder", b"waiter"]).await;
}

#[tokio::test]
async fn an_open_by_a_delegation_recalls_nothing() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    let opened = holder.last::<op::Open>(opening(3)).await.unwrap();
    let delegation = stateid_of(&opened.delegation).unwrap();
    let file = file(&mut holder).await;
    let claim = OpenClaim::DelegCurFh(delegation);
    let again = OpenArgs { claim, ..open(b"", b"another", 3, 0) };
    let again = holder.last::<op::Open>(vec![putfh(file), ArgOp::Open(again)]).await.unwrap();
    assert_eq!(again.delegation, OpenDelegation::None);
    assert!(holder.calls.try_recv().is_err());
    let claim = OpenClaim::DelegCurFh(opened.stateid);
    let bad = OpenArgs { claim, ..open(b"", b"another", 3, 0) };
    let bad = holder.last::<op::Open>(vec![putfh(file), ArgOp::Open(bad)]).await;
    assert_eq!(bad.err(), Some(Status::BadStateid));
}

/// A client of minor version 0 that listens here, with a read delegation of `file`.
async fn listener(incarnation: &Incarnation, listening: &Listening) -> (Minor0, Stateid, Handle) {
    let mut client = incarnation.client(0).await;
    let addr = Opaque::new(listening.universal().into_bytes()).unwrap();
    let cb_location = Netaddr { netid: Opaque::new(&b"tcp"[..]).unwrap(), addr };
    let args = SetclientidArgs {
        client: owner(b"client", 1),
        callback: CbClient { cb_program: 0x4000_0000, cb_location },
        callback_ident: 77,
    };
    let given = client.last::<op::Setclientid>(vec![ArgOp::Setclientid(args)]).await;
    let confirm =
        SetclientidConfirmArgs { clientid: given.clientid, setclientid_confirm: given.setclientid_confirm };
    client.last::<op::SetclientidConfirm>(vec![ArgOp::SetclientidConfirm(confirm)]).await;
    let mut client = Minor0 { client, clientid: given.clientid };
    let (stateid, file, _) = client.open(client.open_args(b"file", 1, 1, 0)).await;
    let confirm = OpenConfirmArgs { open_stateid: stateid, seqid: 2 };
    client.client.last::<op::OpenConfirm>(vec![putfh(file), ArgOp::OpenConfirm(confirm)]).await;
    // Before the reply to CB_NULL arrives, no delegation is granted.
    let mut seqid = 2;
    let delegation = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            seqid += 1;
            let opening = vec![ROOT, ArgOp::Open(client.open_args(b"file", seqid, 1, 0))];
            let opened = client.client.last::<op::Open>(opening).await;
            if let Some(stateid) = stateid_of(&opened.delegation) {
                return stateid;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let delegation = delegation.await.unwrap();
    (client, delegation, file)
}

#[tokio::test]
async fn a_client_of_minor_version_0_is_called_back_where_it_listens() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut listening = Listening::new().await;
    let (mut client, delegation, file) = listener(&incarnation, &listening).await;
    let mut writer = incarnation.session(b"writer").await;
    let writing = tokio::spawn(async move { writer.status(opening(2)).await });
    let call = called(&mut listening.calls).await;
    let CbArgOp::Recall(recall) = call.operation else { panic!("a recall") };
    assert_eq!((call.minor, call.ident, recall.stateid, recall.fh), (0, 77, delegation, file));
    let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: delegation });
    assert_eq!(client.client.status(vec![putfh(file), returning]).await, Ok(()));
    assert_eq!(writing.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_client_of_minor_version_0_that_denies_its_delegation_is_asked_until_it_knows_of_it() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(60)).await;
    let mut listening = Listening::new().await;
    let (mut client, delegation, file) = listener(&incarnation, &listening).await;
    listening.set_manner(Manner::Refusing(Status::BadStateid));
    let mut writer = incarnation.session(b"writer").await;
    let writing = tokio::spawn(async move { writer.status(opening(2)).await });
    for denied in 0..6 {
        let CbArgOp::Recall(recall) = called(&mut listening.calls).await.operation else {
            panic!("a recall")
        };
        assert_eq!(recall.stateid, delegation, "denied {denied} times");
    }
    assert!(!writing.is_finished());
    listening.set_manner(Manner::Obliging);
    called(&mut listening.calls).await;
    let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: delegation });
    assert_eq!(client.client.status(vec![putfh(file), returning]).await, Ok(()));
    assert_eq!(writing.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_client_of_minor_version_0_that_denies_its_delegation_to_the_end_loses_it() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_millis(300)).await;
    let listening = Listening::new().await;
    let (mut client, delegation, file) = listener(&incarnation, &listening).await;
    listening.set_manner(Manner::Refusing(Status::BadHandle));
    let mut writer = incarnation.session(b"writer").await;
    let opened = tokio::time::timeout(Duration::from_secs(10), writer.status(opening(2))).await;
    assert_eq!(opened.expect("the writer hangs"), Ok(()));
    // The client still uses the lost delegation, and gets an error when it does.
    let read = ArgOp::Read(ReadArgs { stateid: delegation, offset: 0, count: 100 });
    assert_eq!(client.client.status(vec![putfh(file), read]).await, Err(Status::BadStateid));
}
