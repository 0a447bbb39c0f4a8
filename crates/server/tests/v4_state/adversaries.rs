//! Clients that misbehave when a delegation is recalled: they do not answer, refuse, send garbage, or keep
//! the delegation. No other client waits beyond the deadline, no resource exceeds its limit, and no client
//! reads old data. A client that lost a delegation is told so.
//!
//! Promise: exclusion-under-a-lease

mod strangers;
mod thieves;

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::nfs4::callback::CbArgOp;
use protocol::nfs4::{
    ArgOp, DelegreturnArgs, FreeStateidArgs, Handle, OpenArgs, OpenDelegation, ReadArgs,
    SEQ4_STATUS_RECALLABLE_STATE_REVOKED, StableHow, Stateid, Status, WriteArgs, op,
};
use xdr::Bulk;

use crate::callbacks::{Manner, Reachable};
use crate::setup::{Home, Incarnation, LEASE, Session, open};
use crate::wire::{ROOT, lookup, putfh};

const MANNERS: [Manner; 8] = [
    Manner::Mute,
    Manner::Babbling,
    Manner::Refusing(Status::BadStateid),
    Manner::Refusing(Status::BadHandle),
    Manner::Refusing(Status::Delay),
    Manner::Refusing(Status::ServerFault),
    Manner::Refusing(Status::NotSupp),
    Manner::Refusing(Status::OpIllegal),
];

/// Far more time than anything here takes, and far less than every deadline that must not be reached.
const AT_ONCE: Duration = Duration::from_secs(10);

fn options(recall_deadline: Duration) -> arbiter::Options {
    let delegations = arbiter::Delegations::Always;
    arbiter::Options { delegations, recall_deadline, ..arbiter::Options::default() }
}

fn name_of(file: usize) -> Vec<u8> {
    format!("f{file:04}").into_bytes()
}

/// A server over `files` files.
async fn serving(home: &Home, files: usize, options: arbiter::Options) -> Incarnation {
    for file in 0..files {
        std::fs::write(home.tree().join(String::from_utf8(name_of(file)).unwrap()), b"old").unwrap();
    }
    home.serve_with(LEASE, options).await
}

fn opening(file: usize, access: u32) -> Vec<ArgOp> {
    let owner = format!("owner {file}");
    let args: OpenArgs = open(&name_of(file), owner.as_bytes(), access, 0);
    vec![ROOT, ArgOp::Open(args)]
}

fn stateid_of(delegation: &OpenDelegation) -> Option<Stateid> {
    match delegation {
        OpenDelegation::Read(read) => Some(read.stateid),
        OpenDelegation::Write(write) => Some(write.stateid),
        _ => None,
    }
}

async fn handle(client: &mut Reachable, file: usize) -> Handle {
    client.last::<op::Getfh>(vec![ROOT, lookup(&name_of(file)), ArgOp::Getfh(())]).await.unwrap().object
}

async fn read(client: &mut Reachable, file: Handle, stateid: Stateid) -> Result<Vec<u8>, Status> {
    let read = ArgOp::Read(ReadArgs { stateid, offset: 0, count: 100 });
    client.last::<op::Read>(vec![putfh(file), read]).await.map(|read| read.data.to_bytes().unwrap().to_vec())
}

/// Did the last reply report revoked delegations? Its flags may also report that the callback path is down.
fn is_told(client: &Reachable) -> bool {
    client.status_flags & SEQ4_STATUS_RECALLABLE_STATE_REVOKED != 0
}

/// Opens for writing and writes. The open is held while recalls run. If it gets DELAY, it is retried.
async fn overwrite(writer: &mut Session, file: usize, handle: Handle) {
    let opened = loop {
        match writer.compound(opening(file, 2)).await {
            mut results if results.status() == Ok(()) => {
                results.take::<op::Putrootfh>().unwrap();
                break results.take::<op::Open>().unwrap();
            }
            results => assert_eq!(results.status(), Err(Status::Delay)),
        }
    };
    let data = Bulk::Bytes(Bytes::from_static(b"new"));
    let write = WriteArgs { stateid: opened.stateid, offset: 0, stable: StableHow::FileSync, data };
    assert_eq!(writer.on(handle, ArgOp::Write(write)).await, Ok(()));
}

#[tokio::test]
async fn a_client_that_answers_a_recall_wrongly_holds_nobody_up_beyond_the_deadline() {
    for manner in MANNERS {
        let home = Home::new();
        let incarnation = serving(&home, 1, options(Duration::from_millis(300))).await;
        let mut holder = Reachable::with_manner(&incarnation, b"holder", manner).await;
        let file = handle(&mut holder, 0).await;
        let opened = holder.last::<op::Open>(opening(0, 1)).await.unwrap();
        let delegation = stateid_of(&opened.delegation).unwrap();
        assert_eq!(read(&mut holder, file, delegation).await.unwrap(), b"old");

        let mut writer = incarnation.session(b"writer").await;
        let written = tokio::time::timeout(AT_ONCE, overwrite(&mut writer, 0, file)).await;
        assert!(written.is_ok(), "{manner:?}: the writer hangs");
        assert_eq!(incarnation.arbiter.held().read_leases, 0, "{manner:?}");

        // The next request reports the loss, whatever the holder believes, and the holder then reads the
        // new data.
        let lost = read(&mut holder, file, delegation).await.unwrap_err();
        assert_eq!(lost, Status::DelegRevoked, "{manner:?}");
        assert!(is_told(&holder), "{manner:?}");
        let free = ArgOp::FreeStateid(FreeStateidArgs { stateid: delegation });
        assert_eq!(holder.last::<op::FreeStateid>(vec![free]).await, Ok(()));
        assert_eq!(read(&mut holder, file, opened.stateid).await.unwrap(), b"new", "{manner:?}");
        assert!(!is_told(&holder), "{manner:?}");
    }
}

/// The answer to its OPEN is queued on another connection. Until it arrives, the client denies the
/// delegation that it will soon know.
#[tokio::test]
async fn a_client_that_does_not_know_of_its_delegation_yet_is_asked_until_it_does() {
    let home = Home::new();
    let incarnation = serving(&home, 1, options(Duration::from_secs(60))).await;
    let mut holder =
        Reachable::with_manner(&incarnation, b"holder", Manner::Refusing(Status::BadHandle)).await;
    let file = handle(&mut holder, 0).await;
    let opened = holder.last::<op::Open>(opening(0, 1)).await.unwrap();
    let delegation = stateid_of(&opened.delegation).unwrap();

    let mut writer = incarnation.session(b"writer").await;
    let mut writing = tokio::spawn(async move { overwrite(&mut writer, 0, file).await });
    for denied in 0..6 {
        let CbArgOp::Recall(recall) = holder.called().await else { panic!("a recall") };
        assert_eq!(recall.stateid, delegation, "denied {denied} times");
    }
    assert!(!writing.is_finished());
    assert_eq!(read(&mut holder, file, delegation).await.unwrap(), b"old");
    assert!(!is_told(&holder));

    holder.set_manner(Manner::Obliging);
    let CbArgOp::Recall(_) = holder.called().await else { panic!("a recall") };
    let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: delegation });
    holder.last::<op::Delegreturn>(vec![putfh(file), returning]).await.unwrap();
    tokio::time::timeout(AT_ONCE, &mut writing).await.expect("the writer hangs").unwrap();
}

/// Opens all files for reading and returns the number of remaining delegations. If the client obliges, it
/// returns recalled ones.
async fn open_all(
    incarnation: &Incarnation,
    client: &mut Reachable,
    files: usize,
    bound: usize,
    obliges: bool,
) -> usize {
    let mut delegations = Vec::new();
    for file in 0..files {
        let opened = client.last::<op::Open>(opening(file, 1)).await.unwrap();
        delegations.extend(stateid_of(&opened.delegation));
        assert!(
            incarnation.arbiter.held().read_leases <= bound,
            "{} out",
            incarnation.arbiter.held().read_leases
        );
        while let Ok(called) = client.calls.try_recv() {
            let CbArgOp::Recall(recall) = called.operation else { continue };
            delegations.retain(|stateid| *stateid != recall.stateid);
            if obliges {
                let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: recall.stateid });
                client.last::<op::Delegreturn>(vec![putfh(recall.fh), returning]).await.unwrap();
            }
        }
    }
    delegations.len()
}

#[tokio::test]
async fn a_bound_of_ten_delegations_holds_with_a_thousand_files_open() {
    const FILES: usize = 1000;
    // Every lease counts as unused at once.
    let idle_min = Duration::ZERO;
    let bounded = arbiter::Options { leases_max: 10, idle_min, ..options(Duration::from_secs(60)) };
    for manner in [Manner::Obliging, Manner::Mute] {
        let home = Home::new();
        let incarnation = serving(&home, FILES, bounded.clone()).await;
        let mut client = Reachable::with_manner(&incarnation, b"client", manner).await;
        let started = Instant::now();
        let obliges = manner == Manner::Obliging;
        let left = open_all(&incarnation, &mut client, FILES, 10, obliges).await;
        let held = incarnation.arbiter.held();
        assert!(started.elapsed() < 3 * AT_ONCE, "{manner:?}: {:?}", started.elapsed());
        assert_eq!(held.opens, FILES);
        assert!((1..=10).contains(&held.read_leases) && left <= 10, "{manner:?}: {held:?}");
        // A client that returns delegations gets others, for the most recent opens. A mute client keeps
        // what it has.
        assert_eq!(held.granted > 100, obliges, "{manner:?}: {held:?}");
        assert!(held.recalls + 10 >= held.granted, "{manner:?}: {held:?}");
    }
}

// Promise: recalls-for-capacity
#[tokio::test]
async fn at_the_bound_no_delegation_that_was_just_granted_is_recalled_for_another() {
    const FILES: usize = 1000;
    let home = Home::new();
    let bounded = arbiter::Options { leases_max: 10, ..options(Duration::from_secs(60)) };
    let incarnation = serving(&home, FILES, bounded).await;
    let mut client = Reachable::with_manner(&incarnation, b"client", Manner::Obliging).await;
    assert_eq!(open_all(&incarnation, &mut client, FILES, 10, true).await, 10);
    let held = incarnation.arbiter.held();
    assert_eq!((held.opens, held.granted, held.recalls), (FILES, 10, 0), "{held:?}");
}

#[tokio::test]
async fn delegations_beyond_the_bound_are_revoked_from_who_keeps_them() {
    const FILES: usize = 40;
    let home = Home::new();
    let idle_min = Duration::ZERO;
    let bounded = arbiter::Options { leases_max: 10, idle_min, ..options(Duration::from_millis(300)) };
    let incarnation = serving(&home, FILES, bounded).await;
    let mut client = Reachable::with_manner(&incarnation, b"client", Manner::Mute).await;
    open_all(&incarnation, &mut client, FILES, 10, false).await;
    tokio::time::timeout(AT_ONCE, async {
        while incarnation.arbiter.held().revoked == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    handle(&mut client, 0).await;
    assert!(is_told(&client), "with the next reply");
}

#[tokio::test]
async fn a_client_that_is_mute_about_many_delegations_delays_no_recall_to_another() {
    const FILES: usize = 300;
    let home = Home::new();
    let impatient =
        arbiter::Options { patience: Duration::from_millis(1), ..options(Duration::from_secs(60)) };
    let incarnation = serving(&home, FILES + 1, impatient).await;
    let mut mute = Reachable::with_manner(&incarnation, b"mute", Manner::Mute).await;
    for file in 0..FILES {
        let opened = mute.last::<op::Open>(opening(file, 1)).await.unwrap();
        assert!(stateid_of(&opened.delegation).is_some(), "file {file}");
    }
    let mut writer = incarnation.session(b"writer").await;
    for file in 0..FILES {
        assert_eq!(writer.status(opening(file, 2)).await, Err(Status::Delay), "file {file}");
    }

    let mut other = Reachable::new(&incarnation, b"other").await;
    let opened = other.last::<op::Open>(opening(FILES, 1)).await.unwrap();
    let delegation = stateid_of(&opened.delegation).unwrap();
    assert_eq!(writer.status(opening(FILES, 2)).await, Err(Status::Delay));
    let CbArgOp::Recall(recall) = other.called().await else { panic!("a recall") };
    assert_eq!(recall.stateid, delegation);
    let returning = ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: delegation });
    other.last::<op::Delegreturn>(vec![putfh(recall.fh), returning]).await.unwrap();
    assert_eq!(writer.status(opening(FILES, 2)).await, Ok(()));
}
