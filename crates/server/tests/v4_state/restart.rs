//! What clients reclaim after a restart, and when. A call that was on its way takes effect once.
//!
//! Promise: calls-that-take-effect-once
//! Promise: grace-period

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use protocol::nfs4::{
    ArgOp, CompoundArgs, CreateArgs, Createtype, Handle, Limited, LinkArgs, Linktext, LockArgs, Locker,
    NfsLockType, OpenArgs, OpenClaim, OpenConfirmArgs, OpenDelegationType, ReadArgs, RemoveArgs, RenameArgs,
    StateOwner, Stateid, Status, op,
};

use rpc::message::CallHeader;
use rpc::replay::{Admission, ReplyLifetime, Sender};
use rpc::{AuthSys, Credential, ReplyCache};

use crate::setup::{Home, LEASE, Session, create, exchange_id, open, reclaim_complete, setclientid};
use crate::wire::{Client, ROOT, lookup, name, putfh};

pub fn reclaim(owner: &[u8], file: Handle) -> Vec<ArgOp> {
    let claim = OpenClaim::Previous(OpenDelegationType::None);
    vec![putfh(file), ArgOp::Open(OpenArgs { claim, ..open(b"", owner, 3, 0) })]
}

fn opening(owner: &[u8]) -> Vec<ArgOp> {
    vec![ROOT, ArgOp::Open(create(b"file", owner, 3))]
}

#[tokio::test]
async fn who_held_state_reclaims_it_and_the_others_wait() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut holder = incarnation.session(b"holder").await;
    let (old, file) = holder.open(create(b"file", b"owner", 3)).await;
    drop((incarnation, holder));

    let incarnation = home.serve(LEASE).await;
    let mut stranger = incarnation.reclaiming(b"stranger", 1).await;
    assert_eq!(stranger.status(reclaim(b"owner", file)).await, Err(Status::ReclaimBad));
    stranger.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
    assert_eq!(stranger.status(opening(b"owner")).await, Err(Status::Grace));
    let anonymous = ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 1 });
    assert_eq!(stranger.on(file, anonymous).await, Err(Status::Grace));
    let remove = vec![ROOT, ArgOp::Remove(RemoveArgs { target: name(b"file") })];
    assert_eq!(stranger.status(remove).await, Err(Status::Grace), "it may be delegated");
    let make = |objtype| {
        let createattrs = protocol::nfs4::ArgFattr::default();
        vec![ROOT, ArgOp::Create(CreateArgs { objtype, objname: name(b"new"), createattrs })]
    };
    for kind in [Createtype::Dir, Createtype::Fifo, Createtype::Lnk(Linktext::new(&b"to"[..]).unwrap())] {
        let made = stranger.status(make(kind.clone())).await;
        assert_eq!(made, Err(Status::Grace), "the directory may be delegated: {kind:?}");
    }
    assert!(!home.tree().join("new").exists());

    let mut holder = incarnation.reclaiming(b"holder", 1).await;
    let read = |stateid| ArgOp::Read(ReadArgs { stateid, offset: 0, count: 1 });
    assert_eq!(holder.on(file, read(old)).await, Err(Status::BadStateid), "of the life before");
    let reclaimed = holder.last::<op::Open>(reclaim(b"owner", file)).await;
    assert_eq!(holder.on(file, read(reclaimed.stateid)).await, Ok(()));
    let locker = Locker::OpenOwner {
        open_seqid: 0,
        open_stateid: reclaimed.stateid,
        lock_seqid: 0,
        lock_owner: StateOwner { clientid: 0, owner: Limited::new(&b"locker"[..]).unwrap() },
    };
    let lock = |reclaim, locker| {
        ArgOp::Lock(LockArgs { locktype: NfsLockType::Write, reclaim, offset: 0, length: 1, locker })
    };
    assert_eq!(holder.on(file, lock(false, locker.clone())).await, Err(Status::Grace));
    assert_eq!(holder.on(file, lock(true, locker.clone())).await, Ok(()));
    holder.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;

    // All clients that held state are done, so grace is over.
    assert_eq!(holder.status(reclaim(b"owner", file)).await, Err(Status::NoGrace));
    assert_eq!(stranger.status(opening(b"owner")).await, Ok(()));
    assert_eq!(stranger.status(make(Createtype::Dir)).await, Ok(()));
}

#[tokio::test]
async fn only_the_principal_that_held_state_comes_back_under_its_name() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut holder = incarnation.session(b"holder").await;
    let (_, file) = holder.open(create(b"file", b"owner", 3)).await;
    let mut older = incarnation.minor0(b"older", 1).await;
    older.open(older.open_args(b"file", 1, 3, 0)).await;
    drop((incarnation, holder, older));

    let incarnation = home.serve(LEASE).await;
    for (minor, operation) in [(1, exchange_id(b"holder", 1, 0)), (0, setclientid(b"older", 1))] {
        let mut thief = incarnation.client(minor).await;
        thief.credential = Credential::Sys(AuthSys { uid: 4711, ..AuthSys::default() });
        assert_eq!(thief.status(vec![operation]).await, Err(Status::ClidInuse));
    }
    let mut holder = incarnation.reclaiming(b"holder", 1).await;
    assert_eq!(holder.status(reclaim(b"owner", file)).await, Ok(()));
}

#[tokio::test]
async fn grace_ends_by_itself_and_who_stayed_away_has_lost() {
    let home = Home::new();
    let lease = Duration::from_millis(400);
    let incarnation = home.serve(lease).await;
    let mut absent = incarnation.session(b"absent").await;
    let (_, file) = absent.open(create(b"file", b"owner", 3)).await;
    drop((incarnation, absent));

    let incarnation = home.serve(lease).await;
    let mut other = incarnation.session(b"other").await;
    assert_eq!(other.status(opening(b"owner")).await, Err(Status::Grace));
    tokio::time::timeout(Duration::from_secs(5), async {
        while other.status(opening(b"owner")).await == Err(Status::Grace) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let mut absent = incarnation.reclaiming(b"absent", 1).await;
    assert_eq!(absent.status(reclaim(b"owner", file)).await, Err(Status::NoGrace));
    drop((incarnation, absent, other));

    let incarnation = home.serve(LEASE).await;
    let mut absent = incarnation.reclaiming(b"absent", 1).await;
    assert_eq!(absent.status(reclaim(b"owner", file)).await, Err(Status::ReclaimBad), "of two lives before");
}

#[tokio::test]
async fn a_server_that_had_no_clients_has_no_grace() {
    let home = Home::new();
    drop(home.serve(LEASE).await);
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    assert_eq!(session.status(opening(b"owner")).await, Ok(()));
}

#[tokio::test]
async fn clients_of_minor_version_0_reclaim_too() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.minor0(b"client", 1).await;
    let (stateid, file, _) = client.open(client.open_args(b"file", 1, 3, 0)).await;
    let old = client.clientid;
    drop(incarnation);

    let incarnation = home.serve(Duration::from_secs(3)).await;
    let mut client = incarnation.minor0(b"client", 1).await;
    assert_ne!(client.clientid, old);
    let read = |stateid| vec![putfh(file), ArgOp::Read(ReadArgs { stateid, offset: 0, count: 1 })];
    assert_eq!(client.client.status(read(stateid)).await, Err(Status::StaleStateid));
    let renew = vec![ArgOp::Renew(protocol::nfs4::RenewArgs { clientid: old })];
    assert_eq!(client.client.status(renew).await, Err(Status::StaleClientid));
    let new = vec![ROOT, ArgOp::Open(client.open_args(b"file", 1, 3, 0))];
    assert_eq!(client.client.status(new).await, Err(Status::Grace));
    let claim = OpenClaim::Previous(OpenDelegationType::None);
    let args = OpenArgs { claim, ..client.open_args(b"", 2, 3, 0) };
    let reclaimed = client.client.last::<op::Open>(vec![putfh(file), ArgOp::Open(args)]).await;
    assert_eq!(reclaimed.rflags & protocol::nfs4::OPEN4_RESULT_CONFIRM, 0);
    assert_eq!(client.client.status(read(reclaimed.stateid)).await, Ok(()));
    let confirm = OpenConfirmArgs { open_stateid: reclaimed.stateid, seqid: 3 };
    let needless = client.client.status(vec![putfh(file), ArgOp::OpenConfirm(confirm)]).await;
    assert_eq!(needless, Err(Status::BadStateid));
}

fn rename() -> Vec<ArgOp> {
    let args = RenameArgs { oldname: name(b"old"), newname: name(b"new") };
    vec![ROOT, ArgOp::Savefh(()), ROOT, ArgOp::Rename(args)]
}

fn link() -> Vec<ArgOp> {
    vec![ROOT, lookup(b"file"), ArgOp::Savefh(()), ROOT, ArgOp::Link(LinkArgs { newname: name(b"link") })]
}

fn remove() -> Vec<ArgOp> {
    vec![ROOT, ArgOp::Remove(RemoveArgs { target: name(b"removed") })]
}

fn mkdir() -> Vec<ArgOp> {
    let (objtype, createattrs) = (Createtype::Dir, protocol::nfs4::ArgFattr::default());
    vec![ROOT, ArgOp::Create(CreateArgs { objtype, objname: name(b"made"), createattrs })]
}

/// Does to the tree what a server did before it was killed. The call is logged as begun, and not as answered.
fn done_and_not_answered(home: &Home, operations: &[ArgOp], arguments: &[u8]) {
    let at = |name| home.tree().join(name);
    match operations.last().unwrap() {
        ArgOp::Rename(_) => fs::rename(at("old"), at("new")).unwrap(),
        ArgOp::Link(_) => fs::hard_link(at("file"), at("link")).unwrap(),
        ArgOp::Remove(_) => fs::remove_file(at("removed")).unwrap(),
        ArgOp::Create(_) => fs::create_dir(at("made")).unwrap(),
        other => panic!("{other:?}"),
    }
    let cache = ReplyCache::open(home.state.path()).unwrap();
    let sender = Sender { address: (Ipv4Addr::LOCALHOST, 700).into(), connection: None };
    let credential = Credential::Sys(AuthSys::default());
    let header = CallHeader { xid: 1, program: 100_003, version: 4, procedure: 1, credential };
    let admitted = cache.admit(sender, &header, (arguments, None), ReplyLifetime::UntilHeard);
    let Admission::Execute { slot, .. } = admitted else { panic!("a new call") };
    std::mem::forget(slot);
}

async fn sent_by(
    minor: u32,
    old: &mut Client,
    holder: &mut Session,
    operations: &[ArgOp],
) -> Result<(), Status> {
    if minor == 0 { old.status(operations.to_vec()).await } else { holder.status(operations.to_vec()).await }
}

/// As Linux's client does it: after the restart it sends the call again as it was, then in a new session,
/// and once more when the grace period is over.
#[tokio::test]
async fn a_call_that_was_on_its_way_takes_effect_once_in_the_next_session() {
    for minor in [0, 1, 2] {
        for operations in [rename(), link(), remove(), mkdir()] {
            let home = Home::new();
            for name in ["file", "old", "removed"] {
                fs::write(home.tree().join(name), b"content").unwrap();
            }
            let incarnation = home.serve(LEASE).await;
            let mut holder = incarnation.session(b"holder").await;
            holder.open(create(b"held", b"owner", 3)).await;
            let sequence = (minor > 0).then(|| holder.sequence(holder.sequence + 1, 0, true));
            let sent: Vec<_> = sequence.into_iter().chain(operations.clone()).collect();
            let arguments = xdr::to_bytes(&CompoundArgs::new(minor, sent.clone()).unwrap()).unwrap();
            drop((incarnation, holder));
            done_and_not_answered(&home, &operations, &arguments);

            let incarnation = home.serve(LEASE).await;
            let lost = if minor == 0 { Status::Grace } else { Status::BadSession };
            assert_eq!(incarnation.client(minor).await.status(sent).await, Err(lost));
            let mut holder = incarnation.reclaiming(b"holder", 1).await;
            let mut old = incarnation.client(0).await;
            assert_eq!(old.status(vec![ROOT, lookup(b"nothing")]).await, Err(Status::NoEnt));
            assert_eq!(sent_by(minor, &mut old, &mut holder, &operations).await, Err(Status::Grace));
            holder.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
            let outcome = sent_by(minor, &mut old, &mut holder, &operations).await;
            assert_eq!(outcome, Ok(()), "minor version {minor}: {operations:?}");
            // The call is over. The next one of its kind is another.
            let next = sent_by(minor, &mut old, &mut holder, &operations).await;
            assert!(matches!(next, Err(Status::Exist | Status::NoEnt)), "{next:?}");
        }
    }
}
