//! The operations of a hand on one file: each act opens, works and closes, like a short-lived program.
//!
//! The same acts run in a guest (through the agent) and on the host (in the test's own process). So a test
//! can place its writers and readers anywhere.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Performs `verb` on its arguments. The meaning of the reply depends on the verb.
pub fn act(verb: &[u8], arguments: &[Vec<u8>]) -> io::Result<Vec<u8>> {
    let none = Vec::new();
    match (verb, arguments) {
        (b"read", [path]) => fs::read(at(path)),
        (b"write", [path, data]) => fs::write(at(path), data).map(|()| none),
        (b"overwrite", [path, data]) => {
            OpenOptions::new().write(true).open(at(path))?.write_all_at(data, 0).map(|()| none)
        }
        (b"append", [path, data]) => {
            OpenOptions::new().append(true).open(at(path))?.write_all(data).map(|()| none)
        }
        (b"replace", [path, data]) => replace(at(path), data).map(|()| none),
        (b"truncate", [path, size]) => {
            OpenOptions::new().write(true).open(at(path))?.set_len(number(size)?).map(|()| none)
        }
        (b"rename", [from, to]) => fs::rename(at(from), at(to)).map(|()| none),
        (b"remove", [path]) => fs::remove_file(at(path)).map(|()| none),
        (b"link", [from, to]) => fs::hard_link(at(from), at(to)).map(|()| none),
        (b"rmdir", [path]) => fs::remove_dir(at(path)).map(|()| none),
        (b"mkdir", [path]) => fs::create_dir(at(path)).map(|()| none),
        (b"list", [path]) => list(at(path)),
        (b"stat", [path]) => stat(at(path)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a hand cannot {} with {} arguments", String::from_utf8_lossy(verb), arguments.len()),
        )),
    }
}

fn at(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn number(digits: &[u8]) -> io::Result<u64> {
    let text = String::from_utf8_lossy(digits);
    text.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("not a number: {text}")))
}

/// Replaces a file as editors do: writes a new file under another name, and renames it over the old one.
fn replace(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.extend_from_slice(b".new");
    let fresh = PathBuf::from(std::ffi::OsString::from_vec(name));
    let mut file = File::create(&fresh)?;
    file.write_all(data)?;
    drop(file);
    fs::rename(&fresh, path)
}

/// The names in a directory, sorted, each terminated by NUL.
fn list(path: &Path) -> io::Result<Vec<u8>> {
    let mut names = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name().into_vec()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
}

/// Size in bytes, mtime and ctime in nanoseconds, inode number, link count and mode, in decimal.
fn stat(path: &Path) -> io::Result<Vec<u8>> {
    let meta = fs::symlink_metadata(path)?;
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Ok(format!(
        "{} {} {} {} {} {}",
        meta.size(),
        nanoseconds(meta.mtime(), meta.mtime_nsec()),
        nanoseconds(meta.ctime(), meta.ctime_nsec()),
        meta.ino(),
        meta.nlink(),
        meta.mode()
    )
    .into_bytes())
}
