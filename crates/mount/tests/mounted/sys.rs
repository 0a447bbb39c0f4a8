//! System calls that neither the standard library nor rustix wraps.
#![allow(unsafe_code, reason = "name_to_handle_at(2) and open_by_handle_at(2) are the C library's alone")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `struct file_handle` with the largest handle that the kernel uses.
#[repr(C)]
pub struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; 128],
}

/// The file handle of a path.
pub fn handle_of(path: &Path) -> FileHandle {
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let (path, mut mount) = (CString::new(path.as_os_str().as_bytes()).unwrap(), 0);
    // SAFETY: the path ends with NUL, and the handle has the size that it states.
    let result = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    handle
}

/// Opens a file by its handle for reading. `mount` is any file of the same mount.
pub fn open_by_handle(mount: &File, handle: &FileHandle) -> io::Result<File> {
    // SAFETY: name_to_handle_at has filled in the handle. The kernel only reads it.
    let fd = unsafe {
        libc::open_by_handle_at(mount.as_raw_fd(), (&raw const *handle).cast_mut().cast(), libc::O_RDONLY)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened just now, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
