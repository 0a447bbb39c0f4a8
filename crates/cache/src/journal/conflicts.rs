//! Delayed writes of an earlier process that cannot be sent, because somebody else has changed the file or
//! has removed it.
//!
//! They go into a file of the cache directory that holds what was written, at its place, and holes elsewhere.
//! A local program can take it from there. The cache removes it only if a person asks for that.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::entry::{Begin, Entry};

/// Files of one name and time that are told apart.
const SAME_NAME_MAX: u32 = 10_000;
/// The longest part of a file's name that is kept: names end at 255 bytes.
const NAME_MAX_BYTES: usize = 200;

/// Writes the file that the entries make into `directory`, and syncs it. Returns its path. `seconds` is the
/// time since 1970.
///
/// # Errors
/// Those of the disk.
pub fn keep(directory: &Path, begin: &Begin, entries: &[Entry], seconds: u64) -> io::Result<PathBuf> {
    keep_as("conflict", directory, begin, entries, seconds)
}

/// The same. The name of the file tells what it is.
pub(super) fn keep_as(
    what: &str,
    directory: &Path,
    begin: &Begin,
    entries: &[Entry],
    seconds: u64,
) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let (path, file) = create(directory, name_of(begin), what, seconds)?;
    let written = write(&file, entries).and_then(|()| File::open(directory)?.sync_all());
    if written.is_err() {
        // The next start would make another one.
        let _ = std::fs::remove_file(&path);
    }
    written.map(|()| path)
}

fn write(file: &File, entries: &[Entry]) -> io::Result<()> {
    for (at, entry) in entries.iter().enumerate() {
        match entry {
            Entry::Write { offset, bytes, .. } => file.write_all_at(bytes, *offset)?,
            Entry::Cut(end) if is_done(entries, at) && *end < file.metadata()?.len() => file.set_len(*end)?,
            _ => {}
        }
    }
    file.sync_all()
}

/// Is the truncation at this place in the entries carried out, as far as is known?
pub(super) fn is_done(entries: &[Entry], at: usize) -> bool {
    let ended = entries.iter().skip(at).find(|entry| matches!(entry, Entry::CutEnd(_)));
    ended != Some(&Entry::CutEnd(false))
}

/// How many files are kept in `directory`.
pub fn kept(directory: &Path) -> u64 {
    std::fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

/// A file that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The file.
    pub path: PathBuf,
    /// Its size, with its holes.
    pub bytes: u64,
    /// When it was kept.
    pub since: SystemTime,
}

/// The files that are kept in `directory`, oldest first.
///
/// # Errors
/// Those of the disk. It is no error if there is no directory.
pub fn list_kept(directory: &Path) -> io::Result<Vec<Kept>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut kept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        match path.symlink_metadata() {
            Ok(of) => kept.push(Kept { bytes: of.len(), since: of.modified()?, path }),
            // A person has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    kept.sort_by(|a, b| (a.since, &a.path).cmp(&(b.since, &b.path)));
    Ok(kept)
}

/// The last name of the file.
pub fn name_of(begin: &Begin) -> &[u8] {
    let name = begin.place.as_ref().map_or(&b"unknown"[..], |place| place.name.as_bytes());
    name.get(..NAME_MAX_BYTES).unwrap_or(name)
}

fn create(directory: &Path, name: &[u8], what: &str, seconds: u64) -> io::Result<(PathBuf, File)> {
    let [year, month, day, hour, minute, second] = vfs::civil(seconds);
    let date = format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z");
    for number in 1..=SAME_NAME_MAX {
        let which = if number == 1 { String::new() } else { format!("-{number}") };
        let file_name = [name, format!(".leasehold-{what}-{date}{which}").as_bytes()].concat();
        let path = directory.join(std::ffi::OsStr::from_bytes(&file_name));
        let mut options = OpenOptions::new();
        match options.read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => return Ok((path, file)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use vfs::{Handle, LeaseId, Name, Principal, Timestamp};

    use crate::store::Place;

    #[test]
    fn what_was_written_is_found_at_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("conflicts");
        let handle = Handle::new(b"h").unwrap();
        let place = Place { directory: handle, name: Name::new(&[b'n'; 255]).unwrap() };
        let write = |offset, bytes: &'static [u8]| Entry::Write {
            writer: Principal::Machine,
            offset,
            modified: Timestamp::default(),
            bytes: Bytes::from_static(bytes),
        };
        let begin = Begin { handle, lease: LeaseId(1), change: None, replaces: None, place: Some(place) };
        let refused = [Entry::Cut(0), Entry::CutEnd(false)];
        let entries = [&[write(2, b"abcdef")], &refused[..], &[Entry::Cut(5), write(6, b"z")]].concat();
        let keep = |directory: &Path| keep(directory, &begin, &entries, 1_795_676_643);
        let first = keep(&directory).unwrap();
        let second = keep(&directory).unwrap();
        assert_eq!(std::fs::read(&first).unwrap(), b"\0\0abc\0z");
        let names = [&first, &second].map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        assert_eq!(names[0], "n".repeat(200) + ".leasehold-conflict-20261126T070403Z");
        assert_eq!(names[1], names[0].clone() + "-2");
        assert!(keep(&directory.join("\0")).is_err());
    }
}
