//! One program of the stress test. It is a process of its own, so that its kernel stacks can be read and it
//! can be killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::watch;

const PROGRAM: &str = include_str!("player.py");

/// A running program.
pub struct Player {
    /// Its seat, and its number.
    pub name: String,
    child: Child,
    seen: Arc<Mutex<Seen>>,
}

/// The reports of the program.
#[derive(Default)]
struct Seen {
    /// Its current operation, and since when.
    now: Option<(String, Instant)>,
    /// Number of operations done.
    done: u64,
    /// The slowest of them.
    slowest: (Duration, String),
    /// Errors that no operation may return.
    errors: Vec<String>,
}

impl Player {
    /// Starts a program; with `signals`, a timer interrupts it.
    pub fn start(name: String, directory: &Path, seed: u64, signals: bool) -> Player {
        let mut python = Command::new("python3");
        python.arg("-c").arg(PROGRAM).arg(directory).arg(seed.to_string()).args(signals.then_some("signals"));
        let mut child = python.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let seen = Arc::<Mutex<Seen>>::default();
        let (from, to) = (child.stdout.take().unwrap(), seen.clone());
        std::thread::spawn(move || listen(from, &to));
        Player { name, child, seen }
    }

    /// Is there a python3 to run the programs?
    pub fn may_start() -> bool {
        let there = Command::new("python3").arg("-c").arg("").status().is_ok_and(|status| status.success());
        if !there {
            eprintln!("skipped: there is no python3");
        }
        there
    }

    /// The process id. The process leads a group that contains its children.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The number of operations done so far.
    pub fn done(&self) -> u64 {
        self.seen.lock().unwrap().done
    }

    /// The current operation, and since when.
    pub fn now(&self) -> Option<(String, Instant)> {
        self.seen.lock().unwrap().now.clone()
    }

    /// The slowest operation.
    pub fn slowest(&self) -> (Duration, String) {
        self.seen.lock().unwrap().slowest.clone()
    }

    /// Errors so far that no operation may return.
    pub fn errors(&self) -> Vec<String> {
        self.seen.lock().unwrap().errors.clone()
    }

    /// Sends a signal to the program and its children.
    pub fn signal(&self, signal: Signal) {
        // They may have exited.
        let _ = rustix::process::kill_process_group(self.pid(), signal);
    }

    /// Sends SIGKILL. Do the program and its children exit within this time?
    pub fn kill(&mut self, within: Duration) -> bool {
        let end = Instant::now() + within;
        let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        self.signal(Signal::KILL);
        while !ended(&mut self.child) || !watch::group(self.pid()).is_empty() {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill(Duration::from_secs(1));
    }
}

fn listen(from: ChildStdout, seen: &Mutex<Seen>) {
    for line in BufReader::new(from).lines() {
        let Ok(line) = line else { return };
        let mut seen = seen.lock().unwrap();
        match line.split_at_checked(2) {
            Some(("b ", what)) => seen.now = Some((what.to_owned(), Instant::now())),
            Some(("x ", error)) => seen.errors.push(error.to_owned()),
            _ => {
                if let Some((what, since)) = seen.now.take() {
                    seen.done += 1;
                    if since.elapsed() > seen.slowest.0 {
                        seen.slowest = (since.elapsed(), what);
                    }
                }
            }
        }
    }
}
