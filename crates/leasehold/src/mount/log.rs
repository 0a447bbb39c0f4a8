//! Where messages go: to standard error at first; after the mount has gone to the background, to a file or
//! the system log. The system log and systemd's journal get a priority with each message. [`repeats`] leaves
//! out what repeats.

mod repeats;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use parking_lot::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::Failure;
use repeats::{Fate, Repeats};

/// The socket of the system log.
const SYSLOG: &str = "/dev/log";
/// The facility `LOG_DAEMON` (RFC 3164).
const DAEMON: u8 = 3 << 3;

static SINK: Mutex<Sink> = Mutex::new(Sink::Stderr);
static REPEATS: LazyLock<Mutex<Repeats>> = LazyLock::new(Mutex::default);

enum Sink {
    Stderr,
    File(File),
    Syslog(UnixDatagram),
    Nowhere,
}

/// A writer: each write is one message.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Its severity (RFC 3164): 3 is an error, 7 is for debugging.
    severity: u8,
    /// Standard error leads to systemd's journal, which takes severities (sd-daemon(3)).
    journal: bool,
}

/// Makes the writers of `tracing`'s messages.
#[derive(Clone, Copy, Debug)]
pub struct Logs {
    journal: bool,
}

impl Logs {
    /// For this process. systemd names the file that it has given as standard error (systemd.exec(5)).
    pub fn new() -> Logs {
        let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = rustix::fs::fstat(rustix::stdio::stderr());
        let is_it = stderr.is_ok_and(|stat| format!("{}:{}", stat.st_dev, stat.st_ino) == named);
        Logs { journal: is_it }
    }

    fn of(self, severity: u8) -> Log {
        Log { severity, journal: self.journal }
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.of(NOTICE)
    }

    fn make_writer_for(&self, meta: &Metadata<'_>) -> Log {
        self.of(match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => DEBUG,
        })
    }
}

/// The severity of a message for debugging.
const DEBUG: u8 = 7;
/// The severity of a message that is neither good nor bad.
const NOTICE: u8 = 5;

/// Writes a message of this process, whatever the log filter says. If it cannot be written, it is lost.
pub fn notice(message: &str) {
    let _ = Logs::new().of(NOTICE).write_all(format!("leasehold: {message}\n").as_bytes());
}

impl Write for Log {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let line = line(message);
        // Notices answer what somebody has just done, and debugging wants everything.
        let may_be_left_out = !matches!(self.severity, NOTICE | DEBUG);
        let fate = if may_be_left_out { REPEATS.lock().judge(&line, Instant::now()) } else { Fate::Write };
        match fate {
            Fate::Write => self.put(&line)?,
            Fate::LeaveOut => {}
            Fate::WriteAfter(count) => {
                self.put(left_out(count, &line).as_bytes())?;
                self.put(&line)?;
            }
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Writes one line.
    fn put(self, line: &[u8]) -> io::Result<()> {
        match &mut *SINK.lock() {
            Sink::Stderr => {
                let prefix = if self.journal { format!("<{}>", self.severity) } else { String::new() };
                io::stderr().write_all(&[prefix.as_bytes(), line].concat())?;
            }
            Sink::File(file) => file.write_all(line)?,
            Sink::Syslog(socket) => {
                let mut datagram =
                    format!("<{}>leasehold[{}]: ", DAEMON | self.severity, std::process::id()).into_bytes();
                datagram.extend_from_slice(line.trim_ascii_end());
                // If the socket is full, the message is lost; logging never blocks.
                let _ = socket.send(&datagram);
            }
            Sink::Nowhere => {}
        }
        Ok(())
    }
}

/// The line that says how many lines like this one were left out, in the same form.
fn left_out(count: u64, line: &[u8]) -> String {
    let said = format!("{count} messages like the next one were left out");
    if line.starts_with(b"{") {
        format!("{}\n", serde_json::json!({ "level": "INFO", "fields": { "message": said } }))
    } else {
        format!("{said}\n")
    }
}

/// One message as one line, with its control characters escaped.
fn line(message: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(message);
    let (text, end) = text.strip_suffix('\n').map_or((&text[..], ""), |text| (text, "\n"));
    let mut line = crate::output::escaped(text, &['\t']).into_owned().into_bytes();
    line.extend_from_slice(end.as_bytes());
    line
}

/// Opens the log file. Called while standard error can still take the error.
pub fn open(path: &Path) -> Result<File, Failure> {
    let opened = File::options().create(true).append(true).open(path);
    opened.map_err(|error| {
        Failure(format!("cannot log to {}: {error}; name another file, or leave log= out", path.display()))
    })
}

/// From now on, messages go to the file, or to the system log.
pub fn leave_stderr(file: Option<File>) {
    let syslog = || {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SYSLOG).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    };
    *SINK.lock() = match file {
        Some(file) => Sink::File(file),
        None => syslog().map_or(Sink::Nowhere, Sink::Syslog),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_forges_no_line_of_the_log() {
        let forged = line(b"WARN cannot remove a\n2026-11-23 INFO all is well\x1b[1A: denied\n");
        assert_eq!(forged, b"WARN cannot remove a\\n2026-11-23 INFO all is well\\u{1b}[1A: denied\n");
        assert_eq!(line(b"WARN plain\n"), b"WARN plain\n");
        assert_eq!(line(b"\xff"), "\u{fffd}".as_bytes());
    }
}
