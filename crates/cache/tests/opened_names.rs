//! LOOKUPs of names that programs open wherever they find them: one round trip for the name and the file.
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
use origin::{Bench, name, open_request, root, until, v4, v4_opener};
use tokio::time::Instant;
use vfs::{Caller, FileSystem, Freshness, Handle, LeaseKind, Opens, Share, StateidBasis, Status, Want};

const ROUND_TRIP: Duration = Duration::from_millis(40);
const PACKAGES: usize = 40;

/// Packages in one directory, each with a manifest and other files. Every call takes a round trip.
struct Setting {
    bench: Bench,
    cache: Arc<Cache>,
    packages: Vec<Handle>,
}

impl Setting {
    async fn new(policy: Policy) -> Setting {
        let bench = Bench::with_state(policy);
        let mut packages = Vec::new();
        for n in 0..PACKAGES {
            let package = bench.origin.put_dir(&root(), &format!("p{n:02}"));
            // Every fifth one has no manifest.
            if n % 5 != 4 {
                bench.origin.put(&package, "package.json", contents(n).as_bytes());
            }
            for other in ["README", "index.js", "LICENSE"] {
                bench.origin.put(&package, other, b"something");
            }
            packages.push(package);
        }
        bench.origin.pass(Duration::from_secs(100));
        bench.origin.delay.store(ROUND_TRIP.as_micros() as u64, Ordering::Relaxed);
        let options = Options { prefetch_max_bytes: 64 << 20, ..bench.options() };
        let cache = bench.open_with(options).await;
        let setting = Setting { bench, cache, packages };
        setting.learn_leases().await;
        setting
    }

    /// A walk through other files shows whether the origin gives leases on files.
    async fn learn_leases(&self) {
        let other = self.bench.origin.put_dir(&root(), "other");
        for n in 0..20 {
            self.bench.origin.put(&other, &format!("f{n:02}"), b"data");
        }
        for n in 0..20 {
            self.read(&other, &format!("f{n:02}")).await.unwrap();
        }
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.bench.origin.calls().into_iter().collect()
    }

    async fn look(&self, directory: &Handle, text: &str) -> Result<Handle, Status> {
        let stat = Caller { freshness: Freshness::Recent, ..v4(0, 1) };
        let found = self.cache.lookup(&stat, directory, &name(text), Want::None).await;
        found.map(|found| found.node.handle).map_err(|error| error.status)
    }

    /// As the kernel does, looks a name up and opens it. Returns what it read.
    async fn read(&self, directory: &Handle, text: &str) -> Result<Vec<u8>, Status> {
        let file = self.look(directory, text).await?;
        let opened = self.cache.open(&v4_opener(0, 1), &open_request(directory, text, 1, Share::READ)).await;
        let opened = opened.map_err(|error| error.status)?;
        assert_eq!(opened.handle, file);
        let by = StateidBasis::Open(opened.id);
        let read = self.cache.read(&v4(0, 1), &file, by, 0, 1 << 16).await.unwrap();
        self.cache.close(&v4(0, 1), opened.id).await.unwrap();
        Ok(read.data.to_bytes().unwrap().to_vec())
    }
}

fn contents(n: usize) -> String {
    format!("{{ \"name\": \"p{n}\" }}").repeat(20)
}

/// The packages are read in an order that no walk follows.
fn order() -> impl Iterator<Item = usize> {
    (0..PACKAGES).map(|n| (n * 17 + 3) % PACKAGES)
}

#[tokio::test(start_paused = true)]
async fn a_manifest_costs_one_round_trip_in_each_package() {
    let setting = Setting::new(Policy::Always(LeaseKind::Read)).await;
    let mut later = Duration::ZERO;
    for (step, n) in order().enumerate() {
        let started = Instant::now();
        let read = setting.read(&setting.packages[n], "package.json").await;
        match n % 5 {
            4 => assert_eq!(read, Err(Status::NoEnt)),
            _ => assert_eq!(read.unwrap(), contents(n).into_bytes()),
        }
        if step >= 6 {
            later += started.elapsed();
        }
    }
    let calls = setting.calls();
    let most = ROUND_TRIP * (PACKAGES as u32 - 6);
    assert!(later <= most + ROUND_TRIP * 2, "{later:?} instead of {most:?}: {calls:?}");
}

/// What another client wrote is seen: the OPEN ends its lease, as any open does, and brings the bytes.
#[tokio::test(start_paused = true)]
async fn what_others_write_is_seen() {
    let setting = Setting::new(Policy::Always(LeaseKind::Read)).await;
    for n in order().take(20) {
        let _ = setting.read(&setting.packages[n], "package.json").await;
    }
    for n in order().skip(20).filter(|n| n % 5 != 4) {
        let file = setting.look(&setting.packages[n], "package.json").await.unwrap();
        // As another client does, it first ends the lease.
        setting.bench.origin.recall(&file);
        let origin = setting.bench.origin.clone();
        until(|| origin.lease(&file).is_none()).await;
        origin.tree().write(&file, 0, b"NEW").unwrap();
        let read = setting.read(&setting.packages[n], "package.json").await.unwrap();
        assert_eq!(&read[..3], b"NEW");
    }
}

/// A program that looks at names and opens none pays no more than a few OPENs for that.
#[tokio::test(start_paused = true)]
async fn one_that_only_looks_opens_nothing() {
    let setting = Setting::new(Policy::Always(LeaseKind::Read)).await;
    for n in order().filter(|n| n % 5 != 4).take(5) {
        setting.read(&setting.packages[n], "package.json").await.unwrap();
    }
    setting.calls();
    for n in order().filter(|n| n % 5 != 4).skip(5) {
        setting.look(&setting.packages[n], "package.json").await.unwrap();
    }
    let calls = setting.calls();
    assert!(calls.get("OPEN").copied().unwrap_or(0) <= 4, "{calls:?}");
}

/// Without leases, the open behind the LOOKUP needs a call all the same.
#[tokio::test(start_paused = true)]
async fn without_leases_a_lookup_is_a_lookup() {
    let setting = Setting::new(Policy::Never).await;
    for n in order().filter(|n| n % 5 != 4) {
        setting.look(&setting.packages[n], "package.json").await.unwrap();
    }
    let calls = setting.calls();
    setting.read(&setting.packages[0], "package.json").await.unwrap();
    assert!(calls["OPEN"] <= 20, "{calls:?}");
}
