//! Private directories: they hold file data, handles, and state at the origin, which other users must not
//! see.
//!
//! No other user may read or change their contents, whichever program made the directory. If other users may
//! enter or read a directory of ours, its mode is made stricter (systemd makes its `CacheDirectory=` 0755).
//! If another user may write to the directory, its contents cannot be trusted, and it is refused.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::Failure;

/// Mode bits of the group and others.
const FOREIGN: u32 = 0o077;
/// Their write bits.
const FOREIGN_WRITE: u32 = 0o022;
/// Subdirectories whose entries are checked, too.
const BELOW: [&str; 3] = ["state", "objects", "index"];

/// Refuses a path whose last component is a symbolic link of another user.
///
/// # Errors
/// If it is one.
pub fn check_link(directory: &Path) -> Result<(), Failure> {
    match std::fs::symlink_metadata(directory) {
        Ok(found) if found.is_symlink() && !is_trusted(found.uid()) => Err(Failure(format!(
            "{} is a symbolic link of user {}; remove it, or name another directory",
            directory.display(),
            found.uid()
        ))),
        _ => Ok(()),
    }
}

/// Makes a directory and its contents private.
///
/// # Errors
/// If it belongs to another user, if another user may write to it, or if there are symbolic links in it.
pub fn secure(directory: &Path) -> Result<(), Failure> {
    let unusable = |path: &Path, error: io::Error| {
        Failure(format!("cannot use {}: {error}; name another directory", path.display()))
    };
    let opened = open_directory(directory).map_err(|error| unusable(directory, error))?;
    let found = opened.metadata().map_err(|error| unusable(directory, error))?;
    judge(directory, &found)?;
    // A directory that is not ours was given by mistake; leave its modes alone.
    if !is_leaseholds(directory).map_err(|error| unusable(directory, error))? {
        return Ok(());
    }
    tighten(&opened, &found).map_err(|error| unusable(directory, error))?;
    look_into(directory)?;
    for name in BELOW {
        let below = directory.join(name);
        if below.is_dir() {
            look_into(&below)?;
        }
    }
    Ok(())
}

/// Is it ours: empty, or with the lock file of an earlier process?
fn is_leaseholds(directory: &Path) -> io::Result<bool> {
    let has_lock = std::fs::symlink_metadata(directory.join("lock")).is_ok();
    Ok(has_lock || std::fs::read_dir(directory)?.next().is_none())
}

fn open_directory(directory: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(directory)
}

fn judge(path: &Path, found: &Metadata) -> Result<(), Failure> {
    let path = path.display();
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure(format!(
            "{path} belongs to user {}; run as that user, or name a directory of your own",
            found.uid()
        )));
    }
    if found.mode() & FOREIGN_WRITE != 0 {
        return Err(Failure(format!(
            "other users may write to {path} (mode {:04o}), so its contents cannot be trusted; name a new directory",
            found.mode() & 0o7777
        )));
    }
    Ok(())
}

fn tighten(file: &File, found: &Metadata) -> io::Result<()> {
    if found.mode() & FOREIGN == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(found.mode() & 0o7777 & !FOREIGN))
}

/// Refuses symbolic links among the entries of a private directory, and makes the modes of the entries as
/// strict.
fn look_into(directory: &Path) -> Result<(), Failure> {
    let unusable = |error: io::Error| {
        Failure(format!("cannot read {}: {error}; name another directory", directory.display()))
    };
    for entry in std::fs::read_dir(directory).map_err(unusable)? {
        let entry = entry.map_err(unusable)?;
        let path = entry.path();
        let found = match entry.metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unusable(error)),
        };
        if found.is_symlink() {
            return Err(Failure(format!(
                "{} is a symbolic link, and Leasehold makes none; remove it",
                path.display()
            )));
        }
        // A key that others could read is not secret any more. Leave its mode, so that loading the key
        // refuses it.
        let is_key = entry.file_name() == "handle.key";
        if !is_key && (found.is_file() || found.is_dir()) && found.mode() & FOREIGN != 0 {
            let opened =
                File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path);
            opened.and_then(|file| tighten(&file, &found)).map_err(unusable)?;
        }
    }
    Ok(())
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_could_read_is_made_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["state", "objects"] {
            std::fs::create_dir(path.join(name)).unwrap();
            chmod(&path.join(name), 0o755);
        }
        for name in ["lock", "state/client.state"] {
            std::fs::write(path.join(name), b"x").unwrap();
            chmod(&path.join(name), 0o644);
        }
        chmod(path, 0o755);
        secure(path).unwrap();
        for name in ["", "state", "objects"] {
            assert_eq!(mode(&path.join(name)), 0o700, "{name}");
        }
        for name in ["lock", "state/client.state"] {
            assert_eq!(mode(&path.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn a_directory_that_is_something_else_keeps_its_modes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwd");
        std::fs::write(&file, b"x").unwrap();
        chmod(&file, 0o644);
        chmod(directory.path(), 0o755);
        secure(directory.path()).unwrap();
        assert_eq!((mode(directory.path()), mode(&file)), (0o755, 0o644));
    }

    #[test]
    fn what_others_could_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o770, 0o707, 0o1777, 0o722] {
            chmod(directory.path(), mode);
            let refused = secure(directory.path()).unwrap_err();
            assert!(refused.0.contains("other users may write"), "{}", refused.0);
        }
    }

    #[test]
    fn a_link_in_it_is_refused_and_what_it_leads_to_is_left_alone() {
        for name in ["lock", "state/lock", "objects/ab"] {
            let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let target = elsewhere.path().join("precious");
            std::fs::write(&target, b"precious").unwrap();
            chmod(&target, 0o644);
            let link = directory.path().join(name);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&target, &link).unwrap();
            if name != "lock" {
                std::fs::write(directory.path().join("lock"), b"").unwrap();
            }
            let refused = secure(directory.path()).unwrap_err();
            assert!(refused.0.contains("is a symbolic link"), "{}", refused.0);
            assert_eq!(std::fs::read(&target).unwrap(), b"precious");
            assert_eq!(mode(&target), 0o644);
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        if !rustix::process::geteuid().is_root() {
            // Only root can give a directory away; another user tries one that belongs to root.
            let refused = secure(Path::new("/usr")).unwrap_err();
            assert!(refused.0.contains("belongs to user 0"), "{}", refused.0);
            return;
        }
        std::os::unix::fs::chown(directory.path(), Some(65534), None).unwrap();
        let refused = secure(directory.path()).unwrap_err();
        assert!(refused.0.contains("belongs to user 65534"), "{}", refused.0);
        let link = directory.path().join("link");
        symlink("/nowhere", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert!(check_link(&link).unwrap_err().0.contains("symbolic link of user 65534"));
    }
}
