//! Rights: owner, group, others and root, as a local user of Linux has them; and what NFS servers add.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use common::{Bench, bench, from_start, machine, mode, name, open, size, user};
use vfs::{
    AccessMask, Caller, CreateHow, Device, FileSystem, FileType, Handle, Opens, SetAttributes, SetTime,
    Share, Status, Timestamp, Want,
};

const OWNER: u32 = 100;
const GROUP: u32 = 200;

/// A file of `OWNER` and `GROUP`.
async fn owned(bench: &Bench, bits: u32) -> Handle {
    let set = SetAttributes { uid: Some(OWNER), gid: Some(GROUP), ..mode(bits) };
    bench.create_with(&machine(), &bench.root, "file", CreateHow::Unchecked, &set).await.unwrap()
}

async fn owned_directory(bench: &Bench, bits: u32) -> Handle {
    let directory = bench.mkdir(&machine(), &bench.root, "directory", bits).await;
    let set = SetAttributes { uid: Some(OWNER), gid: Some(GROUP), ..mode(bits) };
    bench.set(&machine(), &directory, set).await.unwrap();
    directory
}

fn callers() -> [(Caller, u32); 5] {
    [
        (Caller::unix(OWNER, 1, &[GROUP]), 6), // the owner's digit counts, whatever its groups
        (Caller::unix(1, GROUP, &[]), 3),
        (Caller::unix(1, 1, &[5, GROUP]), 3),
        (Caller::unix(1, 1, &[5]), 0),
        (Caller::unix(GROUP, OWNER, &[]), 0),
    ]
}

#[tokio::test]
async fn access_is_decided_by_one_digit_of_the_mode() {
    let change = AccessMask::MODIFY | AccessMask::EXTEND;
    for bits in 0..0o1000 {
        let bench = bench().await;
        let (file, directory) = (owned(&bench, bits).await, owned_directory(&bench, bits).await);
        for (caller, shift) in callers() {
            let [read, write, execute] = [4, 2, 1].map(|bit| bits >> shift & bit != 0);
            let mut expected = AccessMask::empty();
            expected.set(AccessMask::READ, read);
            expected.set(change, write);
            expected.set(AccessMask::EXECUTE, execute);
            let granted = bench.fs.access(&caller, &file, AccessMask::all()).await.unwrap().granted;
            assert_eq!(granted, expected, "{bits:o} {caller:?}");

            let mut expected = AccessMask::empty();
            expected.set(AccessMask::READ, read);
            expected.set(AccessMask::LOOKUP, execute);
            expected.set(change | AccessMask::DELETE, write && execute);
            let granted = bench.fs.access(&caller, &directory, AccessMask::all()).await.unwrap().granted;
            assert_eq!(granted, expected, "{bits:o} {caller:?}");
        }
    }
}

#[tokio::test]
async fn root_may_all_but_execute_a_file_that_is_no_program() {
    let bench = bench().await;
    let file = owned(&bench, 0).await;
    let all = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND;
    for root in [machine(), user(0)] {
        assert_eq!(bench.fs.access(&root, &file, AccessMask::all()).await.unwrap().granted, all);
        bench.write(&root, &file, 0, b"x").await.unwrap();
    }
    bench.set(&machine(), &file, mode(0o010)).await.unwrap();
    let granted = bench.fs.access(&user(0), &file, AccessMask::EXECUTE).await.unwrap().granted;
    assert_eq!(granted, AccessMask::EXECUTE, "only what was asked");
}

#[tokio::test]
async fn data_is_checked_with_the_exceptions_of_nfs_servers() {
    let bench = bench().await;
    let (owner, other) = (user(OWNER), user(1));
    for (bits, read, written) in
        [(0o444, true, false), (0o111, true, false), (0o222, false, true), (0o700, false, false)]
    {
        let file = owned(&bench, bits).await;
        bench.set(&machine(), &file, mode(bits)).await.unwrap();
        assert_eq!(bench.read(&other, &file).await.is_ok(), read, "{bits:o}");
        assert_eq!(bench.write(&other, &file, 0, b"x").await.is_ok(), written, "{bits:o}");
        assert_eq!(bench.set(&other, &file, size(1)).await.is_ok(), written, "{bits:o}");
        assert_eq!(bench.fs.commit(&other, &file, 0, 0).await.is_ok(), written, "{bits:o}");
        // The owner may have opened it before the mode changed. But its opens are checked.
        bench.read(&owner, &file).await.unwrap();
        bench.write(&owner, &file, 0, b"x").await.unwrap();
        let opened = bench.fs.open(&owner, &open(file, None, "o", Share::WRITE)).await;
        assert_eq!(opened.is_ok(), bits & 0o200 != 0, "{bits:o}");
        let opened = bench.fs.open(&other, &open(file, None, "o", Share::READ)).await;
        assert_eq!(opened.is_ok(), read, "{bits:o}");
    }
    let failed = bench.fs.open(&other, &open(bench.root, Some("file"), "o", Share::READ)).await.unwrap_err();
    assert_eq!((failed.status, failed.attributes.is_some()), (Status::Access, true));
}

#[tokio::test]
async fn names_need_the_rights_of_their_directory() {
    let bench = bench().await;
    let other = user(1);
    for (bits, finds, lists, changes) in [
        (0o775, true, true, false),
        (0o774, false, true, false),
        (0o771, true, false, false),
        (0o777, true, true, true),
    ] {
        let directory = owned_directory_once(&bench, bits).await;
        let fs = &bench.fs;
        let old = bench.create(&machine(), &directory, "old").await.unwrap();
        assert_eq!(bench.lookup(&other, &directory, "old").await.is_ok(), finds, "{bits:o}");
        assert_eq!(fs.parent(&other, &directory).await.is_ok(), finds, "{bits:o}");
        let listed = fs.readdir(&other, &directory, from_start(1000, true)).await;
        assert_eq!(listed.is_ok(), lists, "{bits:o}");
        if let Ok(listed) = listed {
            assert_eq!(listed.entries[0].node.is_some(), finds, "{bits:o}");
        }
        let expected = if changes { Ok(()) } else { Err(Status::Access) };
        let set = SetAttributes::default();
        let [file, sub, link, pipe, twin] = ["file", "sub", "link", "pipe", "twin"].map(name);
        let made = fs.create(&other, &directory, &file, CreateHow::Guarded, &set).await.map(drop);
        let statuses = [
            made,
            fs.mkdir(&other, &directory, &sub, &set, Want::None).await.map(drop),
            fs.symlink(&other, &directory, &link, b"t", &set).await.map(drop),
            fs.mknod(&other, &directory, &pipe, FileType::Fifo, Device::default(), &set).await.map(drop),
            fs.link(&other, &old, &directory, &twin).await.map(drop),
            fs.rename(&other, &directory, &name("old"), &directory, &name("new")).await.map(drop),
            fs.remove(&other, &directory, &name(if changes { "new" } else { "old" })).await.map(drop),
        ];
        for status in statuses {
            assert_eq!(status.map_err(|error| error.status), expected, "{bits:o}");
        }
    }
    let device = Device { major: 1, minor: 3 };
    let set = SetAttributes::default();
    let open = bench.mkdir(&machine(), &bench.root, "open", 0o777).await;
    let null = bench.fs.mknod(&other, &open, &name("null"), FileType::Character, device, &set).await;
    assert_eq!(null.unwrap_err().status, Status::Perm, "devices are root's");
}

/// A new directory of `OWNER` with this mode.
async fn owned_directory_once(bench: &Bench, bits: u32) -> Handle {
    let directory = bench.mkdir(&machine(), &bench.root, &format!("{bits:o}"), bits).await;
    let set = SetAttributes { uid: Some(OWNER), ..SetAttributes::default() };
    bench.set(&machine(), &directory, set).await.unwrap();
    directory
}

#[tokio::test]
async fn a_sticky_directory_keeps_names_of_others() {
    let bench = bench().await;
    let (fs, set) = (&bench.fs, SetAttributes::default());
    let directory = owned_directory(&bench, 0o1777).await;
    let [alice, bob] = [user(1), user(2)];
    let [mine, his] = [("mine", &alice), ("his", &bob)].map(|(file, user)| (name(file), user));
    for (file, user) in [&mine, &his] {
        fs.create(user, &directory, file, CreateHow::Guarded, &set).await.unwrap();
    }
    for status in [
        fs.remove(&alice, &directory, &his.0).await.map(drop),
        fs.rename(&alice, &directory, &his.0, &directory, &name("new")).await.map(drop),
        fs.rename(&alice, &directory, &mine.0, &directory, &his.0).await.map(drop),
    ] {
        assert_eq!(status.unwrap_err().status, Status::Perm);
    }
    fs.remove(&alice, &directory, &mine.0).await.unwrap();
    fs.remove(&user(OWNER), &directory, &his.0).await.unwrap();
}

/// A moved directory changes where its `..` leads, so the mover needs a right to the directory itself.
#[tokio::test]
async fn a_directory_of_another_user_stays_below_its_parent() {
    let bench = bench().await;
    let (fs, alice) = (&bench.fs, user(1));
    let [from, to] = [("from", 0o777), ("to", 0o777)].map(|(name, bits)| (name.to_owned(), bits));
    let from = bench.mkdir(&machine(), &bench.root, &from.0, from.1).await;
    let to = bench.mkdir(&machine(), &bench.root, &to.0, to.1).await;
    bench.mkdir(&machine(), &from, "d", 0o755).await;
    let moved = fs.rename(&alice, &from, &name("d"), &to, &name("d")).await.unwrap_err();
    assert_eq!(moved.status, Status::Access);
    fs.rename(&alice, &from, &name("d"), &from, &name("e")).await.unwrap();
}

#[tokio::test]
async fn attributes_are_set_by_the_owner_and_owners_by_root() {
    let bench = bench().await;
    let none = SetAttributes::default();
    let (owner, member, other) = (Caller::unix(OWNER, 1, &[GROUP, 9]), Caller::unix(1, GROUP, &[]), user(3));
    let file = owned(&bench, 0o664).await;
    let uid = |uid| SetAttributes { uid: Some(uid), ..none };
    let gid = |gid| SetAttributes { gid: Some(gid), ..none };
    let both = |time| SetAttributes { atime: Some(time), mtime: Some(time), ..none };
    let one = SetAttributes { mtime: Some(SetTime::Server), ..none };
    let then = SetTime::Client(Timestamp::new(5, 0));
    for (caller, set, expected) in [
        (&owner, mode(0o664), None),
        (&member, mode(0o664), Some(Status::Perm)),
        (&owner, uid(OWNER), None),
        (&owner, uid(1), Some(Status::Perm)),
        (&other, uid(3), Some(Status::Perm)),
        (&owner, gid(9), None),
        (&owner, gid(8), Some(Status::Perm)),
        (&machine(), gid(GROUP), None),
        (&member, gid(GROUP), Some(Status::Perm)),
        (&owner, both(then), None),
        (&member, both(then), Some(Status::Perm)),
        (&member, both(SetTime::Server), None),
        (&member, one, Some(Status::Perm)),
        (&other, both(SetTime::Server), Some(Status::Access)),
        (&machine(), uid(77), None),
    ] {
        assert_eq!(bench.set(caller, &file, set).await.err(), expected, "{set:?} {caller:?}");
    }
    assert_eq!(bench.stat(&file).await.uid, 77);
}

#[tokio::test]
async fn set_id_bits_end_with_a_change_of_data_or_owner() {
    let bench = bench().await;
    let file = owned(&bench, 0o6777).await;
    let bits = async || bench.stat(&file).await.mode;
    assert_eq!(bits().await, 0o6777);
    bench.write(&machine(), &file, 0, b"x").await.unwrap();
    assert_eq!(bits().await, 0o6777, "root keeps them");
    bench.write(&user(1), &file, 0, b"x").await.unwrap();
    assert_eq!(bits().await, 0o777);
    bench.set(&machine(), &file, mode(0o6767)).await.unwrap();
    bench.set(&machine(), &file, SetAttributes { gid: Some(1), ..SetAttributes::default() }).await.unwrap();
    assert_eq!(bits().await, 0o2767, "without group execution it is no set-group-id program");
    bench.set(&user(OWNER), &file, mode(0o2755)).await.unwrap();
    assert_eq!(bits().await, 0o755, "the owner is not in the group");
}

#[tokio::test]
async fn a_new_file_belongs_to_its_maker() {
    let bench = bench().await;
    let given = SetAttributes { uid: Some(5), gid: Some(6), ..mode(0o644) };
    let directory = owned_directory(&bench, 0o2777).await;
    let wide = bench.mkdir(&machine(), &bench.root, "wide", 0o777).await;
    let alice = Caller::unix(1, 2, &[]);
    let owners = async |caller: &Caller, at: Handle, file: &str| {
        let made = bench.create_with(caller, &at, file, CreateHow::Guarded, &given).await.unwrap();
        let made = bench.stat(&made).await;
        (made.uid, made.gid)
    };
    assert_eq!(owners(&alice, wide, "a").await, (1, 2), "only root chooses others");
    assert_eq!(owners(&user(0), wide, "b").await, (5, 6));
    assert_eq!(owners(&alice, directory, "c").await, (1, GROUP), "of the group of a set-group-id directory");
    let below = bench.mkdir(&alice, &directory, "below", 0o755).await;
    assert_eq!((bench.stat(&below).await.mode, bench.stat(&below).await.gid), (0o2755, GROUP));
}
