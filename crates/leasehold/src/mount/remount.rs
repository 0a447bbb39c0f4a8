//! `-o remount`: changes the mount(8) flags of a mount, above all `ro`.
//!
//! The kernel enforces these flags, so the process that serves the mount need not know about them. All other
//! options (version, cache, timeouts) keep their values.
//!
//! mount(8) passes the options of its tables together with those of the command line. Some of these options
//! are the kernel's own. Therefore unknown options are ignored here.

use std::path::Path;

use super::words::{self, Words};
use super::{KIND, cli};
use crate::Failure;

/// Is `remount` among the options?
pub fn is_wanted(arguments: &cli::Mount) -> bool {
    arguments.options.iter().flat_map(|text| text.split(',')).any(|word| word == "remount")
}

/// Changes the flags.
///
/// # Errors
/// If nothing of ours is mounted there, or if the kernel refuses. While files are open for writing, it
/// refuses `ro`.
pub fn run(arguments: &cli::Mount) -> Result<(), Failure> {
    let at = arguments.directory.display();
    let directory = std::path::absolute(&arguments.directory).unwrap_or_else(|_| arguments.directory.clone());
    let words = words_at(&directory, arguments)?;
    mount::remount(&words.target(directory, String::new())).map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Failure(format!(
            "cannot make {at} read-only: files are open for writing; close them (fuser -vm {at} lists them)"
        )),
        _ => Failure(format!("cannot remount {at}: {error}; run it as root")),
    })
}

/// The present flags, changed by the given options.
fn words_at(directory: &Path, arguments: &cli::Mount) -> Result<Words, Failure> {
    let Some(now) = mount::options_at(directory, KIND) else {
        let at = directory.display();
        return Err(Failure(format!(
            "cannot remount {at}: nothing of Leasehold is mounted there; mount it first"
        )));
    };
    let (mut words, mut url) = (Words::new(), words::source(&arguments.source)?);
    (words.nosuid, words.nodev) = (false, false);
    for text in std::iter::once(&now).chain(&arguments.options) {
        words.take(text, &mut url, true)?;
    }
    Ok(words)
}
