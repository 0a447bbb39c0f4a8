//! The end of a proxy or mount, as others see it: who unmounts waits for it, and so does the next one on the same
//! directory.
//!
//! The process says in what [`Stage`] it is. A waiter asks at the admin socket (`"depart"`), gets lines of progress, and
//! the last one when nothing is left. The connection stays open until the process ends: its end is the moment at which the
//! directory is free.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use cache::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Failure;
use crate::admin::{Asked, Request};
use crate::mount::log::Log;

/// An end that takes longer than this is told about.
const QUIET: Duration = Duration::from_secs(1);
/// How often it is told what is left.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long a waiter may take to hear the last word.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// How far the process is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// At work.
    #[default]
    Running,
    /// Unmounted or told to end: what is in memory alone is being stored, and what is held is given back.
    Ending,
    /// Nothing is left, or it is lost: then this says what.
    Ended(Option<String>),
}

/// What has not reached the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Files of which something is not stored.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Leases that are held.
    pub leases: u64,
}

impl Left {
    /// Of a cache.
    pub fn of(cache: &Cache) -> Left {
        let stats = cache.stats();
        let leases = stats.leases_read + stats.leases_write;
        Left { files: stats.dirty_files, bytes: stats.dirty_bytes, leases }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.files, self.bytes, self.leases) {
            (0, 0, 0) => f.write_str("nothing is left to store"),
            (0, 0, leases) => write!(f, "{leases} leases are to be given back"),
            (files, bytes, _) => {
                let noun = if files == 1 { "file" } else { "files" };
                write!(
                    f,
                    "{files} {noun}, {}.{} MB are to be stored",
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
    /// How far it is.
    pub stage: Stage,
    /// What is left.
    pub left: Left,
}

/// What a process says of its end.
#[derive(Clone, Debug, Default)]
pub struct Departure {
    stage: std::sync::Arc<watch::Sender<Stage>>,
}

impl Departure {
    /// The end has begun.
    pub fn begin(&self) {
        self.stage.send_replace(Stage::Ending);
    }

    /// It is over. Returns when every waiter has been told, or does not listen.
    pub async fn end(&self, loss: Option<String>) {
        self.stage.send_replace(Stage::Ended(loss));
        let _ = tokio::time::timeout(LAST_WORD_MAX, self.stage.closed()).await;
    }

    /// The stage, and what comes after it.
    pub fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }
}

/// Runs the end of a process, and logs now and then what is left if it takes long.
pub async fn told<T>(what: &str, cache: &Cache, ending: impl Future<Output = T>) -> T {
    let mut ending = std::pin::pin!(ending);
    let mut pause = QUIET;
    loop {
        if let Ok(ended) = tokio::time::timeout(pause, &mut ending).await {
            return ended;
        }
        // A log that is gone is no reason to stop.
        let _ = writeln!(Log, "leasehold: {what} is being ended: {}", Left::of(cache));
        pause = TELL_EVERY;
    }
}

/// A process does not come to its end.
#[derive(Debug)]
pub struct Stuck(pub Failure);

/// How long a process may take to answer at all.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Waits for the end of another process.
pub struct Waiting {
    asked: Asked,
    /// What it said last.
    pub last: Progress,
}

impl Waiting {
    /// Asks the process that uses `directory`. None if there is none, or one that cannot say.
    pub async fn on(directory: &Path) -> Result<Option<Waiting>, Failure> {
        let Some(mut asked) = Asked::of(directory, &Request::Depart).await? else { return Ok(None) };
        let line = tokio::time::timeout(ANSWER_MAX, asked.line()).await;
        let last = line.ok().and_then(Result::ok).flatten().as_ref().and_then(progress);
        Ok(last.map(|last| Waiting { asked, last }))
    }

    /// Waits until the process goes on to its end; false if it does not within this time.
    pub async fn begun(&mut self, patience: Duration) -> bool {
        let limit = Instant::now() + patience;
        while self.last.stage == Stage::Running {
            match tokio::time::timeout_at(limit, self.next()).await {
                Ok(true) => {}
                // A process that is gone has ended.
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits until the process has ended and all is stored, and tells what is left once that takes longer than a second.
    ///
    /// # Errors
    /// If something is lost.
    pub async fn ended(mut self, what: &str) -> Result<(), Failure> {
        let _ = self.watched(what, None).await;
        match self.last.stage {
            Stage::Ended(None) => Ok(()),
            Stage::Ended(Some(loss)) => Err(Failure(loss)),
            Stage::Running | Stage::Ending => Err(Failure(format!(
                "the process of {what} ended before it said that all is stored; when it last spoke, {}",
                self.last.left
            ))),
        }
    }

    /// The same, whatever becomes of what is left. `patience` is how long the same may be left.
    ///
    /// # Errors
    /// If nothing moves for too long.
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
                    "{what}: {}, and nothing has moved for {} s; look at its server, or end that process",
                    self.last.left,
                    moved.elapsed().as_secs()
                ))));
            }
        }
    }

    /// The next line. False if the process has ended.
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
        assert_eq!(left(0, 0, 7), "7 leases are to be given back");
        assert_eq!(left(1, 1_550_000, 7), "1 file, 1.5 MB are to be stored");
    }
}
