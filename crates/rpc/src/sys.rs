//! The unsafe code of this crate.
#![allow(unsafe_code, reason = "no safe wrapper offers SIOCOUTQ and malloc_trim")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `SIOCOUTQ` of a TCP socket: bytes written to it that the other end has not acknowledged.
pub(crate) fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one integer, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Returns freed memory from the allocator to the system, if the allocator is glibc's.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, changes only free memory, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
