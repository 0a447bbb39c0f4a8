//! Measures how fast NFSv3 servers answer one kind of call at a time, over connections that are never idle.
//!
//! Each connection is a closed loop on its own thread ([`lane`]). It keeps a fixed number of calls in flight,
//! and sends the next call after each reply. The load generator shares the machine with the server, so it
//! does as little as possible: calls are encoded in advance, replies are decoded in place, and no async
//! executor is involved.
//!
//! Several servers are measured in turns, workload by workload and round by round, so that other load of the
//! machine affects all of them. The report gives the median round of each workload.

mod arguments;
mod cpu;
mod fault;
mod lane;
mod report;
mod script;
mod server;
mod tree;
mod workload;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use arguments::Arguments;
pub use fault::{Error, Fault};
pub use report::{Latency, Report, Row};
pub use tree::prepare;
pub use workload::Workload;

use cpu::CpuTime;
use lane::{Lane, Tally, Window};
use script::Script;
use server::Server;
use tree::Tree;

/// The most attempts to measure a workload with at least one reply. Each is four times as long as the last.
const WINDOWS_MAX: usize = 4;

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The servers. The others are compared with the first.
    pub servers: Vec<Target>,
    /// The workloads, in this order.
    pub workloads: Vec<Workload>,
    /// How long each workload is measured.
    pub duration: Duration,
    /// How long each workload runs before it is measured.
    pub warm_up: Duration,
    /// Rounds for each measurement; the report gives medians.
    pub rounds: usize,
    /// Connections to each server, 1 to 64.
    pub connections: usize,
    /// Calls in flight at each server over all its connections. [`BYTES_IN_FLIGHT_MAX`] is another bound.
    pub in_flight: usize,
    /// The files on the servers.
    pub tree: TreeOptions,
}

/// The files on the servers that the calls use.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// Number of small files, 1 to 10,000.
    pub files: usize,
    /// Size of the large file in bytes; a multiple of 1 MiB.
    pub large_bytes: u64,
    /// A directory below the export in which [`prepare`] has made the files. If `None`, the benchmark makes
    /// and removes them.
    pub prepared_in: Option<String>,
}

/// A server to measure.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its name in the report.
    pub name: String,
    /// The URL of its export.
    pub url: client::Url,
    /// Its process id, if it is on this machine and its CPU time is to be measured.
    pub pid: Option<u32>,
}

/// The most bytes of file data in flight at a server.
pub const BYTES_IN_FLIGHT_MAX: usize = 8 << 20;

impl Options {
    /// The default measurement of these servers.
    pub fn new(servers: Vec<Target>) -> Options {
        Options {
            servers,
            workloads: Workload::ALL.to_vec(),
            duration: Duration::from_secs(2),
            warm_up: Duration::from_millis(500),
            rounds: 1,
            connections: 2,
            in_flight: 32,
            tree: TreeOptions::default(),
        }
    }

    /// Calls in flight on each connection.
    fn slots(&self, workload: Workload) -> usize {
        let by_bytes = BYTES_IN_FLIGHT_MAX / workload.transfer_bytes().max(1) as usize;
        (self.in_flight.min(by_bytes) / self.connections.max(1)).clamp(1, lane::SLOTS_MAX)
    }
}

impl Default for TreeOptions {
    /// 64 small files and one of 256 MiB, made by the benchmark.
    fn default() -> TreeOptions {
        TreeOptions { files: 64, large_bytes: 256 << 20, prepared_in: None }
    }
}

/// Measures. Calls `progress` after each measurement.
pub async fn run(options: &Options, mut progress: impl FnMut(&Row)) -> Result<Report, Error> {
    let mut subjects = Vec::new();
    let mut outcome = Ok(());
    for target in &options.servers {
        match Subject::new(target, options).await {
            Ok(subject) => subjects.push(subject),
            Err(error) => outcome = Err(error),
        }
        if outcome.is_err() {
            break;
        }
    }
    let mut rows = Vec::new();
    if outcome.is_ok() {
        outcome = measure(options, &mut subjects, &mut rows, &mut progress).await;
    }
    for subject in &subjects {
        let removed = subject.tree.remove(&subject.server).await;
        outcome = outcome.and(removed);
    }
    outcome.map(|()| Report::new(options, &rows))
}

async fn measure(
    options: &Options,
    subjects: &mut [Subject<'_>],
    rows: &mut Vec<Row>,
    progress: &mut impl FnMut(&Row),
) -> Result<(), Error> {
    for &workload in &options.workloads {
        for _ in 0..options.rounds.max(1) {
            for subject in subjects.iter_mut() {
                let row = subject.measure(workload, options).await?;
                progress(&row);
                rows.push(row);
            }
        }
    }
    Ok(())
}

/// A server and its connections.
struct Subject<'o> {
    target: &'o Target,
    server: Server,
    tree: Tree,
    lanes: Vec<Lane>,
}

impl<'o> Subject<'o> {
    async fn new(target: &'o Target, options: &Options) -> Result<Subject<'o>, Error> {
        let server = Server::mount(target).await?;
        let several = options.servers.len() > 1;
        let tree = Tree::open(&server, &options.tree, several.then_some(target.name.as_str())).await?;
        let lanes = (0..options.connections.clamp(1, 64)).map(|_| Lane::connect(&server)).collect();
        match lanes {
            Ok(lanes) => Ok(Subject { target, server, tree, lanes }),
            Err(error) => {
                let _ = tree.remove(&server).await;
                Err(error)
            }
        }
    }

    /// Measures one workload once. A period without any reply says nothing about the server: repeat with a
    /// longer one.
    async fn measure(&mut self, workload: Workload, options: &Options) -> Result<Row, Error> {
        let mut duration = options.duration;
        for _ in 1..WINDOWS_MAX {
            let row = self.measure_for(duration, workload, options).await?;
            if row.calls > 0 {
                return Ok(row);
            }
            duration *= 4;
        }
        self.measure_for(duration, workload, options).await
    }

    async fn measure_for(
        &mut self,
        duration: Duration,
        workload: Workload,
        options: &Options,
    ) -> Result<Row, Error> {
        let fault = |fault| Error::Workload { server: self.target.name.clone(), workload, fault };
        let slots = options.slots(workload);
        let mut scripts = Vec::new();
        for lane in 0..self.lanes.len() {
            let share = (lane, self.lanes.len());
            scripts.push(Script::new(workload, &self.server, &self.tree, share, slots).await?);
        }
        let window = Window::starting(Instant::now(), options.warm_up, duration);
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (mut lane, mut script) in self.lanes.drain(..).zip(scripts) {
            let stop = stop.clone();
            threads.push(tokio::task::spawn_blocking(move || {
                let tally = lane.run(&mut script, slots, window, &stop);
                if tally.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                (lane, tally)
            }));
        }
        tokio::time::sleep_until(window.from.into()).await;
        let cpu_before = CpuTime::now(self.target.pid);
        tokio::time::sleep_until(window.until.into()).await;
        let cpu = CpuTime::now(self.target.pid).since(cpu_before);
        let mut total = Tally::default();
        let mut failed = None;
        for thread in threads {
            let (lane, tally) = thread.await.map_err(|error| fault(Fault::Io(error.into())))?;
            self.lanes.push(lane);
            match tally {
                Ok(tally) => total.add(&tally),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(fault(error)),
            None => Ok(Row::new(workload, &self.target.name, &total, duration, cpu)),
        }
    }
}
