//! The thread that writes the lines.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use vfs::Handle;

use super::{Destination, Message, Record, line};

/// How long a path that was found is believed.
const PATHS_FOR: Duration = Duration::from_secs(1);
/// Paths that are remembered for that time.
const PATHS_MAX: usize = 4096;
/// A log that cannot be written is named once in this time.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);

enum Sink {
    File { path: Box<Path>, file: BufWriter<File> },
    Lines(Box<dyn Fn(&str) + Send>),
}

pub(super) struct Writer {
    sink: Sink,
    reopen: Arc<AtomicBool>,
    paths: HashMap<(usize, Handle), Option<Vec<u8>>>,
    /// The paths that were found last, for files that are gone when the line about them is written.
    last_paths: HashMap<(usize, Handle), Vec<u8>>,
    paths_since: Instant,
    lost: u64,
    told: Option<Instant>,
}

impl Writer {
    pub(super) fn open(destination: Destination, reopen: Arc<AtomicBool>) -> io::Result<Writer> {
        let sink = match destination {
            Destination::File(path) => Sink::File { file: open(&path)?, path },
            Destination::Lines(lines) => Sink::Lines(lines),
        };
        let (paths, last_paths, paths_since) = (HashMap::new(), HashMap::new(), Instant::now());
        Ok(Writer { sink, reopen, paths, last_paths, paths_since, lost: 0, told: None })
    }

    /// Writes until all senders are gone.
    pub(super) fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        while let Some(message) = messages.blocking_recv() {
            self.take(message);
            while let Ok(message) = messages.try_recv() {
                self.take(message);
            }
            self.flush();
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Record(record) => self.write(&record),
            Message::Flush(answer) => {
                self.flush();
                let _ = answer.send(());
            }
        }
    }

    fn write(&mut self, record: &Record) {
        // A name has moved, so the paths below it have changed.
        let moves = matches!(record.operation, "rename" | "rmdir" | "remove");
        if self.paths_since.elapsed() > PATHS_FOR || self.paths.len() >= PATHS_MAX {
            self.forget_paths();
        }
        if self.last_paths.len() >= PATHS_MAX {
            self.last_paths.clear();
        }
        let export = Arc::as_ptr(&record.export) as usize;
        let (paths, last_paths) = (&mut self.paths, &mut self.last_paths);
        let mut find = |handle: &Handle| match (record.export.find)(handle) {
            Some(path) => {
                last_paths.insert((export, *handle), path.clone());
                Some(path)
            }
            None => last_paths.get(&(export, *handle)).cloned(),
        };
        let line =
            line::of(record, |handle| paths.entry((export, *handle)).or_insert_with(|| find(handle)).clone());
        if moves {
            self.forget_paths();
        }
        if self.reopen.swap(false, Ordering::Relaxed) {
            self.open_again();
        }
        let written = match &mut self.sink {
            Sink::File { file, .. } => writeln!(file, "{line}"),
            Sink::Lines(lines) => {
                lines(&line);
                Ok(())
            }
        };
        self.check(written);
    }

    fn forget_paths(&mut self) {
        self.paths.clear();
        self.paths_since = Instant::now();
    }

    fn flush(&mut self) {
        if let Sink::File { file, .. } = &mut self.sink {
            let flushed = file.flush();
            self.check(flushed);
        }
    }

    fn open_again(&mut self) {
        let Sink::File { path, file } = &mut self.sink else { return };
        let opened = file.flush().and_then(|()| open(path));
        match opened {
            Ok(new) => *file = new,
            Err(error) => tracing::error!(
                "cannot open the audit log {} again: {error}; the old file is written to",
                path.display()
            ),
        }
    }

    fn check(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        self.lost += 1;
        if self.told.is_none_or(|told| told.elapsed() > TROUBLE_EVERY) {
            self.told = Some(Instant::now());
            let Sink::File { path, .. } = &self.sink else { return };
            let (path, lost) = (path.display(), self.lost);
            tracing::error!(
                "cannot write the audit log {path}: {error}; {lost} writes have failed; make space"
            );
        }
    }
}

fn open(path: &Path) -> io::Result<BufWriter<File>> {
    let file = File::options().create(true).append(true).mode(0o600).open(path)?;
    Ok(BufWriter::new(file))
}
