//! The shutdown of a proxy or mount, as other processes follow it. `leasehold umount` waits for the
//! shutdown, and so does the next process on the same directory.
//!
//! The process publishes its [`Stage`]. A waiter asks for it at the admin socket (`"depart"`) and gets lines
//! of progress. The last line comes when nothing is left or the rest is lost. The connection stays open
//! until the process exits: when it closes, the directory is free.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use cache::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Failure;
use crate::admin::{Asked, Request};
use crate::mount::log;

/// A shutdown is reported when it takes longer than this.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two reports of what is left.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long the process waits for the waiters to read the last line.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// How far the process is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Serving.
    #[default]
    Running,
    /// Unmounted or told to stop: it stores what is in memory alone, and returns what it holds at the origin.
    Ending,
    /// Finished. The text says which data is lost, if any.
    Ended(Option<String>),
}

/// Data that has not reached the origin yet, and state to return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Files with bytes that are not stored.
    pub files: u64,
    /// Those bytes.
    pub bytes: u64,
    /// Leases held at the origin.
    pub leases: u64,
}

impl Left {
    /// The present values of a cache.
    pub fn of(cache: &Cache) -> Left {
        let stats = cache.stats();
        let leases = stats.leases_read + stats.leases_write;
        Left { files: stats.dirty_files, bytes: stats.dirty_bytes, leases }
    }
}

impl std::iter::Sum for Left {
    fn sum<I: Iterator<Item = Left>>(all: I) -> Left {
        all.fold(Left::default(), |sum, left| Left {
            files: sum.files + left.files,
            bytes: sum.bytes + left.bytes,
            leases: sum.leases + left.leases,
        })
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.files, self.bytes, self.leases) {
            (0, 0, 0) => f.write_str("nothing is left to store"),
            (0, 0, leases) => write!(f, "{leases} leases are still to be returned"),
            (files, bytes, _) => {
                let noun = if files == 1 { "file" } else { "files" };
                write!(
                    f,
                    "{files} {noun}, {}.{} MB are still to be stored",
                    bytes / 1_000_000,
                    bytes / 100_000 % 10
                )
            }
        }
    }
}

/// A line of the answer to `"depart"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How far the process is.
    pub stage: Stage,
    /// The work that remains.
    pub left: Left,
}

/// Publishes the stage of this process to its waiters.
#[derive(Clone, Debug, Default)]
pub struct Departure {
    stage: std::sync::Arc<watch::Sender<Stage>>,
}

impl Departure {
    /// The shutdown begins.
    pub fn begin(&self) {
        self.stage.send_replace(Stage::Ending);
    }

    /// The shutdown is over. Returns when every waiter has read that, at the latest after [`LAST_WORD_MAX`].
    pub async fn end(&self, loss: Option<String>) {
        self.stage.send_replace(Stage::Ended(loss));
        let _ = tokio::time::timeout(LAST_WORD_MAX, self.stage.closed()).await;
    }

    /// The stage and its changes.
    pub fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }
}

/// Runs the shutdown of a process. If it takes long, logs now and then what is left.
pub async fn told<T>(what: &str, cache: &Cache, ending: impl Future<Output = T>) -> T {
    let mut ending = std::pin::pin!(ending);
    let mut pause = QUIET;
    loop {
        if let Ok(ended) = tokio::time::timeout(pause, &mut ending).await {
            return ended;
        }
        let left = Left::of(cache);
        log::notice(&format!("{what} is shutting down: {left}"));
        crate::service::still_stopping(&left.to_string());
        pause = TELL_EVERY;
    }
}

/// The process to wait for makes no progress.
#[derive(Debug)]
pub struct Stuck(pub Failure);

/// How long a process may take to answer at all.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Waits for another process to exit.
pub struct Waiting {
    asked: Asked,
    /// The last progress that it sent.
    pub last: Progress,
}

impl Waiting {
    /// Asks the process that uses `directory`. None if there is no such process, or if its version cannot
    /// answer this.
    pub async fn on(directory: &Path) -> Result<Option<Waiting>, Failure> {
        let Some(mut asked) = Asked::of(directory, &Request::Depart).await? else { return Ok(None) };
        let line = tokio::time::timeout(ANSWER_MAX, asked.line()).await;
        let last = line.ok().and_then(Result::ok).flatten().as_ref().and_then(progress);
        Ok(last.map(|last| Waiting { asked, last }))
    }

    /// Waits until the process has begun its shutdown; false if it does not within this time.
    pub async fn begun(&mut self, patience: Duration) -> bool {
        let limit = Instant::now() + patience;
        while self.last.stage == Stage::Running {
            match tokio::time::timeout_at(limit, self.next()).await {
                Ok(true) => {}
                // The connection has closed, so the process has exited.
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits until the process has exited and everything is stored. Reports what is left if that takes longer
    /// than a second.
    ///
    /// # Errors
    /// If data is lost.
    pub async fn ended(mut self, what: &str) -> Result<(), Failure> {
        let _ = self.watched(what, None).await;
        match self.last.stage {
            Stage::Ended(None) => Ok(()),
            Stage::Ended(Some(loss)) => Err(Failure(loss)),
            Stage::Running | Stage::Ending => Err(Failure(format!(
                "the process of {what} ended before it had stored everything (last report: {}); check the files written last",
                self.last.left
            ))),
        }
    }

    /// Waits until the process has exited; a loss is no error here. `patience` bounds the time without
    /// progress.
    ///
    /// # Errors
    /// If there is no progress for longer than that.
    pub async fn gone(mut self, what: &str, patience: Duration) -> Result<(), Stuck> {
        self.watched(what, Some(patience)).await
    }

    async fn watched(&mut self, what: &str, patience: Option<Duration>) -> Result<(), Stuck> {
        let mut tell_at = Instant::now() + QUIET;
        let (mut seen, mut moved) = (self.last.clone(), Instant::now());
        loop {
            match tokio::time::timeout_at(tell_at, self.next()).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(_) => {
                    crate::output::tell(format_args!("{what}: {}", self.last.left));
                    tell_at = Instant::now() + TELL_EVERY;
                }
            }
            if self.last != seen {
                (seen, moved) = (self.last.clone(), Instant::now());
            }
            if patience.is_some_and(|patience| moved.elapsed() > patience) {
                return Err(Stuck(Failure(format!(
                    "{what}: {}, without progress for {} s; check its server, or kill that process",
                    self.last.left,
                    moved.elapsed().as_secs()
                ))));
            }
        }
    }

    /// Reads the next line. False if the process has exited.
    async fn next(&mut self) -> bool {
        match self.asked.line().await {
            Ok(Some(line)) => {
                if let Some(next) = progress(&line) {
                    self.last = next;
                }
                true
            }
            Ok(None) | Err(_) => false,
        }
    }
}

fn progress(line: &serde_json::Value) -> Option<Progress> {
    Progress::deserialize(line.get("departure")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_for_people() {
        let left = |files, bytes, leases| Left { files, bytes, leases }.to_string();
        assert_eq!(left(0, 0, 0), "nothing is left to store");
        assert_eq!(left(0, 0, 7), "7 leases are still to be returned");
        assert_eq!(left(1, 1_550_000, 7), "1 file, 1.5 MB are still to be stored");
    }
}
