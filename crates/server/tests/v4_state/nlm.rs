//! Hosts that lock through NLM, beside clients of version 4: exclusion, waiting, restarts of either side.
//!
//! Promise: lock-manager-callbacks
//! Promise: lock-manager-restarts

#[path = "nlm_host.rs"]
mod host;

use std::sync::Arc;
use std::time::Duration;

use protocol::nfs4::{
    ArgOp, CloseArgs, Handle, Limited, LockArgs, Locker, NfsLockType, StateOwner, Stateid, Status,
};
use protocol::nlm::{Stat, TestReply, v1, v3, v4};
use protocol::nsm;

use crate::setup::{Home, Incarnation, LEASE, Session, create};
use host::{Answer, Host, Range, args, args32, share_args, test_args, unlock_args};

/// Locks all bytes for a client of version 4.
async fn v4_lock(session: &mut Session, open_stateid: Stateid, file: Handle) -> Result<(), Status> {
    let lock_owner = StateOwner { clientid: 0, owner: Limited::new(&b"locker"[..]).unwrap() };
    let locker = Locker::OpenOwner { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
    let (locktype, reclaim, offset, length) = (NfsLockType::Write, false, 0, u64::MAX);
    session.on(file, ArgOp::Lock(LockArgs { locktype, reclaim, offset, length, locker })).await
}

/// A server with a file, and a client of version 4 that has it open.
async fn begin(home: &Home) -> (Incarnation, Session, Stateid, Handle) {
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"four").await;
    let (stateid, file) = session.open(create(b"file", b"opener", 3)).await;
    (incarnation, session, stateid, file)
}

/// Waits until the server holds this many files for hosts.
async fn files(incarnation: &Incarnation, files: usize) {
    host::until(|| incarnation.front.lock_manager().files == files).await;
}

// Promise: lock-exclusion
#[tokio::test]
async fn hosts_and_clients_of_version_4_exclude_each_other() {
    let home = Home::new();
    let (incarnation, mut four, opened, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(one.lock(&file, 2, Range::ALL).await, Stat::Denied, "another process of the host");
    assert_eq!(two.lock(&file, 1, Range::ALL).await, Stat::Denied);
    assert_eq!(v4_lock(&mut four, opened, file).await, Err(Status::Denied));
    let TestReply::Denied(holder) = two.test(&file, 1, Range::ALL).await else { panic!("it is locked") };
    assert_eq!((holder.svid, &holder.oh[..], holder.length), (1, &b"1@host"[..], 0));
    assert_eq!(one.test(&file, 1, Range::ALL).await, TestReply::Other(0), "its own lock");

    assert_eq!(one.unlock(&file, 1, Range::of(10, 10)).await, Stat::Granted);
    assert_eq!(two.lock(&file, 1, Range::of(10, 10)).await, Stat::Granted, "the hole");
    assert_eq!(two.lock(&file, 1, Range::of(19, 2)).await, Stat::Denied, "beyond the hole");
    assert_eq!(one.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(two.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    files(&incarnation, 0).await;

    assert_eq!(v4_lock(&mut four, opened, file).await, Ok(()));
    assert_eq!(one.lock(&file, 1, Range::of(5, 1)).await, Stat::Denied);
    let TestReply::Denied(holder) = one.test(&file, 1, Range::ALL).await else { panic!("it is locked") };
    assert_eq!((holder.svid, holder.exclusive, holder.offset), (0, true, 0));
}

#[tokio::test]
async fn version_1_and_3_have_offsets_of_32_bits() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.call::<v1::call::Lock>(args32(&file, 1, 5, 0)).await.stat, Stat::Granted);
    assert_eq!(two.call::<v3::call::Lock>(args32(&file, 1, 9, 1)).await.stat, Stat::Denied);
    assert_eq!(two.lock(&file, 1, Range::of(1 << 40, 1)).await, Stat::Denied, "to the end of the file");
    assert_eq!(two.call::<v3::call::Lock>(args32(&file, 1, 0, 5)).await.stat, Stat::Granted);
    assert_eq!(two.lock(b"no handle", 1, Range::ALL).await, Stat::StaleFh);
    assert_eq!(two.lock(&file, 1, Range::of(u64::MAX, 9)).await, Stat::Fbig);
}

#[tokio::test]
async fn a_waiter_is_called_when_the_lock_is_free() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, mut two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Blocked);
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Blocked, "asked again");
    assert_eq!(one.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    let granted = two.heard::<v4::call::Granted>().await;
    assert_eq!((granted.alock.svid, granted.alock.offset, granted.exclusive), (7, 0, true));
    assert_eq!(&granted.alock.fh[..], &file[..]);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Denied, "it has the lock");
    host::until(|| incarnation.front.lock_manager().waiting == 0).await;
    assert_eq!(two.unlock(&file, 7, Range::ALL).await, Stat::Granted);
    files(&incarnation, 0).await;
}

#[tokio::test]
async fn a_lost_granted_is_made_up_for_by_asking_again() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, mut two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    two.answers(Answer::Nothing);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Blocked);
    assert_eq!(one.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    two.heard::<v4::call::Granted>().await;
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Denied, "the other may have heard of it");
    assert_eq!(incarnation.front.lock_manager().waiting, 1);
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Granted);
    assert_eq!(incarnation.front.lock_manager().waiting, 0);
}

#[tokio::test]
async fn a_refused_granted_gives_the_lock_to_the_next() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, mut two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    let mut three = Host::new(&incarnation, 4).await;
    two.answers(Answer::With(Stat::Denied));
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Blocked);
    assert_eq!(three.wait_for(&file, 8, Range::ALL).await, Stat::Blocked);
    assert_eq!(one.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    two.heard::<v4::call::Granted>().await;
    three.heard::<v4::call::Granted>().await;
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Denied);
}

#[tokio::test]
async fn an_owner_that_was_denied_is_forgotten_although_another_waits() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.lock(&file, 1, Range::of(0, 10)).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Blocked);
    assert_eq!(two.lock(&file, 8, Range::of(9, 1)).await, Stat::Denied);
    assert_eq!(two.lock(&file, 9, Range::of(10, 1)).await, Stat::Granted);
    let hosts = incarnation.front.list_hosts();
    let held = incarnation.front.list_host_states(hosts[1].holder);
    let owner = bytes::Bytes::from_static(b"9@host");
    assert_eq!(held.into_iter().map(|state| state.held).collect::<Vec<_>>(), [server::Held::Locks { owner }]);
}

#[tokio::test]
async fn a_cancelled_request_gets_no_lock() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(two.cancel(&file, 7, Range::ALL).await, Stat::Denied, "there is nothing to cancel");
    assert_eq!(two.wait_for(&file, 7, Range::ALL).await, Stat::Blocked);
    assert_eq!(two.cancel(&file, 7, Range::ALL).await, Stat::Granted);
    assert_eq!(one.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    files(&incarnation, 0).await;
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
}

/// A server whose file hosts 2 and 3 have locked shared, where process 1 of host 3 waits for an upgrade.
async fn waits_for_an_upgrade(incarnation: &Incarnation, file: &Handle, answer: Answer) -> (Host, Host) {
    let (one, two) = (Host::new(incarnation, 2).await, Host::new(incarnation, 3).await);
    two.answers(answer);
    assert_eq!(one.lock_shared(file, 1, Range::of(0, 100)).await, Stat::Granted);
    assert_eq!(two.lock_shared(file, 1, Range::of(0, 50)).await, Stat::Granted);
    assert_eq!(two.wait_for(file, 1, Range::of(0, 100)).await, Stat::Blocked);
    assert_eq!(one.unlock(file, 1, Range::ALL).await, Stat::Granted);
    (one, two)
}

#[tokio::test]
async fn a_cancelled_or_refused_upgrade_leaves_the_lock_before_it() {
    for answer in [Answer::Nothing, Answer::With(Stat::Denied)] {
        let home = Home::new();
        let (incarnation, _four, _, file) = begin(&home).await;
        let (one, mut two) = waits_for_an_upgrade(&incarnation, &file, answer).await;
        two.heard::<v4::call::Granted>().await;
        if matches!(answer, Answer::Nothing) {
            assert_eq!(one.lock_shared(&file, 1, Range::of(0, 1)).await, Stat::Denied, "it is exclusive");
            assert_eq!(two.cancel(&file, 1, Range::of(0, 100)).await, Stat::Granted);
        }
        host::until(|| incarnation.front.lock_manager().waiting == 0).await;
        assert_eq!(one.lock(&file, 1, Range::of(50, 50)).await, Stat::Granted, "it was given up");
        assert_eq!(one.lock(&file, 1, Range::of(49, 1)).await, Stat::Denied, "it was held before");
        assert_eq!(one.lock_shared(&file, 1, Range::of(0, 50)).await, Stat::Granted, "it is shared again");
    }
}

#[tokio::test]
async fn an_acknowledged_upgrade_stays() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, two) = waits_for_an_upgrade(&incarnation, &file, Answer::With(Stat::Granted)).await;
    host::until(|| incarnation.front.lock_manager().waiting == 0).await;
    assert_eq!(two.cancel(&file, 1, Range::of(0, 100)).await, Stat::Denied, "nothing waits");
    assert_eq!(one.lock_shared(&file, 1, Range::of(0, 1)).await, Stat::Denied);
    assert_eq!(two.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
}

/// The answer to GRANTED is lost. The client unlocks a part of the lock, so it has the rest.
#[tokio::test]
async fn a_lock_of_which_the_client_unlocks_a_part_was_taken() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, mut two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    two.answers(Answer::Nothing);
    assert_eq!(one.lock(&file, 1, Range::of(0, 200)).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 1, Range::of(0, 100)).await, Stat::Blocked);
    assert_eq!(one.unlock(&file, 1, Range::of(0, 100)).await, Stat::Granted);
    two.heard::<v4::call::Granted>().await;
    assert_eq!(two.unlock(&file, 1, Range::of(0, 50)).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 1, Range::of(50, 150)).await, Stat::Blocked);
    assert_eq!(one.unlock(&file, 1, Range::of(100, 100)).await, Stat::Granted);
    two.heard::<v4::call::Granted>().await;
    assert_eq!(two.cancel(&file, 1, Range::of(50, 150)).await, Stat::Granted);
    assert_eq!(one.lock(&file, 1, Range::of(100, 100)).await, Stat::Granted, "it was given up");
    assert_eq!(one.lock(&file, 1, Range::of(50, 50)).await, Stat::Denied, "it was held before");
    assert_eq!(one.lock(&file, 1, Range::of(0, 50)).await, Stat::Granted, "it was unlocked");
}

#[tokio::test]
async fn messages_are_answered_by_calls() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, mut two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    two.call::<v4::call::LockMsg>(args(&file, 7, Range::ALL, true)).await;
    let res = two.heard::<v4::call::LockRes>().await;
    assert_eq!((res.stat, &res.cookie[..]), (Stat::Blocked, &b"cookie"[..]));
    two.call::<v4::call::TestMsg>(test_args(&file, 7, Range::ALL)).await;
    let res = two.heard::<v4::call::TestRes>().await;
    assert!(matches!(res.stat, TestReply::Denied(holder) if holder.svid == 1));
    assert_eq!(one.unlock(&file, 1, Range::ALL).await, Stat::Granted);
    let granted = two.heard::<v4::call::GrantedMsg>().await;
    let accepted = |cookie| protocol::nlm::Res { cookie, stat: Stat::Granted };
    one.call::<v4::call::GrantedRes>(accepted(granted.cookie.clone())).await;
    assert_eq!(incarnation.front.lock_manager().waiting, 1, "another host answers for it");
    two.call::<v4::call::GrantedRes>(accepted(granted.cookie)).await;
    assert_eq!(incarnation.front.lock_manager().waiting, 0);
    two.call::<v4::call::UnlockMsg>(unlock_args(&file, 7, Range::ALL)).await;
    assert_eq!(two.heard::<v4::call::UnlockRes>().await.stat, Stat::Granted);
    files(&incarnation, 0).await;
}

#[tokio::test]
async fn a_host_that_restarts_loses_its_locks_and_no_other_does() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    let notice = |state| nsm::StatChge { mon_name: nsm::Name::new(&b"host"[..]).unwrap(), state };
    assert_eq!(one.lock(&file, 1, Range::of(0, 1)).await, Stat::Granted);
    assert_eq!(two.lock(&file, 1, Range::of(9, 1)).await, Stat::Granted);
    assert_eq!(one.wait_for(&file, 2, Range::of(9, 1)).await, Stat::Blocked);
    one.call::<nsm::call::Notify>(notice(5)).await;
    files(&incarnation, 1).await;
    assert_eq!(incarnation.front.lock_manager().waiting, 0);
    assert_eq!(two.lock(&file, 1, Range::of(0, 1)).await, Stat::Granted);
    assert_eq!(one.lock(&file, 1, Range::of(9, 1)).await, Stat::Denied, "that of the other host stays");

    // FREE_ALL, and a lock call of a monitor with another state number, mean the same.
    let named =
        protocol::nlm::Notify { name: protocol::nlm::CallerName::new(&b"host"[..]).unwrap(), state: 7 };
    two.call::<v4::call::FreeAll>(named).await;
    files(&incarnation, 0).await;
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    let again = protocol::nlm::LockArgs { state: 77, ..args(&file, 2, Range::of(3, 1), false) };
    assert_eq!(one.call::<v4::call::Lock>(again).await.stat, Stat::Granted);
    assert_eq!(two.lock(&file, 1, Range::of(0, 1)).await, Stat::Granted);
}

#[tokio::test]
async fn locks_of_a_new_boot_are_not_released_with_those_of_the_old_one() {
    const FILES: usize = 48;
    let home = Home::new();
    let (incarnation, mut four, _, _) = begin(&home).await;
    let (one, two) = (Arc::new(Host::new(&incarnation, 2).await), Host::new(&incarnation, 3).await);
    let mut all = Vec::new();
    for number in 0..FILES {
        let (_, file) = four.open(create(format!("file {number}").as_bytes(), b"opener", 3)).await;
        assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
        all.push(file);
    }
    let mut again = tokio::task::JoinSet::new();
    for file in all.clone().into_iter().rev() {
        let one = one.clone();
        again.spawn(async move {
            let args = protocol::nlm::LockArgs { state: 5, ..args(&file, 2, Range::ALL, false) };
            one.call::<v4::call::Lock>(args).await.stat
        });
    }
    assert_eq!(again.join_all().await, [Stat::Granted; FILES]);
    for file in &all {
        assert_eq!(two.lock(file, 1, Range::ALL).await, Stat::Denied);
    }
}

#[tokio::test]
async fn hosts_reclaim_after_a_restart_and_nobody_gets_a_new_lock_meanwhile() {
    let home = Home::new();
    // The notice comes over UDP first, which the host does not hear, and some seconds later over TCP.
    let grace = Duration::from_secs(12);
    let incarnation = home.serve(grace).await;
    let mut four = incarnation.session(b"four").await;
    let (_, file) = four.open(create(b"file", b"opener", 3)).await;
    let mut one = Host::new(&incarnation, 2).await;
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    drop((incarnation, four));

    // The client of version 4 reclaims nothing, so its own grace ends with its RECLAIM_COMPLETE.
    let began = std::time::Instant::now();
    let incarnation = home.serve(grace).await;
    one.follow(&incarnation);
    let two = Host::new(&incarnation, 3).await;
    let mut four = incarnation.session(b"four").await;
    let (opened, _) = four.open(create(b"file", b"opener", 3)).await;
    assert_eq!(v4_lock(&mut four, opened, file).await, Err(Status::Grace));
    assert_eq!(two.lock(&file, 1, Range::ALL).await, Stat::DeniedGracePeriod);
    assert_eq!(two.reclaim(&file, 1, Range::ALL).await, Stat::DeniedNolocks, "it held nothing");
    assert_eq!(two.test(&file, 1, Range::ALL).await, TestReply::Other(Stat::DeniedGracePeriod.into()));

    incarnation.front.listening(incarnation.address());
    let told = one.heard::<nsm::call::Notify>().await;
    assert_eq!(told.state % 2, 1);
    assert_eq!(one.reclaim(&file, 1, Range::ALL).await, Stat::Granted);
    while two.lock(&file, 1, Range::ALL).await == Stat::DeniedGracePeriod {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() >= grace, "{:?}", began.elapsed());
    assert_eq!(two.lock(&file, 1, Range::ALL).await, Stat::Denied, "it was reclaimed");
    assert_eq!(v4_lock(&mut four, opened, file).await, Err(Status::Denied));
    assert_eq!(one.reclaim(&file, 2, Range::ALL).await, Stat::DeniedGracePeriod, "it is over");
}

#[tokio::test]
async fn a_share_denies_what_it_says() {
    let home = Home::new();
    let (incarnation, mut four, _, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    let share = |mode, access| share_args(&file, mode, access);
    assert_eq!(one.call::<v4::call::Share>(share(2, 1)).await.stat, Stat::Denied, "open for writing");
    assert_eq!(one.call::<v4::call::Share>(share(0, 3)).await.stat, Stat::Granted);
    assert_eq!(two.call::<v4::call::Share>(share(1, 2)).await.stat, Stat::Denied);
    assert_eq!(one.call::<v4::call::Unshare>(share(0, 3)).await.stat, Stat::Granted);
    files(&incarnation, 0).await;

    let (stateid, other) = four.open(create(b"other", b"opener", 3)).await;
    let closed = four.on(other, ArgOp::Close(CloseArgs { seqid: 0, open_stateid: stateid })).await;
    assert_eq!(closed, Ok(()));
    let share = share_args(&other, 3, 3);
    assert_eq!(one.call::<v4::call::Share>(share.clone()).await.stat, Stat::Granted);
    assert_eq!(one.call::<v4::call::Share>(share.clone()).await.stat, Stat::Granted, "resent");
    assert_eq!(two.call::<v4::call::Share>(share).await.stat, Stat::Denied);
}

#[tokio::test]
async fn an_administrator_sees_what_a_host_holds_and_takes_it() {
    let home = Home::new();
    let (incarnation, _four, _, file) = begin(&home).await;
    let (one, two) = (Host::new(&incarnation, 2).await, Host::new(&incarnation, 3).await);
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Granted);
    assert_eq!(two.wait_for(&file, 1, Range::ALL).await, Stat::Blocked);
    let hosts = incarnation.front.list_hosts();
    assert_eq!(
        hosts.iter().map(|host| (&host.name[..], host.files)).collect::<Vec<_>>(),
        [(&b"host"[..], 1); 2]
    );
    let held = incarnation.front.list_host_states(hosts[0].holder);
    let owner = bytes::Bytes::from_static(b"1@host");
    assert_eq!(held.into_iter().map(|state| state.held).collect::<Vec<_>>(), [server::Held::Locks { owner }]);
    incarnation.front.revoke_host(hosts[0].holder).await;
    host::until(|| incarnation.front.lock_manager().waiting == 0).await;
    assert_eq!(one.lock(&file, 1, Range::ALL).await, Stat::Denied, "the other host has it");
}
