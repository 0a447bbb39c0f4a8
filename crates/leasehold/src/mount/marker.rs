//! A line in libmount's table that sends umount(8) to our helper.
//!
//! umount(8) learns the type of a directory from statfs(2), which says no more than `fuse`, and would look for
//! `umount.fuse`, the helper of all such file systems. A directory that has an entry in libmount's own table is looked up
//! there first, and `helper=leasehold` in it means `/sbin/umount.leasehold`, for every user. mount(8) with `--fake` writes
//! such an entry and mounts nothing, as it does for libfuse.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::KIND;

/// An entry; it goes with the value.
#[derive(Debug)]
pub struct Marker(Option<PathBuf>);

impl Drop for Marker {
    fn drop(&mut self) {
        let Some(directory) = &self.0 else { return };
        // The next mount there may be of ours, and have an entry of its own.
        if !matches!(mount::mounted_at(directory), Some((kind, _)) if kind == KIND) {
            run(Command::new("umount").args(["--no-canonicalize", "-i", "--fake", "--"]).arg(directory));
        }
    }
}

/// Writes the entry, with the words of mount(8) that belong there. Where it cannot be, umount(8) does not wait for us; that
/// is no reason not to mount.
pub fn set(source: &str, directory: &Path, words: &[String]) -> Marker {
    if !rustix::process::geteuid().is_root() {
        return Marker(None);
    }
    let words = [&["helper=leasehold".to_owned()], words].concat().join(",");
    let mut command = Command::new("mount");
    command.args(["--no-canonicalize", "-i", "-f", "-t", KIND, "-o", &words, "--", source]).arg(directory);
    Marker(run(&mut command).then(|| directory.to_owned()))
}

fn run(command: &mut Command) -> bool {
    let ran = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let done = ran.as_ref().is_ok_and(std::process::ExitStatus::success);
    if !done {
        tracing::debug!(?command, ?ran, "umount(8) will not call our helper");
    }
    done
}
