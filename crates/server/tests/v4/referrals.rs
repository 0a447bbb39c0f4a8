//! Exports that are on another server, or on other servers too.

use client::{Nfs3, Url};
use protocol::nfs4::{
    AccessArgs, ArgFattr, ArgOp, Attr, Bitmap, Createtype, Fattr, FsLocations, Outcome, ReadArgs,
    ReaddirArgs, ReaddirOk, RemoveArgs, SecinfoArgs, Stateid, Status, VerifyArgs, op,
};
use server::Export;
use server::exports::ExportId;
use std::sync::Arc;
use vfs::{Caller, FileSystem};

use crate::wire::{
    Client, ROOT, Served, create, getattr, lookup, name, open_to_all, putfh, serve, then, walk,
};

const PLACES: &str = "/srv/b@one.example.com+192.0.2.7:/c@two.example.com";
const THERE: [Attr; 3] = [Attr::FsLocations, Attr::Fsid, Attr::MountedOnFileid];

async fn referring() -> Served {
    let away = server::ExportOptions { refer: PLACES.parse().unwrap(), ..open_to_all() };
    let both = server::ExportOptions { replicas: PLACES.parse().unwrap(), ..open_to_all() };
    serve(vec![("/srv/away", away), ("/srv/both", both), ("/srv/here", open_to_all())]).await
}

/// The locations as text: the path here, and the other locations.
fn told(locations: &FsLocations) -> (String, Vec<String>) {
    let path = |names: &protocol::nfs4::Pathname| {
        let names: Vec<_> = names.iter().map(|name| name.escape_ascii().to_string()).collect();
        format!("/{}", names.join("/"))
    };
    let location = |location: &protocol::nfs4::FsLocation| {
        let hosts: Vec<_> = location.server.iter().map(|host| host.escape_ascii().to_string()).collect();
        format!("{}@{}", path(&location.rootpath), hosts.join("+"))
    };
    (path(&locations.fs_root), locations.locations.iter().map(location).collect())
}

fn expected(root: &str) -> (String, Vec<String>) {
    (root.to_owned(), PLACES.split(':').map(str::to_owned).collect())
}

#[tokio::test]
async fn an_export_that_is_elsewhere_tells_where_and_nothing_else() {
    let served = referring().await;
    std::fs::write(served.tree().join("file"), b"must not be seen").unwrap();
    let mut client = served.client(0).await;
    let root = client.getattr(vec![ROOT], &[Attr::Fsid]).await;
    let asked = [&THERE[..], &[Attr::Type, Attr::Size, Attr::Filehandle]].concat();
    let seen = client.getattr(walk("/srv/away"), &asked).await;
    assert_eq!(told(&seen.fs_locations.clone().unwrap()), expected("/srv/away"));
    assert_eq!(seen.attributes(), Bitmap::of(&THERE), "what there is not is left out");
    assert_ne!(seen.fsid, root.fsid, "by that clients know that they cross over");
    let same = ArgFattr::from(Fattr { fs_locations: seen.fs_locations.clone(), ..Fattr::default() });
    let verify = ArgOp::Verify(VerifyArgs { obj_attributes: same.clone() });
    assert_eq!(client.status(then(walk("/srv/away"), [verify])).await, Ok(()));
    let nverify = ArgOp::Nverify(VerifyArgs { obj_attributes: same });
    assert_eq!(client.status(then(walk("/srv/away"), [nverify])).await, Err(Status::Same));

    let read = ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 1 });
    let others = [
        ArgOp::Getfh(()),
        getattr(&[Attr::Fsid]),
        getattr(&[Attr::Type]),
        ArgOp::Access(AccessArgs { access: 1 }),
        lookup(b"file"),
        ArgOp::Lookupp(()),
        ArgOp::Readlink(()),
        ArgOp::Secinfo(SecinfoArgs { name: name(b"file") }),
        ArgOp::Remove(RemoveArgs { target: name(b"file") }),
        create(b"new", Createtype::Dir, Fattr::default()),
        readdir(&[Attr::Fileid]),
        read,
    ];
    for operation in others {
        let what = operation.operation();
        let status = client.status(then(walk("/srv/away"), [operation])).await;
        assert_eq!(status, Err(Status::Moved), "{what}");
    }
    // The name of the export exists like any other.
    let secinfo = ArgOp::Secinfo(SecinfoArgs { name: name(b"away") });
    assert_eq!(client.status(then(walk("/srv"), [secinfo])).await, Ok(()));
    assert!(!served.tree().join("new").exists());
}

fn readdir(asked: &[Attr]) -> ArgOp {
    ArgOp::Readdir(ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 0,
        maxcount: 4096,
        attr_request: Bitmap::of(asked),
    })
}

async fn entries(client: &mut Client, asked: &[Attr]) -> Result<Vec<(String, Fattr)>, Status> {
    let mut results = client.compound(then(walk("/srv"), [readdir(asked)])).await;
    results.take::<op::Putrootfh>().unwrap();
    results.take::<op::Lookup>().unwrap();
    let listed: ReaddirOk = results.take::<op::Readdir>().map_err(|error| error.status().unwrap())?;
    let text = |entry: &protocol::nfs4::Entry| String::from_utf8(entry.name.to_vec()).unwrap();
    Ok(listed.entries.iter().map(|entry| (text(entry), entry.attrs.clone())).collect())
}

#[tokio::test]
async fn a_listing_has_its_name_and_says_what_is_asked_for() {
    let served = referring().await;
    let mut client = served.client(0).await;
    let usual = [Attr::RdattrError, Attr::Type, Attr::MountedOnFileid];
    let listed = entries(&mut client, &usual).await.unwrap();
    assert_eq!(listed.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["away", "both", "here"]);
    let away = &listed[0].1;
    assert_eq!(away.rdattr_error, Some(Outcome::Fail(Status::Moved, ())));
    assert!(away.mounted_on_fileid.is_some() && away.ftype.is_none());
    assert_eq!(listed[1].1.rdattr_error, Some(Outcome::Ok(())));
    assert!(listed[2].1.ftype.is_some(), "those beside it are told of");
    assert_eq!(entries(&mut client, &[Attr::Type]).await.unwrap_err(), Status::Moved);
    let asked = [&usual[..], &[Attr::FsLocations]].concat();
    let away = entries(&mut client, &asked).await.unwrap().swap_remove(0).1;
    assert_eq!(away.rdattr_error, Some(Outcome::Ok(())));
    assert_eq!(told(&away.fs_locations.unwrap()), expected("/srv/away"));
}

/// An export that clients of versions 2 and 3 get here. Its file system comes when the first of them asks.
#[tokio::test]
async fn an_export_that_serves_older_clients_is_elsewhere_before_and_after_they_ask() {
    let away = server::ExportOptions { refer: PLACES.parse().unwrap(), ..open_to_all() };
    let served = serve(vec![("/srv/here", open_to_all())]).await;
    let id = ExportId::of("/srv/away");
    let options = server::ExportOptions { serves_older: true, ..away };
    served.front.add(Export::awaited(id, "/srv/away".into(), options)).await.unwrap();
    let mut client = served.client(0).await;
    for is_there in [false, true] {
        let usual = [Attr::RdattrError, Attr::Type];
        let listed = entries(&mut client, &usual).await.unwrap();
        assert_eq!(listed[0].1.rdattr_error, Some(Outcome::Fail(Status::Moved, ())), "{is_there}");
        assert_eq!(entries(&mut client, &[Attr::Type]).await.unwrap_err(), Status::Moved);
        let getfh = then(walk("/srv/away"), [ArgOp::Getfh(())]);
        assert_eq!(client.status(getfh).await, Err(Status::Moved));
        let url = format!("nfs://{}/srv/away?noresvport&vers=3", served.server.local_addr());
        let url = Url::parse(&url).unwrap();
        if is_there {
            let older = Nfs3::connect(&url).await.unwrap();
            older.root(&Caller::machine()).await.unwrap();
        } else {
            let export = served.front.exports().by_id(id).unwrap();
            let asking = tokio::spawn(async move { Nfs3::connect(&url).await.map(drop) });
            export.is_asked_for().await;
            served.front.supply(id, Arc::new(memory::Memory::default())).await;
            asking.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn replicas_are_told_to_who_asks() {
    let served = referring().await;
    std::fs::write(served.trees[1].path().join("file"), b"here").unwrap();
    let mut client = served.client(0).await;
    let seen = client.getattr(walk("/srv/both/file"), &[Attr::FsLocations, Attr::Size]).await;
    assert_eq!((seen.size, told(&seen.fs_locations.unwrap())), (Some(4), expected("/srv/both")));
    let seen = client.getattr(walk("/srv/here"), &[Attr::FsLocations]).await;
    assert_eq!(told(&seen.fs_locations.unwrap()), ("/srv/here".to_owned(), vec![]));
}

/// A handle from before the export moved can still be used to ask for the new location.
#[tokio::test]
async fn a_handle_of_before_finds_the_new_place() {
    let before = serve(vec![("/srv/away", open_to_all())]).await;
    let file = before.tree().join("file");
    std::fs::write(file, b"content").unwrap();
    let handle = before.client(0).await.handle("/srv/away/file").await;
    let after = referring().await;
    let mut client = after.client(0).await;
    let seen = client.getattr(vec![putfh(handle)], &THERE).await;
    assert_eq!(told(&seen.fs_locations.unwrap()), expected("/srv/away"));
    let read = ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 1 });
    assert_eq!(client.status(vec![putfh(handle), read]).await, Err(Status::Moved));
}

#[tokio::test]
async fn version_3_cannot_say_where_and_does_not_mount_it() {
    let served = referring().await;
    let mount = async |path: &str| {
        let url = format!("nfs://{}{path}", served.server.local_addr());
        Nfs3::connect(&Url::parse(&url).unwrap()).await
    };
    let refused = mount("/srv/away").await.unwrap_err().to_string();
    assert!(refused.contains("there is no such export"), "{refused}");
    let here = mount("/srv/here").await.unwrap();
    assert!(here.root(&Caller::unix(0, 0, &[])).await.is_ok());
}
