//! The pseudo file system above the exports.

use protocol::nfs4::{AccessArgs, ArgOp, Attr, Createtype, Fattr, Ftype, ReaddirArgs, Status, op};
use protocol::nfs4::{Bitmap, Handle};

use crate::wire::{Client, ROOT, Served, create, lookup, open_to_all, putfh, serve, then, walk};

fn elsewhere() -> server::ExportOptions {
    server::ExportOptions { clients: "192.0.2.0/24".parse().unwrap(), ..open_to_all() }
}

async fn three() -> Served {
    serve(vec![("/srv/a", open_to_all()), ("/srv/deep/b", open_to_all()), ("/hidden/c", elsewhere())]).await
}

async fn list(client: &mut Client, path: &str) -> Vec<(String, Fattr)> {
    let args = ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 0,
        maxcount: 4096,
        attr_request: Bitmap::of(&[Attr::Fsid, Attr::Fileid, Attr::MountedOnFileid, Attr::Type]),
    };
    let listed = client.last::<op::Readdir>(then(walk(path), [ArgOp::Readdir(args)])).await;
    assert!(listed.eof);
    let text = |entry: &protocol::nfs4::Entry| String::from_utf8(entry.name.to_vec()).unwrap();
    listed.entries.iter().map(|entry| (text(entry), entry.attrs.clone())).collect()
}

#[tokio::test]
async fn exports_are_reached_through_directories_that_are_their_own_file_system() {
    let served = three().await;
    std::fs::write(served.tree().join("file"), b"in a").unwrap();
    let mut client = served.client(0).await;
    let root = client.getattr(vec![ROOT], &[Attr::Fsid, Attr::Type, Attr::Mode]).await;
    assert_eq!((root.ftype, root.mode), (Some(Ftype::Dir), Some(0o555)));
    let names = |list: Vec<(String, Fattr)>| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(list(&mut client, "/").await), ["srv"], "what is not for this client is not seen");
    assert_eq!(names(list(&mut client, "/srv").await), ["a", "deep"]);
    assert_eq!(names(list(&mut client, "/srv/a").await), ["file"]);
    assert_eq!(client.status(walk("/hidden")).await, Err(Status::NoEnt));
    let deep = client.getattr(walk("/srv/deep"), &[Attr::Fsid]).await;
    assert_eq!(deep.fsid, root.fsid);
    let asked = [Attr::Fsid, Attr::Fileid, Attr::MountedOnFileid];
    let export = client.getattr(walk("/srv/a"), &asked).await;
    assert_ne!(export.fsid, root.fsid);
    assert_ne!(export.fileid, export.mounted_on_fileid);
    let (_, listed) = list(&mut client, "/srv").await.into_iter().next().unwrap();
    assert_eq!((listed.fsid, listed.mounted_on_fileid), (export.fsid, export.mounted_on_fileid));
    let file = client.getattr(walk("/srv/a/file"), &asked).await;
    assert_eq!((file.fsid, file.fileid), (export.fsid, file.mounted_on_fileid));
}

#[tokio::test]
async fn the_way_up_leads_out_of_an_export_to_the_root() {
    let served = three().await;
    std::fs::create_dir(served.tree().join("dir")).unwrap();
    let mut client = served.client(0).await;
    for (path, up) in
        [("/srv/a/dir", "/srv/a"), ("/srv/a", "/srv"), ("/srv/deep/b", "/srv/deep"), ("/srv", "/")]
    {
        let there = then(walk(path), [ArgOp::Lookupp(()), ArgOp::Getfh(())]);
        assert_eq!(client.last::<op::Getfh>(there).await.object, client.handle(up).await, "above {path}");
    }
    assert_eq!(client.status(vec![ROOT, ArgOp::Lookupp(())]).await, Err(Status::NoEnt));
}

#[tokio::test]
async fn nothing_above_an_export_can_be_changed() {
    let served = three().await;
    let mut client = served.client(0).await;
    let made = client.status(then(walk("/srv"), [create(b"x", Createtype::Dir, Fattr::default())])).await;
    assert_eq!(made, Err(Status::Rofs));
    let all = ArgOp::Access(AccessArgs { access: 0x3f });
    let access = client.last::<op::Access>(then(walk("/srv"), [all])).await;
    assert_eq!(access.access, 0x03);
}

#[tokio::test]
async fn handles_above_exports_are_checked_like_all_others() {
    let served = three().await;
    let mut client = served.client(0).await;
    let handle = client.handle("/srv/deep").await;
    assert_eq!(client.status(vec![putfh(handle), lookup(b"b")]).await, Ok(()));
    for position in 0..handle.len() {
        let mut forged = handle.to_vec();
        forged[position] ^= 1;
        assert!(client.status(vec![putfh(Handle::new(&forged).unwrap())]).await.is_err());
    }
    assert_eq!(client.status(vec![putfh(Handle::new(b"").unwrap())]).await, Err(Status::BadHandle));
}

#[tokio::test]
async fn an_export_below_another_covers_the_directory_at_its_path() {
    let served =
        serve(vec![("/", open_to_all()), ("/one", open_to_all()), ("/way/to/two", open_to_all())]).await;
    for directory in ["one", "way/to/two", "way/by"] {
        std::fs::create_dir_all(served.tree().join(directory)).unwrap();
    }
    std::fs::write(served.trees[1].path().join("in one"), b"").unwrap();
    std::fs::write(served.trees[2].path().join("in two"), b"").unwrap();
    let mut client = served.client(0).await;
    for path in ["/one/in one", "/way/to/two/in two", "/way/by"] {
        assert_eq!(client.status(walk(path)).await, Ok(()), "{path}");
    }
    let up = then(walk("/way/to/two"), [ArgOp::Lookupp(()), ArgOp::Getfh(())]);
    assert_eq!(client.last::<op::Getfh>(up).await.object, client.handle("/way/to").await);
    let root = client.getattr(vec![ROOT], &[Attr::Fsid]).await.fsid;
    for (name, attributes) in list(&mut client, "/").await {
        assert_eq!(attributes.fsid != root, name == "one", "{name}");
    }
}
