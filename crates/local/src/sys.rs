//! System calls that no safe wrapper offers: file handles, the identity of one thread and access checks
//! with it, leases and watches.
//!
//! Each function wraps one system call; policy is elsewhere. Identity calls are raw, since the C library
//! would apply them to all threads. `faccessat2` is raw too, since the C library's wrapper would check with
//! another identity than asked for.
#![allow(unsafe_code, reason = "rustix wraps neither file handles nor per-thread identity")]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_long};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The longest kernel handle that fits one of ours: 51 bytes less kind, file-system tag and type.
pub(crate) const KERNEL_HANDLE_MAX: usize = 47;

/// The kernel's handle of a file, within one file system (`struct file_handle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelHandle {
    /// `handle_type`; all known ones fit a byte.
    pub(crate) kind: u8,
    length: u8,
    bytes: [u8; KERNEL_HANDLE_MAX],
}

impl KernelHandle {
    /// A handle with these bytes, or `None` if they are too many.
    pub(crate) fn new(kind: u8, given: &[u8]) -> Option<KernelHandle> {
        let mut bytes = [0; KERNEL_HANDLE_MAX];
        bytes.get_mut(..given.len())?.copy_from_slice(given);
        Some(KernelHandle { kind, length: given.len() as u8, bytes })
    }

    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// `struct file_handle` with space for `MAX_HANDLE_SZ` bytes.
#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: c_int,
    f_handle: [u8; 128],
}

fn result(returned: c_long) -> Result<c_long, Errno> {
    if returned == -1 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(returned)
    }
}

/// The kernel's handle of an open file (`O_PATH` will do).
///
/// # Errors
/// `OPNOTSUPP` if the file system has no handles, `OVERFLOW` if its handle is too long for ours.
pub(crate) fn name_to_handle(file: BorrowedFd<'_>) -> Result<KernelHandle, Errno> {
    handle_at(file, c"", libc::AT_EMPTY_PATH).map(|(handle, _)| handle)
}

/// The kernel's handle of the file under a name, and the id of the mount through which it was reached. A
/// symbolic link is not followed.
///
/// # Errors
/// As [`name_to_handle`], and those of a lookup.
pub(crate) fn child_to_handle(
    directory: BorrowedFd<'_>,
    name: &CStr,
) -> Result<(KernelHandle, c_int), Errno> {
    handle_at(directory, name, 0)
}

fn handle_at(file: BorrowedFd<'_>, name: &CStr, flags: c_int) -> Result<(KernelHandle, c_int), Errno> {
    let mut raw = RawHandle { handle_bytes: 128, handle_type: 0, f_handle: [0; 128] };
    let mut mount_id: c_int = 0;
    // SAFETY: `raw` has the 128 bytes that `handle_bytes` states, `name` ends with NUL, and all pointers live
    // across the call.
    result(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    })?;
    let bytes = raw.f_handle.get(..raw.handle_bytes as usize).ok_or(Errno::OVERFLOW)?;
    let kind = u8::try_from(raw.handle_type).map_err(|_| Errno::OVERFLOW)?;
    Ok((KernelHandle::new(kind, bytes).ok_or(Errno::OVERFLOW)?, mount_id))
}

/// Opens (`O_PATH`) the file that a handle names, in the file system of `mount`. Needs `CAP_DAC_READ_SEARCH`.
pub(crate) fn open_by_handle(mount: BorrowedFd<'_>, handle: &KernelHandle) -> Result<OwnedFd, Errno> {
    let mut raw =
        RawHandle { handle_bytes: handle.length.into(), handle_type: handle.kind.into(), f_handle: [0; 128] };
    raw.f_handle[..handle.as_bytes().len()].copy_from_slice(handle.as_bytes());
    // SAFETY: the kernel reads `handle_bytes` bytes of `f_handle`, at most 47 of 128.
    let fd = result(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut raw,
            libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC,
        )
    })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// May this thread, with its present identity, do all of `mode` (`R_OK`, `W_OK`, `X_OK`) to the file?
///
/// # Errors
/// `ACCESS` if it may not; `ROFS` or `PERM` if no user may write there.
pub(crate) fn may_access(file: BorrowedFd<'_>, mode: u8) -> Result<(), Errno> {
    // SAFETY: no memory is passed but a constant string.
    result(unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            file.as_raw_fd(),
            c"".as_ptr(),
            c_int::from(mode),
            libc::AT_EACCESS | libc::AT_EMPTY_PATH,
        )
    })
    .map(drop)
}

/// Sets the file-system user of this thread.
///
/// # Errors
/// `PERM` if the kernel did not change it.
pub(crate) fn set_thread_fsuid(uid: u32) -> Result<(), Errno> {
    // SAFETY: changes the identity of this thread only; no memory is passed. The second call has an id that
    // is never valid: it changes nothing and returns the result of the first.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX)
    };
    if now as u32 == uid { Ok(()) } else { Err(Errno::PERM) }
}

/// Sets the file-system group of this thread.
///
/// # Errors
/// `PERM` if the kernel did not change it.
pub(crate) fn set_thread_fsgid(gid: u32) -> Result<(), Errno> {
    // SAFETY: as in `set_thread_fsuid`.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, u32::MAX)
    };
    if now as u32 == gid { Ok(()) } else { Err(Errno::PERM) }
}

/// Sets the supplementary groups of this thread, and of no other.
pub(crate) fn set_thread_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: the kernel reads `len` group numbers (`gid_t` is `u32`).
    result(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// Gives this thread its own file-creation mask (and current directory).
pub(crate) fn unshare_umask() -> Result<(), Errno> {
    // SAFETY: only ends the sharing of `umask`, root and current directory; no code relies on that.
    result(unsafe { c_long::from(libc::unshare(libc::CLONE_FS)) }).map(drop)
}

/// Makes `length` bytes (zero: to the end) of a file share the blocks of another (`FICLONERANGE`).
///
/// # Errors
/// `OPNOTSUPP` if the file system does not share blocks, `XDEV` between two file systems. `INVAL` if the
/// range does not end at a block boundary or at the end of both files.
pub(crate) fn clone_range(
    from: &File,
    offset: u64,
    length: u64,
    to: &File,
    to_offset: u64,
) -> Result<(), Errno> {
    let range = libc::file_clone_range {
        src_fd: from.as_raw_fd().into(),
        src_offset: offset,
        src_length: length,
        dest_offset: to_offset,
    };
    // SAFETY: the call reads `range`, whose size is part of its number, and descriptors that live across it.
    result(unsafe { libc::syscall(libc::SYS_ioctl, to.as_raw_fd(), libc::FICLONERANGE, &raw const range) })
        .map(drop)
}

/// The accesses that a lease of the kernel blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KernelLease {
    /// None (`F_UNLCK`).
    None,
    /// Opens for writing and truncations (`F_RDLCK`).
    Read,
    /// All opens (`F_WRLCK`).
    Write,
}

/// Takes, changes or ends the lease of an open file. The kernel announces a blocked process with `SIGIO`,
/// for which this process must have a handler.
///
/// # Errors
/// `AGAIN` if the file is open elsewhere, `ACCESS` for users other than its owner, `INVAL` if it can have
/// no lease.
pub(crate) fn set_lease(file: BorrowedFd<'_>, lease: KernelLease) -> Result<(), Errno> {
    let kind = match lease {
        KernelLease::None => libc::F_UNLCK,
        KernelLease::Read => libc::F_RDLCK,
        KernelLease::Write => libc::F_WRLCK,
    };
    // SAFETY: no memory is passed.
    result(unsafe { c_long::from(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind)) }).map(drop)
}

/// The lease of an open file. While it is being broken: the lease that may remain.
pub(crate) fn lease(file: BorrowedFd<'_>) -> Result<KernelLease, Errno> {
    // SAFETY: no memory is passed.
    let kind = result(unsafe { c_long::from(libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE)) })?;
    Ok(match kind as c_int {
        libc::F_RDLCK => KernelLease::Read,
        libc::F_WRLCK => KernelLease::Write,
        _ => KernelLease::None,
    })
}

/// A non-blocking queue for events of watched directories (`fanotify`).
///
/// # Errors
/// `NOSYS`, `PERM` or `INVAL` if the kernel offers none to this process, `MFILE` if there are too many.
pub(crate) fn event_queue() -> Result<OwnedFd, Errno> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_DIR_FID;
    // SAFETY: no memory is passed.
    let fd = result(unsafe { c_long::from(libc::fanotify_init(flags, 0)) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Lets a task wait until something can be read from a descriptor. Must be called in a tokio runtime.
pub(crate) fn readable(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open, and the result owns it for its lifetime.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(std::io::Error::from)
}

/// Starts (or ends) reporting changes of names in a directory, of its attributes and of its own name.
///
/// # Errors
/// `NODEV`, `XDEV` or `OPNOTSUPP` if the file system has no handles for it, `NOSPC` if there are too many
/// watches.
pub(crate) fn watch(queue: BorrowedFd<'_>, directory: BorrowedFd<'_>, begin: bool) -> Result<(), Errno> {
    let change = if begin { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    let events = libc::FAN_CREATE
        | libc::FAN_DELETE
        | libc::FAN_MOVED_FROM
        | libc::FAN_MOVED_TO
        | libc::FAN_ATTRIB
        | libc::FAN_MOVE_SELF
        | libc::FAN_ONDIR;
    // The call does not accept an `O_PATH` descriptor.
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", directory.as_raw_fd()))
        .map_err(|_| Errno::INVAL)?;
    // SAFETY: `path` is NUL-terminated and lives across the call.
    let marked = unsafe {
        libc::fanotify_mark(
            queue.as_raw_fd(),
            change | libc::FAN_MARK_ONLYDIR,
            events,
            libc::AT_FDCWD,
            path.as_ptr(),
        )
    };
    result(c_long::from(marked)).map(drop)
}

/// The UUID of the file system, if the kernel reports it (`FS_IOC_GETFSUUID`, Linux 6.9).
pub(crate) fn file_system_uuid(file: BorrowedFd<'_>) -> Option<[u8; 16]> {
    /// `struct fsuuid2`.
    #[repr(C)]
    struct Uuid {
        length: u8,
        bytes: [u8; 16],
    }
    const FS_IOC_GETFSUUID: u32 = 0x8011_1500; // _IOR(0x15, 0, struct fsuuid2)
    let mut uuid = Uuid { length: 0, bytes: [0; 16] };
    // SAFETY: the call writes the 17 bytes of `uuid`, whose size is part of its number.
    result(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), FS_IOC_GETFSUUID, &raw mut uuid) })
        .ok()?;
    (uuid.length > 0 && uuid.bytes != [0; 16]).then_some(uuid.bytes)
}
