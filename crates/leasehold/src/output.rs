//! Standard output and standard error. `println!` panics when the reader has closed the pipe. Here a command
//! then ends as other programs do, and a server goes on.
//!
//! Messages contain names that clients and origins chose. All messages leave through this module, which
//! escapes the characters that a terminal or a line reader would act on.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{ErrorKind, Write};

/// The exit code that a shell reports for a program that SIGPIPE has ended.
const ENDED_BY_SIGPIPE: i32 = 128 + 13;

/// Would a terminal act on this character instead of showing it? True for control characters and for
/// characters that change the direction of text.
pub fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text with such characters escaped, except those in `kept`.
pub fn escaped<'t>(text: &'t str, kept: &[char]) -> Cow<'t, str> {
    let is_plain = |c: char| kept.contains(&c) || !is_obeyed(c);
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_plain(c) {
            out.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "{}", c.escape_default());
        }
    }
    Cow::Owned(out)
}

/// Prints one or more lines of a command's output. Ends the process if the reader is gone or the output
/// cannot be written.
pub fn line(text: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", escaped(&text.to_string(), &['\n', '\t'])).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(ENDED_BY_SIGPIPE),
        Err(error) => {
            tell(format_args!("cannot write to standard output: {error}; redirect it elsewhere"));
            std::process::exit(1);
        }
    }
}

/// Prints a line of a process that goes on; ignores a missing reader.
pub fn announce(text: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", escaped(&text.to_string(), &[])).and_then(|()| out.flush());
}

/// Prints a message for the user to standard error.
pub fn tell(text: impl fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "leasehold: {}", escaped(&text.to_string(), &[]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_is_obeyed() {
        assert_eq!(escaped("plain ünïcode", &[]), "plain ünïcode");
        assert_eq!(escaped("a\nb\tc", &['\n', '\t']), "a\nb\tc");
        assert_eq!(
            escaped("a\n2026 WARN forged\u{1b}[2J\u{9b}m\r", &[]),
            r"a\n2026 WARN forged\u{1b}[2J\u{9b}m\r"
        );
        assert_eq!(escaped("\u{202e}txt.exe", &[]), r"\u{202e}txt.exe");
    }
}
