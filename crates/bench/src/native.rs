//! Compares `leasehold mount` with the native file system of the same machine, task by task.
//!
//! Four places are compared: a directory of this machine (**native**), a mount of a server on loopback
//! (**mount**), the same server behind a round trip (**far**), and the far mount with every write synchronous
//! (**sync**). Each task first runs once in each place without being counted, to warm the caches. Then the
//! places take turns, task by task and round by round, so that other load of the machine affects all of them.
//! The report gives the median round, the fastest and slowest round, and the median of the ratios within each
//! round.

mod arguments;
mod place;
mod report;
mod task;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;

pub use arguments::Arguments;
pub use report::{Report, Row};
pub use task::Task;

use place::{Kind, Stand};
use report::Sample;
use task::Prepared;

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tasks, in this order.
    pub tasks: Vec<Task>,
    /// Rounds for each measurement; the report gives medians.
    pub rounds: usize,
    /// The round trip of the far places; `None` leaves them out.
    pub far: Option<Duration>,
    /// The most rounds in the far places: they are slow, and vary little.
    pub far_rounds: usize,
    /// The NFS version.
    pub vers: String,
    /// More arguments for `serve`, such as `--async`.
    pub serve: Vec<String>,
    /// More arguments for `mount -o`.
    pub mount: Vec<String>,
    /// How much there is to do.
    pub size: Size,
    /// The program `leasehold`.
    pub leasehold: PathBuf,
    /// A directory of this machine for all files. Its file system is the native one.
    pub directory: PathBuf,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Size {
    /// Bytes of the file that is read.
    pub big_bytes: u64,
    /// Number of 4 KiB reads.
    pub reads: u64,
    /// Number of files that the search visits.
    pub files: u64,
    /// Number of files in the archive.
    pub sources: u64,
    /// Number of appends.
    pub appends: u64,
    /// In the far places, the numbers of archive files and appends are divided by this. Reported times are
    /// per file or append.
    pub far_part: u64,
}

impl Default for Size {
    fn default() -> Size {
        Size {
            big_bytes: 256 << 20,
            reads: 200_000,
            files: 20_000,
            sources: 600,
            appends: 2000,
            far_part: 20,
        }
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server, a mount or a relay failed.
    #[error(transparent)]
    System(#[from] crate::system::Error),
    /// A task failed.
    #[error("{task} in {place}: {source}")]
    Task {
        /// The task.
        task: &'static str,
        /// The place.
        place: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Measures. Calls `progress` after each measurement. Blocks the thread.
///
/// # Errors
/// One line.
pub fn run(runtime: &Runtime, options: &Options, mut progress: impl FnMut(&str)) -> Result<Report, Error> {
    let stand = Stand::build(runtime, options)?;
    let mut samples = Vec::new();
    let mut notes = Vec::new();
    for &task in &options.tasks {
        let kinds: Vec<Kind> = stand.kinds().filter(|kind| task.is_for(*kind)).collect();
        let mut prepared = Vec::new();
        for &kind in &kinds {
            let failed = |source| Error::Task { task: task.name(), place: kind.name(), source };
            let places = (stand.directory(kind), stand.archives());
            let ready = Prepared::warm(task, kind, (&places.0, &places.1), &options.size).map_err(failed)?;
            prepared.push((kind, ready));
        }
        for round in 0..options.rounds {
            for (kind, ready) in &mut prepared {
                if kind.is_far() && round >= options.far_rounds {
                    continue;
                }
                let failed = |source| Error::Task { task: task.name(), place: kind.name(), source };
                let before = stand.counters(*kind);
                let (seconds, units) = ready.run(round as u64 + 1).map_err(failed)?;
                let calls = stand.counters(*kind).since(before);
                let sample = Sample { task, kind: *kind, round, seconds, units, calls };
                progress(&sample.to_string());
                samples.push(sample);
                ready.clean().map_err(failed)?;
            }
        }
        notes.extend(stand.note(task));
    }
    Ok(Report::new(options, &samples, notes))
}
