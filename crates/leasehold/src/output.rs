//! Standard output and standard error. `println!` panics when the reader has gone away; a command ends then as others do,
//! and a server goes on.
//!
//! Messages contain names that clients and origins chose. What a terminal or a reader of lines would obey in them is escaped
//! here, where all messages leave.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{ErrorKind, Write};

/// What a shell reports of a program that SIGPIPE has ended.
const ENDED_BY_SIGPIPE: i32 = 128 + 13;

/// Would a terminal obey this character instead of showing it? Control characters, and those that turn the direction of
/// text round.
pub fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text in which nothing is obeyed but the characters in `kept`.
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
            // A string takes all that is written to it.
            let _ = write!(out, "{}", c.escape_default());
        }
    }
    Cow::Owned(out)
}

/// Prints a line of a command's answer, or several. If nobody reads it, or it cannot be written, the command ends.
pub fn line(text: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", escaped(&text.to_string(), &['\n', '\t'])).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(ENDED_BY_SIGPIPE),
        Err(error) => {
            tell(format_args!("cannot write to standard output: {error}; give it another place"));
            std::process::exit(1);
        }
    }
}

/// Prints a line of a process that goes on: whether anybody reads it does not matter.
pub fn announce(text: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", escaped(&text.to_string(), &[])).and_then(|()| out.flush());
}

/// Tells the user something, on standard error.
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
