//! An entry in libmount's table that makes umount(8) call our helper.
//!
//! umount(8) learns the type of a directory from statfs(2), which only says `fuse`, and would look for
//! `umount.fuse`, the helper of all FUSE file systems. It looks in libmount's own table first. The entry
//! `helper=leasehold` there means `/sbin/umount.leasehold`, for every user. mount(8) with `--fake` writes
//! such an entry and mounts nothing; libfuse uses it in the same way.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::KIND;

/// An entry; dropping the value removes it.
#[derive(Debug)]
pub struct Marker(Option<PathBuf>);

impl Drop for Marker {
    fn drop(&mut self) {
        let Some(directory) = &self.0 else { return };
        // The next mount of ours may be there already, with an entry of its own.
        if !matches!(mount::mounted_at(directory), Some((kind, _)) if kind == KIND) {
            run(Command::new("umount").args(["--no-canonicalize", "-i", "--fake", "--"]).arg(directory));
        }
    }
}

/// Writes the entry, with the options of mount(8) that belong there. If that fails, the mount works all the
/// same, but umount(8) does not wait for it.
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
