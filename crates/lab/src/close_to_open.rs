//! Tries to break the close-to-open promise: who opens a file after a writer closed it reads what the writer wrote.
//!
//! Several seats (a mount in a guest, a directory of the host) share a few files. Each round a random seat changes a random file in a
//! random manner, nearly always to other content of the same size, and closes it; then other seats read it, in random order, at once.
//! Two changes of one file are at least one timestamp granule of the origin apart: closer together no version 2 or 3 client can tell
//! them apart. That wait is the promise's own condition; there is no other. Because a guest's clock may tick late, the writer looks: a
//! change that left the file's `ctime` as it was is made again. Nothing else will do: Linux's client of versions 2 and 3 goes by the
//! `ctime` alone (where the tick of a rename is that of the next write, the `mtime` differs, and it keeps what it has read).
//!
//! The promise binds whoever is asked. Linux 6.1 now and then (one read in some ten thousand) opens a file without having asked, or
//! takes ESTALE for the file that a name led to and does not look the name up again; it does so on a plain Linux server too. Its own
//! counters tell: such a read is noted and made again, and more than a few of them in one run are a failure all the same. So is an
//! open for overwriting: who has not asked how long the file is may write a whole page of what was there before. The counters do not
//! tell what was asked about: an ACCESS may have been of the directory. Where nothing of ours is between client and server
//! ([`Seat::straight`]) an ACCESS alone does not count, as one of the file could not but have told of the change.

use crate::hand::{Hand, Stat};
use crate::log::say;
use crate::origin::CallCounts;
use crate::rng::Rng;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Steps of the history that a failure shows.
const HISTORY_STEPS: usize = 24;
/// How often a change is made again whose attributes are the last one's.
const ATTEMPTS_MAX: usize = 20;
/// Reads of one run for which a client may have asked nothing.
const UNASKED_MAX: usize = 3;
/// Sizes that files have: below a page, a page, odd ones, several transfers.
const SIZES: [usize; 5] = [40, 4096, 10_007, 65_536, 300_000];

/// Somebody who writes and reads the shared files.
#[derive(Debug)]
pub struct Seat {
    /// What failures call it.
    pub name: String,
    /// How it reaches files.
    pub hand: Hand,
    /// Where the shared directory is for it.
    pub directory: PathBuf,
    straight: bool,
}

impl Seat {
    /// A seat called `name` that sees the shared directory at `directory`.
    pub fn new(name: &str, hand: Hand, directory: impl Into<PathBuf>) -> Seat {
        Seat { name: name.to_owned(), hand, directory: directory.into(), straight: false }
    }

    /// It reaches a server that is not ours, and nothing of ours is between.
    #[must_use]
    pub fn straight(self) -> Seat {
        Seat { straight: true, ..self }
    }

    /// Was there a call that could have told it of a change?
    fn has_asked(&self, calls: &CallCounts) -> bool {
        let access = if self.straight { 0 } else { calls.of("ACCESS") };
        calls.of("LOOKUP") + calls.of("GETATTR") + access > 0
    }
}

/// How hard to try.
#[derive(Debug, Clone)]
pub struct CloseToOpen {
    /// Changes made.
    pub rounds: usize,
    /// Files shared.
    pub files: usize,
    /// One timestamp granule of the origin. File systems of Linux before 6.13 have a tick: 10 ms in a guest, 4 ms on a usual host.
    pub granularity: Duration,
}

impl Default for CloseToOpen {
    fn default() -> CloseToOpen {
        CloseToOpen { rounds: 300, files: 6, granularity: Duration::from_millis(11) }
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
    /// What the last writer saw after its change, of what clients go by.
    seen: State,
}

/// What tells a client that a file is not what it was.
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
    /// Plays all rounds and returns the number of reads checked; panics at the first read of anything but the last content, with the
    /// seed, the history and what every seat sees.
    #[track_caller]
    pub fn run(&self, seats: &mut [Seat], rng: &mut Rng) -> usize {
        assert!(seats.len() > 1, "lab: close-to-open takes two");
        let mut history = VecDeque::new();
        let mut files = self.create(&mut seats[0]);
        let mut reads = 0;
        let mut unasked = 0;
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
            unasked +=
                change(&mut files[file], &mut seats[writer], manner, round, self.granularity, &mut history);
            if unasked > UNASKED_MAX {
                fail(&files[file], seats, writer, round, &history);
            }
            let mut readers: Vec<usize> = (0..seats.len()).collect();
            rng.shuffle(&mut readers);
            for reader in readers {
                // Now and then somebody misses a change, and reads the next one with older things cached.
                if rng.below(5) > 0 {
                    let checked = check(&files[file], &mut seats[reader], round, &mut history);
                    unasked += usize::from(checked == Checked::Unasked);
                    if checked == Checked::Broken || unasked > UNASKED_MAX {
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

/// One round's change, made again until the origin's clock tells it from the last. Returns how often the client did not ask.
#[track_caller]
fn change(
    file: &mut SharedFile,
    seat: &mut Seat,
    manner: Manner,
    round: usize,
    granularity: Duration,
    history: &mut VecDeque<String>,
) -> usize {
    let mut unasked = 0;
    let size = file.content.len();
    let size = if manner == Manner::Resize { size / 2 + 20 + round % 1000 } else { size };
    let path = seat.directory.join(&file.name);
    for attempt in 0..ATTEMPTS_MAX {
        file.content = content_of(&file.name, round * 100 + attempt, &seat.name, size);
        std::thread::sleep((file.changed + granularity).saturating_duration_since(Instant::now()));
        let before = calls(seat);
        let mut done = match manner {
            Manner::Rewrite | Manner::Resize => seat.hand.write(&path, &file.content),
            Manner::Overwrite => seat.hand.overwrite(&path, &file.content),
            Manner::Replace => seat.hand.replace(&path, &file.content),
        };
        let asked = before.zip(calls(seat)).map(|(before, after)| after.since(&before));
        if manner == Manner::Overwrite
            && asked.as_ref().is_some_and(|asked| asked.of("WRITE") > 0 && !seat.has_asked(asked))
        {
            say(&format!("{} did not ask before it wrote in round {round}", seat.name));
            unasked += 1;
            done = done.and_then(|()| seat.hand.write(&path, &file.content));
        }
        file.changed = Instant::now();
        let calls = asked.map_or_else(String::new, |asked| format!(", {asked}"));
        note(history, format!("{round}: {} {manner:?} {} ({size} bytes){calls}", seat.name, file.name));
        let seen = done.and_then(|()| seat.hand.stat(&path));
        let seen = seen.unwrap_or_else(|error| {
            panic!("lab: {} cannot change {}: {error}\n{}", seat.name, path.display(), told(history))
        });
        let before = std::mem::replace(&mut file.seen, seen.into());
        if before != file.seen {
            return unasked;
        }
    }
    panic!("lab: {} changes {} and its ctime stays\n{}", seat.name, path.display(), told(history));
}

/// What came of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checked {
    /// It was the last writer's content.
    Fresh,
    /// It was not; but the client had not asked, and when it did it was.
    Unasked,
    /// It was not.
    Broken,
}

fn check(file: &SharedFile, seat: &mut Seat, round: usize, history: &mut VecDeque<String>) -> Checked {
    let path = seat.directory.join(&file.name);
    let before = calls(seat);
    let read = seat.hand.read(&path);
    note(history, format!("{round}: {} reads {}", seat.name, file.name));
    if read.as_ref().is_ok_and(|content| *content == file.content) {
        return Checked::Fresh;
    }
    let got = read.as_ref().map_or_else(ToString::to_string, |content| describe(content));
    let asked = before.zip(calls(seat)).map(|(before, after)| after.since(&before));
    let told = asked.as_ref().map_or_else(|| "what is not known".to_owned(), ToString::to_string);
    note(history, format!("{round}: {} got {got}, having asked {told}", seat.name));
    let unasked = asked.is_some_and(|asked| {
        let stale =
            read.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()));
        asked.of("LOOKUP") == 0 && (stale || !seat.has_asked(&asked))
    });
    if unasked && seat.hand.read(&path).is_ok_and(|content| content == file.content) {
        say(&format!("{} did not ask in round {round}: {got}", seat.name));
        return Checked::Unasked;
    }
    Checked::Broken
}

/// Version-3 calls that the seat's kernel has made; None where there is no NFS client.
fn calls(seat: &mut Seat) -> Option<CallCounts> {
    let statistics = seat.hand.read("/proc/net/rpc/nfs").ok()?;
    Some(CallCounts::parse(&String::from_utf8_lossy(&statistics)))
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

/// Content that says what it is in every line, so that a stale or torn read shows which version it is of.
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
