//! `cargo xtask fuzz`: runs each target of `fuzz/` for a while.
//!
//! cargo-fuzz needs a nightly compiler. The deterministic runs of the same targets in the test run do not.

use crate::steps::{self, Steps, root, succeeds};
use std::fs;

/// Options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The target to run [default: all]
    target: Option<String>,
    /// How many seconds each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Fuzzes; true if nothing was found.
pub fn run(options: &Options) -> bool {
    if !succeeds("cargo", &["+nightly", "fuzz", "--version"]) {
        eprintln!("cargo-fuzz is needed: rustup toolchain install nightly && cargo install cargo-fuzz");
        return false;
    }
    let targets = options.target.clone().map_or_else(targets, |target| vec![target]);
    let seconds = format!("-max_total_time={}", options.seconds);
    let mut steps = Steps::default();
    for target in &targets {
        steps.step(target, || steps::run("cargo", ["+nightly", "fuzz", "run", target, "--", &seconds], &[]));
    }
    steps.summarize("cargo xtask fuzz");
    !targets.is_empty() && steps.passed()
}

/// The names of all targets.
fn targets() -> Vec<String> {
    let Ok(files) = fs::read_dir(root().join("fuzz/fuzz_targets")) else { return Vec::new() };
    let names =
        files.flatten().filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
