//! Minor version 0: owners and their seqids.

use protocol::nfs4::{
    ArgOp, CloseArgs, LockArgs, Locker, NfsLockType, OpenArgs, OpenConfirmArgs, OpenDowngradeArgs, ReadArgs,
    ReleaseLockownerArgs, StateOwner, Stateid, Status, op,
};

use crate::setup::{Home, LEASE, Minor0};
use crate::wire::{ROOT, putfh};

fn confirm(open_stateid: Stateid, seqid: u32) -> ArgOp {
    ArgOp::OpenConfirm(OpenConfirmArgs { open_stateid, seqid })
}

fn close(open_stateid: Stateid, seqid: u32) -> ArgOp {
    ArgOp::Close(CloseArgs { seqid, open_stateid })
}

fn read(stateid: Stateid) -> ArgOp {
    ArgOp::Read(ReadArgs { stateid, offset: 0, count: 10 })
}

/// A client that has opened and confirmed `file` with seqids 1 and 2.
async fn opened(
    incarnation: &crate::setup::Incarnation,
    ownerid: &[u8],
) -> (Minor0, Stateid, protocol::nfs4::Handle) {
    let mut client = incarnation.minor0(ownerid, 1).await;
    let (stateid, file, _) = client.open(client.open_args(b"file", 1, 3, 0)).await;
    let confirmed = client.client.last::<op::OpenConfirm>(vec![putfh(file), confirm(stateid, 2)]).await;
    (client, confirmed.open_stateid, file)
}

#[tokio::test]
async fn an_owner_is_confirmed_once() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.minor0(b"client", 1).await;
    let (stateid, file, rflags) = client.open(client.open_args(b"file", 5, 1, 0)).await;
    assert_ne!(rflags & protocol::nfs4::OPEN4_RESULT_CONFIRM, 0);
    assert_eq!(client.client.status(vec![putfh(file), read(stateid)]).await, Err(Status::BadStateid));
    assert_eq!(client.client.status(vec![putfh(file), confirm(stateid, 7)]).await, Err(Status::BadSeqid));
    let confirmed = client.client.last::<op::OpenConfirm>(vec![putfh(file), confirm(stateid, 6)]).await;
    assert_eq!(confirmed.open_stateid.seqid, stateid.seqid + 1);
    let again = client.client.last::<op::OpenConfirm>(vec![putfh(file), confirm(stateid, 6)]).await;
    assert_eq!(again, confirmed, "a retry");
    assert_eq!(client.client.status(vec![putfh(file), read(confirmed.open_stateid)]).await, Ok(()));
    assert_eq!(client.client.status(vec![putfh(file), read(stateid)]).await, Err(Status::OldStateid));
    let twice = client.client.status(vec![putfh(file), confirm(confirmed.open_stateid, 7)]).await;
    assert_eq!(twice, Err(Status::BadStateid));
    let (_, _, rflags) = client.open(client.open_args(b"file", 7, 1, 0)).await;
    assert_eq!(rflags & protocol::nfs4::OPEN4_RESULT_CONFIRM, 0);
}

#[tokio::test]
async fn a_retry_gets_the_last_answer_and_its_handle() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let (mut client, stateid, file) = opened(&incarnation, b"client").await;
    let denied = OpenArgs { share_access: 0, ..client.open_args(b"file", 3, 1, 0) };
    assert_eq!(client.client.status(vec![ROOT, ArgOp::Open(denied)]).await, Err(Status::Inval));
    let (wider, ..) = client.open(client.open_args(b"file", 4, 1, 0)).await;
    assert_eq!(client.open(client.open_args(b"file", 4, 1, 0)).await.0, wider);
    assert_eq!(client.open(client.open_args(b"file", 4, 1, 0)).await.1, file, "the handle too");
    let skipped = vec![ROOT, ArgOp::Open(client.open_args(b"file", 6, 1, 0))];
    assert_eq!(client.client.status(skipped).await, Err(Status::BadSeqid));
    assert_eq!(client.client.status(vec![putfh(file), close(stateid, 5)]).await, Err(Status::OldStateid));
    let closed = client.client.last::<op::Close>(vec![putfh(file), close(wider, 6)]).await;
    let again = client.client.last::<op::Close>(vec![putfh(file), close(wider, 6)]).await;
    assert_eq!(again, closed);
    assert_eq!(client.client.status(vec![putfh(file), close(wider, 7)]).await, Err(Status::BadStateid));
    assert_eq!(client.client.status(vec![putfh(file), read(wider)]).await, Err(Status::BadStateid));
}

#[tokio::test]
async fn state_of_others_and_of_nobody_is_told_apart() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let (mut client, stateid, file) = opened(&incarnation, b"client").await;
    let stale = Stateid { other: [1; 12], ..stateid };
    assert_eq!(client.client.status(vec![putfh(file), read(stale)]).await, Err(Status::StaleStateid));
    assert_eq!(client.client.status(vec![putfh(file), close(stale, 3)]).await, Err(Status::StaleStateid));
    let unknown = vec![
        ROOT,
        ArgOp::Open(OpenArgs { owner: StateOwner::default(), ..client.open_args(b"file", 3, 1, 0) }),
    ];
    assert_eq!(client.client.status(unknown).await, Err(Status::StaleClientid));
    incarnation.minor0(b"client", 2).await;
    assert_eq!(client.client.status(vec![putfh(file), read(stateid)]).await, Err(Status::Expired));
}

#[tokio::test]
async fn lock_owners_count_for_themselves() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let (mut client, stateid, file) = opened(&incarnation, b"client").await;
    let first = |client: &Minor0, open_seqid, lock_seqid, offset| {
        let locker = Locker::OpenOwner {
            open_seqid,
            open_stateid: stateid,
            lock_seqid,
            lock_owner: client.owner(b"locker"),
        };
        let args = LockArgs { locktype: NfsLockType::Write, reclaim: false, offset, length: 1, locker };
        vec![putfh(file), ArgOp::Lock(args)]
    };
    let lock = first(&client, 3, 20, 0);
    let locked = client.client.last::<op::Lock>(lock.clone()).await.lock_stateid;
    assert_eq!(client.client.last::<op::Lock>(lock).await.lock_stateid, locked, "a retry");
    let again = |lock_seqid, lock_stateid, offset| {
        let locker = Locker::LockOwner { lock_stateid, lock_seqid };
        let args = LockArgs { locktype: NfsLockType::Write, reclaim: false, offset, length: 1, locker };
        vec![putfh(file), ArgOp::Lock(args)]
    };
    assert_eq!(client.client.status(again(24, locked, 5)).await, Err(Status::BadSeqid));
    let endless = LockArgs {
        locktype: NfsLockType::Write,
        reclaim: false,
        offset: 5,
        length: 0,
        locker: Locker::LockOwner { lock_stateid: locked, lock_seqid: 21 },
    };
    let endless = client.client.status(vec![putfh(file), ArgOp::Lock(endless)]).await;
    assert_eq!(endless, Err(Status::Inval), "which counts");
    let second = client.client.last::<op::Lock>(again(22, locked, 5)).await.lock_stateid;
    assert_eq!((second.other, second.seqid), (locked.other, locked.seqid + 1));
    let release = |client: &Minor0| {
        vec![ArgOp::ReleaseLockowner(ReleaseLockownerArgs { lock_owner: client.owner(b"locker") })]
    };
    let releasing = release(&client);
    assert_eq!(client.client.status(releasing.clone()).await, Err(Status::LocksHeld));
    let unlock = protocol::nfs4::LockuArgs {
        locktype: NfsLockType::Write,
        seqid: 23,
        lock_stateid: second,
        offset: 0,
        length: u64::MAX,
    };
    assert_eq!(client.client.status(vec![putfh(file), ArgOp::Locku(unlock)]).await, Ok(()));
    assert_eq!(client.client.status(releasing).await, Ok(()));
    assert_eq!(client.client.status(again(24, second, 0)).await, Err(Status::BadStateid));
    let narrow = OpenDowngradeArgs { open_stateid: stateid, seqid: 4, share_access: 3, share_deny: 0 };
    assert_eq!(client.client.status(vec![putfh(file), ArgOp::OpenDowngrade(narrow)]).await, Ok(()));
}

#[tokio::test]
async fn a_lock_owner_whose_first_lock_was_denied_may_begin_again() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let (mut holder, held, file) = opened(&incarnation, b"holder").await;
    let (mut client, stateid, _) = opened(&incarnation, b"client").await;
    // Linux does this: it forgets a lock owner that has got no lock, and gives the name to the next lock
    // owner.
    let first = |client: &Minor0, open_stateid, open_seqid| {
        let lock_owner = client.owner(b"locker");
        let locker = Locker::OpenOwner { open_seqid, open_stateid, lock_seqid: 0, lock_owner };
        let (locktype, reclaim) = (NfsLockType::Write, false);
        vec![putfh(file), ArgOp::Lock(LockArgs { locktype, reclaim, offset: 0, length: 10, locker })]
    };
    let locked = holder.client.last::<op::Lock>(first(&holder, held, 3)).await.lock_stateid;
    for open_seqid in [3, 4] {
        let denied = client.client.status(first(&client, stateid, open_seqid)).await;
        assert_eq!(denied, Err(Status::Denied), "{open_seqid}");
    }
    let unlock = protocol::nfs4::LockuArgs {
        locktype: NfsLockType::Write,
        seqid: 1,
        lock_stateid: locked,
        offset: 0,
        length: 10,
    };
    assert_eq!(holder.client.status(vec![putfh(file), ArgOp::Locku(unlock)]).await, Ok(()));
    assert_eq!(client.client.status(first(&client, stateid, 5)).await, Ok(()));
    assert_eq!(
        client.client.status(first(&client, stateid, 6)).await,
        Err(Status::BadSeqid),
        "it has some now"
    );
}
