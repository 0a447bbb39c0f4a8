//! Nache's table 2: OPEN, LOCK, READ, UNLOCK, CLOSE of 100 files, eight times, with and without delegations.

use std::io;

use super::tree::Numbered;
use super::{Plan, Run, Workload, read_open};
use crate::target::{How, Target};

pub(super) const WITH_DELEGATIONS: Workload = Workload {
    name: "rounds",
    paper: "Nache",
    section: "6.1, table 2, figures 1 and 2",
    about: "open, lock, read, unlock, close of 100 files, eight times",
    clients: 1,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

pub(super) const WITHOUT_DELEGATIONS: Workload = Workload {
    name: "rounds-undelegated",
    about: "the same by a client that takes no delegations",
    delegations: false,
    ..WITH_DELEGATIONS
};

const ROUNDS: u64 = 8;
const FILES: Numbered = Numbered { at: "rounds", bytes: 4096 };

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    FILES.put(target, plan.count(100, 10), &mut plan.random(&[1]))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let files = run.plan.count(100, 10);
    for round in 1..=ROUNDS {
        run.phase(&format!("round {round}"), |run| {
            (0..files).try_for_each(|number| {
                let mut file = run.client().open(&FILES.path(number), How::Read)?;
                file.lock(false)?;
                let read = read_open(&mut *file)?;
                file.unlock()?;
                file.close()?;
                if read.len() == FILES.bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            })
        })?;
    }
    Ok(())
}
