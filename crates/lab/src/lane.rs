//! Lanes: places in the lab for one stay each, with addresses, taps and processors of their own.
//!
//! A machine has as many lanes as it has processors, up to four. A stay takes any lane that is free, or, where it measures times
//! that neighbours would spoil, all of them. In lane L the host is 10.(77+L).0.1 (on `lo`), guest N is 10.(77+L).N.2 on the tap
//! device `lhlabLxN`, whose host end is 10.(77+L).N.1. Within a lane numbers need no further arbitration.

use crate::log::say;
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

/// Most lanes: beyond them guests would want more memory than processors.
const LANES_MAX: usize = 4;
/// How often a stay that waits for any lane looks again: there is no waiting for the first of several locks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A lane that is taken; its locks are given to whoever ends the stay.
#[derive(Debug)]
pub(crate) struct Lane {
    number: u8,
}

/// What keeps others out of lanes, the stay's own first.
pub(crate) type Locks = Vec<File>;

impl Lane {
    /// Takes a free lane for the stay `name`, waiting for one.
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

    /// Takes all lanes, in their order, so that two who want all do not hold each other up.
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

    /// The host as every guest of the lane sees it.
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

    /// The processor of a guest, of those this process may use. Guests are dealt out from the last; each lane begins with another.
    pub(crate) fn processor(&self, guest: u8) -> usize {
        let processors = processors();
        let dealt = usize::from(self.number) + usize::from(guest) - 1;
        processors.iter().rev().nth(dealt % processors.len()).copied().unwrap_or(0)
    }
}

/// How many lanes there are.
fn count() -> u8 {
    processors().len().clamp(1, LANES_MAX) as u8
}

/// The processors that this process may use; never none.
fn processors() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let processors: Vec<usize> =
        allowed.map_or_else(Vec::new, |set| (0..1024).filter(|cpu| set.is_set(*cpu)).collect());
    if processors.is_empty() { vec![0] } else { processors }
}

/// Who holds this is in the lane.
fn path(number: u8) -> String {
    format!("/var/tmp/leasehold-lab.{number}.lock")
}

fn open(number: u8) -> File {
    let mut options = OpenOptions::new();
    let lock = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path(number));
    lock.unwrap_or_else(|error| panic!("lab: cannot open {}: {error}", path(number)))
}

/// Writes who holds a lane, for those who wait.
fn sign(lock: &File, number: u8, name: &str) {
    let told = lock.set_len(0);
    let told =
        told.and_then(|()| lock.write_all_at(format!("{name} ({})", std::process::id()).as_bytes(), 0));
    told.unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", path(number)));
}

fn holder(mut lock: &File) -> String {
    let mut holder = String::new();
    let _ = lock.read_to_string(&mut holder); // only to be told
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
