//! The ioctls of `/dev/fuse` that no safe wrapper offers.
#![allow(unsafe_code, reason = "no crate wraps these three ioctls")]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`
const CLONE: libc::c_ulong = 0x8004_e500;
/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`
const BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, u32)`
const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

/// `struct fuse_backing_map`
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

fn result(returned: libc::c_int) -> Result<libc::c_int, Errno> {
    if returned == -1 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(returned)
    }
}

/// Connects `new`, a fresh descriptor of `/dev/fuse`, to the connection of `of`.
pub fn clone_device(new: BorrowedFd<'_>, of: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd = of.as_raw_fd() as u32;
    // SAFETY: the argument is a pointer to a u32 that lives through the call, as this ioctl wants it.
    result(unsafe { libc::ioctl(new.as_raw_fd(), CLONE, &raw const fd) }).map(drop)
}

/// Registers a file for passthrough. Returns its id within this connection.
///
/// # Errors
/// `PERM` without CAP_SYS_ADMIN or if passthrough was not agreed on, `NOTTY` on a kernel without it.
pub fn open_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<u32, Errno> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the argument is a pointer to a `fuse_backing_map` that lives through the call.
    result(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) }).map(|id| id as u32)
}

/// Unregisters a file. Opens that use it keep it.
pub fn close_backing(device: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
    // SAFETY: the argument is a pointer to a u32 that lives through the call.
    result(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) }).map(drop)
}
