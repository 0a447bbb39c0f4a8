//! A test that tries to break close-to-open: a client that opens a file after a writer has closed it must
//! read the writer's data.
//!
//! Several seats (a mount in a guest, a directory of the host) share a few files. In each round a random seat
//! changes a random file in a random manner and closes it. The new content nearly always has the same size.
//! Then the other seats read the file, in random order and without a pause.
//!
//! Two changes of a file are at least one timestamp granularity of the origin apart, because a version 2 or 3
//! client cannot distinguish closer ones. Close-to-open itself requires that wait, and requires nothing else.
//! A guest's clock may tick late, so the writer checks the `ctime`: if a change left it the same, the writer
//! makes another change. No other attribute is enough: Linux's client of versions 2 and 3 compares only the
//! `ctime`. If a rename and the next write fall in the same tick, the `mtime` differs, and the client keeps
//! its cached data.
//!
//! Linux's client has a fault that would break the promise without any server's doing. If a LOOKUP is the
//! first call to show that its directory has changed, the client leaves the `d_time` of the new dentry as the
//! memory's last user left it. An odd value means that a delegation protects the name, so the next open sends
//! no call. That open also writes a correct value. Therefore each seat looks at the file's attributes after
//! each read, before anybody changes the file: it takes the place of that open.
//! docs/results/2026-11-26-kernels.md has the measurement.

use crate::hand::{Hand, Stat};
use crate::origin::CallCounts;
use crate::rng::Rng;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Steps of the history that a failure prints.
const HISTORY_STEPS: usize = 24;
/// How often a change is repeated if it left the attributes the same.
const ATTEMPTS_MAX: usize = 20;
/// Sizes of the files: less than a page, a page, odd sizes, several transfers.
const SIZES: [usize; 5] = [40, 4096, 10_007, 65_536, 300_000];

/// A participant that writes and reads the shared files.
#[derive(Debug)]
pub struct Seat {
    /// Its name in failure messages.
    pub name: String,
    /// Makes its file operations.
    pub hand: Hand,
    /// The path of the shared directory for this seat.
    pub directory: PathBuf,
}

impl Seat {
    /// A seat called `name` that sees the shared directory at `directory`.
    pub fn new(name: &str, hand: Hand, directory: impl Into<PathBuf>) -> Seat {
        Seat { name: name.to_owned(), hand, directory: directory.into() }
    }
}

/// The size of the test.
#[derive(Debug, Clone)]
pub struct CloseToOpen {
    /// Number of changes.
    pub rounds: usize,
    /// Number of shared files.
    pub files: usize,
    /// Timestamp granularity of the origin. Before Linux 6.13, file systems have that of a tick: 10 ms in a
    /// guest, 4 ms on a typical host. A guest's tick comes late when its host has other work.
    pub granularity: Duration,
}

impl Default for CloseToOpen {
    fn default() -> CloseToOpen {
        CloseToOpen { rounds: 300, files: 6, granularity: Duration::from_millis(30) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Rewrite,
    Overwrite,
    Replace,
    Resize,
}

struct SharedFile {
    name: String,
    content: Vec<u8>,
    changed: Instant,
    /// The attributes that the last writer saw after its change.
    seen: State,
}

/// The attributes by which a client notices a change.
#[derive(Debug, PartialEq, Eq)]
struct State {
    ino: u64,
    ctime_ns: i128,
}

impl From<Stat> for State {
    fn from(Stat { ino, ctime_ns, .. }: Stat) -> State {
        State { ino, ctime_ns }
    }
}

impl CloseToOpen {
    /// Runs all rounds and returns the number of checked reads. Panics at the first read that does not give
    /// the last content. The message contains the seed, the history and the view of every seat.
    #[track_caller]
    pub fn run(&self, seats: &mut [Seat], rng: &mut Rng) -> usize {
        assert!(seats.len() > 1, "lab: close-to-open takes two");
        let mut history = VecDeque::new();
        let mut files = self.create(&mut seats[0]);
        let mut reads = 0;
        for round in 0..self.rounds {
            let file = rng.below(files.len());
            let writer = rng.below(seats.len());
            let manner = *rng.pick(&[
                Manner::Rewrite,
                Manner::Overwrite,
                Manner::Overwrite,
                Manner::Replace,
                Manner::Resize,
            ]);
            change(&mut files[file], &mut seats[writer], manner, round, self.granularity, &mut history);
            let mut readers: Vec<usize> = (0..seats.len()).collect();
            rng.shuffle(&mut readers);
            for reader in readers {
                // Sometimes a seat misses a change, and reads the next one with older data in its cache.
                if rng.below(5) > 0 {
                    if !check(&files[file], &mut seats[reader], round, &mut history) {
                        fail(&files[file], seats, reader, round, &history);
                    }
                    reads += 1;
                }
            }
        }
        reads
    }

    fn create(&self, seat: &mut Seat) -> Vec<SharedFile> {
        let create = |index: usize| {
            let name = format!("file-{index}");
            let content = content_of(&name, 0, "nobody", SIZES[index % SIZES.len()]);
            let path = seat.directory.join(&name);
            let seen = seat.hand.write(&path, &content).and_then(|()| seat.hand.stat(&path));
            let seen = seen.unwrap_or_else(|error| {
                panic!("lab: {} cannot create {}: {error}", seat.name, path.display())
            });
            SharedFile { name, content, changed: Instant::now(), seen: seen.into() }
        };
        (0..self.files).map(create).collect()
    }
}

/// Makes the change of one round, repeated until its timestamp differs from the last one.
#[track_caller]
fn change(
    file: &mut SharedFile,
    seat: &mut Seat,
    manner: Manner,
    round: usize,
    granularity: Duration,
    history: &mut VecDeque<String>,
) {
    let size = file.content.len();
    let size = if manner == Manner::Resize { size / 2 + 20 + round % 1000 } else { size };
    let path = seat.directory.join(&file.name);
    for attempt in 0..ATTEMPTS_MAX {
        file.content = content_of(&file.name, round * 100 + attempt, &seat.name, size);
        std::thread::sleep((file.changed + granularity).saturating_duration_since(Instant::now()));
        let before = calls(seat);
        let done = match manner {
            Manner::Rewrite | Manner::Resize => seat.hand.write(&path, &file.content),
            Manner::Overwrite => seat.hand.overwrite(&path, &file.content),
            Manner::Replace => seat.hand.replace(&path, &file.content),
        };
        let asked = since(before, seat);
        file.changed = Instant::now();
        note(history, format!("{round}: {} {manner:?} {} ({size} bytes){asked}", seat.name, file.name));
        let seen = done.and_then(|()| seat.hand.stat(&path));
        let seen = seen.unwrap_or_else(|error| {
            panic!("lab: {} cannot change {}: {error}\n{}", seat.name, path.display(), told(history))
        });
        let before = std::mem::replace(&mut file.seen, seen.into());
        if before != file.seen {
            return;
        }
    }
    panic!("lab: {} changes {} and its ctime stays\n{}", seat.name, path.display(), told(history));
}

/// Reads the file. True if the content is the last writer's.
fn check(file: &SharedFile, seat: &mut Seat, round: usize, history: &mut VecDeque<String>) -> bool {
    let path = seat.directory.join(&file.name);
    let before = calls(seat);
    let read = seat.hand.read(&path);
    let asked = since(before, seat);
    note(history, format!("{round}: {} reads {}{asked}", seat.name, file.name));
    if read.as_ref().is_ok_and(|content| *content == file.content) {
        let seen = seat.hand.stat(&path);
        let right = seen.as_ref().is_ok_and(|seen| seen.size == file.content.len() as u64);
        if !right {
            note(history, format!("{round}: {} got {seen:?} after it", seat.name));
        }
        return right;
    }
    let got = read.as_ref().map_or_else(ToString::to_string, |content| describe(content));
    note(history, format!("{round}: {} got {got}", seat.name));
    false
}

/// Version 3 calls that the seat's kernel has made; `None` without an NFS client of that version.
fn calls(seat: &mut Seat) -> Option<CallCounts> {
    let statistics = seat.hand.read("/proc/net/rpc/nfs").ok()?;
    let calls = CallCounts::parse(&String::from_utf8_lossy(&statistics));
    (calls.total() > 0).then_some(calls)
}

/// The calls since then, as the end of a step's description.
fn since(before: Option<CallCounts>, seat: &mut Seat) -> String {
    let asked = before.zip(calls(seat)).map(|(before, after)| after.since(&before));
    asked.map_or_else(String::new, |asked| format!(", {asked}"))
}

#[track_caller]
fn fail(file: &SharedFile, seats: &mut [Seat], reader: usize, round: usize, history: &VecDeque<String>) -> ! {
    let wanted = describe(&file.content);
    let seen: Vec<String> = seats.iter_mut().map(|seat| seen_by(seat, &file.name)).collect();
    panic!(
        "lab: close-to-open is broken in round {round}: reader {} of {} did not get\n  {wanted}\n{}\nhistory:\n{}",
        seats[reader].name,
        file.name,
        seen.join("\n"),
        told(history)
    );
}

/// Content that states its version in every line, so that a stale or torn read shows which version it is
/// from.
fn content_of(file: &str, version: usize, writer: &str, bytes: usize) -> Vec<u8> {
    let line = format!("{file} version {version:06} by {writer:.8}\n");
    line.as_bytes().iter().copied().cycle().take(bytes).collect()
}

fn describe(content: &[u8]) -> String {
    let first = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let odd =
        content.chunks(first.len() + 1).position(|line| !line.starts_with(first) && line.len() > first.len());
    let torn = odd.map_or_else(String::new, |line| format!(", other text from line {line}"));
    format!("{} bytes of {:?}{torn}", content.len(), String::from_utf8_lossy(&first[..first.len().min(80)]))
}

fn seen_by(seat: &mut Seat, name: &str) -> String {
    let path: &Path = &seat.directory.join(name);
    let stat = seat.hand.stat(path);
    let now = seat.hand.read(path).map_or_else(|error| error.to_string(), |content| describe(&content));
    format!("  {} sees {stat:?} and now reads {now}", seat.name)
}

fn note(history: &mut VecDeque<String>, step: String) {
    history.push_back(step);
    if history.len() > HISTORY_STEPS {
        history.pop_front();
    }
}

fn told(history: &VecDeque<String>) -> String {
    history.iter().map(|step| format!("  {step}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{CloseToOpen, Seat};
    use crate::{Hand, Rng};
    use std::time::Duration;

    fn seats_at(directories: [&std::path::Path; 2]) -> [Seat; 2] {
        ["a", "b"].map(|name| Seat::new(name, Hand::on_host(), directories[usize::from(name == "b")]))
    }

    #[test]
    fn one_directory_keeps_the_promise() {
        let directory = tempfile::tempdir().expect("a directory");
        let checker = CloseToOpen { rounds: 50, granularity: Duration::ZERO, ..CloseToOpen::default() };
        let reads = checker.run(&mut seats_at([directory.path(); 2]), &mut Rng::new(1));
        assert!(reads > 50);
    }

    #[test]
    #[should_panic(expected = "close-to-open is broken")]
    fn two_directories_do_not() {
        let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let checker = CloseToOpen { granularity: Duration::ZERO, ..CloseToOpen::default() };
        checker.create(&mut seats_at([directories[1].path(); 2])[0]);
        checker.run(&mut seats_at([directories[0].path(), directories[1].path()]), &mut Rng::new(1));
    }
}
