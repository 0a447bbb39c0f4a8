//! Each operation and each of its errors, as root uses them. Rights are in `rights.rs`, opens in `opens.rs`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use bytes::Bytes;
use common::{bench, bench_with, from_start, machine, mode, name, size, user};
use memory::Memory;
use vfs::{
    CreateHow, Device, Entry, Extended, FileSystem, FileType, Handle, ReadDir, SetAttributes, SetTime,
    Stability, StateidBasis, Status, Timestamp, Want,
};

#[tokio::test]
async fn a_file_is_made_written_and_read() {
    let bench = bench().await;
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    assert_eq!(bench.write(&machine(), &file, 3, b"hello").await, Ok(5));
    for (offset, count, data, eof) in [
        (0, 100, &b"\0\0\0hello"[..], true),
        (3, 2, b"he", false),
        (6, 2, b"lo", true),
        (8, 2, b"", true),
        (u64::MAX, 2, b"", true),
    ] {
        let read = bench.fs.read(&machine(), &file, StateidBasis::Anonymous, offset, count).await.unwrap();
        assert_eq!((&read.data.to_bytes().unwrap()[..], read.eof), (data, eof), "{count} at {offset}");
        assert_eq!(read.attributes, Some(bench.stat(&file).await));
    }
    let attributes = bench.stat(&file).await;
    assert_eq!((attributes.size, attributes.used, attributes.mode, attributes.nlink), (8, 8, 0o644, 1));
    assert_eq!(bench.write(&machine(), &file, 0, b"").await, Ok(0));
    assert_eq!(bench.stat(&file).await, attributes, "no byte changes nothing");
    assert_eq!(bench.write(&machine(), &file, u64::MAX - 1, b"beyond").await, Err(Status::FBig));
    assert_eq!(bench.write(&machine(), &file, i64::MAX as u64, b"x").await, Err(Status::FBig));
    assert_eq!(bench.write(&machine(), &bench.root, 0, b"x").await, Err(Status::IsDir));
    assert_eq!(bench.read(&machine(), &bench.root).await, Err(Status::IsDir));
    let long = vec![7; (1 << 20) + 5];
    assert_eq!(bench.write(&machine(), &file, 0, &long).await, Ok(1 << 20), "one transfer at a time");
}

#[tokio::test]
async fn writes_have_the_verifier_of_the_process() {
    let bench = bench().await;
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    let commit = bench.fs.commit(&machine(), &file, 0, 0).await.unwrap();
    for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
        let data = Bytes::from_static(b"data");
        let by = StateidBasis::Anonymous;
        let written = bench.fs.write(&machine(), &file, by, 0, data, stability).await.unwrap();
        assert_eq!((written.stability, written.verifier), (stability, commit.verifier));
    }
    let next = common::bench().await;
    let other = next.create(&machine(), &next.root, "file").await.unwrap();
    assert_ne!(next.fs.commit(&machine(), &other, 0, 0).await.unwrap().verifier, commit.verifier);
    let directory = bench.fs.commit(&machine(), &bench.root, 0, 0).await.unwrap_err();
    assert_eq!(directory.status, Status::IsDir);
}

// Promise: exclusive-creations
#[tokio::test]
async fn the_three_ways_to_create() {
    let bench = bench().await;
    let root = bench.root;
    let maker = user(7);
    let how = |how| bench.create_with(&maker, &root, "file", how, &EMPTY);
    bench.set(&machine(), &root, mode(0o777)).await.unwrap();
    let exclusive = CreateHow::Exclusive([1; 8]);
    let file = how(exclusive).await.unwrap();
    assert_eq!(bench.stat(&file).await.mode, 0o600, "for the owner alone, if nothing is said");
    assert_eq!(how(exclusive).await, Ok(file), "a resend finds what it made");
    assert_eq!(how(CreateHow::Exclusive([2; 8])).await, Err(Status::Exist));
    let other = bench.create_with(&user(8), &root, "file", exclusive, &EMPTY).await;
    assert_eq!(other, Err(Status::Exist), "an overheard verifier opens nothing");
    assert_eq!(how(CreateHow::Guarded).await, Err(Status::Exist));
    bench.write(&user(7), &file, 0, b"data").await.unwrap();
    assert_eq!(how(exclusive).await, Err(Status::Exist), "it has been used since");
    assert_eq!(how(CreateHow::Unchecked).await, Ok(file));
    assert_eq!(bench.stat(&file).await.size, 4);
    let cut = bench.create_with(&user(7), &root, "file", CreateHow::Unchecked, &size(0)).await;
    assert_eq!((cut, bench.stat(&file).await.size), (Ok(file), 0));
    let denied = bench.create_with(&user(8), &root, "file", CreateHow::Unchecked, &size(0)).await;
    assert_eq!(denied, Err(Status::Access));

    bench.mkdir(&machine(), &root, "directory", 0o755).await;
    let taken = bench.create_with(&machine(), &root, "directory", CreateHow::Unchecked, &EMPTY).await;
    assert_eq!(taken, Err(Status::Exist));
    let long = bench.create_with(&machine(), &root, "long", CreateHow::Guarded, &size(5)).await.unwrap();
    assert_eq!(bench.read(&machine(), &long).await, Ok(Bytes::from_static(&[0; 5])));
    let beyond = bench.create_with(&machine(), &root, "beyond", CreateHow::Guarded, &size(u64::MAX)).await;
    assert_eq!(beyond, Err(Status::FBig));
    let none = SetAttributes { uid: Some(u32::MAX), ..EMPTY };
    let none = bench.create_with(&machine(), &root, "none", CreateHow::Guarded, &none).await;
    assert_eq!(none, Err(Status::Inval));
    assert_eq!(bench.create(&machine(), &long, "x").await, Err(Status::NotDir));
    assert_eq!(bench.list(&root, 4096, false).await.len(), 3, "failures leave no names");
}

const EMPTY: SetAttributes =
    SetAttributes { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

#[tokio::test]
async fn attributes_are_set() {
    let bench = bench().await;
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    bench.write(&machine(), &file, 0, b"0123456789").await.unwrap();
    let (atime, mtime) = (Timestamp::new(1_000_000_000, 5), Timestamp::new(-1, 999_999_999));
    let set = SetAttributes {
        mode: Some(0o10_4701),
        uid: Some(12),
        gid: Some(34),
        size: Some(4),
        atime: Some(SetTime::Client(atime)),
        mtime: Some(SetTime::Client(mtime)),
    };
    let before = bench.stat(&file).await;
    let wcc = bench.fs.setattr(&machine(), &file, &set, Some(before.ctime)).await.unwrap();
    let after = wcc.after.unwrap();
    assert_eq!(wcc.before, Some(before.wcc()));
    assert_eq!((after.mode, after.size, after.atime, after.mtime), (0o4701, 4, atime, mtime));
    assert_eq!((after.uid, after.gid), (12, 34));
    assert_eq!(bench.read(&machine(), &file).await, Ok(Bytes::from_static(b"0123")));

    let guarded = bench.fs.setattr(&machine(), &file, &set, Some(before.ctime)).await.unwrap_err();
    assert_eq!((guarded.status, guarded.attributes), (Status::NotSync, Some(Box::new(after))));
    assert_eq!(bench.set(&machine(), &file, EMPTY).await, Ok(after), "nothing set is no change");

    let now = SetAttributes { mtime: Some(SetTime::Server), ..size(6) };
    let grown = bench.set(&machine(), &file, now).await.unwrap();
    assert_eq!((grown.size, grown.atime, grown.mtime), (6, atime, grown.ctime));
    assert_eq!(bench.read(&machine(), &file).await, Ok(Bytes::from_static(b"0123\0\0")));

    let no_time = SetAttributes { atime: Some(SetTime::Client(Timestamp::new(0, 1_000_000_000))), ..EMPTY };
    let no_owner = SetAttributes { gid: Some(u32::MAX), ..EMPTY };
    let pipe =
        bench.fs.mknod(&machine(), &bench.root, &name("pipe"), FileType::Fifo, NO_DEVICE, &EMPTY).await;
    let pipe = pipe.unwrap().node.handle;
    for (handle, set, status) in [
        (bench.root, size(0), Status::IsDir),
        (pipe, size(0), Status::Inval),
        (file, size(u64::MAX), Status::FBig),
        (file, no_time, Status::Inval),
        (file, no_owner, Status::Inval),
    ] {
        assert_eq!(bench.set(&machine(), &handle, set).await, Err(status), "{set:?}");
    }
    assert_eq!(bench.stat(&file).await, grown, "failures change nothing");
}

const NO_DEVICE: Device = Device { major: 0, minor: 0 };

#[tokio::test]
async fn symbolic_links() {
    let bench = bench().await;
    for (number, target) in [&b"short"[..], &[b'x'; 4096], b"/abs/../\xff\xfe"].into_iter().enumerate() {
        let link = name(format!("link-{number}"));
        let made = bench.fs.symlink(&machine(), &bench.root, &link, target, &mode(0)).await.unwrap();
        let (read, attributes) = bench.fs.readlink(&machine(), &made.node.handle).await.unwrap();
        assert_eq!(read, target);
        let attributes = attributes.unwrap();
        assert_eq!((attributes.size, attributes.mode), (target.len() as u64, 0o777));
        let same = bench.set(&machine(), &made.node.handle, mode(0)).await.unwrap();
        assert_eq!(same.mode, 0o777, "it has no mode");
        let read = bench.read(&machine(), &made.node.handle).await;
        assert_eq!(read, Err(Status::Inval), "no operation follows a link");
        let below = bench.lookup(&machine(), &made.node.handle, "x").await;
        assert_eq!(below, Err(Status::NotDir));
    }
    let bad: [(&[u8], Status); 3] =
        [(b"", Status::Inval), (b"a\0b", Status::Inval), (&[b'x'; 4097], Status::NameTooLong)];
    for (target, status) in bad {
        let made = bench.fs.symlink(&machine(), &bench.root, &name("bad"), target, &EMPTY).await;
        assert_eq!(made.unwrap_err().status, status);
    }
    assert_eq!(bench.fs.readlink(&machine(), &bench.root).await.unwrap_err().status, Status::Inval);
}

#[tokio::test]
async fn special_files_are_made_and_never_read() {
    let bench = bench().await;
    let device = Device { major: 7, minor: 300 };
    for kind in [FileType::Fifo, FileType::Socket, FileType::Character, FileType::Block] {
        let file = name(format!("{kind:?}"));
        let made = bench.fs.mknod(&machine(), &bench.root, &file, kind, device, &mode(0o640)).await.unwrap();
        let attributes = made.node.attributes.unwrap();
        let is_device = matches!(kind, FileType::Character | FileType::Block);
        assert_eq!((attributes.file_type, attributes.mode), (kind, 0o640));
        assert_eq!(attributes.rdev, if is_device { device } else { NO_DEVICE });
        assert_eq!(bench.read(&machine(), &made.node.handle).await, Err(Status::Inval), "{kind:?}");
        assert_eq!(bench.write(&machine(), &made.node.handle, 0, b"x").await, Err(Status::Inval), "{kind:?}");
    }
    for kind in [FileType::Regular, FileType::Directory, FileType::Symlink] {
        let made = bench.fs.mknod(&machine(), &bench.root, &name("x"), kind, device, &EMPTY).await;
        assert_eq!(made.unwrap_err().status, Status::BadType);
    }
}

#[tokio::test]
async fn hard_links_and_removal() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let file = bench.create(&machine(), &root, "one").await.unwrap();
    let made = fs.link(&machine(), &file, &root, &name("two")).await.unwrap();
    assert_eq!((made.node.handle, made.node.attributes.unwrap().nlink), (file, 2));
    let again = fs.link(&machine(), &file, &root, &name("two")).await.unwrap_err();
    assert_eq!(again.status, Status::Exist);
    let directory = bench.mkdir(&machine(), &root, "d", 0o755).await;
    let of_directory = fs.link(&machine(), &directory, &root, &name("e")).await.unwrap_err();
    assert_eq!(of_directory.status, Status::IsDir);
    let in_file = fs.link(&machine(), &file, &file, &name("e")).await.unwrap_err();
    assert_eq!(in_file.status, Status::NotDir);
    fs.remove(&machine(), &root, &name("one")).await.unwrap();
    assert_eq!(bench.stat(&file).await.nlink, 1);
    fs.remove(&machine(), &root, &name("two")).await.unwrap();
    assert_eq!(fs.getattr(&machine(), &file).await.unwrap_err().status, Status::Stale);
    let gone = fs.remove(&machine(), &root, &name("two")).await.unwrap_err();
    assert_eq!(gone.status, Status::NoEnt);
    assert_eq!(gone.attributes, Some(Box::new(bench.stat(&root).await)), "the directory's");
}

#[tokio::test]
async fn a_file_has_so_many_links_and_a_directory_so_many_directories() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let most = fs.limits(&machine(), &root).await.unwrap().link_max;
    let file = bench.create(&machine(), &root, "file").await.unwrap();
    for number in 1..most {
        fs.link(&machine(), &file, &root, &name(number.to_string())).await.unwrap();
    }
    let more = fs.link(&machine(), &file, &root, &name("more")).await.unwrap_err();
    assert_eq!(more.status, Status::Mlink);
    let full = bench.mkdir(&machine(), &root, "full", 0o755).await;
    for number in 2..most {
        bench.mkdir(&machine(), &full, &number.to_string(), 0o755).await;
    }
    let more = fs.mkdir(&machine(), &full, &name("more"), &EMPTY, Want::None).await.unwrap_err();
    assert_eq!(more.status, Status::Mlink);
    bench.mkdir(&machine(), &root, "moved", 0o755).await;
    let into = fs.rename(&machine(), &root, &name("moved"), &full, &name("moved")).await.unwrap_err();
    assert_eq!(into.status, Status::Mlink);
    bench.create(&machine(), &full, "file").await.unwrap();
}

#[tokio::test]
async fn directories_are_made_and_removed() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let made = fs.mkdir(&machine(), &root, &name("a"), &EMPTY, Want::None).await.unwrap();
    let a = made.node.handle;
    assert_eq!(made.node.attributes.unwrap().mode, 0o700, "for the owner alone, if nothing is said");
    assert_eq!((bench.stat(&root).await.nlink, bench.stat(&a).await.nlink), (3, 2));
    assert_eq!(fs.parent(&machine(), &a).await.unwrap().node.handle, root);
    assert_eq!(fs.parent(&machine(), &root).await.unwrap().node.handle, root, "never above");
    let again = fs.mkdir(&machine(), &root, &name("a"), &EMPTY, Want::None).await.unwrap_err();
    assert_eq!(again.status, Status::Exist);
    let file = bench.create(&machine(), &a, "file").await.unwrap();
    assert_eq!(fs.parent(&machine(), &file).await.unwrap_err().status, Status::NotDir);
    assert_eq!(bench.lookup(&machine(), &file, "x").await, Err(Status::NotDir));
    assert_eq!(bench.lookup(&machine(), &a, "x").await, Err(Status::NoEnt));
    assert_eq!(fs.rmdir(&machine(), &root, &name("a")).await.unwrap_err().status, Status::NotEmpty);
    assert_eq!(fs.remove(&machine(), &root, &name("a")).await.unwrap_err().status, Status::IsDir);
    assert_eq!(fs.rmdir(&machine(), &a, &name("file")).await.unwrap_err().status, Status::NotDir);
    assert_eq!(fs.rmdir(&machine(), &a, &name("x")).await.unwrap_err().status, Status::NoEnt);
    fs.remove(&machine(), &a, &name("file")).await.unwrap();
    fs.rmdir(&machine(), &root, &name("a")).await.unwrap();
    assert_eq!(bench.stat(&root).await.nlink, 2);
    assert_eq!(bench.create(&machine(), &a, "file").await, Err(Status::Stale));
}

#[tokio::test]
async fn renames() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let a = bench.mkdir(&machine(), &root, "a", 0o755).await;
    let b = bench.mkdir(&machine(), &root, "b", 0o755).await;
    let file = bench.create(&machine(), &a, "file").await.unwrap();
    let victim = bench.create(&machine(), &b, "victim").await.unwrap();
    let before = [bench.stat(&a).await.wcc(), bench.stat(&b).await.wcc()];
    let renamed = fs.rename(&machine(), &a, &name("file"), &b, &name("victim")).await.unwrap();
    assert_eq!([renamed.from.before, renamed.to.before], before.map(Some));
    assert_eq!(
        [renamed.from.after, renamed.to.after].map(Option::unwrap),
        [bench.stat(&a).await, bench.stat(&b).await]
    );
    assert_eq!(bench.lookup(&machine(), &b, "victim").await, Ok(file));
    assert_eq!(fs.getattr(&machine(), &victim).await.unwrap_err().status, Status::Stale);
    bench.mkdir(&machine(), &a, "empty", 0o755).await;
    for (from, old, to, new, status) in [
        (a, "file", b, "victim", Status::NoEnt),
        (root, "b", b, "c", Status::Inval),
        (root, "a", root, "b", Status::NotEmpty),
        (a, "empty", root, "a", Status::NotEmpty),
        (a, "empty", b, "victim", Status::NotDir),
        (b, "victim", a, "empty", Status::IsDir),
        (file, "x", b, "y", Status::NotDir),
        (b, "victim", file, "y", Status::NotDir),
    ] {
        let failed = fs.rename(&machine(), &from, &name(old), &to, &name(new)).await.unwrap_err();
        assert_eq!(failed.status, status, "{old} to {new}");
    }
    fs.rmdir(&machine(), &a, &name("empty")).await.unwrap();
    fs.rename(&machine(), &root, &name("b"), &root, &name("a")).await.unwrap();
    assert_eq!(bench.lookup(&machine(), &root, "a").await, Ok(b));
    assert_eq!(fs.getattr(&machine(), &a).await.unwrap_err().status, Status::Stale);
    let c = bench.mkdir(&machine(), &root, "c", 0o755).await;
    fs.rename(&machine(), &root, &name("a"), &c, &name("d")).await.unwrap();
    assert_eq!(fs.parent(&machine(), &b).await.unwrap().node.handle, c);
    assert_eq!([bench.stat(&root).await.nlink, bench.stat(&c).await.nlink], [3, 3]);

    fs.link(&machine(), &file, &b, &name("twin")).await.unwrap();
    let before = bench.stat(&b).await;
    fs.rename(&machine(), &b, &name("twin"), &b, &name("victim")).await.unwrap();
    assert_eq!(bench.stat(&b).await, before, "two names of one file stay");
}

#[tokio::test]
async fn listings_come_in_parts_and_survive_changes() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    for number in 0..500 {
        bench.create(&machine(), &root, &format!("file-{number}")).await.unwrap();
    }
    for (bytes, plus) in [(1, false), (1000, false), (1000, true), (u32::MAX, true)] {
        let listed = bench.list(&root, bytes, plus).await;
        let mut names: Vec<_> = listed.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), listed.len()), (500, 500), "{bytes} bytes at a time");
        assert!(listed.iter().all(|entry| entry.cookie >= Entry::FIRST_COOKIE));
        for entry in listed {
            let looked = fs.lookup(&machine(), &root, &entry.name, Want::None).await.unwrap().node;
            assert_eq!(entry.fileid, looked.attributes.unwrap().fileid);
            assert_eq!(entry.node, plus.then_some(looked));
        }
    }
    let first = fs.readdir(&machine(), &root, from_start(8000, false)).await.unwrap();
    assert!(!first.eof);
    for entry in &first.entries {
        fs.remove(&machine(), &root, &entry.name).await.unwrap();
    }
    bench.create(&machine(), &root, "new").await.unwrap();
    let cookie = first.entries.last().unwrap().cookie;
    // A version 2 client sends no verifier.
    for verifier in [first.verifier, [0; 8]] {
        let part = ReadDir { cookie, verifier, ..from_start(1 << 20, false) };
        let rest = fs.readdir(&machine(), &root, part).await.unwrap();
        assert!(rest.eof);
        assert_eq!(rest.entries.len() + first.entries.len(), 501);
    }
    let other = ReadDir { cookie, verifier: [9; 8], ..from_start(1000, false) };
    assert_eq!(fs.readdir(&machine(), &root, other).await.unwrap_err().status, Status::BadCookie);
}

#[tokio::test]
async fn a_listing_of_nothing() {
    let bench = bench().await;
    assert!(bench.list(&bench.root, 4096, true).await.is_empty());
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    let listed = bench.fs.readdir(&machine(), &file, from_start(100, false)).await;
    assert_eq!(listed.unwrap_err().status, Status::NotDir);
}

#[tokio::test]
async fn bytes_are_bounded() {
    let bench = bench_with(|options| options.bytes_max = 1000).await;
    let (fs, root) = (&bench.fs, bench.root);
    let file = bench.create(&machine(), &root, "file").await.unwrap(); // 36 bytes for the name
    bench.write(&machine(), &file, 0, &[1; 900]).await.unwrap();
    let before = bench.stat(&root).await;
    assert_eq!(bench.space().await.available_bytes, 64);
    assert_eq!(bench.write(&machine(), &file, 900, &[1; 65]).await, Err(Status::NoSpc));
    assert_eq!(bench.write(&machine(), &file, 1 << 40, b"x").await, Err(Status::NoSpc), "a hole takes bytes");
    assert_eq!(bench.set(&machine(), &file, size(965)).await, Err(Status::NoSpc));
    assert_eq!(bench.set(&machine(), &file, size(i64::MAX as u64)).await, Err(Status::NoSpc));
    let long = bench.create_with(&machine(), &root, "long", CreateHow::Guarded, &size(30)).await;
    assert_eq!(long, Err(Status::NoSpc));
    let target = fs.symlink(&machine(), &root, &name("link"), &[b'x'; 30], &EMPTY).await.unwrap_err();
    assert_eq!((target.status, target.attributes), (Status::NoSpc, Some(Box::new(before))));
    let linked = fs.link(&machine(), &file, &root, &name([b'x'; 33])).await.unwrap_err();
    assert_eq!(linked.status, Status::NoSpc);
    let longer = fs.rename(&machine(), &root, &name("file"), &root, &name([b'x'; 69])).await.unwrap_err();
    assert_eq!(longer.status, Status::NoSpc);
    assert_eq!(bench.stat(&root).await, before);
    assert_eq!(bench.stat(&file).await.size, 900);

    bench.write(&machine(), &file, 900, &[1; 64]).await.unwrap();
    assert_eq!(bench.space().await.available_bytes, 0);
    bench.write(&machine(), &file, 0, &[2; 964]).await.unwrap();
    fs.rename(&machine(), &root, &name("file"), &root, &name("name")).await.unwrap();
    bench.set(&machine(), &file, size(0)).await.unwrap();
    assert_eq!(bench.space().await.available_bytes, 964);
    fs.remove(&machine(), &root, &name("name")).await.unwrap();
    assert_eq!(bench.space().await.available_bytes, 1000);
}

#[tokio::test]
async fn files_are_bounded() {
    let bench = bench_with(|options| options.files_max = 3).await;
    let root = bench.root;
    bench.create(&machine(), &root, "one").await.unwrap();
    bench.mkdir(&machine(), &root, "two", 0o755).await;
    let space = bench.space().await;
    assert_eq!((space.total_files, space.available_files), (3, 0));
    assert_eq!(bench.create(&machine(), &root, "three").await, Err(Status::NoSpc));
    bench.fs.rmdir(&machine(), &root, &name("two")).await.unwrap();
    bench.create(&machine(), &root, "three").await.unwrap();
}

#[tokio::test]
async fn limits_are_told() {
    let bench = bench().await;
    let limits = bench.fs.limits(&machine(), &bench.root).await.unwrap();
    assert_eq!((limits.name_max, limits.read_max, limits.time_delta_nanoseconds), (255, 1 << 20, 1));
    let space = bench.space().await;
    assert_eq!(
        (space.total_bytes, space.free_bytes, space.available_bytes),
        (256 << 20, 256 << 20, 256 << 20)
    );
    let acl = bench.fs.acl(&machine(), &bench.root).await.unwrap_err();
    assert_eq!(acl.status, Status::NotSupp, "what the crate lacks says so");
}

/// A cache decides by these that it has missed nothing.
#[tokio::test]
async fn change_and_ctime_move_with_every_change_whatever_the_clock_does() {
    let bench = bench().await;
    let (fs, root) = (&bench.fs, bench.root);
    let file = bench.create(&machine(), &root, "file").await.unwrap();
    let mut seen = bench.stat(&file).await;
    let past = SetAttributes { mtime: Some(SetTime::Client(Timestamp::new(5, 0))), ..EMPTY };
    for step in 0..7 {
        match step {
            0 | 1 => drop(bench.write(&machine(), &file, 0, b"x").await.unwrap()),
            2 => drop(bench.set(&machine(), &file, mode(0o600)).await.unwrap()),
            3 => drop(bench.set(&machine(), &file, past).await.unwrap()),
            4 => drop(fs.link(&machine(), &file, &root, &name("twin")).await.unwrap()),
            5 => drop(fs.remove(&machine(), &root, &name("twin")).await.unwrap()),
            _ => drop(fs.rename(&machine(), &root, &name("file"), &root, &name("new")).await.unwrap()),
        }
        let now = bench.stat(&file).await;
        assert!(now.change > seen.change && now.ctime > seen.ctime, "step {step}");
        assert_eq!(now.change, now.ctime.as_nanos() as u64);
        seen = now;
        let ahead = if step % 2 == 0 { 1 } else { -3600 };
        let mut clock = bench.clock.0.lock();
        *clock = Timestamp::new(clock.seconds + ahead, 0);
    }
}

/// Tasks change one directory at once. The states that their replies show form one chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_comes_between_before_and_after() {
    let bench = std::sync::Arc::new(bench().await);
    let root = bench.root;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let bench = bench.clone();
        tasks.spawn(async move {
            let mut changes = Vec::new();
            for number in 0..100 {
                let file = name(format!("{task}-{number}"));
                let made =
                    bench.fs.create(&machine(), &root, &file, CreateHow::Guarded, &EMPTY).await.unwrap();
                changes.push(made.directory.change_info().unwrap());
                let removed = bench.fs.remove(&machine(), &root, &file).await.unwrap();
                changes.push(removed.change_info().unwrap());
            }
            changes
        });
    }
    let mut changes = tasks.join_all().await.concat();
    changes.sort_by_key(|change| change.before);
    assert_eq!(changes.len(), 1600);
    assert!(changes.windows(2).all(|pair| pair[0].before < pair[0].after && pair[0].after == pair[1].before));
}

#[tokio::test]
async fn a_handle_of_another_process_is_stale() {
    let bench = bench().await;
    let file = bench.create(&machine(), &bench.root, "file").await.unwrap();
    let next = Memory::default();
    assert_eq!(next.getattr(&machine(), &file).await.unwrap_err().status, Status::Stale);
    let foreign = Handle::new(b"foreign").unwrap();
    assert_eq!(next.getattr(&machine(), &foreign).await.unwrap_err().status, Status::BadHandle);
    let failed =
        bench.fs.rename(&machine(), &bench.root, &name("file"), &foreign, &name("x")).await.unwrap_err();
    assert_eq!(failed.status, Status::BadHandle);
}
