//! System calls of a hand: fcntl(2) for byte-range locks, close(2) for its errors, mmap(2). The hand in a
//! guest is built without any library that provides them.
#![allow(
    unsafe_code,
    reason = "the standard library locks whole files only, closes without a word, and has no maps"
)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

/// `struct flock` on 64-bit Linux.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}

/// `F_OFD_SETLK`: the owner is the open file and not the process, so that the files of one hand exclude each
/// other.
const SET_LOCK: c_int = 37;

/// `O_DIRECT`, which has a different value on ARM.
pub const DIRECT: c_int = if cfg!(target_arch = "aarch64") { 0x10000 } else { 0x4000 };

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
    fn mmap(
        wanted: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn msync(address: *mut c_void, length: usize, flags: c_int) -> c_int;
    fn munmap(address: *mut c_void, length: usize) -> c_int;
}

/// Sets the lock of `length` bytes from `start`. Returns false if a lock of another owner conflicts.
pub fn set_lock(file: impl AsFd, lock: Lock, start: u64, length: u64) -> io::Result<bool> {
    let range = |number: u64| i64::try_from(number).map_err(io::Error::other);
    let flock = Flock { kind: lock as i16, whence: 0, start: range(start)?, length: range(length)?, pid: 0 };
    // SAFETY: the descriptor is open, and the kernel reads a `struct flock` that outlives the call.
    let result = unsafe { fcntl(file.as_fd().as_raw_fd(), SET_LOCK, &raw const flock) };
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        denied if denied.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

/// Closes a file, and returns the error of its flush.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor's only owner has given it up, and it is not used afterwards.
    let result = unsafe { close_descriptor(file.into_raw_fd()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const PROTECTION_READ: c_int = 1;
const PROTECTION_WRITE: c_int = 2;
const MAP_SHARED: c_int = 1;
const SYNC_NOW: c_int = 4;

/// A shared mapping of the first bytes of a file. Dropping it unmaps it.
struct Map {
    address: *mut c_void,
    length: usize,
}

impl Map {
    fn of(file: &File, length: usize, protection: c_int) -> io::Result<Map> {
        // SAFETY: a new mapping at an address chosen by the kernel does not touch existing memory.
        let address =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MAP_SHARED, file.as_raw_fd(), 0) };
        if address as isize == -1 { Err(io::Error::last_os_error()) } else { Ok(Map { address, length }) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing refers to it any more.
        unsafe { munmap(self.address, self.length) };
    }
}

/// Reads up to `length` bytes from `offset` through a mapping; fewer at the end of the file according to
/// fstat(2).
pub fn read_map(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let end = file.metadata()?.len().min(offset + length as u64);
    if end <= offset {
        return Ok(Vec::new());
    }
    let map = Map::of(file, end as usize, PROTECTION_READ)?;
    let mut data = vec![0; (end - offset) as usize];
    // SAFETY: the range lies within the mapping. If the file is truncated meanwhile, only this process dies,
    // which serves a hand.
    unsafe {
        let from = map.address.cast::<u8>().add(offset as usize);
        std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len());
    }
    Ok(data)
}

/// Writes through a mapping, within the file size according to fstat(2). `synced` waits with msync(2).
pub fn write_map(file: &File, offset: u64, data: &[u8], synced: bool) -> io::Result<()> {
    let end = offset + data.len() as u64;
    if file.metadata()?.len() < end {
        return Err(io::Error::other("a map does not make a file longer"));
    }
    let map = Map::of(file, end as usize, PROTECTION_READ | PROTECTION_WRITE)?;
    // SAFETY: the range lies within the mapping. If the file is truncated meanwhile, only this process dies,
    // which serves a hand.
    unsafe {
        let to = map.address.cast::<u8>().add(offset as usize);
        std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
    }
    if synced {
        // SAFETY: the range is exactly the mapping.
        let result = unsafe { msync(map.address, map.length, SYNC_NOW) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
