//! opendir(3) on a mount of an origin that gives no leases: one call for each directory, which sees what
//! others have changed before.
//!
//! Promise: guesses

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::{Cache, Options};
use origin::state::Policy;
use origin::{Bench, name, root, v4, whole};
use tokio::time::Instant;
use vfs::{
    AccessMask, Attributes, Caller, Entry, FileSystem, Freshness, Handle, LeaseKind, SetAttributes, Want,
};

const SECOND: Duration = Duration::from_secs(1);
const ROUND_TRIP: Duration = Duration::from_millis(40);
const DIRECTORIES: usize = 30;
const FILES: usize = 20;
/// Round trips that a program may wait for besides one for each directory: until it is known how it walks.
const FIRST: u32 = 6;

/// A tree of directories with files in them. Every call takes a round trip.
struct Setting {
    bench: Bench,
    cache: Arc<Cache>,
    directories: Vec<Handle>,
}

/// What a program does with the directories that it opens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    /// It lists the names, as `find` without conditions does.
    Names,
    /// It asks for the attributes of each file, as `find -ls` does.
    Attributes,
}

impl Setting {
    async fn new() -> Setting {
        let bench = Bench::with_state(Policy::Never);
        let mut directories = Vec::new();
        for n in 0..DIRECTORIES {
            let directory = bench.origin.put_dir(&root(), &format!("d{n:02}"));
            for n in 0..FILES {
                bench.origin.put(&directory, &format!("f{n:02}"), b"contents");
            }
            directories.push(directory);
        }
        bench.origin.pass(100 * SECOND);
        bench.origin.delay.store(ROUND_TRIP.as_micros() as u64, Ordering::Relaxed);
        let cache = bench.open_with(options(&bench)).await;
        Setting { bench, cache, directories }
    }

    async fn restarted(self) -> Setting {
        self.cache.prepare_shutdown();
        self.cache.shutdown().await;
        let Setting { bench, cache, directories } = self;
        drop(cache);
        tokio::time::sleep(10 * SECOND).await;
        bench.origin.calls();
        let cache = bench.open_with(options(&bench)).await;
        Setting { bench, cache, directories }
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.bench.origin.calls().into_iter().collect()
    }

    async fn open(&self, directory: &Handle) -> Attributes {
        self.cache.getattr(&v4(0, 1).with_freshness(Freshness::Open), directory).await.unwrap()
    }

    async fn list(&self, directory: &Handle) -> Vec<Entry> {
        self.cache.readdir(&v4(0, 1), directory, whole(true)).await.unwrap().entries
    }

    /// A program goes through the tree. As the kernel does, it looks up what came without attributes.
    async fn walk(&self, program: Program) -> Duration {
        let started = Instant::now();
        self.go_into(&root(), program).await;
        for directory in &self.directories {
            assert_eq!(self.go_into(directory, program).await, FILES);
        }
        started.elapsed()
    }

    async fn go_into(&self, directory: &Handle, program: Program) -> usize {
        self.open(directory).await;
        let entries = self.list(directory).await;
        for entry in entries.iter().filter(|_| program == Program::Attributes) {
            if entry.node.is_none_or(|node| node.attributes.is_none()) {
                let stat = Caller { freshness: Freshness::Recent, ..v4(0, 1) };
                self.cache.lookup(&stat, directory, &entry.name, Want::None).await.unwrap();
            }
        }
        entries.len()
    }
}

fn options(bench: &Bench) -> Options {
    Options { prefetch_max_bytes: 64 << 20, ..bench.options() }
}

/// So many round trips, and the first ones.
fn round_trips(count: usize) -> Duration {
    ROUND_TRIP * (count as u32 + FIRST)
}

/// The listing, the attributes of the files and those of the directory come in one round trip, and nothing
/// is asked in vain.
#[tokio::test(start_paused = true)]
async fn a_directory_that_nothing_is_known_of_costs_a_listing() {
    let setting = Setting::new().await;
    let elapsed = setting.walk(Program::Attributes).await;
    let calls = setting.calls();
    assert!(elapsed <= round_trips(DIRECTORIES), "{elapsed:?}: {calls:?}");
    let all = DIRECTORIES as u64 + 1;
    assert_eq!(calls["READDIR"], all, "{calls:?}");
    // At first it is not known that the origin gives no leases.
    assert!(calls["ACCESS"] <= all + 1 && calls["GETATTR"] <= 12, "{calls:?}");
}

/// That the origin gives no leases is remembered, so the next process makes no guesses for their sake. It
/// still notices if the origin gives them one day.
#[tokio::test(start_paused = true)]
async fn after_a_restart_no_leases_are_expected() {
    let setting = Setting::new().await;
    setting.walk(Program::Attributes).await;
    let setting = setting.restarted().await;
    let elapsed = setting.walk(Program::Attributes).await;
    let calls = setting.calls();
    assert!(elapsed <= round_trips(DIRECTORIES), "{elapsed:?}: {calls:?}");
    let made: u64 = calls.values().sum();
    assert!(made <= DIRECTORIES as u64 + u64::from(FIRST), "{calls:?}");
    let setting = setting.restarted().await;
    {
        let mut state = setting.bench.origin.state.lock();
        (state.policy, state.directories) = (Some(Policy::Always(LeaseKind::Read)), true);
    }
    for _ in 0..3 {
        tokio::time::sleep(70 * SECOND).await;
        setting.walk(Program::Attributes).await;
    }
    setting.calls();
    setting.walk(Program::Names).await;
    assert_eq!(setting.calls(), BTreeMap::new(), "all directories are leased");
}

/// When the attributes of the files are out of date, one call brings all of them again.
#[tokio::test(start_paused = true)]
async fn a_further_pass_costs_a_call_for_each_directory() {
    let setting = Setting::new().await;
    setting.walk(Program::Attributes).await;
    for _ in 0..3 {
        tokio::time::sleep(20 * SECOND).await;
        setting.calls();
        let elapsed = setting.walk(Program::Attributes).await;
        let calls = setting.calls();
        assert!(elapsed <= round_trips(DIRECTORIES), "{elapsed:?}: {calls:?}");
        // Rights are asked for beside it once a minute.
        let made: u64 = calls.iter().filter(|(call, _)| **call != "ACCESS").map(|(_, made)| made).sum();
        assert!(made <= DIRECTORIES as u64 + u64::from(FIRST), "{calls:?}");
    }
}

/// A program that wants names alone is not sent the attributes of all files again.
#[tokio::test(start_paused = true)]
async fn names_that_are_known_are_not_listed_again() {
    let setting = Setting::new().await;
    setting.walk(Program::Attributes).await;
    tokio::time::sleep(20 * SECOND).await;
    setting.walk(Program::Attributes).await;
    tokio::time::sleep(20 * SECOND).await;
    setting.calls();
    let elapsed = setting.walk(Program::Names).await;
    let calls = setting.calls();
    assert!(elapsed <= round_trips(DIRECTORIES), "{elapsed:?}: {calls:?}");
    let listed = calls.get("READDIR").copied().unwrap_or(0);
    assert!(listed <= 2 && calls["GETATTR"] >= DIRECTORIES as u64 - 2, "{calls:?}");
}

/// One that opens a directory here and there pays a GETATTR, as it would without read-ahead.
#[tokio::test(start_paused = true)]
async fn one_that_opens_directories_at_random_lists_none() {
    let setting = Setting::new().await;
    for n in [3, 17, 9, 21, 5] {
        setting.open(&setting.directories[n]).await;
        tokio::time::sleep(SECOND).await;
    }
    let calls = setting.calls();
    assert!(!calls.contains_key("READDIR"), "{calls:?}");
}

/// Each open sees what another client made before it, whatever is known or on its way.
#[tokio::test(start_paused = true)]
async fn an_open_sees_what_was_made_before_it() {
    let setting = Setting::new().await;
    for pass in 0..3 {
        for (n, directory) in std::iter::once(&root()).chain(&setting.directories).enumerate() {
            let text = format!("new{pass}");
            setting.bench.origin.put(directory, &text, b"new");
            setting.open(directory).await;
            let listed = setting.list(directory).await;
            assert!(listed.iter().any(|entry| entry.name == name(&text)), "pass {pass}, directory {n}");
        }
        tokio::time::sleep(5 * SECOND).await;
    }
}

/// A listing that was asked for before an open does not answer it.
#[tokio::test(start_paused = true)]
async fn an_open_is_not_answered_from_a_listing_sent_before_it() {
    let setting = Arc::new(Setting::new().await);
    for directory in std::iter::once(&root()).chain(&setting.directories[..20]) {
        setting.go_into(directory, Program::Attributes).await;
    }
    let directory = setting.directories[20];
    let gate = setting.bench.origin.gate("READDIR");
    let opening = |setting: Arc<Setting>| tokio::spawn(async move { setting.open(&directory).await });
    let first = opening(setting.clone());
    gate.wait_for(1).await;
    gate.admit(1);
    // The listing has been read at the origin, and its reply is on the way.
    tokio::time::sleep(ROUND_TRIP * 2).await;
    setting.bench.origin.put(&directory, "new", b"new");
    let second = opening(setting.clone());
    tokio::time::sleep(ROUND_TRIP).await;
    gate.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(second.change > first.change, "the second open came after the change");
    let listed = setting.list(&directory).await;
    assert!(listed.iter().any(|entry| entry.name == name("new")));
}

/// The origin delays a listing, perhaps until a lease on one of the files is back. That delays no open and no
/// `stat` for long.
#[tokio::test(start_paused = true)]
async fn a_listing_that_hangs_delays_an_open_by_two_seconds() {
    let setting = Setting::new().await;
    for directory in std::iter::once(&root()).chain(&setting.directories[..20]) {
        setting.go_into(directory, Program::Attributes).await;
    }
    let gate = setting.bench.origin.gate("READDIR");
    let started = Instant::now();
    setting.open(&setting.directories[20]).await;
    assert!(started.elapsed() <= 2 * SECOND + 2 * ROUND_TRIP, "{:?}", started.elapsed());
    gate.wait_for(1).await;
    // Their attributes are out of date by then. The second one asks for the listing of its directory.
    tokio::time::sleep(20 * SECOND).await;
    for text in ["f00", "f01", "f02"] {
        let stat = Caller { freshness: Freshness::Recent, ..v4(0, 1) };
        let started = Instant::now();
        setting.cache.lookup(&stat, &setting.directories[3], &name(text), Want::None).await.unwrap();
        assert!(started.elapsed() <= 4 * SECOND + 4 * ROUND_TRIP, "{text}: {:?}", started.elapsed());
    }
}

/// A directory that may not be read is opened by a GETATTR each time.
#[tokio::test(start_paused = true)]
async fn a_directory_that_may_not_be_read_is_not_listed() {
    let setting = Setting::new().await;
    let closed = setting.directories[20];
    let mode = SetAttributes { mode: Some(0o711), ..SetAttributes::default() };
    setting.bench.origin.tree().setattr(&closed, &mode, None).unwrap();
    setting.bench.origin.pass(10 * SECOND);
    let user = Caller { freshness: Freshness::Open, ..v4(7, 1) };
    for directory in std::iter::once(&root()).chain(&setting.directories[..20]) {
        setting.cache.getattr(&user, directory).await.unwrap();
    }
    setting.cache.access(&v4(7, 1), &closed, AccessMask::READ).await.unwrap();
    setting.calls();
    for _ in 0..3 {
        tokio::time::sleep(5 * SECOND).await;
        setting.cache.getattr(&user, &closed).await.unwrap();
    }
    let calls = setting.calls();
    assert!(!calls.contains_key("READDIR") && calls.values().sum::<u64>() == 3, "{calls:?}");
}

/// A listing that does not fit into one reply is not begun at each open.
#[tokio::test(start_paused = true)]
async fn a_directory_that_is_larger_than_its_size_tells_is_listed_at_an_open_once() {
    let setting = Setting::new().await;
    let large = setting.directories[20];
    for n in 0..3000 {
        setting.bench.origin.put(&large, &format!("n{n:04}"), b"");
    }
    setting.bench.origin.pass(10 * SECOND);
    for directory in std::iter::once(&root()).chain(&setting.directories[..20]) {
        setting.go_into(directory, Program::Attributes).await;
    }
    setting.calls();
    for _ in 0..4 {
        setting.open(&large).await;
        tokio::time::sleep(5 * SECOND).await;
    }
    let calls = setting.calls();
    assert!(calls["READDIR"] == 1 && calls["GETATTR"] == 3, "{calls:?}");
}

/// A reader goes through the tree in any order, again and again, while others make and remove files. Each
/// open shows what was there before it, and a name is absent for a second at most after it was made.
#[tokio::test(start_paused = true)]
async fn no_open_shows_less_than_was_there() {
    for seed in 0..40 {
        interleaved(seed).await;
    }
}

async fn interleaved(seed: u64) {
    let setting = Setting::new().await;
    let origin = setting.bench.origin.clone();
    origin.seed.store(seed, Ordering::Relaxed);
    let random = |below: usize| origin.random() as usize % below;
    let mut made: BTreeMap<(usize, String), Instant> = BTreeMap::new();
    let (mut at, mut count) = (0, 0);
    for step in 0..400 {
        match random(10) {
            0..3 => {
                // Near the reader, so that it comes there soon, or to where it has just been.
                let near = (at + random(5)).saturating_sub(2).min(DIRECTORIES - 1);
                count += 1;
                let text = format!("new{count}");
                origin.put(&setting.directories[near], &text, b"new");
                made.insert((near, text), Instant::now());
            }
            3 if !made.is_empty() => {
                let (near, text) = made.keys().nth(random(made.len())).unwrap().clone();
                origin.tree().remove(&setting.directories[near], &name(&text), false).unwrap();
                made.remove(&(near, text));
            }
            4 => tokio::time::sleep(Duration::from_millis(random(5000) as u64)).await,
            5 => at = random(DIRECTORIES),
            6 => {
                let known = made.keys().find(|(of, _)| *of == at).cloned();
                let Some((_, text)) = known else { continue };
                let stat = Caller { freshness: Freshness::Recent, ..v4(0, 1) };
                let directory = &setting.directories[at];
                let before = Instant::now();
                let found = setting.cache.lookup(&stat, directory, &name(&text), Want::None).await;
                let age = before - made[&(at, text.clone())];
                assert!(found.is_ok() || age <= SECOND, "seed {seed}, step {step}: {text}, made {age:?} ago");
            }
            _ => {
                let program = if random(3) == 0 { Program::Names } else { Program::Attributes };
                if at == 0 {
                    setting.go_into(&root(), program).await;
                }
                let directory = &setting.directories[at];
                setting.open(directory).await;
                let listed = setting.list(directory).await;
                for ((_, text), _) in made.iter().filter(|((of, _), _)| *of == at) {
                    let has = listed.iter().any(|entry| entry.name == name(text));
                    assert!(has, "seed {seed}, step {step}: {text} is not in directory {at}");
                }
                let stayed = listed.iter().filter(|entry| entry.name.as_bytes().starts_with(b"new"));
                let there = made.keys().filter(|(of, _)| *of == at).count();
                assert_eq!(stayed.count(), there, "seed {seed}, step {step}: directory {at}");
                at = (at + 1) % DIRECTORIES;
            }
        }
    }
}
