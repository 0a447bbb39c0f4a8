//! The cache over an NQNFS origin, end to end. Two clients, each a cache with delayed writes over our
//! client, use our server over sockets. The tests count the calls to the server.
//!
//! Promise: leases-with-a-term
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod setting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::nqnfs::{self, Procedure};
use rpc::message::CallHeader;
use rpc::service::{Answering, Remember};
use rpc::{Call, Service};
use server::Front;
use tokio::time::timeout;
use vfs::{
    Caller, CreateHow, FileSystem, Freshness, HolderId, OpenRequest, Opens, Owner, SetAttributes, Share,
    Stability, StateidBasis, Status, Want,
};

use setting::{Served, me, name};

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn a_delayed_write_waits_for_the_next_reader(proto: &str) {
    let served = Served::start().await;
    let (writer, reader) = (served.client(proto).await, served.client(proto).await);
    for round in 0..20u8 {
        writer.write("file", &[round; 1000], true).await;
    }
    assert_eq!(writer.calls(Procedure::Write), 0, "it is all under a lease");
    let before = writer.all_calls();
    assert_eq!(writer.read("file").await.unwrap(), [19; 1000]);
    assert_eq!(writer.all_calls(), before, "and read back for nothing");
    // The reader evicts the writer's lease: the writer pushes the data, sends VACATED, and then the server
    // answers the READ.
    assert_eq!(reader.read("file").await.unwrap(), [19; 1000]);
    assert_eq!((writer.calls(Procedure::Write), writer.calls(Procedure::Vacated)), (1, 1));
    // The other direction: when a client writes, the reader's lease is evicted.
    writer.write("file", &[77; 1000], false).await;
    assert_eq!(reader.read("file").await.unwrap(), [77; 1000]);
    assert_eq!(served.tree.path().join("file").metadata().unwrap().len(), 1000);
}

/// With `offline=read`, a complete file is read although its server is away and the lease on it has ended.
#[tokio::test(flavor = "multi_thread")]
async fn complete_files_are_read_while_the_server_is_away() {
    let served = Served::start().await;
    let set = |options: &mut cache::Options| {
        options.offline = cache::Offline::Read;
        options.offline_after = Duration::ZERO;
    };
    let client = served.client_with("tcp", set).await;
    std::fs::write(served.tree.path().join("file"), "content").unwrap();
    assert_eq!(client.read("file").await.unwrap(), b"content");
    drop(served);
    // The leases end at the client within their term; from then on each open asks the server, in vain.
    let begun = std::time::Instant::now();
    while client.cache.stats().offline == 0 {
        assert!(begun.elapsed() < PATIENCE, "the server's absence is never noticed");
        assert_eq!(client.read("file").await.unwrap(), b"content");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(client.cache.stats().is_away);
}

#[tokio::test]
async fn a_delayed_write_waits_for_the_next_reader_over_tcp() {
    a_delayed_write_waits_for_the_next_reader("tcp").await;
}

#[tokio::test]
async fn a_delayed_write_waits_for_the_next_reader_over_udp() {
    a_delayed_write_waits_for_the_next_reader("udp").await;
}

#[tokio::test]
async fn what_is_synced_is_at_the_server_and_the_lease_stays() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    let file = client.write("file", b"synced", true).await;
    // Opening the file on the server's machine would conflict with the lease and evict it.
    let size = || served.tree.path().join("file").metadata().unwrap().len();
    assert_eq!(size(), 0);
    client.cache.commit(&me(), &file, 0, 0).await.unwrap();
    assert_eq!(size(), 6);
    let (writes, leases) = (client.calls(Procedure::Write), client.calls(Procedure::Getlease));
    assert_eq!((writes, client.calls(Procedure::Vacated)), (1, 0));
    client.write("file", b"SYNCED", false).await;
    assert_eq!((client.calls(Procedure::Write), client.calls(Procedure::Getlease)), (1, leases));
}

/// Section 2: data that is deleted or truncated before the push is never written.
#[tokio::test]
async fn a_delayed_write_of_what_is_deleted_or_truncated_first_is_never_sent() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    for number in 0..10 {
        let file = format!("temporary-{number}");
        client.write(&file, &vec![number; 100_000], true).await;
        client.remove(&file).await;
    }
    assert_eq!((client.calls(Procedure::Write), client.calls(Procedure::Remove)), (0, 10));
    let file = client.write("cut", &vec![1; 100_000], true).await;
    let nothing = SetAttributes { size: Some(0), ..SetAttributes::default() };
    client.cache.setattr(&me(), &file, &nothing, None).await.unwrap();
    client.cache.commit(&me(), &file, 0, 0).await.unwrap();
    assert_eq!(client.calls(Procedure::Write), 0);
    client.write("cut", b"short", false).await;
    client.cache.shutdown().await;
    assert_eq!(client.calls(Procedure::Write), 1);
    assert_eq!(std::fs::read(served.tree.path().join("cut")).unwrap(), b"short");
    assert_eq!(std::fs::read_dir(served.tree.path()).unwrap().count(), 1, "nothing else is left");
}

/// An eviction is not a change: cached data stays valid as long as `modifyrev` is the same.
#[tokio::test]
async fn after_an_eviction_the_cache_is_held_against_modifyrev() {
    let served = Served::start().await;
    for file in ["same", "other"] {
        std::fs::write(served.tree.path().join(file), [b'a'; 5000]).unwrap();
    }
    // Wait until the timestamps are nonracy.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (reader, writer) = (served.client("tcp").await, served.client("tcp").await);
    for file in ["same", "other"] {
        assert_eq!(reader.read(file).await.unwrap(), [b'a'; 5000]);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    for file in ["same", "other"] {
        assert_eq!(reader.read(file).await.unwrap(), [b'a'; 5000]);
    }
    let reads = reader.calls(Procedure::Read);
    // Open both for writing, and write one of them.
    let (open, _) = writer.try_open("same", Share::READ | Share::WRITE, false).await.unwrap();
    writer.cache.close(&me(), open).await.unwrap();
    writer.write("other", &[b'b'; 5000], false).await;
    assert_eq!(reader.calls(Procedure::Vacated), 2);
    assert_eq!(reader.read("same").await.unwrap(), [b'a'; 5000]);
    assert_eq!(reader.calls(Procedure::Read), reads, "nothing changed, nothing is fetched");
    assert_eq!(reader.read("other").await.unwrap(), [b'b'; 5000]);
    assert_eq!(reader.calls(Procedure::Read), reads + 1);
}

/// Data that one user has opened and cached is not available to other users.
#[tokio::test]
async fn nobody_opens_what_he_may_not() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    let file = client.write("private", b"secret", true).await;
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    client.cache.setattr(&me(), &file, &mode, None).await.unwrap();
    assert_eq!(client.read("private").await.unwrap(), b"secret");
    let other = Caller { holder: Some(HolderId(1)), ..Caller::unix(12_345, 12_345, &[]) };
    let other = other.with_freshness(Freshness::Open);
    for access in [Share::READ, Share::WRITE, Share::READ | Share::WRITE] {
        for by_name in [true, false] {
            let request = OpenRequest {
                want: Want::Any,
                ..OpenRequest::new(
                    if by_name { client.root } else { file },
                    by_name.then(|| name("private")),
                    Owner(Bytes::from_static(b"another")),
                    access,
                )
            };
            let refused = client.cache.open(&other, &request).await.unwrap_err();
            assert_eq!(refused.status, Status::Access);
            // The client refuses it, too, when no cache is above it.
            assert_eq!(client.nqnfs.open(&other, &request).await.unwrap_err().status, Status::Access);
        }
    }
    let read = client.cache.read(&other, &file, StateidBasis::Anonymous, 0, 100).await;
    assert_eq!(read.unwrap_err().status, Status::Access);
}

/// Lookups cost no calls under a lease on their directory, negative ones included. A file of another client
/// evicts the lease.
async fn names_cost_nothing_until_somebody_else_makes_one(proto: &str) {
    let served = Served::start().await;
    for number in 0..20 {
        std::fs::write(served.tree.path().join(format!("file-{number}")), b"x").unwrap();
    }
    let (reader, maker) = (served.client(proto).await, served.client(proto).await);
    let caller = me().with_freshness(Freshness::Timeout);
    let look = |text: String| {
        let (cache, caller, root) = (reader.cache.clone(), caller.clone(), reader.root);
        async move {
            match cache.lookup(&caller, &root, &name(&text), vfs::Want::None).await {
                Ok(looked) => Some(looked.node.handle),
                Err(error) if error.status == Status::NoEnt => None,
                Err(error) => panic!("{text}: {error}"),
            }
        }
    };
    assert!(look("file-7".into()).await.is_some());
    let before = reader.all_calls();
    for round in 0..3 {
        for number in 0..20 {
            assert!(look(format!("file-{number}")).await.is_some());
            assert_eq!(look(format!("absent-{number}")).await, None, "{round}");
        }
    }
    assert_eq!(reader.all_calls(), before, "120 names");
    assert_eq!((reader.calls(Procedure::Lookup), reader.calls(Procedure::Vacated)), (0, 0));
    for number in 0..20 {
        let file = format!("absent-{number}");
        let made = maker.write(&file, b"made", true).await;
        assert_eq!(look(file).await, Some(made));
        assert_eq!(reader.calls(Procedure::Vacated), number + 1, "it was evicted first");
    }
    maker.remove("file-7").await;
    assert_eq!(look("file-7".into()).await, None);
    // A client's own change evicts nothing.
    let before = reader.calls(Procedure::Vacated);
    reader.write("own", b"own", true).await;
    assert!(look("own".into()).await.is_some());
    assert_eq!(reader.calls(Procedure::Vacated), before);
}

#[tokio::test]
async fn names_cost_nothing_until_somebody_else_makes_one_over_tcp() {
    names_cost_nothing_until_somebody_else_makes_one("tcp").await;
}

#[tokio::test]
async fn names_cost_nothing_until_somebody_else_makes_one_over_udp() {
    names_cost_nothing_until_somebody_else_makes_one("udp").await;
}

/// A new file costs one CREATE, which brings the lease and the right to read the file back. The end of the
/// client costs one VACATED.
#[tokio::test]
async fn a_new_file_is_one_call_and_one_more_when_it_is_sent() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    for number in 0..30 {
        let file = format!("file-{number}");
        client.write(&file, &[number; 100], true).await;
        assert_eq!(client.read(&file).await.unwrap(), [number; 100]);
    }
    let all = |procedures: &[Procedure]| procedures.iter().map(|it| client.calls(*it)).sum::<u64>();
    use Procedure as P;
    assert_eq!(client.calls(P::Create), 30);
    assert_eq!(all(&[P::Lookup, P::Read, P::Write, P::Getlease, P::Vacated]), 0);
    assert!(
        all(&[P::Access, P::Readdirlook, P::Getattr]) <= 4,
        "the directory's: {:?}",
        client.nqnfs.counts()
    );
    client.cache.shutdown().await;
    assert_eq!((client.calls(P::Write), client.calls(P::Vacated)), (30, 1));
    // The client has returned its leases, so the next client need not wait.
    let other = served.client("tcp").await;
    let start = std::time::Instant::now();
    for number in 0..30 {
        other.write(&format!("file-{number}"), &[99; 10], false).await;
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// Making and filling a tree costs one call per name and no more. The maker of a directory may use it, knows
/// its entries, and knows its attributes after each new name, which kernels ask for.
#[tokio::test]
async fn a_new_tree_is_one_call_for_each_name() {
    let served = Served::start().await;
    let client = served.client("tcp").await;
    let (cache, stat) = (&client.cache, me().with_freshness(Freshness::Timeout));
    let mode = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let made = cache.mkdir(&me(), &client.root, &name("tree"), &mode, vfs::Want::None).await.unwrap().node;
    let before = client.all_calls();
    let mut shown = made.attributes.unwrap();
    for number in 0..20u8 {
        for absent in ["a", "b"] {
            let missing =
                cache.lookup(&stat, &made.handle, &name(absent), vfs::Want::None).await.unwrap_err();
            assert_eq!(missing.status, Status::NoEnt);
        }
        let file = client.make_in(&made.handle, &format!("file-{number}")).await;
        let inner = cache
            .mkdir(&me(), &made.handle, &name(&format!("inner-{number}")), &mode, vfs::Want::None)
            .await
            .unwrap();
        let now = cache.getattr(&stat, &made.handle).await.unwrap();
        assert!(now.mtime >= file.ctime.max(shown.mtime) && now.mode == shown.mode && now.uid == shown.uid);
        assert_eq!(now.mtime, inner.node.attributes.unwrap().ctime);
        assert!(now.change != shown.change && now.nlink == shown.nlink + 1);
        let looked = cache
            .lookup(&stat, &made.handle, &name(&format!("file-{number}")), vfs::Want::None)
            .await
            .unwrap();
        assert_eq!(looked.node.handle, file.handle);
        let may = cache.access(&stat, &inner.node.handle, vfs::AccessMask::all()).await.unwrap();
        assert!(may.granted.contains(vfs::AccessMask::LOOKUP | vfs::AccessMask::MODIFY));
        shown = now;
    }
    assert_eq!(client.all_calls() - before, 40, "{:?}", client.nqnfs.counts());
    assert_eq!((client.calls(Procedure::Create), client.calls(Procedure::Mkdir)), (20, 21));
    // The server has the same attributes, apart from a tick of its clock and the blocks of the directory.
    let there = client.nqnfs.getattr(&me(), &made.handle).await.unwrap();
    assert_eq!(
        (there.nlink, there.mode, there.uid, there.gid),
        (shown.nlink, shown.mode, shown.uid, shown.gid)
    );
    let late = there.mtime.as_nanos() - shown.mtime.as_nanos();
    assert!((0..1_000_000_000).contains(&late), "{late} ns");
    // After a removal the client must ask for the attributes.
    cache.remove(&me(), &made.handle, &name("file-0")).await.unwrap();
    let before = client.calls(Procedure::Getattr);
    let removed = cache.getattr(&stat, &made.handle).await.unwrap();
    assert_eq!(client.calls(Procedure::Getattr), before + 1);
    assert!(removed.mtime >= shown.mtime && removed.nlink == shown.nlink);
}

/// The maker's knowledge of a new directory ends when another client makes a name in it. A user without the
/// right to the directory is refused.
#[tokio::test]
async fn a_new_directory_is_its_makers_until_somebody_else_comes() {
    let served = Served::start().await;
    let (maker, other) = (served.client("tcp").await, served.client("udp").await);
    let mode = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
    let stat = me().with_freshness(Freshness::Timeout);
    for round in 0..5 {
        let made = name(&format!("made-{round}"));
        let made =
            maker.cache.mkdir(&me(), &maker.root, &made, &mode, vfs::Want::None).await.unwrap().node.handle;
        let absent = maker.cache.lookup(&stat, &made, &name("theirs"), vfs::Want::None).await;
        assert_eq!(absent.unwrap_err().status, Status::NoEnt);
        maker.make_in(&made, "mine").await;
        let before = maker.cache.getattr(&stat, &made).await.unwrap();
        let theirs = other.make_in(&made, "theirs").await;
        assert_eq!(maker.calls(Procedure::Vacated), round + 1, "it was evicted first");
        let found = maker.cache.lookup(&stat, &made, &name("theirs"), vfs::Want::None).await.unwrap();
        assert_eq!(found.node.handle, theirs.handle);
        let after = maker.cache.getattr(&me(), &made).await.unwrap();
        assert!(after.mtime >= before.mtime.max(theirs.ctime), "no time goes back");
        let stranger = Caller { holder: Some(HolderId(1)), ..Caller::unix(12_345, 12_345, &[]) };
        let refused = maker.cache.lookup(&stranger, &made, &name("mine"), vfs::Want::None).await;
        assert_eq!(refused.unwrap_err().status, Status::Access);
    }
}

/// The times that `make` compares on any machine. An object is pushed after its source was edited elsewhere:
/// the object is still older, even if nobody looked at its time. If data is pushed before the close, the
/// file gets the server's time without a SETATTR.
#[tokio::test]
async fn what_is_pushed_late_is_as_old_as_it_is() {
    let served = Served::start().await;
    let (builder, editor) = (served.client("tcp").await, served.client("udp").await);
    let modified = |file: &str| served.tree.path().join(file).metadata().unwrap().modified().unwrap();
    let tick = || tokio::time::sleep(Duration::from_millis(50));
    editor.write("source", b"int one;", true).await;
    assert_eq!(builder.read("source").await.unwrap(), b"int one;");
    tick().await;
    let object = builder.write("object", b"one", true).await;
    assert_eq!(builder.calls(Procedure::Write), 0, "delayed");
    tick().await;
    let source = editor.write("source", b"int two;", false).await;
    editor.cache.commit(&me(), &source, 0, 0).await.unwrap();
    tick().await;
    builder.cache.commit(&me(), &object, 0, 0).await.unwrap();
    assert_eq!((builder.calls(Procedure::Write), builder.calls(Procedure::Setattr)), (1, 1));
    assert!(modified("object") < modified("source"), "it was not made of what the source is now");
    let (open, synced) = builder.try_open("synced", Share::READ | Share::WRITE, true).await.unwrap();
    let data = Bytes::from_static(b"data");
    builder
        .cache
        .write(&me(), &synced, StateidBasis::Open(open), 0, data, Stability::Unstable)
        .await
        .unwrap();
    builder.cache.commit(&me(), &synced, 0, 0).await.unwrap();
    builder.cache.close(&me(), open).await.unwrap();
    assert_eq!((builder.calls(Procedure::Write), builder.calls(Procedure::Setattr)), (2, 1));
}

/// O_CREAT of an existing file checks rights as any open does. O_CREAT of a new file succeeds with any mode.
#[tokio::test]
async fn who_makes_a_file_may_open_it_and_who_finds_one_may_not() {
    let served = Served::start().await;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(served.tree.path(), open).unwrap();
    std::fs::write(served.tree.path().join("there"), b"secret").unwrap();
    std::fs::set_permissions(
        served.tree.path().join("there"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let client = served.client("tcp").await;
    let other = Caller { holder: Some(HolderId(1)), ..Caller::unix(12_345, 12_345, &[]) };
    let other = other.with_freshness(Freshness::Open);
    let request = |file: &str, how: CreateHow| OpenRequest {
        handle: client.root,
        name: Some(name(file)),
        owner: Owner(Bytes::from_static(b"another")),
        access: Share::READ | Share::WRITE,
        deny: Share::empty(),
        create: Some((how, SetAttributes { mode: Some(0o444), ..SetAttributes::default() })),
        want: Want::Any,
        reclaim: false,
        read_first: None,
        want_directory_lease: false,
    };
    let found = client.cache.open(&other, &request("there", CreateHow::Unchecked)).await;
    assert_eq!(found.unwrap_err().status, Status::Access);
    let made = client.cache.open(&other, &request("new", CreateHow::Unchecked)).await.unwrap();
    assert!(made.created && made.attributes.mode == 0o444);
    let written = client.cache.write(
        &other,
        &made.handle,
        StateidBasis::Open(made.id),
        0,
        Bytes::from_static(b"mine"),
        Stability::FileSync,
    );
    written.await.unwrap();
    client.cache.close(&other, made.id).await.unwrap();
    let again = client.cache.open(&other, &request("new", CreateHow::Unchecked)).await;
    assert_eq!(again.unwrap_err().status, Status::Access, "it is there by now");
    let exclusive = client.cache.open(&other, &request("new", CreateHow::Guarded)).await;
    assert_eq!(exclusive.unwrap_err().status, Status::Exist);
}

/// A front that forgets a client's lease when that client writes, and answers NQNFS_EXPIRED until the test
/// ends that.
struct Forgetful {
    front: Arc<Front>,
    forgets: AtomicBool,
    said: AtomicU32,
}

impl Service for Forgetful {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        let header = &call.header;
        let write = header.program == nqnfs::PROGRAM && header.procedure == Procedure::Write as u32;
        if !write || !self.forgets.load(Ordering::Acquire) {
            return self.front.clone().call(call);
        }
        Box::pin(async move {
            // The call requests no lease, because the client has one, so the file's handle comes first.
            let args = call.arguments.rest();
            assert_eq!(args[..4], [0; 4]);
            let vacated = Call {
                header: CallHeader { procedure: Procedure::Vacated as u32, ..call.header.clone() },
                arguments: xdr::Decoder::new(args.slice(4..36)),
                peer: call.peer,
                connection: call.connection.clone(),
                datagrams: call.datagrams.clone(),
                resent: false,
                groups: None,
            };
            self.front.clone().call(vacated).await;
            let mut reply = call.reply();
            reply.u32(500);
            self.said.fetch_add(1, Ordering::Release);
            rpc::Outcome::Reply(reply.finish())
        })
    }

    fn remember(&self, call: &Call) -> Remember {
        // A write that was refused in this way was not carried out.
        if self.forgets.load(Ordering::Acquire) { Remember::No } else { self.front.remember(call) }
    }
}

/// Delayed writes under a lost lease reach the server like other writes. Data cached under the lease is
/// checked with `modifyrev`, so that the client sees what another client has written meanwhile.
#[tokio::test]
async fn after_nqnfs_expired_delayed_writes_arrive_and_the_cache_is_held_against_modifyrev() {
    let mut forgetful = None;
    let served = Served::behind(|front| {
        let service = Arc::new(Forgetful { front, forgets: AtomicBool::new(false), said: AtomicU32::new(0) });
        forgetful = Some(service.clone());
        service
    })
    .await;
    let forgetful = forgetful.unwrap();
    std::fs::write(served.tree.path().join("file"), [b'a'; 2000]).unwrap();
    let (writer, other) = (served.client("tcp").await, served.client("tcp").await);
    assert_eq!(writer.read("file").await.unwrap(), [b'a'; 2000]);
    let file = writer.write("file", &[b'b'; 1000], false).await;
    assert_eq!(writer.calls(Procedure::Write), 0, "delayed");
    forgetful.forgets.store(true, Ordering::Release);
    let cache = writer.cache.clone();
    let syncing = tokio::spawn(async move { cache.commit(&me(), &file, 0, 0).await });
    let heard = async {
        while forgetful.said.load(Ordering::Acquire) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, heard).await.unwrap();
    // The lease is gone, so another client need not wait.
    let (open, handle) = other.try_open("file", Share::READ | Share::WRITE, false).await.unwrap();
    let data = Bytes::from_static(&[b'c'; 1000]);
    let by = StateidBasis::Open(open);
    other.cache.write(&me(), &handle, by, 1000, data, Stability::Unstable).await.unwrap();
    forgetful.forgets.store(false, Ordering::Release);
    other.cache.commit(&me(), &handle, 0, 0).await.unwrap();
    other.cache.close(&me(), open).await.unwrap();
    timeout(PATIENCE, syncing).await.expect("an answer").unwrap().unwrap();
    let both = [[b'b'; 1000], [b'c'; 1000]].concat();
    assert_eq!(writer.read("file").await.unwrap(), both);
    assert_eq!(other.read("file").await.unwrap(), both);
    // Opening the file on the server's machine waits for the leases, so return them first.
    writer.cache.shutdown().await;
    other.cache.shutdown().await;
    assert_eq!(std::fs::read(served.tree.path().join("file")).unwrap(), both);
}

/// Two clients take turns at random; each would rather keep its leases.
#[tokio::test]
async fn two_clients_see_one_file_system() {
    let served = Served::start().await;
    let clients = [served.client("tcp").await, served.client("udp").await];
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) % bound
    };
    for step in 0..400u32 {
        let (client, file) = (&clients[next(2) as usize], format!("file-{}", next(3)));
        match next(10) {
            0..4 => {
                let read = client.read(&file).await;
                assert_eq!(read.as_ref(), model.get(&file), "step {step}: {file}");
            }
            4..8 => {
                let data = step.to_be_bytes().repeat(1 + next(200) as usize);
                let make = !model.contains_key(&file) || next(2) == 0;
                client.write(&file, &data, make).await;
                let before = model.entry(file).or_default();
                if make {
                    before.clear();
                }
                let kept = before.split_off(data.len().min(before.len()));
                *before = [data, kept].concat();
            }
            8 if model.remove(&file).is_some() => client.remove(&file).await,
            _ => {
                // An fsync of the file, if it exists.
                if let Ok((open, handle)) = client.try_open(&file, Share::READ | Share::WRITE, false).await {
                    client.cache.commit(&me(), &handle, 0, 0).await.unwrap();
                    client.cache.close(&me(), open).await.unwrap();
                }
            }
        }
    }
    let hits: u64 = clients.iter().map(|client| client.cache.stats().data.hits).sum();
    assert!(hits > 20, "only {hits} reads were answered from a cache");
    for client in &clients {
        client.cache.shutdown().await;
    }
    for (file, data) in &model {
        assert_eq!(&std::fs::read(served.tree.path().join(file)).unwrap(), data, "{file}");
    }
}
