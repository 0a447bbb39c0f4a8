//! Two clients that append to the same files at the same time (Nache, section 6.2, figures 11 and 12).
//!
//! Threads of both clients open a file of a set, read it, append to it, and close it. A delegation of one
//! client is recalled when the other opens the file. A second run syncs the data before each close.

use std::io;
use std::time::Instant;

use super::tree::Numbered;
use super::{Phase, Plan, Run, Workload, in_parallel};
use crate::target::{How, Target};

pub(super) const WORKLOAD: Workload = Workload {
    name: "sharing",
    paper: "Nache",
    section: "6.2, figures 11 and 12",
    about: "two clients open, read, append to and close the same files; also synced before each close",
    clients: 2,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

pub(super) const UNDELEGATED: Workload = Workload {
    name: "sharing-undelegated",
    about: "the same by clients that take no delegations",
    delegations: false,
    ..WORKLOAD
};

const THREADS: u64 = 4;
const FILES: Numbered = Numbered { at: "shared", bytes: 16 << 10 };
const APPENDED: &[u8] = &[b'a'; 4096];

fn files(plan: &Plan) -> u64 {
    plan.count(100, 10)
}

/// The phase of one client, with or without sync.
pub(crate) fn phase(client: usize, synced: bool) -> String {
    format!("client {}{}", client + 1, if synced { ", synced" } else { "" })
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    FILES.put(target, files(plan), &mut plan.random(&[1]))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let times = run.plan.count(500, 5);
    for synced in [false, true] {
        let phases = parking_lot::Mutex::new(Vec::new());
        in_parallel(run.numbered(), |&(number, client)| {
            let started = Instant::now();
            in_parallel(0..THREADS, |&thread| {
                let part = [2, run.pass, number as u64, thread, u64::from(synced)];
                let mut random = run.plan.random(&part);
                (0..times)
                    .try_for_each(|_| append(client, &FILES.path(random.below(files(&run.plan))), synced))
            })?;
            let seconds = started.elapsed().as_secs_f64();
            let operations = times * THREADS;
            phases.lock().push(Phase { name: phase(number, synced), seconds, operations, calls: None });
            Ok(())
        })?;
        let mut phases = phases.into_inner();
        phases.sort_by(|one, other| one.name.cmp(&other.name));
        run.phases.extend(phases);
    }
    Ok(())
}

fn append(client: &dyn Target, path: &str, synced: bool) -> io::Result<()> {
    let mut file = client.open(path, How::Append)?;
    // The bytes read are the same, however many appends came before.
    let mut read = vec![0; FILES.bytes];
    if file.read_at(&mut read, 0)? < FILES.bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let end = file.size()?;
    file.write_at(APPENDED, end)?;
    if synced {
        file.sync()?;
    }
    file.close()
}
