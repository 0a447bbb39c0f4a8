//! Client ids: EXCHANGE_ID and SETCLIENTID, and the state of a courtesy client.
//!
//! Promise: courtesy-clients

use std::time::Duration;

use protocol::nfs4::{
    ArgOp, EXCHGID4_FLAG_CONFIRMED_R, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, EXCHGID4_FLAG_USE_NON_PNFS,
    ExchangeIdArgs, RenewArgs, StateProtectArgs, StateProtectOps, Status, op,
};

use crate::setup::{Home, LEASE, create, create_session, exchange_id, open, owner};
use crate::wire::ROOT;

#[tokio::test]
async fn exchange_id_tells_what_the_server_is() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.client(1).await;
    let known = client.last::<op::ExchangeId>(vec![exchange_id(b"client", 1, 0)]).await;
    assert_eq!(known.flags, EXCHGID4_FLAG_USE_NON_PNFS);
    assert!(!known.server_owner.major_id.is_empty() && known.server_scope == known.server_owner.major_id);
    client.last::<op::CreateSession>(vec![create_session(&known, 1)]).await;
    let again = client.last::<op::ExchangeId>(vec![exchange_id(b"client", 1, 0)]).await;
    assert_eq!(
        (again.clientid, again.flags & EXCHGID4_FLAG_CONFIRMED_R),
        (known.clientid, EXCHGID4_FLAG_CONFIRMED_R)
    );
    drop(incarnation);
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.client(1).await;
    let later = client.last::<op::ExchangeId>(vec![exchange_id(b"client", 1, 0)]).await;
    assert_eq!(later.server_owner, known.server_owner, "the same server in its next life");
    assert_ne!(later.clientid, known.clientid);
}

#[tokio::test]
async fn exchange_id_refuses_what_it_does_not_do() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.client(1).await;
    for flags in [EXCHGID4_FLAG_CONFIRMED_R, 0x8, 0x0008_0000] {
        let refused = client.status(vec![exchange_id(b"client", 1, flags)]).await;
        assert_eq!(refused, Err(Status::Inval), "{flags:x}");
    }
    let update = vec![exchange_id(b"client", 1, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A)];
    assert_eq!(client.status(update).await, Err(Status::NoEnt));
    let protected = ExchangeIdArgs {
        clientowner: owner(b"client", 1),
        flags: 0,
        state_protect: StateProtectArgs::MachCred(StateProtectOps::default()),
        client_impl_id: None,
    };
    assert_eq!(client.status(vec![ArgOp::ExchangeId(protected)]).await, Err(Status::Inval));
}

#[tokio::test]
async fn renew_is_for_those_who_are_known() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut client = incarnation.minor0(b"client", 1).await;
    let renew = |clientid| vec![ArgOp::Renew(RenewArgs { clientid })];
    assert_eq!(client.client.status(renew(client.clientid)).await, Ok(()));
    assert_eq!(client.client.status(renew(0)).await, Err(Status::StaleClientid));
    incarnation.minor0(b"client", 2).await;
    assert_eq!(client.client.status(renew(client.clientid)).await, Err(Status::Expired));
}

#[tokio::test]
async fn a_silent_client_keeps_what_it_holds_until_somebody_wants_it() {
    let home = Home::new();
    let incarnation = home.serve(Duration::from_secs(4)).await;
    let mut holder = incarnation.session(b"holder").await;
    let (stateid, file) = holder.open(open_denying(b"file")).await;
    tokio::time::sleep(Duration::from_millis(4100)).await;
    // Its lease has expired, but no other client conflicts with it.
    let read = protocol::nfs4::ReadArgs { stateid, offset: 0, count: 1 };
    assert_eq!(holder.on(file, ArgOp::Read(read)).await, Ok(()));
    let mut other = incarnation.session(b"other").await;
    let write = || vec![ROOT, ArgOp::Open(open(b"file", b"other", 2, 0))];
    assert_eq!(other.status(write()).await, Err(Status::ShareDenied), "its lease is good");
    until(async || other.status(write()).await == Ok(())).await;
    assert_eq!(holder.on(file, ArgOp::Read(read)).await, Err(Status::BadSession));
}

/// Waits for the end of a lease.
async fn until(mut is_over: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_over().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
}

fn open_denying(file: &[u8]) -> protocol::nfs4::OpenArgs {
    protocol::nfs4::OpenArgs { share_deny: 2, ..create(file, b"holder", 3) }
}
