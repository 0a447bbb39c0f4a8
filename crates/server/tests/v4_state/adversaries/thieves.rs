//! Peers that know the ids of another client, although they cannot guess them. They cannot use its
//! sessions, its record, its state, or the replies to it.

use std::net::Ipv4Addr;

use protocol::nfs4::{
    ArgFattr, ArgOp, BindConnToSessionArgs, ChannelDirFromClient, CloseArgs, CreateSessionArgs,
    DestroyClientidArgs, DestroySessionArgs, Fattr, Handle, OpenConfirmArgs, ReadArgs, ReleaseLockownerArgs,
    RenewArgs, Sessionid, SetattrArgs, Stateid, Status, op,
};
use rpc::{AuthSys, Credential};
use server::ExportOptions;

use crate::setup::{
    Minor0, Session, create, create_session_args, exchange_id, open, reclaim_complete, setclientid,
};
use crate::wire::{Client, ROOT, Served, lookup, open_to, open_to_all, putfh, serve, then};

const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// A peer that only another export admits.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// A peer that is admitted by every export that admits the host.
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

async fn served() -> Served {
    let both: ExportOptions = open_to("127.0.0.1,127.0.0.3");
    serve(vec![("/a", both), ("/b", open_to_all())]).await
}

fn user(uid: u32) -> Credential {
    Credential::Sys(AuthSys { uid, gid: uid, ..AuthSys::default() })
}

fn bind(sessid: Sessionid) -> ArgOp {
    let dir = ChannelDirFromClient::BackOrBoth;
    ArgOp::BindConnToSession(BindConnToSessionArgs { sessid, dir, use_conn_in_rdma_mode: false })
}

fn destroy(sessionid: Sessionid) -> ArgOp {
    ArgOp::DestroySession(DestroySessionArgs { sessionid })
}

fn destroy_client(clientid: u64) -> ArgOp {
    ArgOp::DestroyClientid(DestroyClientidArgs { clientid })
}

fn replay(session: &Session, sequence: u32) -> ArgOp {
    ArgOp::CreateSession(CreateSessionArgs { flags: 0, ..create_session_args(session.clientid, sequence, 8) })
}

/// A victim with a session and an open file.
async fn victim(served: &Served) -> Session {
    let mut session = Session::of(served.client_from(HOST, 1).await, b"victim", 1).await;
    session.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
    let made = vec![ROOT, lookup(b"a"), ArgOp::Open(create(b"file", b"opener", 3))];
    session.last::<op::Open>(made).await;
    session
}

/// The results of each attempt on a session and its client.
async fn attempts(thief: &mut Client, session: &Session, unused_slot: u32) -> Vec<Result<(), Status>> {
    let mut got = Vec::new();
    for attempt in [
        vec![bind(session.id)],
        vec![session.sequence(1, unused_slot, false), ROOT],
        vec![destroy(session.id)],
        vec![replay(session, 0)],
        vec![replay(session, 1)],
        vec![destroy_client(session.clientid)],
        vec![exchange_id(b"victim", 1, 0)],
        vec![exchange_id(b"victim", 9, 0)],
    ] {
        got.push(thief.status(attempt).await);
    }
    got
}

#[tokio::test]
async fn a_peer_of_another_export_has_no_part_in_a_session() {
    let served = served().await;
    let mut victim = victim(&served).await;
    let mut thief = served.client_from(NEIGHBOUR, 1).await;
    let (bad, stale, taken) = (Err(Status::BadSession), Err(Status::StaleClientid), Err(Status::ClidInuse));
    let expected = vec![bad, bad, bad, stale, stale, stale, taken, taken];
    assert_eq!(attempts(&mut thief, &victim, 5).await, expected);
    let again = vec![victim.sequence(victim.sequence, 0, true), ROOT];
    assert_eq!(thief.status(again).await, bad, "nor does it get a reply again");
    assert_eq!(victim.status(vec![ROOT]).await, Ok(()), "the session is whole");
    let first_in_slot = vec![victim.sequence(1, 5, false), ROOT];
    assert_eq!(victim.client.status(first_in_slot).await, Ok(()), "and so are its slots");
}

#[tokio::test]
async fn another_user_of_the_host_has_no_part_in_a_session_but_to_speak_in_it() {
    let served = served().await;
    let mut victim = victim(&served).await;
    let mut thief = served.client_from(HOST, 1).await;
    thief.credential = user(4711);
    let expected = vec![
        Err(Status::BadSession),
        Ok(()), // as every user of a client may
        Err(Status::WrongCred),
        Err(Status::SeqMisordered),
        Ok(()), // over a connection of the session it discloses nothing new
        Err(Status::WrongCred),
        Err(Status::ClidInuse),
        Err(Status::ClidInuse),
    ];
    assert_eq!(thief.status(vec![replay(&victim, 1)]).await, Err(Status::ClidInuse), "the reply of another");
    assert_eq!(attempts(&mut thief, &victim, 5).await, expected);
    assert_eq!(victim.status(vec![ROOT]).await, Ok(()));
}

#[tokio::test]
async fn a_client_comes_back_from_another_port_and_binds_another_address_of_its_own() {
    let served = served().await;
    let mut session = victim(&served).await;
    session.client = served.client_from(HOST, 1).await;
    assert_eq!(session.status(vec![ROOT]).await, Ok(()), "the same address");
    session.client = served.client_from(HOST, 1).await;
    assert_eq!(session.client.status(vec![bind(session.id)]).await, Ok(()));
    session.client = served.client_from(PEER, 1).await;
    assert_eq!(session.status(vec![ROOT]).await, Err(Status::ConnNotBoundToSession));
    session.sequence -= 1;
    assert_eq!(session.client.status(vec![bind(session.id)]).await, Ok(()));
    assert_eq!(session.status(vec![ROOT]).await, Ok(()));
    session.client = served.client_from(PEER, 1).await;
    assert_eq!(session.status(vec![ROOT]).await, Ok(()), "that is known now");
    assert_eq!(session.client.status(vec![destroy(session.id)]).await, Ok(()));
}

/// A victim of minor version 0, its state id before and after OPEN_CONFIRM, and the filehandle.
async fn victim0(served: &Served) -> (Minor0, Stateid, Stateid, Handle) {
    let mut client = Minor0::of(served.client_from(HOST, 0).await, b"victim", 1).await;
    client.client.credential = user(1001);
    std::fs::write(served.tree().join("file"), b"content").unwrap();
    std::fs::set_permissions(served.tree().join("file"), std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .unwrap();
    let opening = ArgOp::Open(client.open_args(b"file", 7, 3, 0));
    let mut results = client.client.compound(vec![ROOT, lookup(b"a"), opening, ArgOp::Getfh(())]).await;
    results.take::<op::Putrootfh>().unwrap();
    results.take::<op::Lookup>().unwrap();
    let first = results.take::<op::Open>().unwrap().stateid;
    let file = results.take::<op::Getfh>().unwrap().object;
    let confirmed = client.client.last::<op::OpenConfirm>(vec![putfh(file), confirm(first)]).await;
    (client, first, confirmed.open_stateid, file)
}

fn confirm(open_stateid: Stateid) -> ArgOp {
    ArgOp::OpenConfirm(OpenConfirmArgs { open_stateid, seqid: 8 })
}

fn close(open_stateid: Stateid) -> ArgOp {
    ArgOp::Close(CloseArgs { seqid: 9, open_stateid })
}

fn read(stateid: Stateid) -> ArgOp {
    ArgOp::Read(ReadArgs { stateid, offset: 0, count: 10 })
}

#[tokio::test]
async fn the_last_reply_to_an_owner_of_minor_version_0_is_for_its_user_and_client() {
    let served = served().await;
    let (mut victim, first, now, file) = victim0(&served).await;
    let mut thief = served.client_from(NEIGHBOUR, 0).await;
    thief.credential = user(1001);
    let replaying = vec![ROOT, confirm(first), ArgOp::Getfh(())];
    assert_eq!(thief.status(replaying.clone()).await, Err(Status::BadStateid));
    assert_eq!(thief.status(then(replaying.clone(), [close(now)])).await, Err(Status::BadStateid));
    assert_eq!(thief.status(vec![ROOT, close(now)]).await, Err(Status::BadStateid));
    let mut other = served.client_from(HOST, 0).await;
    other.credential = user(4711);
    assert_eq!(other.status(replaying.clone()).await, Err(Status::BadSeqid), "another user");
    other.credential = user(1001);
    assert_eq!(other.status(replaying).await, Ok(()), "the client, from another port");
    assert_eq!(victim.client.status(vec![putfh(file), read(now)]).await, Ok(()));
    assert_eq!(victim.client.status(vec![putfh(file), close(now)]).await, Ok(()));
}

#[tokio::test]
async fn a_client_of_minor_version_0_is_for_peers_that_reach_it() {
    let served = served().await;
    let (mut victim, ..) = victim0(&served).await;
    let mut thief = served.client_from(NEIGHBOUR, 0).await;
    thief.credential = user(0);
    let renew = || ArgOp::Renew(RenewArgs { clientid: victim.clientid });
    let release = ArgOp::ReleaseLockowner(ReleaseLockownerArgs { lock_owner: victim.owner(b"locker") });
    let opening = ArgOp::Open(victim.open_args(b"file", 9, 3, 0));
    for operations in [vec![renew()], vec![release], vec![ROOT, lookup(b"b"), opening]] {
        assert_eq!(thief.status(operations).await, Err(Status::StaleClientid));
    }
    let named = vec![setclientid(b"victim", 9)];
    assert_eq!(thief.status(named).await, Err(Status::ClidInuse));
    assert_eq!(victim.client.status(vec![renew()]).await, Ok(()));
}

#[tokio::test]
async fn state_of_a_session_is_none_in_minor_version_0() {
    let served = served().await;
    let mut session = victim(&served).await;
    let opening = ArgOp::Open(open(b"file", b"opener", 3, 0));
    let mut results = session.compound(vec![ROOT, lookup(b"a"), opening, ArgOp::Getfh(())]).await;
    results.take::<op::Putrootfh>().unwrap();
    results.take::<op::Lookup>().unwrap();
    let stateid = results.take::<op::Open>().unwrap().stateid;
    let file = results.take::<op::Getfh>().unwrap().object;
    let mut without = served.client_from(HOST, 0).await;
    for operation in [read(stateid), close(stateid)] {
        assert_eq!(without.status(vec![putfh(file), operation]).await, Err(Status::BadStateid));
    }
    assert_eq!(session.on(file, read(stateid)).await, Ok(()));
}

#[tokio::test]
async fn another_users_open_lets_nobody_truncate_its_file() {
    if std::os::unix::fs::chown(tempfile::tempdir().unwrap().path(), Some(1001), None).is_err() {
        return; // only root can act as several users
    }
    let served = served().await;
    let mut session = victim(&served).await;
    let path = served.tree().join("private");
    std::fs::write(&path, b"private").unwrap();
    std::os::unix::fs::chown(&path, Some(1001), Some(1001)).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    session.client.credential = user(1001);
    let opening = ArgOp::Open(open(b"private", b"opener", 3, 0));
    let mut results = session.compound(vec![ROOT, lookup(b"a"), opening, ArgOp::Getfh(())]).await;
    results.take::<op::Putrootfh>().unwrap();
    results.take::<op::Lookup>().unwrap();
    let stateid = results.take::<op::Open>().unwrap().stateid;
    let file = results.take::<op::Getfh>().unwrap().object;
    let cut = |stateid| {
        let size = Fattr { size: Some(0), ..Fattr::default() };
        ArgOp::Setattr(SetattrArgs { stateid, obj_attributes: ArgFattr::from(size) })
    };
    session.client.credential = user(1002);
    for stateid in [Stateid::ANONYMOUS, stateid] {
        assert_eq!(session.on(file, cut(stateid)).await, Err(Status::Access));
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"private");
    session.client.credential = user(1001);
    assert_eq!(session.on(file, cut(Stateid::ANONYMOUS)).await, Ok(()));
}
