//! NQNFS over sockets: the project's client and server over TCP and UDP. A layer above the client returns
//! recalled leases.
//!
//! Promise: leases-with-a-term
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arbiter::Arbiter;
use bytes::Bytes;
use client::{Nqnfs, Url};
use local::LocalFs;
use protocol::nqnfs::Procedure;
use rpc::{ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;
use tokio::time::timeout;
use vfs::{
    Callback, Callbacks, Caller, CreateHow, FileSystem, Handle, Lease, LeaseKind, Leases, Name, OpenRequest,
    Opens, Owner, ReadDir, SetAttributes, Share, Stability, StateidBasis, Want,
};

const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    tree: TempDir,
    server: Server,
    _state: TempDir,
}

async fn serve() -> Served {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = LocalFs::open(tree.path(), local::Options::new(state.path())).unwrap();
    let fs = Arc::new(Arbiter::new(Arc::new(fs)));
    let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
    let export = Export::new(ExportId(1), "/export".into(), fs, options);
    let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
    let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let server = Server::start(options, front, ReplyCache::open(state.path()).unwrap()).await.unwrap();
    Served { tree, server, _state: state }
}

/// A mount, and its callbacks to the layer above.
struct Mount {
    fs: Arc<Nqnfs>,
    callbacks: Callbacks,
}

impl Served {
    async fn mount(&self, proto: &str) -> Mount {
        let url = format!("nfs://{}/export?vers=nqnfs,{proto}", self.server.local_addr()).replace(',', "&");
        let fs = Arc::new(Nqnfs::connect(&Url::parse(&url).unwrap()).await.unwrap());
        let callbacks = fs.callbacks().unwrap();
        Mount { fs, callbacks }
    }
}

fn me() -> Caller {
    Caller::unix(0, 0, &[])
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

impl Mount {
    async fn open(&self, handle: Handle, access: Share) -> Option<Lease> {
        let request = OpenRequest {
            want: Want::Any,
            ..OpenRequest::new(handle, None, Owner(Bytes::from_static(b"test")), access)
        };
        self.fs.open(&me(), &request).await.unwrap().lease
    }

    /// Waits for a recall.
    async fn recalled(&mut self) -> vfs::Recall {
        match timeout(PATIENCE, self.callbacks.recv()).await.expect("a recall") {
            Some(Callback::Recall(recall)) => recall,
            other => panic!("{other:?}"),
        }
    }
}

async fn what_is_written_under_a_lease_is_read_by_others(proto: &str) {
    let served = serve().await;
    std::fs::write(served.tree.path().join("file"), b"before").unwrap();
    let (mut writer, mut reader) = (served.mount(proto).await, served.mount(proto).await);
    let root = writer.fs.root(&me()).await.unwrap().handle;
    let file = writer.fs.lookup(&me(), &root, &name("file"), vfs::Want::None).await.unwrap().node.handle;
    let lease = writer.open(file, Share::READ | Share::WRITE).await.expect("a lease");
    assert_eq!(lease.kind, LeaseKind::Write);
    // The other client reads. The writer is evicted, writes its delayed data, and vacates.
    let reading = {
        let fs = reader.fs.clone();
        tokio::spawn(async move { fs.read(&me(), &file, StateidBasis::Anonymous, 0, 100).await.unwrap() })
    };
    let recall = writer.recalled().await;
    assert_eq!((recall.id, recall.handle), (lease.id, file));
    assert!(!reading.is_finished());
    let data = Bytes::from_static(b"delayed");
    writer.fs.write(&me(), &file, StateidBasis::Anonymous, 0, data, Stability::FileSync).await.unwrap();
    writer.fs.returned(&me(), lease.id).await.unwrap();
    let read = timeout(PATIENCE, reading).await.expect("it is read when it is vacated").unwrap();
    assert_eq!(&read.data.to_bytes().unwrap()[..], b"delayed");
    assert!(read.eof);
    assert_eq!(writer.fs.counts().calls(Procedure::Vacated), 1);
    // The file has just changed hands: no client may cache it, and no further recall is sent.
    assert_eq!(reader.open(file, Share::READ).await, None);
    assert!(reader.callbacks.try_recv().is_err());
    // Both clients may cache reads of another file.
    std::fs::write(served.tree.path().join("other"), b"other").unwrap();
    let other = reader.fs.lookup(&me(), &root, &name("other"), vfs::Want::None).await.unwrap().node.handle;
    let (one, two) = (reader.open(other, Share::READ).await, writer.open(other, Share::READ).await);
    assert_eq!((one.unwrap().kind, two.unwrap().kind), (LeaseKind::Read, LeaseKind::Read));
}

#[tokio::test]
async fn what_is_written_under_a_lease_is_read_by_others_over_tcp() {
    what_is_written_under_a_lease_is_read_by_others("tcp").await;
}

#[tokio::test]
async fn what_is_written_under_a_lease_is_read_by_others_over_udp() {
    what_is_written_under_a_lease_is_read_by_others("udp").await;
}

/// The other operations of a file system.
#[tokio::test]
async fn names_directories_and_attributes() {
    let served = serve().await;
    let fs = served.mount("tcp").await.fs;
    let me = &me();
    let root = fs.root(me).await.unwrap().handle;
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    let directory = fs
        .mkdir(me, &root, &name("dir"), &SetAttributes { mode: Some(0o755), ..set }, vfs::Want::None)
        .await
        .unwrap();
    let directory = directory.node.handle;
    for number in 0..200 {
        let file = name(&format!("file-{number}"));
        let made = fs.create(me, &directory, &file, CreateHow::Guarded, &set).await.unwrap();
        assert_eq!(made.node.attributes.unwrap().mode, 0o640);
    }
    let again = fs.create(me, &directory, &name("file-0"), CreateHow::Guarded, &set).await;
    assert_eq!(again.unwrap_err().status, vfs::Status::Exist);
    for plus in [false, true] {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let part = ReadDir {
                cookie,
                verifier: [0; 8],
                bytes: 4096,
                plus,
                want_directory_lease: false,
                names_suffice: false,
            };
            let listing = fs.readdir(me, &directory, part).await.unwrap();
            assert!(listing.entries.iter().all(|entry| entry.node.is_some() == plus));
            cookie = listing.entries.last().map_or(cookie, |entry| entry.cookie);
            names.extend(listing.entries.into_iter().map(|entry| entry.name.to_string()));
            if listing.eof {
                break;
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 200);
    }
    let file = fs.lookup(me, &directory, &name("file-7"), vfs::Want::None).await.unwrap().node.handle;
    let before = fs.getattr(me, &file).await.unwrap();
    let big = SetAttributes { size: Some(5 << 32), ..SetAttributes::default() };
    let after = fs.setattr(me, &file, &big, None).await.unwrap().after.unwrap();
    assert!(after.size == 5 << 32 && after.change > before.change);
    fs.rename(me, &directory, &name("file-7"), &root, &name("moved")).await.unwrap();
    fs.link(me, &file, &root, &name("linked")).await.unwrap();
    assert_eq!(fs.getattr(me, &file).await.unwrap().nlink, 2);
    let link = fs.symlink(me, &root, &name("symlink"), b"moved", &SetAttributes::default()).await.unwrap();
    assert_eq!(fs.readlink(me, &link.node.handle).await.unwrap().0, "moved");
    fs.remove(me, &root, &name("linked")).await.unwrap();
    assert_eq!(fs.rmdir(me, &root, &name("dir")).await.unwrap_err().status, vfs::Status::NotEmpty);
    assert!(fs.fsstat(me, &root).await.unwrap().total_bytes > 0);
    let all = vfs::AccessMask::READ | vfs::AccessMask::MODIFY;
    assert_eq!(fs.access(me, &file, all).await.unwrap().granted, all);
}
