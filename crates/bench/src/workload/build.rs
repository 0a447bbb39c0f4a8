//! A software build by several clients with a shared source tree (Nache, section 6.3.2, figures 15 to 18).
//!
//! The sources are on the server, and the objects on each client's own disk. All clients build at the same
//! time. The paper built Linux 2.6.17, GDB 6.5 and Emacs 21.3. This workload builds a generated tree, at
//! scale 1 with about as many files as GDB.

use std::io;

use super::compile::{Build, Compiler, Objects};
use super::source::{Size, Source};
use super::tree::put_source;
use super::{Plan, Run, Workload, in_parallel};
use crate::target::Target;

pub(super) const WORKLOAD: Workload = Workload {
    name: "build",
    paper: "Nache",
    section: "6.3.2, figures 15 to 18",
    about: "clients build from a shared source tree, objects on their own disks",
    clients: 2,
    restart: false,
    again: true,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

const TREE: &str = "build";

fn source(plan: &Plan) -> Source {
    let size = Size {
        units: plan.count(1000, 8) as usize,
        headers: plan.count(800, 10) as usize,
        directories: plan.count(40, 3) as usize,
        functions: 10,
    };
    Source::generate(plan.seed ^ 1, size)
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    put_source(target, TREE, &source(plan))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let source = source(&run.plan);
    let name = |(name, _): &(String, String)| name.clone();
    let units: Vec<String> = source.units.iter().map(name).collect();
    let headers: Vec<String> = source.headers.iter().map(name).collect();
    run.phase("build", |run| {
        in_parallel(run.numbered(), |&(number, client)| {
            let local = run.local.join(format!("client{number}"));
            std::fs::create_dir_all(&local)?;
            let build = Build {
                compiler: Compiler::Here,
                target: client,
                tree: TREE,
                objects: Objects::Local(&local),
                units: units.clone(),
                headers: headers.clone(),
            };
            build.make().map(drop)
        })
    })
}
