//! Code that the compiler cannot check: `unsafe` calls.
#![allow(unsafe_code, reason = "tokio leaves the life of a registered descriptor to us")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bytes::BytesMut;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for a descriptor to become readable without blocking a worker.
pub(crate) fn async_read_fd(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor. So the descriptor stays open and unchanged until the AsyncFd
    // is dropped, which first deregisters it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Reads once into the spare capacity of a buffer. Returns the number of bytes; 0 at the end.
pub(crate) fn read_more(from: impl AsFd, buffer: &mut BytesMut) -> io::Result<usize> {
    let (read, _) = rustix::io::read(from, buffer.spare_capacity_mut())?;
    let count = read.len();
    // SAFETY: `read` has just initialised `count` bytes after the length, and they lie within the capacity.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// `SO_RCVLOWAT`: makes a blocking `read` wait until this many bytes have arrived.
pub(crate) fn set_receive_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = bytes as libc::c_int;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads `length` bytes of an integer that outlives the
    // call.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
