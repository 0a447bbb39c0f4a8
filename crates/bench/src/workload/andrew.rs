//! The Modified Andrew Benchmark: make directories, copy, get attributes, read everything, compile.
//!
//! By Howard et al. (1988), in Ousterhout's portable form; Badros and Macklem measure with it. It has 71
//! files in 21 directories.

use std::io;
use std::time::Duration;

pub(crate) use super::compile::Compiler;
use super::compile::{Build, Objects};
use super::source::{Size, Source};
use super::tree::{put_source, walk};
use super::{Plan, Run, STEP_BYTES, Workload, read_file, write_file};
use crate::target::{Target, make_all};

pub(crate) const WORKLOAD: Workload = Workload {
    name: "andrew",
    paper: "NQNFS, Badros",
    section: "NQNFS 7, tables 1, 2 and 4; Badros, table 1",
    about: "the five phases: make directories, copy, stat, read, compile",
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

/// The names of the phases.
pub(super) const PHASES: [&str; 5] =
    ["making directories", "copying files", "statting", "intensive reading", "cpu intensive"];
/// The directory that the tree is copied from.
pub(super) const ORIGINAL: &str = "andrew";
const SEARCHED: &[u8] = b"no such words are in it";

/// The source tree at a scale.
pub(super) fn source(plan: &Plan) -> Source {
    let units = plan.count(50, 5) as usize;
    let size = Size {
        units,
        headers: plan.count(20, 3) as usize,
        directories: plan.count(20, 3) as usize,
        functions: 12,
    };
    Source::generate(plan.seed, size)
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    put_source(target, ORIGINAL, &source(plan))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let copy = format!("andrew-{}", run.pass);
    for (number, name) in PHASES.into_iter().enumerate() {
        run.phase(name, |run| phase(run.client(), &run.plan, number, &copy))?;
    }
    Ok(())
}

/// Runs one phase in a copy of the tree.
pub(crate) fn phase(target: &dyn Target, plan: &Plan, number: usize, copy: &str) -> io::Result<()> {
    let source = source(plan);
    match number {
        0 => {
            make_all(target, copy)?;
            source.directories.iter().try_for_each(|name| target.mkdir(&format!("{copy}/{name}")))
        }
        1 => source.files().try_for_each(|(name, _)| {
            let data = read_file(target, &format!("{ORIGINAL}/{name}"))?;
            write_file(target, &format!("{copy}/{name}"), &data, STEP_BYTES)
        }),
        2 => twice(|| {
            let (files, directories) = walk(target, copy)?;
            files.iter().chain(&directories).try_for_each(|path| target.stat(path).map(drop))
        }),
        3 => twice(|| {
            let (files, _) = walk(target, copy)?;
            files.iter().try_for_each(|path| {
                let data = read_file(target, path)?;
                let found = data.windows(SEARCHED.len()).any(|words| words == SEARCHED);
                if found {
                    Err(io::Error::other(format!("{path} has words that were not written")))
                } else {
                    Ok(())
                }
            })
        }),
        _ => compile(target, plan, copy, Compiler::Here).map(drop),
    }
}

/// Runs the last phase with the given compiler. Returns the duration of each unit and, last, of linking.
pub(crate) fn compile(
    target: &dyn Target,
    plan: &Plan,
    copy: &str,
    compiler: Compiler<'_>,
) -> io::Result<Vec<Duration>> {
    let source = source(plan);
    let name = |(name, _): &(String, String)| name.clone();
    let build = Build {
        compiler,
        target,
        tree: copy,
        objects: Objects::Beside(copy),
        units: source.units.iter().map(name).collect(),
        headers: source.headers.iter().map(name).collect(),
    };
    build.make()
}

fn twice(mut work: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    work()?;
    work()
}
