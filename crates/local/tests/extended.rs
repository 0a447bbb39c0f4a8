//! Extended attributes, holes, reservations and copies.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::os::unix::fs::MetadataExt;

use bytes::Bytes;
use common::{Served, is_root, machine, name, serve, user};
use vfs::{
    AccessMask, Ace, Acl, Caller, Device, Extended, Extent, Features, FileSystem, FileType, Handle, OpenId,
    OpenRequest, Opens, Owner, Place, SetAttributes, Share, StateidBasis, Status, XattrHow, XattrName,
};

fn xattr(name: &str) -> XattrName {
    XattrName::new(name.as_bytes()).unwrap()
}

fn status<T>(result: Result<T, vfs::Error>) -> Result<T, Status> {
    result.map_err(|error| error.status)
}

async fn set(served: &Served, caller: &Caller, file: &Handle, name: &str, value: &str) -> Result<(), Status> {
    let value = Bytes::copy_from_slice(value.as_bytes());
    status(served.fs.setxattr(caller, file, &xattr(name), value, XattrHow::Either).await).map(drop)
}

fn anonymous(handle: Handle, offset: u64) -> Place {
    Place { handle, by: StateidBasis::Anonymous, offset }
}

async fn features(served: &Served, file: &Handle) -> Features {
    served.fs.limits(&machine(), file).await.unwrap().features
}

#[tokio::test]
async fn extended_attributes_come_back() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    if !features(&served, &file).await.contains(Features::XATTR) {
        eprintln!("skipped: the file system has no extended attributes");
        return;
    }
    let before = served.fs.getattr(&machine(), &file).await.unwrap();
    let how = |how, value: &'static [u8]| {
        let value = Bytes::from_static(value);
        let fs = &served.fs;
        async move { status(fs.setxattr(&machine(), &file, &xattr("colour"), value, how).await) }
    };
    assert_eq!(how(XattrHow::Replace, b"red").await.unwrap_err(), Status::NoXattr);
    let wcc = how(XattrHow::Create, b"red").await.unwrap();
    assert_eq!(wcc.before, Some(before.wcc()));
    assert!(wcc.after.unwrap().change > before.change);
    assert_eq!(how(XattrHow::Create, b"blue").await.unwrap_err(), Status::Exist);
    how(XattrHow::Replace, b"green").await.unwrap();
    assert_eq!(served.fs.getxattr(&machine(), &file, &xattr("colour")).await.unwrap(), "green");
    let long = "v".repeat(2000);
    set(&served, &machine(), &file, "long", &long).await.unwrap();
    set(&served, &machine(), &file, "empty", "").await.unwrap();
    assert_eq!(served.fs.getxattr(&machine(), &file, &xattr("long")).await.unwrap(), long);
    assert_eq!(served.fs.getxattr(&machine(), &file, &xattr("empty")).await.unwrap(), "");
    let too_big = Bytes::from(vec![7; (64 << 10) + 1]);
    let too_big = served.fs.setxattr(&machine(), &file, &xattr("big"), too_big, XattrHow::Either).await;
    assert_eq!(status(too_big).unwrap_err(), Status::XattrTooBig);

    let all = served.fs.listxattrs(&machine(), &file, 0, 1000).await.unwrap();
    assert_eq!(all.names, ["colour", "empty", "long"].map(xattr));
    assert!(all.eof);
    let first = served.fs.listxattrs(&machine(), &file, 0, 20).await.unwrap();
    assert_eq!((first.names, first.eof), (vec![xattr("colour")], false));
    let rest = served.fs.listxattrs(&machine(), &file, first.cookie, 100).await.unwrap();
    assert_eq!((rest.names, rest.eof), (["empty", "long"].map(xattr).to_vec(), true));
    let nothing = served.fs.listxattrs(&machine(), &file, u64::MAX, 100).await.unwrap();
    assert!(nothing.names.is_empty() && nothing.eof);
    assert_eq!(status(served.fs.listxattrs(&machine(), &file, 0, 4).await), Err(Status::TooSmall));

    served.fs.removexattr(&machine(), &file, &xattr("colour")).await.unwrap();
    let gone = served.fs.getxattr(&machine(), &file, &xattr("colour")).await;
    assert_eq!(status(gone), Err(Status::NoXattr));
    let gone = served.fs.removexattr(&machine(), &file, &xattr("colour")).await;
    assert_eq!(status(gone).unwrap_err(), Status::NoXattr);
    set(&served, &machine(), &root, "of", "a directory").await.unwrap();
    assert_eq!(served.fs.getxattr(&machine(), &root, &xattr("of")).await.unwrap(), "a directory");
}

#[tokio::test]
async fn what_is_no_file_has_no_extended_attributes_and_no_error_but_for_a_change() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    if !features(&served, &file).await.contains(Features::XATTR) {
        eprintln!("skipped: the file system has no extended attributes");
        return;
    }
    set(&served, &machine(), &file, "of", "the file").await.unwrap();
    std::os::unix::fs::symlink("file", served.path("link")).unwrap();
    let mode = SetAttributes { mode: Some(0o000), ..SetAttributes::default() };
    for (special, file_type) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        let (special, device) = (name(special), Device::default());
        served.fs.mknod(&machine(), &root, &special, file_type, device, &mode).await.unwrap();
    }
    for special in ["link", "fifo", "socket"] {
        let handle = served.handle(special).await;
        // The kernel would list the names even to a caller without read permission.
        for caller in [machine(), user(1000)] {
            let listed = served.fs.listxattrs(&caller, &handle, 0, 100).await.unwrap();
            assert_eq!((listed.names, listed.eof), (vec![], true), "{special}");
            let got = served.fs.getxattr(&caller, &handle, &xattr("of")).await;
            assert_eq!(status(got), Err(Status::NoXattr), "{special}");
        }
        assert_eq!(set(&served, &machine(), &handle, "of", "it").await, Err(Status::Perm), "{special}");
        let removed = served.fs.removexattr(&machine(), &handle, &xattr("of")).await;
        assert_eq!(status(removed).unwrap_err(), Status::Perm, "{special}");
    }
}

#[tokio::test]
async fn extended_attributes_follow_permissions() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    if !is_root() || !features(&served, &file).await.contains(Features::XATTR) {
        return;
    }
    set(&served, &machine(), &file, "colour", "red").await.unwrap();
    let alice = user(1000);
    assert_eq!(status(served.fs.getxattr(&alice, &file, &xattr("colour")).await).unwrap(), "red");
    assert_eq!(set(&served, &alice, &file, "colour", "blue").await, Err(Status::Access));
    let closed = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    served.fs.setattr(&machine(), &file, &closed, None).await.unwrap();
    let read = served.fs.getxattr(&alice, &file, &xattr("colour")).await;
    assert_eq!(status(read), Err(Status::Access));
    assert_eq!(status(served.fs.listxattrs(&alice, &file, 0, 100).await), Err(Status::Access));
}

#[tokio::test]
async fn holes_are_found_made_and_filled() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "sparse").await.unwrap();
    served.write(&machine(), &file, 1 << 20, &vec![7; 64 << 10]).await.unwrap();
    let cut = SetAttributes { size: Some(4 << 20), ..SetAttributes::default() };
    served.fs.setattr(&machine(), &file, &cut, None).await.unwrap();
    served.fs.commit(&machine(), &file, 0, 0).await.unwrap();
    let seek = |offset, what| {
        let fs = &served.fs;
        async move {
            let found = fs.seek(&machine(), &file, StateidBasis::Anonymous, offset, what).await;
            status(found).map(|found| (found.offset, found.eof))
        }
    };
    let (data, end) = (1 << 20, (1 << 20) + (64 << 10));
    assert_eq!(seek(0, Extent::Data).await, Ok((data, false)));
    assert_eq!(seek(data + 5, Extent::Data).await, Ok((data + 5, false)));
    assert_eq!(seek(0, Extent::Hole).await, Ok((0, false)));
    assert_eq!(seek(data, Extent::Hole).await, Ok((end, false)));
    assert_eq!(seek(end, Extent::Data).await, Err(Status::Nxio), "no data follows");
    assert_eq!(seek(4 << 20, Extent::Hole).await, Err(Status::Nxio), "the end of the file");
    assert_eq!(seek(u64::MAX, Extent::Data).await, Err(Status::Nxio));
    let full = served.create(&machine(), &root, "full").await.unwrap();
    served.write(&machine(), &full, 0, b"data").await.unwrap();
    let hole = served.fs.seek(&machine(), &full, StateidBasis::Anonymous, 1, Extent::Hole).await.unwrap();
    assert_eq!((hole.offset, hole.eof), (4, true));
    assert_eq!(
        status(served.fs.seek(&machine(), &root, StateidBasis::Anonymous, 0, Extent::Data).await),
        Err(Status::IsDir)
    );

    if !features(&served, &file).await.contains(Features::ALLOCATE | Features::DEALLOCATE) {
        eprintln!("skipped: the file system reserves no space");
        return;
    }
    let punched = served.fs.deallocate(&machine(), anonymous(file, data), 4096).await.unwrap();
    assert!(punched.after.unwrap().change > punched.before.unwrap().change);
    assert_eq!(seek(0, Extent::Data).await, Ok((data + 4096, false)));
    assert_eq!(
        served.read(&machine(), &file, data + 4095, 2).await,
        Ok((Bytes::from_static(&[0, 7]), false))
    );
    served.fs.deallocate(&machine(), anonymous(file, 0), u64::MAX).await.unwrap();
    assert_eq!(seek(0, Extent::Data).await, Err(Status::Nxio));
    assert_eq!(std::fs::metadata(served.path("sparse")).unwrap().len(), 4 << 20);

    let grown = served.fs.allocate(&machine(), anonymous(file, 4 << 20), 1 << 20).await.unwrap();
    assert_eq!(grown.after.unwrap().size, 5 << 20);
    assert!(std::fs::metadata(served.path("sparse")).unwrap().blocks() * 512 >= 1 << 20);
    let bad = |offset, length| {
        let fs = &served.fs;
        async move { status(fs.allocate(&machine(), anonymous(file, offset), length).await).unwrap_err() }
    };
    assert_eq!(bad(0, 0).await, Status::Inval);
    assert_eq!(bad(u64::MAX, 5).await, Status::FBig);
}

async fn open(served: &Served, caller: &Caller, handle: Handle, access: Share) -> OpenId {
    let request = OpenRequest::new(handle, None, Owner(Bytes::from_static(b"process")), access);
    served.fs.open(caller, &request).await.unwrap().id
}

#[tokio::test]
async fn ranges_are_copied_between_files() {
    let served = serve();
    let root = served.root().await;
    let from = served.create(&machine(), &root, "from").await.unwrap();
    let to = served.create(&machine(), &root, "to").await.unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    served.write(&machine(), &from, 0, &data).await.unwrap();
    let done = served.fs.copy(&machine(), anonymous(from, 1000), anonymous(to, 5), 2000).await.unwrap();
    assert_eq!((done.count, done.wcc.after.unwrap().size), (2000, 2005));
    assert!(done.wcc.after.unwrap().change > done.wcc.before.unwrap().change);
    assert_eq!(std::fs::read(served.path("to")).unwrap()[5..], data[1000..3000]);
    let rest = served.fs.copy(&machine(), anonymous(from, 100), anonymous(to, 0), 0).await.unwrap();
    assert_eq!(rest.count, 299_900);
    assert_eq!(std::fs::read(served.path("to")).unwrap(), data[100..]);
    let commit = served.fs.commit(&machine(), &to, 0, 0).await.unwrap();
    assert_eq!(commit.verifier, rest.verifier);

    let bad = |from, to, count| {
        let fs = &served.fs;
        async move { status(fs.copy(&machine(), from, to, count).await).unwrap_err() }
    };
    assert_eq!(bad(anonymous(from, 300_001), anonymous(to, 0), 0).await, Status::Inval);
    assert_eq!(bad(anonymous(from, 1), anonymous(to, 0), 300_000).await, Status::Inval);
    assert_eq!(bad(anonymous(from, 0), anonymous(from, 10), 100).await, Status::Inval, "onto itself");
    assert_eq!(bad(anonymous(from, 0), anonymous(to, i64::MAX as u64), 9).await, Status::FBig);
    assert_eq!(bad(anonymous(root, 0), anonymous(to, 0), 1).await, Status::IsDir);

    let reading = open(&served, &machine(), from, Share::READ).await;
    let by = |handle, id| Place { handle, by: StateidBasis::Open(id), offset: 0 };
    assert_eq!(bad(anonymous(to, 0), by(from, reading), 1).await, Status::OpenMode);
    assert_eq!(bad(by(to, reading), anonymous(to, 0), 1).await, Status::BadStateId);
    let writing = open(&served, &machine(), to, Share::WRITE).await;
    assert_eq!(served.fs.copy(&machine(), by(from, reading), by(to, writing), 9).await.unwrap().count, 9);
    if is_root() {
        let alice = user(1000);
        let denied = served.fs.copy(&alice, anonymous(from, 0), anonymous(to, 0), 1).await;
        assert_eq!(status(denied).unwrap_err(), Status::Access);
    }
}

#[tokio::test]
async fn ranges_are_cloned_where_blocks_can_be_shared() {
    let served = serve();
    let root = served.root().await;
    let from = served.create(&machine(), &root, "from").await.unwrap();
    let to = served.create(&machine(), &root, "to").await.unwrap();
    served.write(&machine(), &from, 0, &vec![7; 64 << 10]).await.unwrap();
    let done = served.fs.clone_range(&machine(), anonymous(from, 0), anonymous(to, 0), 0).await;
    if features(&served, &to).await.contains(Features::CLONE) {
        assert!(matches!(status(done).map(|wcc| wcc.after.unwrap().size), Ok(65536) | Err(Status::NotSupp)));
    } else {
        assert_eq!(status(done).unwrap_err(), Status::NotSupp);
    }
    assert_eq!(
        served.fs.lookup(&machine(), &root, &name("to"), vfs::Want::None).await.unwrap().node.handle,
        to
    );
}

fn ace(kind: u32, who: &'static str, mask: u32, flags: u32) -> Ace {
    Ace { kind, flags, mask, who: Bytes::from_static(who.as_bytes()) }
}

#[tokio::test]
async fn access_control_lists_are_kept_and_obeyed() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    if !is_root() || !features(&served, &file).await.contains(Features::ACL) {
        eprintln!("skipped: it takes root, and a file system with access control lists");
        return;
    }
    let mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    served.fs.setattr(&machine(), &file, &mode, None).await.unwrap();
    let may = async |uid: u32| {
        let accessed = served.fs.access(&user(uid), &file, AccessMask::READ).await.unwrap();
        accessed.granted == AccessMask::READ
    };
    assert!(!may(1001).await && !may(1002).await);
    let told = served.fs.acl(&machine(), &file).await.unwrap();
    assert!(told.0.iter().all(|ace| ace.who.ends_with(b"@")), "what the mode says: {told:?}");
    // Allow 1001 to read, and deny it to 1002.
    let acl = Acl(vec![
        ace(0, "OWNER@", 0x7, 0),
        ace(0, "1001", 0x1, 0),
        ace(1, "1002", 0x1, 0),
        ace(0, "EVERYONE@", 0x1, 0),
    ]);
    let before = served.fs.getattr(&machine(), &file).await.unwrap();
    let wcc = served.fs.set_acl(&machine(), &file, &acl).await.unwrap();
    assert_ne!(wcc.after.unwrap().change, before.change);
    assert!(may(1001).await && !may(1002).await && may(1003).await);
    // Setting the list again changes nothing.
    let told = served.fs.acl(&machine(), &file).await.unwrap();
    assert!(told.0.iter().any(|ace| ace.who == "1001"), "{told:?}");
    served.fs.set_acl(&machine(), &file, &told).await.unwrap();
    assert_eq!(served.fs.acl(&machine(), &file).await.unwrap(), told);
    assert!(may(1001).await && !may(1002).await && may(1003).await);
    let other = served.fs.set_acl(&user(1003), &file, &acl).await;
    assert_eq!(status(other).unwrap_err(), Status::Perm, "that is the owner's");
    // The entries that objects in a directory inherit.
    let directory = served
        .fs
        .mkdir(&machine(), &root, &name("dir"), &SetAttributes::default(), vfs::Want::None)
        .await
        .unwrap()
        .node
        .handle;
    let down = Acl(vec![ace(0, "OWNER@", 0x27, 0), ace(0, "1001", 0x21, 0x3)]);
    served.fs.set_acl(&machine(), &directory, &down).await.unwrap();
    let below = served.create(&machine(), &directory, "below").await.unwrap();
    let inherited = served.fs.acl(&machine(), &below).await.unwrap();
    assert!(inherited.0.iter().any(|ace| ace.who == "1001"), "{inherited:?}");
}
