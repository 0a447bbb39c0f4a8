//! The change attribute: a number that grows with every change of a file made through us, also across restarts.
//!
//! It is made of ctime, because nothing else of a file survives us. Where the file system stamps every change that
//! somebody looked before with a time of its own (*fine* stamps: Linux 6.13 and later on most of them), it *is* ctime
//! in nanoseconds: every change of ours looks before it changes. Whether that is so is tried out when a file system is
//! met.
//!
//! Elsewhere all changes within one tick of the kernel's clock (1 to 10 ms) share a ctime, and ours are counted:
//!
//! - as long as another change may come with the same ctime, the file is at `ctime - RESERVE`, and each change of ours
//!   adds one. That stays below ctime itself and above all that belongs to earlier ticks;
//! - what was given stays given for as long as the file is in use here. Once it is forgotten (idle for a minute, a
//!   restart), the file is at ctime: higher than all that was given in that tick, so that nobody takes an earlier state
//!   for the last one. Caches that hold the last state fetch it once more; that is the price.
//!
//! A file whose ctime is older than a tick when it is first seen is at ctime at once. What this cannot outlive: a clock
//! that is set back (while the file stays in use the number goes on growing), and two changes by *other* processes of
//! this machine within one tick.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::attributes::Stat;

/// How far below ctime counting starts, in nanoseconds: less than the shortest tick, and more than the changes that a
/// tick has time for.
const RESERVE: u64 = 900_000;
/// Changes that are tried to tell the kind of stamps: all of them fit a tick.
const PROBES: u32 = 8;

/// What was given last for one file whose file system has no fine stamps.
#[derive(Debug, Default)]
pub(crate) struct ChangeCounter(Mutex<Option<Given>>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Given {
    ctime: u64,
    change: u64,
}

/// The highest number that was given for any file that is forgotten now.
#[derive(Debug, Default)]
pub(crate) struct Forgotten(AtomicU64);

impl ChangeCounter {
    pub(crate) fn new(stat: &Stat) -> ChangeCounter {
        let given = Given { ctime: stat.ctime().as_nanos() as u64, change: stat.change() };
        ChangeCounter(Mutex::new(Some(given)))
    }

    /// The number of a file that was just looked at.
    pub(crate) fn look(&self, ctime: u64, nonracy: bool, forgotten: &Forgotten) -> u64 {
        let mut given = self.0.lock();
        match *given {
            Some(given) if given.ctime == ctime => given.change,
            before => given.insert(looked(before, ctime, nonracy, forgotten.highest())).change,
        }
    }

    /// The number of a file that was just changed by us.
    pub(crate) fn changed(&self, ctime: u64, forgotten: &Forgotten) -> u64 {
        let mut given = self.0.lock();
        let last = given.map_or_else(|| forgotten.highest(), |given| given.change);
        let change = start(ctime).max(last.saturating_add(1));
        given.insert(Given { ctime, change }).change
    }

    /// The file is forgotten.
    pub(crate) fn forget(&self, forgotten: &Forgotten) {
        if let Some(given) = *self.0.lock() {
            forgotten.0.fetch_max(given.change, Ordering::Relaxed);
        }
    }
}

impl Forgotten {
    /// The number of a file that is not in use.
    pub(crate) fn look(&self, ctime: u64, nonracy: bool) -> u64 {
        looked(None, ctime, nonracy, self.highest()).change
    }

    fn highest(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn start(ctime: u64) -> u64 {
    ctime.saturating_sub(RESERVE)
}

/// What a ctime gives that was not seen before.
fn looked(before: Option<Given>, ctime: u64, nonracy: bool, forgotten: u64) -> Given {
    let least = match (before, nonracy) {
        (Some(before), _) => before.change.saturating_add(1),
        (None, true) => 0,
        // It may have been counted further before it was forgotten.
        (None, false) => forgotten.saturating_add(1),
    };
    let change = if nonracy { ctime } else { start(ctime) };
    Given { ctime, change: change.max(least) }
}

/// Does this file system give each change that was looked before a ctime of its own? Tried with a file that has no name.
pub(crate) fn has_fine_stamps(directory: BorrowedFd<'_>) -> bool {
    probe(directory).unwrap_or(false)
}

fn probe(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, c".", flags, Mode::RUSR | Mode::WUSR)?;
    let mut before = Stat::of(&file)?.ctime();
    for probe in 0..PROBES {
        let mode = if probe % 2 == 0 { Mode::RUSR } else { Mode::RUSR | Mode::WUSR };
        rustix::fs::fchmod(&file, mode)?;
        let after = Stat::of(&file)?.ctime();
        if after <= before {
            return Ok(false);
        }
        before = after;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: u64 = 1_000_000;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Change,
        Look,
        Tick,
        Forget,
        Restart,
    }

    proptest! {
        /// A file system with a clock that ticks, against a count of what was done to the file: a number never means two
        /// states, and it never goes back, whatever is forgotten in between. (A restart takes longer than a tick.)
        #[test]
        fn a_number_means_one_state_and_never_goes_back(steps in prop::collection::vec(
            prop_oneof![
                6 => Just(Step::Change), 3 => Just(Step::Look), 2 => Just(Step::Tick), 1 => Just(Step::Forget),
                1 => Just(Step::Restart),
            ],
            1..200,
        )) {
            let (mut now, mut ctime, mut state) = (100 * TICK, 100 * TICK, 0_u32);
            let (mut counter, mut forgotten) = (ChangeCounter::default(), Forgotten::default());
            let mut given: Vec<(u64, u32)> = Vec::new();
            for step in steps {
                let seen = match step {
                    Step::Change => {
                        state += 1;
                        // As every change does, it looks first.
                        counter.look(ctime, now > ctime, &forgotten);
                        ctime = now;
                        Some(counter.changed(ctime, &forgotten))
                    }
                    Step::Look => Some(counter.look(ctime, now > ctime, &forgotten)),
                    Step::Tick => {
                        now += TICK;
                        None
                    }
                    Step::Forget => {
                        counter.forget(&forgotten);
                        counter = ChangeCounter::default();
                        None
                    }
                    Step::Restart => {
                        now += TICK;
                        (counter, forgotten) = (ChangeCounter::default(), Forgotten::default());
                        None
                    }
                };
                if let Some(seen) = seen {
                    if let Some(&(last, of)) = given.last() {
                        prop_assert!(seen > last || (seen == last && of == state), "{last} for {of}, {seen} for {state}");
                    }
                    given.push((seen, state));
                }
            }
        }
    }

    #[test]
    fn stamps_are_tried_without_a_trace() {
        let home = tempfile::tempdir().unwrap();
        let before = Stat::of(std::fs::File::open(home.path()).unwrap()).unwrap();
        let directory = std::fs::File::open(home.path()).unwrap();
        has_fine_stamps(std::os::fd::AsFd::as_fd(&directory));
        assert_eq!(Stat::of(&directory).unwrap().ctime(), before.ctime());
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
