//! Lever's build with its LOOKUPs counted (Close-To-Open Cache Consistency in the Linux NFS Client, "Simple
//! Benchmark").
//!
//! One freshly booted client builds a program in a tree on the server, with the objects in the same tree. The
//! paper built the Linux kernel: 54,405 LOOKUPs if the client revalidates dentries by LOOKUP, 11,176 if not.

use std::io;

use super::compile::{Build, Compiler, Objects};
use super::source::{Size, Source};
use super::tree::put_source;
use super::{Plan, Run, Workload};
use crate::target::{Target, make_all};

pub(super) const WORKLOAD: Workload = Workload {
    name: "lookups",
    paper: "Lever",
    section: "Simple Benchmark",
    about: "a build in a tree on the server by a client that was just booted, LOOKUPs counted",
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

const TREE: &str = "lookups";

/// At scale 1 as large as a Linux kernel of 2001: the build creates 770 files.
fn source(plan: &Plan) -> Source {
    let size = Size {
        units: plan.count(770, 8) as usize,
        headers: plan.count(700, 10) as usize,
        directories: plan.count(60, 3) as usize,
        functions: 8,
    };
    Source::generate(plan.seed, size)
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    put_source(target, TREE, &source(plan))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let source = source(&run.plan);
    let objects = format!("lookups-objects-{}", run.pass);
    run.phase("build", |run| {
        make_all(run.client(), &objects)?;
        let name = |(name, _): &(String, String)| name.clone();
        let build = Build {
            compiler: Compiler::Here,
            target: run.client(),
            tree: TREE,
            objects: Objects::Beside(&objects),
            units: source.units.iter().map(name).collect(),
            headers: source.headers.iter().map(name).collect(),
        };
        build.make().map(drop)
    })
}
