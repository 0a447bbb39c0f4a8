//! How many calls of each procedure were answered, how long that took, and how many operations of version 4
//! there were.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::{nfs2, nfs3, nfs4, nqnfs};
use rpc::latency::{Distribution, Latency};

/// Number of calls answered for each procedure, and for v4 the number of operations.
#[derive(Debug)]
pub struct Counts {
    nfs3: [AtomicU64; nfs3::Procedure::ALL.len()],
    nfs2: [AtomicU64; nfs2::Procedure::ALL.len()],
    nqnfs: [AtomicU64; nqnfs::Procedure::ALL.len()],
    /// Indexed by operation number. The last entry counts numbers that are no operation.
    nfs4: [AtomicU64; OPERATIONS],
    times: Times,
}

/// How long answers took, without the time that their bytes needed.
#[derive(Debug)]
struct Times {
    nfs3: [Latency; nfs3::Procedure::ALL.len()],
    nfs2: [Latency; nfs2::Procedure::ALL.len()],
    nqnfs: [Latency; nqnfs::Procedure::ALL.len()],
    compound: Latency,
}

/// The highest operation number plus one, and one more entry for numbers that are no operation.
const OPERATIONS: usize = nfs4::Operation::Removexattr as usize + 2;

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            nfs3: std::array::from_fn(|_| AtomicU64::new(0)),
            nfs2: std::array::from_fn(|_| AtomicU64::new(0)),
            nqnfs: std::array::from_fn(|_| AtomicU64::new(0)),
            nfs4: std::array::from_fn(|_| AtomicU64::new(0)),
            times: Times {
                nfs3: Default::default(),
                nfs2: Default::default(),
                nqnfs: std::array::from_fn(|_| Latency::default()),
                compound: Latency::default(),
            },
        }
    }
}

impl Counts {
    /// Calls of an NFSv3 procedure.
    pub fn nfs3(&self, procedure: nfs3::Procedure) -> u64 {
        self.nfs3[procedure as usize].load(Ordering::Relaxed)
    }

    /// Calls of an NFSv2 procedure.
    pub fn nfs2(&self, procedure: nfs2::Procedure) -> u64 {
        self.nfs2[procedure as usize].load(Ordering::Relaxed)
    }

    /// Calls of an NQNFS procedure.
    pub fn nqnfs(&self, procedure: nqnfs::Procedure) -> u64 {
        self.nqnfs[procedure as usize].load(Ordering::Relaxed)
    }

    /// Operations of NFSv4, over all minor versions.
    pub fn nfs4(&self, operation: nfs4::Operation) -> u64 {
        self.nfs4[(operation as usize).min(OPERATIONS - 1)].load(Ordering::Relaxed)
    }

    pub(crate) fn add_nfs4(&self, operation: nfs4::Operation) {
        self.nfs4[(operation as usize).min(OPERATIONS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Every counter that is not zero: version (1 is NQNFS), name, count.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'static str, u64)> {
        let v3 = nfs3::Procedure::ALL.iter().map(|procedure| (3, procedure.name(), self.nfs3(*procedure)));
        let v2 = nfs2::Procedure::ALL.iter().map(|procedure| (2, procedure.name(), self.nfs2(*procedure)));
        let v4 = nfs4::Operation::ALL.iter().map(|operation| (4, operation.name(), self.nfs4(*operation)));
        let nq = nqnfs::Procedure::ALL.iter().map(|procedure| (1, procedure.name(), self.nqnfs(*procedure)));
        v4.chain(v3).chain(v2).chain(nq).filter(|(_, _, count)| *count > 0)
    }

    /// The times of the answers to each procedure that was called: version (1 is NQNFS), name, times. Of
    /// version 4 there are those of whole compounds.
    pub fn times(&self) -> impl Iterator<Item = (u32, &'static str, Distribution)> {
        let of = |version, name, latency: &Latency| (version, name, latency.snapshot());
        let times = &self.times;
        let v3 = nfs3::Procedure::ALL.iter().zip(&times.nfs3).map(move |(it, at)| of(3, it.name(), at));
        let v2 = nfs2::Procedure::ALL.iter().zip(&times.nfs2).map(move |(it, at)| of(2, it.name(), at));
        let nq = nqnfs::Procedure::ALL.iter().zip(&times.nqnfs).map(move |(it, at)| of(1, it.name(), at));
        let v4 = std::iter::once(of(4, "COMPOUND", &times.compound));
        v4.chain(v3).chain(v2).chain(nq).filter(|(_, _, times)| times.answers() > 0)
    }

    pub(crate) fn took_nfs3(&self, procedure: u32, time: Duration) {
        took(&self.times.nfs3, procedure, time);
    }

    pub(crate) fn took_nfs2(&self, procedure: u32, time: Duration) {
        took(&self.times.nfs2, procedure, time);
    }

    pub(crate) fn took_nqnfs(&self, procedure: u32, time: Duration) {
        took(&self.times.nqnfs, procedure, time);
    }

    pub(crate) fn took_compound(&self, procedure: u32, time: Duration) {
        // Procedure 0 is NULL.
        if procedure == 1 {
            self.times.compound.add(time);
        }
    }

    pub(crate) fn add_nfs3(&self, procedure: u32) {
        add(&self.nfs3, procedure);
    }

    pub(crate) fn add_nfs2(&self, procedure: u32) {
        add(&self.nfs2, procedure);
    }

    pub(crate) fn add_nqnfs(&self, procedure: u32) {
        add(&self.nqnfs, procedure);
    }
}

/// Counts a call. A number that is no procedure counts nowhere.
fn add(counts: &[AtomicU64], procedure: u32) {
    if let Some(count) = counts.get(procedure as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds the time of an answer. A number that is no procedure counts nowhere.
fn took(times: &[Latency], procedure: u32, time: Duration) {
    if let Some(latency) = times.get(procedure as usize) {
        latency.add(time);
    }
}
