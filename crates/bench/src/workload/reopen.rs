//! One file, repeatedly opened, used and closed, with and without delegations (Nache, figures 1 and 2).
//!
//! The figures show packets at the server against the number of repetitions. Each phase has as many
//! repetitions as all phases before it together. So one pass gives the counts after 1, 2, 4, … repetitions.

use std::io;

use super::{Plan, Run, Workload, read_open, write_file};
use crate::target::{How, Target};

pub(super) const READ: Workload = Workload {
    name: "reopen",
    paper: "Nache",
    section: "3.1, figure 1",
    about: "opens, reads and closes one file, 1 to 64 times",
    clients: 1,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run: |run| work(run, How::Read),
};

pub(super) const READ_UNDELEGATED: Workload = Workload {
    name: "reopen-undelegated",
    about: "the same by a client that takes no delegations",
    delegations: false,
    ..READ
};

pub(super) const WRITE: Workload = Workload {
    name: "rewrite",
    section: "3.2, figure 2",
    about: "opens one file, writes and reads it, closes it, 1 to 64 times",
    run: |run| work(run, How::Update),
    ..READ
};

pub(super) const WRITE_UNDELEGATED: Workload = Workload {
    name: "rewrite-undelegated",
    about: "the same by a client that takes no delegations",
    delegations: false,
    ..WRITE
};

/// Repetitions after each phase.
pub(crate) const TIMES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const FILE: &str = "reopened";
const FILE_BYTES: usize = 16 << 10;

/// The name of the phase that ends after `times` repetitions.
pub(crate) fn phase(times: u64) -> String {
    format!("{times} times")
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    write_file(target, FILE, &plan.random(&[1]).bytes(FILE_BYTES), FILE_BYTES)
}

fn work(run: &mut Run<'_>, how: How) -> io::Result<()> {
    let mut done = 0;
    for times in TIMES {
        run.phase(&phase(times), |run| (done..times).try_for_each(|_| once(run.client(), how)))?;
        done = times;
    }
    Ok(())
}

/// One repetition: if `how` permits writes, it writes as much as it reads.
fn once(client: &dyn Target, how: How) -> io::Result<()> {
    let mut file = client.open(FILE, how)?;
    if how.writes() {
        file.write_at(&[b'w'; FILE_BYTES], 0)?;
    }
    let read = read_open(&mut *file)?;
    file.close()?;
    if read.len() == FILE_BYTES { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
