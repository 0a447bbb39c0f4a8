//! Lanes: separate parts of the lab, each with its own addresses and tap devices.
//!
//! A machine has one lane more than processors, up to four, because a test waits for timers of its kernels
//! for a third of its time. A test takes any free lane. If it measures times, which other tests would
//! disturb, it takes all lanes.
//!
//! In lane L the host has the address 10.(77+L).0.1 (on `lo`). Guest N has 10.(77+L).N.2 on the tap device
//! `lhlabLxN`, whose host end is 10.(77+L).N.1. Within a lane, numbers need no further coordination.

use crate::log::say;
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

/// The most lanes: with more of them, guests would run out of memory before processors.
const LANES_MAX: usize = 4;
/// How often a test that waits for any lane checks again: the kernel cannot wait for the first of several
/// locks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A lane that a test has taken. Its locks are passed to the guard, which ends the test's use of the lab.
#[derive(Debug)]
pub(crate) struct Lane {
    number: u8,
}

/// Locks that keep other tests out of lanes; that of the test's own lane is first.
pub(crate) type Locks = Vec<File>;

impl Lane {
    /// Takes a free lane for the test `name`; waits until there is one.
    pub(crate) fn take(name: &str) -> (Lane, Locks) {
        let mut told = false;
        loop {
            for number in 0..count() {
                let lock = open(number);
                if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    sign(&lock, number, name);
                    return (Lane { number }, vec![lock]);
                }
            }
            if !told {
                say(&format!("{name} waits for {}", holders()));
                told = true;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Takes all lanes in order, so that two tests that want all of them do not deadlock.
    pub(crate) fn take_all(name: &str) -> (Lane, Locks) {
        let mut locks = Locks::new();
        for number in 0..count() {
            let lock = open(number);
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                say(&format!("{name} waits, to be alone, for {}", holder(&lock)));
                let locked = rustix::fs::flock(&lock, FlockOperation::LockExclusive);
                locked.unwrap_or_else(|error| panic!("lab: {}: {error}", path(number)));
            }
            sign(&lock, number, name);
            locks.push(lock);
        }
        (Lane { number: 0 }, locks)
    }

    /// The host's address for every guest of the lane.
    pub(crate) fn host(&self) -> Ipv4Addr {
        self.address(0, 1)
    }

    /// The address `host` in the network of guest `guest`.
    pub(crate) fn address(&self, guest: u8, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77 + self.number, guest, host)
    }

    /// The tap device of a guest.
    pub(crate) fn device(&self, guest: u8) -> String {
        format!("lhlab{}x{guest}", self.number)
    }

    /// The processor of a guest, among those that this process may use. Guests get them from the last one
    /// downwards, and each lane begins with a different one.
    pub(crate) fn processor(&self, guest: u8) -> usize {
        let processors = processors();
        let dealt = usize::from(self.number) + usize::from(guest) - 1;
        processors.iter().rev().nth(dealt % processors.len()).copied().unwrap_or(0)
    }
}

/// Number of lanes on this machine: so many tests may run at the same time.
pub fn count() -> u8 {
    (processors().len() + 1).clamp(1, LANES_MAX) as u8
}

/// The processors that this process may use; at least one.
fn processors() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let processors: Vec<usize> =
        allowed.map_or_else(Vec::new, |set| (0..1024).filter(|cpu| set.is_set(*cpu)).collect());
    if processors.is_empty() { vec![0] } else { processors }
}

/// Path of a lane's lock file.
fn path(number: u8) -> String {
    format!("/var/tmp/leasehold-lab.{number}.lock")
}

fn open(number: u8) -> File {
    let mut options = OpenOptions::new();
    let lock = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path(number));
    lock.unwrap_or_else(|error| panic!("lab: cannot open {}: {error}", path(number)))
}

/// Writes the holder's name into the lock file, for tests that wait.
fn sign(lock: &File, number: u8, name: &str) {
    let told = lock.set_len(0);
    let told =
        told.and_then(|()| lock.write_all_at(format!("{name} ({})", std::process::id()).as_bytes(), 0));
    told.unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", path(number)));
}

fn holder(mut lock: &File) -> String {
    let mut holder = String::new();
    let _ = lock.read_to_string(&mut holder); // the name is only informative
    if holder.is_empty() { "another test".to_owned() } else { holder }
}

fn holders() -> String {
    (0..count()).map(|number| holder(&open(number))).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::Lane;

    #[test]
    fn lanes_have_nothing_in_common() {
        let [first, second] = [0, 1].map(|number| Lane { number });
        assert_eq!(first.host().to_string(), "10.77.0.1");
        assert_eq!(second.host().to_string(), "10.78.0.1");
        assert_eq!(second.address(3, 2).to_string(), "10.78.3.2");
        assert_eq!(second.device(249), "lhlab1x249");
        assert!(second.device(249).len() < 16, "IFNAMSIZ");
        let first_guests = [first.processor(1), second.processor(1)];
        assert!(super::processors().len() == 1 || first_guests[0] != first_guests[1], "{first_guests:?}");
    }
}
