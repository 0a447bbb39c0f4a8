//! Tests of versions 4.1 and 4.2 against nfs-ganesha, if it is installed: names, data, locks, and a restart
//! in the middle.

use std::time::Duration;

use bytes::Bytes;
use client::{Nfs4, Origin as _, Url};
use protocol::nfs4::Operation;
use vfs::{
    AccessMask, CreateHow, Extended, Extent, Features, FileSystem, Lock, LockKind, LockRequest, Locked,
    OpenRequest, Opened, Opens, Owner, Place, SetAttributes, Share, Stability, StateidBasis, Status, Want,
    XattrHow, XattrName,
};

use crate::everything;
use crate::ganesha::Ganesha;
use crate::scripted::name;

type Bench = everything::Bench<Nfs4>;

async fn mount(ganesha: &Ganesha, options: &str) -> Bench {
    let url = format!("nfs://127.0.0.1:{}/srv/export?noresvport&{options}", ganesha.port);
    let fs = Nfs4::connect(&Url::parse(&url).unwrap()).await.unwrap();
    let root = fs.root_handle();
    Bench::new(fs, root)
}

impl Bench {
    async fn open(&self, file: &[u8], owner: &'static str, access: Share) -> Opened {
        self.try_open(file, owner, (access, Share::empty()), None).await.unwrap()
    }

    async fn try_open(
        &self,
        file: &[u8],
        owner: &'static str,
        (access, deny): (Share, Share),
        create: Option<(CreateHow, SetAttributes)>,
    ) -> vfs::Result<Opened> {
        let request = OpenRequest {
            deny,
            create,
            want: Want::Any,
            ..OpenRequest::new(
                self.root,
                Some(name(file)),
                Owner(Bytes::from_static(owner.as_bytes())),
                access,
            )
        };
        self.fs.open(&self.caller, &request).await
    }
}

fn lock(owner: &'static str, kind: LockKind, offset: u64, length: u64) -> Lock {
    Lock { owner: Owner(Bytes::from_static(owner.as_bytes())), kind, offset, length }
}

fn request(lock: Lock) -> LockRequest {
    LockRequest { lock, wait: false, reclaim: false }
}

#[tokio::test]
async fn everything_once_over_4_1() {
    let Some(ganesha) = Ganesha::start() else { return };
    let bench = mount(&ganesha, "vers=4.1&nconnect=2").await;
    assert_eq!(bench.fs.minor(), 1);
    everything(&bench).await;
}

#[tokio::test]
async fn everything_once_over_4_2() {
    let Some(ganesha) = Ganesha::start() else { return };
    let bench = mount(&ganesha, "vers=4").await;
    assert_eq!(bench.fs.minor(), 2);
    everything(&bench).await;
}

async fn everything(bench: &Bench) {
    bench.files(b"caf\xc3\xa9").await;
    bench.names(b"../f").await;
    wrong_names(bench).await;
    opens(bench).await;
    locks(bench).await;
    bench.directories(2000).await;
    bench.rights().await;
    let limits = bench.fs.limits(&bench.caller, &bench.root).await.unwrap();
    assert!(limits.features.contains(Features::STATE));
    assert_eq!(limits.features.contains(Features::SEEK), bench.fs.minor() == 2);
    extras(bench).await;
    assert_eq!(bench.fs.nonsense_heard(), 0);
    assert_eq!(bench.fs.counts().calls(Operation::BindConnToSession), 0, "the first session has it all");
    assert_eq!(bench.fs.operation_counts().calls(Operation::ExchangeId), 1, "no recovery was needed");
    bench.fs.shutdown().await;
    assert_eq!(bench.fs.counts().calls(Operation::DestroyClientid), 1);
}

/// Other errors for names of objects with an unexpected type.
async fn wrong_names(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let directory = fs.mkdir(caller, root, &name(b"d"), none, vfs::Want::None).await.unwrap().node.handle;
    let file =
        fs.create(caller, &directory, &name(b"g"), CreateHow::Unchecked, none).await.unwrap().node.handle;
    assert_eq!(fs.parent(caller, root).await.unwrap().node.handle, *root);
    assert_eq!(fs.remove(caller, root, &name(b"d")).await.unwrap_err().status, Status::IsDir);
    assert_eq!(fs.rmdir(caller, &directory, &name(b"g")).await.unwrap_err().status, Status::NotDir);
    assert_eq!(
        fs.lookup(caller, &file, &name(b"x"), vfs::Want::None).await.unwrap_err().status,
        Status::NotDir
    );
    fs.remove(caller, &directory, &name(b"g")).await.unwrap();
    fs.rmdir(caller, root, &name(b"d")).await.unwrap();
}

async fn opens(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let both = Share::READ | Share::WRITE;
    let mode = SetAttributes { mode: Some(0o600), ..*none };
    let create = Some((CreateHow::Guarded, mode));
    let opened = bench.try_open(b"opened", "one", (both, Share::empty()), create).await.unwrap();
    assert!(opened.created && opened.attributes.mode == 0o600 && opened.lease.is_none());
    assert!(opened.granted.unwrap().contains(AccessMask::READ | AccessMask::MODIFY));
    let (file, by) = (opened.handle, StateidBasis::Open(opened.id));
    fs.write(caller, &file, by, 0, Bytes::from_static(b"hello"), Stability::FileSync).await.unwrap();
    assert_eq!(fs.read(caller, &file, by, 0, 100).await.unwrap().data.to_bytes().unwrap(), "hello");

    // The same owner has one open. Another owner has its own.
    let upgraded = bench.open(b"opened", "one", Share::READ).await;
    assert_eq!(upgraded.id, opened.id);
    let second = bench.open(b"opened", "two", Share::READ).await;
    assert_ne!(second.id, opened.id);
    let denied = bench.try_open(b"opened", "three", (Share::READ, Share::WRITE), None).await.unwrap_err();
    assert_eq!(denied.status, Status::ShareDenied);
    fs.downgrade(caller, opened.id, Share::READ, Share::empty()).await.unwrap();
    let denying = bench.try_open(b"opened", "three", (Share::READ, Share::WRITE), None).await.unwrap();
    assert_eq!(
        bench.try_open(b"opened", "two", (Share::WRITE, Share::empty()), None).await.unwrap_err().status,
        Status::ShareDenied
    );
    for id in [denying.id, second.id, opened.id] {
        fs.close(caller, id).await.unwrap();
        assert_eq!(fs.close(caller, id).await.unwrap_err().status, Status::BadStateId);
    }
    assert_eq!(fs.read(caller, &file, by, 0, 100).await.unwrap_err().status, Status::BadStateId);

    let by_handle = OpenRequest::new(file, None, Owner(Bytes::from_static(b"four")), both);
    let again = fs.open(caller, &by_handle).await.unwrap();
    assert_eq!((again.handle, again.attributes.size, again.created), (file, 5, false));
    let set = SetAttributes { size: Some(2), ..*none };
    fs.setattr(caller, &file, &set, None).await.unwrap();
    fs.close(caller, again.id).await.unwrap();
    fs.remove(caller, root, &name(b"opened")).await.unwrap();
    let missing = bench.try_open(b"opened", "one", (both, Share::empty()), None).await.unwrap_err();
    assert_eq!(missing.status, Status::NoEnt);
}

async fn locks(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    fs.create(caller, root, &name(b"locked"), CreateHow::Unchecked, none).await.unwrap();
    let both = Share::READ | Share::WRITE;
    let one = bench.open(b"locked", "one", both).await;
    let two = bench.open(b"locked", "two", both).await;
    let exclusive = lock("p1", LockKind::Exclusive, 10, 10);
    assert_eq!(fs.lock(caller, one.id, &request(exclusive.clone())).await.unwrap(), Locked::Granted);
    let shared = request(lock("p1", LockKind::Shared, 100, 10));
    assert_eq!(fs.lock(caller, one.id, &shared).await.unwrap(), Locked::Granted);
    assert!(fs.holds_locks(two.id, &exclusive.owner));

    let other = lock("p2", LockKind::Exclusive, 15, u64::MAX);
    let Locked::Denied(in_the_way) = fs.lock(caller, two.id, &request(other.clone())).await.unwrap() else {
        panic!("it is locked")
    };
    assert_eq!((in_the_way.offset, in_the_way.kind), (10, LockKind::Exclusive));
    assert!(fs.test(caller, &one.handle, &other).await.unwrap().is_some());
    fs.unlock(caller, one.id, &exclusive.owner, (10, 10)).await.unwrap();
    assert!(fs.holds_locks(one.id, &exclusive.owner));
    let free = lock("p2", LockKind::Exclusive, 15, 10);
    assert!(fs.test(caller, &one.handle, &free).await.unwrap().is_none());
    assert_eq!(fs.lock(caller, two.id, &request(free)).await.unwrap(), Locked::Granted);
    fs.unlock(caller, one.id, &exclusive.owner, (0, u64::MAX)).await.unwrap();
    assert!(!fs.holds_locks(one.id, &exclusive.owner));
    // A new lock of an owner whose state id was freed.
    assert_eq!(fs.lock(caller, one.id, &shared).await.unwrap(), Locked::Granted);
    fs.close(caller, one.id).await.unwrap();
    fs.close(caller, two.id).await.unwrap();
}

/// Optional features: a supported one works, and an unsupported one is not asked for twice.
async fn extras(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let create = Some((CreateHow::Unchecked, *none));
    let both = Share::READ | Share::WRITE;
    let opened = bench.try_open(b"extras", "one", (both, Share::empty()), create).await.unwrap();
    let (file, by) = (opened.handle, StateidBasis::Open(opened.id));
    let data = Bytes::from(vec![7; 8192]);
    fs.write(caller, &file, by, 1 << 20, data, Stability::FileSync).await.unwrap();
    let place = Place { handle: file, by, offset: 0 };
    let xattr = XattrName::new(b"colour").unwrap();
    let red = Bytes::from_static(b"red");
    let set = fs.setxattr(caller, &file, &xattr, red.clone(), XattrHow::Either).await;
    let tried = [
        (Features::XATTR, set.map(drop)),
        (Features::SEEK, fs.seek(caller, &file, by, 0, Extent::Data).await.map(drop)),
        (Features::ALLOCATE, fs.allocate(caller, place, 4096).await.map(drop)),
        (Features::DEALLOCATE, fs.deallocate(caller, place, 4096).await.map(drop)),
        (Features::COPY, fs.copy(caller, Place { offset: 1 << 20, ..place }, place, 4096).await.map(drop)),
        (
            Features::CLONE,
            fs.clone_range(caller, Place { offset: 1 << 20, ..place }, place, 4096).await.map(drop),
        ),
    ];
    let limits = fs.limits(caller, root).await.unwrap();
    assert_eq!(limits.clone_block_bytes, None, "ganesha does not know CLONE");
    let features = limits.features;
    for (feature, result) in tried {
        let missing = result.as_ref().is_err_and(|failed| failed.status == Status::NotSupp);
        assert_eq!(features.contains(feature), !missing, "{feature:?}: {result:?}");
    }
    if features.contains(Features::XATTR) {
        assert_eq!(fs.getxattr(caller, &file, &xattr).await.unwrap(), red);
        assert_eq!(fs.listxattrs(caller, &file, 0, 4096).await.unwrap().names, std::slice::from_ref(&xattr));
        fs.removexattr(caller, &file, &xattr).await.unwrap();
        let gone = fs.getxattr(caller, &file, &xattr).await.unwrap_err();
        assert_eq!(gone.status, Status::NoXattr);
    }
    if features.contains(Features::SEEK) {
        let sought = fs.seek(caller, &file, by, 1 << 20, Extent::Hole).await.unwrap();
        assert_eq!(sought.offset, (1 << 20) + 8192);
        let past = fs.seek(caller, &file, by, 1 << 30, Extent::Data).await.unwrap_err();
        assert_eq!(past.status, Status::Nxio);
    }
    if features.contains(Features::ACL) {
        let acl = fs.acl(caller, &file).await.unwrap();
        fs.set_acl(caller, &file, &acl).await.unwrap();
    }
    let asked = fs.operation_counts();
    let features_missing = Features::all() - features;
    if features_missing.contains(Features::COPY) {
        let refused = fs.copy(caller, place, place, 1).await.unwrap_err();
        assert_eq!(refused.status, Status::NotSupp);
        assert_eq!(fs.operation_counts().since(&asked).total_calls(), 0);
    }
    fs.close(caller, opened.id).await.unwrap();
}

// Promise: exclusion-under-a-lease
#[tokio::test]
async fn opens_and_locks_outlive_the_server() {
    let Some(mut ganesha) = Ganesha::start() else { return };
    let bench = mount(&ganesha, "vers=4.1").await;
    let Bench { fs, root, caller, none } = &bench;
    let both = Share::READ | Share::WRITE;
    let create = Some((CreateHow::Unchecked, *none));
    let opened = bench.try_open(b"kept", "one", (both, Share::empty()), create).await.unwrap();
    let by = StateidBasis::Open(opened.id);
    let exclusive = lock("p1", LockKind::Exclusive, 10, 10);
    assert_eq!(fs.lock(caller, opened.id, &request(exclusive.clone())).await.unwrap(), Locked::Granted);
    fs.write(caller, &opened.handle, by, 0, Bytes::from_static(b"before"), Stability::FileSync)
        .await
        .unwrap();

    ganesha.kill();
    let waiting = fs.write(caller, &opened.handle, by, 6, Bytes::from_static(b" after"), Stability::FileSync);
    let again = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ganesha.start_again();
    };
    let (written, ()) = tokio::join!(waiting, again);
    assert_eq!(written.unwrap().count, 6);
    let read = fs.read(caller, &opened.handle, by, 0, 100).await.unwrap();
    assert_eq!(read.data.to_bytes().unwrap(), "before after");

    // The lock is still held: another client sees it.
    let other = mount(&ganesha, "vers=4.1").await;
    let theirs = lock("p9", LockKind::Exclusive, 0, 100);
    let in_the_way = other.fs.test(caller, &opened.handle, &theirs).await.unwrap().unwrap();
    assert_eq!((in_the_way.offset, in_the_way.length), (10, 10));
    assert!(fs.holds_locks(opened.id, &exclusive.owner));
    fs.unlock(caller, opened.id, &exclusive.owner, (10, 10)).await.unwrap();
    fs.close(caller, opened.id).await.unwrap();
    fs.remove(caller, root, &name(b"kept")).await.unwrap();
    assert!(fs.operation_counts().calls(Operation::ReclaimComplete) >= 2);
    assert_eq!(fs.nonsense_heard(), 0);
}
