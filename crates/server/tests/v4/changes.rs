//! Exports that come and go while the server runs, and file systems that come later than their export.

use std::sync::Arc;

use local::LocalFs;
use protocol::nfs4::{ArgOp, Attr, Bitmap, Outcome, ReaddirArgs, Status, op};
use server::Export;
use server::exports::{ExportId, ExportsError};
use vfs::FileSystem;

use crate::wire::{Client, ROOT, Served, getattr, open_to_all, putfh, serve, then, walk};

fn awaited(path: &str) -> Export {
    Export::awaited(ExportId::of(path), path.into(), open_to_all())
}

fn file_system(served: &Served) -> (tempfile::TempDir, Arc<dyn FileSystem>) {
    let (tree, state) = (tempfile::tempdir().unwrap(), served.tree().join("state"));
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(tree.path().join("file"), b"late").unwrap();
    let fs = LocalFs::open(tree.path(), local::Options::new(&state)).unwrap();
    (tree, Arc::new(fs))
}

/// The names at a path, each with the error of its attributes.
async fn list(
    client: &mut Client,
    path: &str,
    asked: &[Attr],
) -> Result<Vec<(String, Option<Status>)>, Status> {
    let (cookie, cookieverf, attr_request) = (0, [0; 8], Bitmap::of(asked));
    let args = ReaddirArgs { cookie, cookieverf, dircount: 0, maxcount: 4096, attr_request };
    let operations = then(walk(path), [ArgOp::Readdir(args)]);
    client.status(operations.clone()).await?;
    let listed = client.last::<op::Readdir>(operations).await;
    let of = |entry: &protocol::nfs4::Entry| {
        let error = match &entry.attrs.rdattr_error {
            Some(Outcome::Fail(status, ())) => Some(*status),
            _ => None,
        };
        (String::from_utf8(entry.name.to_vec()).unwrap(), error)
    };
    Ok(listed.entries.iter().map(of).collect())
}

#[tokio::test]
async fn an_export_whose_file_system_is_not_there_yet_delays_its_own_clients_alone() {
    let served = serve(vec![("/a", open_to_all())]).await;
    let mut client = served.client(0).await;
    let before = client.getattr(vec![ROOT], &[Attr::Change]).await.change;
    served.front.add(awaited("/deep/b")).await.unwrap();
    assert_ne!(client.getattr(vec![ROOT], &[Attr::Change]).await.change, before, "a client must look again");
    assert_eq!(client.status(walk("/deep/b")).await, Err(Status::Delay));
    assert_eq!(client.status(walk("/deep/b/file")).await, Err(Status::Delay));
    let usual = [Attr::RdattrError, Attr::Type];
    let names = |names: &[&str]| Ok(names.iter().map(|name| ((*name).to_owned(), None)).collect());
    assert_eq!(list(&mut client, "/", &usual).await, names(&["a", "deep"]));
    assert_eq!(list(&mut client, "/deep", &usual).await, Ok(vec![("b".into(), Some(Status::Delay))]));
    assert_eq!(list(&mut client, "/deep", &[Attr::MountedOnFileid]).await, names(&["b"]));
    assert_eq!(list(&mut client, "/deep", &[Attr::Type]).await, Err(Status::Delay), "no place for the error");

    let (_tree, fs) = file_system(&served);
    served.front.supply(ExportId::of("/deep/b"), fs.clone()).await;
    served.front.supply(ExportId::of("/deep/b"), fs).await;
    assert_eq!(list(&mut client, "/deep", &usual).await, names(&["b"]));
    let size = client.getattr(walk("/deep/b/file"), &[Attr::Size]).await.size;
    assert_eq!(size, Some(4));
}

#[tokio::test]
async fn an_export_that_goes_leaves_stale_handles_and_no_directories() {
    let served = serve(vec![("/a", open_to_all())]).await;
    let mut client = served.client(0).await;
    let (_tree, fs) = file_system(&served);
    let id = ExportId::of("/deep/b");
    served.front.add(Export::new(id, "/deep/b".into(), fs.clone(), open_to_all())).await.unwrap();
    assert_eq!(
        served.front.add(awaited("/deep/b")).await,
        Err(ExportsError::Twice("/deep/b".into())),
        "there is one of each path"
    );
    let (deep, file) = (client.handle("/deep").await, client.handle("/deep/b/file").await);
    served.front.withdraw(id).await.unwrap();
    served.front.withdraw(id).await.unwrap();
    let stale = |handle| vec![putfh(handle), getattr(&[Attr::Type])];
    assert_eq!(client.status(stale(file)).await, Err(Status::Stale));
    assert_eq!(client.status(stale(deep)).await, Err(Status::Stale));
    assert_eq!(client.status(walk("/deep")).await, Err(Status::NoEnt));
    assert_eq!(list(&mut client, "/", &[Attr::Type]).await.unwrap().len(), 1);
    assert_eq!(client.getattr(vec![ROOT], &[Attr::Numlinks]).await.numlinks, Some(3));

    // It comes back at another place, with the same handles of its files.
    served.front.add(Export::new(id, "/b".into(), fs, open_to_all())).await.unwrap();
    assert_eq!(client.handle("/b/file").await, file);
    assert_eq!(client.status(stale(file)).await, Ok(()));
    assert_eq!(client.status(stale(deep)).await, Err(Status::Stale));
}
