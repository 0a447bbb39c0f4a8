//! Opens and leases.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use bytes::Bytes;
use common::{bench, bench_with, machine, mode, name, open, size, user};
use vfs::{
    AccessMask, Caller, CreateHow, FileSystem, HolderId, LeaseId, LeaseKind, Leases, Lock, LockKind,
    LockRequest, Locked, OpenId, OpenRequest, Opens, Owner, SetAttributes, Share, StateidBasis, Status, Want,
};

#[tokio::test]
async fn an_open_keeps_rights_and_a_removed_file() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let file = bench.create(&machine(), &root, "file").await.unwrap();
    let request = open(root, Some("file"), "owner", Share::READ);
    let opened = fs.open(&user(1), &request).await.unwrap();
    assert_eq!((opened.handle, opened.created, opened.attributes), (file, false, bench.stat(&file).await));
    assert_eq!(opened.granted, Some(AccessMask::READ));
    assert_eq!(opened.directory.after, Some(bench.stat(&root).await));
    let by = StateidBasis::Open(opened.id);
    bench.set(&machine(), &file, mode(0)).await.unwrap();
    assert_eq!(bench.read(&user(1), &file).await, Err(Status::Access));
    assert_eq!(bench.read_by(&user(1), &file, by).await, Ok(Bytes::new()));
    assert_eq!(bench.write_by(&user(1), &file, by, (0, b"x")).await, Err(Status::OpenMode));
    assert_eq!(bench.read_by(&user(1), &root, by).await, Err(Status::BadStateId));

    bench.write(&machine(), &file, 0, b"data").await.unwrap();
    let before = bench.space().await;
    fs.remove(&machine(), &root, &name("file")).await.unwrap();
    assert_eq!(bench.read_by(&user(1), &file, by).await, Ok(Bytes::from_static(b"data")));
    assert_eq!(bench.stat(&file).await.nlink, 0);
    let named = fs.link(&machine(), &file, &root, &name("again")).await.unwrap_err();
    assert_eq!(named.status, Status::NoEnt, "only the open keeps it");
    fs.close(&user(1), opened.id).await.unwrap();
    assert_eq!(fs.getattr(&machine(), &file).await.unwrap_err().status, Status::Stale);
    let after = bench.space().await;
    assert_eq!((after.free_bytes - before.free_bytes, after.free_files - before.free_files), (36 + 4, 1));
    let closed = fs.close(&user(1), opened.id).await.unwrap_err();
    assert_eq!(closed.status, Status::BadStateId);
}

#[tokio::test]
async fn a_second_open_of_an_owner_extends_the_first() {
    let bench = bench().await;
    let (fs, holder) = (&bench.fs, Caller { holder: Some(HolderId(1)), ..machine() });
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    let request = |owner, access| OpenRequest { deny: access, ..open(file, None, owner, access) };
    let first = fs.open(&holder, &request("owner", Share::READ)).await.unwrap().id;
    assert_eq!(fs.open(&holder, &request("owner", Share::WRITE)).await.unwrap().id, first);
    let others = [fs.open(&holder, &request("other", Share::READ)).await.unwrap().id, {
        let stranger = Caller { holder: Some(HolderId(2)), ..machine() };
        fs.open(&stranger, &request("owner", Share::READ)).await.unwrap().id
    }];
    assert!(!others.contains(&first) && others[0] != others[1], "share reservations are the layer's above");
    bench.write_by(&machine(), &file, StateidBasis::Open(first), (0, b"x")).await.unwrap();
    let narrow = fs.downgrade(&holder, first, Share::READ, Share::READ).await;
    narrow.unwrap();
    let wider = fs.downgrade(&holder, first, Share::WRITE, Share::READ).await.unwrap_err();
    assert_eq!(wider.status, Status::Inval);
    let denied = bench.write_by(&machine(), &file, StateidBasis::Open(first), (0, b"x")).await;
    assert_eq!(denied, Err(Status::OpenMode));
    let unknown = fs.downgrade(&holder, OpenId(0), Share::READ, Share::empty()).await.unwrap_err();
    assert_eq!(unknown.status, Status::BadStateId);
}

#[tokio::test]
async fn an_open_makes_a_file_and_its_maker_gets_it_whatever_the_mode() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    bench.set(&machine(), &root, mode(0o777)).await.unwrap();
    let request = |how, set| OpenRequest {
        create: Some((how, set)),
        ..open(root, Some("file"), "owner", Share::READ | Share::WRITE)
    };
    let exclusive = request(CreateHow::Exclusive([1; 8]), mode(0));
    let opened = fs.open(&user(1), &exclusive).await.unwrap();
    let change = opened.directory.change_info().unwrap();
    assert!(opened.created && change.before < change.after);
    assert!(fs.open(&user(1), &exclusive).await.unwrap().created, "a resend");
    bench.write_by(&user(1), &opened.handle, StateidBasis::Open(opened.id), (0, b"data")).await.unwrap();
    for (caller, how, set, status) in [
        (1, CreateHow::Guarded, mode(0), Status::Exist),
        (1, CreateHow::Exclusive([1; 8]), mode(0), Status::Exist),
        (1, CreateHow::Unchecked, size(0), Status::Access),
        (2, CreateHow::Unchecked, SetAttributes::default(), Status::Access),
    ] {
        let failed = fs.open(&user(caller), &request(how, set)).await.unwrap_err();
        assert_eq!(failed.status, status, "{caller} {how:?}");
    }
    assert_eq!(bench.stat(&opened.handle).await.size, 4, "a failed open truncates nothing");
    let unchecked = fs.open(&machine(), &request(CreateHow::Unchecked, size(1))).await.unwrap();
    assert_eq!((unchecked.created, unchecked.attributes.size), (false, 1));
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let bench = bench().await;
    let (fs, root, set) = (&bench.fs, bench.root, SetAttributes::default());
    bench.mkdir(&machine(), &root, "directory", 0o755).await;
    fs.symlink(&machine(), &root, &name("link"), b"target", &set).await.unwrap();
    for (file, status) in [("directory", Status::IsDir), ("link", Status::Inval), ("nothing", Status::NoEnt)]
    {
        let failed = fs.open(&machine(), &open(root, Some(file), "o", Share::READ)).await.unwrap_err();
        assert_eq!(failed.status, status, "{file}");
    }
    let unnamed =
        OpenRequest { create: Some((CreateHow::Guarded, set)), ..open(root, None, "o", Share::READ) };
    assert_eq!(fs.open(&machine(), &unnamed).await.unwrap_err().status, Status::Inval);
}

#[tokio::test]
async fn opens_are_bounded_before_a_file_is_made() {
    let bench = bench_with(|options| options.opens_max = 1).await;
    let (fs, root) = (&bench.fs, bench.root);
    let request = |file| OpenRequest {
        create: Some((CreateHow::Guarded, mode(0o644))),
        ..open(root, Some(file), "owner", Share::READ)
    };
    let first = fs.open(&machine(), &request("one")).await.unwrap();
    let failed = fs.open(&machine(), &request("two")).await.unwrap_err();
    assert_eq!(failed.status, Status::Resource);
    assert_eq!(bench.lookup(&machine(), &root, "two").await, Err(Status::NoEnt));
    assert!(!fs.free_capacity(&machine()).await);
    fs.close(&machine(), first.id).await.unwrap();
    assert!(fs.free_capacity(&machine()).await);
    fs.open(&machine(), &request("two")).await.unwrap();
}

/// The protocol of SETATTR and COMMIT does not always name the open.
#[tokio::test]
async fn an_open_of_the_holder_counts_where_none_is_named() {
    let bench = bench().await;
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    bench.set(&machine(), &file, mode(0o666)).await.unwrap();
    let of = |uid, holder| Caller { holder: Some(HolderId(holder)), ..user(uid) };
    bench.fs.open(&of(1, 7), &open(file, None, "owner", Share::WRITE)).await.unwrap();
    bench.set(&machine(), &file, mode(0)).await.unwrap();
    bench.set(&of(1, 7), &file, size(5)).await.unwrap();
    bench.fs.commit(&of(1, 7), &file, 0, 0).await.unwrap();
    for stranger in [of(2, 7), of(1, 6), of(1, 8), user(1)] {
        assert_eq!(bench.set(&stranger, &file, size(5)).await, Err(Status::Access), "{stranger:?}");
    }
}

#[tokio::test]
async fn every_open_gets_the_lease_of_its_file() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let file = bench.create(&machine(), &root, "file").await.unwrap();
    let wants = async |want| {
        let request = OpenRequest { want, ..open(file, None, "owner", Share::READ) };
        fs.open(&machine(), &request).await.unwrap().lease
    };
    assert_eq!(wants(Want::None).await, None);
    let lease = wants(Want::Any).await.unwrap();
    let expected = (LeaseKind::Write, None, bench.stat(&file).await.change, 0);
    assert_eq!((lease.kind, lease.until, lease.change, lease.space_limit), expected);
    let read = wants(Want::Read).await.unwrap();
    assert_eq!((read.id, read.kind), (lease.id, LeaseKind::Read), "one lease for each file");
    fs.returned(&machine(), lease.id).await.unwrap();
    assert_ne!(wants(Want::Write).await.unwrap().id, lease.id, "an id is given once");
    fs.returned(&machine(), LeaseId(0)).await.unwrap();
    assert!(fs.callbacks().is_none(), "it recalls none");

    let delegated = fs.delegate(&machine(), &root, AccessMask::LOOKUP).await.unwrap();
    let lease = delegated.lease.unwrap();
    assert_eq!((delegated.accessed.granted, lease.kind), (AccessMask::LOOKUP, LeaseKind::Read));
    assert_eq!(delegated.accessed.attributes.unwrap().change, lease.change);
    let of_file = fs.delegate(&machine(), &file, AccessMask::READ).await.unwrap();
    assert!(of_file.lease.is_none(), "it is for directories");
}

#[tokio::test]
async fn locks_are_the_layers_above() {
    let bench = bench().await;
    let fs = &bench.fs;
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    let open = fs.open(&machine(), &open(file, None, "owner", Share::WRITE)).await.unwrap().id;
    let owner = Owner(Bytes::from_static(b"locker"));
    let lock = Lock { owner: owner.clone(), kind: LockKind::Exclusive, offset: 0, length: 5 };
    let request = LockRequest { lock: lock.clone(), wait: false, reclaim: false };
    assert_eq!(fs.lock(&machine(), open, &request).await, Ok(Locked::Granted));
    assert_eq!(fs.test(&machine(), &file, &lock).await, Ok(None));
    assert!(!fs.holds_locks(open, &owner));
    fs.unlock(&machine(), open, &owner, (0, 5)).await.unwrap();
    assert_eq!(fs.flush(&machine(), open).await.unwrap_err().status, Status::NotSupp);
    fs.close(&machine(), open).await.unwrap();
    assert_eq!(fs.lock(&machine(), open, &request).await.unwrap_err().status, Status::BadStateId);
}
