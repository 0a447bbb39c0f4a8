//! Byte-range locks between clients with sessions.
//!
//! Promise: lock-exclusion

use std::time::Duration;

use protocol::nfs4::{
    ArgOp, CloseArgs, FreeStateidArgs, Handle, Limited, LockArgs, LockFailure, Locker, LocktArgs, LockuArgs,
    NfsLockType, SHORT_OWNER_BYTES, StateOwner, Stateid, Status, op,
};

use crate::setup::{Home, LEASE, Session, create};
use crate::wire::{ROOT, putfh};

fn owner(owner: &[u8]) -> StateOwner {
    StateOwner { clientid: 0, owner: Limited::new(owner.to_vec()).unwrap() }
}

fn lock(open_stateid: Stateid, by: &[u8], locktype: NfsLockType, offset: u64, length: u64) -> ArgOp {
    let locker = Locker::OpenOwner { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner: owner(by) };
    ArgOp::Lock(LockArgs { locktype, reclaim: false, offset, length, locker })
}

fn unlock(lock_stateid: Stateid, offset: u64, length: u64) -> ArgOp {
    ArgOp::Locku(LockuArgs { locktype: NfsLockType::Write, seqid: 0, lock_stateid, offset, length })
}

fn test(by: &[u8], locktype: NfsLockType, offset: u64, length: u64) -> ArgOp {
    ArgOp::Lockt(LocktArgs { locktype, offset, length, owner: owner(by) })
}

async fn denied(session: &mut Session, file: Handle, operation: ArgOp) -> protocol::nfs4::LockDenied {
    let is_lock = matches!(operation, ArgOp::Lock(_));
    let mut results = session.compound(vec![putfh(file), operation]).await;
    results.take::<op::Putfh>().unwrap();
    let failure = if is_lock {
        results.result::<op::Lock>().unwrap().unwrap_err()
    } else {
        results.result::<op::Lockt>().unwrap().unwrap_err()
    };
    match failure {
        LockFailure::Denied(denied) => denied,
        LockFailure::Other(status) => panic!("{status}"),
    }
}

#[tokio::test]
async fn a_lock_whose_owner_has_a_long_name_is_told_with_a_short_one() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let (mut one, mut two) = (incarnation.session(b"one").await, incarnation.session(b"two").await);
    let (opened, file) = one.open(create(b"file", b"opener", 3)).await;
    let (other, _) = two.open(create(b"file", b"opener", 3)).await;
    let mut told = Vec::new();
    for (at, name) in [&[b'x'; SHORT_OWNER_BYTES][..], &[b'x'; SHORT_OWNER_BYTES + 1], &[b'x'; 1024]]
        .into_iter()
        .enumerate()
    {
        let at = at as u64;
        one.last::<op::Lock>(vec![putfh(file), lock(opened, name, NfsLockType::Write, at, 1)]).await;
        let by_lock = denied(&mut two, file, lock(other, b"locker", NfsLockType::Write, at, 1)).await;
        let by_test = denied(&mut two, file, test(b"locker", NfsLockType::Write, at, 1)).await;
        assert_eq!((by_lock.offset, by_lock.owner.clientid), (at, one.clientid));
        assert_eq!(by_lock.owner, by_test.owner);
        assert!(by_lock.owner.owner.len() <= SHORT_OWNER_BYTES, "{} bytes", by_lock.owner.owner.len());
        told.push(by_lock.owner.owner.into_bytes());
    }
    assert_eq!(told[0][..], [b'x'; SHORT_OWNER_BYTES], "a short name as it is");
    assert!(told[1] != told[2] && !told[1].is_empty(), "{told:?}");
}

#[tokio::test]
async fn a_lock_keeps_other_clients_out_until_it_is_given_up() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let (mut one, mut two) = (incarnation.session(b"one").await, incarnation.session(b"two").await);
    let (opened, file) = one.open(create(b"file", b"opener", 3)).await;
    let (other, _) = two.open(create(b"file", b"opener", 3)).await;
    let first = vec![putfh(file), lock(opened, b"locker", NfsLockType::Write, 10, 10)];
    let held = one.last::<op::Lock>(first).await.lock_stateid;
    let found = denied(&mut two, file, lock(other, b"locker", NfsLockType::Read, 15, 1)).await;
    assert_eq!((found.offset, found.length, found.locktype), (10, 10, NfsLockType::Write));
    assert_eq!((found.owner.clientid, &found.owner.owner[..]), (one.clientid, &b"locker"[..]));
    let found = denied(&mut two, file, test(b"locker", NfsLockType::Write, 0, u64::MAX)).await;
    assert_eq!(found.offset, 10);
    assert_eq!(one.on(file, test(b"locker", NfsLockType::Write, 0, u64::MAX)).await, Ok(()), "its own");
    assert_eq!(two.on(file, test(b"locker", NfsLockType::Write, 20, 5)).await, Ok(()));
    let free = |stateid| vec![ArgOp::FreeStateid(FreeStateidArgs { stateid })];
    assert_eq!(one.status(free(held)).await, Err(Status::LocksHeld));
    let unlocked = one.last::<op::Locku>(vec![putfh(file), unlock(held, 10, 10)]).await.lock_stateid;
    assert_eq!((unlocked.other, unlocked.seqid), (held.other, held.seqid + 1));
    assert_eq!(two.on(file, lock(other, b"locker", NfsLockType::Write, 15, 1)).await, Ok(()));
    assert_eq!(one.status(free(unlocked)).await, Ok(()));
    assert_eq!(one.on(file, unlock(unlocked, 10, 10)).await, Err(Status::BadStateid));
}

#[tokio::test]
async fn ranges_and_modes_of_locks_are_checked() {
    let home = Home::new();
    std::fs::create_dir(home.tree().join("dir")).unwrap();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let (reading, file) = session.open(create(b"file", b"opener", 1)).await;
    for (offset, length) in [(0, 0), (u64::MAX, 2), (10, u64::MAX - 5)] {
        let locking = lock(reading, b"locker", NfsLockType::Read, offset, length);
        assert_eq!(session.on(file, locking).await, Err(Status::Inval), "{offset} {length}");
        let testing = test(b"locker", NfsLockType::Read, offset, length);
        assert_eq!(session.on(file, testing).await, Err(Status::Inval), "{offset} {length}");
    }
    let writing = lock(reading, b"locker", NfsLockType::Write, 0, 1);
    assert_eq!(session.on(file, writing).await, Err(Status::OpenMode));
    let testing = test(b"locker", NfsLockType::Read, 0, 1);
    assert_eq!(session.status(vec![ROOT, testing.clone()]).await, Err(Status::IsDir));
    assert_eq!(session.status(vec![testing]).await, Err(Status::NoFileHandle));
    let of_open = unlock(reading, 0, 1);
    assert_eq!(session.on(file, of_open).await, Err(Status::BadStateid));
}

#[tokio::test]
async fn a_close_gives_up_the_locks() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let (mut one, mut two) = (incarnation.session(b"one").await, incarnation.session(b"two").await);
    let (opened, file) = one.open(create(b"file", b"opener", 3)).await;
    let (other, _) = two.open(create(b"file", b"opener", 3)).await;
    assert_eq!(one.on(file, lock(opened, b"locker", NfsLockType::Write, 0, u64::MAX)).await, Ok(()));
    denied(&mut two, file, lock(other, b"locker", NfsLockType::Read, 0, 1)).await;
    let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: opened });
    assert_eq!(one.on(file, close).await, Ok(()));
    assert_eq!(two.on(file, lock(other, b"locker", NfsLockType::Read, 0, 1)).await, Ok(()));
}

#[tokio::test]
async fn a_silent_client_loses_its_locks_to_whoever_wants_them() {
    let home = Home::new();
    let incarnation = home.serve(Duration::from_secs(4)).await;
    let mut one = incarnation.session(b"one").await;
    let (opened, file) = one.open(create(b"file", b"opener", 3)).await;
    assert_eq!(one.on(file, lock(opened, b"locker", NfsLockType::Write, 0, 5)).await, Ok(()));
    let mut two = incarnation.session(b"two").await;
    let (other, _) = two.open(create(b"file", b"opener", 3)).await;
    denied(&mut two, file, lock(other, b"locker", NfsLockType::Write, 0, 5)).await;
    let wait = async {
        while two.on(file, lock(other, b"locker", NfsLockType::Write, 0, 5)).await != Ok(()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
    assert_eq!(one.status(vec![ROOT]).await, Err(Status::BadSession));
}
