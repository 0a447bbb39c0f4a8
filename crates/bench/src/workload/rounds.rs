//! Nache's table 2: OPEN, LOCK, READ, UNLOCK, CLOSE of 100 files, eight times, with and without delegations.

use std::io;

use super::{Plan, Run, Workload, read_open, write_file};
use crate::target::{How, Target, make_all};

pub(super) const WITH_DELEGATIONS: Workload = Workload {
    name: "rounds",
    paper: "Nache",
    section: "6.1, table 2, figures 1 and 2",
    about: "open, lock, read, unlock, close of 100 files, eight times",
    clients: 1,
    restart: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
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
const FILE_BYTES: usize = 4096;

fn path(file: u64) -> String {
    format!("rounds/{file}")
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    let mut random = plan.random(&[1]);
    make_all(target, "rounds")?;
    (0..plan.count(100, 10))
        .try_for_each(|file| write_file(target, &path(file), &random.bytes(FILE_BYTES), FILE_BYTES))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let files = run.plan.count(100, 10);
    for round in 1..=ROUNDS {
        run.phase(&format!("round {round}"), |run| {
            (0..files).try_for_each(|number| {
                let mut file = run.client().open(&path(number), How::Read)?;
                file.lock(false)?;
                let read = read_open(&mut *file)?;
                file.unlock()?;
                file.close()?;
                if read.len() == FILE_BYTES { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            })
        })?;
    }
    Ok(())
}
