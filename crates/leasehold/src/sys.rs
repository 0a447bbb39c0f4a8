//! The unsafe code of this crate: the user database of the machine, through the C library.
#![allow(unsafe_code, reason = "no safe wrapper offers getpwuid_r(3) and getgrouplist(3)")]

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
    let mut buffer: Vec<c_char> = vec![0; ENTRY_BYTES.0];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: all three live through the call, and `buffer` has the length that is given. The C library
        // writes the entry, and into the buffer the texts that it points to.
        let result = unsafe {
            libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found)
        };
        match result {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: the call has succeeded, so the entry is complete. Its name is a text in `buffer`.
                let (name, gid) = unsafe {
                    let entry = entry.assume_init_ref();
                    (CStr::from_ptr(entry.pw_name).to_owned(), entry.pw_gid)
                };
                return Ok(Some((name, gid)));
            }
            libc::ERANGE if buffer.len() < ENTRY_BYTES.1 => buffer.resize(buffer.len() * 2, 0),
            libc::EINTR => {}
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
