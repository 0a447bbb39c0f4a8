//! Records which cache and which process belong to a mount: two files per mount, in a directory that a
//! reboot clears.

use std::path::{Path, PathBuf};

use crate::state;

/// The record of one mount; dropping the value removes it.
#[derive(Debug)]
pub struct Place(Option<(PathBuf, PathBuf)>);

impl Drop for Place {
    fn drop(&mut self) {
        let Some((path, cache)) = &self.0 else { return };
        // Another cache may have been mounted there since.
        if std::fs::read_to_string(path).is_ok_and(|written| Path::new(&written) == cache) {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(beside(path));
        }
    }
}

/// Records the cache of a mount, and this process. If the record cannot be written, the mount works without
/// it.
pub fn remember(mounted: &Path, cache: &Path) -> Place {
    let write = || {
        let directory = directory()?;
        state::make(&directory).ok()?;
        let path = directory.join(name(mounted));
        let cache = std::path::absolute(cache).ok()?;
        std::fs::write(beside(&path), std::process::id().to_string()).ok()?;
        std::fs::write(&path, cache.to_str()?).ok()?;
        Some((path, cache))
    };
    Place(write())
}

/// The file that records the process. `_p` is not an escape of [`name`], so no other mount has this name.
fn beside(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push("_process");
    path.into()
}

/// The process of the mount on a directory.
pub fn process_of(mounted: &Path) -> Option<i32> {
    let absolute = std::path::absolute(mounted).ok()?;
    std::fs::read_to_string(beside(&directory()?.join(name(&absolute)))).ok()?.parse().ok()
}

/// The cache of the mount on a directory.
pub fn cache_of(mounted: &Path) -> Option<PathBuf> {
    // Do not touch the directory itself, because its server may be away.
    let absolute = std::path::absolute(mounted).ok()?;
    let written = std::fs::read_to_string(directory()?.join(name(&absolute))).ok()?;
    Some(written.into())
}

/// A file name for a mount point: a slash becomes `-`, and other special bytes are escaped, so different
/// paths differ.
fn name(mounted: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let spelt = |byte: &u8| match byte {
        b'/' => "-".to_owned(),
        byte if byte.is_ascii_alphanumeric() || *byte == b'.' => (*byte as char).to_string(),
        byte => format!("_{byte:02x}"),
    };
    // `/mnt/` and `/mnt` name the same mount point.
    let bytes = mounted.as_os_str().as_bytes();
    let length = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    bytes[..length].iter().map(spelt).collect()
}

fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run/leasehold/mounts".into());
    }
    Some(PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?).join("leasehold/mounts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_mounts_have_different_names() {
        let names = ["/mnt/a", "/mnt-a", "/mnt_a", "/mnt/a b"].map(|path| name(Path::new(path)));
        assert_eq!(names, ["-mnt-a", "-mnt_2da", "-mnt_5fa", "-mnt-a_20b"]);
        assert_eq!(name(Path::new("/mnt/a//")), names[0]);
    }
}
