//! Copies of delayed writes for people: of each file what was written, at its place, and a text that lists
//! the ranges.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vfs::Timestamp;

use super::conflicts::keep_as;
use super::entry::{Begin, Entry, Set};
use super::listing::{cut, oldest, pending, ranges};

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Writes the file that the entries make into `directory`, and a text beside it. `shown` is the path of the
/// file for the text; it is one line. Returns the path of the copy.
///
/// # Errors
/// Those of the disk.
pub fn export(
    directory: &Path,
    begin: &Begin,
    shown: &str,
    entries: &[Entry],
    seconds: u64,
) -> io::Result<PathBuf> {
    let path = keep_as("delayed", directory, begin, entries, seconds)?;
    let mut beside = path.clone().into_os_string();
    beside.push(".ranges");
    let mut file = new_file(Path::new(&beside))?;
    file.write_all(text(shown, entries).as_bytes())?;
    file.sync_all()?;
    Ok(path)
}

fn text(shown: &str, entries: &[Entry]) -> String {
    let ranges = ranges(entries);
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let mut text = format!("path {shown}\n");
    // Writing to a string cannot fail.
    if let Some(oldest) = oldest(entries) {
        let _ = writeln!(text, "oldest {}", date(oldest));
    }
    if let Some(end) = cut(entries) {
        let _ = writeln!(text, "truncate {end}");
    }
    if let Some(Set { atime, mtime, rights: [mode, uid, gid], .. }) = pending(entries) {
        let times = [("atime", atime), ("mtime", mtime)];
        let times = times.map(|(what, time)| time.map(|time| format!("{what} {}\n", date(time))));
        let mode = mode.map(|mode| format!("mode {mode:04o}\n"));
        let owners = [("uid", uid), ("gid", gid)].map(|(what, id)| id.map(|id| format!("{what} {id}\n")));
        text.extend(times.into_iter().chain([mode]).chain(owners).flatten());
    }
    let _ = writeln!(text, "bytes {bytes}");
    for range in ranges {
        let _ = writeln!(text, "range {} {}", range.start, range.end - range.start);
    }
    text
}

fn date(time: Timestamp) -> String {
    let [year, month, day, hour, minute, second] = vfs::civil(time.seconds.max(0) as u64);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", time.nanoseconds)
}

/// Copies a kept file into `directory`, under its name. Holes stay holes. Returns the path of the copy.
///
/// # Errors
/// Those of the disk. `AlreadyExists` if there is a file of that name.
pub fn copy_kept(kept: &Path, directory: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let to = directory.join(kept.file_name().ok_or(ErrorKind::InvalidInput)?);
    let from = OpenOptions::new().read(true).custom_flags(nofollow()).open(kept)?;
    let copy = new_file(&to)?;
    let copied = copy_data(&from, &copy).and_then(|()| copy.sync_all());
    if copied.is_err() {
        // It is incomplete.
        let _ = std::fs::remove_file(&to);
    }
    copied.map(|()| to)
}

/// The flag of open(2) that refuses a symbolic link.
fn nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let end = from.metadata()?.len();
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < end {
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data from here on.
            Err(Errno::NXIO) => break,
            // The file system knows no holes.
            Err(_) => at,
        };
        let hole = rustix::fs::seek(from, SeekFrom::Hole(data)).unwrap_or(end);
        at = data;
        while at < hole {
            let length = buffer.len().min((hole - at) as usize);
            let read = from.read_at(&mut buffer[..length], at)?;
            if read == 0 {
                return to.set_len(end);
            }
            to.write_all_at(&buffer[..read], at)?;
            at += read as u64;
        }
    }
    to.set_len(end)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use bytes::Bytes;
    use vfs::{Handle, LeaseId, Name, Principal};

    use super::*;
    use crate::store::Place;

    #[test]
    fn a_copy_has_what_was_written_and_a_list_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("to");
        let handle = Handle::new(b"h").unwrap();
        let place = Place { directory: handle, name: Name::new(b"file").unwrap() };
        let begin = Begin { handle, lease: LeaseId(1), change: None, replaces: None, place: Some(place) };
        let write = |offset, bytes: &'static [u8]| Entry::Write {
            writer: Principal::Machine,
            offset,
            modified: Timestamp { seconds: 1_795_676_643, nanoseconds: 0 },
            bytes: Bytes::from_static(bytes),
        };
        let set = Entry::Attributes(Set {
            writer: Principal::Machine,
            atime: None,
            mtime: Some(Timestamp { seconds: 86_400, nanoseconds: 5 }),
            rights: [Some(0o640), None, Some(100)],
            asked: true,
        });
        let entries = [write(2, b"abcdef"), Entry::Cut(5), write(10, b"z"), set];
        let copy = export(&to, &begin, "/d/file", &entries, 1_795_676_700).unwrap();
        assert_eq!(copy.file_name().unwrap(), "file.leasehold-delayed-20261126T070500Z");
        assert_eq!(std::fs::read(&copy).unwrap(), b"\0\0abc\0\0\0\0\0z");
        let text = std::fs::read_to_string(format!("{}.ranges", copy.display())).unwrap();
        let wanted = "\
            path /d/file\noldest 2026-11-26T07:04:03.000000000Z\ntruncate 5\n\
            mtime 1970-01-02T00:00:00.000000005Z\nmode 0640\ngid 100\n\
            bytes 4\nrange 2 3\nrange 10 1\n";
        assert_eq!(text, wanted);
        let again = export(&to, &begin, "/d/file", &entries, 1_795_676_700).unwrap();
        assert_ne!(copy, again);
    }

    #[test]
    fn holes_stay_holes_and_nothing_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let (kept, to) = (directory.path().join("kept"), directory.path().join("to"));
        let file = new_file(&kept).unwrap();
        file.write_all_at(b"data", 8 << 20).unwrap();
        file.set_len(16 << 20).unwrap();
        let copy = copy_kept(&kept, &to).unwrap();
        assert!(std::fs::read(&copy).unwrap() == std::fs::read(&kept).unwrap());
        assert!(std::fs::metadata(&copy).unwrap().blocks() * 512 < 1 << 20);
        assert_eq!(copy_kept(&kept, &to).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        assert!(copy_kept(&link, &to).is_err(), "a link is not followed");
    }
}
