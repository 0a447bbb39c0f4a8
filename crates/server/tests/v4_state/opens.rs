//! Opens in sessions: created, widened, narrowed, closed, and the state ids that name them.

use bytes::Bytes;
use protocol::nfs4::{
    ArgFattr, ArgOp, Attr, Bitmap, CloseArgs, Createhow, Creatverfattr, Fattr, FreeStateidArgs, OpenArgs,
    OpenClaim, OpenDelegation, OpenDowngradeArgs, OpenNoneDelegation, Openflag, Outcome, ReadArgs, StableHow,
    Stateid, Status, TestStateidArgs, WriteArgs, op,
};
use xdr::{Bulk, List};

use crate::setup::{Home, LEASE, create, open};
use crate::wire::{ROOT, name, putfh};

fn close(open_stateid: Stateid) -> ArgOp {
    ArgOp::Close(CloseArgs { seqid: 0, open_stateid })
}

fn read(stateid: Stateid) -> ArgOp {
    ArgOp::Read(ReadArgs { stateid, offset: 0, count: 10 })
}

fn write(stateid: Stateid) -> ArgOp {
    let data = Bulk::Bytes(Bytes::from_static(b"data"));
    ArgOp::Write(WriteArgs { stateid, offset: 0, stable: StableHow::FileSync, data })
}

fn downgrade(open_stateid: Stateid, share_access: u32) -> ArgOp {
    ArgOp::OpenDowngrade(OpenDowngradeArgs { open_stateid, seqid: 0, share_access, share_deny: 0 })
}

#[tokio::test]
async fn an_open_is_good_for_what_it_was_made_for_until_it_is_closed() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let (writing, file) = session.open(create(b"file", b"owner", 2)).await;
    assert_eq!(session.on(file, write(writing)).await, Ok(()));
    // A client that writes a part of a page reads the page first, if its user may read.
    assert_eq!(session.on(file, read(writing)).await, Ok(()));
    let (both, same) = session.open(open(b"file", b"owner", 1, 0)).await;
    assert_eq!((same, both.other, both.seqid), (file, writing.other, 2), "one open, and wider");
    assert_eq!(session.on(file, read(both)).await, Ok(()));
    assert_eq!(session.on(file, read(writing)).await, Err(Status::OldStateid));
    assert_eq!(session.on(file, read(Stateid { seqid: 0, ..both })).await, Ok(()));
    assert_eq!(session.on(file, read(Stateid { seqid: 3, ..both })).await, Err(Status::BadStateid));
    let narrow = session.last::<op::OpenDowngrade>(vec![putfh(file), downgrade(both, 1)]).await.open_stateid;
    assert_eq!(narrow.seqid, 3);
    assert_eq!(session.on(file, write(narrow)).await, Err(Status::OpenMode));
    assert_eq!(session.on(file, downgrade(narrow, 3)).await, Err(Status::Inval));
    assert_eq!(session.on(file, downgrade(narrow, 0)).await, Err(Status::Inval));
    let closed = session.last::<op::Close>(vec![putfh(file), close(narrow)]).await;
    assert_eq!(closed.open_stateid, Stateid::INVALID);
    assert_eq!(session.on(file, read(narrow)).await, Err(Status::BadStateid));
    assert_eq!(session.on(file, close(narrow)).await, Err(Status::BadStateid));
    incarnation.end(&[b"client"]).await;
}

#[tokio::test]
async fn the_current_state_id_follows_the_current_handle() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let current = Stateid::CURRENT;
    let args = create(b"file", b"owner", 3);
    let complete = vec![ROOT, ArgOp::Open(args.clone()), write(current), read(current), close(current)];
    assert_eq!(session.status(complete).await, Ok(()));
    assert_eq!(session.status(vec![ROOT, read(current)]).await, Err(Status::BadStateid));
    let saved = vec![
        ROOT,
        ArgOp::Open(args),
        ArgOp::Savefh(()),
        ROOT,
        ArgOp::Restorefh(()),
        read(current),
        close(current),
        read(current),
    ];
    assert_eq!(session.status(saved).await, Err(Status::BadStateid));
}

#[tokio::test]
async fn a_state_id_is_of_its_file_and_its_client() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let (one, file) = session.open(create(b"one", b"owner", 3)).await;
    let (two, _) = session.open(create(b"two", b"owner", 3)).await;
    assert_eq!(session.on(file, read(two)).await, Err(Status::BadStateid));
    assert_eq!(session.on(file, close(two)).await, Err(Status::BadStateid));
    let mut other = incarnation.session(b"other").await;
    assert_eq!(other.on(file, read(one)).await, Err(Status::BadStateid));
    assert_eq!(other.on(file, read(Stateid::ANONYMOUS)).await, Ok(()));
    assert_eq!(other.on(file, read(Stateid::BYPASS)).await, Ok(()));
    assert_eq!(other.on(file, read(Stateid::INVALID)).await, Err(Status::BadStateid));
    incarnation.end(&[b"client", b"other"]).await;
}

#[tokio::test]
async fn a_state_id_gives_no_rights_to_another_user() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let (stateid, file) = session.open(create(b"file", b"owner", 3)).await;
    let nobody = rpc::AuthSys { uid: 3912, gid: 2422, ..rpc::AuthSys::default() };
    session.client.credential = rpc::Credential::Sys(nobody);
    assert_eq!(session.on(file, write(stateid)).await, Err(Status::Access));
    assert_eq!(session.on(file, read(stateid)).await, Ok(()), "which everybody may");
}

#[tokio::test]
async fn a_file_that_is_there_is_truncated_to_nothing_or_left_alone() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let sized = |size| {
        let attributes = ArgFattr::from(Fattr { mode: Some(0o600), size: Some(size), ..Fattr::default() });
        let openhow = Openflag::Create(Createhow::Unchecked(attributes));
        vec![ROOT, ArgOp::Open(OpenArgs { openhow, ..open(b"file", b"owner", 3, 0) })]
    };
    for (size, set, becomes) in
        [(32, &[Attr::Mode, Attr::Size][..], 32), (16, &[], 32), (0, &[Attr::Size], 0)]
    {
        let opened = session.last::<op::Open>(sized(size)).await;
        assert_eq!(opened.attrset, Bitmap::of(set), "{size}");
        assert_eq!(std::fs::metadata(home.tree().join("file")).unwrap().len(), becomes, "{size}");
    }
}

#[tokio::test]
async fn state_ids_are_tested_and_freed() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let (good, _) = session.open(create(b"file", b"owner", 3)).await;
    let stateids =
        vec![good, Stateid { seqid: 9, ..good }, Stateid::ANONYMOUS, Stateid { other: [9; 12], ..good }];
    let args = TestStateidArgs { stateids: List::new(stateids).unwrap() };
    let tested = session.last::<op::TestStateid>(vec![ArgOp::TestStateid(args)]).await;
    let bad = Outcome::from(Err(Status::BadStateid));
    assert_eq!(tested.status_codes.to_vec(), vec![Outcome::from(Ok(())), bad, bad, bad]);
    let free = |stateid| vec![ArgOp::FreeStateid(FreeStateidArgs { stateid })];
    assert_eq!(session.status(free(good)).await, Err(Status::LocksHeld));
    assert_eq!(session.status(free(Stateid { other: [9; 12], ..good })).await, Err(Status::BadStateid));
}

#[tokio::test]
async fn shares_keep_others_out() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let denying = OpenArgs { share_deny: 2, ..create(b"file", b"owner", 3) };
    let (stateid, file) = session.open(denying).await;
    let mut other = incarnation.session(b"other").await;
    let writing = || vec![ROOT, ArgOp::Open(open(b"file", b"owner", 2, 0))];
    assert_eq!(other.status(writing()).await, Err(Status::ShareDenied));
    assert_eq!(other.on(file, write(Stateid::ANONYMOUS)).await, Err(Status::Locked));
    assert_eq!(other.status(vec![ROOT, ArgOp::Open(open(b"file", b"owner", 1, 0))]).await, Ok(()));
    assert_eq!(session.on(file, close(stateid)).await, Ok(()));
    assert_eq!(other.status(writing()).await, Ok(()));
    incarnation.end(&[b"client", b"other"]).await;
}

#[tokio::test]
async fn files_are_made_once_by_each_mode() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    let attributes = |mode| ArgFattr::from(Fattr { mode: Some(mode), ..Fattr::default() });
    let make = |how| OpenArgs { openhow: Openflag::Create(how), ..open(b"file", b"owner", 3, 0) };
    let guarded = || vec![ROOT, ArgOp::Open(make(Createhow::Guarded(attributes(0o600))))];
    let opened = session.last::<op::Open>(guarded()).await;
    assert_eq!(opened.attrset, Bitmap::of(&[Attr::Mode]));
    assert_ne!(opened.cinfo.before, opened.cinfo.after);
    assert_eq!(session.status(guarded()).await, Err(Status::Exist));
    let exclusive = |verifier| vec![ROOT, ArgOp::Open(make(Createhow::Exclusive([verifier; 8])))];
    assert_eq!(session.status(exclusive(1)).await, Err(Status::Exist));
    std::fs::remove_file(home.tree().join("file")).unwrap();
    let both = |verifier| {
        let how = Createhow::Exclusive41(Creatverfattr { verf: [verifier; 8], attrs: attributes(0o640) });
        vec![ROOT, ArgOp::Open(make(how))]
    };
    let opened = session.last::<op::Open>(both(1)).await;
    assert!(opened.attrset.contains(Attr::Mode));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(home.tree().join("file")).unwrap());
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(session.status(both(1)).await, Ok(()), "the same creation again");
    assert_eq!(session.status(both(2)).await, Err(Status::Exist));
    let bad = ArgFattr::from(Fattr { fileid: Some(1), ..Fattr::default() });
    let refused = session.status(vec![ROOT, ArgOp::Open(make(Createhow::Unchecked(bad)))]).await;
    assert_eq!(refused, Err(Status::Inval));
}

#[tokio::test]
async fn open_is_for_files_that_are_named_well() {
    let home = Home::new();
    std::fs::create_dir(home.tree().join("dir")).unwrap();
    std::fs::write(home.tree().join("file"), b"").unwrap();
    std::os::unix::fs::symlink("file", home.tree().join("link")).unwrap();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    for (file, status) in [
        (&b"dir"[..], Status::IsDir),
        (b"link", Status::Symlink),
        (b"none", Status::NoEnt),
        (b"", Status::Inval),
        (b"..", Status::BadName),
        (b"a/b", Status::BadChar),
        (&[b'x'; 300], Status::NameTooLong),
    ] {
        let opened = session.status(vec![ROOT, ArgOp::Open(open(file, b"owner", 1, 0))]).await;
        assert_eq!(opened, Err(status), "{}", file.escape_ascii());
    }
    let file = open(b"file", b"owner", 1, 0);
    assert_eq!(session.status(vec![ArgOp::Open(file.clone())]).await, Err(Status::NoFileHandle));
    let below = vec![ROOT, crate::wire::lookup(b"file"), ArgOp::Open(file.clone())];
    assert_eq!(session.status(below).await, Err(Status::NotDir));
    for (access, deny) in [(0, 0), (4, 0), (1, 4), (0x0600 | 1, 0)] {
        let args = OpenArgs { share_access: access, share_deny: deny, ..file.clone() };
        assert_eq!(
            session.status(vec![ROOT, ArgOp::Open(args)]).await,
            Err(Status::Inval),
            "{access:x} {deny}"
        );
    }
    let by_handle = OpenArgs { claim: OpenClaim::Fh, ..file.clone() };
    let complete = vec![ROOT, crate::wire::lookup(b"file"), ArgOp::Open(by_handle)];
    assert_eq!(session.status(complete).await, Ok(()));
    let unwanted = OpenArgs { share_access: 0x0401, ..file.clone() };
    let opened = session.last::<op::Open>(vec![ROOT, ArgOp::Open(unwanted)]).await;
    assert_eq!(opened.delegation, OpenDelegation::NoneExt(OpenNoneDelegation::NotWanted));
    let previous = OpenArgs { claim: OpenClaim::DelegatePrev(name(b"file")), ..file };
    assert_eq!(session.status(vec![ROOT, ArgOp::Open(previous)]).await, Err(Status::NotSupp));
}

#[tokio::test]
async fn nothing_is_opened_before_reclaim_complete() {
    let home = Home::new();
    std::fs::write(home.tree().join("file"), b"").unwrap();
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.reclaiming(b"client", 1).await;
    let opening = vec![ROOT, ArgOp::Open(open(b"file", b"owner", 1, 0))];
    assert_eq!(session.status(opening).await, Err(Status::Grace));
    let reclaim = OpenArgs {
        claim: OpenClaim::Previous(protocol::nfs4::OpenDelegationType::None),
        ..open(b"file", b"owner", 1, 0)
    };
    let reclaiming = vec![ROOT, crate::wire::lookup(b"file"), ArgOp::Open(reclaim)];
    assert_eq!(session.status(reclaiming).await, Err(Status::NoGrace));
}
