//! `leasehold top`: what a running process does now.
//!
//! The process counts. This command asks it again and again, over its admin socket, and shows the
//! differences: [`view`] computes them, [`screen`] draws them.

mod screen;
mod view;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::admin::{self, Request};
use crate::cli::Top;
use view::{Sample, View};

/// Rows of each table that `--once` prints.
const ROWS_ONCE: usize = 10;

/// Runs until the user ends it, or once.
///
/// # Errors
/// If the process does not answer, or has no answer to this request.
pub async fn run(arguments: &Top) -> Result<(), Failure> {
    let mounted = crate::mount::cache_of(&arguments.directory);
    let directory = mounted.as_deref().unwrap_or(&arguments.directory);
    let interval = Duration::from_secs(arguments.interval);
    if arguments.once || arguments.json {
        return print(arguments, directory, interval).await;
    }
    screen::run(directory, interval).await
}

async fn print(arguments: &Top, directory: &Path, interval: Duration) -> Result<(), Failure> {
    let mut before = look(directory).await?;
    loop {
        tokio::time::sleep(interval).await;
        let now = look(directory).await?;
        let view = View::between(&before, &now);
        if arguments.json {
            crate::output::line(view.to_json());
        } else {
            crate::output::line(view.to_text(ROWS_ONCE));
        }
        if arguments.once {
            return Ok(());
        }
        before = now;
    }
}

/// Asks the process.
async fn look(directory: &Path) -> Result<Sample, Failure> {
    let usage = admin::ask_for(directory, &Request::Usage).await?;
    match usage["error"].as_str() {
        Some(error) => Err(Failure(error.to_owned())),
        None => Ok(Sample { at: Instant::now(), usage }),
    }
}
