//! Tries to break coherence: clients open, read, write, truncate, replace and lock the same files all at once, and keep
//! files open while they do other things.
//!
//! Each player has a hand and a thread. What it may see is in the [`ledger`], which is asked at the end of each act: a read
//! must give what was settled when the file was opened or anything later, and under a lock exactly what was written last;
//! two must not hold the same lock; a lock that nobody else wants must not be denied. That holds with delegations and
//! without: while a client holds one it asks nobody, so that only a recall can keep it from reading what is old.
//!
//! What Linux clients do not promise is not asked of them: a file has one writer at a time unless it is locked for each
//! access (a client takes the change that its own WRITE made for the only one), and who has a file open and does not lock
//! may go on seeing what it saw. Players of version 3 have no locks. Mount with `lookupcache=none`: names that a client
//! remembers are not our matter.
//!
//! A seed decides what each player does, not how their acts fall together.

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

/// Names of files with one writer at a time.
const CLOSERS: usize = 4;
/// Names of files that are locked for each access.
const LOCKERS: usize = 2;
/// Files that a player keeps open.
const OPEN_MAX: usize = 6;
/// Acts that a failure shows.
const HISTORY_MAX: usize = 60;

/// Somebody who takes part.
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
    /// A player who sees the shared directory where the seat has it; `has_locks` where its locks reach the others.
    pub fn new(seat: Seat, has_locks: bool) -> Player {
        Player { seat, has_locks, rests: false, open: Vec::new(), made: 0 }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Acts of all players.
    pub steps: usize,
    /// Opens that led to the right file.
    pub opens: usize,
    /// Reads that gave what they may.
    pub reads: usize,
    /// Locks that were granted.
    pub locks: usize,
    /// Locks that were denied, because another had or wanted them.
    pub denied: usize,
    /// The longest that one act took.
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

/// The game: its players, and what is known of the files.
#[derive(Debug)]
pub struct Coherence {
    players: Vec<Option<Player>>,
    board: Board,
}

/// What the players share.
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
    /// The first player makes the files. Who writes waits for `granularity` before another may write the same file: where a
    /// version 2 or 3 client or origin takes part, that of the origin's time stamps.
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

    /// All players act `steps` times each.
    #[track_caller]
    pub fn run(&mut self, steps: usize, rng: &mut Rng) -> Report {
        self.run_while(steps, rng, |_| {})
    }

    /// The same, and meanwhile something happens; it is told how to find out how many steps were made.
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

    /// Whether a player sits out; what it has open stays open.
    pub fn rest(&mut self, number: usize, rests: bool) {
        if let Some(player) = &mut self.players[number] {
            player.rests = rests;
        }
    }

    /// A player is no more: its client was lost, with all that it held and had not flushed.
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
        // The same files, until one is replaced or its copy read.
        game.run(2000, &mut Rng::new(7));
    }
}
