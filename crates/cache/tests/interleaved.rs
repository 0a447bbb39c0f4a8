//! Law 1 with many clients at once: requests of several clients and changes by others overlap at random.
//!
//! The origin remembers all its versions. A client opens a file and reads. The bytes must have been there at
//! some moment between the beginning of the open and the end of the read. The target of a name must have been
//! right at some moment between the beginning and the end of the request.
//!
//! Promise: close-to-open

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::Cache;
use origin::tree::Version;
use origin::{Bench, Origin, handle, id, name, opener, root, write};
use vfs::{AccessMask, CreateHow, FileSystem, FileType, Handle, SetAttributes, StateidBasis, Status};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SIZE: u64 = 30_000;

struct Client {
    origin: Arc<Origin>,
    cache: Arc<Cache>,
    uid: u32,
}

impl Client {
    fn random(&self, below: u64) -> u64 {
        self.origin.random() % below
    }

    fn some_name(&self) -> vfs::Name {
        name(NAMES[self.random(NAMES.len() as u64) as usize])
    }

    fn some_file(&self) -> Option<Handle> {
        let name = self.some_name();
        self.origin.tree().get(&root()).unwrap().names.get(&name).map(|(id, _)| handle(*id))
    }

    fn versions(&self, file: &Handle) -> usize {
        self.origin.tree().history[&id(file)].len()
    }

    async fn act(&self) {
        match self.random(20) {
            0..8 => self.open_and_read().await,
            8..11 => self.look().await,
            11..16 => self.write().await,
            16 => self.cut().await,
            17 => self.names().await,
            18 => self.others(),
            _ => tokio::time::sleep(Duration::from_micros(self.random(3000))).await,
        }
    }

    async fn open_and_read(&self) {
        let Some(file) = self.some_file() else { return };
        let user = opener(self.uid);
        let since = self.versions(&file) - 1;
        let opened = match self.random(2) {
            0 => self.cache.getattr(&user, &file).await.map(Some),
            _ => self.cache.access(&user, &file, AccessMask::READ).await.map(|accessed| accessed.attributes),
        };
        let Ok(opened) = opened else { return };
        if let Some(attributes) = opened {
            let seen = |version: &Version| version.attributes.wcc() == attributes.wcc();
            assert!(
                self.origin.tree().history[&id(&file)][since..].iter().any(seen),
                "attributes that never were"
            );
        }
        for _ in 0..=self.random(3) {
            let (offset, length) = (self.random(SIZE), self.random(SIZE) as u32 + 1);
            let Ok(read) = self.cache.read(&user, &file, StateidBasis::Anonymous, offset, length).await
            else {
                return;
            };
            let bytes = read.data.to_bytes().unwrap();
            let held = |version: &Version| {
                let size = version.data.len() as u64;
                let range = offset.min(size)..(offset + u64::from(length)).min(size);
                version.data[range.start as usize..range.end as usize] == bytes[..]
            };
            let tree = self.origin.tree();
            let versions = &tree.history[&id(&file)];
            let now = versions.len();
            let ever = versions.iter().rposition(held);
            if !versions[since..].iter().any(held) {
                let last: Vec<_> = versions[since..].iter().map(|version| summary(&version.data)).collect();
                panic!(
                    "{offset}+{length} of {file}: {} was at {ever:?}, not since {since} of {now}: {last:#?}",
                    summary(&bytes)
                );
            }
        }
    }

    async fn look(&self) {
        let name = self.some_name();
        let since = self.origin.tree().names_history.len() - 1;
        let found = match self.cache.lookup(&opener(self.uid), &root(), &name, vfs::Want::None).await {
            Ok(found) => Some(id(&found.node.handle)),
            Err(error) => {
                assert_eq!(error.status, Status::NoEnt);
                None
            }
        };
        let tree = self.origin.tree();
        let led = |names: &std::collections::BTreeMap<vfs::Name, u64>| names.get(&name).copied() == found;
        let ever = tree.names_history.iter().rposition(led);
        assert!(
            tree.names_history[since..].iter().any(led),
            "{name} led to {found:?} at {ever:?}, not since {since}"
        );
    }

    async fn write(&self) {
        let Some(file) = self.some_file() else { return };
        let (offset, length) = (self.random(SIZE), self.random(9000) as usize + 1);
        let data = vec![self.random(256) as u8; length];
        let (user, stability) = (opener(self.uid), vfs::Stability::Unstable);
        let write = self.cache.write(&user, &file, StateidBasis::Anonymous, offset, data.into(), stability);
        if self.random(10) == 0 {
            let _ = tokio::time::timeout(Duration::from_micros(self.random(2000)), write).await;
        } else {
            let _ = write.await;
        }
    }

    async fn cut(&self) {
        let Some(file) = self.some_file() else { return };
        let mut set = SetAttributes::default();
        match self.random(3) {
            0 => set.mode = Some(0o600 + self.random(2) as u32 * 0o44),
            _ => set.size = Some(self.random(SIZE)),
        }
        let _ = self.cache.setattr(&opener(self.uid), &file, &set, None).await;
    }

    async fn names(&self) {
        let user = opener(self.uid);
        let (one, other) = (self.some_name(), self.some_name());
        let set = SetAttributes::default();
        match self.random(5) {
            0 => drop(self.cache.remove(&user, &root(), &one).await),
            1 => drop(self.cache.rename(&user, &root(), &one, &root(), &other).await),
            2 => {
                if let Some(file) = self.some_file() {
                    drop(self.cache.link(&user, &file, &root(), &one).await);
                }
            }
            _ => drop(self.cache.create(&user, &root(), &one, CreateHow::Unchecked, &set).await),
        }
    }

    /// A change by another client, at the origin itself.
    fn others(&self) {
        let (one, other, file) = (self.some_name(), self.some_name(), self.some_file());
        let (what, at, byte) = (self.random(6), self.random(SIZE), self.random(256) as u8);
        let mut tree = self.origin.tree();
        match (what, file) {
            (0..3, Some(file)) => drop(tree.write(&file, at, &[byte; 500])),
            (3, _) => drop(tree.rename((&root(), &one), (&root(), &other))),
            (4, _) => drop(tree.remove(&root(), &one, false)),
            _ => {
                let (how, set) = (CreateHow::Guarded, SetAttributes::default());
                drop(tree.make(&root(), &one, FileType::Regular, how, &set, b""));
            }
        }
    }
}

/// Runs of equal bytes.
fn summary(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|a, b| a == b).map(|run| format!("{}x{}", run.len(), run[0]));
    runs.collect::<Vec<_>>().join(" ")
}

async fn run(seed: u64, without_before: bool, jitter_micros: u64) {
    let origin = Origin::with_granularity(Duration::from_millis(10));
    origin.tree().ticks = true;
    origin.seed.store(seed, Ordering::Relaxed);
    origin.jitter.store(jitter_micros, Ordering::Relaxed);
    origin.without_before.store(without_before, Ordering::Relaxed);
    origin.put(&root(), NAMES[0], &vec![1; 20_000]);
    origin.put(&root(), NAMES[1], &vec![2; 20_000]);
    let bench = Bench::over(origin.clone());
    let mut options = bench.options();
    options.flush_interval = Duration::from_millis(5);
    options.prefetch_max_bytes = if seed.is_multiple_of(2) { 64 << 20 } else { 0 };
    // Objects come to rest with each flush.
    options.objects_in_memory_max = if seed.is_multiple_of(3) { 0 } else { options.objects_in_memory_max };
    let cache = bench.open_with(options).await;
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let client = Client { origin: origin.clone(), cache: cache.clone(), uid: number % 3 };
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
            let bytes = origin::read(&cache, &opener(0), &file, 0, 1 << 20).await;
            assert!(bytes == origin.tree().get(&file).unwrap().data, "{text} differs in the end");
        }
    }
    // A cache without hits could not be wrong.
    let stats = cache.stats();
    assert!(stats.data.hits > 20, "{stats:?}");
    let _ = write(&cache, &opener(0), &origin.put(&root(), "end", b""), 0, b"end").await;
}

/// The number of runs: a few, or as many as `INTERLEAVED_RUNS` says.
fn runs() -> u64 {
    std::env::var("INTERLEAVED_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(8)
}

#[test]
fn whatever_is_read_was_there_between_open_and_read() {
    for seed in 1..=runs() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        println!("seed {seed}");
        runtime.block_on(run(seed * 7919, seed % 4 == 0, 2000));
    }
}

/// The same with threads that run at the same time, and that pause between two critical sections.
#[test]
fn whatever_is_read_was_there_with_threads_too() {
    for seed in 1..=runs() / 2 {
        cache::preemption::pause(if seed.is_multiple_of(3) { 0 } else { 30 });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        runtime.block_on(run(seed * 104_729, seed % 4 == 0, seed % 3 * 100));
    }
    cache::preemption::pause(0);
}
