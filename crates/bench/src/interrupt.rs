//! Ending a benchmark early: everything that was started ends as it does after a measurement, and nothing is
//! left behind.
//!
//! Each worker checks the interrupt before each step and fails at the next step after the interrupt. The
//! values that represent running things are then dropped as usual: servers end, mounts are unmounted,
//! directories are removed. Waits for a server that does not answer are abandoned. If that is not enough,
//! [`Interrupt::kill`] ends the programs that a worker may be waiting for.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

/// How often a sleeping thread checks the interrupt.
const STEP: Duration = Duration::from_millis(50);

/// A request to end early; see the module. All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    told: watch::Sender<bool>,
    /// By process id. A process descriptor never refers to another process, even if the id is reused.
    programs: Mutex<BTreeMap<u32, OwnedFd>>,
}

impl Interrupt {
    /// Requests the end: from now on no new step begins.
    pub fn tell(&self) {
        self.0.told.send_replace(true);
    }

    /// True if the end was requested.
    pub fn is_told(&self) -> bool {
        *self.0.told.borrow()
    }

    /// Waits until the end is requested.
    pub async fn told(&self) {
        let mut told = self.0.told.subscribe();
        // The wait cannot fail: `self` keeps the sender alive.
        let _ = told.wait_for(|told| *told).await;
    }

    /// Checks whether the next step may begin.
    ///
    /// # Errors
    /// The end was requested.
    pub fn check(&self) -> io::Result<()> {
        if self.is_told() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }

    /// Sleeps, but returns early once the end is requested.
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

    /// Kills every program that has been [watched](Interrupt::watch), so that no worker waits for it any
    /// longer.
    pub fn kill(&self) {
        for program in self.0.programs.lock().values() {
            let _ = pidfd_send_signal(program, Signal::KILL); // it may already have ended
        }
    }

    /// Registers a child for `kill`. The caller must not have waited for the child yet.
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
