//! Each operation, as clients use it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use bytes::Bytes;
use common::{is_root, machine, name, serve, serve_with, user};
use vfs::{
    AccessMask, CreateHow, Data, Device, FileSystem, FileType, ReadDir, SetAttributes, SetTime, Stability,
    StateidBasis, Status, Timestamp,
};

#[tokio::test]
async fn a_file_is_made_written_and_read() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    assert_eq!(served.write(&machine(), &file, 3, b"hello").await, Ok(5));
    assert_eq!(served.read(&machine(), &file, 0, 100).await, Ok((Bytes::from_static(b"\0\0\0hello"), true)));
    assert_eq!(served.read(&machine(), &file, 3, 2).await, Ok((Bytes::from_static(b"he"), false)));
    assert_eq!(served.read(&machine(), &file, 6, 2).await, Ok((Bytes::from_static(b"lo"), true)));
    assert_eq!(served.read(&machine(), &file, 8, 2).await, Ok((Bytes::new(), true)));
    assert_eq!(served.read(&machine(), &file, u64::MAX, 2).await, Ok((Bytes::new(), true)));
    assert_eq!(std::fs::read(served.path("file")).unwrap(), b"\0\0\0hello");
    let attributes = served.fs.getattr(&machine(), &file).await.unwrap();
    let there = std::fs::metadata(served.path("file")).unwrap();
    assert_eq!((attributes.size, attributes.mode, attributes.nlink), (8, 0o644, 1));
    assert_eq!((attributes.fileid, attributes.mtime.seconds), (there.ino(), there.mtime()));
    let ctime = attributes.ctime.as_nanos() as u64;
    assert!((ctime - 1_000_000..=ctime).contains(&attributes.change));
}

#[tokio::test]
async fn a_large_read_is_a_range_of_the_file() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
    served.write(&machine(), &file, 0, &data).await.unwrap();
    let read = served.fs.read(&machine(), &file, StateidBasis::Anonymous, 200_000, 1 << 20).await.unwrap();
    assert!(matches!(read.data, Data::File(_)) && read.eof);
    assert_eq!(read.data.to_bytes().unwrap(), data[200_000..]);
    let read = served.fs.read(&machine(), &file, StateidBasis::Anonymous, 0, 64 << 10).await.unwrap();
    assert!(matches!(read.data, Data::File(_)) && !read.eof);
    assert_eq!(read.data.len(), 64 << 10);
    let read = served.fs.read(&machine(), &file, StateidBasis::Anonymous, 0, (64 << 10) - 1).await.unwrap();
    assert!(matches!(read.data, Data::Bytes(_)));
    assert_eq!(read.data.to_bytes().unwrap(), data[..(64 << 10) - 1]);
}

/// Truncates more files than the pool has workers, each while a reply with a range of it is not sent.
#[tokio::test(flavor = "multi_thread")]
async fn cuts_that_wait_hold_up_nobody_else() {
    let served = std::sync::Arc::new(serve());
    let root = served.root().await;
    let mut out = Vec::new();
    let mut cuts = tokio::task::JoinSet::new();
    for number in 0..64 {
        let file = served.create(&machine(), &root, &format!("file{number}")).await.unwrap();
        served.write(&machine(), &file, 0, &vec![7; 100_000]).await.unwrap();
        out.push(served.fs.read(&machine(), &file, StateidBasis::Anonymous, 0, 1 << 20).await.unwrap());
        let served = served.clone();
        cuts.spawn(async move {
            let set = SetAttributes { size: Some(1), ..SetAttributes::default() };
            served.fs.setattr(&machine(), &file, &set, None).await.unwrap();
        });
    }
    // Each of these needs a worker, and is queued after the truncations.
    for number in 0..8 {
        served.create(&machine(), &root, &format!("other{number}")).await.unwrap();
    }
    let read = |read: &vfs::Read| read.data.to_bytes().unwrap() == vec![7; 100_000];
    assert!(out.iter().all(read), "no cut was done before");
    drop(out);
    while let Some(cut) = cuts.join_next().await {
        cut.unwrap();
    }
    for number in 0..64 {
        assert_eq!(std::fs::metadata(served.path(format!("file{number}"))).unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_waits_for_ranges_on_their_way() {
    let served = std::sync::Arc::new(serve());
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    served.write(&machine(), &file, 0, &vec![7; 100_000]).await.unwrap();
    let read = served.fs.read(&machine(), &file, StateidBasis::Anonymous, 0, 1 << 20).await.unwrap();
    let cutter = tokio::spawn({
        let served = served.clone();
        let cut = SetAttributes { size: Some(1), ..SetAttributes::default() };
        async move { served.fs.setattr(&machine(), &file, &cut, None).await.map(drop) }
    });
    // While the truncation waits, a large read gets bytes; before and after that it gets a range.
    loop {
        let other = served.fs.read(&machine(), &file, StateidBasis::Anonymous, 0, 1 << 20).await.unwrap();
        match other.data {
            Data::File(_) => tokio::task::yield_now().await,
            Data::Bytes(bytes) => break assert_eq!(bytes.len(), 100_000),
        }
    }
    assert_eq!(read.data.to_bytes().unwrap().len(), 100_000);
    drop(read);
    cutter.await.unwrap().unwrap();
    assert_eq!(served.read(&machine(), &file, 0, 1 << 20).await, Ok((Bytes::from_static(&[7]), true)));
}

#[tokio::test]
async fn sparse_files_and_64_bit_sizes() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "sparse").await.unwrap();
    let far = 5 << 40;
    served.write(&machine(), &file, far, b"end").await.unwrap();
    let attributes = served.fs.getattr(&machine(), &file).await.unwrap();
    assert_eq!(attributes.size, far + 3);
    assert!(attributes.used < 1 << 20, "{} bytes of disk for a hole", attributes.used);
    assert_eq!(served.read(&machine(), &file, far - 2, 9).await, Ok((Bytes::from_static(b"\0\0end"), true)));
    assert_eq!(served.read(&machine(), &file, 1 << 33, 4).await, Ok((Bytes::from_static(&[0; 4]), false)));
    assert_eq!(served.write(&machine(), &file, u64::MAX - 1, b"beyond").await, Err(Status::FBig));
    assert_eq!(served.write(&machine(), &file, i64::MAX as u64, b"x").await, Err(Status::FBig));
}

// Promise: stable-data
#[tokio::test]
async fn stability_and_commit() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    let mut verifiers = Vec::new();
    for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
        let data = Bytes::from_static(b"data");
        let written =
            served.fs.write(&machine(), &file, StateidBasis::Anonymous, 0, data, stability).await.unwrap();
        assert_eq!(written.stability, stability);
        verifiers.push(written.verifier);
    }
    let commit = served.fs.commit(&machine(), &file, 0, 0).await.unwrap();
    assert_eq!(commit.wcc.before, commit.wcc.after.map(|after| after.wcc()));
    assert!(verifiers.iter().all(|verifier| *verifier == commit.verifier));
    let served = served.restarted();
    assert_ne!(served.fs.commit(&machine(), &file, 0, 0).await.unwrap().verifier, commit.verifier);
}

#[tokio::test]
async fn the_three_ways_to_create() {
    let served = serve();
    let root = served.root().await;
    let fs = &served.fs;
    let how = |how| async move {
        let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        let made = fs.create(&machine(), &root, &name("file"), how, &set).await;
        made.map(|made| made.node).map_err(|error| error.status)
    };
    let exclusive = CreateHow::Exclusive(*b"\xff\xee\xdd\xcc\x01\x02\x03\x04");
    let made = how(exclusive).await.unwrap();
    assert_eq!(made.attributes.unwrap().mode, 0o640);
    // As if the first attempt had been interrupted before it set the mode.
    let less = SetAttributes { mode: Some(0), ..SetAttributes::default() };
    served.fs.setattr(&machine(), &made.handle, &less, None).await.unwrap();
    let again = how(exclusive).await.unwrap();
    assert_eq!(again.handle, made.handle, "a resend finds what it made");
    assert_eq!(again.attributes.unwrap().mode, 0o640);
    assert_eq!(how(CreateHow::Exclusive([9; 8])).await, Err(Status::Exist));
    assert_eq!(how(CreateHow::Guarded).await, Err(Status::Exist));
    served.write(&machine(), &made.handle, 0, b"data").await.unwrap();
    assert_eq!(how(exclusive).await, Err(Status::Exist), "it has been used since");
    let same = how(CreateHow::Unchecked).await.unwrap();
    assert_eq!((same.handle, same.attributes.unwrap().size), (made.handle, 4));
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let cut = served.fs.create(&machine(), &root, &name("file"), CreateHow::Unchecked, &cut).await.unwrap();
    assert_eq!(cut.node.attributes.unwrap().size, 0);

    std::fs::create_dir(served.path("directory")).unwrap();
    let set = SetAttributes::default();
    let taken = served.fs.create(&machine(), &root, &name("directory"), CreateHow::Unchecked, &set).await;
    assert_eq!(taken.unwrap_err().status, Status::Exist);
}

/// A kill could leave only a state that another client could see: there is never a name without the
/// verifier.
// Promise: exclusive-creations
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_made_exclusively_has_its_verifier_from_the_first() {
    const FILES: usize = 200;
    let served = serve();
    let root = served.root().await;
    let directory = served.path("");
    let seen_without = std::thread::spawn(move || {
        let mut seen = 0;
        for at in 0..FILES {
            let path = directory.join(at.to_string());
            let there = loop {
                match std::fs::metadata(&path) {
                    Ok(there) => break there,
                    Err(_) => std::hint::spin_loop(),
                }
            };
            seen += usize::from((there.atime(), there.mtime()) != (0x0102_0304, 0x0506_0708));
        }
        seen
    });
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    for at in 0..FILES {
        let how = CreateHow::Exclusive([1, 2, 3, 4, 5, 6, 7, 8]);
        let made = served.fs.create(&machine(), &root, &name(at.to_string()), how, &set).await.unwrap();
        let made = made.node.attributes.unwrap();
        assert_eq!((made.mode, made.nlink, made.size), (0o640, 1, 0));
    }
    assert_eq!(seen_without.join().unwrap(), 0);
}

// Promise: exclusive-creations
#[tokio::test]
async fn a_resent_exclusive_create_is_not_given_anothers_file() {
    let served = serve();
    let root = served.root().await;
    let resent = vfs::Caller { resent: true, ..machine() };
    let set = SetAttributes::default();
    std::fs::write(served.path("lock"), b"").unwrap();
    let failed = served
        .fs
        .create(&resent, &root, &name("lock"), CreateHow::Exclusive([7; 8]), &set)
        .await
        .unwrap_err();
    assert_eq!(failed.status, Status::Exist);
}

#[tokio::test]
async fn the_mode_is_the_clients_whatever_our_umask() {
    let served = serve();
    let root = served.root().await;
    for mode in [0o777, 0o666, 0o4755, 0] {
        let file = format!("file-{mode:o}");
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        served.fs.create(&machine(), &root, &name(&file), CreateHow::Guarded, &set).await.unwrap();
        assert_eq!(std::fs::metadata(served.path(&file)).unwrap().mode() & 0o7777, mode);
    }
    let set = SetAttributes { mode: Some(0o1777), ..SetAttributes::default() };
    let made = served.fs.mkdir(&machine(), &root, &name("directory"), &set, vfs::Want::None).await.unwrap();
    assert_eq!(made.node.attributes.unwrap().mode, 0o1777);
}

#[tokio::test]
async fn attributes_are_set() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "file").await.unwrap();
    served.write(&machine(), &file, 0, b"0123456789").await.unwrap();
    let (atime, mtime) = (Timestamp::new(1_000_000_000, 5), Timestamp::new(-1, 999_999_999));
    let set = SetAttributes {
        mode: Some(0o4701),
        size: Some(4),
        atime: Some(SetTime::Client(atime)),
        mtime: Some(SetTime::Client(mtime)),
        ..SetAttributes::default()
    };
    let before = served.fs.getattr(&machine(), &file).await.unwrap();
    let wcc = served.fs.setattr(&machine(), &file, &set, Some(before.ctime)).await.unwrap();
    let after = wcc.after.unwrap();
    assert_eq!(wcc.before, Some(before.wcc()));
    assert_eq!((after.mode, after.size, after.atime, after.mtime), (0o4701, 4, atime, mtime));

    let guarded = served.fs.setattr(&machine(), &file, &set, Some(before.ctime)).await.unwrap_err();
    assert_eq!(guarded.status, Status::NotSync);
    assert_eq!(guarded.attributes.unwrap().ctime, after.ctime);

    let grow =
        SetAttributes { size: Some(1 << 40), mtime: Some(SetTime::Server), ..SetAttributes::default() };
    let grown = served.fs.setattr(&machine(), &file, &grow, None).await.unwrap().after.unwrap();
    assert_eq!(grown.size, 1 << 40);
    assert!(grown.mtime > atime);
    assert_eq!(grown.atime, atime);

    let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(served.fs.setattr(&machine(), &root, &size, None).await.unwrap_err().status, Status::IsDir);
    let size = SetAttributes { size: Some(u64::MAX), ..SetAttributes::default() };
    assert_eq!(served.fs.setattr(&machine(), &file, &size, None).await.unwrap_err().status, Status::FBig);
}

#[tokio::test]
async fn links_themselves_are_changed_not_what_they_point_to() {
    let served = serve();
    let root = served.root().await;
    std::fs::write(served.path("target"), "").unwrap();
    let link = served
        .fs
        .symlink(&machine(), &root, &name("link"), b"target", &SetAttributes::default())
        .await
        .unwrap();
    let time = Timestamp::new(77, 0);
    let set = SetAttributes { mode: Some(0), mtime: Some(SetTime::Client(time)), ..SetAttributes::default() };
    let after = served.fs.setattr(&machine(), &link.node.handle, &set, None).await.unwrap().after.unwrap();
    assert_eq!((after.file_type, after.mtime), (FileType::Symlink, time));
    if is_root() {
        let owner = SetAttributes { uid: Some(12), gid: Some(34), ..SetAttributes::default() };
        served.fs.setattr(&machine(), &link.node.handle, &owner, None).await.unwrap();
        let there = std::fs::symlink_metadata(served.path("link")).unwrap();
        assert_eq!((there.uid(), there.gid()), (12, 34));
        assert_eq!(std::fs::metadata(served.path("target")).unwrap().uid(), 0);
        let none = SetAttributes { uid: Some(u32::MAX), ..SetAttributes::default() };
        let refused = served.fs.setattr(&machine(), &link.node.handle, &none, None).await.unwrap_err();
        assert_eq!(refused.status, Status::Inval);
    }
    assert_ne!(std::fs::metadata(served.path("target")).unwrap().mode() & 0o777, 0);
}

#[tokio::test]
async fn symbolic_links() {
    let served = serve();
    let root = served.root().await;
    for (number, target) in [&b"short"[..], &[b'x'; 4000], b"/abs/../\xff\xfe"].into_iter().enumerate() {
        let link = name(format!("link-{number}"));
        let made =
            served.fs.symlink(&machine(), &root, &link, target, &SetAttributes::default()).await.unwrap();
        let (read, attributes) = served.fs.readlink(&machine(), &made.node.handle).await.unwrap();
        assert_eq!(read, target);
        assert_eq!(attributes.unwrap().size, target.len() as u64);
        let looked = served.fs.lookup(&machine(), &root, &link, vfs::Want::None).await.unwrap();
        assert_eq!(looked.node.handle, made.node.handle, "a lookup does not follow");
    }
    let bad = served.fs.symlink(&machine(), &root, &name("bad"), b"a\0b", &SetAttributes::default()).await;
    assert_eq!(bad.unwrap_err().status, Status::Inval);
    assert_eq!(served.fs.readlink(&machine(), &root).await.unwrap_err().status, Status::Inval);
}

#[tokio::test]
async fn special_files_are_made_and_never_opened() {
    let served = serve();
    let root = served.root().await;
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let mut kinds = vec![FileType::Fifo, FileType::Socket];
    if is_root() {
        kinds.extend([FileType::Character, FileType::Block]);
    }
    for kind in kinds {
        let file = format!("{kind:?}");
        let device = Device { major: 7, minor: 300 };
        let made = served.fs.mknod(&machine(), &root, &name(&file), kind, device, &set).await.unwrap();
        let attributes = made.node.attributes.unwrap();
        assert_eq!(attributes.file_type, kind);
        let is_device = matches!(kind, FileType::Character | FileType::Block);
        assert_eq!(attributes.rdev, if is_device { device } else { Device::default() });
        let handle = made.node.handle;
        assert_eq!(served.read(&machine(), &handle, 0, 10).await, Err(Status::Inval), "{kind:?}");
        assert_eq!(served.write(&machine(), &handle, 0, b"x").await, Err(Status::Inval), "{kind:?}");
        let mode = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        served.fs.setattr(&machine(), &handle, &mode, None).await.unwrap();
        assert_eq!(served.fs.getattr(&machine(), &handle).await.unwrap().mode, 0o644);
    }
    assert!(std::fs::symlink_metadata(served.path("Fifo")).unwrap().file_type().is_fifo());
    let regular =
        served.fs.mknod(&machine(), &root, &name("x"), FileType::Regular, Device::default(), &set).await;
    assert_eq!(regular.unwrap_err().status, Status::BadType);
    if is_root() {
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&served.directory, mode).unwrap();
        let device = Device { major: 1, minor: 3 };
        let made =
            served.fs.mknod(&user(1000), &root, &name("null"), FileType::Character, device, &set).await;
        assert_eq!(made.unwrap_err().status, Status::Perm, "devices are root's");
        served.fs.mknod(&user(1000), &root, &name("pipe"), FileType::Fifo, device, &set).await.unwrap();
    }
}

#[tokio::test]
async fn hard_links_and_removal() {
    let served = serve();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "one").await.unwrap();
    let made = served.fs.link(&machine(), &file, &root, &name("two")).await.unwrap();
    assert_eq!((made.node.handle, made.node.attributes.unwrap().nlink), (file, 2));
    assert_eq!(
        served.fs.link(&machine(), &file, &root, &name("two")).await.unwrap_err().status,
        Status::Exist
    );
    let wcc = served.fs.remove(&machine(), &root, &name("one")).await.unwrap();
    assert!(wcc.before.is_some() && wcc.after.is_some());
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap().nlink, 1);
    served.fs.remove(&machine(), &root, &name("two")).await.unwrap();
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap_err().status, Status::Stale);
    let gone = served.fs.remove(&machine(), &root, &name("two")).await.unwrap_err();
    assert_eq!(gone.status, Status::NoEnt);
    assert!(gone.attributes.unwrap().is_dir(), "the directory's attributes come along");

    let link = served
        .fs
        .symlink(&machine(), &root, &name("link"), b"nowhere", &SetAttributes::default())
        .await
        .unwrap();
    let made = served.fs.link(&machine(), &link.node.handle, &root, &name("link-2")).await.unwrap();
    assert_eq!(made.node.handle, link.node.handle, "a link to the link itself");
}

#[tokio::test]
async fn directories_are_made_and_removed() {
    let served = serve();
    let root = served.root().await;
    let made = served
        .fs
        .mkdir(&machine(), &root, &name("a"), &SetAttributes::default(), vfs::Want::None)
        .await
        .unwrap();
    let a = made.node.handle;
    assert_eq!(made.node.attributes.unwrap().mode, 0o700, "for the owner alone, if nothing is said");
    assert_eq!(served.fs.parent(&machine(), &a).await.unwrap().node.handle, root);
    assert_eq!(served.fs.parent(&machine(), &root).await.unwrap().node.handle, root, "never above");
    let file = served.create(&machine(), &a, "file").await.unwrap();
    assert_eq!(served.fs.parent(&machine(), &file).await.unwrap_err().status, Status::NotDir);
    assert_eq!(
        served.fs.lookup(&machine(), &file, &name("x"), vfs::Want::None).await.unwrap_err().status,
        Status::NotDir
    );
    assert_eq!(served.fs.rmdir(&machine(), &root, &name("a")).await.unwrap_err().status, Status::NotEmpty);
    assert_eq!(served.fs.remove(&machine(), &root, &name("a")).await.unwrap_err().status, Status::IsDir);
    assert_eq!(served.fs.rmdir(&machine(), &a, &name("file")).await.unwrap_err().status, Status::NotDir);
    assert_eq!(served.fs.link(&machine(), &a, &root, &name("b")).await.unwrap_err().status, Status::IsDir);
    served.fs.remove(&machine(), &a, &name("file")).await.unwrap();
    served.fs.rmdir(&machine(), &root, &name("a")).await.unwrap();
    assert_eq!(served.create(&machine(), &a, "file").await, Err(Status::Stale));
}

#[tokio::test]
async fn renames() {
    let served = serve();
    let root = served.root().await;
    let a = served
        .fs
        .mkdir(&machine(), &root, &name("a"), &SetAttributes::default(), vfs::Want::None)
        .await
        .unwrap()
        .node
        .handle;
    let b = served
        .fs
        .mkdir(&machine(), &root, &name("b"), &SetAttributes::default(), vfs::Want::None)
        .await
        .unwrap()
        .node
        .handle;
    let file = served.create(&machine(), &a, "file").await.unwrap();
    let victim = served.create(&machine(), &b, "victim").await.unwrap();
    let renamed = served.fs.rename(&machine(), &a, &name("file"), &b, &name("victim")).await.unwrap();
    assert!(renamed.from.before.is_some() && renamed.to.after.is_some());
    assert_eq!(served.handle("b/victim").await, file);
    assert_eq!(served.fs.getattr(&machine(), &victim).await.unwrap_err().status, Status::Stale);
    let again = served.fs.rename(&machine(), &a, &name("file"), &b, &name("victim")).await.unwrap_err();
    assert_eq!(again.status, Status::NoEnt);
    let into_itself = served.fs.rename(&machine(), &root, &name("b"), &b, &name("c")).await.unwrap_err();
    assert_eq!(into_itself.status, Status::Inval);
    let over_full = served.fs.rename(&machine(), &root, &name("a"), &root, &name("b")).await.unwrap_err();
    assert_eq!(over_full.status, Status::NotEmpty);
    served.fs.rename(&machine(), &root, &name("b"), &root, &name("a")).await.unwrap();
    assert_eq!(served.handle("a/victim").await, file);
    assert_eq!(served.fs.getattr(&machine(), &a).await.unwrap_err().status, Status::Stale);
    assert_eq!(served.fs.parent(&machine(), &b).await.unwrap().node.handle, root);
}

#[tokio::test]
async fn names_are_any_bytes() {
    let served = serve();
    let root = served.root().await;
    let long: Vec<u8> = (0..255_u32).map(|at| (at % 127 + 128) as u8).collect();
    for bytes in [&long[..], b"caf\xe9", b"\\040 \n", b"..."] {
        let set = SetAttributes::default();
        let made = served.fs.create(&machine(), &root, &name(bytes), CreateHow::Guarded, &set).await.unwrap();
        let looked = served.fs.lookup(&machine(), &root, &name(bytes), vfs::Want::None).await.unwrap();
        assert_eq!(looked.node.handle, made.node.handle);
        assert!(served.path(std::ffi::OsStr::from_bytes(bytes)).exists());
    }
    let listed = served.list(&root, 100, false).await;
    assert!(listed.iter().any(|entry| entry.name.as_bytes() == long));
    assert_eq!(listed.len(), 4);
}

#[tokio::test]
async fn listings_come_in_parts_and_survive_changes() {
    let served = serve_with(|options| options.sync = false);
    let root = served.root().await;
    for number in 0..500 {
        std::fs::write(served.path(format!("file-{number}")), "").unwrap();
    }
    for (bytes, plus) in [(1, false), (1000, false), (1000, true), (1 << 20, true)] {
        let listed = served.list(&root, bytes, plus).await;
        let mut names: Vec<_> = listed.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), listed.len()), (500, 500), "{bytes} bytes at a time");
        assert!(listed.iter().all(|entry| entry.cookie >= vfs::Entry::FIRST_COOKIE));
        assert!(listed.iter().all(|entry| entry.node.is_some() == plus));
    }
    let plus = served.list(&root, 1 << 20, true).await;
    let looked = served.fs.lookup(&machine(), &root, &plus[7].name, vfs::Want::None).await.unwrap().node;
    assert_eq!(plus[7].node, Some(looked));
    assert_eq!(plus[7].fileid, looked.attributes.unwrap().fileid);

    // A listing continues after the same entry, although the listed entries were removed, others were
    // added, and the server was restarted.
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 8000,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let first = served.fs.readdir(&machine(), &root, part).await.unwrap();
    assert!(!first.eof);
    for entry in &first.entries {
        served.fs.remove(&machine(), &root, &entry.name).await.unwrap();
    }
    served.create(&machine(), &root, "new").await.unwrap();
    let served = served.restarted();
    let cookie = first.entries.last().unwrap().cookie;
    let part = ReadDir {
        cookie,
        verifier: first.verifier,
        bytes: 1 << 20,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let rest = served.fs.readdir(&machine(), &root, part).await.unwrap();
    assert!(rest.eof);
    let old = rest.entries.iter().filter(|entry| entry.name != name("new")).count();
    assert_eq!(old + first.entries.len(), 500);
}

#[tokio::test]
async fn a_listing_of_nothing() {
    let served = serve();
    let root = served.root().await;
    assert!(served.list(&root, 4096, true).await.is_empty());
    let file = served.create(&machine(), &root, "file").await.unwrap();
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 100,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    assert_eq!(served.fs.readdir(&machine(), &file, part).await.unwrap_err().status, Status::NotDir);
}

#[tokio::test]
async fn space_and_limits() {
    let served = serve();
    let root = served.root().await;
    let space = served.fs.fsstat(&machine(), &root).await.unwrap();
    assert!(space.total_bytes >= space.free_bytes && space.free_bytes >= space.available_bytes);
    assert!(space.total_bytes > 0);
    // Space reserved for the superuser is free, but available to no user, as in statfs(2). Other processes
    // use the file system meanwhile.
    let native = rustix::fs::statvfs(served.path("")).unwrap();
    let [free, available] = [native.f_bfree, native.f_bavail].map(|blocks| blocks * native.f_frsize);
    for caller in [machine(), user(1000)] {
        let told = served.fs.fsstat(&caller, &root).await.unwrap().available_bytes;
        assert!(told.abs_diff(available) <= told.abs_diff(free), "{told} of {available} and {free}");
    }
    let limits = served.fs.limits(&machine(), &root).await.unwrap();
    assert_eq!((limits.name_max, limits.read_max), (255, 1 << 20));
    assert!((1..=10_000_000).contains(&limits.time_delta_nanoseconds));
}

#[tokio::test]
async fn a_call_that_took_effect_before_succeeds_when_resent() {
    let served = serve();
    let root = served.root().await;
    let resent = vfs::Caller { resent: true, ..machine() };
    let set = SetAttributes::default();
    let file =
        served.fs.create(&machine(), &root, &name("f"), CreateHow::Guarded, &set).await.unwrap().node.handle;
    let again = served.fs.create(&resent, &root, &name("f"), CreateHow::Guarded, &set).await.unwrap();
    assert_eq!(again.node.handle, file);
    served.fs.link(&machine(), &file, &root, &name("l")).await.unwrap();
    served.fs.link(&resent, &file, &root, &name("l")).await.unwrap();
    served.fs.mkdir(&machine(), &root, &name("d"), &set, vfs::Want::None).await.unwrap();
    served.fs.mkdir(&resent, &root, &name("d"), &set, vfs::Want::None).await.unwrap();
    served.fs.symlink(&machine(), &root, &name("s"), b"t", &set).await.unwrap();
    served.fs.symlink(&resent, &root, &name("s"), b"t", &set).await.unwrap();
    let other = served.fs.symlink(&resent, &root, &name("s"), b"other", &set).await.unwrap_err();
    assert_eq!(other.status, Status::Exist);
    served.fs.rename(&machine(), &root, &name("f"), &root, &name("g")).await.unwrap();
    served.fs.rename(&resent, &root, &name("f"), &root, &name("g")).await.unwrap();
    served.fs.remove(&machine(), &root, &name("g")).await.unwrap();
    served.fs.remove(&resent, &root, &name("g")).await.unwrap();
    served.fs.rmdir(&machine(), &root, &name("d")).await.unwrap();
    served.fs.rmdir(&resent, &root, &name("d")).await.unwrap();
    let link = served.handle("s").await;
    let ctime = served.fs.getattr(&machine(), &link).await.unwrap().ctime;
    let time = SetAttributes { mtime: Some(SetTime::Client(Timestamp::new(5, 0))), ..set };
    served.fs.setattr(&machine(), &link, &time, Some(ctime)).await.unwrap();
    served.fs.setattr(&resent, &link, &time, Some(ctime)).await.unwrap();
}

#[tokio::test]
async fn access_says_what_the_owner_may() {
    let served = serve();
    let root = served.root().await;
    let granted = served.fs.access(&machine(), &root, AccessMask::all()).await.unwrap().granted;
    let all =
        AccessMask::READ | AccessMask::LOOKUP | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE;
    assert_eq!(granted, all);
    let file = served.create(&machine(), &root, "file").await.unwrap();
    let granted = served.fs.access(&machine(), &file, AccessMask::all()).await.unwrap().granted;
    assert_eq!(granted, AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND);
    let asked =
        served.fs.access(&machine(), &file, AccessMask::READ | AccessMask::EXECUTE).await.unwrap().granted;
    assert_eq!(asked, AccessMask::READ, "only what was asked");
}
