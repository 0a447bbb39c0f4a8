//! What the compiler cannot check.
#![allow(unsafe_code, reason = "tokio leaves the life of a registered descriptor to us")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bytes::BytesMut;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for a descriptor to become readable without blocking a worker.
pub(crate) fn async_read_fd(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, so that it stays open and the same until the AsyncFd, which deregisters it
    // first, is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Appends to a buffer what one `read` brings into the room that it has; 0 is the end.
pub(crate) fn read_more(from: impl AsFd, buffer: &mut BytesMut) -> io::Result<usize> {
    let (read, _) = rustix::io::read(from, buffer.spare_capacity_mut())?;
    let count = read.len();
    // SAFETY: so many bytes behind the length were just initialised, and they lie within the capacity.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// `SO_RCVLOWAT`: lets a blocking `read` wait until so many bytes have come.
pub(crate) fn set_receive_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = bytes as libc::c_int;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads `length` bytes of an integer that lives through the call.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
