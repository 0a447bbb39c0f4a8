//! How much memory this machine, or the control group that we run in, has; and giving back what the allocator keeps.

use std::path::Path;

use crate::account::LIMIT_MIN_BYTES;
use crate::sys;

/// The part of memory that is used for bytes in flight unless told otherwise.
const PART: u64 = 16;
/// More is not used unless told.
const DEFAULT_MAX_BYTES: u64 = 2 << 30;

/// Bytes in flight for the whole process unless told otherwise: a sixteenth of what memory there is, up to 2 GiB.
pub fn default_in_flight() -> usize {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let memory = machine.into_iter().chain(of_group(&groups)).min().unwrap_or(1 << 30);
    usize::try_from((memory / PART).min(DEFAULT_MAX_BYTES)).unwrap_or(usize::MAX).max(LIMIT_MIN_BYTES)
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit of our control group and those above it.
fn of_group(groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let limit = |directory: &Path| {
        std::fs::read_to_string(directory.join("memory.max")).ok()?.trim().parse::<u64>().ok()
    };
    root.join(path).ancestors().take_while(|directory| directory.starts_with(root)).filter_map(limit).min()
}

/// Has the allocator give back what it keeps for later. It may take milliseconds.
pub fn give_back() {
    sys::trim();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_part_of_what_there_is() {
        assert_eq!(total("MemTotal:       24605664 kB\nMemFree: 3 kB\n"), Some(24_605_664 * 1024));
        assert_eq!(total("MemFree: 3 kB\n"), None);
        let default = default_in_flight();
        assert!((LIMIT_MIN_BYTES..=2 << 30).contains(&default), "{default}");
    }
}
