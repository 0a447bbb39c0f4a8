//! Waits until nothing is delayed.
//!
//! The command asks again and again, so that no wait occupies the admin socket. If the process ends
//! meanwhile, its journal tells what it has left.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;
use tokio::time::Instant;

use super::{WritebackRequest, execute, show, unused};
use crate::Failure;
use crate::admin::{Asked, Request};
use crate::cachectl::listen;

/// Time between two questions, at first and at most. Each is half as long again as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A wait is reported when it takes longer than this.
const QUIET: Duration = Duration::from_secs(1);
/// How long a process may use the directory without an answer: it starts, or it ends.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// How long a process may fail to answer its first question. It may be ending; one of another version never
/// answers it.
const UNHEARD_MAX: Duration = Duration::from_secs(1);
/// How long the last answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Waits until nothing is delayed, at most so many seconds.
///
/// # Errors
/// The time is over, or no process runs that could send the rest.
pub async fn until_sent(directory: &Path, timeout: Option<u32>) -> Result<(), Failure> {
    let waiting = watch(directory, timeout);
    let Some(seconds) = timeout else { return waiting.await };
    // The last question is asked when the time is over.
    let limit = Duration::from_secs(seconds.into()) + ANSWER_MAX;
    tokio::time::timeout(limit, waiting).await.unwrap_or_else(|_| {
        let directory = directory.display();
        Err(Failure(format!("the process on {directory} does not answer; is it stopped? look at its log")))
    })
}

async fn watch(directory: &Path, timeout: Option<u32>) -> Result<(), Failure> {
    let (began, mut heard, mut pause) = (Instant::now(), None, PAUSE_MIN);
    let until = timeout.map(|seconds| began + Duration::from_secs(seconds.into()));
    let mut spinner = None;
    loop {
        match look(directory).await? {
            Seen::Left(left) | Seen::Dead(left) if is_nothing(&left) => return Ok(()),
            Seen::Left(left) => {
                let left = format!("{} of {} are left", show::bytes(&left), show::files(&left));
                if let Some(seconds) = timeout.filter(|_| until.is_some_and(|until| Instant::now() >= until))
                {
                    let directory = directory.display();
                    return Err(Failure(format!(
                        "{left} after {seconds} s; look at the server: leasehold status {directory}"
                    )));
                }
                if began.elapsed() > QUIET && std::io::stderr().is_terminal() {
                    let spinner = spinner.get_or_insert_with(ProgressBar::new_spinner);
                    spinner.set_message(left);
                    spinner.tick();
                }
                heard = Some(Instant::now());
            }
            Seen::Dead(left) => {
                let directory = directory.display();
                return Err(Failure(format!(
                    "{} of {} are left, and nothing runs on {directory}: mount it again, or see: leasehold writeback export",
                    show::bytes(&left),
                    show::files(&left)
                )));
            }
            Seen::Unheard(failure) if heard.is_none() && began.elapsed() > UNHEARD_MAX => {
                return Err(failure);
            }
            Seen::Unheard(failure) | Seen::Busy(failure) if heard.unwrap_or(began).elapsed() > SILENT_MAX => {
                return Err(failure);
            }
            Seen::Unheard(_) | Seen::Busy(_) => {}
        }
        let next = Instant::now() + pause;
        let last = until.filter(|until| *until > Instant::now());
        tokio::time::sleep_until(last.map_or(next, |last| next.min(last))).await;
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
}

/// An answer to the question how much is delayed.
enum Seen {
    /// In a process that runs.
    Left(Value),
    /// In the journal of a process that is gone.
    Dead(Value),
    /// A process starts or ends, and has no admin socket.
    Busy(Failure),
    /// The process does not know the request, or has ended during its answer; the next question tells.
    Unheard(Failure),
}

async fn look(directory: &Path) -> Result<Seen, Failure> {
    if let Some(asked) = Asked::of(directory, &Request::Writeback(WritebackRequest::Left)).await? {
        return Ok(listen(asked, |_| ()).await.map_or_else(Seen::Unheard, Seen::Left));
    }
    Ok(match unused(directory).await? {
        Err(busy) => Seen::Busy(busy.failure()),
        Ok(cache) => {
            let (sender, _lines) = tokio::sync::mpsc::channel(1);
            Seen::Dead(execute(&cache, WritebackRequest::Left, sender).await.map_err(Failure)?)
        }
    })
}

fn is_nothing(left: &Value) -> bool {
    left["files"] == 0 && left["bytes"] == 0
}
