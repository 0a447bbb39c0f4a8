//! The text of a profile: which part of a tree a program uses, in the order of first use.
//!
//! The first line tells what the file is. Then each line is one use; empty lines and comments (`#`) say
//! nothing:
//!
//! ```text
//! # leasehold profile 1 of nfs://filer/export
//! list /src
//! look /src/main.c
//! absent /src/config.h
//! link /src/latest
//! open /src/data
//! read 0+65536,1048576+4096 /src/main.c
//! ```
//!
//! A path begins at the root of the export and is written as [`path::show`] writes it. A range is an offset
//! and a length in bytes.
//!
//! A profile may come from anybody. So a line becomes a [`Line`] or an error, never a part of one: each
//! component is a [`Name`], which cannot be `..`, and all numbers have bounds. A file with one wrong line is
//! refused as a whole.

use std::fmt;
use std::io::{BufRead, Read};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use cache::{RANGES_MAX, Use, UsedPath};
use serde::{Deserialize, Serialize};
use vfs::Name;

use super::path;
use crate::Failure;

/// How a profile begins. An origin may follow.
const HEAD: &str = "# leasehold profile 1";
/// The largest profile, in bytes.
const FILE_MAX_BYTES: u64 = 64 << 20;
/// The most lines of a profile.
const LINES_MAX: usize = 1 << 18;
/// The longest path, in bytes (`PATH_MAX` of Linux).
const PATH_MAX_BYTES: usize = 4096;
/// The most components of a path.
const COMPONENTS_MAX: usize = 256;
/// The longest line, in bytes: each byte of a path may be written as four.
const LINE_MAX_BYTES: usize = 5 * PATH_MAX_BYTES;

/// One line of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Line(pub UsedPath);

/// Why a line is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongLine {
    /// The first word.
    #[error("`{0}` is no use: write list, look, absent, link, open or read")]
    Use(String),
    /// The path is missing, or too long, or a component is no name.
    #[error("the path is wrong: it begins with `/`, has no `..`, and at most 4096 bytes and 256 names")]
    Path,
    /// The ranges.
    #[error("the ranges are wrong: write OFFSET+LENGTH, sorted, joined by commas, and 16 at most")]
    Ranges,
}

impl FromStr for Line {
    type Err = WrongLine;

    fn from_str(text: &str) -> Result<Line, WrongLine> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (used, written) = match word {
            "list" => (Use::Listed, rest),
            "look" => (Use::Looked, rest),
            "absent" => (Use::Absent, rest),
            "link" => (Use::Linked, rest),
            "open" => (Use::Opened, rest),
            "read" => {
                let (ranges, path) = rest.split_once(' ').ok_or(WrongLine::Ranges)?;
                (Use::Read(read_ranges(ranges).ok_or(WrongLine::Ranges)?), path)
            }
            other => return Err(WrongLine::Use(other.chars().take(16).collect())),
        };
        let path = read_path(written).ok_or(WrongLine::Path)?;
        if path.is_empty() && used == Use::Absent {
            return Err(WrongLine::Path);
        }
        Ok(Line(UsedPath { path, used }))
    }
}

fn read_path(written: &str) -> Option<Vec<Name>> {
    let bytes = path::read(written);
    let below = bytes.strip_prefix(b"/")?;
    if bytes.len() > PATH_MAX_BYTES {
        return None;
    }
    if below.is_empty() {
        return Some(Vec::new());
    }
    let path: Option<Vec<Name>> =
        below.split(|byte| *byte == b'/').map(|component| Name::new(component).ok()).collect();
    path.filter(|path| is_path(path))
}

/// May a profile have this path?
pub fn is_path(names: &[Name]) -> bool {
    let bytes: usize = names.iter().map(|name| 1 + name.as_bytes().len()).sum();
    names.len() <= COMPONENTS_MAX && bytes <= PATH_MAX_BYTES
}

fn read_ranges(written: &str) -> Option<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for part in written.split(',') {
        let (start, bytes) = part.split_once('+')?;
        let (start, bytes) = (number(start)?, number(bytes)?);
        let range = start..start.checked_add(bytes)?;
        let behind = ranges.last().is_none_or(|last| last.end <= range.start);
        if range.is_empty() || !behind || ranges.len() >= RANGES_MAX {
            return None;
        }
        ranges.push(range);
    }
    Some(ranges)
}

/// A decimal number. `parse` alone would take a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line(UsedPath { path, used }) = self;
        let word = match used {
            Use::Listed => "list",
            Use::Looked => "look",
            Use::Absent => "absent",
            Use::Linked => "link",
            Use::Opened => "open",
            Use::Read(ranges) => {
                let shown = |range: &Range<u64>| format!("{}+{}", range.start, range.end - range.start);
                let shown: Vec<String> = ranges.iter().map(shown).collect();
                return write!(f, "read {} {}", shown.join(","), show_path(path));
            }
        };
        write!(f, "{word} {}", show_path(path))
    }
}

/// The text of a path.
pub fn show_path(names: &[Name]) -> String {
    path::show(&names.iter().fold(b"/".to_vec(), |path, name| path::join(&path, name.as_bytes())))
}

impl From<Line> for String {
    fn from(line: Line) -> String {
        line.to_string()
    }
}

impl TryFrom<String> for Line {
    type Error = WrongLine;

    fn try_from(text: String) -> Result<Line, WrongLine> {
        text.parse()
    }
}

/// The first line of a profile of this origin.
pub fn head(origin: &str) -> String {
    format!("{HEAD} of {}\n", path::show(origin.as_bytes()))
}

/// Reads a profile.
///
/// # Errors
/// One line for the user, with the number of the first wrong line.
pub fn read(file: &Path) -> Result<Vec<Line>, Failure> {
    let cannot = |error: std::io::Error| {
        Failure(format!(
            "cannot read the profile {}: {error}; name a file that `leasehold cache record` has written",
            file.display()
        ))
    };
    let opened = std::fs::File::open(file).map_err(cannot)?;
    let mut lines = Vec::new();
    let parsed = parse(opened, |line| lines.push(line));
    match parsed {
        Ok(()) => Ok(lines),
        Err(Unreadable::Failed(error)) => Err(cannot(error)),
        Err(Unreadable::Wrong { line, why }) => Err(Failure(format!(
            "profile {}:{line}: {why}; correct the line, or record the profile again",
            file.display()
        ))),
    }
}

/// Why a profile cannot be read.
#[derive(Debug)]
enum Unreadable {
    Failed(std::io::Error),
    Wrong { line: usize, why: String },
}

fn parse(file: impl Read, mut take: impl FnMut(Line)) -> Result<(), Unreadable> {
    let mut reader = std::io::BufReader::new(file.take(FILE_MAX_BYTES + 1));
    let (mut bytes, mut taken) = (0u64, 0);
    let mut buffer = Vec::new();
    for number in 1.. {
        let wrong = |why: &str| Unreadable::Wrong { line: number, why: why.to_owned() };
        buffer.clear();
        let limit = LINE_MAX_BYTES as u64 + 1;
        let read = (&mut reader).take(limit).read_until(b'\n', &mut buffer).map_err(Unreadable::Failed)?;
        if read == 0 {
            return if number == 1 { Err(wrong("the file is empty")) } else { Ok(()) };
        }
        bytes += read as u64;
        if bytes > FILE_MAX_BYTES {
            return Err(wrong("the file is longer than 64 MiB"));
        }
        let text = buffer.strip_suffix(b"\n").unwrap_or(&buffer);
        if text.len() > LINE_MAX_BYTES {
            return Err(wrong("the line is too long"));
        }
        let text = std::str::from_utf8(text).map_err(|_| wrong("the line is not UTF-8"))?;
        if number == 1 && text != HEAD && !text.starts_with(&format!("{HEAD} ")) {
            return Err(wrong(&format!("this is no profile: its first line is not `{HEAD}`")));
        }
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        taken += 1;
        if taken > LINES_MAX {
            return Err(wrong("the profile has too many lines: 262144 at most"));
        }
        take(text.parse().map_err(|error: WrongLine| wrong(&error.to_string()))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &[u8]) -> Result<Vec<Line>, (usize, String)> {
        let mut lines = Vec::new();
        match parse(text, |line| lines.push(line)) {
            Ok(()) => Ok(lines),
            Err(Unreadable::Wrong { line, why }) => Err((line, why)),
            Err(Unreadable::Failed(error)) => panic!("{error}"),
        }
    }

    fn name() -> impl Strategy<Value = Name> {
        prop::collection::vec(any::<u8>(), 1..20).prop_filter_map("no name", |bytes| Name::new(&bytes).ok())
    }

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0..1u64 << 50, 1..1u64 << 40), 1..RANGES_MAX).prop_map(|steps| {
            let mut at = 0;
            let next = |(gap, bytes): (u64, u64)| {
                let start = at + gap;
                at = start + bytes;
                start..at
            };
            steps.into_iter().map(next).collect()
        })
    }

    fn line() -> impl Strategy<Value = Line> {
        let used = prop_oneof![
            Just(Use::Listed),
            Just(Use::Looked),
            Just(Use::Absent),
            Just(Use::Linked),
            Just(Use::Opened),
            ranges().prop_map(Use::Read),
        ];
        (prop::collection::vec(name(), 1..6), used).prop_map(|(path, used)| Line(UsedPath { path, used }))
    }

    proptest! {
        #[test]
        fn lines_come_back(lines in prop::collection::vec(line(), 0..20)) {
            let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
            prop_assert_eq!(parsed((head("nfs://a/b") + &text.join("\n")).as_bytes()), Ok(lines));
        }

        /// Noise is refused or understood. A line that is understood comes back.
        #[test]
        fn noise_is_refused_or_understood(
            word in prop::sample::select(vec!["", "list", "look", "absent", "link", "open", "read", "#", "ls"]),
            ranges in "[0-9+,-]{0,24}",
            path in "[/.a\\\\x0-9\u{e9}]{0,24}",
        ) {
            for text in [format!("{word} {path}"), format!("{word} {ranges} {path}"), path] {
                if let Ok(line) = text.parse::<Line>() {
                    prop_assert_eq!(line.to_string().parse::<Line>(), Ok(line));
                }
            }
        }

        #[test]
        fn noise_as_a_file_is_refused_or_understood(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parsed(&bytes);
            let _ = parsed(&[HEAD.as_bytes(), b"\n", &bytes].concat());
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let wrong = |text: &str| parsed(format!("{HEAD}\n\nlist /\n{text}\n").as_bytes()).unwrap_err();
        for path in [
            "look ..",
            "look /..",
            "look /a/../b",
            "look /a//b",
            "look a",
            "look",
            "look /a\\x00b",
            "absent /",
        ] {
            assert_eq!(wrong(path), (4, WrongLine::Path.to_string()), "{path}");
        }
        let long = format!("look /{}", "a/".repeat(2100) + "a");
        assert_eq!(wrong(&long), (4, WrongLine::Path.to_string()));
        let deep = |names: usize| format!("look {}", "/a".repeat(names));
        assert!(deep(COMPONENTS_MAX).parse::<Line>().is_ok());
        assert_eq!(wrong(&deep(COMPONENTS_MAX + 1)), (4, WrongLine::Path.to_string()));
        assert_eq!(wrong(&format!("look /{}", "a".repeat(256))).0, 4);
        for ranges in [
            "read /a",
            "read 0+0 /a",
            "read 5+5,0+5 /a",
            "read +1+5 /a",
            "read 0+-1 /a",
            "read 18446744073709551615+1 /a",
            "read 1 /a",
        ] {
            assert_eq!(wrong(ranges), (4, WrongLine::Ranges.to_string()), "{ranges}");
        }
        let many: Vec<String> = (0..17).map(|at| format!("{}+1", at * 2)).collect();
        assert_eq!(wrong(&format!("read {} /a", many.join(","))).1, WrongLine::Ranges.to_string());
        assert!(wrong("levitate /a").1.contains("levitate"));
        assert!(wrong(&"x".repeat(LINE_MAX_BYTES + 1)).1.contains("too long"));
    }

    #[test]
    fn what_is_no_profile_is_refused_at_once() {
        for text in [&b""[..], b"list /\n", b"\x7fELF\0\0", b"# leasehold profile 12\nlist /\n"] {
            assert_eq!(parsed(text).unwrap_err().0, 1);
        }
        assert_eq!(parsed(b"# leasehold profile 1").unwrap(), []);
        let many = format!("{HEAD}\n{}", "look /a\n".repeat(LINES_MAX + 1));
        assert!(parsed(many.as_bytes()).unwrap_err().1.contains("too many lines"));
    }
}
