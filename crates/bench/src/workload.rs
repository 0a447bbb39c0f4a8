//! The workloads of the papers: a table of them, and what one of them gets to work with.
//!
//! A workload prepares its files once, and runs in passes over them: the first one finds every cache cold, the next one
//! finds what the first one left. What it does depends on nothing but its seed and its scale (1.0 is what the paper did,
//! as far as the paper says), so that operations can be counted and compared. Each pass works through clients that have
//! just been mounted.

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
mod tree;
mod varmail;
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
    /// The same seed does the same.
    pub seed: u64,
    /// Against the paper's sizes and numbers.
    pub scale: f64,
}

impl Plan {
    /// A number of the paper's, scaled; never below `least`.
    pub fn count(&self, paper: u64, least: u64) -> u64 {
        ((paper as f64 * self.scale).round() as u64).max(least)
    }

    /// Random numbers for a part of the work.
    pub fn random(&self, part: &[u64]) -> Random {
        Random::part(self.seed, part)
    }
}

/// A workload.
#[derive(Clone, Copy)]
pub struct Workload {
    /// On the command line and in reports.
    pub name: &'static str,
    /// Whose.
    pub paper: &'static str,
    /// Where in it.
    pub section: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// How many clients it is for.
    pub clients: usize,
    /// Whether the system under test is started again between the passes.
    pub restart: bool,
    /// Whether users do the same again and again, so that a mount that stays is measured as well.
    pub again: bool,
    /// Whether it wants a client of the origin beside.
    pub conflicts: bool,
    /// Whether clients take delegations.
    pub delegations: bool,
    /// Whether clients that wait for each write are a rival of the paper's.
    pub synchronous: bool,
    /// Makes the files, through a client beside, before anything is measured.
    pub prepare: fn(&Plan, &dyn Target) -> io::Result<()>,
    /// One pass.
    pub run: fn(&mut Run<'_>) -> io::Result<()>,
}

impl Workload {
    /// Are its phases one after the other, and all of it?
    pub fn phases_add_up(&self) -> bool {
        !self.conflicts && !self.name.starts_with(sharing::WORKLOAD.name)
    }
}

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All of them, in the order of the papers' years.
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
];

/// The workload of a name.
///
/// # Errors
/// One line that names those that there are.
pub fn named(name: &str) -> Result<Workload, String> {
    ALL.iter().find(|workload| workload.name == name).copied().ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
        format!("`{name}` is no workload: known are {}", known.join(", "))
    })
}

/// A part of a pass with a name of its own: a phase of a benchmark, a row of a table.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Phase {
    /// As in the paper.
    pub name: String,
    /// How long it took, or, of one operation that is repeated, its median.
    pub seconds: f64,
    /// System calls of the workload in it.
    pub operations: u64,
    /// Calls that reached the origin meanwhile, where somebody counts those of a phase.
    #[serde(default)]
    pub calls: Option<u64>,
}

/// What a pass works with.
pub struct Run<'r> {
    /// Seed and scale.
    pub plan: Plan,
    /// Each as if on a machine of its own: all that the workload is for, or some of them, where others run elsewhere.
    pub clients: Vec<Metered<Arc<dyn Target>>>,
    /// The number of the first of them.
    pub first_client: usize,
    /// A client of the origin that goes as far and not through the system under test, for those that want one; for others,
    /// the first client.
    pub beside: &'r dyn Target,
    /// 0 is the cold one.
    pub pass: u64,
    /// A directory of this machine, for what clients keep on their own disks.
    pub local: &'r Path,
    /// Operations and latencies of all clients.
    pub meter: Arc<Meter>,
    /// Calls at the origin so far, where somebody counts.
    pub calls: Option<&'r (dyn Fn() -> u64 + Sync)>,
    /// What has been run.
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

    /// Clients by their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &Metered<Arc<dyn Target>>)> {
        (self.first_client..).zip(&self.clients)
    }

    /// The only client, or the first one.
    pub fn client(&self) -> &Metered<Arc<dyn Target>> {
        &self.clients[0]
    }
}

/// Runs parts beside each other, a thread for each; the first error is the whole's.
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

/// Opens, reads to the end, closes.
pub fn read_file(target: &dyn Target, path: &str) -> io::Result<Vec<u8>> {
    let mut file = target.open(path, crate::target::How::Read)?;
    let data = read_open(&mut *file)?;
    file.close()?;
    Ok(data)
}

/// Reads from the beginning to the end.
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

/// Creates, writes, closes.
pub fn write_file(target: &dyn Target, path: &str, data: &[u8], step: usize) -> io::Result<()> {
    let mut file = target.open(path, crate::target::How::Create)?;
    write_open(&mut *file, data, 0, step)?;
    file.close()
}

/// Writes in steps.
pub fn write_open(file: &mut dyn OpenFile, data: &[u8], offset: u64, step: usize) -> io::Result<()> {
    let parts = data.chunks(step.max(1)).enumerate();
    parts.into_iter().try_for_each(|(at, part)| file.write_at(part, offset + (at * step) as u64))
}

#[cfg(test)]
mod tests;
