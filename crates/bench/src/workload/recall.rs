//! Nache's table 1: the duration of an OPEN that conflicts with a delegation (section 3.2).
//!
//! A client of the system under test uses a file. Then a client with a direct connection to the origin, at
//! the same distance, opens the same file for writing. The origin must first recall the delegation. Each case
//! is repeated several times, each time with its own file, and the median counts. Without delegations there
//! are no recalls, and the three rows are alike.

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
    again: false,
    conflicts: true,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

pub(super) const DIRTY: Workload = Workload {
    name: "recall-dirty",
    section: "3.2, figure 3",
    about: "the same after 256 KiB to 8 MiB were written, which a client may still have",
    prepare: |plan, target| {
        make_all(target, "recall")?;
        let all = (0..PASSES).flat_map(|pass| (0..DIRTY_KIB.len()).map(move |size| (pass, size)));
        all.flat_map(|(pass, size)| (0..dirty_times(plan)).map(move |time| dirty_path(pass, size, time)))
            .try_for_each(|path| write_file(target, &path, WRITTEN, WRITTEN.len()))
    },
    run: run_dirty,
    ..WORKLOAD
};

/// Kilobytes written before a recall, as in the paper's figure.
pub(crate) const DIRTY_KIB: [usize; 6] = [256, 512, 1024, 2048, 4096, 8192];

const KINDS: [&str; 3] = ["no delegation", "read delegation", "write delegation"];
const WRITTEN: &[u8] = &[b'w'; 4096];
const PASSES: u64 = 2;

fn times(plan: &Plan) -> u64 {
    plan.count(20, 5)
}

fn path(pass: u64, kind: usize, time: u64) -> String {
    format!("recall/{pass}-{kind}-{time}")
}

fn dirty_times(plan: &Plan) -> u64 {
    plan.count(10, 3)
}

fn dirty_path(pass: u64, size: usize, time: u64) -> String {
    format!("recall/dirty-{pass}-{size}-{time}")
}

/// The phase for this amount of data.
pub(crate) fn dirty_phase(kib: usize) -> String {
    format!("{kib} KiB")
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
            // The other client has resolved the path before.
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
            seconds.push(open_beside(run, &path)?);
        }
        run.phases.push(median(name, seconds));
    }
    Ok(())
}

fn run_dirty(run: &mut Run<'_>) -> io::Result<()> {
    for (size, kib) in DIRTY_KIB.into_iter().enumerate() {
        let (mut seconds, data) = (Vec::new(), vec![b'd'; kib << 10]);
        for time in 0..dirty_times(&run.plan) {
            let path = dirty_path(run.pass % PASSES, size, time);
            run.beside.stat(&path)?;
            let mut file = run.client().open(&path, How::Update)?;
            super::write_open(&mut *file, &data, 0, super::STEP_BYTES)?;
            file.close()?;
            seconds.push(open_beside(run, &path)?);
        }
        run.phases.push(median(&dirty_phase(kib), seconds));
    }
    Ok(())
}

/// Measures an open for reading and writing at the origin, in seconds.
fn open_beside(run: &Run<'_>, path: &str) -> io::Result<f64> {
    let started = Instant::now();
    let file = run.beside.open(path, How::Update)?;
    let seconds = started.elapsed().as_secs_f64();
    file.close()?;
    Ok(seconds)
}

fn median(name: &str, mut seconds: Vec<f64>) -> Phase {
    seconds.sort_by(f64::total_cmp);
    let operations = seconds.len() as u64;
    Phase { name: name.to_owned(), seconds: seconds[seconds.len() / 2], operations, calls: None }
}
