//! `mount.leasehold`: how mount(8) calls us, under a name of its own (mount(8), EXTERNAL HELPERS).

use std::ffi::OsString;

/// The name under which we are the helper.
pub const NAME: &str = "mount.leasehold";

/// What mount(8) wants to hear of a failure.
pub const FAILED: u8 = 32;

/// The command line of `leasehold mount` for `mount.leasehold SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
/// `None` if there is nothing to be done (`-f`).
pub fn translate(mut arguments: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut to: Vec<OsString> = vec!["leasehold".into(), "mount".into()];
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        match &*text {
            "-o" => {
                to.push("-o".into());
                to.extend(arguments.next());
            }
            // The type is ours, and the name space is the one that we were started in.
            "-t" | "-N" => drop(arguments.next()),
            flags if flags.starts_with('-') && flags.len() > 1 && !flags.starts_with("--") => {
                if flags.contains('f') {
                    return None;
                }
                if flags.contains('s') {
                    to.push("--sloppy".into());
                }
            }
            _ => to.push(argument),
        }
    }
    Some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Option<Vec<String>> {
        let translated = translate(text.split(' ').map(OsString::from))?;
        Some(translated.into_iter().map(|word| word.into_string().unwrap_or_default()).collect())
    }

    #[test]
    fn the_helper_takes_what_mount_gives() {
        let wanted = ["leasehold", "mount", "h:/e", "/mnt", "--sloppy", "-o", "rw,noatime"];
        assert_eq!(words("h:/e /mnt -sv -o rw,noatime -t leasehold").unwrap(), wanted);
        assert_eq!(words("h:/e /mnt -nf"), None, "only pretend");
    }
}
