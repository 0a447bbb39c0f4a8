//! The computed tree, changes over it, and the bounds of the changes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{bench, bench_with, from_start, machine, mode, name, open, size};
use vfs::{
    AccessMask, CreateHow, Entry, FileSystem, Handle, LeaseKind, Leases, Opens, ReadDir, SetAttributes,
    SetTime, Share, StateidBasis, Status, Want,
};

#[tokio::test]
async fn a_tree_is_computed() {
    let bench = bench("files=25,per-directory=10,bytes=33").await;
    let root = bench.stat(&bench.root).await;
    assert_eq!((root.nlink, root.size), (2 + 3, 3 * 32));
    let directories = bench.list(&bench.root, 1000, true).await;
    let called: Vec<_> = directories.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(called, ["d0000000", "d0000001", "d0000002"]);
    let mut seen = Vec::new();
    for directory in directories {
        let node = directory.node.unwrap();
        assert_eq!(bench.fs.parent(&machine(), &node.handle).await.unwrap().node.handle, bench.root);
        for entry in bench.list(&node.handle, 500, true).await {
            let file = entry.node.unwrap();
            assert_eq!(
                bench.lookup(&node.handle, &entry.name.to_string()).await,
                Ok(file.handle),
                "a name leads where the listing says"
            );
            assert_eq!(Some(bench.stat(&file.handle).await), file.attributes);
            assert_eq!(entry.fileid, file.attributes.unwrap().fileid);
            seen.push(bench.read(&file.handle).await.unwrap());
        }
    }
    assert_eq!(seen.len(), 25);
    assert!(seen.iter().all(|bytes| bytes.len() == 33));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 25, "each file has other bytes");
    for absent in ["d0000003", "f0000000", "d00", "x"] {
        assert_eq!(bench.lookup(&bench.root, absent).await, Err(Status::NoEnt), "{absent}");
    }
}

#[tokio::test]
async fn the_next_process_has_the_computed_objects_and_not_the_made_ones() {
    let shape = "files=25,per-directory=10";
    let (first, second) = (bench(shape).await, bench(shape).await);
    let other = bench("files=26,per-directory=10").await;
    let directory = first.lookup(&first.root, "d0000001").await.unwrap();
    let file = first.lookup(&directory, "f0000004").await.unwrap();
    let made = first.create(&directory, "new").await.unwrap();
    second.create(&second.root, "other").await.unwrap();
    assert_eq!(second.read(&file).await, first.read(&file).await);
    assert_eq!(second.stat(&file).await, first.stat(&file).await);
    assert_eq!(second.read(&made).await, Err(Status::Stale));
    assert_eq!(other.read(&file).await, Err(Status::Stale), "another tree");
    for bad in [&[][..], &[1; 15], &[1; 17]] {
        assert_eq!(first.read(&Handle::new(bad).unwrap()).await, Err(Status::BadHandle));
    }
}

/// A listing that took time for each name before it would take minutes here.
#[tokio::test]
async fn a_directory_of_a_million_names_is_listed_in_one_pass() {
    let bench = bench("files=1000000,per-directory=1000000,bytes=0").await;
    let directory = bench.lookup(&bench.root, "d0000000").await.unwrap();
    bench.remove(&directory, "f0500000").await.unwrap();
    let begun = Instant::now();
    let names = bench.list(&directory, 32 << 10, false).await;
    assert_eq!(names.len(), 999_999);
    assert!(names.windows(2).all(|two| two[0].cookie < two[1].cookie));
    assert!(names[0].cookie >= Entry::FIRST_COOKIE);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_listing_goes_on_behind_a_name_that_is_gone() {
    let bench = bench("files=9,per-directory=9").await;
    let directory = bench.lookup(&bench.root, "d0000000").await.unwrap();
    for file in ["a", "b", "c"] {
        bench.create(&directory, file).await.unwrap();
    }
    let all = bench.list(&directory, 1 << 16, false).await;
    assert_eq!(all.len(), 12);
    for (at, entry) in all.iter().enumerate() {
        bench.remove(&directory, &entry.name.to_string()).await.unwrap();
        let part = ReadDir { cookie: entry.cookie, ..from_start(1 << 16, false) };
        let rest = bench.fs.readdir(&machine(), &directory, part).await.unwrap();
        assert!(rest.eof);
        assert_eq!(rest.entries, all[at + 1..]);
    }
    let bad = ReadDir { cookie: 7, verifier: [9; 8], ..from_start(1 << 16, false) };
    let failed = bench.fs.readdir(&machine(), &directory, bad).await.unwrap_err();
    assert_eq!(failed.status, Status::BadCookie);
}

#[tokio::test]
async fn every_change_moves_ctime_and_the_change_attribute() {
    let bench = bench("files=4,per-directory=2,bytes=10").await;
    let (fs, caller, root) = (&bench.fs, machine(), bench.root);
    let directory = bench.lookup(&root, "d0000000").await.unwrap();
    let file = bench.lookup(&directory, "f0000001").await.unwrap();
    let computed = bench.read(&file).await.unwrap();
    let mut last = bench.stat(&file).await;
    let touch = SetAttributes { mtime: Some(SetTime::Server), ..SetAttributes::default() };
    for set in [touch, mode(0o600), size(20), size(5)] {
        let wcc = fs.setattr(&caller, &file, &set, None).await.unwrap();
        let now = wcc.after.unwrap();
        assert_eq!(wcc.before, Some(last.wcc()), "{set:?}");
        assert!(now.change > last.change && now.ctime > last.ctime, "{set:?}");
        last = now;
    }
    assert_eq!((last.size, last.mode), (5, 0o600));
    assert_eq!(bench.read(&file).await.unwrap(), computed[..5]);
    bench.write(&file, 7, b"xy").await.unwrap();
    let expected = [&computed[..5], b"\0\0xy"].concat();
    assert_eq!(bench.read(&file).await.unwrap(), expected);
    let guarded = fs.setattr(&caller, &file, &touch, Some(last.ctime)).await.unwrap_err();
    assert_eq!(guarded.status, Status::NotSync);

    let before = bench.stat(&directory).await;
    let removed = fs.remove(&caller, &directory, &name("f0000000")).await.unwrap();
    assert_eq!(removed.before, Some(before.wcc()));
    let after = removed.after.unwrap();
    assert!(after.change > before.change && after.mtime > before.mtime && after.size == 32);
    assert_eq!(bench.lookup(&directory, "f0000000").await, Err(Status::NoEnt));
    let again = bench.create(&directory, "f0000000").await.unwrap();
    assert_eq!(bench.read(&again).await, Ok(Bytes::new()), "another file of that name");
}

#[tokio::test]
async fn a_computed_directory_moves_with_its_files() {
    let bench = bench("files=4,per-directory=2").await;
    let (fs, caller, root) = (&bench.fs, machine(), bench.root);
    let [one, two] = ["d0000000", "d0000001"].map(name);
    let moved = bench.lookup(&root, "d0000000").await.unwrap();
    let to = bench.lookup(&root, "d0000001").await.unwrap();
    let file = bench.lookup(&moved, "f0000001").await.unwrap();
    fs.rename(&caller, &root, &one, &to, &name("below")).await.unwrap();
    assert_eq!(bench.lookup(&to, "below").await, Ok(moved));
    assert_eq!(bench.lookup(&moved, "f0000001").await, Ok(file));
    assert_eq!(fs.parent(&caller, &moved).await.unwrap().node.handle, to);
    let within = fs.rename(&caller, &root, &two, &moved, &name("x")).await.unwrap_err();
    assert_eq!(within.status, Status::Inval);
    let full = fs.rmdir(&caller, &to, &name("below")).await.unwrap_err();
    assert_eq!(full.status, Status::NotEmpty);
    for file in ["f0000000", "f0000001"] {
        bench.remove(&moved, file).await.unwrap();
    }
    fs.rmdir(&caller, &to, &name("below")).await.unwrap();
    for gone in [moved, file] {
        assert_eq!(fs.getattr(&caller, &gone).await.unwrap_err().status, Status::Stale);
    }
}

#[tokio::test]
async fn changes_are_bounded_and_what_takes_nothing_is_possible() {
    let shape = "files=100,per-directory=10,bytes=50";
    let bench = bench_with(shape, |options| (options.records_max, options.bytes_max) = (5, 120)).await;
    let directory = bench.lookup(&bench.root, "d0000000").await.unwrap();
    let file = async |number: u32| bench.lookup(&directory, &format!("f000000{number}")).await.unwrap();
    bench.create(&directory, "a").await.unwrap();
    bench.set(&file(0).await, mode(0)).await.unwrap();
    bench.write(&file(1).await, 0, b"x").await.unwrap();
    // The directory, two files, and the new one with its name.
    for failed in [
        bench.create(&directory, "b").await.map(drop),
        bench.set(&file(2).await, mode(0)).await.map(drop),
        bench.write(&file(2).await, 0, b"x").await.map(drop),
        bench.remove(&directory, "f0000002").await,
        bench.remove(&directory, "f0000000").await,
        bench.write(&file(0).await, 60, &[1; 30]).await.map(drop),
    ] {
        assert_eq!(failed, Err(Status::NoSpc));
    }
    assert_eq!(bench.read(&file(0).await).await.unwrap().len(), 50, "a failed write changes nothing");
    bench.write(&file(0).await, 0, b"x").await.unwrap();
    let space = bench.fs.fsstat(&machine(), &bench.root).await.unwrap();
    assert_eq!((space.free_bytes, space.free_files), (20, 0));
    bench.remove(&directory, "a").await.unwrap();
    bench.remove(&directory, "f0000000").await.unwrap();
    let space = bench.fs.fsstat(&machine(), &bench.root).await.unwrap();
    assert_eq!((space.free_bytes, space.free_files), (70, 1));
}

#[tokio::test]
async fn an_open_keeps_a_removed_file_and_brings_a_lease() {
    let bench = bench("files=4,per-directory=2,bytes=10").await;
    let (fs, caller) = (&bench.fs, machine());
    let directory = bench.lookup(&bench.root, "d0000000").await.unwrap();
    let request = open(directory, Some("f0000001"), "owner", Share::READ);
    let plain = fs.open(&caller, &request).await.unwrap();
    assert!(plain.lease.is_none());
    let opened = fs.open(&caller, &vfs::OpenRequest { want: Want::Any, ..request }).await.unwrap();
    let lease = opened.lease.unwrap();
    assert_eq!((opened.id, lease.kind, lease.until), (plain.id, LeaseKind::Write, None));
    assert_eq!((lease.change, lease.space_limit), (opened.attributes.change, 0));
    fs.returned(&caller, lease.id).await.unwrap();
    let delegated = fs.delegate(&caller, &directory, AccessMask::LOOKUP).await.unwrap();
    assert_ne!(delegated.lease.unwrap().id, lease.id);

    let by = StateidBasis::Open(opened.id);
    bench.remove(&directory, "f0000001").await.unwrap();
    assert_eq!(fs.read(&caller, &opened.handle, by, 0, 100).await.unwrap().data.len(), 10);
    let denied = fs.write(&caller, &opened.handle, by, 0, Bytes::from_static(b"x"), vfs::Stability::FileSync);
    assert_eq!(denied.await.unwrap_err().status, Status::OpenMode);
    fs.close(&caller, opened.id).await.unwrap();
    assert_eq!(bench.read(&opened.handle).await, Err(Status::Stale));
}

#[tokio::test]
async fn a_resent_exclusive_create_finds_its_file() {
    let bench = bench("files=4,per-directory=2").await;
    let (fs, caller, set) = (&bench.fs, machine(), SetAttributes::default());
    let new = name("new");
    let exclusive = |byte| CreateHow::Exclusive([byte; 8]);
    let made = fs.create(&caller, &bench.root, &new, exclusive(1), &set).await.unwrap().node.handle;
    let again = fs.create(&caller, &bench.root, &new, exclusive(1), &set).await.unwrap().node.handle;
    assert_eq!(again, made);
    let other = fs.create(&caller, &bench.root, &new, exclusive(2), &set).await.unwrap_err();
    assert_eq!(other.status, Status::Exist);
    let directory = bench.lookup(&bench.root, "d0000000").await.unwrap();
    let computed = fs.create(&caller, &directory, &name("f0000000"), exclusive(0), &set).await.unwrap_err();
    assert_eq!(computed.status, Status::Exist);
}
