//! `-o remount`: what is mounted gets other flags of mount(8), read-only above all.
//!
//! The kernel keeps to them, and the process that serves the directory need not know. What is no flag of mount(8) stays as
//! it was mounted: the version, the cache, the timeouts. mount(8) gives all words that it finds in its tables along with
//! those of its command line, also those that the kernel made up, so that nothing unknown is refused here.

use std::path::Path;

use super::words::{self, Words};
use super::{KIND, cli};
use crate::Failure;

/// Is it wanted?
pub fn is_wanted(arguments: &cli::Mount) -> bool {
    arguments.options.iter().flat_map(|text| text.split(',')).any(|word| word == "remount")
}

/// Does it.
///
/// # Errors
/// If none of ours is mounted there, or the kernel refuses: files that are open for writing keep it from being read-only.
pub fn run(arguments: &cli::Mount) -> Result<(), Failure> {
    let at = arguments.directory.display();
    let directory = std::path::absolute(&arguments.directory).unwrap_or_else(|_| arguments.directory.clone());
    let words = words_at(&directory, arguments)?;
    mount::remount(&words.target(directory, String::new())).map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Failure(format!(
            "cannot make {at} read-only: files are open for writing; end what writes there (fuser -vm {at})"
        )),
        _ => Failure(format!("cannot remount {at}: {error}; it takes root")),
    })
}

/// The flags that it has now, and then those that are wanted.
fn words_at(directory: &Path, arguments: &cli::Mount) -> Result<Words, Failure> {
    let Some(now) = mount::options_at(directory, KIND) else {
        let at = directory.display();
        return Err(Failure(format!("cannot remount {at}: none of ours is mounted there; mount it first")));
    };
    let (mut words, mut url) = (Words::new(), words::source(&arguments.source)?);
    (words.nosuid, words.nodev) = (false, false);
    for text in std::iter::once(&now).chain(&arguments.options) {
        words.take(text, &mut url, true)?;
    }
    Ok(words)
}
