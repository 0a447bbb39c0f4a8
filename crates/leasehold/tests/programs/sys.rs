//! Asynchronous writes with the system calls of libaio(7), for which we use no library.
#![allow(unsafe_code, reason = "the standard library has no asynchronous writes")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct iocb` of linux/aio_abi.h, little-endian.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event_descriptor: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

/// `IOCB_CMD_PWRITE`
const WRITE: u16 = 1;

/// A queue of asynchronous calls.
pub struct Queue(libc::c_ulong);

impl Queue {
    pub fn new(depth: usize) -> io::Result<Queue> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word, which lives through the call.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        if result == 0 { Ok(Queue(context)) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes several parts of a file at once, and waits for all of them.
    pub fn write(&self, file: &File, parts: &[(u64, &[u8])]) -> io::Result<()> {
        let control = |&(offset, data): &(u64, &[u8])| Control {
            opcode: WRITE,
            descriptor: file.as_raw_fd() as u32,
            buffer: data.as_ptr() as u64,
            bytes: data.len() as u64,
            offset: offset as i64,
            ..Control::default()
        };
        let controls: Vec<Control> = parts.iter().map(control).collect();
        let pointers: Vec<*const Control> = controls.iter().map(|control| &raw const *control).collect();
        let mut events = vec![Event::default(); parts.len()];
        // SAFETY: controls, pointers and data outlive every call, because io_getevents(2) below waits for all
        // of them.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.0, pointers.len(), pointers.as_ptr()) };
        assert_eq!(submitted, parts.len() as i64, "{}", io::Error::last_os_error());
        // SAFETY: the array has space for as many events as the kernel may write.
        let ended = unsafe {
            let none = std::ptr::null_mut::<libc::timespec>();
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                events.len(),
                events.len(),
                events.as_mut_ptr(),
                none,
            )
        };
        assert_eq!(ended, parts.len() as i64, "{}", io::Error::last_os_error());
        let failed = events.iter().find(|event| event.result < 0);
        failed.map_or(Ok(()), |event| Err(io::Error::from_raw_os_error(-event.result as i32)))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue is ours, and no call is in flight in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
