//! Each operation has exactly the rights of its caller.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use common::{Served, is_root, machine, name, serve, user};
use vfs::{AccessMask, Caller, CreateHow, FileSystem, SetAttributes, SetTime, Status, Timestamp};

/// A served directory that all users may write, with a file of uid 1000.
fn served(mode: u32) -> Served {
    let served = serve();
    std::fs::set_permissions(&served.directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    put(&served, "file", 1000, 2000, mode);
    served
}

fn put(served: &Served, file: &str, uid: u32, gid: u32, mode: u32) {
    std::fs::write(served.path(file), "secret").unwrap();
    own(served, file, uid, gid, mode);
}

fn own(served: &Served, file: &str, uid: u32, gid: u32, mode: u32) {
    chown(served.path(file), Some(uid), Some(gid)).unwrap();
    std::fs::set_permissions(served.path(file), std::fs::Permissions::from_mode(mode)).unwrap();
}

async fn may(served: &Served, caller: &Caller) -> (bool, bool) {
    let file = served.handle("file").await;
    let read = served.read(caller, &file, 0, 10).await;
    let write = served.write(caller, &file, 0, b"x").await;
    assert!(matches!(read, Ok(_) | Err(Status::Access)) && matches!(write, Ok(_) | Err(Status::Access)));
    (read.is_ok(), write.is_ok())
}

#[tokio::test]
async fn modes_and_groups_decide() {
    if !is_root() {
        return;
    }
    for round in 0..3 {
        let served = served(0o600);
        // Without a cached decision, with one, and after the ctime became nonracy.
        if round == 2 {
            age(&served, "file");
        }
        for _ in 0..=round {
            assert_eq!(may(&served, &user(1000)).await, (true, true));
            assert_eq!(may(&served, &user(1001)).await, (false, false));
            assert_eq!(may(&served, &Caller::unix(1001, 2000, &[])).await, (false, false));
            assert_eq!(may(&served, &Caller::unix(0, 0, &[])).await, (true, true));
        }
        own(&served, "file", 1000, 2000, 0o640);
        assert_eq!(may(&served, &Caller::unix(1001, 2000, &[])).await, (true, false));
        assert_eq!(may(&served, &Caller::unix(1001, 1, &[5, 2000])).await, (true, false));
        assert_eq!(may(&served, &Caller::unix(1001, 1, &[5, 2001])).await, (false, false));
        own(&served, "file", 1000, 2000, 0o606);
        assert_eq!(
            may(&served, &Caller::unix(1001, 2000, &[])).await,
            (false, false),
            "the group's bits come first"
        );
        assert_eq!(may(&served, &user(1001)).await, (true, true));
        own(&served, "file", 1000, 2000, 0o600);
        assert_eq!(may(&served, &user(1001)).await, (false, false), "an old answer does not outlive a chmod");
    }
}

/// Waits until the ctime of a file is nonracy, so that decisions about it are cached.
fn age(served: &Served, file: &str) {
    let old = || {
        let ctime = std::fs::metadata(served.path(file)).unwrap();
        let since = std::time::Duration::new(ctime.ctime() as u64, ctime.ctime_nsec() as u32);
        std::time::UNIX_EPOCH.elapsed().unwrap().saturating_sub(since).as_millis() > 40
    };
    while !old() {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn remembered_rights_end_with_a_chmod() {
    if !is_root() {
        return;
    }
    let served = served(0o644);
    let file = served.handle("file").await;
    for round in 0..5 {
        age(&served, "file");
        for _ in 0..3 {
            assert!(served.read(&user(1001), &file, 0, 10).await.is_ok(), "round {round}");
        }
        own(&served, "file", 1000, 2000, 0o600);
        assert_eq!(served.read(&user(1001), &file, 0, 10).await, Err(Status::Access));
        own(&served, "file", 1000, 2000, 0o644);
    }
}

#[tokio::test]
async fn the_owner_and_whoever_executes_get_the_data() {
    if !is_root() {
        return;
    }
    let served = served(0o000);
    assert_eq!(may(&served, &user(1000)).await, (true, true), "the owner may have it open");
    assert_eq!(may(&served, &user(1001)).await, (false, false));
    own(&served, "file", 1000, 2000, 0o711);
    assert_eq!(may(&served, &user(1001)).await, (true, false), "it must be read to be run");
    let file = served.handle("file").await;
    let granted = served.fs.access(&user(1001), &file, AccessMask::all()).await.unwrap().granted;
    assert_eq!(granted, AccessMask::EXECUTE, "but ACCESS tells the mode");
    own(&served, "file", 1000, 2000, 0o000);
    let granted = served.fs.access(&user(1000), &file, AccessMask::all()).await.unwrap().granted;
    assert_eq!(granted, AccessMask::empty());
    let cut = SetAttributes { size: Some(1), ..SetAttributes::default() };
    served.fs.setattr(&user(1000), &file, &cut, None).await.unwrap();
    assert_eq!(served.fs.setattr(&user(1001), &file, &cut, None).await.unwrap_err().status, Status::Access);
}

#[tokio::test]
async fn directories_are_searched_listed_and_changed_by_right() {
    if !is_root() {
        return;
    }
    let served = served(0o644);
    std::fs::create_dir(served.path("dir")).unwrap();
    put(&served, "dir/inner", 1000, 1000, 0o644);
    own(&served, "dir", 1000, 1000, 0o700);
    assert_eq!(served.find(&user(1001), "dir/inner").await, Err(Status::Access));
    assert!(served.find(&user(1000), "dir/inner").await.is_ok());
    let directory = served.handle("dir").await;
    let part = vfs::ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 1000,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    assert_eq!(served.fs.readdir(&user(1001), &directory, part).await.unwrap_err().status, Status::Access);
    assert_eq!(served.create(&user(1001), &directory, "new").await, Err(Status::Access));
    let removed = served.fs.remove(&user(1001), &directory, &name("inner")).await;
    assert_eq!(removed.unwrap_err().status, Status::Access);

    own(&served, "dir", 1000, 1000, 0o704);
    let listed = served.fs.readdir(&user(1001), &directory, part).await.unwrap();
    assert_eq!(listed.entries[0].node, None, "listing is not searching");
    own(&served, "dir", 1000, 1000, 0o701);
    age(&served, "dir");
    for _ in 0..3 {
        assert!(served.find(&user(1001), "dir/inner").await.is_ok());
        assert_eq!(served.find(&user(1001), "dir/missing").await, Err(Status::NoEnt));
    }
    let granted = served.fs.access(&user(1001), &directory, AccessMask::all()).await.unwrap().granted;
    assert_eq!(granted, AccessMask::LOOKUP);
    own(&served, "dir", 1000, 1000, 0o700);
    assert_eq!(served.find(&user(1001), "dir/inner").await, Err(Status::Access), "no longer");

    own(&served, "dir", 0, 0, 0o1777);
    let sticky = served.fs.remove(&user(1001), &directory, &name("inner")).await;
    assert_eq!(sticky.unwrap_err().status, Status::Perm);
    served.fs.remove(&user(1000), &directory, &name("inner")).await.unwrap();
}

#[tokio::test]
async fn what_is_made_belongs_to_its_maker() {
    if !is_root() {
        return;
    }
    let served = served(0o644);
    let root = served.root().await;
    let set = SetAttributes { uid: Some(0), gid: Some(0), mode: Some(0o4755), ..SetAttributes::default() };
    let caller = Caller::unix(1001, 1002, &[1003]);
    let made = served.fs.create(&caller, &root, &name("mine"), CreateHow::Guarded, &set).await.unwrap();
    let attributes = made.node.attributes.unwrap();
    assert_eq!(
        (attributes.uid, attributes.gid, attributes.mode),
        (1001, 1002, 0o4755),
        "nobody gives files away"
    );
    let made = served.fs.mkdir(&caller, &root, &name("dir"), &set, vfs::Want::None).await.unwrap();
    assert_eq!(made.node.attributes.unwrap().uid, 1001);
    let made = served.fs.symlink(&caller, &root, &name("link"), b"x", &set).await.unwrap();
    assert_eq!(made.node.attributes.unwrap().gid, 1002);
    let theirs = SetAttributes { uid: Some(5), gid: Some(6), mode: Some(0o4711), ..SetAttributes::default() };
    let root_user = Caller::unix(0, 0, &[]);
    let made =
        served.fs.create(&root_user, &root, &name("given"), CreateHow::Guarded, &theirs).await.unwrap();
    let attributes = made.node.attributes.unwrap();
    assert_eq!((attributes.uid, attributes.gid, attributes.mode), (5, 6, 0o4711));

    own(&served, "dir", 1001, 1234, 0o2777);
    let directory = served.handle("dir").await;
    let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let made = served.fs.mkdir(&caller, &directory, &name("below"), &set, vfs::Want::None).await.unwrap();
    let attributes = made.node.attributes.unwrap();
    assert_eq!((attributes.gid, attributes.mode), (1234, 0o2755), "the set-gid bit is inherited");
}

#[tokio::test]
async fn attributes_are_the_owners_to_set() {
    if !is_root() {
        return;
    }
    let served = served(0o666);
    let file = served.handle("file").await;
    let set = |change: SetAttributes, caller: Caller| {
        let served = &served;
        async move {
            served.fs.setattr(&caller, &file, &change, None).await.map(drop).map_err(|error| error.status)
        }
    };
    let none = SetAttributes::default();
    let mode = SetAttributes { mode: Some(0o666), ..none };
    assert_eq!(set(mode, user(1001)).await, Err(Status::Perm));
    assert_eq!(set(mode, user(1000)).await, Ok(()));
    assert_eq!(set(SetAttributes { uid: Some(1001), ..none }, user(1000)).await, Err(Status::Perm));
    assert_eq!(set(SetAttributes { gid: Some(7), ..none }, user(1000)).await, Err(Status::Perm));
    assert_eq!(set(SetAttributes { gid: Some(7), ..none }, Caller::unix(1000, 1000, &[7])).await, Ok(()));
    let now = SetAttributes { atime: Some(SetTime::Server), mtime: Some(SetTime::Server), ..none };
    assert_eq!(set(now, user(1001)).await, Ok(()), "who may write may touch");
    let past = SetAttributes { mtime: Some(SetTime::Client(Timestamp::new(1, 0))), ..none };
    assert_eq!(set(past, user(1001)).await, Err(Status::Perm));
    assert_eq!(set(past, user(1000)).await, Ok(()));
    assert_eq!(
        set(SetAttributes { uid: Some(9), gid: Some(9), ..none }, Caller::unix(0, 0, &[])).await,
        Ok(())
    );
    assert_eq!(std::fs::metadata(served.path("file")).unwrap().uid(), 9);
}

// Promise: set-id-bits
#[tokio::test]
async fn a_write_takes_set_id_bits_away() {
    if !is_root() {
        return;
    }
    let served = served(0o6777);
    let file = served.handle("file").await;
    served.write(&user(1001), &file, 0, b"evil").await.unwrap();
    assert_eq!(std::fs::metadata(served.path("file")).unwrap().mode() & 0o7777, 0o777);
}

#[tokio::test]
async fn no_identity_leaks_between_calls() {
    if !is_root() {
        return;
    }
    let served = std::sync::Arc::new(served(0o666));
    let root = served.root().await;
    let mut tasks = tokio::task::JoinSet::new();
    for uid in 3000..3020 {
        let served = served.clone();
        tasks.spawn(async move {
            for round in 0..20 {
                let caller = Caller::unix(uid, uid + 1, &[uid + 2]);
                let file = served.create(&caller, &root, &format!("{uid}-{round}")).await.unwrap();
                let attributes = served.fs.getattr(&machine(), &file).await.unwrap();
                assert_eq!((attributes.uid, attributes.gid), (uid, uid + 1));
                served.fs.lookup(&caller, &root, &name("file"), vfs::Want::None).await.unwrap();
                assert_eq!(rustix::process::geteuid().as_raw(), 0);
                let own = format!("{uid}-{round}-own");
                std::fs::write(served.path(&own), "").unwrap();
                assert_eq!(
                    std::fs::metadata(served.path(&own)).unwrap().uid(),
                    0,
                    "the task's own identity is back"
                );
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
