//! `mount.leasehold` and `umount.leasehold`: the names under which mount(8) and umount(8) call this program
//! (see EXTERNAL HELPERS in their manuals).

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The exit code for a failure that mount(8) expects.
pub const FAILED: u8 = 32;

/// A name under which mount(8) or umount(8) calls this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// `mount.leasehold SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`
    Mount,
    /// `umount.leasehold DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`
    Unmount,
}

impl Helper {
    /// The helper that a program name stands for, if any.
    pub fn of(name: &OsStr) -> Option<Helper> {
        match Path::new(name).file_name()?.to_str()? {
            "mount.leasehold" | "mount.fuse.leasehold" => Some(Helper::Mount),
            "umount.leasehold" | "umount.fuse.leasehold" => Some(Helper::Unmount),
            _ => None,
        }
    }

    /// The command line of `leasehold mount` or `leasehold umount`. `None` if there is nothing to do (`mount
    /// -f`).
    pub fn translate(self, mut arguments: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
        let command = if self == Helper::Mount { "mount" } else { "umount" };
        let mut to: Vec<OsString> = vec!["leasehold".into(), command.into()];
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy();
            match &*text {
                "-o" if self == Helper::Mount => {
                    to.push("-o".into());
                    to.extend(arguments.next());
                }
                // The type is always ours. The mount goes into the namespace in which this helper was
                // started.
                "-t" | "-N" => drop(arguments.next()),
                flags if flags.starts_with('-') && flags.len() > 1 && !flags.starts_with("--") => {
                    for flag in flags.chars() {
                        match (self, flag) {
                            (Helper::Mount, 'f') => return None,
                            (Helper::Mount, 's') => to.push("--sloppy".into()),
                            (Helper::Unmount, 'f') => to.push("--force".into()),
                            (Helper::Unmount, 'l') => to.push("--lazy".into()),
                            _ => {}
                        }
                    }
                }
                _ => to.push(argument),
            }
        }
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Option<Vec<String>> {
        let helper = Helper::of(OsStr::new(name)).unwrap();
        let translated = helper.translate(text.split(' ').map(OsString::from))?;
        Some(translated.into_iter().map(|word| word.into_string().unwrap_or_default()).collect())
    }

    #[test]
    fn the_helper_takes_what_mount_gives() {
        let wanted = ["leasehold", "mount", "h:/e", "/mnt", "--sloppy", "-o", "rw,noatime"];
        let name = "/sbin/mount.leasehold";
        assert_eq!(words(name, "h:/e /mnt -sv -o rw,noatime -t leasehold").unwrap(), wanted);
        assert_eq!(words(name, "h:/e /mnt -nf"), None, "only pretend");
    }

    #[test]
    fn the_helper_takes_what_umount_gives() {
        let name = "/sbin/umount.leasehold";
        assert_eq!(words(name, "/mnt -n -t fuse.leasehold").unwrap(), ["leasehold", "umount", "/mnt"]);
        let wanted = ["leasehold", "umount", "/mnt", "--lazy", "--force"];
        assert_eq!(words("umount.fuse.leasehold", "/mnt -l -f -N /proc/1/ns/mnt").unwrap(), wanted);
        assert_eq!(Helper::of(OsStr::new("leasehold")), None);
    }
}
