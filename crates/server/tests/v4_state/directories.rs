//! Directory delegations. Clients piggyback the request on a GETATTR. The delegations are recalled before
//! another client changes a name, returned, and revoked. A client that cannot be called back gets none.
//!
//! Promise: directory-leases

use std::time::Duration;

use protocol::nfs4::callback::CbArgOp;
use protocol::nfs4::{
    ArgOp, Attr, Bitmap, CreateArgs, Createtype, DelegreturnArgs, DirDelegation, FreeStateidArgs,
    GetDirDelegationArgs, GetDirDelegationOk, Handle, Nfstime, ReadArgs, RemoveArgs, RenameArgs,
    SEQ4_STATUS_RECALLABLE_STATE_REVOKED, Stateid, Status, TestStateidArgs, op,
};
use xdr::List;

use crate::callbacks::{Manner, Reachable};
use crate::setup::{Home, Incarnation, LEASE, Session, create};
use crate::wire::{ROOT, getattr, lookup, name, putfh};

pub async fn granting(home: &Home, recall_deadline: Duration) -> Incarnation {
    std::fs::create_dir_all(home.tree().join("dir/sub")).unwrap();
    std::fs::write(home.tree().join("dir/file"), b"content").unwrap();
    let delegations = arbiter::Delegations::Always;
    let options = arbiter::Options { delegations, recall_deadline, ..arbiter::Options::default() };
    home.serve_with(LEASE, options).await
}

fn get_dir_delegation() -> ArgOp {
    let never = Nfstime { seconds: 0, nseconds: 0 };
    ArgOp::GetDirDelegation(GetDirDelegationArgs {
        signal_deleg_avail: false,
        // The client asks for notifications; the reply says that it gets none.
        notification_types: Bitmap::EMPTY.with_bit(1).with_bit(2).with_bit(3),
        child_attr_delay: never,
        dir_attr_delay: never,
        child_attributes: Bitmap::EMPTY,
        dir_attributes: Bitmap::EMPTY,
    })
}

/// The compound that Linux sends: the operation piggybacked on the GETATTR.
fn asking() -> Vec<ArgOp> {
    vec![ROOT, lookup(b"dir"), get_dir_delegation()]
}

pub async fn delegated(client: &mut Reachable) -> DirDelegation {
    match client.last::<op::GetDirDelegation>(asking()).await {
        Ok(GetDirDelegationOk::Ok(given)) => given,
        other => panic!("{other:?}"),
    }
}

/// As [`delegated`], for a directory whose last lease may still be on its way back to the file system.
/// Until the lease is back, no other is granted.
async fn delegated_again(client: &mut Reachable) -> DirDelegation {
    let asking_until_given = async {
        loop {
            match client.last::<op::GetDirDelegation>(asking()).await {
                Ok(GetDirDelegationOk::Ok(given)) => return given,
                Ok(GetDirDelegationOk::Unavail { .. }) => tokio::task::yield_now().await,
                Err(status) => panic!("{status:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asking_until_given).await.expect("a delegation")
}

async fn handle(client: &mut Reachable, path: &[&[u8]]) -> Handle {
    let looks = path.iter().map(|name| lookup(name));
    let compound = std::iter::once(ROOT).chain(looks).chain([ArgOp::Getfh(())]).collect();
    client.last::<op::Getfh>(compound).await.unwrap().object
}

fn returning(stateid: Stateid) -> ArgOp {
    ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: stateid })
}

/// Changes of names in `dir`, each of which is possible by itself.
fn changes() -> Vec<(&'static str, Vec<ArgOp>)> {
    let at = |operation| vec![ROOT, lookup(b"dir"), operation];
    let make = |objtype, of: &[u8]| {
        let (objname, createattrs) = (name(of), protocol::nfs4::ArgFattr::default());
        at(ArgOp::Create(CreateArgs { objtype, objname, createattrs }))
    };
    let rename = |from: &[u8], to: &[u8]| {
        let args = RenameArgs { oldname: name(from), newname: name(to) };
        vec![ROOT, lookup(b"dir"), ArgOp::Savefh(()), ROOT, lookup(b"dir"), ArgOp::Rename(args)]
    };
    vec![
        ("open", at(ArgOp::Open(create(b"opened", b"owner", 2)))),
        ("mkdir", make(Createtype::Dir, b"made")),
        ("fifo", make(Createtype::Fifo, b"fifo")),
        ("symlink", make(Createtype::Lnk(protocol::nfs4::Linktext::new(&b"x"[..]).unwrap()), b"link")),
        ("rename", rename(b"made", b"renamed")),
        ("rmdir", at(ArgOp::Remove(RemoveArgs { target: name(b"renamed") }))),
        ("remove", at(ArgOp::Remove(RemoveArgs { target: name(b"file") }))),
    ]
}

#[tokio::test]
async fn every_change_of_a_name_by_somebody_else_recalls_it_first() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    let directory = handle(&mut holder, &[b"dir"]).await;
    let mut other = incarnation.session(b"other").await;
    for (what, change) in changes() {
        let given = delegated_again(&mut holder).await;
        assert_eq!((given.notification, given.child_attributes), (Bitmap::EMPTY, Bitmap::EMPTY));
        let before = std::fs::read_dir(home.tree().join("dir")).unwrap().count();
        let changing = tokio::spawn(async move {
            let status = other.status(change).await;
            (other, status)
        });
        let CbArgOp::Recall(recall) = holder.called().await else { panic!("a recall: {what}") };
        assert_eq!((recall.stateid, recall.fh), (given.stateid, directory), "{what}");
        assert!(!changing.is_finished(), "{what}");
        assert_eq!(std::fs::read_dir(home.tree().join("dir")).unwrap().count(), before, "{what}");
        let returned = holder.last::<op::Delegreturn>(vec![putfh(directory), returning(given.stateid)]).await;
        assert_eq!(returned, Ok(()), "{what}");
        let status;
        (other, status) = changing.await.unwrap();
        assert_eq!(status, Ok(()), "{what}");
    }
    assert_eq!(incarnation.arbiter.held().directory_leases, 0);
}

#[tokio::test]
async fn what_the_holder_changes_itself_and_what_others_look_at_recalls_nothing() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    delegated(&mut holder).await;
    for (what, change) in changes() {
        let status = match change.last() {
            Some(ArgOp::Open(_)) => holder.last::<op::Open>(change).await.map(drop),
            Some(ArgOp::Create(_)) => holder.last::<op::Create>(change).await.map(drop),
            Some(ArgOp::Rename(_)) => holder.last::<op::Rename>(change).await.map(drop),
            _ => holder.last::<op::Remove>(change).await.map(drop),
        };
        assert_eq!(status, Ok(()), "{what}");
    }
    let mut other = incarnation.session(b"other").await;
    other.status(vec![ROOT, lookup(b"dir"), getattr(&[Attr::Change]), lookup(b"sub")]).await.unwrap();
    assert!(holder.calls.try_recv().is_err());
    assert_eq!(incarnation.arbiter.held().directory_leases, 1);
    assert!(matches!(
        holder.last::<op::GetDirDelegation>(asking()).await,
        Ok(GetDirDelegationOk::Unavail { .. })
    ));
}

#[tokio::test]
async fn one_that_is_not_returned_is_revoked_tested_and_freed() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_millis(300)).await;
    let mut holder = Reachable::with_manner(&incarnation, b"holder", Manner::Refusing(Status::Delay)).await;
    let directory = handle(&mut holder, &[b"dir"]).await;
    let stateid = delegated(&mut holder).await.stateid;
    let test = || {
        let stateids = List::new(vec![stateid]).unwrap();
        vec![ArgOp::TestStateid(TestStateidArgs { stateids })]
    };
    let tested = holder.last::<op::TestStateid>(test()).await.unwrap();
    assert!(tested.status_codes.first().unwrap().into_result().is_ok());
    // It is no stateid basis for a READ, and cannot be freed while it is held.
    let read = ArgOp::Read(ReadArgs { stateid, offset: 0, count: 1 });
    assert_eq!(holder.last::<op::Read>(vec![putfh(directory), read]).await.err(), Some(Status::IsDir));
    let free = || vec![ArgOp::FreeStateid(FreeStateidArgs { stateid })];
    assert_eq!(holder.last::<op::FreeStateid>(free()).await, Err(Status::LocksHeld));
    let mut other = incarnation.session(b"other").await;
    let make = vec![ROOT, lookup(b"dir"), ArgOp::Open(create(b"new", b"owner", 2))];
    assert_eq!(other.status(make).await, Ok(()), "after the deadline");
    let tested = holder.last::<op::TestStateid>(test()).await.unwrap();
    assert_eq!(
        tested.status_codes.first().unwrap().into_result().map_err(|(status, ())| status),
        Err(Status::DelegRevoked)
    );
    assert_eq!(holder.status_flags, SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    assert_eq!(holder.last::<op::FreeStateid>(free()).await, Ok(()));
    assert_eq!(holder.last::<op::FreeStateid>(free()).await, Err(Status::BadStateid));
    assert_eq!(holder.status_flags, 0);
}

/// If there is no delegation, for any reason, the client still gets the results of the rest of its
/// compound.
#[tokio::test]
async fn where_there_is_none_the_rest_of_the_compound_is_answered() {
    let home = Home::new();
    let incarnation = granting(&home, Duration::from_secs(30)).await;
    let unavailable = async |session: &mut Session, path: &[&[u8]]| {
        let looks = path.iter().map(|name| lookup(name));
        let after = [get_dir_delegation(), getattr(&[Attr::Change])];
        let compound = std::iter::once(ROOT).chain(looks).chain(after).collect();
        let mut results = session.compound(compound).await;
        results.take::<op::Putrootfh>().unwrap();
        path.iter().for_each(|_| results.take::<op::Lookup>().unwrap());
        let given = results.take::<op::GetDirDelegation>().unwrap();
        assert_eq!(given, GetDirDelegationOk::Unavail { will_signal_deleg_avail: false });
        assert!(results.take::<op::Getattr>().unwrap().obj_attributes.change.is_some());
    };
    let mut session = incarnation.session(b"cannot be called back").await;
    unavailable(&mut session, &[b"dir"]).await;
    // A client that has not sent RECLAIM_COMPLETE.
    let mut session = incarnation.reclaiming(b"reclaiming", 1).await;
    unavailable(&mut session, &[b"dir"]).await;
    let mut session = incarnation.session(b"confused").await;
    let file = vec![ROOT, lookup(b"dir"), lookup(b"file"), get_dir_delegation()];
    assert!(matches!(session.status(file).await, Ok(()) | Err(Status::NotDir)));
    assert_eq!(session.status(vec![get_dir_delegation()]).await, Err(Status::NoFileHandle));
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    let file = vec![ROOT, lookup(b"dir"), lookup(b"file"), get_dir_delegation()];
    assert_eq!(holder.last::<op::GetDirDelegation>(file).await.err(), Some(Status::NotDir));
    assert_eq!(incarnation.arbiter.held().directory_leases, 0);
}
