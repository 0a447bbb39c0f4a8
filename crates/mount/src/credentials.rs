//! The credential of a request: the kernel sends user and group with each request, but not the
//! supplementary groups.
//!
//! The groups are read from `/proc` of the requesting thread for each request, since a process may change
//! them between calls. Only the open descriptor is cached. It names this very thread, never a later one
//! with the same number.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use vfs::{Caller, HolderId};

use crate::wire::request::Header;

/// All opens and locks of one mount belong to this holder.
const HOLDER: HolderId = HolderId(1);
/// The most groups of a process: `NGROUPS_MAX` of Linux.
const GROUPS_MAX: usize = 65_536;
/// `SIGKILL`, as a bit of `SigPnd`.
const KILL_BIT: u64 = 1 << 8;

/// Covers the lines of `status` before the groups, and the groups of most processes.
const HEAD_BYTES: usize = 1024;
/// Covers the groups of every process.
const ALL_BYTES: usize = 1 << 20;
/// Cached descriptors for each of the session's threads.
const KEPT_MAX: usize = 16;

thread_local! {
    /// `status` files of the last requesters, the latest first.
    static KEPT: RefCell<Vec<(u32, File)>> = const { RefCell::new(Vec::new()) };
}

/// The credential of a request.
pub fn caller(header: &Header) -> Caller {
    let mut groups = groups_of(header.pid);
    groups.retain(|group| *group != header.gid);
    Caller { holder: Some(HOLDER), ..Caller::unix(header.uid, header.gid, &groups) }
}

/// The credential for calls that the mount makes itself.
pub fn machine() -> Caller {
    Caller { holder: Some(HOLDER), ..Caller::unix(0, 0, &[]) }
}

/// Has this thread been killed, so that it only waits to end?
///
/// This reads `status` only. `stat` and other files of `/proc` block while a process is in exec(2), until
/// it has closed its close-on-exec files. Such a close may be the request in question. An answer must never
/// wait for its requester.
pub fn is_killed(pid: u32) -> bool {
    pid != 0 && status_of(pid).is_none_or(|status| is_ending(&status))
}

/// A SIGKILL is pending, or the thread is past that and closes its files: then it has no file table any
/// more.
fn is_ending(status: &str) -> bool {
    let pending = ["SigPnd:", "ShdPnd:"].iter().filter_map(|name| field(status, name));
    let killed = |bits: &str| u64::from_str_radix(bits, 16).is_ok_and(|bits| bits & KILL_BIT != 0);
    pending.into_iter().any(killed) || field(status, "FDSize:") == Some("0")
}

/// The supplementary groups of a thread; none if the thread is gone.
fn groups_of(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let mut head = [0; HEAD_BYTES];
    let length = KEPT.with_borrow_mut(|kept| read_head(kept, pid, &mut head)).unwrap_or_default();
    if let Some(groups) = groups_in(&head[..length]) {
        return groups;
    }
    if length < HEAD_BYTES {
        return Vec::new();
    }
    let mut all = vec![0; ALL_BYTES];
    let length = KEPT.with_borrow_mut(|kept| read_head(kept, pid, &mut all)).unwrap_or_default();
    groups_in(&all[..length]).unwrap_or_default()
}

/// The groups in the beginning of a `status`; none if their line is not complete.
fn groups_in(status: &[u8]) -> Option<Vec<u32>> {
    let line = status.split_inclusive(|byte| *byte == b'\n').find(|line| line.starts_with(b"Groups:"))?;
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let words = line.split_whitespace().skip(1).take(GROUPS_MAX);
    Some(words.filter_map(|word| word.parse().ok()).collect())
}

/// Reads the beginning of a thread's `status`. Each read from offset 0 gives current values.
fn read_head(kept: &mut Vec<(u32, File)>, pid: u32, head: &mut [u8]) -> Option<usize> {
    if let Some(at) = kept.iter().position(|(of, _)| *of == pid) {
        // The read fails if that thread has ended, even if another one has its number now.
        if let Ok(length) = kept[at].1.read_at(head, 0) {
            kept[..=at].rotate_right(1);
            return Some(length);
        }
        kept.remove(at);
    }
    let file = File::open(format!("/proc/{pid}/status")).ok()?;
    let length = file.read_at(head, 0).ok()?;
    kept.truncate(KEPT_MAX - 1);
    kept.insert(0, (pid, file));
    Some(length)
}

fn status_of(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_is_told_from_who_waits() {
        let status = |fds: u32, thread: &str, process: &str| {
            format!(
                "Name:\tFDSize: 0\nFDSize:\t{fds}\nGroups:\t4 24 \nSigPnd:\t{thread}\nShdPnd:\t{process}\n"
            )
        };
        assert!(!is_ending(&status(64, "0000000000000000", "0000000000004000")));
        assert!(is_ending(&status(64, "0000000000000100", "0000000000000000")));
        assert!(is_ending(&status(64, "0000000000000000", "0000000000000100")));
        assert!(is_ending(&status(0, "0000000000000000", "0000000000000000")));
    }

    #[test]
    fn we_live_and_a_process_that_is_gone_does_not() {
        assert!(!is_killed(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(is_killed(pid));
        assert!(!is_killed(0), "not of our name space: nothing is known");
    }

    #[test]
    fn a_caller_has_the_groups_of_its_thread() {
        let header = Header { unique: 1, node: 1, uid: 5, gid: 6, pid: std::process::id() };
        let vfs::Principal::Unix(credential) = caller(&header).principal else { panic!() };
        assert_eq!((credential.uid, credential.gid), (5, 6));
        assert!(credential.groups.len() <= GROUPS_MAX && !credential.groups.contains(&6));
    }

    #[test]
    fn a_status_has_all_groups_or_is_read_again() {
        let groups: Vec<u32> = (4_000_000_000..4_000_000_200).collect();
        let line = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let status = format!("Name:\tx\nGroups:\t{line} \nNStgid:\t1\n");
        assert_eq!(groups_in(status.as_bytes()), Some(groups));
        assert_eq!(groups_in(&status.as_bytes()[..HEAD_BYTES]), None);
        assert_eq!(groups_in(b"Name:\tx\nGroups:\t \nGid:\t7\n"), Some(vec![]));
        assert_eq!(groups_in(b"Name:\tx\n"), None);
    }

    #[test]
    fn the_groups_are_those_of_now_and_of_this_thread() {
        let own = status_of(std::process::id()).unwrap();
        let own: Vec<u32> =
            field(&own, "Groups:").unwrap().split(' ').filter_map(|w| w.parse().ok()).collect();
        for _ in 0..2 {
            assert_eq!(groups_of(std::process::id()), own);
        }
        let mut children = Vec::new();
        for _ in 0..2 * KEPT_MAX {
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            assert_eq!(groups_of(child.id()), own);
            let pid = child.id();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(groups_of(pid), [], "it is gone");
            children.push(pid);
        }
        KEPT.with_borrow(|kept| {
            assert!(kept.len() <= KEPT_MAX);
            assert!(!kept.iter().any(|(pid, _)| children.contains(pid)));
        });
    }
}
