//! What the compiler cannot check.
#![allow(unsafe_code, reason = "tokio leaves the life of a registered descriptor to us")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for a descriptor to become readable without blocking a worker.
pub(crate) fn async_read_fd(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, so that it stays open and the same until the AsyncFd, which deregisters it
    // first, is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}
