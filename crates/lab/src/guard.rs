//! The test's side of the guard (see the program `lab-hand guard`): registers the things to remove when the
//! test ends.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A running guard. Dropping it cleans up, and waits for the cleanup.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    list: Mutex<Option<ChildStdin>>,
}

impl Guard {
    /// Starts the guard. It holds `lock` until it has cleaned up, so that no other test enters the lab
    /// before.
    pub(crate) fn start(hand: &Path, lock: File) -> Guard {
        let mut command = Command::new(hand);
        // Its own process group, so that an interrupt from the terminal does not reach it.
        command.arg("guard").stdin(Stdio::piped()).stdout(Stdio::from(lock)).process_group(0);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("lab: cannot start {}: {error}", hand.display()));
        let list = Mutex::new(child.stdin.take());
        Guard { child, list }
    }

    /// Registers `thing`: `group PGID`, `link DEVICE`, `address CIDR DEVICE` or `directory PATH`.
    pub(crate) fn add(&self, thing: &str) {
        self.say('+', thing);
    }

    /// Unregisters `thing`, which no longer exists.
    pub(crate) fn forget(&self, thing: &str) {
        self.say('-', thing);
    }

    fn say(&self, sign: char, thing: &str) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = list.as_mut() {
            // If the guard has died, the owners of the things still clean them up.
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
