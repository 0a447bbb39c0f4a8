//! Law 1, one client after the other: an open shows the origin's state, whatever this client and others do
//! in any order.
//!
//! Changes by other clients are at least the timestamp granularity apart from everything else, as the
//! promise demands. Changes by this client are not. The cache is killed and reopened at any point, with the
//! index as it is on disk then.
//!
//! Promise: close-to-open
//! Promise: timestamp-granularity
//! Promise: cache-after-a-kill

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, WriteBehind};
use origin::tree::Version;
use origin::{Bench, Origin, handle, name, opener, read, root, write};
use proptest::prelude::*;
use vfs::{
    AccessMask, CreateHow, FileSystem, FileType, Handle, ReadDir, SetAttributes, SetTime, StateidBasis,
    Status, Timestamp,
};

const GRANULARITY: Duration = Duration::from_millis(10);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Change {
    Write {
        file: usize,
        offset: u64,
        byte: u8,
        length: usize,
    },
    Cut {
        file: usize,
        size: u64,
    },
    Mode {
        file: usize,
        mode: u32,
    },
    /// Writes, and sets the mtime back to what it was.
    Disguise {
        file: usize,
        byte: u8,
    },
    Create {
        file: usize,
    },
    Remove {
        file: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Getattr,
    Access,
    Lookup,
}

#[derive(Clone, Debug)]
enum Step {
    Others(Change),
    Ours(Change),
    OpenAndRead {
        uid: u32,
        file: usize,
        how: How,
        offset: u64,
        length: u32,
    },
    ReadOn {
        uid: u32,
        file: usize,
        offset: u64,
        length: u32,
    },
    Look {
        file: usize,
    },
    List,
    Ask {
        uid: u32,
        file: usize,
    },
    Wait {
        micros: u64,
    },
    Flush,
    Kill,
    /// Kills the cache after the change has taken effect at the origin and before its reply.
    KillDuring(Change),
    Forgetful(bool),
}

fn change() -> impl Strategy<Value = Change> {
    let file = 0..NAMES.len();
    prop_oneof![
        4 => (file.clone(), 0..20_000u64, any::<u8>(), 1..9000usize)
            .prop_map(|(file, offset, byte, length)| Change::Write { file, offset, byte, length }),
        1 => (file.clone(), 0..20_000u64).prop_map(|(file, size)| Change::Cut { file, size }),
        1 => (file.clone(), prop::sample::select(vec![0o644, 0o600, 0o604, 0]))
            .prop_map(|(file, mode)| Change::Mode { file, mode }),
        1 => (file.clone(), any::<u8>()).prop_map(|(file, byte)| Change::Disguise { file, byte }),
        2 => file.clone().prop_map(|file| Change::Create { file }),
        1 => file.clone().prop_map(|file| Change::Remove { file }),
        2 => (file.clone(), file.clone()).prop_map(|(from, to)| Change::Rename { from, to }),
        1 => (file.clone(), file).prop_map(|(from, to)| Change::Link { from, to }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..NAMES.len();
    let how = prop::sample::select(vec![How::Getattr, How::Access, How::Lookup]);
    let uid = prop::sample::select(vec![0u32, 7, 8]);
    let (offset, length) = (0..20_000u64, 1..12_000u32);
    prop_oneof![
        4 => change().prop_map(Step::Others),
        4 => change().prop_map(Step::Ours),
        8 => (uid.clone(), file.clone(), how, offset.clone(), length.clone())
            .prop_map(|(uid, file, how, offset, length)| Step::OpenAndRead { uid, file, how, offset, length }),
        3 => (uid.clone(), file.clone(), offset, length)
            .prop_map(|(uid, file, offset, length)| Step::ReadOn { uid, file, offset, length }),
        3 => file.clone().prop_map(|file| Step::Look { file }),
        2 => Just(Step::List),
        1 => (uid, file).prop_map(|(uid, file)| Step::Ask { uid, file }),
        3 => (0..30_000u64).prop_map(|micros| Step::Wait { micros }),
        1 => (1..8u64).prop_map(|seconds| Step::Wait { micros: seconds * 1_000_000 }),
        2 => Just(Step::Flush),
        1 => Just(Step::Kill),
        1 => change().prop_map(Step::KillDuring),
        1 => any::<bool>().prop_map(Step::Forgetful),
    ]
}

/// The cache fetches ahead of readers, and each flush brings all idle objects to rest.
fn options(bench: &Bench) -> cache::Options {
    cache::Options { objects_in_memory_max: 0, ..bench.eager() }
}

struct World {
    bench: Bench,
    cache: Option<Arc<Cache>>,
    /// The version of each file at the last open through this cache.
    opened: HashMap<u64, usize>,
}

impl World {
    async fn new(behind: Option<WriteBehind>) -> World {
        let bench = Bench { behind, ..Bench::over(Origin::with_granularity(GRANULARITY)) };
        bench.origin.put(&root(), NAMES[0], &vec![1; 10_000]);
        let cache = Some(bench.open_with(options(&bench)).await);
        World { bench, cache, opened: HashMap::new() }
    }

    fn cache(&self) -> &Arc<Cache> {
        self.cache.as_ref().unwrap()
    }

    fn truth(&self, file: usize) -> Option<Handle> {
        let tree = self.bench.origin.tree();
        tree.get(&root()).unwrap().names.get(&name(NAMES[file])).map(|(id, _)| handle(*id))
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Others(change) => {
                tokio::time::advance(GRANULARITY).await;
                self.others(change);
                tokio::time::advance(GRANULARITY).await;
            }
            Step::Ours(change) => self.ours(change).await,
            Step::OpenAndRead { uid, file, how, offset, length } => {
                self.open_and_read(*uid, *file, *how, *offset, *length).await;
            }
            Step::ReadOn { uid, file, offset, length } => self.read_on(*uid, *file, *offset, *length).await,
            Step::Look { file } => {
                self.look(*file).await;
            }
            Step::List => self.list().await,
            Step::Ask { uid, file } => self.ask(*uid, *file).await,
            Step::Wait { micros } => tokio::time::advance(Duration::from_micros(*micros)).await,
            Step::Flush => self.cache().flush().await,
            Step::Kill => {
                let killed = self.bench.killed();
                self.go_on_with(killed).await;
            }
            Step::KillDuring(change) => {
                let killed = self.bench.killed_at_next_call();
                self.ours(change).await;
                let happened = self.bench.origin.after_effect.lock().take().is_none();
                let killed = if happened { killed } else { self.bench.killed() };
                self.go_on_with(killed).await;
            }
            Step::Forgetful(without) => {
                self.bench.origin.without_before.store(*without, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    async fn go_on_with(&mut self, killed: Bench) {
        drop(self.cache.take());
        self.cache = Some(killed.open_with(options(&killed)).await);
        self.bench = killed;
    }

    fn others(&self, change: &Change) {
        let file = |file: &usize| self.truth(*file);
        let origin = &self.bench.origin;
        match change {
            Change::Write { file: at, offset, byte, length } => {
                if let Some(file) = file(at) {
                    origin.tree().write(&file, *offset, &vec![*byte; *length]).unwrap();
                }
            }
            Change::Cut { file: at, size } => {
                if let Some(file) = file(at) {
                    let set = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                    origin.tree().setattr(&file, &set, None).unwrap();
                }
            }
            Change::Mode { file: at, mode } => {
                if let Some(file) = file(at) {
                    let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                    origin.tree().setattr(&file, &set, None).unwrap();
                }
            }
            Change::Disguise { file: at, byte } => {
                if let Some(file) = file(at) {
                    let mut tree = origin.tree();
                    let mtime = tree.get(&file).unwrap().attributes.mtime;
                    tree.write(&file, 0, &[*byte]).unwrap();
                    let set =
                        SetAttributes { mtime: Some(SetTime::Client(mtime)), ..SetAttributes::default() };
                    tree.setattr(&file, &set, None).unwrap();
                }
            }
            Change::Create { file } => {
                let (how, set) = (CreateHow::Guarded, SetAttributes::default());
                let _ = origin.tree().make(&root(), &name(NAMES[*file]), FileType::Regular, how, &set, b"");
            }
            Change::Remove { file } => {
                let _ = origin.tree().remove(&root(), &name(NAMES[*file]), false);
            }
            Change::Rename { from, to } => {
                let _ = origin.tree().rename((&root(), &name(NAMES[*from])), (&root(), &name(NAMES[*to])));
            }
            Change::Link { from, to } => {
                if let Some(file) = file(from) {
                    let _ = origin.tree().link(&file, &root(), &name(NAMES[*to]));
                }
            }
        }
    }

    async fn ours(&self, change: &Change) {
        let (cache, user) = (self.cache(), opener(0));
        let set = SetAttributes::default();
        match change {
            Change::Write { file, offset, byte, length } => {
                if let Some(file) = self.truth(*file) {
                    write(cache, &user, &file, *offset, &vec![*byte; *length]).await;
                    if self.bench.behind.is_some() {
                        cache.commit(&user, &file, 0, 0).await.unwrap();
                    }
                }
            }
            Change::Cut { file, size } => {
                if let Some(file) = self.truth(*file) {
                    let set = SetAttributes { size: Some(*size), ..set };
                    cache.setattr(&user, &file, &set, None).await.unwrap();
                }
            }
            Change::Mode { file, mode } => {
                if let Some(file) = self.truth(*file) {
                    let set = SetAttributes { mode: Some(*mode), ..set };
                    cache.setattr(&user, &file, &set, None).await.unwrap();
                }
            }
            Change::Disguise { file, .. } => {
                if let Some(file) = self.truth(*file) {
                    let mtime = Some(SetTime::Client(Timestamp::new(1_000_000_000, 5)));
                    cache.setattr(&user, &file, &SetAttributes { mtime, ..set }, None).await.unwrap();
                }
            }
            Change::Create { file } => {
                let set = SetAttributes { size: Some(0), ..set };
                cache.create(&user, &root(), &name(NAMES[*file]), CreateHow::Unchecked, &set).await.unwrap();
            }
            Change::Remove { file } => {
                let there = self.truth(*file).is_some();
                let removed = cache.remove(&user, &root(), &name(NAMES[*file])).await;
                assert_eq!(removed.is_ok(), there);
            }
            Change::Rename { from, to } => {
                let there = self.truth(*from).is_some();
                let renamed =
                    cache.rename(&user, &root(), &name(NAMES[*from]), &root(), &name(NAMES[*to])).await;
                assert_eq!(renamed.is_ok(), there);
            }
            Change::Link { from, to } => {
                if let Some(file) = self.truth(*from) {
                    let _ = cache.link(&user, &file, &root(), &name(NAMES[*to])).await;
                }
            }
        }
    }

    async fn look(&mut self, file: usize) -> Option<Handle> {
        let truth = self.truth(file);
        let found = match self.cache().lookup(&opener(0), &root(), &name(NAMES[file]), vfs::Want::None).await
        {
            Ok(found) => Some(found.node),
            Err(error) => {
                assert_eq!(error.status, Status::NoEnt);
                None
            }
        };
        assert_eq!(found.map(|node| node.handle), truth, "what {} leads to", NAMES[file]);
        let node = found?;
        if let Some(attributes) = node.attributes {
            let there = self.bench.origin.tree().get(&node.handle).unwrap().attributes;
            assert_eq!(attributes, there);
        }
        self.note_open(&node.handle);
        Some(node.handle)
    }

    fn note_open(&mut self, file: &Handle) {
        let tree = self.bench.origin.tree();
        let id = tree.id(file).unwrap();
        self.opened.insert(id, tree.history[&id].len() - 1);
    }

    async fn open_and_read(&mut self, uid: u32, file: usize, how: How, offset: u64, length: u32) {
        let Some(file) = self.truth(file).map(|_| file) else { return };
        let file = match how {
            How::Lookup => self.look(file).await.unwrap(),
            How::Getattr | How::Access => self.truth(file).unwrap(),
        };
        let user = opener(uid);
        match how {
            How::Getattr => {
                let there = self.bench.origin.tree().get(&file).unwrap().attributes;
                assert_eq!(self.cache().getattr(&user, &file).await.unwrap(), there);
            }
            How::Access => self.check_access(uid, &file).await,
            How::Lookup => {}
        }
        self.note_open(&file);
        let expected = self.bench.origin.tree().read(&user.principal, &file, offset, length);
        let found = self.cache().read(&user, &file, StateidBasis::Anonymous, offset, length).await;
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                let (expected_bytes, bytes) =
                    (expected.data.to_bytes().unwrap(), found.data.to_bytes().unwrap());
                assert!(
                    bytes == expected_bytes,
                    "stale: {} for {}",
                    summary(&bytes),
                    summary(&expected_bytes)
                );
                assert_eq!(found.eof, expected.eof);
            }
            // A remembered right may have been withdrawn since. A refusal is always asked again.
            (Err(_), Ok(_)) => {}
            (Err(expected), Err(found)) => assert_eq!(found.status, expected.status),
            (Ok(_), Err(error)) => panic!("refused: {error}"),
        }
    }

    /// Reads without an open: the result is the version at the last open, or a later one.
    async fn read_on(&self, uid: u32, file: usize, offset: u64, length: u32) {
        let Some(file) = self.truth(file) else { return };
        if self.bench.origin.tree().read(&opener(uid).principal, &file, offset, length).is_err() {
            return;
        }
        let bytes = read(self.cache(), &opener(uid), &file, offset, length).await;
        let tree = self.bench.origin.tree();
        let id = tree.id(&file).unwrap();
        let since = self.opened.get(&id).copied().unwrap_or_default();
        let held = |version: &Version| {
            let size = version.data.len() as u64;
            let range = offset.min(size)..(offset + u64::from(length)).min(size);
            version.data[range.start as usize..range.end as usize] == bytes[..]
        };
        assert!(tree.history[&id][since..].iter().any(held), "bytes that never were: {}", summary(&bytes));
    }

    async fn check_access(&self, uid: u32, file: &Handle) {
        let truth = self.bench.origin.tree().allowed(&opener(uid).principal, file).unwrap();
        let accessed = self.cache().access(&opener(uid), file, AccessMask::all()).await.unwrap();
        assert_eq!(accessed.granted, truth);
    }

    async fn ask(&self, uid: u32, file: usize) {
        if let Some(file) = self.truth(file) {
            self.check_access(uid, &file).await;
        }
    }

    async fn list(&self) {
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes: 64,
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        };
        let mut found = Vec::new();
        loop {
            let listing = self.cache().readdir(&opener(0), &root(), part).await.unwrap();
            for entry in &listing.entries {
                found.push((entry.name.clone(), entry.node.unwrap().handle));
                part.cookie = entry.cookie;
            }
            part.verifier = listing.verifier;
            if listing.eof {
                break;
            }
        }
        found.sort();
        let tree = self.bench.origin.tree();
        let there = tree.get(&root()).unwrap().names.iter();
        let there: Vec<_> = there.map(|(name, (id, _))| (name.clone(), handle(*id))).collect();
        assert_eq!(found, there);
    }
}

/// The runs of equal bytes, as text.
fn summary(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|a, b| a == b).map(|run| format!("{}x{}", run.len(), run[0]));
    runs.collect::<Vec<_>>().join(" ")
}

fn run(steps: &[Step], behind: Option<WriteBehind>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(behind).await;
        for step in steps {
            world.step(step).await;
        }
    });
}

/// A few dozen cases; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 32 };
    ProptestConfig { cases, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_open_shows_what_is_there(steps in prop::collection::vec(step(), 1..150)) {
        run(&steps, None);
    }

    /// The same with delayed writes, if each is followed by fsync.
    // Promise: order-at-the-origin
    #[test]
    fn an_open_shows_what_is_there_behind_delayed_writes(steps in prop::collection::vec(step(), 1..150)) {
        run(&steps, Some(WriteBehind { wsize: 4096, ..WriteBehind::default() }));
    }
}
