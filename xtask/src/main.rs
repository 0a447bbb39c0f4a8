//! What contributors run: `cargo xtask test`, `lint`, `tidy`, `lab`, `bench`, `fuzz`.
//!
//! Every task is made of steps; a step is a program whose output is shown as it comes, or a check of our own. Steps that fail do not
//! keep later ones from running: one run tells all that is wrong.

mod bench;
mod dependencies;
mod fuzz;
mod guest;
mod kernels;
mod packages;
mod programs;
mod promises;
mod prose;
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
    /// Install what is missing (as root, from Debian), check format and lints, run every test, lab included
    Test(test::Options),
    /// Check format, lints, documentation, style and what is depended on
    Lint,
    /// Check the house rules that no compiler knows
    Tidy,
    /// Write the table of promises and their tests into docs/semantics.md
    Promises,
    /// Boot a guest, with a foreign origin mounted if asked, and run a script or lines from standard input in it.
    /// `--kernels` runs the lab's tests with guests of Linux 6.12 and 7.2
    Lab(guest::Options),
    /// Run a benchmark. `papers` is `leasehold bench` in release mode; `lab` measures the kernel's clients
    /// and caches in guests; `quick` holds counts to the committed baseline
    /// (`--accept` makes a new one); `wire` without servers compares nfs-ganesha, `leasehold serve` and a warm `leasehold
    /// proxy` over one directory; `mount` compares `leasehold mount` with the native file system
    Bench {
        /// Which benchmark, and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
    /// Fuzz the decoders with cargo-fuzz
    Fuzz(fuzz::Options),
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
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
