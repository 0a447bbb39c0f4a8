//! Reading again after a restart: data cached on disk is still valid (Badros, section 3; one of its main
//! aims).
//!
//! The client reads a tree. Then its machine and the system under test restart, and the client reads the tree
//! again.

use std::io;

use super::tree::{FileSet, walk};
use super::{Plan, Run, Workload, read_file};
use crate::target::Target;

pub(super) const WORKLOAD: Workload = Workload {
    name: "reread",
    paper: "Badros",
    section: "3 (across reboots) and 5, \"read a big file again\"",
    about: "reads a tree of 500 files and one of 6.1 MB; the warm pass after a restart of everything but the origin",
    clients: 1,
    restart: true,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    let (set, mut random) =
        (FileSet { files: plan.count(500, 10), mean_bytes: 32 << 10, width: 25 }, plan.random(&[1]));
    set.put(target, "reread", &mut random)?;
    super::tree::put_large(target, "reread/big", plan.count(6_100_000, 1 << 20), &mut random)
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    run.phase("read", |run| {
        let (files, _) = walk(run.client(), "reread")?;
        files.iter().try_for_each(|path| read_file(run.client(), path).map(drop))
    })
}
