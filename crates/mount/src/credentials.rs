//! With what rights a process asks: user and group come with each request, the supplementary groups do not.
//!
//! They are read from `/proc` of the thread that asks, each time: a process may change them from one call to the next.

use vfs::{Caller, HolderId};

use crate::wire::request::Header;

/// All that comes through one mount holds its opens and locks under this name.
const HOLDER: HolderId = HolderId(1);
/// Of AUTH_SYS (RFC 5531, appendix A).
const GROUPS_MAX: usize = 16;
/// `SIGKILL`, as a bit of `SigPnd`.
const KILL_BIT: u64 = 1 << 8;
/// `PF_EXITING` of the kernel's task flags.
const EXITING: u64 = 4;

/// Who asks.
pub fn caller(header: &Header) -> Caller {
    let mut groups = status_of(header.pid).map(|status| groups(&status)).unwrap_or_default();
    groups.retain(|group| *group != header.gid);
    groups.truncate(GROUPS_MAX);
    Caller { holder: Some(HOLDER), ..Caller::unix(header.uid, header.gid, &groups) }
}

/// Ourselves, for what the mount does of its own accord.
pub fn machine() -> Caller {
    Caller { holder: Some(HOLDER), ..Caller::unix(0, 0, &[]) }
}

/// Has this thread been killed, so that it waits for nothing but to end?
pub fn is_killed(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let Some(status) = status_of(pid) else { return true };
    let pending = ["SigPnd:", "ShdPnd:"].iter().filter_map(|name| field(&status, name));
    if pending.filter_map(|bits| u64::from_str_radix(bits, 16).ok()).any(|bits| bits & KILL_BIT != 0) {
        return true;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    task_flags(&stat).is_some_and(|flags| flags & EXITING != 0)
}

fn status_of(pid: u32) -> Option<String> {
    if pid == 0 {
        return None;
    }
    let bytes = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn groups(status: &str) -> Vec<u32> {
    let words = field(status, "Groups:").unwrap_or_default().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The ninth field; the second, the name, may have blanks and parentheses in it.
fn task_flags(stat: &str) -> Option<u64> {
    let behind_name = &stat[stat.rfind(')')? + 1..];
    behind_name.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_signals_are_read() {
        let status = "Name:\tGroups: 1\nGroups:\t4 24 1000 \nSigPnd:\t0000000000000100\n";
        assert_eq!(groups(status), [4, 24, 1000]);
        assert_eq!(field(status, "SigPnd:"), Some("0000000000000100"));
        assert_eq!(task_flags("12 (a) b) S 1 2 3 4 5 4194564 0"), Some(4_194_564));
        assert!(groups("").is_empty() && task_flags("").is_none());
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
}
