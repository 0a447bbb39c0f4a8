//! cp and rsync onto a file system that is full or nearly full. A file that the program reported as copied
//! is there. For every other file the program reported an error. With free space again, the programs
//! succeed.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::{Pair, said};

const FILES: usize = 60;
const DIRECTORIES: usize = 6;
const BLOCK: usize = 4096;
/// How large the file system should be: filling it writes this many bytes.
pub const FILE_SYSTEM: u64 = 16 << 20;
/// Available space as a percentage of the space that the copy needs.
const PERCENTS: [u64; 2] = [0, 50];
/// Space that directories keep after they have grown.
const SLACK: u64 = 256 << 10;
/// How long freed space may take to become visible.
const PATIENCE: Duration = Duration::from_secs(30);
/// Errors that a full file system must not cause.
const FALSE: [&str; 5] =
    ["Input/output error", "Stale file handle", "No such file", "Permission denied", "Resource temporarily"];

/// A program that copies a tree, and how to tell which files it considers copied.
struct Copier {
    name: &'static str,
    copy: fn(from: &Path, to: &Path) -> Output,
    /// Whether the program considers the file at `at` copied, according to its output `said`.
    holds: fn(said: &str, at: &Path) -> bool,
}

const COPIERS: [Copier; 2] = [
    Copier { name: "cp", copy: |from, to| run("cp", "-rT", from, to), holds: is_unmentioned },
    // rsync renames a file to its final name after it has written and closed the whole file.
    Copier {
        name: "rsync",
        copy: |from, to| run("rsync", "-a", &from.join(""), to),
        holds: |_, at| at.exists(),
    },
];

fn run(program: &str, option: &str, from: &Path, to: &Path) -> Output {
    let limit = ["-s", "KILL", "300", program, option];
    Command::new("timeout").args(limit).arg(from).arg(to).env("LC_ALL", "C").output().unwrap()
}

/// cp names every file that it could not create, write or close, or a directory above it.
fn is_unmentioned(said: &str, at: &Path) -> bool {
    !at.ancestors().any(|ancestor| said.contains(&format!("'{}'", ancestor.display())))
}

/// Makes a tree on this machine, and returns it with the space that it needs.
fn source(pair: &Pair) -> (PathBuf, u64) {
    let source = pair.scratch.join("source");
    let mut needed = 0;
    for number in 0..FILES {
        let directory = source.join(format!("d{}", number % DIRECTORIES));
        fs::create_dir_all(&directory).unwrap();
        let size = if number == FILES / 2 { 700_000 } else { 1 + number * 97 % 12_000 };
        fs::write(directory.join(format!("f{number}")), vec![number as u8; size]).unwrap();
        needed += size.next_multiple_of(BLOCK) as u64;
    }
    (source, needed)
}

fn files(below: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for directory in 0..DIRECTORIES {
        let Ok(entries) = fs::read_dir(below.join(format!("d{directory}"))) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path().strip_prefix(below).unwrap().to_owned()));
    }
    found
}

/// Bytes available for files on the file system.
fn available(at: &Path) -> u64 {
    let stat = rustix::fs::statvfs(at).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// Fills the file system through the client at `at` until `left` bytes are available, or none.
fn fill(at: &Path, left: u64) {
    let mut filler = OpenOptions::new().append(true).create(true).open(at.join("filler")).unwrap();
    let data = vec![1; 64 << 10];
    loop {
        let chunks = available(at).saturating_sub(left) / data.len() as u64;
        // If nothing is to be left, write until an error ends the loop.
        let chunks = chunks.max(u64::from(left == 0));
        let wrote = (0..chunks).try_for_each(|_| filler.write_all(&data)).and_then(|()| filler.sync_all());
        if chunks == 0 || wrote.is_err() {
            return;
        }
    }
}

/// A copy on the export: its directory, the files that must be complete, and their source.
struct Copied {
    name: String,
    source: PathBuf,
    files: BTreeSet<PathBuf>,
}

/// Compares the files that a client sees with their source.
#[track_caller]
fn check(setting: &str, copied: &Copied, at: &Path) {
    for file in &copied.files {
        let wanted = fs::read(copied.source.join(file)).unwrap();
        let found = fs::read(at.join(&copied.name).join(file)).unwrap_or_default();
        let file = file.display();
        assert!(wanted == found, "{setting}: {file}: {} of {} bytes", found.len(), wanted.len());
    }
}

/// The first client copies; the second client fills the file system and checks the copy.
pub fn play(pair: &Pair) {
    let (source, needed) = source(pair);
    let space = available(&pair.first(""));
    let mut refused = 0;
    for percent in PERCENTS {
        for copier in &COPIERS {
            let name = format!("{}-{percent}", copier.name);
            let setting = format!("{}: {name}", pair.setting);
            let to = pair.first(&name);
            fs::create_dir(&to).unwrap_or_else(|error| panic!("{setting}: {error}"));
            fill(&pair.second(""), needed * percent / 100);
            let output = (copier.copy)(&source, &to);
            let told = said(&output);
            assert!(!FALSE.iter().any(|word| told.contains(word)), "{setting}: {told}");
            let mut held = files(&source);
            if !output.status.success() {
                assert!(told.contains("No space left on device"), "{setting}: {told}");
                held.retain(|file| (copier.holds)(&told, &to.join(file)));
                refused += 1;
            }
            let held = Copied { name: name.clone(), source: source.clone(), files: held };
            check(&setting, &held, &pair.second(""));
            fs::remove_file(pair.second("filler")).unwrap();
            wait_for_space(&setting, &pair.first(""), needed * 2);
            let output = (copier.copy)(&source, &to);
            assert!(output.status.success(), "{setting}, with space: {}", said(&output));
            check(&setting, &Copied { files: files(&source), ..held }, &pair.second(""));
            fs::remove_dir_all(pair.second(&name)).unwrap_or_else(|error| panic!("{setting}: {error}"));
            wait_for_space(&setting, &pair.second(""), space - SLACK);
        }
    }
    assert!(refused > 0, "{}: the file system was never full", pair.setting);
}

/// Waits until freed space becomes visible.
fn wait_for_space(setting: &str, at: &Path, wanted: u64) {
    let began = Instant::now();
    while available(at) < wanted {
        assert!(began.elapsed() < PATIENCE, "{setting}: {} of {wanted} bytes are available", available(at));
        std::thread::sleep(Duration::from_millis(50));
    }
}
