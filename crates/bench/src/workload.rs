//! The workloads of the papers: a table of them, and the environment that each of them runs in.
//!
//! A workload prepares its files once and runs in passes over them. The first pass finds every cache cold;
//! the next pass finds the caches that the first one left. Each pass uses freshly mounted clients.
//!
//! Its operations depend only on its seed and scale, so that they can be counted and compared. Scale 1.0 is
//! that of the paper, as far as the paper states it.

pub(crate) mod andrew;
mod badros;
mod build;
mod compile;
mod lookups;
mod meter;
mod micro;
mod oltp;
pub(crate) mod recall;
pub(crate) mod reopen;
mod reread;
mod rounds;
pub(crate) mod sharing;
mod source;
mod stream;
mod tree;
mod varmail;
mod walk;
mod webserver;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::random::Random;
use crate::target::{OpenFile, Target};

pub use meter::{Latencies, Meter, Metered};
pub use source::Source;

/// Seed and scale of a run.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize, PartialEq)]
pub struct Plan {
    /// The same seed gives the same operations.
    pub seed: u64,
    /// Sizes and counts relative to those of the paper.
    pub scale: f64,
}

impl Plan {
    /// Scales a number of the paper; the result is at least `least`.
    pub fn count(&self, paper: u64, least: u64) -> u64 {
        ((paper as f64 * self.scale).round() as u64).max(least)
    }

    /// Random numbers for one part of the work.
    pub fn random(&self, part: &[u64]) -> Random {
        Random::part(self.seed, part)
    }
}

/// A workload.
#[derive(Clone, Copy)]
pub struct Workload {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// The paper.
    pub paper: &'static str,
    /// The section of the paper.
    pub section: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Number of clients.
    pub clients: usize,
    /// True if the system under test restarts between the passes.
    pub restart: bool,
    /// True if users repeat this work, so that a mount that stays mounted is measured too.
    pub again: bool,
    /// True if it needs a client that goes directly to the origin.
    pub conflicts: bool,
    /// True if clients take delegations.
    pub delegations: bool,
    /// True if the paper compares with clients that wait for each write.
    pub synchronous: bool,
    /// True if caches may fetch ahead of readers. Such calls depend on the clock, so they cannot be counted
    /// exactly.
    pub guesses: bool,
    /// Makes the files before the measurement, through a client that does not belong to the system.
    pub prepare: fn(&Plan, &dyn Target) -> io::Result<()>,
    /// Runs one pass.
    pub run: fn(&mut Run<'_>) -> io::Result<()>,
}

impl Workload {
    /// True if the phases run one after the other and make up the entire pass.
    pub fn phases_add_up(&self) -> bool {
        !self.conflicts && !self.name.starts_with(sharing::WORKLOAD.name)
    }
}

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All workloads, in the order of the papers' years.
pub const ALL: &[Workload] = &[
    andrew::WORKLOAD,
    badros::WORKLOAD,
    lookups::WORKLOAD,
    reread::WORKLOAD,
    reopen::READ,
    reopen::READ_UNDELEGATED,
    reopen::WRITE,
    reopen::WRITE_UNDELEGATED,
    recall::WORKLOAD,
    recall::DIRTY,
    rounds::WITH_DELEGATIONS,
    rounds::WITHOUT_DELEGATIONS,
    sharing::WORKLOAD,
    sharing::UNDELEGATED,
    webserver::UNIFORM,
    webserver::ZIPF,
    oltp::WORKLOAD,
    varmail::WORKLOAD,
    build::WORKLOAD,
    micro::CREATE,
    micro::RANDOM_READS,
    micro::RANDOM_WRITES,
    micro::RANDOM_APPENDS,
    stream::WORKLOAD,
    walk::WORKLOAD,
];

/// Returns the workload of a name.
///
/// # Errors
/// One line that lists the known names.
pub fn named(name: &str) -> Result<Workload, String> {
    ALL.iter().find(|workload| workload.name == name).copied().ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
        format!("`{name}` is no workload: known are {}", known.join(", "))
    })
}

/// A named part of a pass: a phase of a benchmark, or a row of a table.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Phase {
    /// Its name in the paper.
    pub name: String,
    /// Its duration; for a single repeated operation, the median duration.
    pub seconds: f64,
    /// System calls of the workload in it.
    pub operations: u64,
    /// Calls that reached the origin in this phase, if calls are counted per phase.
    #[serde(default)]
    pub calls: Option<u64>,
}

/// The environment of a pass.
pub struct Run<'r> {
    /// Seed and scale.
    pub plan: Plan,
    /// The clients, each as if on its own machine. They may be only some of the workload's clients, if others
    /// run elsewhere.
    pub clients: Vec<Metered<Arc<dyn Target>>>,
    /// Number of the first of these clients.
    pub first_client: usize,
    /// A client as far from the origin as the others, but not through the system under test. If the workload
    /// needs none, this is the first client.
    pub beside: &'r dyn Target,
    /// Number of the pass; 0 is the cold one.
    pub pass: u64,
    /// A directory of this machine, for the files that clients keep on their own disks.
    pub local: &'r Path,
    /// Operations and latencies of all clients.
    pub meter: Arc<Meter>,
    /// Returns the calls at the origin so far, if they are counted.
    pub calls: Option<&'r (dyn Fn() -> u64 + Sync)>,
    /// The phases that have run.
    pub phases: Vec<Phase>,
}

impl Run<'_> {
    /// Runs a phase.
    pub fn phase(&mut self, name: &str, work: impl FnOnce(&Self) -> io::Result<()>) -> io::Result<()> {
        let calls = || self.calls.map(|calls| calls());
        let (operations, before, started) = (self.meter.operations(), calls(), Instant::now());
        work(self)?;
        let seconds = started.elapsed().as_secs_f64();
        self.phases.push(Phase {
            name: name.to_owned(),
            seconds,
            operations: self.meter.operations() - operations,
            calls: calls().zip(before).map(|(now, before)| now - before),
        });
        Ok(())
    }

    /// The clients with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &Metered<Arc<dyn Target>>)> {
        (self.first_client..).zip(&self.clients)
    }

    /// The first client.
    pub fn client(&self) -> &Metered<Arc<dyn Target>> {
        &self.clients[0]
    }
}

/// Runs `work` on all parts at the same time, one thread per part. Returns the first error.
pub fn in_parallel<I: Send + Sync>(
    parts: impl IntoIterator<Item = I>,
    work: impl Fn(&I) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || work(&part))).collect();
        let died = || io::Error::other("a thread of the workload panicked");
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(died())))
    })
}

/// Bytes that a program reads or writes at once.
pub const STEP_BYTES: usize = 64 << 10;

/// Opens a file, reads it to the end, and closes it.
pub fn read_file(target: &dyn Target, path: &str) -> io::Result<Vec<u8>> {
    let mut file = target.open(path, crate::target::How::Read)?;
    let data = read_open(&mut *file)?;
    file.close()?;
    Ok(data)
}

/// Reads a file from the beginning to the end.
pub fn read_open(file: &mut dyn OpenFile) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let start = data.len();
        data.resize(start + STEP_BYTES, 0);
        let count = file.read_at(&mut data[start..], start as u64)?;
        data.truncate(start + count);
        if count == 0 {
            return Ok(data);
        }
    }
}

/// Creates a file, writes `data`, and closes it.
pub fn write_file(target: &dyn Target, path: &str, data: &[u8], step: usize) -> io::Result<()> {
    let mut file = target.open(path, crate::target::How::Create)?;
    write_open(&mut *file, data, 0, step)?;
    file.close()
}

/// Writes `data` in steps of `step` bytes.
pub fn write_open(file: &mut dyn OpenFile, data: &[u8], offset: u64, step: usize) -> io::Result<()> {
    let parts = data.chunks(step.max(1)).enumerate();
    parts.into_iter().try_for_each(|(at, part)| file.write_at(part, offset + (at * step) as u64))
}

#[cfg(test)]
mod tests;
