//! The command line of Leasehold.
//!
//! Exit codes: 0 done; 1 something failed, and one line on standard error says what, why and the way out; 2 the command
//! line itself was wrong.

mod admin;
mod bench;
mod cachectl;
mod cli;
mod config;
mod demo;
mod owner;
mod proxy;
mod serve;
mod stack;
mod state;
mod status;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Arguments, Command};

/// What the user is told when a command fails: thing, cause and way out, on one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure(message)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("leasehold: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    if let Command::Man(man) = &arguments.command {
        return cli::write_man_pages(&man.directory).map_err(|error| {
            Failure(format!("cannot write man pages to {}: {error}", man.directory.display()))
        });
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start: {error}; are threads limited (ulimit -u)?")))?;
    runtime.block_on(async {
        match arguments.command {
            Command::Serve(serve) => Box::pin(serve::run(*serve)).await,
            Command::Proxy(proxy) => Box::pin(proxy::run(*proxy)).await,
            Command::Bench(arguments) => Box::pin(bench::run(*arguments)).await,
            Command::Demo(demo) => Box::pin(demo::run(demo)).await,
            Command::Cache(cache) => Box::pin(cachectl::run(cache)).await,
            Command::Status(status) => status::run(&status).await,
            Command::Man(_) => Ok(()),
        }
    })
}
