//! Opens keep the rights that were checked, and keep a file without a name.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use common::{Served, is_root, machine, name, serve, serve_by_table, serve_with, user};
use vfs::{
    AccessMask, Caller, CreateHow, FileSystem, Handle, HolderId, Lock, LockKind, LockRequest, Locked, OpenId,
    OpenRequest, Opened, Opens, Owner, SetAttributes, Share, Stability, StateidBasis, Status,
};

fn owner(owner: &str) -> Owner {
    Owner(Bytes::copy_from_slice(owner.as_bytes()))
}

fn request(handle: &Handle, file: Option<&str>, access: Share) -> OpenRequest {
    OpenRequest::new(*handle, file.map(name), owner("process"), access)
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn holding(caller: Caller, holder: u64) -> Caller {
    Caller { holder: Some(HolderId(holder)), ..caller }
}

async fn open(served: &Served, caller: &Caller, request: &OpenRequest) -> Result<Opened, Status> {
    served.fs.open(caller, request).await.map_err(|error| error.status)
}

async fn read(served: &Served, caller: &Caller, file: &Handle, by: OpenId) -> Result<Bytes, Status> {
    let read =
        served.fs.read(caller, file, StateidBasis::Open(by), 0, 100).await.map_err(|error| error.status)?;
    Ok(read.data.to_bytes().unwrap())
}

async fn write(
    served: &Served,
    caller: &Caller,
    file: &Handle,
    by: OpenId,
    data: &'static [u8],
) -> Result<u32, Status> {
    let data = Bytes::from_static(data);
    let written = served.fs.write(caller, file, StateidBasis::Open(by), 0, data, Stability::Unstable).await;
    written.map(|written| written.count).map_err(|error| error.status)
}

#[tokio::test]
async fn an_open_is_made_widened_narrowed_and_closed() {
    let served = serve();
    let (root, caller) = (served.root().await, holding(machine(), 1));
    std::fs::write(served.path("file"), "there").unwrap();
    let opened = open(&served, &caller, &request(&root, Some("file"), Share::READ)).await.unwrap();
    let (id, file) = (opened.id, opened.handle);
    assert_eq!(file, served.handle("file").await);
    assert!(!opened.created && opened.attributes.size == 5 && opened.lease.is_none());
    assert_eq!(opened.directory.before, opened.directory.after.map(|after| after.wcc()));
    assert_eq!(read(&served, &caller, &file, id).await, Ok(Bytes::from_static(b"there")));
    assert_eq!(write(&served, &caller, &file, id, b"W").await, Err(Status::OpenMode));

    let widened = open(&served, &caller, &request(&file, None, Share::WRITE)).await.unwrap();
    assert_eq!(widened.id, id, "the same owner of the same holder");
    assert_eq!(write(&served, &caller, &file, id, b"W").await, Ok(1));
    assert_eq!(read(&served, &caller, &file, id).await, Ok(Bytes::from_static(b"Where")));
    let another = open(&served, &holding(machine(), 2), &request(&file, None, Share::WRITE)).await.unwrap();
    assert_ne!(another.id, id, "another holder with the same owner");
    assert_eq!(read(&served, &caller, &file, another.id).await, Err(Status::OpenMode));

    let narrow = |access| served.fs.downgrade(&caller, id, access, Share::empty());
    narrow(Share::READ).await.unwrap();
    assert_eq!(write(&served, &caller, &file, id, b"w").await, Err(Status::OpenMode));
    assert_eq!(narrow(Share::WRITE).await.unwrap_err().status, Status::Inval);
    assert_eq!(read(&served, &caller, &root, id).await, Err(Status::BadStateId), "an open of another file");

    served.fs.close(&caller, id).await.unwrap();
    assert_eq!(read(&served, &caller, &file, id).await, Err(Status::BadStateId));
    assert_eq!(served.fs.close(&caller, id).await.unwrap_err().status, Status::BadStateId);
    assert_eq!(write(&served, &caller, &file, another.id, b"w").await, Ok(1));
}

#[tokio::test]
async fn an_open_is_of_use_to_the_user_that_made_it_and_to_no_other_of_the_holder() {
    if !is_root() {
        return; // only root can act as several users
    }
    let served = serve();
    let (owner, other) = (holding(user(1001), 1), holding(user(1002), 1));
    std::fs::write(served.path("file"), "there").unwrap();
    std::os::unix::fs::chown(served.path("file"), Some(1001), Some(1001)).unwrap();
    std::fs::set_permissions(served.path("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = served.handle("file").await;
    open(&served, &owner, &request(&file, None, Share::WRITE)).await.unwrap();
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let cut_by = async |caller: &Caller| {
        served.fs.setattr(caller, &file, &cut, None).await.map(drop).map_err(|error| error.status)
    };
    assert_eq!(cut_by(&other).await, Err(Status::Access));
    let written =
        served.fs.write(&other, &file, StateidBasis::Anonymous, 0, Bytes::new(), Stability::Unstable).await;
    assert_eq!(written.unwrap_err().status, Status::Access);
    assert_eq!(std::fs::read(served.path("file")).unwrap(), b"there");
    // A program keeps the rights of its open when the mode changes.
    std::fs::set_permissions(served.path("file"), std::fs::Permissions::from_mode(0o000)).unwrap();
    std::os::unix::fs::chown(served.path("file"), Some(0), Some(0)).unwrap();
    assert_eq!(cut_by(&owner).await, Ok(()));
    assert_eq!(cut_by(&other).await, Err(Status::Access));
}

#[tokio::test]
async fn opens_make_files_in_every_way() {
    let served = serve();
    let (root, caller) = (served.root().await, machine());
    let making = |file: &str, how, set| OpenRequest {
        create: Some((how, set)),
        ..request(&root, Some(file), Share::READ | Share::WRITE)
    };
    let unchecked = making("file", CreateHow::Unchecked, with_mode(0o640));
    let made = open(&served, &caller, &unchecked).await.unwrap();
    assert!(made.created && made.attributes.mode == 0o640 && made.attributes.size == 0);
    assert_ne!(made.directory.before, made.directory.after.map(|after| after.wcc()));
    assert_eq!(write(&served, &caller, &made.handle, made.id, b"hello").await, Ok(5));

    let again = open(&served, &caller, &unchecked).await.unwrap();
    assert!(!again.created && again.id == made.id && again.attributes.size == 5);
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let again = open(&served, &caller, &making("file", CreateHow::Unchecked, cut)).await.unwrap();
    assert!(!again.created && again.attributes.size == 0);
    assert!(again.attributes.change > made.attributes.change);

    let guarded = making("file", CreateHow::Guarded, cut);
    assert_eq!(open(&served, &caller, &guarded).await.unwrap_err(), Status::Exist);
    assert!(open(&served, &caller, &making("new", CreateHow::Guarded, cut)).await.unwrap().created);
    let resent = Caller { resent: true, ..caller.clone() };
    let resent = open(&served, &resent, &making("new", CreateHow::Guarded, cut)).await.unwrap();
    assert!(resent.created, "by the request that was sent before");

    let exclusive = |verifier| making("once", CreateHow::Exclusive(verifier), SetAttributes::default());
    let once = open(&served, &caller, &exclusive([1; 8])).await.unwrap();
    let resent = open(&served, &caller, &exclusive([1; 8])).await.unwrap();
    assert!(once.created && resent.created && once.handle == resent.handle);
    assert_eq!(open(&served, &caller, &exclusive([2; 8])).await.unwrap_err(), Status::Exist);

    let missing = open(&served, &caller, &request(&root, Some("missing"), Share::READ)).await;
    assert_eq!(missing.unwrap_err(), Status::NoEnt);
    std::fs::create_dir(served.path("directory")).unwrap();
    let directory = open(&served, &caller, &request(&root, Some("directory"), Share::READ)).await;
    assert_eq!(directory.unwrap_err(), Status::IsDir);
    std::os::unix::fs::symlink("file", served.path("link")).unwrap();
    let link = open(&served, &caller, &request(&root, Some("link"), Share::READ)).await;
    assert_eq!(link.unwrap_err(), Status::Inval);
}

#[tokio::test]
async fn permission_is_decided_at_the_open() {
    if !is_root() {
        return;
    }
    let served = serve();
    let root = served.root().await;
    served.fs.setattr(&machine(), &root, &with_mode(0o777), None).await.unwrap();
    let (alice, bob) = (holding(user(1000), 1), holding(user(1001), 2));
    let file = served.create(&alice, &root, "file").await.unwrap();
    let ask = |access| request(&file, None, access);
    assert_eq!(open(&served, &bob, &ask(Share::WRITE)).await.unwrap_err(), Status::Access);
    assert_eq!(open(&served, &bob, &ask(Share::READ | Share::WRITE)).await.unwrap_err(), Status::Access);
    let reading = open(&served, &bob, &ask(Share::READ)).await.unwrap();
    assert_eq!(reading.granted, Some(AccessMask::READ));
    served.fs.setattr(&alice, &file, &with_mode(0o666), None).await.unwrap();
    let writing = open(&served, &bob, &OpenRequest { owner: owner("other"), ..ask(Share::WRITE) }).await;
    let writing = writing.unwrap().id;

    served.fs.setattr(&alice, &file, &with_mode(0), None).await.unwrap();
    assert_eq!(write(&served, &bob, &file, writing, b"bob").await, Ok(3));
    assert_eq!(read(&served, &bob, &file, reading.id).await, Ok(Bytes::from_static(b"bob")));
    assert_eq!(served.read(&user(1001), &file, 0, 9).await, Err(Status::Access), "without an open");
    assert_eq!(open(&served, &alice, &ask(Share::READ)).await.unwrap_err(), Status::Access, "the owner too");
    let cut = SetAttributes { size: Some(1), ..SetAttributes::default() };
    served.fs.setattr(&bob, &file, &cut, None).await.unwrap();
    served.fs.commit(&bob, &file, 0, 0).await.unwrap();
    served.fs.close(&bob, writing).await.unwrap();
    assert_eq!(served.fs.setattr(&bob, &file, &cut, None).await.unwrap_err().status, Status::Access);

    // The creator of a file has an open of it, even if the mode permits nothing.
    let create = Some((CreateHow::Guarded, with_mode(0)));
    let made = OpenRequest { create, ..request(&root, Some("closed"), Share::READ | Share::WRITE) };
    let made = open(&served, &bob, &made).await.unwrap();
    assert_eq!(write(&served, &bob, &made.handle, made.id, b"mine").await, Ok(4));
    assert_eq!(read(&served, &bob, &made.handle, made.id).await, Ok(Bytes::from_static(b"mine")));

    // A user who may execute a file may open it for reading.
    served.fs.setattr(&alice, &file, &with_mode(0o711), None).await.unwrap();
    let run = open(&served, &holding(user(1002), 3), &ask(Share::READ)).await.unwrap();
    assert_eq!(run.granted, Some(AccessMask::EXECUTE));

    // An open truncates only a file that the caller may write.
    served.fs.setattr(&alice, &file, &with_mode(0o622), None).await.unwrap();
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let trunc = OpenRequest {
        create: Some((CreateHow::Unchecked, cut)),
        ..request(&root, Some("file"), Share::READ | Share::WRITE)
    };
    assert_eq!(open(&served, &holding(user(1003), 4), &trunc).await.unwrap_err(), Status::Access);
    assert_eq!(std::fs::metadata(served.path("file")).unwrap().len(), 1);
}

/// The verifier of an exclusive create is in the times of the file, which every user can see.
#[tokio::test]
async fn an_exclusive_open_that_comes_again_is_its_makers() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !is_root() {
        return;
    }
    let served = serve();
    let root = served.root().await;
    std::fs::write(served.path("secret"), "").unwrap();
    std::fs::set_permissions(served.path("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let seen = std::fs::metadata(served.path("secret")).unwrap();
    let how = CreateHow::Exclusive((((seen.atime() << 32) | seen.mtime()) as u64).to_be_bytes());
    let stranger = holding(user(65534), 1);
    for set in [SetAttributes::default(), with_mode(0o666)] {
        let access = Share::READ | Share::WRITE;
        let ask = OpenRequest { create: Some((how, set)), ..request(&root, Some("secret"), access) };
        assert_eq!(open(&served, &stranger, &ask).await.unwrap_err(), Status::Exist);
        let made = served.fs.create(&stranger, &root, &name("secret"), how, &set).await;
        assert_eq!(made.unwrap_err().status, Status::Exist, "version 3");
        let root_may = open(&served, &holding(user(0), 2), &ask).await.unwrap();
        assert!(root_may.created);
    }

    served.fs.setattr(&machine(), &root, &with_mode(0o777), None).await.unwrap();
    let create = Some((CreateHow::Exclusive([3; 8]), SetAttributes::default()));
    let mine = OpenRequest { create, ..request(&root, Some("mine"), Share::WRITE) };
    let once = open(&served, &stranger, &mine).await.unwrap();
    let again = open(&served, &stranger, &mine).await.unwrap();
    assert!(once.created && again.created && once.handle == again.handle);
    assert_eq!(open(&served, &holding(user(1000), 3), &mine).await.unwrap_err(), Status::Exist);
}

async fn outlives_its_name(served: Served) {
    let (root, caller) = (served.root().await, holding(machine(), 1));
    std::fs::write(served.path("file"), "there").unwrap();
    let opened = open(&served, &caller, &request(&root, Some("file"), Share::READ | Share::WRITE)).await;
    let Opened { id, handle, .. } = opened.unwrap();
    let second = OpenRequest { owner: owner("second"), ..request(&handle, None, Share::READ) };
    let second = open(&served, &caller, &second).await.unwrap().id;
    served.fs.remove(&machine(), &root, &name("file")).await.unwrap();
    // This evicts the least recently used files, but not this one.
    for number in 0..200 {
        served.create(&machine(), &root, &number.to_string()).await.unwrap();
    }
    assert_eq!(served.fs.getattr(&caller, &handle).await.unwrap().nlink, 0);
    assert_eq!(read(&served, &caller, &handle, id).await, Ok(Bytes::from_static(b"there")));
    assert_eq!(write(&served, &caller, &handle, id, b"T").await, Ok(1));
    assert_eq!(served.read(&machine(), &handle, 0, 9).await, Ok((Bytes::from_static(b"There"), true)));
    served.fs.close(&caller, id).await.unwrap();
    assert_eq!(read(&served, &caller, &handle, second).await, Ok(Bytes::from_static(b"There")));
    served.fs.close(&caller, second).await.unwrap();
    assert_eq!(served.fs.getattr(&caller, &handle).await.unwrap_err().status, Status::Stale);
}

#[tokio::test]
async fn a_removed_file_lives_until_the_last_close() {
    outlives_its_name(serve_with(|options| options.descriptors_max = 16)).await;
}

#[tokio::test]
async fn a_removed_file_lives_until_the_last_close_without_kernel_handles() {
    outlives_its_name(serve_by_table()).await;
}

// Promise: exclusive-exports
#[tokio::test]
async fn a_removed_file_of_an_exclusive_directory_lives_until_the_last_close() {
    outlives_its_name(serve_with(|options| (options.descriptors_max, options.exclusive) = (16, true))).await;
}

#[tokio::test]
async fn locks_are_left_to_the_layer_above() {
    let served = serve();
    let (root, caller) = (served.root().await, holding(machine(), 1));
    std::fs::write(served.path("file"), "").unwrap();
    let opened = open(&served, &caller, &request(&root, Some("file"), Share::READ)).await.unwrap();
    let lock = Lock { owner: owner("process"), kind: LockKind::Exclusive, offset: 0, length: 9 };
    let ask = LockRequest { lock: lock.clone(), wait: false, reclaim: false };
    assert_eq!(served.fs.lock(&caller, opened.id, &ask).await, Ok(Locked::Granted));
    assert_eq!(served.fs.test(&caller, &opened.handle, &lock).await, Ok(None));
    assert!(!served.fs.holds_locks(opened.id, &lock.owner));
    served.fs.unlock(&caller, opened.id, &lock.owner, (0, 9)).await.unwrap();
    served.fs.close(&caller, opened.id).await.unwrap();
    assert_eq!(served.fs.lock(&caller, opened.id, &ask).await.unwrap_err().status, Status::BadStateId);
}

/// A name that always leads to some file can always be opened, whatever is renamed over it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_file_is_replaced_is_never_missing() {
    let served = serve();
    let root = served.fs.root(&machine()).await.unwrap().handle;
    let file = served.path("file");
    std::fs::write(&file, "0").unwrap();
    let other = served.path("other");
    let replacing = std::thread::spawn(move || {
        for round in 0..3000 {
            std::fs::write(&other, round.to_string()).unwrap();
            std::fs::rename(&other, &file).unwrap();
        }
    });
    while !replacing.is_finished() {
        let opened = open(&served, &machine(), &request(&root, Some("file"), Share::READ)).await.unwrap();
        served.fs.close(&machine(), opened.id).await.unwrap();
        served
            .fs
            .lookup(&machine(), &root, &name("file"), vfs::Want::None)
            .await
            .map_err(|error| error.status)
            .unwrap();
    }
}

// Promise: capacity-for-opens
#[tokio::test]
async fn what_is_open_is_bounded_in_files_and_nothing_is_made_that_finds_no_room() {
    let served = serve_with(|options| options.opened_max = 2);
    let (root, caller) = (served.root().await, holding(machine(), 1));
    for file in ["a", "b", "c"] {
        std::fs::write(served.path(file), "there").unwrap();
    }
    let by = |number: u32, file| OpenRequest {
        owner: owner(&format!("owner {number}")),
        ..request(&root, Some(file), Share::READ)
    };
    let mut opens = Vec::new();
    for number in 0..5 {
        opens.push(open(&served, &caller, &by(number, "a")).await.unwrap());
    }
    opens.push(open(&served, &caller, &by(0, "b")).await.unwrap());
    assert_eq!(open(&served, &caller, &by(0, "c")).await.unwrap_err(), Status::Resource);
    let create = Some((CreateHow::Guarded, with_mode(0o644)));
    let making = |name| OpenRequest { create, ..by(0, name) };
    assert_eq!(open(&served, &caller, &making("new")).await.unwrap_err(), Status::Resource);
    assert!(!served.path("new").exists());
    assert_eq!(open(&served, &caller, &making("a")).await.unwrap_err(), Status::Exist);
    // An OPEN with creation of an existing file works like one without.
    let create = Some((CreateHow::Unchecked, with_mode(0o644)));
    opens.push(open(&served, &caller, &OpenRequest { create, ..by(6, "a") }).await.unwrap());
    let making = OpenRequest { create, ..by(6, "c") };
    assert_eq!(open(&served, &caller, &making).await.unwrap_err(), Status::Resource);
    assert!(!served.fs.free_capacity(&caller).await);
    // A file that is open can be opened by others too, and a removed file keeps its data.
    opens.push(open(&served, &caller, &by(5, "a")).await.unwrap());
    served.fs.remove(&caller, &root, &name("b")).await.unwrap();
    std::fs::remove_file(served.path("a")).unwrap();
    for opened in &opens {
        assert_eq!(read(&served, &caller, &opened.handle, opened.id).await.unwrap(), "there");
    }
    for opened in opens {
        served.fs.close(&caller, opened.id).await.unwrap();
    }
    assert!(served.fs.free_capacity(&caller).await);
    for file in ["c", "new"] {
        let making = OpenRequest {
            create: (file == "new").then_some((CreateHow::Guarded, with_mode(0o644))),
            ..by(0, file)
        };
        open(&served, &caller, &making).await.unwrap();
    }
    assert!(!served.fs.free_capacity(&caller).await, "no room was lost, and none won");
}
