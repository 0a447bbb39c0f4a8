//! Watches on leased directories (fanotify(7)), which detect name changes by processes of this machine.
//!
//! The kernel does not block such a process. A watch reports a change that is already made, so the recall
//! of a directory lease comes a moment later. The process id of an event excludes this server's own
//! changes. If watches are not available (a file system without handles, a kernel older than 5.13 without
//! `CAP_SYS_ADMIN`), nothing is detected.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::sys::{self, KernelHandle};

/// Size of the buffer for events, in bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// `struct fanotify_event_metadata`.
const METADATA_BYTES: usize = 24;
/// `struct fanotify_event_info_fid` before the handle's own bytes: type and length, file system, length and
/// type.
const INFO_BYTES: usize = 4 + 8 + 8;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Another process changed this directory, or a name in it.
    Changed(KernelHandle),
    /// The queue overflowed: any directory may have changed.
    Lost,
}

/// The watches of one exported directory.
#[derive(Debug)]
pub(crate) struct Watches(OwnedFd);

impl Watches {
    /// An empty set of watches.
    ///
    /// # Errors
    /// Those of the kernel, if it offers none.
    pub(crate) fn new() -> Result<Watches, Errno> {
        sys::event_queue().map(Watches)
    }

    /// Watches a directory. Returns its handle in events, or `None` if it cannot be watched.
    pub(crate) fn begin(&self, directory: BorrowedFd<'_>) -> Option<KernelHandle> {
        let handle = sys::name_to_handle(directory).ok()?;
        sys::watch(self.0.as_fd(), directory, true).ok()?;
        Some(handle)
    }

    /// Ends the watch on a directory.
    pub(crate) fn end(&self, directory: BorrowedFd<'_>) {
        // The watch of a removed directory has ended already.
        let _ = sys::watch(self.0.as_fd(), directory, false);
    }

    /// The events from now on. Must be called in a tokio runtime.
    pub(crate) fn events(&self) -> io::Result<Events> {
        sys::readable(self.0.try_clone()?).map(Events)
    }
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Events(AsyncFd<OwnedFd>);

impl Events {
    /// The next events.
    pub(crate) async fn next(&self) -> io::Result<Vec<Seen>> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut buffer = [0; BUFFER_BYTES];
            let read =
                ready.try_io(|fd| rustix::io::read(fd.get_ref(), &mut buffer[..]).map_err(io::Error::from));
            // If the read failed with WouldBlock, the descriptor was not ready after all.
            if let Ok(read) = read {
                return Ok(parse(&buffer[..read?], std::process::id()));
            }
        }
    }
}

/// Parses events, without those of this process.
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

/// The directory of an event.
fn directory_of(event: &[u8]) -> Option<KernelHandle> {
    let info = event.get(METADATA_BYTES..)?;
    if *info.first()? != libc::FAN_EVENT_INFO_TYPE_DFID {
        return None;
    }
    let length = word(info, 12)? as usize;
    let kind = u8::try_from(word(info, 16)?).ok()?;
    KernelHandle::new(kind, info.get(INFO_BYTES..)?.get(..length)?)
}

/// A 32-bit word in native byte order.
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
