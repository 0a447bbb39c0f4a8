//! Files that were opened together: the cache expects them again after a restart.
//!
//! Promise: guesses

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::Cache;
use origin::state::Policy;
use origin::{Bench, name, open_request, root, v4, v4_opener};
use tokio::time::Instant;
use vfs::{FileSystem, Handle, LeaseKind, OpenRequest, Opens, Share, StateidBasis, Status};

const SECOND: Duration = Duration::from_secs(1);
const ROUND_TRIP: Duration = Duration::from_millis(40);
const FILES: usize = 2000;
/// Files that the program opens.
const OPENED: usize = 40;
const LEASES: Policy = Policy::Always(LeaseKind::Read);

/// A large directory, and a program that opens some of its files in an order of its own.
struct Setting {
    bench: Bench,
    cache: Arc<Cache>,
    directory: Handle,
}

/// The waits of a pass, in round trips, and its guesses.
#[derive(Debug)]
struct Cost {
    waits: u128,
    guesses: u64,
    unused: u64,
}

impl Setting {
    async fn new() -> Setting {
        let bench = Bench::with_state(LEASES);
        let directory = bench.origin.put_dir(&root(), "large");
        for n in 0..FILES {
            bench.origin.put(&directory, &text(n), contents(n).as_bytes());
        }
        bench.origin.pass(10 * SECOND);
        bench.origin.delay.store(ROUND_TRIP.as_micros() as u64, Ordering::Relaxed);
        let cache = bench.open_with(bench.eager()).await;
        Setting { bench, cache, directory }
    }

    /// The same after a restart. The data of all files has been evicted.
    async fn restart(self) -> Setting {
        for n in 0..FILES {
            self.cache.drop_data(&self.file(n)).await;
        }
        self.cache.prepare_shutdown();
        self.cache.shutdown().await;
        let Setting { bench, cache, directory } = self;
        drop(cache);
        bench.origin.pass(100 * SECOND);
        tokio::time::sleep(100 * SECOND).await;
        let cache = bench.open_with(bench.eager()).await;
        Setting { bench, cache, directory }
    }

    fn file(&self, n: usize) -> Handle {
        let tree = self.bench.origin.tree();
        tree.lookup(&v4(0, 1).principal, &self.directory, &name(&text(n))).unwrap().node.handle
    }

    async fn read_as(&self, uid: u32, n: usize) -> Result<Vec<u8>, Status> {
        let request: OpenRequest = open_request(&self.directory, &text(n), 1, Share::READ);
        let (opener, reader) = (v4_opener(uid, 1), v4(uid, 1));
        let opened = self.cache.open(&opener, &request).await.map_err(|error| error.status)?;
        let by = StateidBasis::Open(opened.id);
        let read = self.cache.read(&reader, &opened.handle, by, 0, 1 << 16).await.unwrap();
        self.cache.close(&reader, opened.id).await.unwrap();
        Ok(read.data.to_bytes().unwrap().to_vec())
    }

    /// Reads files one after the other.
    async fn run(&self, files: impl Iterator<Item = usize>) -> Cost {
        let (started, before) = (Instant::now(), self.cache.stats());
        for n in files {
            assert_eq!(self.read_as(0, n).await.unwrap(), contents(n).as_bytes());
        }
        let waits = started.elapsed().as_micros() / ROUND_TRIP.as_micros();
        tokio::time::sleep(SECOND).await;
        let stats = self.cache.stats();
        let (guesses, used) = (stats.guesses - before.guesses, stats.guesses_used - before.guesses_used);
        Cost { waits, guesses, unused: guesses.saturating_sub(used) }
    }
}

fn text(n: usize) -> String {
    format!("f{n:04}")
}

fn contents(n: usize) -> String {
    format!("file {n} ").repeat(20)
}

/// The files of a program, in its order: far from each other, and each once.
fn program(number: usize) -> impl Iterator<Item = usize> {
    (0..OPENED).map(move |n| (n * 787 + number * 31) % FILES)
}

/// A program opens the same files as before the restart: they come ahead of it from the second one on.
#[tokio::test(start_paused = true)]
async fn files_that_were_opened_together_come_together() {
    let setting = Setting::new().await;
    let first = setting.run(program(0)).await;
    assert!(first.waits >= OPENED as u128, "{first:?}");
    let setting = setting.restart().await;
    let second = setting.run(program(0)).await;
    assert!(second.waits * 4 <= first.waits, "{first:?}, then {second:?}");
    assert!(second.guesses >= OPENED as u64 - 4 && second.unused <= 1, "{second:?}");
    // Files that are here under a lease need no guess.
    let third = setting.run(program(0)).await;
    assert_eq!((third.waits, third.guesses), (0, 0), "{third:?}");
}

/// The files have changed meanwhile: what comes ahead is their present contents.
#[tokio::test(start_paused = true)]
async fn files_that_have_changed_come_as_they_are_now() {
    let setting = Setting::new().await;
    setting.run(program(0)).await;
    let setting = setting.restart().await;
    for n in program(0) {
        let file = setting.file(n);
        setting.bench.origin.tree().write(&file, 0, b"FILE").unwrap();
    }
    let started = Instant::now();
    for n in program(0) {
        assert_eq!(setting.read_as(0, n).await.unwrap(), contents(n).replacen("file", "FILE", 1).as_bytes());
    }
    assert!(started.elapsed() <= ROUND_TRIP * OPENED as u32 / 4, "{:?}", started.elapsed());
}

/// A reader that opens other files pays for no guess of a file.
#[tokio::test(start_paused = true)]
async fn a_reader_at_random_expects_nothing() {
    let setting = Setting::new().await;
    setting.run(program(0)).await;
    let setting = setting.restart().await;
    setting.bench.origin.calls();
    let mixed = program(0).zip(program(1)).flat_map(|(old, new)| [new, old]).take(20);
    setting.run(mixed).await;
    let opens: u64 =
        setting.bench.origin.calls().iter().filter(|call| call.0 == "OPEN").map(|call| call.1).sum();
    assert_eq!(opens, 20);
}

/// The memory is the directory's, and each guess is a question of the present reader: what another user read
/// gives no right.
#[tokio::test(start_paused = true)]
async fn what_one_user_has_read_is_no_right_of_another() {
    let setting = Setting::new().await;
    setting.run(program(0)).await;
    let secret = program(0).nth(5).unwrap();
    let owner_only = vfs::SetAttributes { mode: Some(0o600), ..vfs::SetAttributes::default() };
    let file = setting.file(secret);
    setting.bench.origin.tree().setattr(&file, &owner_only, None).unwrap();
    let setting = setting.restart().await;
    for n in program(0).filter(|n| *n != secret) {
        assert_eq!(setting.read_as(77, n).await.unwrap(), contents(n).as_bytes());
    }
    assert_eq!(setting.read_as(77, secret).await, Err(Status::Access));
}
