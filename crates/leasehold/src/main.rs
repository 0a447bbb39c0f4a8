//! The command line of Leasehold.
//!
//! Exit codes: 0 success; 1 failure, with one line on standard error that names thing, cause and way out; 2
//! a wrong command line.

// `println!` panics when its reader has closed the pipe: see `output`.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod admin;
mod auditing;
mod bench;
mod cachectl;
mod cli;
mod config;
mod demo;
mod departure;
mod holders;
mod hosts;
mod kerberos;
mod live;
mod logging;
mod membership;
mod metrics;
mod mount;
mod output;
mod owner;
mod proxy;
mod reload;
mod serve;
mod service;
mod stack;
mod state;
mod status;
mod sys;
#[cfg(test)]
mod tests;
mod tls;
mod top;
mod units;
mod usage;
mod users;
mod writeback;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use cli::{Arguments, Command};
use config::{Configured, Wrong};
use reload::Reload;

/// How long the program waits at exit for threads that are inside a system call.
const SHUTDOWN: std::time::Duration = std::time::Duration::from_secs(2);

/// The message of a failed command: thing, cause and way out, on one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure(message)
    }
}

fn main() -> ExitCode {
    let tell = |failure: Failure, code: ExitCode| {
        crate::output::tell(format_args!("{failure}"));
        code
    };
    let Some((given, codes)) = command_line() else { return ExitCode::SUCCESS };
    let Configured { arguments, settings } = match config::parse(&given, Path::new("")) {
        Ok(configured) => configured,
        Err(Wrong::File(wrong)) => return tell(wrong, codes.failed),
        Err(Wrong::CommandLine(error)) => error.exit(),
    };
    if let Command::Mount(given) = &arguments.command
        && let Err(wrong) = mount::check(given)
    {
        return tell(wrong, codes.wrong);
    }
    if !arguments.command.makes_files_of_its_user() {
        // Set it before there are threads. Files that clients make in a served directory get the modes that
        // the clients ask for: see `local`.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    logging::start(&arguments.logging);
    let done = match &arguments.command {
        Command::Mount(given) if mount::remount::is_wanted(given) => {
            mount::remount::run(given).map(|()| ExitCode::SUCCESS)
        }
        Command::Mount(mount) if !mount.foreground && !mount.ready => {
            mount::start_in_background().map(|mounted| if mounted { ExitCode::SUCCESS } else { codes.failed })
        }
        _ => run(arguments, Reload::new(given, settings)),
    };
    done.unwrap_or_else(|failure| tell(failure, codes.failed))
}

/// Exit codes: those of `leasehold`, or those that mount(8) expects of its helpers.
#[derive(Clone, Copy)]
struct Codes {
    failed: ExitCode,
    /// For mistakes in the source and options of a mount, which clap does not parse.
    wrong: ExitCode,
}

/// The command line, and the exit codes of a failure. None if there is nothing to do.
fn command_line() -> Option<(Vec<OsString>, Codes)> {
    let mut given = std::env::args_os();
    if let Some(helper) = given.next().and_then(|name| mount::helper::Helper::of(&name)) {
        let failed = ExitCode::from(mount::helper::FAILED);
        return Some((helper.translate(given)?, Codes { failed, wrong: failed }));
    }
    Some((std::env::args_os().collect(), Codes { failed: ExitCode::FAILURE, wrong: ExitCode::from(2) }))
}

fn run(arguments: Arguments, reload: Reload) -> Result<ExitCode, Failure> {
    if let Command::Man(man) = &arguments.command {
        return cli::write_man_pages(&man.directory).map(|()| ExitCode::SUCCESS).map_err(|error| {
            Failure(format!(
                "cannot write man pages to {}: {error}; name a directory that this user may write",
                man.directory.display()
            ))
        });
    }
    if let Command::Completions(wanted) = &arguments.command {
        crate::output::line(cli::completions(wanted.shell));
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Config(config) = &arguments.command {
        return config::command::run(&config.command).map(|()| ExitCode::SUCCESS);
    }
    if let Command::Guard(guard) = &arguments.command {
        return mount::guardian::run(guard).map(|()| ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start: {error}; are threads limited (ulimit -u)?")))?;
    let result = runtime.block_on(async {
        let done = match arguments.command {
            Command::Serve(serve) => Box::pin(serve::run(*serve, reload)).await,
            Command::Proxy(proxy) => Box::pin(proxy::run(*proxy, reload)).await,
            Command::Bench(arguments) => Box::pin(bench::run(*arguments)).await,
            Command::Demo(demo) => Box::pin(demo::run(demo)).await,
            Command::Cache(cache) => return Box::pin(cachectl::run(cache)).await,
            Command::Cluster(of) => membership::command::run(&of).await,
            Command::Writeback(of) => writeback::run(&of).await,
            Command::Mount(mount) => Box::pin(mount::run(*mount, reload)).await,
            Command::Umount(umount) => mount::unmount::run(&umount).await,
            Command::Status(status) => status::run(&status).await,
            Command::Top(top) => top::run(&top).await,
            Command::Clients(of) => holders::clients(&of).await,
            Command::Opens(of) => holders::held(&of, holders::What::Opens).await,
            Command::Locks(of) => holders::held(&of, holders::What::Locks).await,
            Command::Leases(of) => holders::held(&of, holders::What::Leases).await,
            Command::Revoke(revoke) => holders::take(&revoke).await,
            Command::Man(_) | Command::Completions(_) | Command::Config(_) | Command::Guard(_) => Ok(()),
        };
        done.map(|()| ExitCode::SUCCESS)
    });
    // A request that waits for an absent server must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN);
    result
}
