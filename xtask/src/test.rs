//! `cargo xtask test`: runs all checks, from a clean clone.

use crate::programs::{Programs, TestProgram, run_through};
use crate::results::Results;
use crate::steps::{self, Steps, root, succeeds};
use crate::{bench, dependencies, packages, tidy};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Leave out the lab's tests (they take minutes and need root)
    #[arg(long)]
    no_lab: bool,
    /// Install nothing
    #[arg(long)]
    no_install: bool,
    /// Arguments for `cargo test` instead of --workspace
    #[arg(last = true)]
    cargo_test: Vec<String>,
}

/// Installs, lints, tests and prints a summary; true if everything passed. Without root the lab is skipped
/// and the summary says so; in CI that is a failure.
pub fn run(options: &Options) -> bool {
    let mut steps = Steps::default();
    let mut lab = !options.no_lab;
    if options.no_lab {
        steps.skip("lab", "--no-lab");
    } else if let Err(obstacle) = provide(options) {
        if is_ci() || lab::is_root() {
            steps.step_with_note("packages", || (false, obstacle));
        } else {
            steps.skip("lab", &obstacle);
        }
        lab = false;
    }
    check_text(&mut steps);
    let mut failures = String::new();
    if options.cargo_test.is_empty() {
        let mut compiled = Vec::new();
        steps.step_with_note("tests", || cargo_test(lab, &mut failures, &mut compiled));
        compiled.into_iter().for_each(|(name, passed, took)| steps.record(name, passed, took));
    } else {
        compile_lints().for_each(|(name, lint)| steps.step(name, lint));
        steps.step_with_note("tests", || verdict(some_tests(&options.cargo_test, lab), lab, &mut failures));
    }
    if options.cargo_test.is_empty() {
        steps.step("bench quick", || bench::quick(&[]));
    }
    if !failures.is_empty() {
        eprintln!("\n=== failed tests\n{failures}");
    }
    steps.summarize("cargo xtask test");
    steps.passed()
}

fn provide(options: &Options) -> Result<(), String> {
    eprintln!("=== packages");
    packages::provide(!options.no_install)
}

/// Format, lints, documentation, style, dependencies.
pub fn lint() -> Steps {
    let mut steps = Steps::default();
    check_text(&mut steps);
    compile_lints().for_each(|(name, lint)| steps.step(name, lint));
    steps.summarize("cargo xtask lint");
    steps
}

/// The checks that compile nothing.
fn check_text(steps: &mut Steps) {
    for component in ["fmt", "clippy"] {
        if !succeeds("cargo", &[component, "--version"]) {
            let name = if component == "fmt" { "rustfmt" } else { component };
            steps.step(&format!("install {name}"), || steps::run("rustup", ["component", "add", name], &[]));
        }
    }
    steps.step("format", || steps::run("cargo", ["fmt", "--all", "--check"], &[]));
    steps.step("tidy", tidy::run);
    steps.step_with_note("dependencies", dependencies::run);
}

/// The lints that compile, each with its name. They leave the processors to others, for instance to tests.
fn compile_lints() -> impl Iterator<Item = (&'static str, fn() -> bool)> {
    const NICE: [&str; 3] = ["-n", "19", "cargo"];
    let clippy = || {
        let words = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        steps::run("nice", NICE.into_iter().chain(words), &[])
    };
    let documentation = || {
        let words = ["doc", "--workspace", "--no-deps", "--document-private-items"];
        let flags = "-D warnings -A rustdoc::private_intra_doc_links";
        steps::run("nice", NICE.into_iter().chain(words), &[("RUSTDOCFLAGS", flags)])
    };
    [("clippy", clippy as fn() -> bool), ("documentation", documentation)].into_iter()
}

/// The name of a lint, whether it passed, and its time.
type Linted = (&'static str, bool, Duration);

/// Runs the tests and counts their results. The lab's tests come last and alone, because they take most of
/// the time. The lints that compile run beside the others, which wait more than they compute: `compiled`
/// gets their outcomes. `failures` gets the failed tests with their panics.
fn cargo_test(lab: bool, failures: &mut String, compiled: &mut Vec<Linted>) -> (bool, String) {
    verdict(all_tests(lab, compiled), lab, failures)
}

/// The verdict on test results, with a note for the summary.
fn verdict((passed, results): (bool, Results), lab: bool, failures: &mut String) -> (bool, String) {
    *failures = results.failures();
    let left_out = if lab { "" } else { ", THE LAB LEFT OUT" };
    // An ignored test counts as skipped, and CI allows no skipped test.
    let complete = results.ignored() == 0 || !is_ci();
    let skipped = if complete { "" } else { ": CI allows no ignored test" };
    (passed && complete, format!("{results}{skipped}{left_out}"))
}

/// Tests that need the lab pass with a note when the variable says `skip`.
const WITHOUT_LAB: &[(&str, &str)] = &[("LEASEHOLD_LAB", "skip")];

fn all_tests(lab: bool, compiled: &mut Vec<Linted>) -> (bool, Results) {
    let mut results = Results::default();
    let Some(programs) = Programs::build() else { return (false, results) };
    // Some programs boot kernels in only some of their tests. Those tests are skipped here and run with the
    // lab.
    let in_lab: Vec<TestProgram> =
        programs.tests.iter().filter(|program| program.tests_in_lab().is_some()).cloned().collect();
    let others: Vec<TestProgram> =
        programs.tests.into_iter().filter(|program| !program.is_in_lab()).collect();
    let (mut passed, counted) = std::thread::scope(|scope| {
        let linting = scope.spawn(|| {
            let timed = |(name, lint): (&'static str, fn() -> bool)| {
                let started = Instant::now();
                (name, lint(), started.elapsed())
            };
            compile_lints().map(timed).collect::<Vec<Linted>>()
        });
        let tested = some_at_a_time(&others);
        compiled.extend(linting.join().unwrap_or_else(|_| vec![("clippy", false, Duration::ZERO)]));
        tested
    });
    results.join(counted);
    let mut doc = Command::new("cargo");
    doc.args(["test", "--workspace", "--doc"]).current_dir(root());
    passed &= run_through(doc, |line| results.add(line));
    if lab {
        let (succeeded, counted) = together(&in_lab);
        passed &= succeeded;
        results.join(counted);
    }
    (passed, results)
}

/// Two, because many programs wait more than they compute.
const AT_A_TIME: usize = 2;

/// Tests at once in a program whose tests wait. With two, `leasehold mounts` alone took half of the time of
/// all programs outside of the lab.
const WAITING_THREADS: &str = "4";

/// Runs programs, [`AT_A_TIME`] of them at once. Those whose tests wait come first, because they take the
/// longest.
fn some_at_a_time(programs: &[TestProgram]) -> (bool, Results) {
    let (first, then): (Vec<_>, Vec<_>) = programs.iter().partition(|program| program.waits());
    let in_order: Vec<&TestProgram> = first.into_iter().chain(then).collect();
    let next = AtomicUsize::new(0);
    let run_on = || {
        let (mut passed, mut results) = (true, Results::default());
        while let Some(program) = in_order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut environment = WITHOUT_LAB.to_vec();
            environment.extend(program.waits().then_some(("RUST_TEST_THREADS", WAITING_THREADS)));
            passed &= program.run_beside(&environment, |line| results.add(line));
        }
        (passed, results)
    };
    at_once((0..AT_A_TIME).map(|_| run_on))
}

/// Runs the lab's programs at the same time: each test waits for a lane, so no lane stays idle.
fn together(programs: &[TestProgram]) -> (bool, Results) {
    let lanes = lab::lanes().to_string();
    let threads = [("RUST_TEST_THREADS", lanes.as_str())];
    at_once(programs.iter().map(|program| {
        || {
            let mut results = Results::default();
            let tests = program.tests_in_lab().unwrap_or_default();
            (program.run(&threads, tests, |line| results.add(line)), results)
        }
    }))
}

/// Does all works at once. Returns whether all passed, and the sum of the results.
fn at_once<T: FnOnce() -> (bool, Results) + Send>(works: impl Iterator<Item = T>) -> (bool, Results) {
    let outcomes: Vec<(bool, Results)> = std::thread::scope(|scope| {
        let running: Vec<_> = works.map(|work| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let mut all = Results::default();
    let mut passed = true;
    for (succeeded, results) in outcomes {
        passed &= succeeded;
        all.join(results);
    }
    (passed, all)
}

/// Runs `cargo test` once.
fn some_tests(arguments: &[String], lab: bool) -> (bool, Results) {
    let mut command = Command::new("cargo");
    command.arg("test").arg("--no-fail-fast").args(arguments).current_dir(root());
    command.envs(if lab { &[] } else { WITHOUT_LAB }.iter().copied());
    let mut results = Results::default();
    let passed = run_through(command, |line| results.add(line));
    (passed, results)
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}
