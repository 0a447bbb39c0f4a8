//! The flavors of authentication of exports: clients learn them for whatever they may not use, and AUTH_SYS
//! gets nothing else of an export with Kerberos alone.

use protocol::nfs4::{ArgOp, Attr, ReaddirArgs, SecinfoArgs, SecinfoOk, Status, op};
use server::{ExportOptions, Flavor, Sec};

use crate::wire::{Client, ROOT, Served, lookup, name, open_to_all, serve, then, walk};

fn with(sec: &str) -> ExportOptions {
    ExportOptions { sec: sec.parse().unwrap(), ..open_to_all() }
}

/// An export with another one below it, and one beside them.
async fn nested() -> Served {
    let served = serve(vec![
        ("/srv", with("sys")),
        ("/srv/private", with("krb5p:krb5i")),
        ("/other/deep", with("krb5")),
    ])
    .await;
    std::fs::create_dir(served.trees[0].path().join("private")).unwrap();
    std::fs::write(served.trees[0].path().join("file"), b"").unwrap();
    std::fs::write(served.trees[1].path().join("secret"), b"").unwrap();
    served
}

async fn secinfo(client: &mut Client, path: &str, of: &[u8]) -> Result<SecinfoOk, Status> {
    let asked = then(walk(path), [ArgOp::Secinfo(SecinfoArgs { name: name(of) })]);
    let mut results = client.compound(asked).await;
    results.status()?;
    results.take::<op::Putrootfh>().unwrap();
    for _ in path.split('/').filter(|name| !name.is_empty()) {
        results.take::<op::Lookup>().unwrap();
    }
    Ok(results.take::<op::Secinfo>().unwrap())
}

fn flavors(sec: &str) -> SecinfoOk {
    let sec: Sec = sec.parse().unwrap();
    SecinfoOk::new(sec.iter().map(Flavor::secinfo).collect()).unwrap()
}

#[tokio::test]
async fn a_name_has_the_flavors_of_the_export_that_it_leads_to() {
    let served = nested().await;
    let mut client = served.client(0).await;
    for (path, of, sec) in [
        ("/", &b"srv"[..], "sys"),
        ("/srv", b"file", "sys"),
        ("/srv", b"private", "krb5p:krb5i"),
        ("/", b"other", "krb5"),
        ("/other", b"deep", "krb5"),
    ] {
        assert_eq!(secinfo(&mut client, path, of).await, Ok(flavors(sec)), "{path}");
    }
    assert_eq!(secinfo(&mut client, "/srv", b"none").await, Err(Status::NoEnt));
    assert_eq!(client.status(walk("/srv/private")).await, Err(Status::WrongSec));
    assert_eq!(client.status(walk("/other/deep")).await, Err(Status::WrongSec));
    assert_eq!(client.status(walk("/other")).await, Ok(()));
}

#[tokio::test]
async fn a_root_with_kerberos_alone_tells_its_flavors_and_no_more() {
    let served = serve(vec![("/", with("krb5i")), ("/open", with("sys"))]).await;
    std::fs::create_dir(served.trees[0].path().join("open")).unwrap();
    std::fs::write(served.trees[0].path().join("secret"), b"").unwrap();
    let mut client = served.client(0).await;
    assert_eq!(client.status(vec![ROOT]).await, Err(Status::WrongSec));
    let asks = |of: &[u8]| vec![ROOT, ArgOp::Secinfo(SecinfoArgs { name: name(of) })];
    for (of, sec) in [(&b"secret"[..], "krb5i"), (b"none", "krb5i"), (b"open", "sys")] {
        let mut results = client.compound(asks(of)).await;
        results.take::<op::Putrootfh>().unwrap();
        assert_eq!(results.take::<op::Secinfo>().unwrap(), flavors(sec));
    }
    // Behind the question there is no way in, and the root is the directory above exports.
    assert!(client.status(then(asks(b"secret"), [lookup(b"secret")])).await.is_err());
    let fileid = [Attr::Fileid];
    let shown = client.getattr(asks(b"secret"), &fileid).await;
    let inode = std::os::unix::fs::MetadataExt::ino(&served.trees[0].path().metadata().unwrap());
    assert_ne!(shown.fileid, Some(inode));
}

#[tokio::test]
async fn a_listing_shows_exports_of_other_flavors_as_far_as_the_client_asks_for_their_errors() {
    let served = nested().await;
    let mut client = served.client(0).await;
    let readdir = |attributes: &[Attr]| {
        ArgOp::Readdir(ReaddirArgs {
            cookie: 0,
            cookieverf: [0; 8],
            dircount: 4096,
            maxcount: 4096,
            attr_request: protocol::nfs4::Bitmap::of(attributes),
        })
    };
    let listed = client.status(then(walk("/other"), [readdir(&[Attr::RdattrError, Attr::Size])])).await;
    assert_eq!(listed, Ok(()));
    let strict = client.status(then(walk("/other"), [readdir(&[Attr::Size])])).await;
    assert_eq!(strict, Err(Status::WrongSec));
}
