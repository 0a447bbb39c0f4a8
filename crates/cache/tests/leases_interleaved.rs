//! Law 1 under leases: requests of several clients of the cache and changes by other clients of the origin
//! overlap at random. The origin grants leases at random and recalls them.
//!
//! Bytes that are read after an open existed at some moment. That moment lies between the last change that
//! had been answered when the open began, and the end of the read. While the cache holds a lease, more is
//! promised: the moment lies after the last change that had been answered when the read itself began. A
//! byte-range lock keeps out all others, here and at the origin.
//!
//! Promise: exclusion-under-a-lease
//! Promise: delegations-of-the-origin
//! Promise: own-changes-under-a-lease
//! Promise: first-bytes-with-the-open
//! Promise: shared-opens

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cache::Cache;
use origin::state::{Policy, unchecked};
use origin::tree::Version;
use origin::{
    Bench, Origin, handle, id, name, open_handle, open_request, opener, owner, root, v4, v4_opener,
};
use parking_lot::Mutex;
use vfs::{
    Attributes, Callback, Callbacks, Caller, FileSystem, FileType, Handle, LeaseId, Leases, Lock, LockKind,
    LockRequest, Locked, Opened, Opens, Owner, SetAttributes, Share, Stability, StateidBasis, Status,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SIZE: u64 = 30_000;

/// The knowledge of the layer above the cache.
#[derive(Default)]
struct Known {
    leases: BTreeMap<u64, LeaseId>,
    returned: BTreeSet<LeaseId>,
    /// For each file, the version that the last answered change made.
    floor: BTreeMap<u64, usize>,
    /// For each file, the client that is in the section guarded by a lock.
    locked: BTreeMap<u64, u64>,
    strict: u64,
    locks: u64,
}

type Shared = Arc<Mutex<Known>>;

/// Returns recalled leases, a little later.
async fn layer_above(cache: Arc<Cache>, mut callbacks: Callbacks, known: Shared, origin: Arc<Origin>) {
    while let Some(callback) = callbacks.recv().await {
        let (handle, lease) = match callback {
            Callback::Recall(recall) => (recall.handle, recall.id),
            Callback::Revoked { id, handle } => (handle, id),
            _ => continue,
        };
        tokio::time::sleep(Duration::from_micros(origin.random() % 500)).await;
        {
            let mut known = known.lock();
            known.returned.insert(lease);
            if known.leases.get(&id(&handle)) == Some(&lease) {
                known.leases.remove(&id(&handle));
            }
        }
        cache.returned(&Caller::machine(), lease).await.unwrap();
    }
}

struct Client {
    origin: Arc<Origin>,
    cache: Arc<Cache>,
    known: Shared,
    number: u64,
    opens: AtomicU64,
}

impl Client {
    fn random(&self, below: u64) -> u64 {
        self.origin.random() % below
    }

    fn some_name(&self) -> &'static str {
        NAMES[self.random(NAMES.len() as u64) as usize]
    }

    fn uid(&self) -> u32 {
        (self.number % 2) as u32
    }

    fn caller(&self) -> Caller {
        v4(self.uid(), self.number)
    }

    /// The version that the last answered change made.
    fn floor(&self, file: &Handle) -> usize {
        self.known.lock().floor.get(&id(file)).copied().unwrap_or(0)
    }

    async fn act(&self) {
        match self.random(20) {
            0..9 => self.open().await,
            9..11 => self.v3().await,
            11..13 => self.names().await,
            13..17 => self.others().await,
            17 => self.others_lock().await,
            _ => tokio::time::sleep(Duration::from_micros(self.random(3000))).await,
        }
    }

    /// OPEN, some READs, WRITEs and locks, CLOSE.
    async fn open(&self) {
        let text = self.some_name();
        let access = if self.random(3) == 0 { Share::READ | Share::WRITE } else { Share::READ };
        let number = self.opens.fetch_add(1, Ordering::Relaxed);
        let client = self.number * 100_000 + number;
        let mut request = open_request(&root(), text, client, access);
        if self.random(10) == 0 {
            request.create = Some(unchecked((self.random(2) == 0).then_some(0)));
        }
        let names_since = self.origin.tree().names_history.len() - 1;
        let before = self.known.lock().floor.clone();
        let opened = match self.cache.open(&v4_opener(self.uid(), self.number), &request).await {
            Ok(opened) => opened,
            Err(error) => {
                if error.status == Status::NoEnt {
                    self.led(text, None, names_since);
                }
                return;
            }
        };
        let file = id(&opened.handle);
        self.led(text, Some(file), names_since);
        let since = before.get(&file).copied().unwrap_or(0);
        self.was(&opened.handle, &opened.attributes, since);
        self.learn_lease(&opened);
        for _ in 0..self.random(4) {
            match self.random(6) {
                0..3 => self.read(&opened, since).await,
                3 if access.contains(Share::WRITE) => self.write(&opened).await,
                4 => self.lock(&opened, client).await,
                _ => tokio::time::sleep(Duration::from_micros(self.random(2000))).await,
            }
        }
        self.cache.close(&self.caller(), opened.id).await.unwrap();
    }

    fn learn_lease(&self, opened: &Opened) {
        let mut known = self.known.lock();
        if let Some(lease) = opened.lease
            && !known.returned.contains(&lease.id)
        {
            known.leases.insert(id(&opened.handle), lease.id);
        }
    }

    /// The name led to this object at some moment since.
    fn led(&self, text: &str, to: Option<u64>, since: usize) {
        let tree = self.origin.tree();
        let led = |names: &BTreeMap<vfs::Name, u64>| names.get(&name(text)).copied() == to;
        assert!(tree.names_history[since..].iter().any(led), "{text} did not lead to {to:?}");
    }

    /// The file had these attributes at some moment since.
    fn was(&self, file: &Handle, attributes: &Attributes, since: usize) {
        let tree = self.origin.tree();
        let seen = |version: &Version| version.attributes.wcc() == attributes.wcc();
        let versions = &tree.history[&id(file)];
        let ever = versions.iter().rposition(seen);
        assert!(
            versions[since..].iter().any(seen),
            "attributes of {file} that were at {ever:?}, not since {since} of {}",
            versions.len()
        );
    }

    async fn read(&self, opened: &Opened, since: usize) {
        let file = opened.handle;
        let (leased, floor) = {
            let known = self.known.lock();
            (known.leases.get(&id(&file)).copied(), known.floor.get(&id(&file)).copied().unwrap_or(0))
        };
        let (offset, length) = (self.random(SIZE), self.random(SIZE) as u32 + 1);
        let read =
            self.cache.read(&self.caller(), &file, StateidBasis::Open(opened.id), offset, length).await;
        let Ok(read) = read else { return };
        let bytes = read.data.to_bytes().unwrap();
        let still = leased.is_some() && self.known.lock().leases.get(&id(&file)).copied() == leased;
        let since = if still { since.max(floor) } else { since };
        self.known.lock().strict += u64::from(still);
        let held = |version: &Version| {
            let size = version.data.len() as u64;
            let range = offset.min(size)..(offset + u64::from(length)).min(size);
            version.data[range.start as usize..range.end as usize] == bytes[..]
        };
        let tree = self.origin.tree();
        let versions = &tree.history[&id(&file)];
        let ever = versions.iter().rposition(held);
        assert!(
            versions[since..].iter().any(held),
            "{offset}+{length} of {file}: was at {ever:?}, not since {since} of {} (lease {leased:?}, {still})",
            versions.len()
        );
    }

    async fn write(&self, opened: &Opened) {
        let (offset, length) = (self.random(SIZE), self.random(9000) as usize + 1);
        let data = vec![self.random(256) as u8; length];
        let by = StateidBasis::Open(opened.id);
        let caller = self.caller();
        let write = self.cache.write(&caller, &opened.handle, by, offset, data.into(), Stability::Unstable);
        if self.random(10) == 0 {
            let _ = tokio::time::timeout(Duration::from_micros(self.random(2000)), write).await;
        } else if let Ok(written) = write.await {
            self.answered(&opened.handle, &written.wcc.after.unwrap());
        }
    }

    /// A change that left these attributes was answered.
    fn answered(&self, file: &Handle, attributes: &Attributes) {
        let at = {
            let tree = self.origin.tree();
            let left = |version: &Version| version.attributes.wcc() == attributes.wcc();
            tree.history[&id(file)].iter().rposition(left).unwrap()
        };
        let mut known = self.known.lock();
        let floor = known.floor.entry(id(file)).or_default();
        *floor = at.max(*floor);
    }

    async fn lock(&self, opened: &Opened, client: u64) {
        let lock = Lock { owner: owner(client), kind: LockKind::Shared, offset: 0, length: 10 };
        let exclusive = Lock { kind: LockKind::Exclusive, ..lock };
        let request = LockRequest { lock: exclusive, wait: false, reclaim: false };
        match self.cache.lock(&self.caller(), opened.id, &request).await {
            Ok(Locked::Granted) => {}
            Ok(Locked::Denied(_)) => return,
            Err(error) => {
                // The file is open for reading only, or is gone, or a lease came or went.
                assert!(matches!(error.status, Status::OpenMode | Status::Stale | Status::Delay), "{error}");
                return;
            }
        }
        self.guarded(&opened.handle, client).await;
        self.cache.unlock(&self.caller(), opened.id, &owner(client), (0, 10)).await.unwrap();
    }

    /// No other client is in the guarded section.
    async fn guarded(&self, file: &Handle, client: u64) {
        let other = self.known.lock().locked.insert(id(file), client);
        assert_eq!(other, None, "two hold a lock of {file}");
        self.known.lock().locks += 1;
        tokio::time::sleep(Duration::from_micros(self.random(3000))).await;
        assert_eq!(self.known.lock().locked.remove(&id(file)), Some(client));
    }

    async fn others_lock(&self) {
        let Some(file) = self.some_file() else { return };
        let owner = Owner(format!("other {}", self.number).into_bytes().into());
        let lock = Lock { owner, kind: LockKind::Exclusive, offset: 5, length: 10 };
        if self.origin.others_lock(&file, &lock).await {
            self.guarded(&file, 1_000_000 + self.number).await;
            self.origin.others_unlock(&file, &lock);
        }
    }

    fn some_file(&self) -> Option<Handle> {
        let name = name(self.some_name());
        self.origin.tree().get(&root()).unwrap().names.get(&name).map(|(id, _)| handle(*id))
    }

    /// Requests of a client without opens.
    async fn v3(&self) {
        let Some(file) = self.some_file() else { return };
        let since = self.floor(&file);
        let Ok(attributes) = self.cache.getattr(&opener(self.uid()), &file).await else { return };
        self.was(&file, &attributes, since);
        if self.random(2) == 0 {
            let (offset, length) = (self.random(SIZE), self.random(SIZE) as u32 + 1);
            let _ =
                self.cache.read(&opener(self.uid()), &file, StateidBasis::Anonymous, offset, length).await;
        } else {
            let set = SetAttributes { size: Some(self.random(SIZE)), ..SetAttributes::default() };
            if let Ok(wcc) = self.cache.setattr(&opener(self.uid()), &file, &set, None).await {
                self.answered(&file, &wcc.after.unwrap());
            }
        }
    }

    async fn names(&self) {
        let (one, other) = (name(self.some_name()), name(self.some_name()));
        match self.random(4) {
            0 => drop(self.cache.remove(&self.caller(), &root(), &one).await),
            1 | 2 => drop(self.cache.rename(&self.caller(), &root(), &one, &root(), &other).await),
            _ => {
                if let Some(file) = self.some_file() {
                    drop(self.cache.link(&self.caller(), &file, &root(), &one).await);
                }
            }
        }
    }

    /// A change by other clients of the origin: leases of ours are recalled first.
    async fn others(&self) {
        let (one, other) = (name(self.some_name()), name(self.some_name()));
        let (what, at, byte) = (self.random(6), self.random(SIZE), self.random(256) as u8);
        let led = |tree: &origin::Tree, name: &vfs::Name| {
            tree.get(&root()).unwrap().names.get(name).map(|(id, _)| handle(*id))
        };
        match what {
            0..4 => {
                let Some(file) = self.some_file() else { return };
                let known = self.known.clone();
                let write = |tree: &mut origin::Tree| {
                    if tree.write(&file, at, &[byte; 500]).is_ok() {
                        let last = tree.history[&id(&file)].len() - 1;
                        known.lock().floor.insert(id(&file), last);
                    }
                };
                self.origin.others(&file, write).await;
            }
            4 => {
                let both = |tree: &origin::Tree| {
                    [led(tree, &one), led(tree, &other)].into_iter().flatten().collect()
                };
                let rename = |tree: &mut origin::Tree| drop(tree.rename((&root(), &one), (&root(), &other)));
                self.origin.others_all(both, rename).await;
            }
            _ => {
                let it = |tree: &origin::Tree| led(tree, &one).into_iter().collect();
                let remove = |tree: &mut origin::Tree| drop(tree.remove(&root(), &one, false));
                self.origin.others_all(it, remove).await;
                let (how, set) = (vfs::CreateHow::Guarded, SetAttributes::default());
                drop(self.origin.tree().make(&root(), &one, FileType::Regular, how, &set, b""));
            }
        }
    }
}

async fn run(seed: u64, policy: Policy, jitter_micros: u64) {
    let origin = Origin::with_granularity(Duration::from_millis(10));
    origin.tree().ticks = true;
    origin.state.lock().policy = Some(policy);
    origin.seed.store(seed, Ordering::Relaxed);
    origin.jitter.store(jitter_micros, Ordering::Relaxed);
    origin.without_before.store(!seed.is_multiple_of(4), Ordering::Relaxed);
    origin.put(&root(), NAMES[0], &vec![1; 20_000]);
    origin.put(&root(), NAMES[1], &vec![2; 20_000]);
    let bench = Bench::over(origin.clone());
    let mut options = bench.options();
    options.flush_interval = Duration::from_millis(5);
    options.prefetch_max_bytes = if seed.is_multiple_of(2) { 64 << 20 } else { 0 };
    // Objects come to rest with each flush.
    options.objects_in_memory_max = if seed.is_multiple_of(3) { 0 } else { options.objects_in_memory_max };
    options.close_delay = Duration::from_millis(3);
    options.leases_max = 3;
    // An open that only a lease keeps is closed at once, or stays.
    options.kept_opens_max = if seed % 5 < 2 { 0 } else { options.kept_opens_max };
    let cache = bench.open_with(options).await;
    let known = Shared::default();
    let callbacks = cache.callbacks().unwrap();
    let above = tokio::spawn(layer_above(cache.clone(), callbacks, known.clone(), origin.clone()));
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let (origin, cache, known) = (origin.clone(), cache.clone(), known.clone());
            let client = Client { origin, cache, known, number, opens: AtomicU64::new(0) };
            tokio::spawn(async move {
                for _ in 0..150 {
                    client.act().await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    // When everything is quiet, the cache agrees with the origin.
    for text in NAMES {
        let truth = origin.tree().get(&root()).unwrap().names.get(&name(text)).map(|(id, _)| handle(*id));
        let found = cache
            .lookup(&opener(0), &root(), &name(text), vfs::Want::None)
            .await
            .ok()
            .map(|found| found.node.handle);
        assert_eq!(found, truth);
        if let Some(file) = truth {
            let opened = cache.open(&v4_opener(0, 99), &open_handle(&file, 99, Share::READ)).await.unwrap();
            let bytes = origin::read(&cache, &v4(0, 99), &file, 0, 1 << 20).await;
            assert!(bytes == origin.tree().get(&file).unwrap().data, "{text} differs in the end");
            cache.close(&v4(0, 99), opened.id).await.unwrap();
        }
    }
    // A cache without hits could not be wrong.
    let stats = cache.stats();
    let leases = policy != Policy::Never;
    let (strict, locks) = {
        let known = known.lock();
        (known.strict, known.locks)
    };
    println!(
        "{strict} reads held to the letter, {locks} locks, {} opens shared, {} sent, {} recalls",
        stats.opens_shared, stats.upstream.open, stats.recalls
    );
    assert!(stats.data.hits > 20 && (stats.opens_shared > 0 || !leases), "{stats:?}");
    assert!(stats.recalls > 10 || !leases, "{stats:?}");
    assert!(strict > 10 || !leases);
    assert!(locks > 5);
    above.abort();
}

/// The number of runs: a few, or as many as `INTERLEAVED_RUNS` says.
fn runs() -> u64 {
    std::env::var("INTERLEAVED_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(8)
}

/// The first seed: 1, or the one that `INTERLEAVED_FIRST` says.
fn first() -> u64 {
    std::env::var("INTERLEAVED_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(1)
}

fn policy(seed: u64) -> Policy {
    match seed % 4 {
        0 => Policy::Never,
        1 => Policy::Always(vfs::LeaseKind::Write),
        2 => Policy::Always(vfs::LeaseKind::Read),
        _ => Policy::Random,
    }
}

#[test]
fn whatever_is_read_under_leases_was_there() {
    for seed in first()..=runs() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        println!("seed {seed}");
        runtime.block_on(run(seed * 7919, policy(seed), 2000));
    }
}

/// The same with threads that run at the same time, and that pause between two critical sections.
#[test]
fn whatever_is_read_under_leases_was_there_with_threads_too() {
    for seed in first()..=runs() {
        cache::preemption::pause(if seed.is_multiple_of(3) { 0 } else { 30 });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        println!("seed {seed}");
        runtime.block_on(run(seed * 104_729, policy(seed), seed % 3 * 100));
    }
    cache::preemption::pause(0);
}
