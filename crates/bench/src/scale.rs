//! Measures how costs grow: over computed trees (`leasehold serve --synthetic`) of growing size, with growing
//! numbers of leases and of clients.
//!
//! A tree is walked twice, each time with a listing of every directory and a stat of every file: through
//! `leasehold mount`, and by our client through `leasehold proxy`. Every part is a process, so its memory is
//! its own. The origin counts the calls. A walk uses one thread and one file at a time. Then another client
//! plays a script of changes, and a third walk must find the names as they are. Leases and clients are those
//! of our client at the origin itself.
//!
//! The caches neither complete files nor guess ahead, so that the counts do not depend on time.

mod arguments;
mod noise;
mod page;
mod report;
mod site;
mod walk;

use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use synthetic::{Script, Shape};
use tokio::runtime::Handle as Runtime;

pub use arguments::Arguments;
pub use noise::{Beside, Latency};
pub use report::{Held, Memory, Report, Row, Walked};

use site::{Cache, Serving};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program `leasehold`.
    pub leasehold: PathBuf,
    /// A directory for all files.
    pub directory: PathBuf,
    /// Numbers of files of the trees.
    pub files: Vec<u32>,
    /// Files in each directory of these trees.
    pub files_per_directory: u32,
    /// Numbers of names of the trees that have one directory.
    pub names: Vec<u32>,
    /// Size of each file in bytes.
    pub file_bytes: u32,
    /// The caches that the trees are walked through.
    pub systems: Vec<System>,
    /// Numbers of leases at the origin.
    pub leases: Vec<u32>,
    /// Numbers of clients at the origin.
    pub clients: Vec<u32>,
    /// Numbers of quiet clients beside a noisy one.
    pub quiet: Vec<u32>,
    /// Changes that another client makes before a third walk; 0: there is none.
    pub changes: u32,
    /// How long caches trust attributes.
    pub actimeo: Duration,
    /// The NFS version: `3`, `4.1` or `4.2`.
    pub vers: String,
}

/// A cache that a tree is walked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// `leasehold mount`, walked by system calls
    Mount,
    /// `leasehold proxy`, walked by our client with version 4.2
    Proxy,
}

impl System {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            System::Mount => "mount",
            System::Proxy => "proxy",
        }
    }
}

/// A server gives up the buffers of clients that have been idle for so long.
const IDLE: Duration = Duration::from_secs(4);

fn shape(options: &Options, files: u32, per_directory: u32) -> Shape {
    let files_per_directory = NonZeroU32::new(per_directory).unwrap_or(NonZeroU32::MIN);
    Shape { files, files_per_directory, file_bytes: options.file_bytes, ..Shape::default() }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program or a client did not start.
    #[error(transparent)]
    System(#[from] crate::system::Error),
    /// A walk failed.
    #[error("cannot walk {what}: {source}")]
    Walk {
        /// The walk.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A call of our client failed.
    #[error("cannot {what}: {why}")]
    Client {
        /// The call.
        what: String,
        /// The cause.
        why: String,
    },
    /// A walk did not find the files of the tree.
    #[error("the walk of {what} found {found} files and directories instead of {expected}")]
    Count {
        /// The walk.
        what: String,
        /// The number that it found.
        found: u64,
        /// The number in the tree.
        expected: u64,
    },
}

/// Measures. Calls `progress` with each line of the table. Blocks the thread.
///
/// # Errors
/// One line.
pub fn run(runtime: &Runtime, options: &Options, mut progress: impl FnMut(&str)) -> Result<Report, Error> {
    // Clients are dropped on this thread.
    let _entered = runtime.enter();
    let mut report = Report::new(options);
    let trees = options.files.iter().map(|files| ("files", *files, options.files_per_directory));
    let wide = options.names.iter().map(|names| ("names in one directory", *names, (*names).max(1)));
    for (series, files, per_directory) in trees.chain(wide) {
        for system in &options.systems {
            let tree = shape(options, files, per_directory);
            let row = measure_tree(runtime, options, *system, series, tree)?;
            progress(&row.to_string());
            report.rows.push(row);
        }
    }
    for leases in &options.leases {
        let held = hold(runtime, options, "leases", *leases, walk::take_leases)?;
        progress(&held.to_string());
        report.held.push(held);
    }
    for clients in &options.clients {
        let held = hold(runtime, options, "clients", *clients, walk::connect_clients)?;
        progress(&held.to_string());
        report.held.push(held);
    }
    for clients in &options.quiet {
        let rows = noise::measure(options, *clients, |row| progress(&row.to_string()))?;
        report.beside.extend(rows);
    }
    Ok(report)
}

/// Walks a tree through one cache twice, and once more after the changes. Then restarts the cache.
fn measure_tree(
    runtime: &Runtime,
    options: &Options,
    system: System,
    series: &'static str,
    tree: Shape,
) -> Result<Row, Error> {
    let scratch = site::directory(options)?;
    let serving = Serving::start(options, &scratch, tree, &[])?;
    let mut cache = Cache::start(options, &scratch, system, &serving)?;
    let mut objects = u64::from(tree.files) + tree.directories();
    let memory = |cache: &Cache| Memory { origin: serving.resident_bytes(), cache: cache.resident_bytes() };
    let mut memories = vec![memory(&cache)];
    let mut walks = Vec::new();
    let walker = cache.walker(runtime)?;
    for number in 0..3 {
        if number == 2 {
            if options.changes == 0 {
                break;
            }
            let script = Script::new(tree, 1).take(options.changes as usize);
            let added = runtime.block_on(walk::play(&serving.url(options), script))?;
            objects = objects.saturating_add_signed(added);
        }
        let before = serving.calls();
        let (found, seconds) = walker.walk(runtime)?;
        if found != objects {
            let what = format!("{} files through {}", tree.files, system.name());
            return Err(Error::Count { what, found, expected: objects });
        }
        walks.push(Walked { seconds, calls: serving.calls().since(&before) });
        if number < 2 {
            memories.push(memory(&cache));
        }
    }
    walker.end(runtime);
    let restart_seconds = cache.restart()?;
    let after_restart = cache.resident_bytes();
    cache.end();
    let cache_bytes = site::disk_bytes(&site::cache_directory(&scratch));
    serving.end();
    site::remove(&scratch);
    Ok(Row {
        series,
        system: system.name(),
        files: tree.files,
        directories: tree.directories(),
        changes: options.changes,
        walks,
        memories,
        restart_seconds,
        after_restart_bytes: after_restart,
        cache_bytes,
    })
}

/// Makes clients hold something at the origin.
fn hold(
    runtime: &Runtime,
    options: &Options,
    series: &'static str,
    count: u32,
    take: walk::Take,
) -> Result<Held, Error> {
    let scratch = site::directory(options)?;
    let per_directory = options.files_per_directory;
    let tree = shape(options, count.max(1), per_directory);
    let most = count.saturating_add(1).to_string();
    let serving =
        Serving::start(options, &scratch, tree, &["--delegations", "always", "--delegations-max", &most])?;
    let before = serving.resident_bytes();
    let (taken, seconds) = runtime.block_on(take(serving.url(options), count))?;
    std::thread::sleep(IDLE);
    let bytes = serving.resident_bytes().saturating_sub(before);
    let held = serving.held(series);
    drop(taken);
    serving.end();
    site::remove(&scratch);
    Ok(Held { series, count, held, seconds, bytes })
}
