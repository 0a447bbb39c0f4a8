//! Nache's table 1: how long an OPEN takes that conflicts with a delegation (section 3.2).
//!
//! A client of the system under test uses a file; then a client of the origin, as far from it, opens the same file for
//! writing. What was delegated has to be recalled first. Each is done several times with files of their own, and the
//! median counts. Where nothing is delegated nothing is recalled, and the three rows are alike.

use std::io;
use std::time::Instant;

use super::{Phase, Plan, Run, Workload, read_file, write_file};
use crate::target::{How, Target, make_all};

pub(super) const WORKLOAD: Workload = Workload {
    name: "recall",
    paper: "Nache",
    section: "3.2, table 1",
    about: "an open for writing at the origin of what a client of the system has in use",
    clients: 1,
    restart: false,
    conflicts: true,
    delegations: true,
    synchronous: false,
    prepare,
    run,
};

const KINDS: [&str; 3] = ["no delegation", "read delegation", "write delegation"];
const WRITTEN: &[u8] = &[b'w'; 4096];
const PASSES: u64 = 2;

fn times(plan: &Plan) -> u64 {
    plan.count(20, 5)
}

fn path(pass: u64, kind: usize, time: u64) -> String {
    format!("recall/{pass}-{kind}-{time}")
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    make_all(target, "recall")?;
    for pass in 0..PASSES {
        for kind in 0..KINDS.len() {
            for time in 0..times(plan) {
                write_file(target, &path(pass, kind, time), WRITTEN, WRITTEN.len())?;
            }
        }
    }
    Ok(())
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    for (kind, name) in KINDS.into_iter().enumerate() {
        let mut seconds = Vec::new();
        for time in 0..times(&run.plan) {
            let path = path(run.pass % PASSES, kind, time);
            // The other client has walked there before.
            run.beside.stat(&path)?;
            match kind {
                0 => {}
                1 => drop(read_file(run.client(), &path)?),
                _ => {
                    let mut file = run.client().open(&path, How::Update)?;
                    file.write_at(WRITTEN, 0)?;
                    file.close()?;
                }
            }
            let started = Instant::now();
            let file = run.beside.open(&path, How::Update)?;
            seconds.push(started.elapsed().as_secs_f64());
            file.close()?;
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        run.phases.push(Phase { name: name.to_owned(), seconds: median, operations: seconds.len() as u64 });
    }
    Ok(())
}
