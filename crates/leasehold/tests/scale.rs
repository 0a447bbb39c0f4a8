//! The small form of `bench scale`: what a walk costs does not grow with the tree. Calls at the origin are
//! exact for each directory, and memory is bounded for each object. A walk after scripted changes of another
//! client finds all names. No time is tested.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use bench::scale::{self, Options, Report, Row, System};

/// Files of the two trees.
const SIZES: [u32; 2] = [1000, 5000];
const FILES_PER_DIRECTORY: u32 = 250;
/// What one more object may take of the cache's memory, in bytes. All objects of these trees are in the
/// table. An object took 4,600 bytes of a mount and 3,900 bytes of a proxy in November 2026.
const OBJECT_BYTES_MAX: f64 = 7000.0;
/// The same for the origin. It keeps nothing of an object, but its buffers grow a little.
const ORIGIN_OBJECT_BYTES_MAX: f64 = 1000.0;

/// Bound for the origin's memory of one more idle client with a session, in bytes. A development build took
/// 13,700 to 14,800. The aim is 8 KiB.
const CLIENT_BYTES_MAX: f64 = 18.0 * 1024.0;

/// Calls at the origin for a tree with so many directories below its root: in the first walk, and in the
/// second one.
///
/// Each listing brings a directory delegation, so the cache asks nothing again.
fn calls(directories: u64) -> [u64; 2] {
    [2 * (directories + 1), 0]
}

/// Measures nothing, until one of the lists has an entry.
fn options(directory: &Path) -> Options {
    Options {
        leasehold: env!("CARGO_BIN_EXE_leasehold").into(),
        directory: directory.to_owned(),
        files: vec![],
        files_per_directory: FILES_PER_DIRECTORY,
        names: vec![],
        file_bytes: 100,
        systems: vec![],
        leases: vec![],
        clients: vec![],
        quiet: vec![],
        changes: 20,
        actimeo: Duration::from_secs(600),
        vers: "4.2".to_owned(),
    }
}

fn run(options: &Options) -> Report {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    scale::run(runtime.handle(), options, |line| eprintln!("{line}")).unwrap()
}

fn walks(system: System) {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let report = run(&Options { files: SIZES.to_vec(), systems: vec![system], ..options(directory.path()) });
    for row in &report.rows {
        let counts = [&row.walks[0].calls, &row.walks[1].calls];
        assert_eq!([row.calls(0), row.calls(1)], calls(row.directories), "{counts:?}");
    }
    let [small, large] = &report.rows[..] else { panic!("{:?}", report.rows) };
    // What a program takes however small the tree is does not count.
    let of_one_more = |each: fn(&Row) -> f64| {
        let total = |row: &Row| each(row) * row.objects() as f64;
        (total(large) - total(small)) / (large.objects() - small.objects()) as f64
    };
    let (cache, origin) = (of_one_more(Row::memory_each), of_one_more(Row::origin_memory_each));
    eprintln!("{}: {cache:.0} B of the cache and {origin:.0} B of the origin for one more", system.name());
    assert!(cache < OBJECT_BYTES_MAX, "{cache} bytes: {large}");
    assert!(origin < ORIGIN_OBJECT_BYTES_MAX, "{origin} bytes: {large}");
}

#[test]
fn a_walk_through_a_proxy_costs_the_same_for_each_directory_and_file() {
    walks(System::Proxy);
}

#[test]
fn a_walk_through_a_mount_costs_the_same_for_each_directory_and_file() {
    let device = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(device && rustix::process::geteuid().is_root()) {
        return eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    let _kept = lab::keep_kernel_caches();
    walks(System::Mount);
}

#[test]
fn an_idle_client_takes_little_memory() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let report = run(&Options { clients: vec![50, 450], ..options(directory.path()) });
    let [few, many] = &report.held[..] else { panic!("{:?}", report.held) };
    assert_eq!((few.held, many.held), (50, 450));
    // The memory that the program takes for the first clients does not count.
    let each = many.bytes.saturating_sub(few.bytes) as f64 / 400.0;
    eprintln!("{each:.0} B of the origin for one more client");
    assert!(each < CLIENT_BYTES_MAX, "{each} bytes: {few}; {many}");
}
