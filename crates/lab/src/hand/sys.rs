//! System calls that a hand makes by itself: fcntl(2) for byte-range locks, close(2) for its errors. The hand in a guest
//! is built without any library that has them.
#![allow(unsafe_code, reason = "the standard library locks whole files only, and closes without a word")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

/// `struct flock` of Linux on 64-bit machines.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}

/// `F_OFD_SETLK`: the owner is the open file and not the process, so that a hand's files exclude each other.
const SET_LOCK: c_int = 37;

/// Takes, changes or releases a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum Lock {
    /// `F_RDLCK`
    Shared = 0,
    /// `F_WRLCK`
    Exclusive = 1,
    /// `F_UNLCK`
    None = 2,
}

unsafe extern "C" {
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    #[link_name = "close"]
    fn close_descriptor(fd: c_int) -> c_int;
}

/// Sets the lock of `length` bytes from `start` on; false if somebody else's is in the way.
pub fn set_lock(file: impl AsFd, lock: Lock, start: u64, length: u64) -> io::Result<bool> {
    let range = |number: u64| i64::try_from(number).map_err(io::Error::other);
    let flock = Flock { kind: lock as i16, whence: 0, start: range(start)?, length: range(length)?, pid: 0 };
    // SAFETY: the descriptor is open, and the kernel reads a `struct flock` that lives through the call.
    let result = unsafe { fcntl(file.as_fd().as_raw_fd(), SET_LOCK, &raw const flock) };
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        denied if denied.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

/// Closes a file, and tells what its flush failed with.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was given up by its only owner, and is not used afterwards.
    let result = unsafe { close_descriptor(file.into_raw_fd()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
