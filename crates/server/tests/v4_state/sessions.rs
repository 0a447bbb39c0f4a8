//! Sessions: created once, with requests executed once, and required for most operations.

use protocol::nfs4::{
    ArgOp, Attr, BindConnToSessionArgs, ChannelAttrs, ChannelDirFromClient, ChannelDirFromServer,
    CompoundArgs, CreateSessionArgs, Createtype, DestroyClientidArgs, DestroySessionArgs, Fattr, Status, op,
};

use crate::setup::{
    Home, LEASE, create_session, create_session_args, created, exchange_id, open, reclaim_complete,
};
use crate::wire::{ROOT, create, getattr, lookup, tagged};

fn mkdir(name: &[u8]) -> ArgOp {
    create(name, Createtype::Dir, Fattr { mode: Some(0o755), ..Fattr::default() })
}

#[tokio::test]
async fn a_retry_gets_the_reply_and_does_nothing() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let make = |session: &crate::setup::Session, cachethis| {
        vec![session.sequence(2, 0, cachethis), ROOT, mkdir(b"dir")]
    };
    let first = session.client.send(&CompoundArgs::new(1, make(&session, true)).unwrap()).await;
    assert_eq!(first.status, Ok(()));
    std::fs::remove_dir(home.tree().join("dir")).unwrap();
    // On another connection, as after the loss of one, and with another tag.
    let mut elsewhere = incarnation.client(1).await;
    let again = elsewhere.send(&tagged(1, b"again", make(&session, true))).await;
    assert_eq!((again.resarray, &again.tag[..]), (first.resarray, b"again".as_slice()));
    assert!(!home.tree().join("dir").exists());
    let other = elsewhere.status(vec![session.sequence(2, 0, true), ROOT, mkdir(b"other")]).await;
    assert_eq!(other, Err(Status::SeqFalseRetry));
}

#[tokio::test]
async fn a_retry_of_what_was_not_to_be_cached_is_told_so() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let make = vec![session.sequence(2, 0, false), ROOT, mkdir(b"dir")];
    assert_eq!(session.client.status(make.clone()).await, Ok(()));
    let again = session.client.send(&CompoundArgs::new(1, make).unwrap()).await;
    assert_eq!((again.status, again.resarray.len()), (Err(Status::RetryUncachedRep), 2));
    assert_eq!(again.resarray[0].status(), Ok(()));
    let alone = vec![session.sequence(3, 0, false)];
    assert_eq!(session.client.status(alone.clone()).await, Ok(()));
    assert_eq!(session.client.status(alone).await, Ok(()), "SEQUENCE alone is always cached");
}

#[tokio::test]
async fn sequence_ids_and_slots_are_checked() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    for (sequence, slot, status) in [
        (3, 0, Status::SeqMisordered),
        (0, 0, Status::SeqMisordered),
        (0, 1, Status::SeqMisordered),
        (1, 8, Status::BadSlot),
    ] {
        let asked = session.client.status(vec![session.sequence(sequence, slot, false)]).await;
        assert_eq!(asked, Err(status), "{sequence} in slot {slot}");
    }
    session.id[15] ^= 0xff;
    let unknown = session.client.status(vec![session.sequence(2, 0, false)]).await;
    assert_eq!(unknown, Err(Status::BadSession));
}

#[tokio::test]
async fn operations_have_their_places() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    assert_eq!(session.client.status(vec![ROOT]).await, Err(Status::OpNotInSession));
    let twice = vec![session.sequence(9, 1, false)];
    assert_eq!(session.status(twice).await, Err(Status::SequencePos));
    let two = vec![exchange_id(b"x", 1, 0), ROOT];
    assert_eq!(session.client.status(two).await, Err(Status::NotOnlyOp));
    let destroy = ArgOp::DestroySession(DestroySessionArgs { sessionid: session.id });
    assert_eq!(session.status(vec![destroy.clone(), ROOT]).await, Err(Status::NotOnlyOp));
    assert_eq!(session.status(vec![ROOT, destroy]).await, Ok(()));
    assert_eq!(session.status(vec![ROOT]).await, Err(Status::BadSession));
}

#[tokio::test]
async fn the_bounds_of_a_session_hold() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.client(1).await;
    let known = client.last::<op::ExchangeId>(vec![exchange_id(b"client", 1, 0)]).await;
    let mut args = create_session_args(known.clientid, known.sequenceid, 1);
    args.fore_chan_attrs = ChannelAttrs {
        maxoperations: 3,
        maxrequestsize: 512,
        maxresponsesize: 512,
        maxresponsesize_cached: 160,
        ..args.fore_chan_attrs
    };
    let made = client.last::<op::CreateSession>(vec![ArgOp::CreateSession(args)]).await;
    assert_eq!(made.fore_chan_attrs.maxresponsesize_cached, 160);
    let mut session =
        crate::setup::Session { client, clientid: known.clientid, id: made.sessionid, sequence: 0 };
    let many = vec![session.sequence(1, 0, false), ROOT, ROOT, ROOT];
    assert_eq!(session.client.status(many).await, Err(Status::TooManyOps));
    let large = vec![session.sequence(1, 0, false), ROOT, lookup(&[b'x'; 400])];
    assert_eq!(session.client.status(large).await, Err(Status::ReqTooBig));
    let all = [Attr::Type, Attr::Change, Attr::Size, Attr::Fsid, Attr::Filehandle, Attr::Fileid, Attr::Owner];
    let cached = vec![session.sequence(1, 0, true), ROOT, getattr(&all)];
    assert_eq!(session.client.status(cached).await, Err(Status::RepTooBigToCache));
    let not_cached = vec![session.sequence(2, 0, false), ROOT, getattr(&all)];
    assert_eq!(session.client.status(not_cached).await, Ok(()));
}

#[tokio::test]
async fn create_session_is_carried_out_once() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.client(1).await;
    let known = client.last::<op::ExchangeId>(vec![exchange_id(b"client", 1, 0)]).await;
    let mut ask = async |args: CreateSessionArgs| {
        created(client.send(&CompoundArgs::new(1, vec![ArgOp::CreateSession(args)]).unwrap()).await)
    };
    let args = |sequence| create_session_args(known.clientid, sequence, 4);
    let first = ask(args(known.sequenceid)).await.unwrap();
    assert_eq!(ask(args(known.sequenceid)).await, Ok(first));
    assert_eq!(ask(args(known.sequenceid + 2)).await, Err(Status::SeqMisordered));
    let second = ask(args(known.sequenceid + 1)).await.unwrap();
    assert_ne!(second.sessionid, first.sessionid);
    let bad = |change: fn(&mut CreateSessionArgs), sequence| {
        let mut args = args(sequence);
        change(&mut args);
        args
    };
    let flags = bad(|args| args.flags = 0x10, known.sequenceid + 2);
    assert_eq!(ask(flags).await, Err(Status::Inval));
    let small = bad(|args| args.fore_chan_attrs.maxresponsesize = 20, known.sequenceid + 2);
    assert_eq!(ask(small).await, Err(Status::TooSmall));
    assert!(ask(args(known.sequenceid + 2)).await.is_ok(), "what failed did not count");
    assert_eq!(ask(create_session_args(known.clientid + 100, 1, 1)).await, Err(Status::StaleClientid));
}

#[tokio::test]
async fn a_connection_is_bound_to_a_session() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let session = incarnation.session(b"client").await;
    let mut other = incarnation.client(1).await;
    let bind = |sessid, dir| {
        ArgOp::BindConnToSession(BindConnToSessionArgs { sessid, dir, use_conn_in_rdma_mode: false })
    };
    for (asked, given) in [
        (ChannelDirFromClient::Fore, ChannelDirFromServer::Fore),
        (ChannelDirFromClient::Back, ChannelDirFromServer::Back),
        (ChannelDirFromClient::BackOrBoth, ChannelDirFromServer::Both),
    ] {
        let bound = other.last::<op::BindConnToSession>(vec![bind(session.id, asked)]).await;
        assert_eq!((bound.sessid, bound.dir), (session.id, given));
    }
    let unknown = other.status(vec![bind([7; 16], ChannelDirFromClient::Fore)]).await;
    assert_eq!(unknown, Err(Status::BadSession));
}

#[tokio::test]
async fn a_client_id_is_destroyed_when_nothing_is_held() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"").unwrap();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    session.open(open(b"file", b"owner", 1, 2)).await;
    let mut other = incarnation.client(1).await;
    let destroy = vec![ArgOp::DestroyClientid(DestroyClientidArgs { clientid: session.clientid })];
    assert_eq!(other.status(destroy.clone()).await, Err(Status::ClientidBusy));
    let end = vec![ArgOp::DestroySession(DestroySessionArgs { sessionid: session.id })];
    assert_eq!(other.status(end.clone()).await, Ok(()));
    assert_eq!(other.status(end).await, Err(Status::BadSession));
    assert_eq!(other.status(destroy).await, Err(Status::ClientidBusy), "the open");
    // A new incarnation holds nothing of the old one.
    let known = other.last::<op::ExchangeId>(vec![exchange_id(b"client", 2, 0)]).await;
    let made = other.last::<op::CreateSession>(vec![create_session(&known, 1)]).await;
    let mut session =
        crate::setup::Session { client: other, clientid: known.clientid, id: made.sessionid, sequence: 0 };
    let end = ArgOp::DestroySession(DestroySessionArgs { sessionid: made.sessionid });
    assert_eq!(session.status(vec![reclaim_complete()]).await, Ok(()));
    assert_eq!(session.status(vec![reclaim_complete()]).await, Err(Status::CompleteAlready));
    assert_eq!(session.status(vec![end]).await, Ok(()));
    let destroy = vec![ArgOp::DestroyClientid(DestroyClientidArgs { clientid: known.clientid })];
    assert_eq!(session.client.status(destroy.clone()).await, Ok(()));
    assert_eq!(session.client.status(destroy).await, Err(Status::StaleClientid));
}
