//! Everyday programs on every origin, over every way to it. No acknowledged work is lost, and no program
//! gets a false error. A test run plays two or three ways to each origin. `LAB_WAY=2` plays one way,
//! `LAB_WAY=all` all of them, and `LAB_COMMITS=500` plays longer.

use std::path::PathBuf;
use std::process::Command;

use lab::{Ganesha, Knfsd, Lab, Origin};

use crate::everyday::{self, Pair, copy, git, sqlite};
use crate::mounted::Mounted;
use crate::stack::{self, Leasehold};

/// Commits of each client on one origin over one way.
const COMMITS: usize = 3;
/// Transactions of each client for each pair of journal modes.
const TRANSACTIONS: usize = 6;

/// The parts between two mounts and an origin.
struct Way {
    name: &'static str,
    /// The NFS version of each mount. A mount of the proxy, and the proxy itself, use 4.2.
    versions: [&'static str; 2],
    /// Whether each mount uses the proxy.
    proxied: [bool; 2],
}

const WAYS: [Way; 4] = [
    Way { name: "two mounts", versions: ["4.2", "4.2"], proxied: [false, false] },
    Way { name: "mounts of two versions", versions: ["3", "4.2"], proxied: [false, false] },
    Way { name: "a mount beside a proxy", versions: ["4.2", "4.2"], proxied: [false, true] },
    Way { name: "two mounts of one proxy", versions: ["4.2", "4.2"], proxied: [true, true] },
];

impl Way {
    /// Are the locks of both mounts the origin's? Locks of version 3 are local to the machine.
    fn shares_locks(&self) -> bool {
        !self.versions.contains(&"3")
    }
}

/// A file system; dropping the value unmounts it.
struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Makes an ext4 of this many bytes in a directory of the lab.
    fn new(lab: &Lab, bytes: u64) -> Disk {
        let (at, image) = (lab.subdirectory("disk"), lab.directory().join("disk.ext4"));
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).unwrap();
        everyday::done(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        everyday::done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        Disk { at }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// An origin, and the disk that it serves, which is dropped last.
struct Server {
    kind: Kind,
    _disk: Option<Disk>,
}

enum Kind {
    Serve(Leasehold),
    Ganesha(Ganesha),
    Knfsd(Knfsd),
}

type Start = fn(&Lab, Option<u64>) -> Server;

fn start_serve(lab: &Lab, bytes: Option<u64>) -> Server {
    let disk = bytes.map(|bytes| Disk::new(lab, bytes));
    let directory = disk.as_ref().map_or_else(|| lab.subdirectory("served"), |disk| disk.at.clone());
    Server { kind: Kind::Serve(stack::serve(lab, &directory)), _disk: disk }
}

fn start_ganesha(lab: &Lab, bytes: Option<u64>) -> Server {
    let disk = bytes.map(|bytes| Disk::new(lab, bytes));
    let started = disk.as_ref().map_or_else(|| Ganesha::start(lab), |disk| Ganesha::serve(lab, &disk.at));
    Server { kind: Kind::Ganesha(started), _disk: disk }
}

fn start_knfsd(lab: &Lab, bytes: Option<u64>) -> Server {
    let started = bytes.map_or_else(|| Knfsd::start(lab), |bytes| Knfsd::of_size(lab, bytes));
    Server { kind: Kind::Knfsd(started), _disk: None }
}

impl Server {
    /// The indices of [`WAYS`] that a test run plays. Each way is played with at least one origin.
    fn ways_in_a_run(&self) -> &'static [usize] {
        match self.kind {
            Kind::Serve(_) => &[0, 1, 2],
            Kind::Ganesha(_) => &[0, 1],
            Kind::Knfsd(_) => &[0, 3],
        }
    }

    fn origin(&self, version: &str) -> Origin {
        match &self.kind {
            Kind::Serve(serve) => serve.origin(),
            Kind::Ganesha(ganesha) => ganesha.origin(),
            Kind::Knfsd(knfsd) if version == "3" => knfsd.origin(),
            Kind::Knfsd(knfsd) => knfsd.origin_v4(),
        }
    }
}

/// Plays one origin over one way at a time, each in a directory of its own.
fn play(name: &str, start: Start, bytes: Option<u64>, fits: fn(&Way) -> bool, act: fn(&Pair)) {
    let Some(lab) = Lab::enter(name) else { return };
    let server = start(&lab, bytes);
    let chosen = std::env::var("LAB_WAY").ok();
    for (number, way) in WAYS.iter().enumerate() {
        let plays = match chosen.as_deref() {
            None => server.ways_in_a_run().contains(&number),
            Some(chosen) => chosen == "all" || chosen == number.to_string(),
        };
        if !plays || !fits(way) {
            continue;
        }
        let began = std::time::Instant::now();
        let cache = |client: &str| format!("cache-{number}-{client}");
        let proxied = way.proxied.contains(&true);
        let proxy =
            proxied.then(|| stack::proxy_in(&lab, &server.origin("4.2"), "4.2", &cache("proxy"), &[]));
        let mounts = [0, 1].map(|at| {
            let version = way.versions[at];
            let origin = match &proxy {
                Some(proxy) if way.proxied[at] => proxy.origin(),
                _ => server.origin(version),
            };
            Mounted::new(&lab, &origin, &cache(["a", "b"][at]), &format!("vers={version}"))
        });
        let directory = format!("way{number}");
        std::fs::create_dir(mounts[0].at().join(&directory)).unwrap();
        let clients = [("a", &mounts[0]), ("b", &mounts[1])];
        let clients = clients.map(|(name, mount)| (name, mount.at().join(&directory)));
        let scratch = lab.subdirectory(&format!("scratch-{number}"));
        let pair = Pair { clients, scratch, setting: format!("{name}, {}", way.name) };
        act(&pair);
        for mount in mounts {
            assert_eq!(mount.status()["lost"]["files"], 0, "{}", pair.setting);
            mount.unmount();
        }
        eprintln!("lab: {}: {:.1} s", pair.setting, began.elapsed().as_secs_f64());
    }
}

fn play_git(name: &str, start: Start) {
    play(name, start, None, |_| true, |pair| git::play(pair, everyday::commits(COMMITS)));
}

fn play_sqlite(name: &str, start: Start) {
    play(name, start, None, Way::shares_locks, |pair| sqlite::play(pair, everyday::commits(TRANSACTIONS)));
}

fn play_copy(name: &str, start: Start) {
    play(name, start, Some(copy::FILE_SYSTEM), |_| true, copy::play);
}

// Promise: chained-proxies
#[test]
fn git_loses_nothing_before_serve() {
    play_git("git-serve", start_serve);
}

#[test]
fn git_loses_nothing_before_ganesha() {
    play_git("git-ganesha", start_ganesha);
}

#[test]
fn git_loses_nothing_before_knfsd() {
    play_git("git-knfsd", start_knfsd);
}

// Promise: locks-as-points-of-coherence
#[test]
fn sqlite_loses_nothing_before_serve() {
    play_sqlite("sqlite-serve", start_serve);
}

#[test]
fn sqlite_loses_nothing_before_ganesha() {
    play_sqlite("sqlite-ganesha", start_ganesha);
}

#[test]
fn sqlite_loses_nothing_before_knfsd() {
    play_sqlite("sqlite-knfsd", start_knfsd);
}

// Promise: closes-on-a-full-origin
#[test]
fn copies_onto_a_full_serve_are_told_of() {
    play_copy("copy-serve", start_serve);
}

// Promise: closes-on-a-full-origin
#[test]
fn copies_onto_a_full_ganesha_are_told_of() {
    play_copy("copy-ganesha", start_ganesha);
}

// Promise: closes-on-a-full-origin
#[test]
fn copies_onto_a_full_knfsd_are_told_of() {
    play_copy("copy-knfsd", start_knfsd);
}
