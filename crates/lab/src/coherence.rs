//! A test that tries to break coherence: clients open, read, write, truncate, replace and lock the same files
//! concurrently. They keep files open while they do other things.
//!
//! Each player has a hand and a thread. The [`ledger`] states what a player may see, and is consulted at the
//! end of each act. These rules hold with and without delegations:
//!
//! - A read returns data that was settled when the file was opened, or later data. Under a lock it returns
//!   exactly the last data written.
//! - Two players never hold the same lock.
//! - A lock is not denied if no other player wants it.
//!
//! A client with a delegation does not ask the server, so only a recall can prevent it from reading old data.
//!
//! The test does not require more than Linux clients promise. A client takes the change of its own WRITE for
//! the only one, so a file has one writer at a time unless it is locked for each access. A client that has a
//! file open without a lock may continue to see old data. Another open, for writing, does not end that
//! (docs/results/2026-11-27-open-for-writing.md), so a player closes a file before it opens it for writing.
//! Version 3 players have no locks. Mount with `lookupcache=none`: cached names are not part of this test.
//!
//! The seed determines what each player does, but not how the acts interleave.

mod act;
mod ledger;
mod stamp;

use crate::close_to_open::Seat;
use crate::log::say;
use crate::rng::Rng;
use act::Act;
use ledger::{BLOCKS, Ledger};
use stamp::BLOCK_BYTES;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of names of files with one writer at a time.
const CLOSERS: usize = 4;
/// Number of names of files that are locked for each access.
const LOCKERS: usize = 2;
/// Files that a player may keep open.
const OPEN_MAX: usize = 6;
/// Acts that a failure prints.
const HISTORY_MAX: usize = 60;

/// A participant.
#[derive(Debug)]
pub struct Player {
    seat: Seat,
    has_locks: bool,
    rests: bool,
    open: Vec<Kept>,
    made: usize,
}

/// A file that a player keeps open.
#[derive(Debug)]
struct Kept {
    open: crate::hand::OpenFile,
    file: usize,
    writes: bool,
    floors: ledger::Floors,
}

impl Player {
    /// A player that uses the seat's shared directory. `has_locks` states whether its locks conflict with
    /// those of the others.
    pub fn new(seat: Seat, has_locks: bool) -> Player {
        Player { seat, has_locks, rests: false, open: Vec::new(), made: 0 }
    }
}

/// Counters of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Acts of all players.
    pub steps: usize,
    /// Opens that found the right file.
    pub opens: usize,
    /// Reads that returned permitted data.
    pub reads: usize,
    /// Locks that were granted.
    pub locks: usize,
    /// Locks that were denied because another player held or wanted them.
    pub denied: usize,
    /// The longest duration of an act.
    pub slowest: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { steps, opens, reads, locks, denied, slowest } = self;
        write!(
            to,
            "{steps} acts, {opens} opens, {reads} reads, {locks} locks and {denied} denied, none wrong; "
        )?;
        write!(to, "slowest {:.2} s", slowest.as_secs_f64())
    }
}

/// The players, and the known state of the files.
#[derive(Debug)]
pub struct Coherence {
    players: Vec<Option<Player>>,
    board: Board,
}

/// State that the players share.
#[derive(Debug)]
struct Board {
    ledger: Mutex<Ledger>,
    history: Mutex<VecDeque<String>>,
    report: Mutex<Report>,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
    steps: AtomicUsize,
    granularity: Duration,
}

impl Coherence {
    /// The first player makes the files. After writing a file, a player waits for `granularity` before
    /// another one may write it. If a version 2 or 3 client or origin takes part, this must be the timestamp
    /// granularity of the origin.
    pub fn new(players: Vec<Player>, granularity: Duration) -> Coherence {
        let board = Board {
            ledger: Mutex::default(),
            history: Mutex::default(),
            report: Mutex::default(),
            failure: Mutex::default(),
            stop: AtomicBool::new(false),
            steps: AtomicUsize::new(0),
            granularity,
        };
        let mut game = Coherence { players: players.into_iter().map(Some).collect(), board };
        if let Some(Some(player)) = game.players.first_mut() {
            for name in 0..CLOSERS + LOCKERS {
                let mut act = Act { number: 0, player, board: &game.board };
                act.make(name)
                    .unwrap_or_else(|error| panic!("lab: coherence: cannot make the files: {error}"));
            }
        }
        game
    }

    /// Lets each player make `steps` acts.
    #[track_caller]
    pub fn run(&mut self, steps: usize, rng: &mut Rng) -> Report {
        self.run_while(steps, rng, |_| {})
    }

    /// As `run`, and calls `meanwhile` at the same time. Its argument returns the number of acts so far.
    #[track_caller]
    pub fn run_while(
        &mut self,
        steps: usize,
        rng: &mut Rng,
        meanwhile: impl FnOnce(&dyn Fn() -> usize),
    ) -> Report {
        let board = &self.board;
        *board.report.lock().unwrap_or_else(PoisonError::into_inner) = Report::default();
        board.steps.store(0, Ordering::Relaxed);
        thread::scope(|scope| {
            for (number, player) in self.players.iter_mut().enumerate() {
                let Some(player) = player.as_mut().filter(|player| !player.rests) else { continue };
                let mut rng = Rng::new(rng.next_u64());
                scope.spawn(move || play(number, player, board, steps, &mut rng));
            }
            meanwhile(&|| board.steps.load(Ordering::Relaxed));
        });
        let failure = board.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(failure) = failure {
            let history = board.history.lock().unwrap_or_else(PoisonError::into_inner);
            let history: Vec<&str> = history.iter().map(String::as_str).collect();
            panic!("lab: coherence is broken: {failure}\nhistory:\n  {}", history.join("\n  "));
        }
        let report = *board.report.lock().unwrap_or_else(PoisonError::into_inner);
        say(&format!("coherence: {report}"));
        report
    }

    /// Sets whether a player pauses; it keeps its open files.
    pub fn rest(&mut self, number: usize, rests: bool) {
        if let Some(player) = &mut self.players[number] {
            player.rests = rests;
        }
    }

    /// Removes a player whose client was lost, with all locks that it held and all data that it had not
    /// flushed.
    pub fn leave(&mut self, number: usize) {
        if self.players[number].take().is_some() {
            self.board.ledger().leave(number);
        }
    }
}

impl Board {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, add: impl FnOnce(&mut Report)) {
        add(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note(&self, step: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let step = format!("{:.3} {step}", now.as_secs_f64());
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.push_back(step);
        if history.len() > HISTORY_MAX {
            history.pop_front();
        }
    }

    fn fail(&self, what: String) {
        self.stop.store(true, Ordering::Relaxed);
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }
}

fn play(number: usize, player: &mut Player, board: &Board, steps: usize, rng: &mut Rng) {
    for _ in 0..steps {
        if board.stop.load(Ordering::Relaxed) {
            return;
        }
        let started = Instant::now();
        let mut act = Act { number, player: &mut *player, board };
        if let Err(failure) = act.any(rng) {
            let name = &player.seat.name;
            return board.fail(format!("{name}: {failure}"));
        }
        let took = started.elapsed();
        board.count(|report| {
            report.steps += 1;
            report.slowest = report.slowest.max(took);
        });
        board.steps.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Coherence, Player};
    use crate::close_to_open::Seat;
    use crate::{Hand, Rng};
    use std::path::Path;
    use std::time::Duration;

    fn players(directories: [&Path; 3]) -> Vec<Player> {
        let names = ["a", "b", "c"].into_iter().zip(directories);
        names.map(|(name, at)| Player::new(Seat::new(name, Hand::on_host(), at), true)).collect()
    }

    #[test]
    fn one_directory_is_coherent() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut game = Coherence::new(players([directory.path(); 3]), Duration::ZERO);
        let report = game.run(2000, &mut Rng::new(7));
        assert!(
            report.steps == 6000 && report.reads > 1000 && report.locks > 200 && report.denied > 0,
            "{report}"
        );
        game.leave(1);
        assert_eq!(game.run(500, &mut Rng::new(8)).steps, 1000);
    }

    #[test]
    #[should_panic(expected = "coherence is broken")]
    fn a_copy_that_nobody_keeps_up_to_date_is_not() {
        let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let [one, other] = directories.each_ref().map(tempfile::TempDir::path);
        let mut game = Coherence::new(players([one, one, other]), Duration::ZERO);
        for file in std::fs::read_dir(one).expect("a directory") {
            let file = file.expect("a file");
            std::fs::hard_link(file.path(), other.join(file.file_name())).expect("a link");
        }
        // The files are the same, until one is replaced or its copy is read.
        game.run(2000, &mut Rng::new(7));
    }
}
