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
    /// Repeat the measurements of NQNFS (Macklem 1994): NFSv3 with close-to-open beside leases
    Macklem(bench::macklem::Arguments),
}

// The load has threads of its own: what is left needs no more than one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ran = match Command::parse().benchmark {
        Benchmark::Wire(arguments) => arguments.run().await.map(|_| ()).map_err(|error| error.to_string()),
        Benchmark::Macklem(arguments) => arguments.run().await.map(|table| println!("{table}")),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
