//! An end before the end: what has been started ends as it does after a measurement, and is not left behind.
//!
//! Who works looks here before each step, and fails at the next one once it has been told; so the value of everything
//! that runs goes its usual way: servers are ended, mounts unmounted, directories removed. What waits for a server that
//! does not answer is given up. If that is not enough, [`Interrupt::kill`] ends the programs that somebody may wait for.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

/// How often a thread that sleeps looks.
const STEP: Duration = Duration::from_millis(50);

/// See the module. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    told: watch::Sender<bool>,
    /// By process id; a descriptor cannot come to mean another process.
    programs: Mutex<BTreeMap<u32, OwnedFd>>,
}

impl Interrupt {
    /// From now on nothing new is begun.
    pub fn tell(&self) {
        self.0.told.send_replace(true);
    }

    /// Has that been said?
    pub fn is_told(&self) -> bool {
        *self.0.told.borrow()
    }

    /// Waits until it is.
    pub async fn told(&self) {
        let mut told = self.0.told.subscribe();
        // The sender lives as long as we do.
        let _ = told.wait_for(|told| *told).await;
    }

    /// May the next step be taken?
    ///
    /// # Errors
    /// It was told.
    pub fn check(&self) -> io::Result<()> {
        if self.is_told() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }

    /// Sleeps, but not on after it was told.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_told() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(STEP));
        }
    }

    /// Kills every program that has been [watched](Interrupt::watch): who waits for one of them waits no longer.
    pub fn kill(&self) {
        for program in self.0.programs.lock().values() {
            let _ = pidfd_send_signal(program, Signal::KILL); // it may have ended by itself
        }
    }

    /// A child that has just been started and has not been waited for.
    pub(crate) fn watch(&self, child: &std::process::Child) {
        if let Ok(descriptor) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
            self.0.programs.lock().insert(child.id(), descriptor);
        }
    }

    pub(crate) fn forget(&self, child: &std::process::Child) {
        self.0.programs.lock().remove(&child.id());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn who_is_told_takes_no_further_step() {
        let interrupt = Interrupt::default();
        let other = interrupt.clone();
        assert!(other.check().is_ok());
        let asleep = std::thread::spawn(move || other.sleep(Duration::from_secs(600)));
        interrupt.tell();
        asleep.join().unwrap();
        assert!(interrupt.check().unwrap_err().to_string().contains("interrupted"));
    }

    #[test]
    fn programs_that_are_watched_can_be_killed_and_others_not() {
        let interrupt = Interrupt::default();
        let sleep = || Command::new("sleep").arg("600").spawn().unwrap();
        let (mut watched, mut forgotten) = (sleep(), sleep());
        interrupt.watch(&watched);
        interrupt.watch(&forgotten);
        interrupt.forget(&forgotten);
        interrupt.kill();
        assert_eq!(watched.wait().unwrap().signal(), Some(9));
        assert!(forgotten.try_wait().unwrap().is_none());
        forgotten.kill().unwrap();
        forgotten.wait().unwrap();
    }
}
