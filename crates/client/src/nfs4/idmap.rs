//! Owners: strings on the wire, numbers in this program (RFC 8881, section 5.9).
//!
//! A string of digits is a number, which is what servers send to AUTH_SYS clients. Any other owner is
//! `name@domain`: the name is looked up in `/etc/passwd` or `/etc/group` of this machine. The files are read
//! again after a change. An unknown name becomes `nobody`.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// The number of an owner that is unknown here.
pub(crate) const NOBODY: u32 = 65534;
/// The shortest interval between two checks of the files.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct Idmap {
    users: Names,
    groups: Names,
}

impl Default for Idmap {
    fn default() -> Idmap {
        Idmap { users: Names::of("/etc/passwd"), groups: Names::of("/etc/group") }
    }
}

impl Idmap {
    pub(crate) fn uid(&self, owner: &[u8]) -> u32 {
        self.users.number(owner)
    }

    pub(crate) fn gid(&self, group: &[u8]) -> u32 {
        self.groups.number(group)
    }
}

/// Names of one kind: users or groups.
#[derive(Debug)]
struct Names {
    file: &'static Path,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    looked: Option<Instant>,
    modified: Option<SystemTime>,
    numbers: HashMap<Vec<u8>, u32>,
}

impl Names {
    fn of(file: &'static str) -> Names {
        Names { file: Path::new(file), known: Mutex::default() }
    }

    fn number(&self, owner: &[u8]) -> u32 {
        if let Some(number) = digits(owner) {
            return number;
        }
        let name = owner.split(|byte| *byte == b'@').next().unwrap_or_default();
        let mut known = self.known.lock();
        if known.looked.is_none_or(|looked| looked.elapsed() > LOOK_EVERY) {
            known.look(self.file);
        }
        known.numbers.get(name).copied().unwrap_or(NOBODY)
    }
}

impl Known {
    fn look(&mut self, file: &Path) {
        self.looked = Some(Instant::now());
        let modified = std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        if modified.is_some() && modified == self.modified {
            return;
        }
        self.modified = modified;
        self.numbers = parse(&std::fs::read(file).unwrap_or_default());
    }
}

/// The first and third fields of passwd(5) and group(5).
fn parse(text: &[u8]) -> HashMap<Vec<u8>, u32> {
    let line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name.to_vec(), digits(fields.nth(1)?)?))
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn digits(text: &[u8]) -> Option<u32> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_numbers_and_strangers_are_nobody() {
        let ids = Idmap::default();
        assert_eq!((ids.uid(b"4711"), ids.gid(b"0")), (4711, 0));
        assert_eq!(ids.uid(b"root@example.org"), 0);
        assert_eq!(ids.uid(b"no such user here@example.org"), NOBODY);
        assert_eq!((ids.uid(b""), ids.uid(b"-1"), ids.uid(b"99999999999")), (NOBODY, NOBODY, NOBODY));
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let names = parse(b"a:x:5:6::/:/bin/sh\n\n:x:7:\nb:x\nc:x:y:\nd:x:8:");
        assert_eq!(names.len(), 2);
        assert_eq!((names[&b"a"[..]], names[&b"d"[..]]), (5, 8));
    }
}
