//! The benchmarks as a program; `--help` says how.

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
}

// The load has threads of its own: what is left needs no more than one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Benchmark::Wire(arguments) = Command::parse().benchmark;
    match arguments.run().await {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
