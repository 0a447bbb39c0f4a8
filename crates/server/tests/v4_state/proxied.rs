//! A proxy returns the same statuses as its origin: over NFSv4.2 and NFSv3, for objects in its cache and
//! for others.

use std::sync::Arc;

use cache::Cache;
use client::{Origin, Url};
use protocol::nfs4::{ArgOp, Attr, Bitmap, Createtype, Fattr, LinkArgs, RemoveArgs, RenameArgs, Status};

use crate::setup::{Home, Incarnation, LEASE, Minor0, Scarcity, Session, open};
use crate::wire::{ROOT, create, getattr, lookup, name, then, walk};

/// A server, and a proxy of the server.
struct Bench {
    origin: Incarnation,
    proxy: Incarnation,
    client: Arc<dyn Origin>,
    served: Home,
    _homes: [Home; 2],
}

async fn proxied(vers: &str) -> Bench {
    let (served, cached, kept) = (Home::new(), Home::new(), Home::new());
    std::fs::write(served.tree().join("file"), b"content").unwrap();
    std::fs::create_dir(served.tree().join("dir")).unwrap();
    std::fs::write(served.tree().join("dir/inner"), b"content").unwrap();
    std::os::unix::fs::symlink("dir", served.tree().join("link")).unwrap();
    std::os::unix::net::UnixListener::bind(served.tree().join("socket")).unwrap();
    let origin = served.serve(LEASE).await;
    let url = format!("nfs://{}/?noresvport&vers={vers}", origin.address());
    let client = client::connect(&Url::parse(&url).unwrap()).await.unwrap();
    let mut options = cache::Options::new(cached.tree(), "test");
    options.limits.min_free_bytes = 0;
    let cache = Cache::open(client.clone(), options).await.unwrap();
    let below: Arc<dyn vfs::FileSystem> = cache;
    let proxy = kept.serve_over(below, LEASE, arbiter::Options::default(), Scarcity::default()).await;
    Bench { origin, proxy, client, served, _homes: [cached, kept] }
}

fn rename(old: &[u8], new: &[u8]) -> ArgOp {
    ArgOp::Rename(RenameArgs { oldname: name(old), newname: name(new) })
}

/// Each operation that requires a directory, as a compound that applies it at `path`; minor version 1.
fn in_what_is_no_directory(path: &str) -> Vec<(&'static str, Vec<ArgOp>)> {
    let mode = || Fattr { mode: Some(0o700), ..Fattr::default() };
    let saved = |path: &str, to: &str| then(then(walk(path), [ArgOp::Savefh(())]), walk(to));
    let link = ArgOp::Link(LinkArgs { newname: name(b"new") });
    vec![
        ("LOOKUP", then(walk(path), [lookup(b"x")])),
        ("LOOKUPP", then(walk(path), [ArgOp::Lookupp(())])),
        ("OPEN", then(walk(path), [ArgOp::Open(open(b"x", b"owner", 1, 0))])),
        ("OPEN to write", then(walk(path), [ArgOp::Open(open(b"x", b"owner", 3, 0))])),
        ("OPEN, creating", then(walk(path), [ArgOp::Open(crate::setup::create(b"x", b"owner", 3))])),
        ("CREATE", then(walk(path), [create(b"x", Createtype::Dir, mode())])),
        ("REMOVE", then(walk(path), [ArgOp::Remove(RemoveArgs { target: name(b"x") })])),
        ("RENAME from", then(saved(path, "/dir"), [rename(b"x", b"y")])),
        ("RENAME to", then(saved("/dir", path), [rename(b"inner", b"y")])),
        ("LINK", then(saved("/dir/inner", path), [link])),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_in_no_directory_is_answered_as_the_origin_does_and_blamed_on_nobody() {
    for vers in ["4.2", "4.1", "3"] {
        let bench = proxied(vers).await;
        let mut direct = bench.origin.session(b"direct").await;
        let mut through = bench.proxy.session(b"through").await;
        for path in ["/file", "/link", "/socket"] {
            // Twice: in the second round the cache knows what it learned in the first.
            for round in ["cold", "warm"] {
                for (what, compound) in in_what_is_no_directory(path) {
                    let expected = direct.status(compound.clone()).await;
                    let found = through.status(compound).await;
                    assert_eq!(found, expected, "{what} in {path}, {round}, over {vers}");
                    let usual = if path == "/link" { Status::Symlink } else { Status::NotDir };
                    let opens = what.starts_with("OPEN") || what == "LOOKUP";
                    assert!(!opens || found == Err(usual), "{what} in {path}: {found:?}");
                }
            }
        }
        assert_eq!(bench.client.nonsense_heard(), 0, "over {vers}");
        assert!(bench.served.tree().join("dir/inner").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_by_a_file_that_is_none_is_answered_as_the_origin_does() {
    use protocol::nfs4::{OpenArgs, OpenClaim};
    for vers in ["4.2", "3"] {
        let bench = proxied(vers).await;
        let mut direct = bench.origin.session(b"direct").await;
        let mut through = bench.proxy.session(b"through").await;
        for round in ["cold", "warm"] {
            for path in ["/dir", "/link", "/socket"] {
                let by_handle = OpenArgs { claim: OpenClaim::Fh, ..open(b"", b"owner", 1, 0) };
                let compound = then(walk(path), [ArgOp::Open(by_handle)]);
                let expected = direct.status(compound.clone()).await;
                assert_eq!(through.status(compound).await, expected, "{path}, {round}, over {vers}");
                let named = vec![ROOT, ArgOp::Open(open(&path.as_bytes()[1..], b"owner", 1, 0))];
                let expected = direct.status(named.clone()).await;
                assert_eq!(through.status(named).await, expected, "{path} by name, {round}, over {vers}");
            }
        }
        assert_eq!(bench.client.nonsense_heard(), 0, "over {vers}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minor_version_0_is_told_of_the_wrong_type_too() {
    let bench = proxied("4.2").await;
    let mut direct: Minor0 = bench.origin.minor0(b"direct", 1).await;
    let mut through: Minor0 = bench.proxy.minor0(b"through", 1).await;
    for (seqid, path) in ["/file", "/link", "/socket", "/file"].into_iter().enumerate() {
        let compound =
            |of: &Minor0| then(walk(path), [ArgOp::Open(of.open_args(b"x", seqid as u32 + 1, 1, 0))]);
        let (asked, expected) = (compound(&through), compound(&direct));
        let expected = direct.client.status(expected).await;
        assert_eq!(through.client.status(asked).await, expected, "{path}");
        assert!(matches!(expected, Err(Status::NotDir | Status::Symlink)), "{path}: {expected:?}");
    }
    assert_eq!(bench.client.nonsense_heard(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_3_is_told_the_same_through_the_proxy() {
    use vfs::{Caller, CreateHow, Name, SetAttributes};
    let caller = Caller::unix(0, 0, &[]);
    let by = |name: &str| Name::new(name.as_bytes()).unwrap();
    let (x, set) = (by("x"), SetAttributes::default());
    for vers in ["4.2", "3"] {
        let bench = proxied(vers).await;
        let mut told: Vec<Vec<(&str, &str, Option<vfs::Status>)>> = Vec::new();
        for server in [bench.origin.address(), bench.proxy.address()] {
            let url = Url::parse(&format!("nfs://{server}/?noresvport&vers=3")).unwrap();
            let mounted = client::connect(&url).await.unwrap();
            let (fs, root) = (&mounted, mounted.root_handle());
            let dir = fs.lookup(&caller, &root, &by("dir"), vfs::Want::None).await.unwrap().node.handle;
            let inner = fs.lookup(&caller, &dir, &by("inner"), vfs::Want::None).await.unwrap().node.handle;
            let mut statuses = Vec::new();
            for round in ["file", "link", "socket", "file"] {
                let at = fs.lookup(&caller, &root, &by(round), vfs::Want::None).await.unwrap().node.handle;
                let made = fs.create(&caller, &at, &x, CreateHow::Guarded, &set).await.map(drop);
                for (what, result) in [
                    ("LOOKUP", fs.lookup(&caller, &at, &x, vfs::Want::None).await.map(drop)),
                    ("CREATE", made),
                    ("MKDIR", fs.mkdir(&caller, &at, &x, &set, vfs::Want::None).await.map(drop)),
                    ("REMOVE", fs.remove(&caller, &at, &x).await.map(drop)),
                    ("RMDIR", fs.rmdir(&caller, &at, &x).await.map(drop)),
                    ("RENAME from", fs.rename(&caller, &at, &x, &dir, &x).await.map(drop)),
                    ("RENAME to", fs.rename(&caller, &dir, &by("inner"), &at, &x).await.map(drop)),
                    ("LINK", fs.link(&caller, &inner, &at, &x).await.map(drop)),
                ] {
                    statuses.push((round, what, result.err().map(|error| error.status)));
                }
            }
            told.push(statuses);
        }
        assert_eq!(told[1], told[0], "over {vers}");
        assert!(told[1].iter().all(|(_, _, status)| *status == Some(vfs::Status::NotDir)), "{:?}", told[1]);
        assert_eq!(bench.client.nonsense_heard(), 0, "over {vers}");
    }
}

async fn supported(session: &mut Session) -> Bitmap {
    let asked = then(vec![ROOT], [getattr(&[Attr::SupportedAttrs])]);
    let told = session.last::<protocol::nfs4::op::Getattr>(asked).await;
    told.obj_attributes.supported_attrs.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_announces_no_attribute_that_its_origin_has_not() {
    let optional = Bitmap::of(&[Attr::CloneBlksize, Attr::Acl]);
    for vers in ["4.2", "4.1", "3"] {
        let bench = proxied(vers).await;
        let mut direct = bench.origin.session(b"direct").await;
        let mut through = bench.proxy.session(b"through").await;
        for session in [&mut direct, &mut through] {
            session.client.minor = 2;
        }
        let (origin, proxy) = (supported(&mut direct).await, supported(&mut through).await);
        let more = proxy - origin;
        assert!(more.is_empty(), "{more:?} over {vers}");
        let expected = if vers == "4.2" { origin & optional } else { origin & optional & proxy };
        assert_eq!(proxy & optional, expected, "over {vers}");
        if vers == "3" {
            assert!((proxy & optional).is_empty(), "{proxy:?}");
        }
    }
}
