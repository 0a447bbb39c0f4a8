//! `cargo xtask test`: runs all checks, from a clean clone.

use crate::programs::{Programs, TestProgram, run_through};
use crate::steps::{self, Steps, root, succeeds};
use crate::{bench, dependencies, packages, tidy};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    lint_into(&mut steps);
    steps.step_with_note("tests", || cargo_test(&options.cargo_test, lab));
    if options.cargo_test.is_empty() {
        steps.step("bench quick", || bench::quick(&[]));
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
    lint_into(&mut steps);
    steps.summarize("cargo xtask lint");
    steps
}

fn lint_into(steps: &mut Steps) {
    for component in ["fmt", "clippy"] {
        if !succeeds("cargo", &[component, "--version"]) {
            let name = if component == "fmt" { "rustfmt" } else { component };
            steps.step(&format!("install {name}"), || steps::run("rustup", ["component", "add", name], &[]));
        }
    }
    steps.step("format", || steps::run("cargo", ["fmt", "--all", "--check"], &[]));
    steps.step("tidy", tidy::run);
    steps.step_with_note("dependencies", dependencies::run);
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.step("clippy", || steps::run("cargo", clippy, &[]));
    let doc = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    steps.step("documentation", || {
        steps::run("cargo", doc, &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")])
    });
}

/// Runs the tests and counts their results. The lab's tests come last and alone, because they take most of
/// the time.
fn cargo_test(arguments: &[String], lab: bool) -> (bool, String) {
    let (passed, counts) = if arguments.is_empty() { all_tests(lab) } else { some_tests(arguments, lab) };
    let left_out = if lab { "" } else { ", THE LAB LEFT OUT" };
    // An ignored test counts as skipped, and CI allows no skipped test.
    let complete = counts.ignored == 0 || !is_ci();
    (passed && complete, format!("{counts}{left_out}"))
}

/// Tests that need the lab pass with a note when the variable says `skip`.
const WITHOUT_LAB: &[(&str, &str)] = &[("LEASEHOLD_LAB", "skip")];

fn all_tests(lab: bool) -> (bool, Counts) {
    let mut counts = Counts::default();
    let Some(programs) = Programs::build() else { return (false, counts) };
    // Some programs boot kernels in only some of their tests. Those tests are skipped here and run with the
    // lab.
    let in_lab: Vec<TestProgram> =
        programs.tests.iter().filter(|program| program.tests_in_lab().is_some()).cloned().collect();
    let others: Vec<TestProgram> =
        programs.tests.into_iter().filter(|program| !program.is_in_lab()).collect();
    let (mut passed, counted) = some_at_a_time(&others);
    counts.join(&counted);
    let mut doc = Command::new("cargo");
    doc.args(["test", "--workspace", "--doc"]).current_dir(root());
    passed &= run_through(doc, |line| counts.add(line));
    if lab {
        let (succeeded, counted) = together(&in_lab);
        passed &= succeeded;
        counts.join(&counted);
    }
    (passed, counts)
}

/// Two, because many programs wait more than they compute.
const AT_A_TIME: usize = 2;

/// Runs programs, [`AT_A_TIME`] of them at once.
fn some_at_a_time(programs: &[TestProgram]) -> (bool, Counts) {
    let next = AtomicUsize::new(0);
    let run_on = || {
        let (mut passed, mut counts) = (true, Counts::default());
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            passed &= program.run_beside(WITHOUT_LAB, |line| counts.add(line));
        }
        (passed, counts)
    };
    at_once((0..AT_A_TIME).map(|_| run_on))
}

/// Runs the lab's programs at the same time: each test waits for a lane, so no lane stays idle.
fn together(programs: &[TestProgram]) -> (bool, Counts) {
    let lanes = lab::lanes().to_string();
    let threads = [("RUST_TEST_THREADS", lanes.as_str())];
    at_once(programs.iter().map(|program| {
        || {
            let mut counts = Counts::default();
            let tests = program.tests_in_lab().unwrap_or_default();
            (program.run(&threads, tests, |line| counts.add(line)), counts)
        }
    }))
}

/// Does all works at once. Returns whether all passed, and the sum of the counts.
fn at_once<T: FnOnce() -> (bool, Counts) + Send>(works: impl Iterator<Item = T>) -> (bool, Counts) {
    let outcomes: Vec<(bool, Counts)> = std::thread::scope(|scope| {
        let running: Vec<_> = works.map(|work| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let mut all = Counts::default();
    outcomes.iter().for_each(|(_, counts)| all.join(counts));
    (outcomes.iter().all(|(passed, _)| *passed), all)
}

/// Runs `cargo test` once.
fn some_tests(arguments: &[String], lab: bool) -> (bool, Counts) {
    let mut command = Command::new("cargo");
    command.arg("test").arg("--no-fail-fast").args(arguments).current_dir(root());
    command.envs(if lab { &[] } else { WITHOUT_LAB }.iter().copied());
    let mut counts = Counts::default();
    let passed = run_through(command, |line| counts.add(line));
    (passed, counts)
}

/// The number of tests, by result.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    fn join(&mut self, other: &Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds the numbers of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    pub fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let words: Vec<&str> = result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let count = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)
    }
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn results_are_added_up() {
        let mut counts = Counts::default();
        counts.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        );
        counts.add("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s");
        counts.add("test some::test ... ok");
        assert_eq!(counts, Counts { passed: 7, failed: 2, ignored: 1 });
    }
}
