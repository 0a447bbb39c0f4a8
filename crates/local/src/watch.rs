//! Watches on leased directories (fanotify(7)): how processes of this machine that change names are noticed.
//!
//! The kernel holds nobody back here: a watch tells of a change when it has been made, so that a lease on a directory is
//! recalled a moment too late for it. What we did ourselves is told from that by the process that did it. Where there
//! are no watches (a file system without handles, a kernel older than 5.13 without `CAP_SYS_ADMIN`) nothing is noticed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::sys::{self, KernelHandle};

/// What the kernel tells at a time, in bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// `struct fanotify_event_metadata`.
const METADATA_BYTES: usize = 24;
/// `struct fanotify_event_info_fid` up to the handle's own bytes: type and length, file system, length and type.
const INFO_BYTES: usize = 4 + 8 + 8;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Somebody else changed this directory, or a name in it.
    Changed(KernelHandle),
    /// There was too much to tell: any may have changed.
    Lost,
}

/// The watches of one exported directory.
#[derive(Debug)]
pub(crate) struct Watches(OwnedFd);

impl Watches {
    /// None yet.
    ///
    /// # Errors
    /// Those of the kernel, if there are to be none.
    pub(crate) fn new() -> Result<Watches, Errno> {
        sys::event_queue().map(Watches)
    }

    /// Watches a directory. What events will call it, if they will.
    pub(crate) fn begin(&self, directory: BorrowedFd<'_>) -> Option<KernelHandle> {
        let handle = sys::name_to_handle(directory).ok()?;
        sys::watch(self.0.as_fd(), directory, true).ok()?;
        Some(handle)
    }

    /// Watches it no more.
    pub(crate) fn end(&self, directory: BorrowedFd<'_>) {
        // One that is gone is watched no more by itself.
        let _ = sys::watch(self.0.as_fd(), directory, false);
    }

    /// What is seen from now on. Must be called in a tokio runtime.
    pub(crate) fn events(&self) -> io::Result<Events> {
        sys::readable(self.0.try_clone()?).map(Events)
    }
}

/// What is seen by watches.
#[derive(Debug)]
pub(crate) struct Events(AsyncFd<OwnedFd>);

impl Events {
    /// The next.
    pub(crate) async fn next(&self) -> io::Result<Vec<Seen>> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut buffer = [0; BUFFER_BYTES];
            let read =
                ready.try_io(|fd| rustix::io::read(fd.get_ref(), &mut buffer[..]).map_err(io::Error::from));
            // Else it was not ready after all.
            if let Ok(read) = read {
                return Ok(parse(&buffer[..read?], std::process::id()));
            }
        }
    }
}

/// The events in what the kernel told, without those of our own process.
fn parse(mut told: &[u8], me: u32) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Some((event, rest)) = split_event(told) {
        told = rest;
        let mask = event.get(8..).and_then(|rest| rest.first_chunk::<8>()).copied();
        let lost = mask.is_some_and(|mask| u64::from_ne_bytes(mask) & libc::FAN_Q_OVERFLOW != 0);
        if lost {
            seen.push(Seen::Lost);
        } else if word(event, 20) != Some(me) {
            seen.extend(directory_of(event).map(Seen::Changed));
        }
    }
    seen
}

fn split_event(told: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = word(told, 0)? as usize;
    if length < METADATA_BYTES { None } else { told.split_at_checked(length) }
}

/// The directory that an event is about.
fn directory_of(event: &[u8]) -> Option<KernelHandle> {
    let info = event.get(METADATA_BYTES..)?;
    if *info.first()? != libc::FAN_EVENT_INFO_TYPE_DFID {
        return None;
    }
    let length = word(info, 12)? as usize;
    let kind = u8::try_from(word(info, 16)?).ok()?;
    KernelHandle::new(kind, info.get(INFO_BYTES..)?.get(..length)?)
}

/// Four bytes in the order of this machine.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mask: u64, process: u32, handle: &[u8]) -> Vec<u8> {
        let length = METADATA_BYTES + INFO_BYTES + handle.len();
        let mut event = (length as u32).to_ne_bytes().to_vec();
        event.extend([3, 0, 24, 0]);
        event.extend(mask.to_ne_bytes());
        event.extend((-1_i32).to_ne_bytes());
        event.extend(process.to_ne_bytes());
        event.extend([libc::FAN_EVENT_INFO_TYPE_DFID, 0, 28, 0]);
        event.extend([9; 8]);
        event.extend((handle.len() as u32).to_ne_bytes());
        event.extend(1_u32.to_ne_bytes());
        event.extend(handle);
        event
    }

    #[test]
    fn events_of_others_are_told_and_nonsense_is_not() {
        let told = [event(0x100, 7, b"ours"), event(0x100, 0, b"theirs"), event(0x4000, 0, b"")].concat();
        let theirs = KernelHandle::new(1, b"theirs").unwrap();
        assert_eq!(parse(&told, 7), [Seen::Changed(theirs), Seen::Lost]);
        for end in 0..told.len() {
            assert!(parse(&told[..end], 7).len() <= 2);
        }
        assert_eq!(parse(&[0; 100], 7), []);
        assert_eq!(parse(&[0xff; 100], 7), []);
    }
}
