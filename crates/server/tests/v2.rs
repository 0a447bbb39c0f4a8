//! NFS v2 and MOUNT v1, call by call.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Client, Served, serve};
use local::LocalFs;
use protocol::Reply;
use protocol::mount::{self, Dirpath};
use protocol::nfs2::{
    CreateArgs, DirOpArgs, Handle, KEEP, LinkArgs, Path, ReadArgs, ReaddirArgs, RenameArgs, Sattr, SattrArgs,
    Stat, SymlinkArgs, Timeval, WriteArgs, call,
};
use server::exports::ExportId;
use server::{Export, ExportOptions, Squash};
use xdr::{Bulk, Opaque};

async fn mount(served: &Served) -> (Client, Handle) {
    let client = served.client();
    let path = Dirpath::new(&b"/export"[..]).unwrap();
    let Reply::Ok(root) = client.call::<mount::v1::call::Mnt>(path).await else { panic!("mounts") };
    (client, root)
}

fn place(dir: Handle, name: &'static str) -> DirOpArgs {
    DirOpArgs { dir, name: Opaque::new(name.as_bytes()).unwrap() }
}

fn keep() -> Sattr {
    let time = Timeval { seconds: KEEP, useconds: KEEP };
    Sattr { mode: KEEP, uid: KEEP, gid: KEEP, size: KEEP, atime: time, mtime: time }
}

fn ok<T: std::fmt::Debug>(reply: Reply<T, Stat>) -> T {
    match reply {
        Reply::Ok(ok) => ok,
        Reply::Fail(stat, ()) => panic!("{stat:?}"),
    }
}

#[tokio::test]
async fn every_procedure_of_v2() {
    let served = serve(|_| {}).await;
    let (client, root) = mount(&served).await;
    assert_eq!(ok(client.call::<call::Getattr>(root).await).mode & 0o170_000, 0o040_000);
    let attributes = Sattr { mode: 0o640, ..keep() };
    let args = CreateArgs { location: place(root, "file"), attributes };
    let file = ok(client.call::<call::Create>(args).await);
    assert_eq!(file.attributes.mode, 0o100_640);
    let data = Bulk::Bytes(vec![b'x'; 8192].into());
    let args = WriteArgs { file: file.file, beginoffset: 0, offset: 100, totalcount: 0, data };
    assert_eq!(ok(client.call::<call::Write>(args).await).size, 8292);
    let args = ReadArgs { file: file.file, offset: 8290, count: 8192, totalcount: 0 };
    assert_eq!(ok(client.call::<call::Read>(args).await).data, Bulk::Bytes(b"xx"[..].into()));
    let time = Timeval { seconds: 1000, useconds: 7 };
    let args = SattrArgs { file: file.file, attributes: Sattr { size: 3, mtime: time, ..keep() } };
    let set = ok(client.call::<call::Setattr>(args).await);
    assert_eq!((set.size, set.mtime), (3, time));
    ok(client.call::<call::Link>(LinkArgs { from: file.file, to: place(root, "link") }).await);
    ok(client.call::<call::Rename>(RenameArgs { from: place(root, "link"), to: place(root, "moved") }).await);
    assert_eq!(ok(client.call::<call::Lookup>(place(root, "moved")).await).file, file.file);
    let target = Path::new(&b"moved"[..]).unwrap();
    let args = SymlinkArgs { from: place(root, "sym"), to: target.clone(), attributes: keep() };
    ok(client.call::<call::Symlink>(args).await);
    let sym = ok(client.call::<call::Lookup>(place(root, "sym")).await).file;
    assert_eq!(ok(client.call::<call::Readlink>(sym).await), target);
    let args = CreateArgs { location: place(root, "dir"), attributes: Sattr { mode: 0o755, ..keep() } };
    let dir = ok(client.call::<call::Mkdir>(args).await).file;
    let args = CreateArgs { location: place(dir, "pipe"), attributes: Sattr { mode: 0o010_600, ..keep() } };
    ok(client.call::<call::Create>(args).await);
    assert_eq!(client.call::<call::Rmdir>(place(root, "dir")).await, Reply::Fail(Stat::NotEmpty, ()));
    ok(client.call::<call::Remove>(place(dir, "pipe")).await);
    ok(client.call::<call::Rmdir>(place(root, "dir")).await);
    assert_eq!(client.call::<call::Lookup>(place(root, "dir")).await, Reply::Fail(Stat::NoEnt, ()));
    assert!(ok(client.call::<call::Statfs>(root).await).blocks > 0);
    client.call::<call::Root>(()).await;
    client.call::<call::Writecache>(()).await;
    client.call::<call::Null>(()).await;
}

#[tokio::test]
async fn directories_are_read_in_parts_by_v2() {
    let served = serve(|_| {}).await;
    for number in 0..500 {
        std::fs::write(served.tree.path().join(format!("file-{number}")), b"").unwrap();
    }
    let (client, root) = mount(&served).await;
    let mut names = std::collections::BTreeSet::new();
    let mut cookie = 0;
    loop {
        let args = ReaddirArgs { dir: root, cookie, count: 700 };
        let part = ok(client.call::<call::Readdir>(args).await);
        for entry in part.entries.iter() {
            assert!(names.insert(entry.name.to_vec()), "{:?} comes twice", entry.name);
            cookie = entry.cookie;
        }
        if part.eof {
            break;
        }
    }
    assert_eq!(names.len(), 502);
}

#[tokio::test]
async fn forged_handles_names_that_walk_and_unknown_paths_are_refused() {
    let served = serve(|_| {}).await;
    let (client, root) = mount(&served).await;
    let mut forged = root;
    forged[20] ^= 1;
    assert_eq!(client.call::<call::Getattr>(forged).await, Reply::Fail(Stat::Stale, ()));
    assert_eq!(client.call::<call::Getattr>([0; 32]).await, Reply::Fail(Stat::Stale, ()));
    assert_eq!(client.call::<call::Lookup>(place(root, "a/b")).await, Reply::Fail(Stat::Acces, ()));
    assert_eq!(client.call::<call::Remove>(place(root, "..")).await, Reply::Fail(Stat::Exist, ()));
    assert_eq!(ok(client.call::<call::Lookup>(place(root, "..")).await).file, root);
    for (path, stat) in [
        ("/elsewhere", mount::Stat::NoEnt),
        ("/export/none", mount::Stat::NoEnt),
        ("/export/..", mount::Stat::Inval),
    ] {
        let path = Dirpath::new(path.as_bytes()).unwrap();
        assert_eq!(client.call::<mount::v1::call::Mnt>(path).await, Reply::Fail(stat, ()));
    }
    let listed = client.call::<mount::v1::call::Export>(()).await;
    assert_eq!(&listed[0].dir[..], b"/export");
    assert_eq!(client.call::<mount::v1::call::Dump>(()).await.len(), 1);
}

/// RFC 2623, section 2.3.2: a client may mount with AUTH_SYS or without a user, and use another flavor then.
#[tokio::test]
async fn the_root_of_an_export_with_kerberos_is_described_to_all_who_mount_it() {
    let served = serve(|options| options.sec = "krb5".parse().unwrap()).await;
    std::fs::write(served.tree.path().join("file"), b"secret").unwrap();
    std::fs::create_dir(served.tree.path().join("dir")).unwrap();
    let (client, root) = mount(&served).await;
    assert_eq!(ok(client.call::<call::Getattr>(root).await).mode & 0o170_000, 0o040_000);
    assert!(ok(client.call::<call::Statfs>(root).await).blocks > 0);
    let denied = Reply::Fail(Stat::Acces, ());
    assert_eq!(client.call::<call::Lookup>(place(root, "file")).await, denied);
    let everything = ReaddirArgs { dir: root, cookie: 0, count: 4096 };
    assert!(matches!(client.call::<call::Readdir>(everything).await, Reply::Fail(Stat::Acces, ())));
    // Other handles of the export tell nothing, although they are right.
    served.front.exports().iter().for_each(|export| export.set_options(open_to_all("sys")));
    let inside = ok(client.call::<call::Lookup>(place(root, "dir")).await).file;
    served.front.exports().iter().for_each(|export| export.set_options(open_to_all("krb5")));
    assert!(matches!(client.call::<call::Getattr>(inside).await, Reply::Fail(Stat::Acces, ())));
    assert!(matches!(client.call::<call::Statfs>(inside).await, Reply::Fail(Stat::Acces, ())));
}

fn open_to_all(sec: &str) -> server::ExportOptions {
    server::ExportOptions { secure: false, sec: sec.parse().unwrap(), ..server::ExportOptions::default() }
}

/// Neither v2 nor MOUNT can say "come back later": the call gets no reply, and the client sends it again.
#[tokio::test]
async fn calls_to_an_export_that_is_not_there_yet_are_answered_when_it_is() {
    let served = serve(|_| {}).await;
    let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
    let id = ExportId(2);
    served.front.add(Export::awaited(id, "/late".into(), options)).await.unwrap();
    let mounting = tokio::spawn({
        let client = served.client();
        async move { client.call::<mount::v1::call::Mnt>(Dirpath::new(&b"/late"[..]).unwrap()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!mounting.is_finished());
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = Arc::new(LocalFs::open(tree.path(), local::Options::new(state.path())).unwrap());
    served.front.supply(id, fs).await;
    let Reply::Ok(root) = mounting.await.unwrap() else { panic!("mounts") };
    let client = served.client();
    ok(client.call::<call::Getattr>(root).await);

    served.front.withdraw(id).await.unwrap();
    assert_eq!(client.call::<call::Getattr>(root).await, Reply::Fail(Stat::Stale, ()));
    let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
    served.front.add(Export::awaited(id, "/late".into(), options)).await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(200), client.call::<call::Getattr>(root)).await;
    assert!(silent.is_err(), "{silent:?}");
}
