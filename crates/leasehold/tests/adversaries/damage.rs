//! Damages the files of a proxy and a server between two incarnations: cut, torn and with flipped bits. The
//! next incarnation starts and serves the true content.
//!
//! The seed chooses the damage among all files of the state and cache directories, with three exceptions.
//! Any 16 bytes are a valid handle key. Without `format`, which names the owner of the cache, the program
//! refuses to start, with one line. Cached data is only cut, because a READ does not check its content
//! (`leasehold cache verify` does).

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::Url;
use vfs::{Caller, CreateHow, FileSystem, Name, SetAttributes, Stability, StateidBasis};

use crate::program::{Running, Tree};

const FILES: usize = 12;
const PAGE: u64 = 4096;
/// Seeds in the test run; `DAMAGE_SEEDS` sets another number.
const SEEDS: u64 = 4;
/// How long the second incarnations keep their clients waiting for holders of the first, which do not come
/// back.
const LEASE_SECONDS: &str = "5";

/// xorshift64*, the same sequence in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in std::fs::read_dir(&path).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Damages a file or leaves it alone. Returns a description of the damage.
fn damage(path: &Path, random: &mut Random) -> Option<String> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    if length == 0 || path.ends_with("handle.key") || path.ends_with("cache/format") {
        return None;
    }
    let is_data = path.components().any(|part| part.as_os_str() == "objects");
    let at = random.below(length);
    let what = match random.below(4) {
        0 => return None,
        1 if !is_data => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
            "flipped"
        }
        2 if !is_data => {
            // The second half of a page was not written.
            let from = (at / PAGE * PAGE + PAGE / 2).min(length);
            let to = (at / PAGE * PAGE + PAGE).min(length);
            file.write_all_at(&vec![0; (to - from) as usize], from).unwrap();
            "torn"
        }
        _ => {
            file.set_len(at).unwrap();
            "cut"
        }
    };
    Some(format!("{} {what} at {at} of {length}", path.display()))
}

async fn connect(server: &Running, vers: &str) -> Arc<dyn FileSystem> {
    let url = format!("{}&vers={vers}", server.url());
    client::connect(&Url::parse(&url).unwrap()).await.unwrap()
}

fn content(number: usize, generation: u8) -> Vec<u8> {
    let length = [10, 5_000, 70_000, 300_000][number % 4];
    (0..length).map(|at: usize| (at / 100) as u8 ^ number as u8 ^ generation).collect()
}

fn name(number: usize) -> String {
    format!("file{number}")
}

/// The content of all files, by name, read through a new client.
async fn all(server: &Running, vers: &str) -> BTreeMap<String, Vec<u8>> {
    let (fs, caller) = (connect(server, vers).await, Caller::unix(0, 0, &[]));
    let root = fs.root(&caller).await.unwrap().handle;
    let mut found = BTreeMap::new();
    for number in 0..FILES {
        let looked = fs
            .lookup(&caller, &root, &Name::new(name(number).as_bytes()).unwrap(), vfs::Want::None)
            .await
            .unwrap();
        let mut bytes = Vec::new();
        loop {
            let at = bytes.len() as u64;
            let read =
                fs.read(&caller, &looked.node.handle, StateidBasis::Anonymous, at, 1 << 20).await.unwrap();
            bytes.extend_from_slice(&read.data.to_bytes().unwrap());
            if read.eof {
                break;
            }
        }
        found.insert(name(number), bytes);
    }
    found
}

fn expected(generation: impl Fn(usize) -> u8) -> BTreeMap<String, Vec<u8>> {
    (0..FILES).map(|number| (name(number), content(number, generation(number)))).collect()
}

/// The work of one incarnation: reads, and changes through the proxy.
async fn live(proxy: &Running) {
    all(proxy, "3").await;
    all(proxy, "4.2").await;
    let (fs, caller) = (connect(proxy, "3").await, Caller::unix(0, 0, &[]));
    let root = fs.root(&caller).await.unwrap().handle;
    for number in (0..FILES).step_by(3) {
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let file = Name::new(name(number).as_bytes()).unwrap();
        let made = fs.create(&caller, &root, &file, CreateHow::Unchecked, &set).await.unwrap();
        let data = content(number, 1).into();
        fs.write(&caller, &made.node.handle, StateidBasis::Anonymous, 0, data, Stability::FileSync)
            .await
            .unwrap();
    }
    all(proxy, "4.1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_damaged_between_two_lives_the_next_one_serves_what_is_there() {
    let seeds = std::env::var("DAMAGE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    // Run them at the same time, because each may wait for a lease to expire.
    let mut playing: tokio::task::JoinSet<()> = (1..=seeds).map(play).collect();
    while let Some(played) = playing.join_next().await {
        played.unwrap();
    }
}

async fn play(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let tree = Tree::new();
    for number in 0..FILES {
        let path = tree.path(&format!("served/{}", name(number)));
        std::fs::write(path, content(number, 0)).unwrap();
    }
    let (origin_vers, generation) = (if seed.is_multiple_of(2) { "3" } else { "4.2" }, |number: usize| {
        u8::from(number.is_multiple_of(3))
    });
    let serve = |address: &str| {
        let (served, state) = (tree.path("served"), tree.path("state"));
        let shared = ["serve", &served, "--export", "/export", "--state", &state];
        Running::start_at(&[&shared[..], &["--lease-time", LEASE_SECONDS]].concat(), address)
    };
    let origin = serve("127.0.0.1:0");
    let url = |origin: &Running| format!("{}&vers={origin_vers}", origin.url());
    let start = |origin: &Running| {
        Running::start(&[
            "proxy",
            &url(origin),
            "--cache",
            &tree.path("cache"),
            "--min-free",
            "0",
            "--lease-time",
            LEASE_SECONDS,
        ])
    };
    let address = origin.address.clone();
    let proxy = start(&origin);
    live(&proxy).await;
    drop(proxy);
    drop(origin);
    let kept: Vec<PathBuf> =
        ["cache", "state"].into_iter().flat_map(|kept| files(Path::new(&tree.path(kept)))).collect();
    assert!(kept.len() > 8, "{kept:?}");
    let done: Vec<String> = kept.iter().filter_map(|path| damage(path, &mut random)).collect();
    let origin = serve(&address);
    let proxy = start(&origin);
    for vers in ["3", "4.2"] {
        assert!(all(&proxy, vers).await == expected(generation), "seed {seed}: {done:#?}");
    }
    // The incarnation keeps new changes, and both processes shut down cleanly.
    live(&proxy).await;
    assert!(all(&origin, "3").await == expected(generation), "seed {seed}: {done:#?}");
    for said in [proxy.terminate(), origin.terminate()] {
        assert!(!said.contains("panicked"), "seed {seed}: {said} {done:#?}");
    }
}
