//! The change attribute: a number that grows with each change of a file through this server, even across
//! restarts.
//!
//! It is derived from ctime, since nothing else about a file survives the process. Some file systems give
//! each change a new ctime if the last one was read before (*fine* stamps, on most file systems since Linux
//! 6.13). There the change attribute *is* ctime in nanoseconds, since each change by this server reads
//! ctime first. A test at the discovery of a file system shows whether it has fine stamps.
//!
//! On other file systems all changes within one tick of the kernel's clock (1 to 10 ms) share a ctime.
//! There the server counts its own changes:
//!
//! - While another change may get the same ctime, the file is at `ctime - RESERVE`, and each change by this
//!   server adds one. The result stays below ctime and above all numbers of earlier ticks.
//! - A number stays valid as long as the file is in use here. Once the file is forgotten (after an idle
//!   minute or a restart), it is at ctime, which is higher than all numbers of that tick. So no client
//!   takes an earlier state for the last one. The price is that caches with the last state fetch it once
//!   more.
//!
//! A file whose ctime is older than a tick when it is first seen is at ctime at once. Two cases remain. If
//! the clock is set back, the number goes on growing only while the file stays in use. And two changes by
//! *other* processes of this machine within one tick may share a number.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::attributes::Stat;

/// Distance in nanoseconds between ctime and the start of the count. It is less than the shortest tick, and
/// more than the number of changes possible in a tick.
const RESERVE: u64 = 900_000;
/// Number of changes in the test for fine stamps: all of them fit into a tick.
const PROBES: u32 = 8;

/// The last number of one file, on a file system without fine stamps.
#[derive(Debug, Default)]
pub(crate) struct ChangeCounter(Mutex<Option<Given>>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Given {
    ctime: u64,
    change: u64,
}

/// The highest number of any forgotten file.
#[derive(Debug, Default)]
pub(crate) struct Forgotten(AtomicU64);

impl ChangeCounter {
    pub(crate) fn new(stat: &Stat) -> ChangeCounter {
        let given = Given { ctime: stat.ctime().as_nanos() as u64, change: stat.change() };
        ChangeCounter(Mutex::new(Some(given)))
    }

    /// The number of a file that was just read.
    pub(crate) fn look(&self, ctime: u64, nonracy: bool, forgotten: &Forgotten) -> u64 {
        let mut given = self.0.lock();
        match *given {
            Some(given) if given.ctime == ctime => given.change,
            before => given.insert(looked(before, ctime, nonracy, forgotten.highest())).change,
        }
    }

    /// The number of a file that this server has just changed.
    pub(crate) fn changed(&self, ctime: u64, forgotten: &Forgotten) -> u64 {
        let mut given = self.0.lock();
        let last = given.map_or_else(|| forgotten.highest(), |given| given.change);
        let change = start(ctime).max(last.saturating_add(1));
        given.insert(Given { ctime, change }).change
    }

    /// Records the number of a file that is about to be forgotten.
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

/// The number for a ctime that was not seen before.
fn looked(before: Option<Given>, ctime: u64, nonracy: bool, forgotten: u64) -> Given {
    let least = match (before, nonracy) {
        (Some(before), _) => before.change.saturating_add(1),
        (None, true) => 0,
        // Before it was forgotten, the file may have been counted further.
        (None, false) => forgotten.saturating_add(1),
    };
    let change = if nonracy { ctime } else { start(ctime) };
    Given { ctime, change: change.max(least) }
}

/// Does this file system give each change a new ctime, if the last one was read before? Tested with a file
/// without a name.
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
        /// A file system with a ticking clock, compared with a count of the changes. A number never means
        /// two states and never goes back, whatever is forgotten in between. (A restart takes longer than a
        /// tick.)
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
                        // Each change reads the number first.
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
