//! Drives NFSv3 servers; `--help` says how.

use clap::Parser;

#[derive(Parser)]
#[command(about)]
struct Command {
    #[command(flatten)]
    wire: bench::wire::Arguments,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match Command::parse().wire.run().await {
        Ok(_) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-wire: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
