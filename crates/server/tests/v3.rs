//! NFS v3 from the project's client through the front to a directory and back.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::sync::Arc;

use bytes::Bytes;
use common::serve;
use local::LocalFs;
use protocol::Reply;
use protocol::mount::{self, Dirpath};
use protocol::nfs3::{AccessArgs, FsArgs, GetattrArgs, Procedure, call};
use server::exports::ExportId;
use server::{Export, ExportOptions, Squash};
use vfs::{
    AccessMask, Caller, CreateHow, Device, FileSystem, FileType, Freshness, Handle, Name, ReadDir,
    SetAttributes, SetTime, Stability, StateidBasis, Status, Timestamp, Want,
};

fn root_user() -> Caller {
    Caller::unix(0, 0, &[]).with_freshness(Freshness::Open)
}

fn name(text: &[u8]) -> Name {
    Name::new(text).unwrap()
}

async fn make(fs: &dyn FileSystem, directory: &Handle, file: &[u8], content: &[u8]) -> Handle {
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let created = fs.create(&root_user(), directory, &name(file), CreateHow::Guarded, &set).await.unwrap();
    let handle = created.node.handle;
    let data = Bytes::copy_from_slice(content);
    let written =
        fs.write(&root_user(), &handle, StateidBasis::Anonymous, 0, data, Stability::Unstable).await.unwrap();
    assert_eq!(written.count as usize, content.len());
    let commit = fs.commit(&root_user(), &handle, 0, 0).await.unwrap();
    assert_eq!(commit.verifier, written.verifier);
    handle
}

async fn read_all(fs: &dyn FileSystem, handle: &Handle, chunk: u32) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let read =
            fs.read(&root_user(), handle, StateidBasis::Anonymous, all.len() as u64, chunk).await.unwrap();
        all.extend_from_slice(&read.data.to_bytes().unwrap());
        if read.eof {
            return all;
        }
        assert!(!read.data.is_empty());
    }
}

/// File operations of a client over one transport.
async fn files_over(options: &str) {
    let served = serve(|_| {}).await;
    let fs = served.mount(options).await;
    let root = fs.root(&root_user()).await.unwrap().handle;
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let handle = make(&fs, &root, b"caf\xe9", &content[..20_000]).await;
    let path = served.tree.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    assert_eq!(std::fs::read(&path).unwrap(), &content[..20_000]);
    std::fs::write(&path, &content).unwrap();
    for chunk in [1000, 8192, 65_536, 1 << 20] {
        assert!(read_all(&fs, &handle, chunk).await == content, "in chunks of {chunk}");
    }
    let attributes = fs.getattr(&root_user(), &handle).await.unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((attributes.size, attributes.fileid, attributes.mode), (3_000_000, metadata.ino(), 0o644));
    let set = SetAttributes {
        mode: Some(0o600),
        size: Some(5 << 32),
        mtime: Some(SetTime::Client(Timestamp::new(1_000_000, 5000))),
        ..SetAttributes::default()
    };
    let wcc = fs.setattr(&root_user(), &handle, &set, None).await.unwrap();
    assert_eq!(wcc.before, Some(attributes.wcc()));
    let now = wcc.after.unwrap();
    assert_eq!((now.size, now.mode, now.mtime), (5 << 32, 0o600, Timestamp::new(1_000_000, 5000)));
    let stale_guard = fs.setattr(&root_user(), &handle, &set, Some(Timestamp::new(1, 1))).await;
    assert_eq!(stale_guard.unwrap_err().status, Status::NotSync);
    let tail = fs.read(&root_user(), &handle, StateidBasis::Anonymous, (5 << 32) - 10, 100).await.unwrap();
    assert!(tail.eof && tail.data.len() == 10);
}

#[tokio::test]
async fn files_over_tcp() {
    Box::pin(files_over("")).await;
}

#[tokio::test]
async fn files_over_udp() {
    Box::pin(files_over("proto=udp")).await;
}

#[tokio::test]
async fn names_are_made_moved_and_removed() {
    let served = serve(|_| {}).await;
    let fs = served.mount("nconnect=2").await;
    let caller = root_user();
    let root = fs.root(&caller).await.unwrap().handle;
    let plain = SetAttributes::default();
    let dir = fs.mkdir(&caller, &root, &name(b"dir"), &plain, vfs::Want::None).await.unwrap().node.handle;
    let file = make(&fs, &dir, b"file", b"content").await;
    let exists = fs.create(&caller, &dir, &name(b"file"), CreateHow::Guarded, &plain).await.unwrap_err();
    assert_eq!(exists.status, Status::Exist);
    let verifier = [7; 8];
    for _ in 0..2 {
        fs.create(&caller, &dir, &name(b"once"), CreateHow::Exclusive(verifier), &plain).await.unwrap();
    }
    let other =
        fs.create(&caller, &dir, &name(b"once"), CreateHow::Exclusive([8; 8]), &plain).await.unwrap_err();
    assert_eq!(other.status, Status::Exist);
    fs.link(&caller, &file, &root, &name(b"linked")).await.unwrap();
    assert_eq!(fs.getattr(&caller, &file).await.unwrap().nlink, 2);
    fs.symlink(&caller, &root, &name(b"sym"), b"dir/file", &plain).await.unwrap();
    let sym = fs.lookup(&caller, &root, &name(b"sym"), vfs::Want::None).await.unwrap().node.handle;
    assert_eq!(fs.readlink(&caller, &sym).await.unwrap().0, "dir/file");
    let device = Device { major: 1, minor: 3 };
    fs.mknod(&caller, &root, &name(b"fifo"), FileType::Fifo, Device::default(), &plain).await.unwrap();
    fs.mknod(&caller, &root, &name(b"null"), FileType::Character, device, &plain).await.unwrap();
    let null =
        fs.lookup(&caller, &root, &name(b"null"), vfs::Want::None).await.unwrap().node.attributes.unwrap();
    assert_eq!((null.file_type, null.rdev), (FileType::Character, device));
    assert!(std::fs::metadata(served.tree.path().join("fifo")).unwrap().file_type().is_fifo());
    fs.rename(&caller, &dir, &name(b"file"), &root, &name(b"moved")).await.unwrap();
    assert_eq!(
        fs.lookup(&caller, &dir, &name(b"file"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    assert_eq!(fs.lookup(&caller, &root, &name(b"moved"), vfs::Want::None).await.unwrap().node.handle, file);
    assert_eq!(fs.parent(&caller, &dir).await.unwrap().node.handle, root);
    assert_eq!(fs.parent(&caller, &root).await.unwrap().node.handle, root);
    assert_eq!(fs.rmdir(&caller, &root, &name(b"dir")).await.unwrap_err().status, Status::NotEmpty);
    fs.remove(&caller, &dir, &name(b"once")).await.unwrap();
    fs.rmdir(&caller, &root, &name(b"dir")).await.unwrap();
    fs.remove(&caller, &root, &name(b"moved")).await.unwrap();
    fs.remove(&caller, &root, &name(b"linked")).await.unwrap();
    assert_eq!(fs.getattr(&caller, &file).await.unwrap_err().status, Status::Stale);
    let long = Name::new(&[b'x'; 255]).unwrap();
    fs.create(&caller, &root, &long, CreateHow::Unchecked, &plain).await.unwrap();
    assert!(fs.fsstat(&caller, &root).await.unwrap().total_bytes > 0);
    assert_eq!(fs.limits(&caller, &root).await.unwrap().name_max, 255);
}

#[tokio::test]
async fn directories_are_read_whole_in_small_parts() {
    let served = serve(|_| {}).await;
    for number in 0..1000 {
        std::fs::write(served.tree.path().join(format!("{number:03}-{}", "n".repeat(number % 60))), b"")
            .unwrap();
    }
    let fs = served.mount("").await;
    let root = fs.root(&root_user()).await.unwrap().handle;
    for (plus, bytes) in [(false, 600), (false, 65_536), (true, 1500), (true, 1 << 20)] {
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes,
            plus,
            want_directory_lease: false,
            names_suffice: false,
        };
        let mut names = std::collections::BTreeSet::new();
        loop {
            let listing = fs.readdir(&root_user(), &root, part).await.unwrap();
            for entry in &listing.entries {
                assert!(names.insert(entry.name.clone()), "{} comes twice", entry.name);
                assert_eq!(entry.node.is_some(), plus);
            }
            (part.cookie, part.verifier) =
                (listing.entries.last().map_or(0, |last| last.cookie), listing.verifier);
            if listing.eof {
                break;
            }
        }
        assert_eq!(names.len(), 1000, "in parts of {bytes} bytes");
    }
}

#[tokio::test]
async fn exports_options_hold() {
    let served = serve(|options| options.squash = server::Squash::Root).await;
    std::fs::write(served.tree.path().join("secret"), b"secret").unwrap();
    std::fs::set_permissions(served.tree.path().join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(served.tree.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let fs = served.mount("").await;
    let root = fs.root(&root_user()).await.unwrap().handle;
    let secret = fs.lookup(&root_user(), &root, &name(b"secret"), vfs::Want::None).await.unwrap().node.handle;
    let read = fs.read(&root_user(), &secret, StateidBasis::Anonymous, 0, 10).await.unwrap_err();
    assert_eq!(read.status, Status::Access, "root is squashed");
    let granted = fs.access(&root_user(), &secret, AccessMask::all()).await.unwrap().granted;
    assert_eq!(granted, AccessMask::empty());

    let read_only = serve(|options| options.read_only = true).await;
    let fs = read_only.mount("").await;
    let root = fs.root(&root_user()).await.unwrap().handle;
    let plain = SetAttributes::default();
    let refused = fs.mkdir(&root_user(), &root, &name(b"dir"), &plain, vfs::Want::None).await.unwrap_err();
    assert_eq!(refused.status, Status::Rofs);

    let elsewhere = serve(|options| options.clients = "192.0.2.0/24".parse().unwrap()).await;
    let url = format!("nfs://{}/export", elsewhere.server.local_addr());
    let refused = client::Nfs3::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
}

#[tokio::test]
async fn calls_are_counted_by_procedure() {
    let served = serve(|_| {}).await;
    let fs = served.mount("").await;
    let root = fs.root(&root_user()).await.unwrap().handle;
    let before = served.front.counts().nfs3(Procedure::Getattr);
    for _ in 0..5 {
        fs.getattr(&root_user(), &root).await.unwrap();
    }
    assert_eq!(served.front.counts().nfs3(Procedure::Getattr) - before, 5);
}

/// RFC 2623, section 2.3.2: a client may mount with AUTH_SYS, and use another flavor then.
#[tokio::test]
async fn the_root_of_an_export_with_kerberos_is_described_to_all_who_mount_it() {
    let served = serve(|options| options.sec = "krb5p".parse().unwrap()).await;
    let client = served.client();
    let path = Dirpath::new(&b"/export"[..]).unwrap();
    let Reply::Ok(mounted) = client.call::<mount::v3::call::Mnt>(path).await else { panic!("mounts") };
    let root = mounted.fhandle;
    let Reply::Ok(described) = client.call::<call::Getattr>(GetattrArgs { object: root }).await else {
        panic!("attributes of the root")
    };
    let metadata = served.tree.path().metadata().unwrap();
    assert_eq!(described.obj_attributes.fileid, metadata.ino());
    let of_root = || FsArgs { object: root };
    assert!(matches!(client.call::<call::Fsinfo>(of_root()).await, Reply::Ok(_)));
    assert!(matches!(
        client.call::<call::Fsstat>(of_root()).await,
        Reply::Fail(protocol::nfs3::Status::Acces, _)
    ));
    let access = AccessArgs { object: root, access: 1 };
    assert!(matches!(
        client.call::<call::Access>(access).await,
        Reply::Fail(protocol::nfs3::Status::Acces, _)
    ));
}

/// Clients of version 3 step into an export below another one, as with `crossmnt`: they see another file
/// system there.
#[tokio::test]
async fn a_client_crosses_from_one_export_to_another_below_it() {
    let served = serve(|_| {}).await;
    std::fs::create_dir_all(served.tree.path().join("deep/below")).unwrap();
    std::fs::write(served.tree.path().join("deep/below/covered"), b"").unwrap();
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(tree.path().join("file"), b"here").unwrap();
    let fs = Arc::new(LocalFs::open(tree.path(), local::Options::new(state.path())).unwrap());
    let options = |clients: &str| ExportOptions {
        secure: false,
        squash: Squash::None,
        clients: clients.parse().unwrap(),
        ..ExportOptions::default()
    };
    let below = |clients| Export::new(ExportId(2), "/export/deep/below".into(), fs.clone(), options(clients));
    served.front.add(below("*").among_others()).await.unwrap();
    let client = served.mount("noresvport").await;
    let (me, name) = (root_user(), |text: &str| name(text.as_bytes()));
    let root = client.root(&me).await.unwrap().handle;
    let deep = client.lookup(&me, &root, &name("deep"), Want::None).await.unwrap().node.handle;
    let crossed = client.lookup(&me, &deep, &name("below"), Want::None).await.unwrap().node;
    client.lookup(&me, &crossed.handle, &name("file"), Want::None).await.unwrap();
    let fsid = client.getattr(&me, &deep).await.unwrap().fsid;
    assert_ne!(crossed.attributes.unwrap().fsid, fsid, "by that clients know that they cross over");
    // A listing does not name the covered directory as the one that the client finds.
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 1 << 16,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = client.readdir(&me, &deep, part).await.unwrap();
    assert!(listing.entries.iter().all(|entry| entry.node.is_none()), "{:?}", listing.entries);

    // Clients that it does not admit do not get in, and do not see what it covers.
    served.front.withdraw(ExportId(2)).await.unwrap();
    client.lookup(&me, &deep, &name("below"), Want::None).await.unwrap();
    served.front.add(below("192.0.2.1")).await.unwrap();
    let refused = client.lookup(&me, &deep, &name("below"), Want::None).await.unwrap_err();
    assert_eq!(refused.status, Status::Access);
    client.shutdown().await;
}
