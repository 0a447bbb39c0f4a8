//! Tasks for contributors: `cargo xtask test`, `lint`, `tidy`, `lab`, `bench`, `fuzz`.
//!
//! A task consists of steps. A step is a program whose output is shown as it comes, or a check of our own. A
//! failed step does not keep later steps from running, so one run reports everything that is wrong.

mod bench;
mod circles;
mod dependencies;
mod fuzz;
mod guest;
mod kernels;
mod package;
mod packages;
mod programs;
mod promises;
mod prose;
mod results;
mod steps;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Tasks of this workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install missing packages (as root, from Debian), check format and lints, and run all tests
    Test(test::Options),
    /// Check format, lints, documentation, style and dependencies
    Lint,
    /// Check the rules for source files that neither the compiler nor clippy checks
    Tidy,
    /// Write the table of promises and their tests into docs/semantics.md
    Promises,
    /// Boot a guest, optionally with a foreign origin mounted, and run a script or standard input in it. With
    /// `--kernels`, run the lab's tests with guests of Linux 6.12 and 7.2
    Lab(guest::Options),
    /// Run a benchmark. `papers` is `leasehold bench` in release mode. `lab` measures the kernel's clients
    /// and caches in guests. `quick` compares counts with the committed baseline (`--accept` makes a new
    /// one). `wire` without servers compares nfs-ganesha, `leasehold serve` and a warm `leasehold proxy` over
    /// one directory. `mount` compares `leasehold mount` with the native file system
    Bench {
        /// Which benchmark, and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
    /// Fuzz the decoders with cargo-fuzz
    Fuzz(fuzz::Options),
    /// Make a Debian package and a tarball of the release build
    Package(package::Options),
}

fn main() -> ExitCode {
    let passed = match Arguments::parse().task {
        Task::Test(options) => test::run(&options),
        Task::Lint => test::lint().passed(),
        Task::Tidy => tidy::run(),
        Task::Promises => promises::write(),
        Task::Lab(options) => guest::run(&options),
        Task::Bench { arguments } => bench::run(&arguments),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Package(options) => package::run(&options),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
