//! A layer below for tests: one directory in memory, with or without opens, locks and leases. It records
//! its calls, can block them, and sends callbacks to the arbiter. Also helpers for clients of the arbiter.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod system;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arbiter::{Arbiter, Options};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use vfs::{
    Attributes, Callback, Callbacks, Caller, CreateHow, Device, FileType, Fsid, Handle, HolderId, Lease,
    LeaseId, LeaseKind, Leases, Lock, LockKind, LockRequest, Locked, Name, OpenId, OpenRequest, Opened,
    Opens, Owner, Query, Recall, Result, SetAttributes, Share, Timestamp, Want,
};

pub const RW: Share = Share::READ.union(Share::WRITE);

#[derive(Clone, Debug)]
pub struct File {
    pub size: u64,
    pub change: u64,
    pub nlink: u32,
}

/// The content of the layer.
#[derive(Default)]
pub struct Files {
    pub names: BTreeMap<Vec<u8>, u8>,
    pub by_id: BTreeMap<u8, File>,
    pub opens: HashMap<OpenId, (u8, Share, Share)>,
    pub leases: HashMap<u8, LeaseId>,
    pub locks: Vec<(u8, Lock)>,
    /// How often the directory was changed.
    pub root_changes: u64,
    /// A lock that is held outside the arbiter.
    pub foreign_lock: Option<Lock>,
    next: u64,
}

/// The state of a file that a client trusts while it has a lease.
#[derive(Clone, Copy, Debug)]
pub struct Believed {
    pub holder: HolderId,
    pub lease: LeaseId,
    pub file: u8,
    pub change: u64,
}

/// The next number of a pseudo-random sequence.
pub fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// The layer below. See the module.
pub struct Below {
    pub files: Mutex<Files>,
    /// The kind of lease that it grants.
    pub grants: Mutex<Option<LeaseKind>>,
    stateful: bool,
    calls: Mutex<Vec<String>>,
    /// Its answer about remembered names.
    pub remembers: Mutex<Option<bool>>,
    /// What clients trust under their leases.
    pub believed: Mutex<Vec<Believed>>,
    /// If set, calls yield to others, in an order that this seed determines.
    pub jitter: Mutex<Option<u64>>,
    /// Calls of these names wait for a permit before their reply.
    gates: Mutex<HashMap<&'static str, Arc<Semaphore>>>,
    up: mpsc::Sender<Callback>,
    callbacks: Mutex<Option<Callbacks>>,
}

impl Below {
    pub fn new(stateful: bool) -> Arc<Below> {
        let (up, callbacks) = mpsc::channel(16);
        let below = Below {
            files: Mutex::default(),
            grants: Mutex::new(Some(LeaseKind::Write)),
            stateful,
            calls: Mutex::default(),
            remembers: Mutex::default(),
            believed: Mutex::default(),
            jitter: Mutex::default(),
            gates: Mutex::default(),
            up,
            callbacks: Mutex::new(Some(callbacks)),
        };
        Arc::new(below)
    }

    /// Adds a file of ten bytes.
    pub fn add(&self, file: &str) -> Handle {
        let mut files = self.files.lock();
        let id = files.by_id.len() as u8 + 1;
        files.names.insert(file.as_bytes().to_vec(), id);
        files.by_id.insert(id, File { size: 10, change: 100, nlink: 1 });
        handle(id)
    }

    /// How often this call was made.
    pub fn count(&self, call: &str) -> usize {
        self.calls.lock().iter().filter(|made| made.as_str() == call).count()
    }

    pub fn all_calls(&self) -> usize {
        self.calls.lock().len()
    }

    /// From now on calls of this name wait before their reply.
    pub fn hold(&self, call: &'static str) -> Arc<Semaphore> {
        self.gates.lock().entry(call).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    pub async fn say(&self, callback: Callback) {
        self.up.send(callback).await.unwrap();
    }

    pub async fn recall(&self, id: LeaseId, handle: Handle, within: Duration) {
        let deadline = Instant::now() + within;
        self.say(Callback::Recall(Recall { id, handle, keep: None, deadline })).await;
    }

    pub fn lease_on(&self, handle: &Handle) -> Option<LeaseId> {
        self.files.lock().leases.get(&id_of(handle)).copied()
    }

    fn note(&self, call: &str) {
        self.calls.lock().push(call.to_owned());
    }

    /// Yields to other tasks a random number of times.
    async fn be_overtaken(&self) {
        let turns = self.jitter.lock().as_mut().map_or(0, |seed| random(seed) % 6);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }

    async fn pass(&self, call: &'static str) {
        self.be_overtaken().await;
        let gate = self.gates.lock().get(call).cloned();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
    }

    fn lease(&self, id: u8, change: u64) -> Option<Lease> {
        let kind = (*self.grants.lock())?;
        let kind = if id == ROOT { LeaseKind::Read } else { kind };
        let mut files = self.files.lock();
        files.next += 1;
        let next = LeaseId(files.next);
        let id = *files.leases.entry(id).or_insert(next);
        Some(Lease { id, kind, until: None, change, space_limit: Lease::NO_SPACE_LIMIT })
    }
}

pub const ROOT: u8 = 0;

pub fn handle(id: u8) -> Handle {
    Handle::new(&[id]).unwrap()
}

pub fn id_of(handle: &Handle) -> u8 {
    handle.as_bytes()[0]
}

pub fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

pub fn attributes(id: u8, file: &File) -> Attributes {
    Attributes {
        file_type: if id == ROOT { FileType::Directory } else { FileType::Regular },
        mode: 0o644,
        nlink: file.nlink,
        uid: 0,
        gid: 0,
        size: file.size,
        used: file.size,
        rdev: Device::default(),
        fsid: Fsid::default(),
        fileid: id.into(),
        atime: Timestamp::default(),
        mtime: Timestamp::new(file.change as i64, 0),
        ctime: Timestamp::new(file.change as i64, 0),
        change: file.change,
    }
}

/// An arbiter, the callbacks to its front, and the layer below it.
pub struct Stage {
    pub below: Arc<Below>,
    pub arbiter: Arc<Arbiter>,
    callbacks: Callbacks,
}

/// Short times that tests can tell apart.
pub fn options() -> Options {
    Options {
        recall_deadline: Duration::from_secs(20),
        patience: Duration::from_secs(60),
        quiet: Duration::from_secs(100),
        ..Options::default()
    }
}

impl Stage {
    pub fn new(options: Options) -> Stage {
        Stage::over(Below::new(true), options)
    }

    pub fn over(below: Arc<Below>, options: Options) -> Stage {
        let arbiter = Arc::new(Arbiter::with_options(below.clone(), options));
        let callbacks = arbiter.callbacks().unwrap();
        Stage { below, arbiter, callbacks }
    }

    /// The next callback.
    pub async fn callback(&mut self) -> Callback {
        self.callbacks.recv().await.unwrap()
    }

    /// The next callback, which must be a recall.
    pub async fn recall(&mut self) -> Recall {
        match self.callback().await {
            Callback::Recall(recall) => recall,
            other => panic!("{other:?} is no recall"),
        }
    }

    /// The next callback, which must be a question.
    pub async fn query(&mut self) -> Query {
        match self.callback().await {
            Callback::Getattr(query) => query,
            other => panic!("{other:?} is no question"),
        }
    }

    /// There is no callback, now or in the next millisecond.
    pub async fn is_silent(&mut self) {
        if let Ok(said) = timeout(Duration::from_millis(1), self.callbacks.recv()).await {
            panic!("unexpected: {said:?}");
        }
    }

    pub async fn give_back(&self, lease: LeaseId) {
        self.arbiter.returned(&Caller::machine(), lease).await.unwrap();
    }

    /// Runs an operation concurrently with the test.
    pub fn start<T, F>(&self, operation: impl FnOnce(Arc<Arbiter>) -> F) -> tokio::task::JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        tokio::spawn(operation(self.arbiter.clone()))
    }
}

/// Runs all tasks that can proceed without the clock.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// A v4 client.
pub fn client(number: u64) -> Caller {
    Caller { holder: Some(HolderId(number)), ..Caller::unix(1000, 1000, &[]) }
}

/// A v3 client.
pub fn anonymous() -> Caller {
    Caller::unix(1000, 1000, &[])
}

pub fn owner(caller: &Caller) -> Owner {
    Owner(Bytes::from(format!("owner {:?}", caller.holder)))
}

pub fn request(caller: &Caller, file: &Handle, access: Share) -> OpenRequest {
    OpenRequest { want: Want::Any, ..OpenRequest::new(*file, None, owner(caller), access) }
}

pub fn by_name(caller: &Caller, file: &str, access: Share) -> OpenRequest {
    OpenRequest { name: Some(name(file)), ..request(caller, &handle(ROOT), access) }
}

pub fn truncating(request: OpenRequest) -> OpenRequest {
    let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
    OpenRequest { create: Some((CreateHow::Unchecked, set)), ..request }
}

pub async fn open(stage: &Stage, caller: &Caller, file: &Handle, access: Share) -> Result<Opened> {
    stage.arbiter.open(caller, &request(caller, file, access)).await
}

pub fn lock(caller: &Caller, kind: LockKind, offset: u64, length: u64) -> LockRequest {
    let lock = Lock { owner: owner(caller), kind, offset, length };
    LockRequest { lock, wait: true, reclaim: false }
}

pub fn is_denied(locked: &Result<Locked>) -> bool {
    matches!(locked, Ok(Locked::Denied(_)))
}
