//! The benchmarks as a program; `--help` shows the commands.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Measures NFS servers")]
struct Command {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Drive NFSv3 servers and report operations/s, MB/s and latency
    Wire(bench::wire::Arguments),
    /// Run one pass of a workload, for some of its clients, in a directory that was prepared for it
    Pass(bench::PassArguments),
    /// Compare `leasehold mount` with the native file system
    Mount(bench::native::Arguments),
    /// Repeat the measurements of NQNFS (Macklem 1994): NFSv3 with close-to-open compared with leases
    Macklem(bench::macklem::Arguments),
    /// Measure memory, calls and time over computed trees of growing size
    Scale(bench::scale::Arguments),
}

// The load generator has its own threads; everything else needs only one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Command::parse().benchmark {
        Benchmark::Wire(arguments) => arguments.run().await.map(drop).map_err(|error| error.to_string()),
        Benchmark::Pass(arguments) => arguments.run(),
        Benchmark::Mount(arguments) => arguments.run().await.map(drop),
        Benchmark::Scale(arguments) => arguments.run().await.map(drop),
        Benchmark::Macklem(arguments) => arguments.run().await.map(|table| println!("{table}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
