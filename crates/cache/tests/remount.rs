//! Walks after a remount: names are known from the pass before, and nothing is believed.
//!
//! Promise: guesses

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::Cache;
use origin::state::Policy;
use origin::{Bench, name, open_request, root, until, v4, v4_opener, whole};
use tokio::time::Instant;
use vfs::{
    FileSystem, FileType, Freshness, Handle, LeaseKind, LocalView, Opens, Share, StateidBasis, Status, Want,
};

const SECOND: Duration = Duration::from_secs(1);
const FILES: usize = 12;
/// All files have more bytes than may be guessed at first.
const FILE_BYTES: usize = 8 << 10;
const DIRECTORIES: usize = 15;
const LEASES: Policy = Policy::Always(LeaseKind::Read);

/// The programs of a mount: what a kernel asks of it, with the kernel's cache of names.
struct Mount {
    bench: Bench,
    cache: Arc<Cache>,
    /// The names that the kernel believes, and until when.
    names: HashMap<String, (Handle, Instant)>,
    round_trip: Duration,
}

/// What a pass took.
#[derive(Debug)]
struct Cost {
    round_trips: f64,
    calls: BTreeMap<&'static str, u64>,
    /// Guesses that no reader has used.
    unused: u64,
}

impl Cost {
    fn all(&self) -> u64 {
        self.calls.values().sum()
    }
}

impl Mount {
    async fn new(policy: Policy, round_trip: Duration) -> Mount {
        let bench = Bench::with_state(policy);
        bench.origin.state.lock().directories = policy != Policy::Never;
        put_sources(&bench);
        bench.origin.pass(10 * SECOND);
        bench.origin.delay.store(round_trip.as_micros() as u64, Ordering::Relaxed);
        let cache = bench.open_with(bench.eager()).await;
        bench.origin.calls();
        Mount { bench, cache, names: HashMap::new(), round_trip }
    }

    /// The same after a remount.
    async fn again(self) -> Mount {
        self.cache.prepare_shutdown();
        self.cache.shutdown().await;
        let Mount { bench, round_trip, cache, .. } = self;
        drop(cache);
        bench.origin.pass(10 * SECOND);
        let cache = bench.open_with(bench.eager()).await;
        tokio::time::sleep(10 * SECOND).await;
        bench.origin.calls();
        Mount { bench, cache, names: HashMap::new(), round_trip }
    }

    fn believe(&mut self, path: &str, handle: Handle) {
        let until = self.cache.believed_until(&handle).unwrap_or_else(Instant::now);
        self.names.insert(path.to_owned(), (handle, until));
    }

    async fn resolve(&mut self, path: &str) -> Result<Handle, Status> {
        let mut at = root();
        for end in path.match_indices('/').map(|(end, _)| end).chain([path.len()]) {
            let (path, now) = (&path[..end], Instant::now());
            let known = self.names.get(path).filter(|(_, until)| *until > now);
            at = if let Some((handle, _)) = known {
                *handle
            } else {
                let caller = v4(0, 1).with_freshness(Freshness::Recent);
                let text = name(path.rsplit('/').next().unwrap());
                let found = self.cache.lookup(&caller, &at, &text, Want::None).await;
                let handle = found.map_err(|error| error.status)?.node.handle;
                self.believe(path, handle);
                handle
            };
        }
        Ok(at)
    }

    async fn stat(&mut self, path: &str) -> Result<(), Status> {
        self.resolve(path).await.map(drop)
    }

    /// Lists a directory. Returns the names, and whether each is a directory.
    async fn list(&mut self, path: &str) -> Vec<(String, bool)> {
        let directory = self.resolve(path).await.unwrap();
        let opening = v4(0, 1).with_freshness(Freshness::Open);
        self.cache.getattr(&opening, &directory).await.unwrap();
        let listing = self.cache.readdir(&v4(0, 1), &directory, whole(true)).await.unwrap();
        assert!(listing.eof);
        let mut names = Vec::new();
        for entry in listing.entries {
            let text = entry.name.to_string();
            let attributes = entry.node.and_then(|node| node.attributes);
            let kind = attributes.map(|known| known.file_type).or(entry.file_type);
            let is_dir = kind.expect("a type is known") == FileType::Directory;
            if let Some(node) = entry.node.filter(|node| node.attributes.is_some()) {
                self.believe(&format!("{path}/{text}"), node.handle);
            }
            names.push((text, is_dir));
        }
        names
    }

    async fn read(&mut self, path: &str) {
        self.resolve(path).await.unwrap();
        let (directory, text) = path.rsplit_once('/').unwrap();
        let directory = self.resolve(directory).await.unwrap();
        let request = open_request(&directory, text, 1, Share::READ);
        let opened = self.cache.open(&v4_opener(0, 1), &request).await.unwrap();
        let by = StateidBasis::Open(opened.id);
        let read = self.cache.read(&v4(0, 1), &opened.handle, by, 0, 1 << 16).await.unwrap();
        assert_eq!(read.data.to_bytes().unwrap(), contents(path));
        self.cache.close(&v4(0, 1), opened.id).await.unwrap();
    }

    /// Visits every directory, depth first, and the files of each before the directories in it.
    async fn visit(&mut self, stats: bool, reads: bool) {
        let mut stack = vec!["tree".to_owned()];
        while let Some(directory) = stack.pop() {
            let mut below = Vec::new();
            for (text, is_dir) in self.list(&directory).await {
                let path = format!("{directory}/{text}");
                if is_dir {
                    below.push(path);
                    continue;
                }
                if stats {
                    self.stat(&path).await.unwrap();
                }
                if reads {
                    self.read(&path).await;
                }
            }
            below.reverse();
            stack.append(&mut below);
        }
    }

    /// As `git status`: known files in the order of their names, then each directory.
    async fn status(&mut self) {
        for number in 0..DIRECTORIES {
            for file in 0..FILES {
                self.stat(&format!("{}/f{file:02}", directory(number))).await.unwrap();
            }
        }
        for number in 0..DIRECTORIES {
            let directory = directory(number);
            let excluded = self.stat(&format!("{directory}/.gitignore")).await;
            assert_eq!(excluded, Err(Status::NoEnt));
            self.list(&directory).await;
        }
    }

    async fn cost(&mut self, program: Program) -> Cost {
        self.bench.origin.calls();
        let (started, before) = (Instant::now(), self.cache.stats());
        match program {
            Program::Find => self.visit(false, false).await,
            Program::Status => self.status().await,
            Program::Grep => self.visit(false, true).await,
            Program::Tar => self.visit(true, true).await,
        }
        let took = started.elapsed();
        tokio::time::sleep(SECOND).await;
        let stats = self.cache.stats();
        let unused =
            (stats.guesses - before.guesses).saturating_sub(stats.guesses_used - before.guesses_used);
        let round_trips = took.as_secs_f64() / self.round_trip.as_secs_f64();
        Cost { round_trips, calls: self.bench.origin.calls().into_iter().collect(), unused }
    }
}

#[derive(Clone, Copy, Debug)]
enum Program {
    Find,
    Status,
    Grep,
    Tar,
}

fn directory(number: usize) -> String {
    match number {
        0 => "tree".to_owned(),
        _ if number.is_multiple_of(3) => format!("tree/d{:03}", number / 3),
        _ => format!("tree/d{:03}/e{number:03}", number / 3),
    }
}

fn contents(path: &str) -> Vec<u8> {
    path.bytes().cycle().take(FILE_BYTES).collect()
}

fn put_sources(bench: &Bench) {
    let mut made = HashMap::new();
    for number in 0..DIRECTORIES {
        let path = directory(number);
        let mut at = root();
        for end in path.match_indices('/').map(|(end, _)| end).chain([path.len()]) {
            let path = &path[..end];
            let text = path.rsplit('/').next().unwrap();
            at = *made.entry(path.to_owned()).or_insert_with(|| bench.origin.put_dir(&at, text));
        }
        for file in 0..FILES {
            let text = format!("f{file:02}");
            bench.origin.put(&at, &text, &contents(&format!("{path}/{text}")));
        }
    }
}

/// After a remount, no program is slower than the first time, at any distance. Its guesses are used.
#[tokio::test(start_paused = true)]
async fn a_walk_after_a_remount_is_as_fast_as_a_cold_one() {
    for (program, most) in
        [(Program::Find, 5.5), (Program::Status, 7.5), (Program::Grep, 14.5), (Program::Tar, 14.5)]
    {
        for millis in [20, 75, 200] {
            let mut mount = Mount::new(LEASES, Duration::from_millis(millis)).await;
            let cold = mount.cost(program).await;
            let mut mount = mount.again().await;
            let again = mount.cost(program).await;
            let told = format!("{program:?} {millis} ms: cold {cold:?}, after a remount {again:?}");
            assert!(again.round_trips <= cold.round_trips + 1.5, "{told}");
            assert!(again.round_trips <= most && again.all() <= cold.all() + 2, "{told}");
            assert!(cold.unused * 10 <= cold.all() && again.unused * 10 <= again.all(), "{told}");
        }
    }
}

/// An origin that grants no leases is asked for few, and a walk after a remount costs no more than the first.
#[tokio::test(start_paused = true)]
async fn a_walk_after_a_remount_costs_no_more_without_leases() {
    for program in [Program::Find, Program::Status] {
        let mut mount = Mount::new(Policy::Never, Duration::from_millis(40)).await;
        let cold = mount.cost(program).await;
        let mut mount = mount.again().await;
        let again = mount.cost(program).await;
        let told = format!("{program:?}: cold {cold:?}, after a remount {again:?}");
        assert!(again.round_trips <= cold.round_trips + 1.0 && again.all() <= cold.all(), "{told}");
        assert!(again.unused * 10 <= again.all(), "{told}");
    }
}

/// The names of directories are remembered, so a reader that only lists them is given no attributes. Guesses
/// bring the leases of the directories ahead of it all the same.
#[tokio::test(start_paused = true)]
async fn directories_that_are_listed_without_attributes_come_ahead() {
    let mut mount = Mount::new(LEASES, Duration::from_millis(75)).await;
    mount.cost(Program::Find).await;
    let leased: Vec<Handle> = mount.names.values().map(|(handle, _)| *handle).collect();
    for handle in leased.iter().filter(|handle| mount.bench.origin.lease(handle).is_some()) {
        mount.bench.origin.recall(handle);
    }
    let origin = mount.bench.origin.clone();
    until(|| leased.iter().all(|handle| origin.lease(handle).is_none())).await;
    tokio::time::sleep(10 * SECOND).await;
    let again = mount.cost(Program::Find).await;
    assert!(again.round_trips <= 6.5 && again.unused * 10 <= again.all(), "{again:?}");
}
