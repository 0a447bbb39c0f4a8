//! An origin in memory. It counts its calls, can be slow, can omit what the protocol allows it to omit, and
//! can be changed without the cache.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod behind;
pub mod bench;
pub mod durability;
pub mod scratch;
pub mod state;
pub mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use vfs::{
    AccessMask, Accessed, Attributes, BringsDirectoryLease, Callbacks, Caller, Clock, Commit, CreateHow,
    Created, Delegated, Device, DirectoryLease, Features, FileSystem, FileType, FsLimits, FsStat, Handle,
    Lease, LeaseId, LeaseKind, Leases, Listing, Lock, LockRequest, Locked, Looked, Name, Node, OpenId,
    OpenRequest, Opened, Opens, Owner, Read, ReadDir, Renamed, Result, SetAttributes, Share, Stability,
    StateidBasis, Status, Timestamp, Want, Wcc, Written,
};

#[allow(unused_imports, reason = "each test program uses a part of it")]
pub use bench::*;
#[allow(unused_imports, reason = "each test program uses a part of it")]
pub use scratch::{Scratch, SmallDisk, copy, scratch};
#[allow(unused_imports, reason = "each test program uses a part of it")]
pub use tree::{ROOT, Tree, handle, id, name};

/// The origin's clock at the start of a test.
const START_SECONDS: i64 = 1_700_000_000;

/// The clock of the cache: that of the origin, unless a test sets them apart.
pub struct TestClock {
    pub origin: Arc<Origin>,
    pub ahead_seconds: i64,
}

impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        let now = self.origin.tree().now_nanos;
        Timestamp::from_nanos(now + i128::from(self.ahead_seconds) * 1_000_000_000)
    }
}

/// Holds calls of one kind: before they take effect, and between the effect and the reply.
pub struct Gate {
    before: Semaphore,
    after: Semaphore,
    arrived: AtomicU64,
}

impl Gate {
    /// Lets so many calls take effect.
    pub fn admit(&self, calls: usize) {
        self.before.add_permits(calls);
    }

    /// Lets so many replies out.
    pub fn reply(&self, calls: usize) {
        self.after.add_permits(calls);
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.admit(1 << 20);
        self.reply(1 << 20);
    }

    /// Waits until so many calls have reached the gate.
    pub async fn wait_for(&self, calls: u64) {
        until(|| self.arrived.load(Ordering::SeqCst) >= calls).await;
    }
}

/// Waits for a condition.
pub async fn until(condition: impl Fn() -> bool) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("condition never came true");
}

pub struct Origin {
    tree: Mutex<Tree>,
    /// The moment when the origin's clock showed `START_SECONDS`. `passed` is added to the time since then.
    epoch: tokio::time::Instant,
    passed: Mutex<Duration>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    gates: Mutex<BTreeMap<&'static str, Arc<Gate>>>,
    /// Replies have no state from before the operation, as with some servers.
    pub without_before: AtomicBool,
    /// As in v4, replies to changes of names have `change_info4`, and replies to other changes have nothing
    /// of the kind.
    pub change_info_alone: AtomicBool,
    pub read_max: AtomicU64,
    /// The origin carries out a READ under an open or a lease for any caller.
    pub trusting: AtomicBool,
    /// A READDIR tells names alone.
    pub bare_listings: AtomicBool,
    /// A READ piggybacked on an OPEN fails.
    pub fails_piggybacked: AtomicBool,
    /// Bytes that piggybacked READs have returned.
    pub piggyback_bytes: AtomicU64,
    /// Microseconds per call.
    pub delay: AtomicU64,
    /// The upper bound of an additional delay in microseconds, before and after a call takes effect. The
    /// seed decides.
    pub jitter: AtomicU64,
    pub seed: AtomicU64,
    /// Runs after the next call has taken effect, or the next one of a kind, and before its reply.
    pub after_effect: Mutex<Option<(Option<&'static str>, Hook)>>,
    /// The bytes that the origin would lose in a crash.
    pub durability: durability::Durability,
    /// Opens, locks and leases, if the origin has state.
    pub state: Mutex<state::State>,
    /// Since when calls have gone unanswered, as a client would report.
    pub silence: tokio::sync::watch::Sender<vfs::UnansweredSince>,
}

type Hook = Box<dyn FnOnce() + Send>;

impl Origin {
    pub fn new() -> Arc<Origin> {
        Origin::with_granularity(Duration::from_nanos(1))
    }

    pub fn with_granularity(granularity: Duration) -> Arc<Origin> {
        let start = i128::from(START_SECONDS) * 1_000_000_000;
        Arc::new(Origin {
            tree: Mutex::new(Tree::new(start, granularity.as_nanos() as i128)),
            epoch: tokio::time::Instant::now(),
            passed: Mutex::default(),
            calls: Mutex::default(),
            gates: Mutex::default(),
            without_before: AtomicBool::new(false),
            change_info_alone: AtomicBool::new(false),
            read_max: AtomicU64::new(1 << 20),
            trusting: AtomicBool::new(false),
            bare_listings: AtomicBool::new(false),
            fails_piggybacked: AtomicBool::new(false),
            piggyback_bytes: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            jitter: AtomicU64::new(0),
            seed: AtomicU64::new(1),
            after_effect: Mutex::new(None),
            durability: durability::Durability::default(),
            state: Mutex::default(),
            silence: tokio::sync::watch::Sender::default(),
        })
    }

    /// Moves the origin's clock forward.
    pub fn pass(&self, time: Duration) {
        *self.passed.lock() += time;
    }

    /// The file system, at this moment of the origin's clock.
    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        let mut tree = self.tree.lock();
        let now = i128::from(START_SECONDS) * 1_000_000_000
            + (self.epoch.elapsed() + *self.passed.lock()).as_nanos() as i128;
        tree.now_nanos = tree.now_nanos.max(now);
        tree
    }

    /// Holds calls of this kind from now on.
    pub fn gate(&self, call: &'static str) -> Arc<Gate> {
        let gate = Gate { before: Semaphore::new(0), after: Semaphore::new(0), arrived: AtomicU64::new(0) };
        let gate = Arc::new(gate);
        self.gates.lock().insert(call, gate.clone());
        gate
    }

    /// The calls since the last call of this, except FSINFO and the like.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut *self.calls.lock()).into_iter().collect()
    }

    /// Makes a file as another client.
    pub fn put(&self, directory: &Handle, text: &str, data: &[u8]) -> Handle {
        let mut tree = self.tree();
        let (how, set) = (CreateHow::Unchecked, SetAttributes::default());
        let made = tree.make(directory, &name(text), FileType::Regular, how, &set, b"").unwrap();
        if !data.is_empty() {
            tree.write(&made.node.handle, 0, data).unwrap();
        }
        made.node.handle
    }

    /// Makes a directory as another client.
    pub fn put_dir(&self, directory: &Handle, text: &str) -> Handle {
        let (how, set) = (CreateHow::Guarded, SetAttributes::default());
        let made = self.tree().make(directory, &name(text), FileType::Directory, how, &set, b"");
        made.unwrap().node.handle
    }

    async fn call<T>(&self, call: &'static str, work: impl FnOnce(&mut Tree) -> T) -> T {
        let gate = self.come(call).await;
        let result = work(&mut self.tree());
        self.took_effect(call);
        self.reply(gate).await;
        result
    }

    async fn come(&self, call: &'static str) -> Option<Arc<Gate>> {
        *self.calls.lock().entry(call).or_default() += 1;
        let gate = self.gates.lock().get(call).cloned();
        if let Some(gate) = &gate {
            gate.arrived.fetch_add(1, Ordering::SeqCst);
            gate.before.acquire().await.unwrap().forget();
        }
        let delay = self.delay.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_micros(delay)).await;
        }
        self.dawdle().await;
        gate
    }

    fn took_effect(&self, call: &'static str) {
        let hook = self.after_effect.lock().take_if(|(only, _)| only.is_none_or(|only| only == call));
        if let Some((_, hook)) = hook {
            hook();
        }
    }

    async fn reply(&self, gate: Option<Arc<Gate>>) {
        if let Some(gate) = &gate {
            gate.after.acquire().await.unwrap().forget();
        }
        self.dawdle().await;
    }

    async fn dawdle(&self) {
        let jitter = self.jitter.load(Ordering::Relaxed);
        if jitter > 0 {
            tokio::time::sleep(Duration::from_micros(self.random() % jitter)).await;
        }
    }

    /// The next number of the series that begins with the seed.
    pub fn random(&self) -> u64 {
        let step = |seed: u64| {
            Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        };
        let seed = self.seed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap();
        seed >> 33
    }

    fn told(&self, wcc: Wcc) -> Wcc {
        if self.change_info_alone.load(Ordering::Relaxed) {
            let of_names = wcc.after.is_some_and(|after| after.is_dir());
            return Wcc { change: wcc.change_info().filter(|_| of_names), ..Wcc::seen(wcc.after) };
        }
        if self.without_before.load(Ordering::Relaxed) { Wcc { before: None, ..wcc } } else { wcc }
    }

    /// A lease on a directory, for the reply to another call.
    fn piggyback(&self, tree: &mut Tree, directory: &Handle) -> Option<DirectoryLease> {
        let attributes = tree.get(directory).ok()?.attributes;
        let mut state = self.state.lock();
        let lease = if attributes.is_dir() { state.delegate(directory, attributes.change) } else { None };
        lease.map(|lease| DirectoryLease { lease, attributes })
    }

    /// An OPEN with a READ behind it. Other clients may act between the two.
    async fn open_and_read(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        (offset, count): (u64, u32),
    ) -> Result<Opened> {
        assert!(request.create.is_none());
        let gate = self.come("OPEN").await;
        let mut opened = {
            let mut tree = self.tree();
            let wanted = request.want_directory_lease;
            let lease = if wanted { self.piggyback(&mut tree, &request.handle) } else { None };
            Opened::attach(self.state.lock().open(&mut tree, caller, request), lease)
        };
        self.took_effect("OPEN");
        self.dawdle().await;
        let fails = self.fails_piggybacked.load(Ordering::Relaxed);
        let fails = fails || (self.jitter.load(Ordering::Relaxed) > 0 && self.random().is_multiple_of(8));
        let count = count.min(self.read_max.load(Ordering::Relaxed) as u32);
        let read = |opened: &Opened| {
            let read = self.tree().read(&caller.principal, &opened.handle, offset, count).ok()?;
            self.piggyback_bytes.fetch_add(read.data.len() as u64, Ordering::Relaxed);
            Some(read)
        };
        if let Ok(opened) = opened.as_mut()
            && !fails
        {
            opened.read = read(opened).map(Box::new);
        }
        self.reply(gate).await;
        opened
    }

    #[allow(clippy::large_types_passed_by_value, reason = "it is passed through")]
    fn made(&self, mut created: Created) -> Created {
        created.directory = self.told(created.directory);
        created
    }
}

#[async_trait]
impl FileSystem for Origin {
    async fn root(&self, _: &Caller) -> Result<Node> {
        Ok(self.tree().node(ROOT))
    }

    async fn getattr(&self, _: &Caller, handle: &Handle) -> Result<Attributes> {
        self.call("GETATTR", |tree| tree.get(handle).map(|inode| inode.attributes)).await
    }

    async fn setattr(
        &self,
        _: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let work = |tree: &mut Tree| {
            if let Some(status) = self.durability.refuse_setattrs.lock().pop_front() {
                return Err(status.into());
            }
            let wcc = tree.setattr(handle, set, guard)?;
            self.durability.cut(handle, set.size);
            Ok(wcc)
        };
        self.call("SETATTR", work).await.map(|wcc| self.told(wcc))
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        let work = |tree: &mut Tree| {
            let granted = tree.allowed(&caller.principal, handle)? & asked;
            Ok(Accessed { granted, attributes: Some(tree.get(handle)?.attributes) })
        };
        self.call("ACCESS", work).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, want: Want) -> Result<Looked> {
        let work = |tree: &mut Tree| {
            let lease = if want == Want::None { None } else { self.piggyback(tree, directory) };
            Looked::attach(tree.lookup(&caller.principal, directory, name), lease)
        };
        self.call("LOOKUP", work).await
    }

    async fn parent(&self, _: &Caller, directory: &Handle) -> Result<Looked> {
        self.call("LOOKUP", |tree| tree.parent(directory)).await
    }

    async fn readlink(&self, _: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let work = |tree: &mut Tree| {
            let inode = tree.get(handle)?;
            Ok((Bytes::copy_from_slice(&inode.target), Some(inode.attributes)))
        };
        self.call("READLINK", work).await
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let count = count.min(self.read_max.load(Ordering::Relaxed) as u32);
        let work = |tree: &mut Tree| {
            let state = self.state.lock();
            state.check(by, handle, Share::READ)?;
            let by_state =
                by != StateidBasis::Anonymous || state.leases.iter().any(|lease| lease.handle == *handle);
            let trusted = by_state && self.trusting.load(Ordering::Relaxed);
            let principal = if trusted { &vfs::Principal::Machine } else { &caller.principal };
            tree.read(principal, handle, offset, count)
        };
        self.call("READ", work).await
    }

    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let work = |tree: &mut Tree| {
            self.state.lock().check(by, handle, Share::WRITE)?;
            self.durability.write(tree, caller, handle, offset, &data, stability)
        };
        let written = self.call("WRITE", work).await?;
        Ok(Written { wcc: self.told(written.wcc), ..written })
    }

    async fn commit(&self, _: &Caller, handle: &Handle, _: u64, _: u32) -> Result<Commit> {
        let work = |tree: &mut Tree| -> Result<Wcc> {
            self.durability.commit(handle)?;
            let attributes = tree.get(handle)?.attributes;
            Ok(Wcc::around(attributes.wcc(), Some(attributes)))
        };
        let work = |tree: &mut Tree| Ok::<_, vfs::Error>((work(tree)?, self.durability.verifier()));
        let (wcc, verifier) = self.call("COMMIT", work).await?;
        Ok(Commit { verifier, wcc: self.told(wcc) })
    }

    async fn create(
        &self,
        _: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let work = |tree: &mut Tree| tree.make(directory, name, FileType::Regular, how, set, b"");
        self.call("CREATE", work).await.map(|created| self.made(created))
    }

    async fn mkdir(
        &self,
        _: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        _: Want,
    ) -> Result<Created> {
        let work =
            |tree: &mut Tree| tree.make(directory, name, FileType::Directory, CreateHow::Guarded, set, b"");
        self.call("MKDIR", work).await.map(|created| self.made(created))
    }

    async fn symlink(
        &self,
        _: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let work =
            |tree: &mut Tree| tree.make(directory, name, FileType::Symlink, CreateHow::Guarded, set, target);
        self.call("SYMLINK", work).await.map(|created| self.made(created))
    }

    async fn mknod(
        &self,
        _: &Caller,
        directory: &Handle,
        name: &Name,
        file_type: FileType,
        _: Device,
        set: &SetAttributes,
    ) -> Result<Created> {
        let work = |tree: &mut Tree| tree.make(directory, name, file_type, CreateHow::Guarded, set, b"");
        self.call("MKNOD", work).await.map(|created| self.made(created))
    }

    async fn remove(&self, _: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.call("REMOVE", |tree| tree.remove(directory, name, false)).await.map(|wcc| self.told(wcc))
    }

    async fn rmdir(&self, _: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.call("RMDIR", |tree| tree.remove(directory, name, true)).await.map(|wcc| self.told(wcc))
    }

    async fn rename(
        &self,
        _: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        let renamed = self.call("RENAME", |tree| tree.rename((from, from_name), (to, to_name))).await?;
        Ok(Renamed { from: self.told(renamed.from), to: self.told(renamed.to) })
    }

    async fn link(&self, _: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.call("LINK", |tree| tree.link(file, directory, name)).await.map(|created| self.made(created))
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let work = |tree: &mut Tree| {
            let lease = if part.want_directory_lease { self.piggyback(tree, directory) } else { None };
            let mut listing = tree.readdir(&caller.principal, directory, part)?;
            if self.bare_listings.load(Ordering::Relaxed) {
                listing.entries.iter_mut().for_each(|entry| entry.node = None);
            }
            Listing::attach(Ok(listing), lease)
        };
        self.call("READDIR", work).await
    }

    async fn fsstat(&self, _: &Caller, _: &Handle) -> Result<FsStat> {
        let available_bytes = self.durability.free_bytes(&self.tree());
        let free_bytes = available_bytes;
        Ok(FsStat { total_bytes: u64::MAX, free_bytes, available_bytes, ..FsStat::default() })
    }

    async fn limits(&self, _: &Caller, _: &Handle) -> Result<FsLimits> {
        let time_delta_nanoseconds = self.tree().granularity_nanos as u64;
        let read_max = self.read_max.load(Ordering::Relaxed) as u32;
        let features = if self.state.lock().policy.is_some() { Features::STATE } else { Features::empty() };
        Ok(FsLimits { time_delta_nanoseconds, read_max, features, ..FsLimits::default() })
    }

    fn unanswered_since(&self) -> Option<tokio::sync::watch::Receiver<vfs::UnansweredSince>> {
        Some(self.silence.subscribe())
    }

    fn prepare_shutdown(&self) {}

    async fn shutdown(&self) {}
}

#[async_trait]
impl Opens for Origin {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        if let Some(part) = request.read_first {
            return self.open_and_read(caller, request, part).await;
        }
        let work = |tree: &mut Tree| {
            let wanted = request.want_directory_lease;
            let lease = if wanted { self.piggyback(tree, &request.handle) } else { None };
            let opened = self.state.lock().open(tree, caller, request);
            if let Ok(opened) = &opened {
                self.durability.cut(&opened.handle, request.create.as_ref().and_then(|(_, set)| set.size));
            }
            Opened::attach(opened, lease)
        };
        self.call("OPEN", work).await
    }

    async fn downgrade(&self, _: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.call("DOWNGRADE", |_| self.state.lock().downgrade(open, access, deny)).await
    }

    async fn close(&self, _: &Caller, open: OpenId) -> Result<()> {
        self.call("CLOSE", |_| self.state.lock().close(open)).await
    }

    async fn lock(&self, _: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        self.call("LOCK", |_| self.state.lock().lock(open, &request.lock)).await
    }

    async fn unlock(&self, _: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        self.call("UNLOCK", |_| self.state.lock().unlock(open, owner, range)).await
    }

    async fn test(&self, _: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.call("TEST", |_| Ok(self.state.lock().conflict(handle, lock))).await
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    fn holds_locks(&self, _: OpenId, _: &Owner) -> bool {
        false
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        false
    }
}

#[async_trait]
impl Leases for Origin {
    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.call("ACCESS", |tree| {
            let granted = tree.allowed(&caller.principal, directory)? & asked;
            let attributes = tree.get(directory)?.attributes;
            let mut state = self.state.lock();
            let lease = if attributes.is_dir() { state.delegate(directory, attributes.change) } else { None };
            Ok(Delegated { accessed: Accessed { granted, attributes: Some(attributes) }, lease })
        })
        .await
    }

    fn callbacks(&self) -> Option<Callbacks> {
        self.state.lock().listen()
    }

    fn adopted(&self) -> vfs::Adopted {
        self.state.lock().adopted()
    }

    async fn returned(&self, _: &Caller, lease: LeaseId) -> Result<()> {
        self.call("RETURN", |_| self.state.lock().leases.retain(|held| held.id != lease)).await;
        Ok(())
    }

    async fn end_reclaim(&self) {}

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }
}

vfs::lacks!(Origin: Extended, LocalView);
