//! The output of a process: a thread collects its bounded tail, which can be searched while it grows.

use std::io::{Read, Write as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Prints a line of progress at once. It writes to standard error directly, because the test harness holds
/// back macro output.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {line}");
}

/// The most bytes kept; the oldest are dropped first.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A tail of output, shared by several threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    shared: Arc<(Mutex<Tail>, Condvar)>,
}

#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    /// Offset from which lines are searched.
    searched_from: usize,
    /// Number of readers that still collect.
    open: usize,
}

impl Log {
    /// Collects the output of `from` until it ends, in its own thread.
    pub(crate) fn collect(&self, mut from: impl Read + Send + 'static) {
        self.locked().open += 1;
        let log = self.clone();
        thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            loop {
                match from.read(&mut buffer) {
                    Ok(count) if count > 0 => log.append(&buffer[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
            log.locked().open -= 1;
            log.shared.1.notify_all();
        });
    }

    /// Adds a line of the lab's own.
    pub(crate) fn note(&self, line: &str) {
        self.append(format!("--- {line}\n").as_bytes());
    }

    /// A log that continues `earlier`. The earlier text is shown but no longer searched, and its readers
    /// cannot add to the new log.
    pub(crate) fn after(self, earlier: &Log) -> Log {
        let text = earlier.text().into_bytes();
        let mut tail = self.locked();
        tail.searched_from = text.len();
        tail.bytes = text;
        drop(tail);
        self
    }

    /// The text so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.locked().bytes).into_owned()
    }

    /// Waits for a line that contains `words` and returns it; `None` after `patience`, or if all readers have
    /// ended.
    pub(crate) fn wait_for_line(&self, words: &str, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        let mut tail = self.locked();
        loop {
            let text = String::from_utf8_lossy(&tail.bytes[tail.searched_from..]);
            let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            if let Some(line) = complete.rev().find(|line| line.contains(words)) {
                return Some(line.trim_end().to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || tail.open == 0 {
                return None;
            }
            tail = self.shared.1.wait_timeout(tail, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn append(&self, bytes: &[u8]) {
        let mut tail = self.locked();
        tail.bytes.extend_from_slice(bytes);
        let excess = tail.bytes.len().saturating_sub(KEPT_BYTES_MAX);
        tail.bytes.drain(..excess);
        tail.searched_from = tail.searched_from.saturating_sub(excess);
        drop(tail);
        self.shared.1.notify_all();
    }

    fn locked(&self) -> MutexGuard<'_, Tail> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT_BYTES_MAX, Log};
    use std::io::{Write, pipe};
    use std::time::Duration;

    #[test]
    fn a_line_is_found_when_it_is_whole_and_the_tail_is_bounded() {
        let (reader, mut writer) = pipe().expect("a pipe");
        let log = Log::default();
        log.collect(reader);
        writer.write_all(&vec![b'x'; 2 * KEPT_BYTES_MAX]).expect("the log reads");
        writer.write_all(b"\nlistening on 127.0.0.1:9\n").expect("the log reads");
        let line = log.wait_for_line("listening", Duration::from_secs(10));
        assert_eq!(line.as_deref(), Some("listening on 127.0.0.1:9"));
        assert!(log.text().len() <= KEPT_BYTES_MAX);
        drop(writer);
        assert_eq!(
            log.wait_for_line("never said", Duration::from_secs(600)),
            None,
            "returns when the pipe ends"
        );
    }
}
