//! `leasehold mount` beside the native file system of the same machine, task by task.
//!
//! Four places are compared: a directory of this machine (**native**); a mount of a server on loopback (**mount**); the
//! same server behind a round trip (**far**), and that once more with every write synchronous (**sync**). A place is
//! warm: each task runs once uncounted. Then they take turns, task by task and round by round, so that whatever else the
//! machine does meets all of them; what is reported is the median round, with the fastest and the slowest, and the median
//! of the ratios within each round.

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
    /// What, in this order.
    pub tasks: Vec<Task>,
    /// Each so often; medians count.
    pub rounds: usize,
    /// The round trip of the far places; none if nothing far is wanted.
    pub far: Option<Duration>,
    /// The same in the far places, so often at most: they are slow, and steady.
    pub far_rounds: usize,
    /// The version of NFS.
    pub vers: String,
    /// More words for `serve`, such as `--async`.
    pub serve: Vec<String>,
    /// More words for `mount -o`.
    pub mount: Vec<String>,
    /// How much there is to do.
    pub size: Size,
    /// The program `leasehold`.
    pub leasehold: PathBuf,
    /// A directory of this machine for everything: its file system is the native one.
    pub directory: PathBuf,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Size {
    /// Bytes of the file that is read.
    pub big_bytes: u64,
    /// Reads of 4 KiB.
    pub reads: u64,
    /// Files that are found and asked for.
    pub files: u64,
    /// Files of the archive.
    pub sources: u64,
    /// Appends.
    pub appends: u64,
    /// What the far places do is this much less of files and appends: times are told for one of them.
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
    /// A server, a mount, a relay.
    #[error(transparent)]
    System(#[from] crate::system::Error),
    /// A task.
    #[error("{task} in {place}: {source}")]
    Task {
        /// Which.
        task: &'static str,
        /// Where.
        place: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// Measures. `progress` hears of each measurement as it ends. Blocks.
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
