//! Read-ahead in directories: what it costs, what it saves, and what it may not do.
//!
//! Promise: guesses

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cache::Cache;
use origin::state::Policy;
use origin::{Bench, name, open_request, read, root, until, v4, v4_opener, whole};
use tokio::time::Instant;
use vfs::{
    Caller, Entry, FileSystem, FileType, Freshness, Handle, LeaseKind, Opens, Share, StateidBasis, Status,
    Want,
};

const SECOND: Duration = Duration::from_secs(1);
const ROUND_TRIP: Duration = Duration::from_millis(40);
const DIRECTORIES: usize = 20;
const FILES: usize = 20;
const LEASES: Policy = Policy::Always(LeaseKind::Read);

/// A tree of directories with files in them. Every call takes a round trip.
struct Setting {
    bench: Bench,
    cache: Arc<Cache>,
    directories: Vec<(String, Handle)>,
}

impl Setting {
    async fn new(policy: Policy, prefetch: bool) -> Setting {
        Setting::over(Bench::with_state(policy), prefetch).await
    }

    async fn over(bench: Bench, prefetch: bool) -> Setting {
        let mut directories = Vec::new();
        for n in 0..DIRECTORIES {
            let text = format!("d{n:02}");
            let directory = bench.origin.put_dir(&root(), &text);
            for n in 0..FILES {
                bench.origin.put(&directory, &format!("f{n:02}"), &contents(&text, n));
            }
            directories.push((text, directory));
        }
        bench.origin.pass(10 * SECOND);
        bench.origin.delay.store(ROUND_TRIP.as_micros() as u64, Ordering::Relaxed);
        let mut options = bench.options();
        options.prefetch_max_bytes = if prefetch { 64 << 20 } else { 0 };
        let cache = bench.open_with(options).await;
        Setting { bench, cache, directories }
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.bench.origin.calls().into_iter().collect()
    }

    /// Lists a directory to its end, with attributes.
    async fn list(&self, directory: &Handle) -> usize {
        self.list_as(directory, false).await.len()
    }

    /// Lists a directory to its end. Attributes may lack if `names_suffice`.
    async fn list_as(&self, directory: &Handle, names_suffice: bool) -> Vec<Entry> {
        let listing = self.cache.readdir(&v4(0, 1), directory, whole(names_suffice)).await.unwrap();
        assert!(listing.eof);
        listing.entries
    }

    /// Opens a file, reads it and closes it. Returns what was read.
    async fn read(&self, directory: &Handle, text: &str) -> Vec<u8> {
        let request = open_request(directory, text, 1, Share::READ);
        let opened = self.cache.open(&v4_opener(0, 1), &request).await.unwrap();
        let by = StateidBasis::Open(opened.id);
        let read = self.cache.read(&v4(0, 1), &opened.handle, by, 0, 1 << 16).await.unwrap();
        self.cache.close(&v4(0, 1), opened.id).await.unwrap();
        read.data.to_bytes().unwrap().to_vec()
    }

    /// Lists all directories, as find(1) does.
    async fn find(&self) -> Duration {
        let started = Instant::now();
        self.list(&root()).await;
        for (_, directory) in &self.directories {
            assert_eq!(self.list(directory).await, FILES);
        }
        started.elapsed()
    }

    /// Reads all files, as grep(1) does with `-r`.
    async fn grep(&self) -> Duration {
        let started = Instant::now();
        self.list(&root()).await;
        for (text, directory) in &self.directories {
            self.list(directory).await;
            for n in 0..FILES {
                assert_eq!(self.read(directory, &format!("f{n:02}")).await, contents(text, n));
            }
        }
        started.elapsed()
    }

    /// Looks all files up, as git(1) does for `git status`.
    async fn look(&self) -> Duration {
        self.look_as(&Caller::unix(0, 0, &[]).with_freshness(Freshness::Timeout)).await
    }

    async fn look_as(&self, stat: &Caller) -> Duration {
        let started = Instant::now();
        for (text, directory) in &self.directories {
            let found = self.cache.lookup(stat, &root(), &name(text), Want::None).await.unwrap();
            assert_eq!(found.node.handle, *directory);
            for n in 0..FILES {
                let text = name(&format!("f{n:02}"));
                self.cache.lookup(stat, directory, &text, Want::None).await.unwrap();
            }
        }
        started.elapsed()
    }
}

fn contents(directory: &str, n: usize) -> Vec<u8> {
    format!("{directory} {n} ").repeat(50).into_bytes()
}

/// Listings come ahead of a reader that goes through a tree, and cost no call more.
#[tokio::test(start_paused = true)]
async fn a_cold_find_is_faster_than_its_round_trips() {
    let slow = Setting::new(LEASES, false).await;
    let (without, calls) = (slow.find().await, slow.calls());
    assert_eq!(calls["READDIR"], DIRECTORIES as u64 + 1);
    let fast = Setting::new(LEASES, true).await;
    let with = fast.find().await;
    assert!(with * 3 < without, "{with:?}, without {without:?}");
    assert_eq!(fast.calls()["READDIR"], DIRECTORIES as u64 + 1, "each listing once");
}

/// Files come ahead of a reader that opens them one after the other, with their leases.
#[tokio::test(start_paused = true)]
async fn a_cold_grep_is_faster_than_its_round_trips() {
    let slow = Setting::new(LEASES, false).await;
    let without = slow.grep().await;
    assert_eq!(slow.calls()["OPEN"], (DIRECTORIES * FILES) as u64);
    let fast = Setting::new(LEASES, true).await;
    let with = fast.grep().await;
    let calls = fast.calls();
    assert!(with * 8 < without, "{with:?}, without {without:?}");
    assert_eq!(calls["OPEN"], (DIRECTORIES * FILES) as u64, "each file once");
    assert!(calls["READDIR"] <= DIRECTORIES as u64 + 2, "{calls:?}");
    let stats = fast.cache.stats();
    assert!(stats.guesses_used * 10 >= stats.guesses * 9, "{stats:?}");
}

/// Names are looked up one by one: their directory is listed instead.
#[tokio::test(start_paused = true)]
async fn a_cold_git_status_costs_a_listing_for_each_directory() {
    let fast = Setting::new(LEASES, true).await;
    let first = fast.look().await;
    let calls = fast.calls();
    assert!(calls["READDIR"] <= DIRECTORIES as u64 + 1, "{calls:?}");
    assert!(calls["LOOKUP"] <= 3 * DIRECTORIES as u64, "{calls:?}");
    assert!(first < ROUND_TRIP * 3 * DIRECTORIES as u32, "{first:?}");
}

/// Attributes that have expired are confirmed together.
#[tokio::test(start_paused = true)]
async fn a_second_git_status_costs_a_call_for_each_directory() {
    for policy in [LEASES, Policy::Never] {
        let fast = Setting::new(policy, true).await;
        fast.look().await;
        tokio::time::sleep(10 * SECOND).await;
        fast.calls();
        let second = fast.look().await;
        let calls = fast.calls();
        let all: u64 = calls.values().sum();
        assert!(all <= 5 * DIRECTORIES as u64, "{policy:?} {calls:?}");
        assert!(second < ROUND_TRIP * 4 * DIRECTORIES as u32, "{policy:?} {second:?}");
    }
}

/// A mount looks names up without a call if they were shown within the last second. Later, one listing
/// confirms all names of a directory. A client that opens files by handle has each of them confirmed.
#[tokio::test(start_paused = true)]
async fn a_mount_confirms_names_by_listings() {
    let mount = v4(0, 1).with_freshness(Freshness::Recent);
    let setting = Setting::new(Policy::Never, true).await;
    setting.look_as(&mount).await;
    tokio::time::sleep(10 * SECOND).await;
    setting.calls();
    let took = setting.look_as(&mount).await;
    let calls = setting.calls();
    assert!(calls["READDIR"] <= DIRECTORIES as u64 + 2, "{calls:?}");
    assert!(calls.values().sum::<u64>() <= 4 * DIRECTORIES as u64, "{calls:?}");
    assert!(took < ROUND_TRIP * 3 * DIRECTORIES as u32, "{took:?} {calls:?}");

    let (_, directory) = &setting.directories[3];
    tokio::time::sleep(10 * SECOND).await;
    setting.list(directory).await;
    setting.calls();
    let all = async |caller: &Caller| {
        for n in 0..FILES {
            let text = name(&format!("f{n:02}"));
            setting.cache.lookup(caller, directory, &text, Want::None).await.unwrap();
        }
        setting.calls()
    };
    assert_eq!(all(&mount).await, BTreeMap::new(), "within a second");
    assert_eq!(all(&v4(0, 1)).await["GETATTR"], FILES as u64, "each counts as an open");
    let text = name("lock");
    let find = || setting.cache.lookup(&mount, directory, &text, Want::None);
    tokio::time::sleep(10 * SECOND).await;
    let lock = setting.bench.origin.put(directory, "lock", b"");
    setting.list(directory).await;
    assert_eq!(find().await.unwrap().node.handle, lock);
    setting.bench.origin.tree().remove(directory, &text, false).unwrap();
    assert_eq!(find().await.unwrap_err().status, Status::NoEnt, "it may have been a lock file");
}

/// After a restart, the names are known and the attributes are old. One listing confirms those of a
/// directory, and comes ahead of the reader.
#[tokio::test(start_paused = true)]
async fn after_a_restart_listings_confirm_the_names() {
    for policy in [LEASES, Policy::Never] {
        let setting = Setting::new(policy, true).await;
        setting.find().await;
        setting.cache.flush().await;
        let Setting { bench, directories, .. } = setting;
        let bench = bench.killed();
        let cache = bench.open_with(bench.eager()).await;
        let setting = Setting { bench, cache, directories };
        tokio::time::sleep(10 * SECOND).await;
        setting.calls();
        let took = setting.look_as(&v4(0, 1).with_freshness(Freshness::Recent)).await;
        let calls = setting.calls();
        assert!(calls["READDIR"] <= DIRECTORIES as u64 + 2, "{policy:?} {calls:?}");
        assert!(calls.values().sum::<u64>() <= 5 * DIRECTORIES as u64, "{policy:?} {calls:?}");
        assert!(took < ROUND_TRIP * 4 * DIRECTORIES as u32, "{policy:?} {took:?} {calls:?}");
    }
}

/// A reader that needs names only gets them without a call when the attributes have expired. If it asks for
/// attributes all the same, one READDIR brings those of all files of the directory.
#[tokio::test(start_paused = true)]
async fn names_that_are_known_are_listed_without_a_call() {
    for policy in [LEASES, Policy::Never] {
        let setting = Setting::new(policy, true).await;
        setting.find().await;
        tokio::time::sleep(10 * SECOND).await;
        setting.calls();
        for (_, directory) in &setting.directories {
            let entries = setting.list_as(directory, true).await;
            assert_eq!(entries.len(), FILES);
            assert!(entries.iter().all(|entry| entry.file_type == Some(FileType::Regular)), "{policy:?}");
            let bare = |entry: &Entry| entry.node.is_none_or(|node| node.attributes.is_none());
            assert!(entries.iter().all(bare), "no attributes are invented");
        }
        assert_eq!(setting.calls(), BTreeMap::new(), "{policy:?}");
        let (_, directory) = &setting.directories[3];
        let stat = Caller::unix(0, 0, &[]).with_freshness(Freshness::Timeout);
        for n in 0..FILES {
            let text = name(&format!("f{n:02}"));
            setting.cache.lookup(&stat, directory, &text, Want::None).await.unwrap();
        }
        assert_eq!(setting.calls(), BTreeMap::from([("READDIR", 1)]), "{policy:?}");
        // Without the flag, the reply has attributes. Two listings in a row would be a walk.
        tokio::time::sleep(2 * SECOND).await;
        let (_, directory) = &setting.directories[4];
        let entries = setting.list_as(directory, false).await;
        assert!(entries.iter().all(|entry| entry.node.unwrap().attributes.is_some()), "{policy:?}");
        assert_eq!(setting.calls()["READDIR"], 1, "{policy:?}");
    }
}

/// The same reader asks for the attributes in each directory, as find(1) does with `-ls`: further listings
/// come ahead of it.
#[tokio::test(start_paused = true)]
async fn attributes_that_lack_come_ahead_of_the_reader() {
    for policy in [LEASES, Policy::Never] {
        let bench = Bench::with_state(policy);
        bench.origin.put(&root(), "file", b"");
        let setting = Setting::over(bench, true).await;
        setting.find().await;
        tokio::time::sleep(10 * SECOND).await;
        setting.calls();
        let stat = Caller::unix(0, 0, &[]).with_freshness(Freshness::Timeout);
        let started = Instant::now();
        // find(1) goes into some directories before it asks for the attributes of the files beside them.
        setting.list_as(&root(), true).await;
        let (last, first) = setting.directories.split_at(DIRECTORIES - 2);
        for (text, directory) in first.iter().chain(last) {
            if text == "d00" {
                setting.cache.lookup(&stat, &root(), &name("file"), Want::None).await.unwrap();
            }
            setting.list_as(directory, true).await;
            for n in 0..FILES {
                let text = name(&format!("f{n:02}"));
                setting.cache.lookup(&stat, directory, &text, Want::None).await.unwrap();
            }
        }
        let (took, calls) = (started.elapsed(), setting.calls());
        assert!(calls["READDIR"] <= DIRECTORIES as u64 + 2, "{policy:?} {calls:?}");
        assert!(calls.values().sum::<u64>() <= DIRECTORIES as u64 + 5, "{policy:?} {calls:?}");
        assert!(took * 3 < ROUND_TRIP * DIRECTORIES as u32, "{policy:?} {took:?} {calls:?}");
    }
}

/// A reader at random gets nothing that it has not asked for, but for a first allowance.
#[tokio::test(start_paused = true)]
async fn a_reader_at_random_pays_nothing() {
    let bench = Bench::with_state(LEASES);
    let directory = bench.origin.put_dir(&root(), "large");
    for n in 0..2000 {
        bench.origin.put(&directory, &format!("f{n:04}"), &contents("large", n));
    }
    let setting = Setting::over(bench, true).await;
    let mut seed = 7u64;
    for _ in 0..100 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n = (seed >> 33) as usize % 2000;
        assert_eq!(setting.read(&directory, &format!("f{n:04}")).await, contents("large", n));
    }
    let (stats, calls) = (setting.cache.stats(), setting.calls());
    assert!(stats.guessed_bytes * 20 <= stats.fetched_bytes, "{stats:?}");
    assert!(calls["READDIR"] <= 2 && calls["OPEN"] <= 102, "{calls:?}");
}

/// A program that looks for names in many places, as `node` does for its modules. It reads two files of a
/// package. It also asks for names that the directory of all packages lacks.
#[tokio::test(start_paused = true)]
async fn a_program_that_looks_for_names_in_many_places_is_not_led_through_all_of_them() {
    const PACKAGES: usize = 150;
    let bench = Bench::with_state(LEASES);
    bench.origin.state.lock().directories = true;
    let modules = bench.origin.put_dir(&root(), "modules");
    let mut packages = Vec::new();
    for n in 0..PACKAGES {
        let text = format!("p{n:03}");
        let package = bench.origin.put_dir(&modules, &text);
        for directory in [".github", "dist", "lib", "test"] {
            let directory = bench.origin.put_dir(&package, directory);
            for n in 0..5 {
                bench.origin.put(&directory, &format!("f{n}"), b"x");
            }
        }
        for file in ["LICENSE", "README", "index.js", "package.json"] {
            bench.origin.put(&package, file, &contents(file, n));
        }
        packages.push((text, package));
    }
    let setting = Setting::over(bench, true).await;
    let stat = v4(0, 1).with_freshness(Freshness::Recent);
    let look = async |directory: &Handle, text: &str| {
        setting.cache.lookup(&stat, directory, &name(text), Want::None).await.map_err(|error| error.status)
    };
    let started = Instant::now();
    look(&root(), "modules").await.unwrap();
    let mut last = 0;
    for _ in 0..PACKAGES / 2 {
        last = (last + 67) % PACKAGES;
        let (text, package) = &packages[last];
        for absent in [".js", ".json", ".node"] {
            assert_eq!(look(&modules, &format!("{text}{absent}")).await.err(), Some(Status::NoEnt));
        }
        look(&modules, text).await.unwrap();
        for file in ["package.json", "index.js"] {
            look(package, file).await.unwrap();
            assert_eq!(setting.read(package, file).await, contents(file, last));
        }
    }
    let took = started.elapsed();
    let (stats, calls) = (setting.cache.stats(), setting.calls());
    let all: u64 = calls.values().sum();
    let unused = stats.guesses - stats.guesses_used;
    assert!(unused * 10 <= all, "{unused} guesses of {all} calls were not used: {calls:?}");
    assert!(calls["LOOKUP"] <= 2 + PACKAGES as u64 / 2, "absent names cost no call: {calls:?}");
    // One for the first name in a package, and one for each of the two opens.
    assert!(took <= ROUND_TRIP * (4 + 3 * PACKAGES as u32 / 2), "{took:?}");
}

/// Without leases, files that were guessed would have to be opened again: that is found out soon.
#[tokio::test(start_paused = true)]
async fn files_are_not_guessed_where_no_leases_are_given() {
    let setting = Setting::new(Policy::Never, true).await;
    setting.grep().await;
    let calls = setting.calls();
    assert!(calls["OPEN"] <= (DIRECTORIES * FILES + 12) as u64, "{calls:?}");
}

/// Without a lease, a guessed listing does not say that a name is absent: no reader has asked by then.
#[tokio::test(start_paused = true)]
async fn a_guessed_listing_proves_no_absence_without_a_lease() {
    let setting = Setting::over(Bench::new(), true).await;
    let stat = Caller::unix(0, 0, &[]).with_freshness(Freshness::Timeout);
    // Against something newer, the tree is old, and a walk through it brings no news.
    setting.bench.origin.put(&root(), "newer", b"");
    setting.cache.lookup(&stat, &root(), &name("newer"), Want::None).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    setting.list(&root()).await;
    for (_, directory) in &setting.directories[..2] {
        setting.list(directory).await;
    }
    tokio::time::sleep(ROUND_TRIP * 5).await;
    let listed = setting.calls()["READDIR"];
    assert!(listed > 5, "{listed} directories were listed");
    let (_, directory) = &setting.directories[3];
    setting.bench.origin.pass(SECOND);
    // The attributes of the directory are of after the guess.
    let open = Caller::unix(0, 0, &[]).with_freshness(Freshness::Open);
    setting.cache.getattr(&open, directory).await.unwrap();
    let made = setting.bench.origin.put(directory, "new", b"new");
    let found = setting.cache.lookup(&stat, directory, &name("new"), Want::None).await;
    assert_eq!(found.expect("it is there").node.handle, made);
}

/// A guess is believed no longer than an answer: a change recalls its lease.
#[tokio::test(start_paused = true)]
async fn a_guessed_file_that_another_client_changes_is_read_anew() {
    let setting = Setting::new(LEASES, true).await;
    let (text, directory) = setting.directories[0].clone();
    setting.list(&root()).await;
    setting.list(&directory).await;
    for n in 0..2 {
        setting.read(&directory, &format!("f{n:02}")).await;
    }
    let origin = &setting.bench.origin;
    let last = format!("f{:02}", 5);
    let file = origin.tree().lookup(&v4(0, 1).principal, &directory, &name(&last)).unwrap().node.handle;
    until(|| origin.lease(&file).is_some()).await;
    origin.recall(&file);
    until(|| origin.lease(&file).is_none()).await;
    origin.tree().write(&file, 0, b"new").unwrap();
    let mut expected = contents(&text, 5);
    expected[..3].copy_from_slice(b"new");
    assert_eq!(setting.read(&directory, &last).await, expected);
}

/// A guess is made with the rights of its reader, and proves nothing for another user.
#[tokio::test(start_paused = true)]
async fn a_guess_for_one_user_is_no_right_of_another() {
    let setting = Setting::new(LEASES, true).await;
    let (_, directory) = setting.directories[0].clone();
    let origin = &setting.bench.origin;
    let principal = v4(0, 1).principal;
    let secret = origin.tree().lookup(&principal, &directory, &name("f05")).unwrap().node.handle;
    let owner_only = vfs::SetAttributes { mode: Some(0o600), ..vfs::SetAttributes::default() };
    origin.tree().setattr(&secret, &owner_only, None).unwrap();
    origin.pass(10 * SECOND);
    setting.list(&root()).await;
    setting.list(&directory).await;
    for n in 0..2 {
        setting.read(&directory, &format!("f{n:02}")).await;
    }
    until(|| origin.lease(&secret).is_some()).await;
    let request = open_request(&directory, "f05", 2, Share::READ);
    let other = setting.cache.open(&v4_opener(77, 2), &request).await;
    assert_eq!(other.unwrap_err().status, vfs::Status::Access);
}

/// A guess that the origin does not answer delays nobody.
#[tokio::test(start_paused = true)]
async fn a_guess_that_hangs_delays_nobody() {
    let setting = Setting::new(LEASES, true).await;
    let (text, directory) = setting.directories[0].clone();
    setting.list(&root()).await;
    setting.list(&directory).await;
    setting.read(&directory, "f00").await;
    let gate = setting.bench.origin.gate("OPEN");
    // The reader's own OPEN, and no guess after it.
    gate.admit(1);
    gate.reply(1);
    assert_eq!(setting.read(&directory, "f01").await, contents(&text, 1));
    gate.wait_for(3).await;
    let (_, other) = &setting.directories[1];
    let started = Instant::now();
    setting.list(other).await;
    assert!(started.elapsed() <= ROUND_TRIP * 3);
    let shutdown = tokio::time::timeout(60 * SECOND, async {
        setting.cache.prepare_shutdown();
        gate.open();
        setting.cache.shutdown().await;
    });
    shutdown.await.unwrap();
}

/// Over an origin without opens, the data of files comes ahead of their readers.
#[tokio::test(start_paused = true)]
async fn data_comes_ahead_over_an_origin_without_opens() {
    let time = async |prefetch: bool| {
        let setting = Setting::over(Bench::new(), prefetch).await;
        let caller = origin::opener(0);
        let started = Instant::now();
        setting.list(&root()).await;
        for (text, directory) in &setting.directories {
            setting.list(directory).await;
            for n in 0..FILES {
                let text_of = name(&format!("f{n:02}"));
                let found = setting.cache.lookup(&caller, directory, &text_of, Want::None).await.unwrap();
                let file = found.node.handle;
                assert_eq!(read(&setting.cache, &caller, &file, 0, 1 << 16).await, contents(text, n));
            }
        }
        let reads = setting.calls()["READ"];
        assert_eq!(reads, (DIRECTORIES * FILES) as u64, "each file once");
        started.elapsed()
    };
    let (without, with) = (time(false).await, time(true).await);
    assert!(with * 5 < without * 4, "{with:?}, without {without:?}");
}
