//! Which state goes when a limit is reached. Courtesy clients go first, the oldest renewal first, and no
//! more than needed. Clients with a valid lease lose only unused delegations.
//!
//! Promise: courtesy-clients
//! Promise: capacity-for-opens

use std::time::{Duration, Instant};

use protocol::nfs4::callback::CbArgOp;
use protocol::nfs4::{
    ArgOp, CloseArgs, Createhow, DelegreturnArgs, Handle, OpenArgs, OpenClaim, Openflag, ReadArgs, Stateid,
    Status, op,
};
use server::Bounds;

use crate::callbacks::{Manner, Reachable};
use crate::setup::{
    Home, Incarnation, LEASE, Scarcity, Session, create, create_session, exchange_id, open, setclientid,
};
use crate::wire::{ROOT, putfh};

/// The lease of clients that become courtesy clients.
const SHORT: Duration = Duration::from_secs(1);
/// Far more time than anything here takes.
const AT_ONCE: Duration = Duration::from_secs(20);

fn undelegated() -> arbiter::Options {
    arbiter::Options { delegations: arbiter::Delegations::Never, ..arbiter::Options::default() }
}

fn delegating(recall_deadline: Duration) -> arbiter::Options {
    let delegations = arbiter::Delegations::Always;
    arbiter::Options { delegations, recall_deadline, ..arbiter::Options::default() }
}

/// OPEN that creates a new file. If it fails after it has created the file, the next attempt fails too.
fn make(file: &[u8]) -> Vec<ArgOp> {
    let args = create(file, file, 3);
    let Openflag::Create(Createhow::Unchecked(attributes)) = args.openhow else { unreachable!() };
    let openhow = Openflag::Create(Createhow::Guarded(attributes));
    vec![ROOT, ArgOp::Open(OpenArgs { openhow, ..args })]
}

async fn opened(client: &mut Session, files: &[&[u8]]) -> (Stateid, Handle) {
    let mut last = None;
    for file in files {
        last = Some(client.open(create(file, file, 3)).await);
    }
    last.unwrap()
}

async fn reads(client: &mut Session, (stateid, file): (Stateid, Handle)) -> Result<(), Status> {
    client.on(file, ArgOp::Read(ReadArgs { stateid, offset: 0, count: 1 })).await
}

/// Repeats `ask` as long as it fails with `later`, and returns the number of repetitions.
async fn at_last(later: Status, mut ask: impl AsyncFnMut() -> Result<(), Status>) -> usize {
    let asking = async {
        let mut times = 0;
        while let Err(status) = ask().await {
            assert_eq!(status, later);
            times += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        times
    };
    tokio::time::timeout(AT_ONCE, asking).await.unwrap()
}

#[tokio::test]
async fn who_has_been_silent_for_longest_makes_room_for_files_and_no_more_go_than_are_needed() {
    let home = Home::new();
    let scarcity = Scarcity { opened_max: 4, ..Scarcity::default() };
    let incarnation = home.serve_scarce(SHORT, undelegated(), scarcity).await;
    let (mut longest, mut courtesy) =
        (incarnation.session(b"longest").await, incarnation.session(b"silent").await);
    let first = opened(&mut longest, &[b"a", b"b"]).await;
    let second = opened(&mut courtesy, &[b"c", b"d"]).await;
    let mut alive = incarnation.session(b"alive").await;
    let later = at_last(Status::Delay, async || {
        let made = alive.status(make(b"new")).await;
        assert_eq!(home.tree().join("new").exists(), made.is_ok(), "nothing is made that is not opened");
        made
    })
    .await;
    assert!(later > 0, "while their leases are good, nobody goes");
    assert_eq!(incarnation.arbiter.held().opens, 3);
    assert_eq!(reads(&mut longest, first).await, Err(Status::BadSession));
    assert_eq!(reads(&mut courtesy, second).await, Ok(()));
    // One more file can be open. After that the other client goes, which was heard of just now.
    assert_eq!(alive.status(make(b"newer")).await, Ok(()));
    assert!(at_last(Status::Delay, async || alive.status(make(b"newest")).await).await > 0);
    assert_eq!(incarnation.front.clients().known, 1);
}

#[tokio::test]
async fn a_file_takes_room_once_however_often_it_is_open() {
    let home = Home::new();
    let scarcity = Scarcity { opened_max: 1, ..Scarcity::default() };
    let incarnation = home.serve_scarce(LEASE, undelegated(), scarcity).await;
    let mut clients = Vec::new();
    for client in [b"1", b"2", b"3"] {
        let mut session = incarnation.session(client).await;
        for owner in [&b"x"[..], b"y"] {
            session.open(create(b"file", owner, 3)).await;
        }
        clients.push(session);
    }
    assert_eq!(incarnation.arbiter.held().opens, 6);
    std::fs::write(home.tree().join("other"), b"").unwrap();
    let other = vec![ROOT, ArgOp::Open(open(b"other", b"x", 1, 0))];
    assert_eq!(clients[0].status(other.clone()).await, Err(Status::Delay));
    drop(clients.remove(0));
    let (stateid, file) = clients[0].open(open(b"file", b"x", 1, 0)).await;
    assert_eq!(reads(&mut clients[0], (stateid, file)).await, Ok(()));
}

/// A client with delegations of all files that may be open, and without an open.
async fn delegated(home: &Home, incarnation: &Incarnation, manner: Manner) -> Reachable {
    let mut holder = Reachable::with_manner(incarnation, b"holder", manner).await;
    for file in [&b"a"[..], b"b"] {
        std::fs::write(home.tree().join(std::str::from_utf8(file).unwrap()), b"").unwrap();
        let opening = vec![ROOT, ArgOp::Open(open(file, b"owner", 1, 0)), ArgOp::Getfh(())];
        let handle = holder.last::<op::Getfh>(opening).await.unwrap().object;
        let again = ArgOp::Open(OpenArgs { claim: OpenClaim::Fh, ..open(file, b"owner", 1, 0) });
        let opened = holder.last::<op::Open>(vec![putfh(handle), again]).await.unwrap();
        let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid: opened.stateid });
        holder.last::<op::Close>(vec![putfh(handle), close]).await.unwrap();
    }
    assert_eq!((incarnation.arbiter.held().opens, incarnation.arbiter.held().read_leases), (0, 2));
    holder
}

#[tokio::test]
async fn delegations_that_are_not_used_are_called_back_and_the_asker_is_held_meanwhile() {
    let home = Home::new();
    let scarcity = Scarcity { opened_max: 4, patience: AT_ONCE, ..Scarcity::default() };
    let options = arbiter::Options { patience: AT_ONCE, ..delegating(LEASE) };
    let incarnation = home.serve_scarce(LEASE, options, scarcity).await;
    let mut holder = delegated(&home, &incarnation, Manner::Obliging).await;
    let mut requester = incarnation.session(b"asker").await;
    opened(&mut requester, &[b"c", b"d"]).await;
    let asking = tokio::spawn(async move { requester.status(make(b"new")).await });
    let CbArgOp::Recall(recall) = holder.called().await else { panic!("a recall") };
    assert!(!asking.is_finished());
    let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: recall.stateid });
    holder.last::<op::Delegreturn>(vec![putfh(recall.fh), returning]).await.unwrap();
    assert_eq!(asking.await.unwrap(), Ok(()), "held, and then let in");
}

#[tokio::test]
async fn who_does_not_return_is_waited_for_until_the_deadline_and_the_asker_is_told_to_come_again() {
    let home = Home::new();
    let scarcity = Scarcity { opened_max: 4, ..Scarcity::default() };
    let incarnation = home.serve_scarce(LEASE, delegating(Duration::from_secs(1)), scarcity).await;
    let _holder = delegated(&home, &incarnation, Manner::Mute).await;
    let mut requester = incarnation.session(b"asker").await;
    opened(&mut requester, &[b"c", b"d"]).await;
    assert!(at_last(Status::Delay, async || requester.status(make(b"new")).await).await > 0);
    assert!(incarnation.arbiter.held().revoked > 0);
}

#[tokio::test]
async fn nobody_is_held_who_could_then_give_nothing_back() {
    let home = Home::new();
    let scarcity = Scarcity { opened_max: 4, patience: LEASE, ..Scarcity::default() };
    let options = arbiter::Options { patience: LEASE, ..delegating(LEASE) };
    let incarnation = home.serve_scarce(LEASE, options, scarcity).await;
    let mut holder = delegated(&home, &incarnation, Manner::Obliging).await;
    let mut other = incarnation.session(b"other").await;
    opened(&mut other, &[b"c", b"d"]).await;
    // A session of one slot, in which nothing can be closed while the OPEN is held.
    let mut client = incarnation.client(1).await;
    let known = client.last::<op::ExchangeId>(vec![exchange_id(b"narrow", 1, 0)]).await;
    let made = client.last::<op::CreateSession>(vec![create_session(&known, 1)]).await;
    let mut narrow = Session { client, clientid: known.clientid, id: made.sessionid, sequence: 0 };
    narrow.last::<op::ReclaimComplete>(vec![crate::setup::reclaim_complete()]).await;
    let started = Instant::now();
    assert_eq!(narrow.status(make(b"new")).await, Err(Status::Delay));
    assert!(started.elapsed() < AT_ONCE);
    assert!(matches!(holder.called().await, CbArgOp::Recall(_)), "but room is being made");
}

#[tokio::test]
async fn records_of_silent_clients_make_room_for_others() {
    let home = Home::new();
    let bounds = Bounds { clients: 2, ..Bounds::default() };
    let incarnation =
        home.serve_scarce(SHORT, undelegated(), Scarcity { bounds, ..Scarcity::default() }).await;
    let (mut longest, mut courtesy) =
        (incarnation.session(b"longest").await, incarnation.session(b"silent").await);
    let first = opened(&mut longest, &[b"a"]).await;
    let second = opened(&mut courtesy, &[b"b"]).await;
    let mut client = incarnation.client(1).await;
    let ask = async || client.status(vec![exchange_id(b"new", 1, 0)]).await;
    assert!(at_last(Status::Delay, ask).await > 0);
    assert_eq!(reads(&mut longest, first).await, Err(Status::BadSession));
    assert_eq!(reads(&mut courtesy, second).await, Ok(()));
    // The same for a client of minor version 0, which gets another status.
    let mut third = incarnation.session(b"third").await;
    opened(&mut third, &[b"c"]).await;
    let mut client = incarnation.client(0).await;
    assert!(at_last(Status::Resource, async || client.status(vec![setclientid(b"new", 1)]).await).await > 0);
}

#[tokio::test]
async fn a_client_that_holds_nothing_makes_room_for_a_new_one_and_one_that_holds_something_does_not() {
    let home = Home::new();
    let bounds = Bounds { clients: 2, ..Bounds::default() };
    let incarnation =
        home.serve_scarce(LEASE, undelegated(), Scarcity { bounds, ..Scarcity::default() }).await;
    let mut holding = incarnation.session(b"holding").await;
    let open = opened(&mut holding, &[b"a"]).await;
    // Unconfirmed records take no capacity from clients.
    let mut client = incarnation.client(1).await;
    for number in 0..50 {
        let name = format!("unconfirmed {number}");
        assert_eq!(client.status(vec![exchange_id(name.as_bytes(), 1, 0)]).await, Ok(()));
    }
    let mut idle = incarnation.session(b"idle").await;
    let mut new = incarnation.session(b"new").await;
    assert_eq!(idle.status(vec![ROOT]).await, Err(Status::BadSession));
    assert_eq!(new.status(vec![ROOT]).await, Ok(()));
    assert_eq!(reads(&mut holding, open).await, Ok(()));
    opened(&mut new, &[b"b"]).await;
    assert_eq!(
        client.status(vec![exchange_id(b"late", 1, 0)]).await,
        Err(Status::Delay),
        "all hold something"
    );
    assert_eq!(incarnation.front.clients().known, 2);
}

#[tokio::test]
async fn sessions_and_states_of_silent_clients_make_room_for_others() {
    let home = Home::new();
    let bounds = Bounds { sessions: 2, states: 2, ..Bounds::default() };
    let incarnation =
        home.serve_scarce(SHORT, undelegated(), Scarcity { bounds, ..Scarcity::default() }).await;
    let (mut longest, mut courtesy) =
        (incarnation.session(b"longest").await, incarnation.session(b"silent").await);
    let first = opened(&mut longest, &[b"a"]).await;
    let second = opened(&mut courtesy, &[b"b"]).await;
    let mut client = incarnation.client(1).await;
    let ask = async || {
        // Repeat EXCHANGE_ID each time, because an unconfirmed record is dropped after a lease time.
        let known = client.last::<op::ExchangeId>(vec![exchange_id(b"new", 1, 0)]).await;
        client.status(vec![create_session(&known, 8)]).await
    };
    assert!(at_last(Status::Delay, ask).await > 0);
    assert_eq!(reads(&mut longest, first).await, Err(Status::BadSession));
    assert_eq!(reads(&mut courtesy, second).await, Ok(()), "its lease runs anew from here");
    opened(&mut courtesy, &[b"c"]).await;
    let mut other = incarnation.minor0(b"other", 1).await;
    let opener = other.owner(b"opener");
    let mut seqid = 0;
    let ask = async || {
        seqid += 1;
        let args = OpenArgs { seqid, owner: opener.clone(), ..create(b"new", b"", 3) };
        other.client.status(vec![ROOT, ArgOp::Open(args)]).await
    };
    assert!(at_last(Status::Delay, ask).await > 0);
    assert!(home.tree().join("new").exists());
}

/// A cache keeps an open as long as the delegation of its file.
#[tokio::test]
async fn who_keeps_opens_for_delegations_is_asked_for_some_when_another_client_finds_no_room_to_open() {
    let home = Home::new();
    let bounds = Bounds { states: 4, ..Bounds::default() };
    let scarcity = Scarcity { bounds, ..Scarcity::default() };
    let incarnation = home.serve_scarce(LEASE, delegating(LEASE), scarcity).await;
    let mut holder = Reachable::with_manner(&incarnation, b"holder", Manner::Obliging).await;
    let mut kept = Vec::new();
    for file in ["a", "b", "c", "d"] {
        std::fs::write(home.tree().join(file), b"").unwrap();
        let opening = vec![ROOT, ArgOp::Open(open(file.as_bytes(), b"owner", 1, 0)), ArgOp::Getfh(())];
        let handle = holder.last::<op::Getfh>(opening).await.unwrap().object;
        let again = OpenArgs { claim: OpenClaim::Fh, ..open(file.as_bytes(), b"owner", 1, 0) };
        let opened = holder.last::<op::Open>(vec![putfh(handle), ArgOp::Open(again)]).await.unwrap();
        kept.push((handle, opened.stateid));
    }
    assert_eq!((incarnation.arbiter.held().opens, incarnation.arbiter.held().read_leases), (4, 4));
    let mut requester = incarnation.session(b"asker").await;
    assert_eq!(requester.status(make(b"new")).await, Err(Status::Delay));
    let CbArgOp::RecallAny(asked) = holder.called().await else { panic!("a request for delegations") };
    assert_eq!(asked.objects_to_keep, 3);
    assert_eq!(requester.status(make(b"new")).await, Err(Status::Delay), "it was asked a moment ago");
    let (handle, open_stateid) = kept.remove(0);
    let close = ArgOp::Close(CloseArgs { seqid: 0, open_stateid });
    holder.last::<op::Close>(vec![putfh(handle), close]).await.unwrap();
    assert_eq!(requester.status(make(b"new")).await, Ok(()));
}

#[tokio::test]
async fn owners_of_silent_clients_make_room_for_others() {
    let home = Home::new();
    let bounds = Bounds { owners: 1, ..Bounds::default() };
    let incarnation =
        home.serve_scarce(SHORT, undelegated(), Scarcity { bounds, ..Scarcity::default() }).await;
    let mut courtesy = incarnation.minor0(b"silent", 1).await;
    let making = OpenArgs { seqid: 1, owner: courtesy.owner(b"opener"), ..create(b"file", b"", 3) };
    courtesy.open(making).await;
    let mut other = incarnation.minor0(b"other", 1).await;
    let opening = vec![ROOT, ArgOp::Open(other.open_args(b"file", 1, 1, 0))];
    assert!(at_last(Status::Resource, async || other.client.status(opening.clone()).await).await > 0);
    assert_eq!(incarnation.front.clients().known, 1);
}
