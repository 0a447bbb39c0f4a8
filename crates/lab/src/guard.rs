//! The test's side of the guard (see the program `lab-hand guard`): says what exists, so that it goes when the test does.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A running guard; dropping it cleans up and waits until all is clean.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    list: Mutex<Option<ChildStdin>>,
}

impl Guard {
    /// Starts the guard. It holds `lock` as long as it lives: nobody enters the lab before it has cleaned up.
    pub(crate) fn start(hand: &Path, lock: File) -> Guard {
        let mut command = Command::new(hand);
        // A process group of its own: an interrupt from the terminal must not reach it.
        command.arg("guard").stdin(Stdio::piped()).stdout(Stdio::from(lock)).process_group(0);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("lab: cannot start {}: {error}", hand.display()));
        let list = Mutex::new(child.stdin.take());
        Guard { child, list }
    }

    /// `thing` exists from now on: `group PGID`, `link DEVICE`, `address CIDR DEVICE` or `directory PATH`.
    pub(crate) fn add(&self, thing: &str) {
        self.say('+', thing);
    }

    /// `thing` is gone.
    pub(crate) fn forget(&self, thing: &str) {
        self.say('-', thing);
    }

    fn say(&self, sign: char, thing: &str) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = list.as_mut() {
            // A guard that died cannot be told; what it would have cleaned is cleaned by its owners.
            let _ = writeln!(list, "{sign} {thing}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.list.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.child.wait();
    }
}
