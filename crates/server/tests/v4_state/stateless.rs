//! Clients of versions 2 and 3 and of NQNFS. During grace they change nothing that an earlier holder may
//! still rely on. The deny modes of courtesy clients do not block them.
//!
//! Promise: courtesy-clients
//! Promise: grace-period

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use protocol::mount::{self, Dirpath};
use protocol::nfs3::{self, Sattr, StableHow, Status, call};
use protocol::nfs4::{ArgFattr, ArgOp, Attr, Fattr, OpenArgs, ReadArgs, SetattrArgs, Stateid, op};
use protocol::{Call, Reply, nfs2, nqnfs};
use rpc::message::{CallHeader, Incoming};
use rpc::{
    AuthSys, Credential, Link, LinkOptions, ReplyCache, Transport,
    replay::{Admission, ReplyLifetime, Sender},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use xdr::{Bulk, Opaque};

use crate::callbacks::Reachable;
use crate::calls;
use crate::directories::{delegated, granting};
use crate::restart::reclaim;
use crate::setup::{Home, Incarnation, LEASE, PATIENCE, Session, create, reclaim_complete};
use crate::wire::{ROOT, getattr, lookup};

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(30);

struct Client(Link);

impl Client {
    fn new(incarnation: &Incarnation, transport: Transport) -> Client {
        let timeo = Duration::from_millis(700);
        Client(Link::new(LinkOptions { transport, timeo, ..LinkOptions::new(incarnation.address()) }))
    }

    async fn call<C: Call>(&self, args: C::Args) -> C::Results {
        tokio::time::timeout(LONG, calls::call::<C>(&self.0, args)).await.unwrap()
    }

    /// The result of a v3 call.
    async fn v3<C, T, F>(&self, args: C::Args) -> Result<(), Status>
    where
        C: Call<Results = Reply<T, Status, F>>,
    {
        match self.call::<C>(args).await {
            Reply::Ok(_) => Ok(()),
            Reply::Fail(status, _) => Err(status),
        }
    }

    async fn root3(&self) -> nfs3::Handle {
        let path = Dirpath::new(&b"/"[..]).unwrap();
        let Reply::Ok(root) = self.call::<mount::v3::call::Mnt>(path).await else { panic!("mounts") };
        root.fhandle
    }

    async fn root2(&self) -> nfs2::Handle {
        let path = Dirpath::new(&b"/"[..]).unwrap();
        let Reply::Ok(root) = self.call::<mount::v1::call::Mnt>(path).await else { panic!("mounts") };
        root
    }

    async fn find3(&self, dir: nfs3::Handle, name: &'static str) -> nfs3::Handle {
        let args = nfs3::LookupArgs { what: at3(dir, name) };
        let Reply::Ok(found) = self.call::<call::Lookup>(args).await else { panic!("{name}") };
        found.object
    }

    async fn mkdir3(&self, dir: nfs3::Handle, name: &'static str) -> Result<(), Status> {
        self.v3::<call::Mkdir, _, _>(mkdir3(dir, name)).await
    }
}

fn at3(dir: nfs3::Handle, name: &'static str) -> nfs3::DirOpArgs {
    nfs3::DirOpArgs { dir, name: Opaque::new(name.as_bytes()).unwrap() }
}

fn at2(dir: nfs2::Handle, name: &'static str) -> nfs2::DirOpArgs {
    nfs2::DirOpArgs { dir, name: Opaque::new(name.as_bytes()).unwrap() }
}

fn nothing() -> Sattr {
    let keep = nfs3::SetTime::DontChange;
    Sattr { mode: None, uid: None, gid: None, size: None, atime: keep, mtime: keep }
}

fn mkdir3(dir: nfs3::Handle, name: &'static str) -> nfs3::MkdirArgs {
    nfs3::MkdirArgs { location: at3(dir, name), attributes: nothing() }
}

/// The result of each procedure that changes something or reads data.
async fn all_changes(client: &Client, dir: nfs3::Handle) -> Vec<(&'static str, Result<(), Status>)> {
    let file = client.find3(dir, "file").await;
    let how = nfs3::CreateHow::Unchecked(nothing());
    let target = Opaque::new(&b"target"[..]).unwrap();
    let link =
        nfs3::SymlinkArgs { location: at3(dir, "link"), symlink_attributes: nothing(), symlink_data: target };
    let fifo = nfs3::MknodArgs { location: at3(dir, "fifo"), what: nfs3::MknodData::Fifo(nothing()) };
    let write = nfs3::WriteArgs {
        file,
        offset: 0,
        count: 3,
        stable: StableHow::FileSync,
        data: Bulk::Bytes(b"new"[..].into()),
    };
    let truncate = Sattr { size: Some(0), ..nothing() };
    let set = nfs3::SetattrArgs { object: file, new_attributes: truncate, guard: None };
    let rename = nfs3::RenameArgs { from: at3(dir, "file"), to: at3(dir, "renamed") };
    let remove = |name| nfs3::RemoveArgs { object: at3(dir, name) };
    let hard = nfs3::LinkArgs { file, link: at3(dir, "hard") };
    let create = nfs3::CreateArgs { location: at3(dir, "made"), how };
    let read = nfs3::ReadArgs { file, offset: 0, count: 3 };
    // All at once, because each one is held.
    let ended: [_; 11] = tokio::join!(
        client.v3::<call::Create, _, _>(create),
        client.mkdir3(dir, "directory"),
        client.v3::<call::Symlink, _, _>(link),
        client.v3::<call::Mknod, _, _>(fifo),
        client.v3::<call::Remove, _, _>(remove("file")),
        client.v3::<call::Rmdir, _, _>(remove("sub")),
        client.v3::<call::Rename, _, _>(rename),
        client.v3::<call::Link, _, _>(hard),
        client.v3::<call::Setattr, _, _>(set),
        client.v3::<call::Write, _, _>(write),
        client.v3::<call::Read, _, _>(read),
    )
    .into();
    let names = [
        "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK", "SETATTR", "WRITE",
        "READ",
    ];
    names.into_iter().zip(ended).collect()
}

fn listing(home: &Home) -> Vec<String> {
    let names = std::fs::read_dir(home.tree().join("dir")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Lets a v4.1 client get a delegation of a directory, and returns the next server incarnation.
async fn restarted(home: &Home) -> Incarnation {
    let incarnation = granting(home, LONG).await;
    let mut holder = Reachable::new(&incarnation, b"holder").await;
    delegated(&mut holder).await;
    drop((incarnation, holder));
    home.serve(LEASE).await
}

#[tokio::test]
async fn no_name_changes_before_who_had_the_directory_has_heard_of_the_restart() {
    let home = Home::new();
    let incarnation = restarted(&home).await;
    let before = listing(&home);
    let (client, datagrams) =
        (Client::new(&incarnation, Transport::Tcp), Client::new(&incarnation, Transport::Udp));
    let root = client.root3().await;
    let dir = client.find3(root, "dir").await;
    for (procedure, ended) in Box::pin(all_changes(&client, dir)).await {
        assert_eq!(ended, Err(Status::Jukebox), "{procedure}");
    }
    // Version 2 has no status for that.
    let root2 = client.root2().await;
    let make = |name| {
        let time = nfs2::Timeval { seconds: nfs2::KEEP, useconds: nfs2::KEEP };
        let keep = nfs2::KEEP;
        let attributes =
            nfs2::Sattr { mode: 0o700, uid: keep, gid: keep, size: keep, atime: time, mtime: time };
        nfs2::CreateArgs { location: at2(root2, name), attributes }
    };
    let (by_tcp, by_udp) = (make("by tcp"), make("by udp"));
    let other = Client::new(&incarnation, Transport::Tcp);
    let held = [
        tokio::spawn(async move { other.call::<nfs2::call::Mkdir>(by_tcp).await }),
        tokio::spawn(async move { datagrams.call::<nfs2::call::Mkdir>(by_udp).await }),
    ];
    // Longer than the server holds a datagram, so that the client sends it again.
    for _ in 0..5 {
        assert_eq!(client.mkdir3(dir, "held").await, Err(Status::Jukebox));
    }
    assert!(held.iter().all(|held| !held.is_finished()));
    let nq = nqnfs::Leased {
        lease: nqnfs::LeaseRequest::None,
        args: nfs2::DirOpArgs { dir: root2, name: Opaque::new(&b"gone"[..]).unwrap() },
    };
    let refused = client.call::<nqnfs::call::Rmdir>(nq).await;
    assert!(matches!(refused, Reply::Fail(nqnfs::Stat::Trylater, ())), "{refused:?}");
    assert_eq!(listing(&home), before);
    assert!(!home.tree().join("by tcp").exists() && !home.tree().join("by udp").exists());
    assert_eq!(std::fs::read(home.tree().join("dir/file")).unwrap(), b"content");

    // The holder returns, learns of the restart, and has nothing to reclaim.
    let waiting = {
        let another = Client::new(&incarnation, Transport::Tcp);
        tokio::spawn(async move { while another.mkdir3(dir, "held").await == Err(Status::Jukebox) {} })
    };
    let mut holder = incarnation.reclaiming(b"holder", 1).await;
    holder.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
    tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    for held in held {
        // Executed once, however often the call was sent.
        assert!(matches!(held.await.unwrap(), Reply::Ok(_)));
    }
    assert!(home.tree().join("by tcp").exists() && home.tree().join("by udp").exists());
    for (procedure, ended) in Box::pin(all_changes(&client, dir)).await {
        assert_ne!(ended, Err(Status::Jukebox), "{procedure}");
    }
}

#[tokio::test]
async fn who_never_comes_is_waited_for_until_its_lease_has_ended_and_nobody_else_need_come() {
    let home = Home::new();
    let (lease, shorter) = (Duration::from_secs(1), Duration::from_millis(50));
    std::fs::create_dir(home.tree().join("dir")).unwrap();
    let incarnation = home.serve(lease).await;
    drop(incarnation.session(b"holder").await);
    drop(incarnation);
    // The lease time of the previous incarnation counts, not that of this one.
    let start = Instant::now();
    let incarnation = home.serve(shorter).await;
    let client = Client::new(&incarnation, Transport::Tcp);
    let dir = client.root3().await;
    let mut refused = 0;
    while client.mkdir3(dir, "new").await == Err(Status::Jukebox) {
        assert!(!home.tree().join("new").exists());
        refused += 1;
    }
    assert!(start.elapsed() >= lease && refused > 0, "{refused} in {:?}", start.elapsed());
    assert!(home.tree().join("new").exists());
    drop((incarnation, client));
    // The server does not wait again for a client that did not return.
    let incarnation = home.serve(lease).await;
    let client = Client::new(&incarnation, Transport::Tcp);
    assert_eq!(client.mkdir3(dir, "again").await, Ok(()));
}

#[tokio::test]
async fn where_nobody_held_anything_nobody_waits() {
    let home = Home::new();
    drop(home.serve(LEASE).await);
    std::fs::create_dir_all(home.tree().join("dir/sub")).unwrap();
    std::fs::write(home.tree().join("dir/file"), b"content").unwrap();
    let incarnation = home.serve(LEASE).await;
    let client = Client::new(&incarnation, Transport::Tcp);
    let root = client.root3().await;
    let dir = client.find3(root, "dir").await;
    for (procedure, ended) in Box::pin(all_changes(&client, dir)).await {
        assert_ne!(ended, Err(Status::Jukebox), "{procedure}");
    }
}

/// Only its xid identifies a call that may have taken effect before the restart. So the server must not
/// make the client retry with another xid.
#[tokio::test]
async fn what_was_on_its_way_when_the_server_died_is_held_to_the_end() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut holder = incarnation.session(b"holder").await;
    holder.open(create(b"file", b"owner", 3)).await;
    let root = Client::new(&incarnation, Transport::Tcp).root3().await;
    drop((incarnation, holder));
    let (credential, xid) = (Credential::Sys(AuthSys::default()), 4711);
    let header = CallHeader { xid, program: 100_003, version: 3, procedure: call::Mkdir::NUMBER, credential };
    let arguments = xdr::to_bytes(&mkdir3(root, "made")).unwrap();
    let cache = ReplyCache::open(home.state.path()).unwrap();
    let sender = Sender { address: (Ipv4Addr::LOCALHOST, 700).into(), connection: None };
    let admitted = cache.admit(sender, &header, (&arguments, None), ReplyLifetime::UntilHeard);
    let Admission::Execute { slot, .. } = admitted else { panic!("a new call") };
    std::fs::create_dir(home.tree().join("made")).unwrap();
    // Simulates that the server is killed.
    std::mem::forget(slot);
    drop(cache);

    let incarnation = home.serve(LEASE).await;
    let mut stream = tokio::net::TcpStream::connect(incarnation.address()).await.unwrap();
    let mut record = xdr::to_bytes(&header).unwrap().to_vec();
    record.extend_from_slice(&arguments);
    stream.write_u32(record.len() as u32 | 1 << 31).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let courtesy = tokio::time::timeout(PATIENCE * 3, stream.readable()).await;
    assert!(courtesy.is_err(), "neither done nor told to come again");
    let mut holder = incarnation.reclaiming(b"holder", 1).await;
    holder.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
    let mark = tokio::time::timeout(LONG, stream.read_u32()).await.unwrap().unwrap();
    let mut reply = vec![0; (mark & 0x7fff_ffff) as usize];
    stream.read_exact(&mut reply).await.unwrap();
    let Incoming::Reply { xid: answered, rest } = Incoming::parse(reply.into()).unwrap() else {
        panic!("a reply")
    };
    let results = rpc::message::parse_reply(xdr::Decoder::new(rest.rest())).unwrap().unwrap();
    let made: <call::Mkdir as Call>::Results = xdr::from_bytes(results.rest()).unwrap();
    assert!(answered == xid && matches!(made, Reply::Ok(_)), "{made:?}");
}

#[tokio::test]
async fn attributes_of_a_file_are_changed_in_grace_by_who_has_it_for_writing() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    let mut holder = incarnation.session(b"holder").await;
    let (_, file) = holder.open(create(b"file", b"owner", 3)).await;
    drop((incarnation, holder));

    let incarnation = home.serve(LEASE).await;
    let mode = |mode| {
        let obj_attributes = ArgFattr::from(Fattr { mode: Some(mode), ..Fattr::default() });
        ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, obj_attributes })
    };
    let mut stranger = incarnation.session(b"stranger").await;
    assert_eq!(stranger.on(file, mode(0o600)).await, Err(protocol::nfs4::Status::Grace));
    let mut holder = incarnation.reclaiming(b"holder", 1).await;
    assert_eq!(holder.on(file, mode(0o600)).await, Err(protocol::nfs4::Status::Grace), "not reclaimed");
    assert_eq!(holder.status(reclaim(b"owner", file)).await, Ok(()));
    assert_eq!(holder.on(file, mode(0o600)).await, Ok(()));
    let seen = vec![ROOT, lookup(b"file"), getattr(&[Attr::Mode])];
    assert_eq!(stranger.last::<op::Getattr>(seen).await.obj_attributes.mode, Some(0o600));
    holder.last::<op::ReclaimComplete>(vec![reclaim_complete()]).await;
    assert_eq!(stranger.on(file, mode(0o640)).await, Ok(()));
}

/// The result of each call that needs the data of its own file. None of the calls uses state.
async fn all_uses(client: &Client, other: &mut Session, files: &[nfs3::Handle]) -> Vec<bool> {
    let root = client.root3().await;
    let write = nfs3::WriteArgs {
        file: files[0],
        offset: 0,
        count: 3,
        stable: StableHow::FileSync,
        data: Bulk::Bytes(b"new"[..].into()),
    };
    let read = nfs3::ReadArgs { file: files[1], offset: 0, count: 3 };
    let empty = Sattr { size: Some(0), ..nothing() };
    let set = nfs3::SetattrArgs { object: files[2], new_attributes: empty, guard: None };
    let how = nfs3::CreateHow::Unchecked(empty);
    let create = nfs3::CreateArgs { location: at3(root, USED[3]), how };
    let mut done = vec![
        client.v3::<call::Write, _, _>(write).await,
        client.v3::<call::Read, _, _>(read).await,
        client.v3::<call::Setattr, _, _>(set).await,
        client.v3::<call::Create, _, _>(create).await,
    ];
    let root2 = client.root2().await;
    let found = client.call::<nfs2::call::Lookup>(at2(root2, USED[4])).await;
    let Reply::Ok(found) = found else { panic!("{found:?}") };
    let data = Bulk::Bytes(b"new"[..].into());
    let write = nfs2::WriteArgs { file: found.file, beginoffset: 0, offset: 0, totalcount: 3, data };
    let written = client.call::<nfs2::call::Write>(write).await;
    done.push(if matches!(written, Reply::Ok(_)) { Ok(()) } else { Err(Status::Acces) });
    assert!(done.iter().all(|done| matches!(done, Ok(()) | Err(Status::Acces))), "{done:?}");

    let read = ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 3 });
    let obj_attributes = ArgFattr::from(Fattr { size: Some(0), ..Fattr::default() });
    let set = ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, obj_attributes });
    let mut ended: Vec<_> = done.iter().map(Result::is_ok).collect();
    for (file, operation) in [(USED[5], read), (USED[6], set)] {
        let done = other.status(vec![ROOT, lookup(file.as_bytes()), operation]).await;
        assert!(matches!(done, Ok(()) | Err(protocol::nfs4::Status::Locked)), "{done:?}");
        ended.push(done.is_ok());
    }
    ended
}

const USED: [&str; 7] = ["written", "read", "set", "created", "written by 2", "read by 4", "set by 4"];

#[tokio::test]
async fn what_a_silent_client_denies_keeps_nobody_off() {
    let home = Home::new();
    let incarnation = home.serve(Duration::from_secs(5)).await;
    let (client, mut other) =
        (Client::new(&incarnation, Transport::Tcp), incarnation.session(b"other").await);
    let root = client.root3().await;
    let mut files = Vec::new();
    for file in USED {
        // Each file is opened by a separate client, because a conflict expires everything that the client
        // holds.
        let mut holder = incarnation.session(file.as_bytes()).await;
        holder.open(OpenArgs { share_deny: 3, ..create(file.as_bytes(), b"owner", 3) }).await;
        files.push(client.find3(root, file).await);
    }
    assert_eq!(all_uses(&client, &mut other, &files).await, [false; USED.len()], "their leases are good");
    let all = async {
        while all_uses(&client, &mut other, &files).await != [true; USED.len()] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, all).await.expect("somebody is kept off");
}
