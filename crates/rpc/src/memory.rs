//! The memory of this machine or of our control group, and returning what the allocator keeps.

use std::path::Path;

use crate::account::LIMIT_MIN_BYTES;
use crate::sys;

/// The default limit of bytes in flight is this fraction of memory.
const PART: u64 = 16;
/// Largest default limit of bytes in flight.
const DEFAULT_MAX_BYTES: u64 = 2 << 30;

/// Default limit of bytes in flight for the whole process: a sixteenth of the memory, up to 2 GiB.
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

/// The smallest limit of our control group and its ancestors.
fn of_group(groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let limit = |directory: &Path| {
        std::fs::read_to_string(directory.join("memory.max")).ok()?.trim().parse::<u64>().ok()
    };
    root.join(path).ancestors().take_while(|directory| directory.starts_with(root)).filter_map(limit).min()
}

/// Makes the allocator return freed memory to the system. It may take milliseconds.
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
