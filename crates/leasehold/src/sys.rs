//! The unsafe code of this crate: the user database of the machine, through the C library.
#![allow(unsafe_code, reason = "no safe wrapper offers getpwnam_r(3), getgrnam_r(3) and getgrouplist(3)")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;

/// A buffer for one entry of the user database, in bytes: the first size, and the largest.
const ENTRY_BYTES: (usize, usize) = (1024, 1 << 20);
/// A list of groups: the first size, and the largest (`NGROUPS_MAX` of Linux).
const GROUPS: (usize, usize) = (64, 65_536);

/// The name and the group of a user; none if there is no such user.
///
/// # Errors
/// If a service of nsswitch.conf(5) failed.
pub fn user(uid: u32) -> io::Result<Option<(CString, u32)>> {
    entry(
        // SAFETY: the pointers are those of `entry`.
        |entry, text, bytes, found| unsafe { libc::getpwuid_r(uid, entry, text, bytes, found) },
        // SAFETY: the name of an entry is a C string.
        |entry: &libc::passwd| (unsafe { CStr::from_ptr(entry.pw_name) }.to_owned(), entry.pw_gid),
    )
}

/// The id and the group of the user with this name; none if there is no such user.
///
/// # Errors
/// As [`user`].
pub fn user_named(name: &CStr) -> io::Result<Option<(u32, u32)>> {
    entry(
        // SAFETY: the name is a C string, and the pointers are those of `entry`.
        |entry, text, bytes, found| unsafe { libc::getpwnam_r(name.as_ptr(), entry, text, bytes, found) },
        |entry: &libc::passwd| (entry.pw_uid, entry.pw_gid),
    )
}

/// The id of the group with this name; none if there is no such group.
///
/// # Errors
/// As [`user`].
pub fn group_named(name: &CStr) -> io::Result<Option<u32>> {
    entry(
        // SAFETY: the name is a C string, and the pointers are those of `entry`.
        |entry, text, bytes, found| unsafe { libc::getgrnam_r(name.as_ptr(), entry, text, bytes, found) },
        |entry: &libc::group| entry.gr_gid,
    )
}

/// What `read` reads of the entry that `get` finds. `get` gets an entry to fill, a buffer for its texts with
/// its size in bytes, and a pointer that becomes that of the entry if there is one.
fn entry<E, R>(
    get: impl Fn(*mut E, *mut c_char, usize, *mut *mut E) -> c_int,
    read: impl Fn(&E) -> R,
) -> io::Result<Option<R>> {
    let mut buffer: Vec<c_char> = vec![0; ENTRY_BYTES.0];
    loop {
        let mut entry = MaybeUninit::<E>::uninit();
        let mut found = std::ptr::null_mut();
        // All three live through the call, and `buffer` has the length that is given. The C library writes
        // the entry, and into the buffer the texts that it points to.
        match get(entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found) {
            0 if found.is_null() => return Ok(None),
            // SAFETY: the call has succeeded, so the entry is complete. Its texts are in `buffer`.
            0 => return Ok(Some(read(unsafe { entry.assume_init_ref() }))),
            libc::ERANGE if buffer.len() < ENTRY_BYTES.1 => buffer.resize(buffer.len() * 2, 0),
            libc::EINTR => {}
            // What getpwnam(3) lists for "not found".
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The groups of the user with this name, and `gid`, which is the first of them.
///
/// # Errors
/// If they are more than Linux has.
pub fn groups(name: &CStr, gid: u32) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; GROUPS.0];
    loop {
        let mut count = c_int::try_from(groups.len()).unwrap_or(c_int::MAX);
        // SAFETY: the name is a C string, and the C library writes at most `count` numbers into `groups`,
        // which has as many, and their number into `count`.
        let result = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let wanted = usize::try_from(count).unwrap_or(0);
        if result >= 0 {
            groups.truncate(wanted);
            return Ok(groups);
        }
        if groups.len() >= GROUPS.1 {
            return Err(io::Error::other("the user has more than 65,536 groups"));
        }
        groups.resize(wanted.max(groups.len() * 2).min(GROUPS.1), 0);
    }
}
