//! Checks that no program hangs in the kernel. Programs use a mount in all ways at once, on a few files.
//! Another mount and processes on the server's machine change the same files, so leases are recalled and the
//! kernel is notified. Meanwhile the test freezes the server, cuts the network, stops, interrupts and kills
//! programs, and drops the kernel's caches. At the end it stops the mount while the server is frozen.
//!
//! A watchdog limits the time that an operation may take while the server answers, and prints the kernel
//! stacks if one is overdue. `LAB_SEED` repeats a failure (as far as a seed can), `LAB_SECONDS` sets the
//! duration.
//!
//! Promise: no-program-hangs

mod player;
pub mod watch;

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench::relay::{Cut, Options, Relay};
use lab::Rng;
use rustix::process::{Signal, kill_process};

use crate::setting::{Setting, VERSIONS, may_mount, wait_until};
use player::Player;
use watch::Connection;

/// An operation must end within this time while the server answers.
const BOUND: Duration = Duration::from_secs(15);
/// After SIGTERM the mount must be detached within this time, and no program may wait for it any more.
const END: Duration = Duration::from_secs(20);
/// Programs on the tested mount, on the other mount, and on the server's machine.
const SEATS: [(&str, usize); 3] = [("a", 5), ("b", 2), ("there", 1)];
/// How often the kernel's caches are dropped at most; that slows the whole machine.
const FORGETS_MAX: usize = 2;

#[test]
fn no_program_hangs_whatever_the_server_and_the_network_do() {
    if !may_mount() || !Player::may_start() {
        return;
    }
    for version in VERSIONS {
        eprintln!("version {version}");
        let mut run = Run::start(version);
        run.play();
        run.end();
    }
}

/// How long to play for each version.
fn time() -> Duration {
    let given = std::env::var("LAB_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(9))
}

/// The disturbances.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Freeze,
    Reset,
    BlackHole,
    Kill,
    Stop,
    Forget,
}

const BLOWS: [Blow; 6] = [Blow::Freeze, Blow::Reset, Blow::BlackHole, Blow::Kill, Blow::Stop, Blow::Forget];

/// Makes the kernel drop dentries and inodes of the whole machine. False while another program's test counts
/// calls. Another process writes the command, so that the test does not wait. Without the permission for it,
/// the names that come and go must be enough.
fn forget() -> bool {
    let Some(lock) = lab::may_drop_kernel_caches() else { return false };
    let forget =
        Command::new("sh").args(["-c", "echo 2 > /proc/sys/vm/drop_caches"]).stderr(Stdio::null()).spawn();
    std::thread::spawn(move || {
        let _ = forget.and_then(|mut forget| forget.wait());
        drop(lock);
    });
    true
}

struct Run {
    rng: Rng,
    players: Vec<Player>,
    started: usize,
    forgets: usize,
    /// Since when the server has answered; None while it does not.
    answers: Option<Instant>,
    connection: Connection,
    setting: Setting,
    relay: Relay,
    _runtime: tokio::runtime::Runtime,
}

impl Run {
    fn start(version: &str) -> Run {
        let mut setting = Setting::new();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let relay = {
            let _runtime = runtime.enter();
            let options = Options { udp: false, ..Options::default() };
            Relay::start(setting.server().address.parse().unwrap(), options).unwrap()
        };
        setting.mount_from(&relay.local_addr().to_string(), "a", &format!("vers={version},timeo=20"));
        setting.mount("b", "vers=4.2");
        let connection = Connection::of(&setting.at("a", ""));
        let mut run = Run {
            rng: Rng::from_environment(),
            players: Vec::new(),
            started: 0,
            forgets: 0,
            answers: Some(Instant::now()),
            connection,
            setting,
            relay,
            _runtime: runtime,
        };
        for (seat, count) in SEATS {
            (0..count).for_each(|_| run.seat(seat));
        }
        run
    }

    /// Starts one more program.
    fn seat(&mut self, seat: &str) {
        let place = if seat == "there" { self.setting.there("") } else { self.setting.at(seat, "") };
        let name = format!("{seat}-{}", self.started);
        self.players.push(Player::start(name, &place, self.rng.next_u64(), self.started.is_multiple_of(2)));
        self.started += 1;
    }

    fn play(&mut self) {
        let (start, mut blows) = (Instant::now(), Vec::new());
        while start.elapsed() < time() {
            if blows.is_empty() {
                blows = BLOWS.to_vec();
                self.rng.shuffle(&mut blows);
            }
            let calm = 50 + self.rng.below(300);
            self.watch_for(Duration::from_millis(calm as u64));
            self.strike(blows.pop().unwrap());
        }
        self.all_go_on();
        let slowest = self.players.iter().map(|player| (player.slowest(), &player.name)).max();
        let done: u64 = self.players.iter().map(Player::done).sum();
        eprintln!(
            "{} programs did {done} things; the slowest of those still there: {slowest:?}",
            self.started
        );
    }

    fn strike(&mut self, blow: Blow) {
        let time = Duration::from_millis(50 + self.rng.below(750) as u64);
        match blow {
            Blow::Freeze => {
                self.freeze();
                std::thread::sleep(time);
                self.thaw();
            }
            Blow::Reset => self.cut(Cut::Reset, time),
            Blow::BlackHole => self.cut(Cut::BlackHole, time),
            Blow::Kill => {
                let at = self.rng.below(SEATS[0].1);
                let mut victim = self.players.remove(at);
                if !victim.kill(BOUND) {
                    self.players.push(victim);
                    self.fail("a program that was killed does not end");
                }
                self.seat("a");
                // The programs on the tested mount come first.
                self.players.rotate_right(1);
            }
            Blow::Stop => {
                let at = self.rng.below(SEATS[0].1);
                self.players[at].signal(Signal::STOP);
                std::thread::sleep(time / 4);
                self.players[at].signal(Signal::CONT);
            }
            Blow::Forget if self.forgets < FORGETS_MAX => {
                self.forgets += usize::from(forget());
            }
            Blow::Forget => {}
        }
    }

    fn freeze(&mut self) {
        self.answers = None;
        lab::freeze(self.setting.server().pid());
    }

    fn thaw(&mut self) {
        kill_process(self.setting.server().pid(), Signal::CONT).unwrap();
        self.answers = Some(Instant::now());
    }

    fn cut(&mut self, cut: Cut, time: Duration) {
        self.answers = None;
        self.relay.cut(cut);
        std::thread::sleep(time);
        self.relay.restore();
        self.answers = Some(Instant::now());
    }

    /// Lets the programs play, and checks for overdue operations.
    fn watch_for(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until each program has made progress.
    fn all_go_on(&self) {
        let before: Vec<_> = self.judged().map(Player::done).collect();
        while self.judged().zip(&before).any(|(player, before)| player.done() <= *before) {
            self.look();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The programs on a mount. On the server's machine, an open waits for the kernel's leases for any length
    /// of time.
    fn judged(&self) -> impl Iterator<Item = &Player> {
        self.players.iter().filter(|player| !player.name.starts_with("there"))
    }

    fn look(&self) {
        let Some(answers) = self.answers else { return };
        for player in self.judged() {
            if let Some(error) = player.errors().first() {
                self.fail(&format!("{}: {error}", player.name));
            }
            let Some((what, since)) = player.now() else { continue };
            if since.max(answers).elapsed() > BOUND {
                self.fail(&format!("{}: {what} for {:?}", player.name, since.elapsed()));
            }
        }
    }

    /// Sends SIGTERM while the server is frozen: the mount is detached, and no program waits for it any more.
    fn end(mut self) {
        self.freeze();
        let stuck = |player: &Player| {
            player.now().is_some_and(|(_, since)| since.elapsed() > Duration::from_millis(300))
        };
        wait_until(|| self.players.iter().any(stuck) && self.connection.waiting() != Some(0));
        let start = Instant::now();
        let mut mount = self.setting.terminate("a");
        let at = self.setting.at("a", "");
        while mount::mounted_at(&at).is_some() {
            if start.elapsed() > END {
                self.fail("the mount is still there");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let (ours, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.players).into_iter().partition(|player| player.name.starts_with("a-"));
        self.players = ours;
        self.end_players(END.saturating_sub(start.elapsed()));
        eprintln!("nobody waits {:?} after the SIGTERM", start.elapsed());
        self.thaw();
        let start = Instant::now();
        while mount.try_wait().unwrap().is_none() {
            if start.elapsed() > END {
                self.fail(&watch::tell("the mount", rustix::process::Pid::from_child(&mount)));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.players = others;
        self.end_players(BOUND);
        self.setting.unmount("b");
    }

    /// Kills all programs first and then waits for them, because one program may wait for another.
    fn end_players(&mut self, within: Duration) {
        let end = Instant::now() + within;
        self.players.iter().for_each(|player| player.signal(Signal::KILL));
        for at in 0..self.players.len() {
            if !self.players[at].kill(end.saturating_duration_since(Instant::now())) {
                self.fail("a program that was killed does not end");
            }
        }
        self.players.clear();
    }

    /// Reports what every program is doing, aborts the connection so that nothing hangs, and fails the test.
    fn fail(&self, why: &str) -> ! {
        let mut told = format!("{why}; FUSE waits for {:?} answers\n", self.connection.waiting());
        for player in &self.players {
            let _ = writeln!(told, "{} is at {:?}; {:?}", player.name, player.now(), player.errors());
            for (pid, _) in watch::group(player.pid()) {
                told.push_str(&watch::tell(&player.name, pid));
            }
        }
        for name in ["a", "b"] {
            if let Some(pid) = self.setting.pid_of(name) {
                told.push_str(&watch::tell(&format!("mount {name}"), pid));
            }
        }
        let log = fs::read_to_string(self.setting.place("log-a")).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(30).collect();
        for line in last.iter().rev() {
            let _ = writeln!(told, "log: {line}"); // a string takes all
        }
        let _ = kill_process(self.setting.server().pid(), Signal::CONT);
        self.connection.abort();
        panic!("{told}");
    }
}
