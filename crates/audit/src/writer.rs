//! The thread that writes the lines.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Destination;
use super::line::Lines;
use super::paths::Paths;
use super::queue::{Queue, Taken};
use super::record::Record;

/// Text is written when there are this many bytes of it, and at the end of a list.
const TEXT_MAX: usize = 64 << 10;
/// A log that cannot be written is named once in this time.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);

enum Sink {
    File { path: Box<Path>, file: File },
    Lines(Box<dyn Fn(&str) + Send>),
}

pub(super) struct Writer {
    sink: Sink,
    /// Lines that are not in the file yet.
    text: String,
    /// The file ends in the middle of a line, because a write has failed.
    is_torn: bool,
    lines: Lines,
    paths: Paths,
    reopen: Arc<AtomicBool>,
    lost: u64,
    told: Option<Instant>,
}

impl Writer {
    pub(super) fn open(destination: Destination, reopen: Arc<AtomicBool>) -> io::Result<Writer> {
        let sink = match destination {
            Destination::File(path) => Sink::File { file: open(&path)?, path },
            Destination::Lines(lines) => Sink::Lines(lines),
        };
        let (text, lines, paths) = (String::new(), Lines::default(), Paths::new());
        Ok(Writer { sink, text, is_torn: false, lines, paths, reopen, lost: 0, told: None })
    }

    /// Writes until the queue is closed.
    pub(super) fn run(mut self, queue: &Queue) {
        let _guard = Leaving(queue);
        let mut taken = Taken::default();
        while queue.take(&mut taken) {
            let now = Instant::now();
            self.paths.expire(now);
            for record in &taken.records {
                self.write(record, now);
            }
            self.flush();
            for flushed in taken.flushes.drain(..) {
                let _ = flushed.send(());
            }
            queue.pause();
        }
    }

    fn write(&mut self, record: &Record, now: Instant) {
        if self.reopen.load(Ordering::Relaxed) && self.reopen.swap(false, Ordering::Relaxed) {
            self.open_again();
        }
        self.lines.push(&mut self.text, record, &mut self.paths);
        if matches!(record.operation, "rename" | "rmdir" | "remove") {
            self.paths.forget(now);
        }
        if self.text.len() >= TEXT_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let written = match &mut self.sink {
            Sink::File { file, .. } => {
                if self.is_torn {
                    self.text.insert(0, '\n');
                }
                let (written, result) = write(file, self.text.as_bytes());
                let (inside, left) = self.text.as_bytes().split_at(written);
                self.is_torn = inside.last().map_or(self.is_torn, |last| *last != b'\n');
                self.lost += left.split_inclusive(|byte| *byte == b'\n').count() as u64;
                result
            }
            Sink::Lines(lines) => {
                self.text.lines().for_each(lines);
                Ok(())
            }
        };
        self.text.clear();
        self.check(written);
    }

    fn open_again(&mut self) {
        self.flush();
        let Sink::File { path, file } = &mut self.sink else { return };
        match open(path) {
            Ok(new) => (*file, self.is_torn) = (new, false),
            Err(error) => tracing::error!(
                "cannot open the audit log {} again: {error}; the old file is written to",
                path.display()
            ),
        }
    }

    fn check(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        if self.told.is_none_or(|told| told.elapsed() > TROUBLE_EVERY) {
            self.told = Some(Instant::now());
            let Sink::File { path, .. } = &self.sink else { return };
            let (path, lost) = (path.display(), self.lost);
            tracing::error!(
                "cannot write the audit log {path}: {error}; {lost} records are lost so far; make space"
            );
        }
    }
}

/// Writes the bytes. Returns how many of them are in the file.
fn write(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Tells the queue that the thread ends, also if it panics.
struct Leaving<'q>(&'q Queue);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}
