//! `cargo xtask test`: everything that must hold, from a clean clone.

use crate::steps::{self, Steps, root, succeeds};
use crate::{bench, packages, tidy};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Leave the lab's tests out (they take minutes, and root)
    #[arg(long)]
    no_lab: bool,
    /// Install nothing
    #[arg(long)]
    no_install: bool,
    /// Arguments for cargo test instead of --workspace
    #[arg(last = true)]
    cargo_test: Vec<String>,
}

/// Installs, lints, tests, sums up; true when all passed. Without root the lab is left out, loudly; in CI that is a failure.
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

/// Format, lints, documentation, style.
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
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.step("clippy", || steps::run("cargo", clippy, &[]));
    let doc = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    steps.step("documentation", || {
        steps::run("cargo", doc, &[("RUSTDOCFLAGS", "-D rustdoc::broken_intra_doc_links")])
    });
}

/// Runs the tests; counts what their programs say. The lab's come last, by themselves: they take most of the time.
fn cargo_test(arguments: &[String], lab: bool) -> (bool, String) {
    let mut counts = Counts::default();
    let mut passed = true;
    let mut add = |(succeeded, counted): (bool, Counts)| {
        passed &= succeeded;
        counts.join(&counted);
    };
    if !arguments.is_empty() {
        add(run_tests(arguments, lab));
    } else if steps::run("cargo", ["test", "--workspace", "--no-run"], &[]) {
        others().iter().for_each(|others| add(run_tests(others, false)));
        for program in if lab { LAB } else { &[] } {
            add(run_tests(&words(program), true));
        }
    } else {
        passed = false;
    }
    let left_out = if lab { "" } else { ", THE LAB LEFT OUT" };
    // An ignored test is a skipped one, and in CI nothing is skipped.
    let complete = counts.ignored == 0 || !is_ci();
    (passed && complete, format!("{counts}{left_out}"))
}

/// The tests that are in the lab, one at a time.
const LAB: &[&str] = &["-p lab", "-p leasehold --test lab"];

/// All others: of `leasehold`, each file of its tests but the lab's.
fn others() -> [Vec<String>; 2] {
    let mut leasehold = words("-p leasehold --bins");
    for entry in std::fs::read_dir(root().join("crates/leasehold/tests")).into_iter().flatten().flatten() {
        if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".rs")) {
            leasehold.extend(["--test".to_owned(), name.to_owned()]);
        }
    }
    [words("--workspace --exclude lab --exclude leasehold"), leasehold]
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// One run of `cargo test`.
fn run_tests(arguments: &[String], lab: bool) -> (bool, Counts) {
    let mut command = Command::new("cargo");
    command.arg("test").arg("--no-fail-fast").args(arguments).current_dir(root());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if !lab {
        command.env("LEASEHOLD_LAB", "skip");
    }
    let mut counts = Counts::default();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot run cargo: {error}");
            return (false, counts);
        }
    };
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            counts.add(&line);
            println!("{line}");
        }
    }
    (child.wait().is_ok_and(|status| status.success()), counts)
}

/// Tests counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
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

    /// Adds what `test result: ok. 3 passed; 0 failed; 1 ignored; …` says.
    fn add(&mut self, line: &str) {
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
