//! `cargo xtask bench`: runs the program `bench`, and starts the servers to measure if none are named.
//! Further benchmarks:
//!
//! - `papers`: `leasehold bench`, built in release mode
//! - `lab`: the kernel's clients and caches in guests
//! - `mount`: `leasehold mount` beside the native file system
//! - `scale`: memory, calls and time over computed trees of growing size
//! - `quick`: compares counts with the committed baseline

use crate::programs::Programs;
use crate::steps;
use lab::{Ganesha, Lab, Process, Program, free_port};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a server may take to start.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// The directory in the export that holds the files.
const FILES_IN: &str = "leasehold-bench";

/// The committed baseline of `quick`.
const BASELINE: &str = "crates/bench/baseline.json";

/// Builds and runs a benchmark; true if it succeeds.
pub fn run(arguments: &[String]) -> bool {
    match arguments.split_first() {
        Some((name, rest)) if name == "quick" => return quick(rest),
        Some((name, rest)) if name == "lab" => return kernels(rest),
        Some((name, rest)) if name == "papers" => {
            let fixed = ["run", "--release", "--package", "leasehold", "--", "bench"];
            return steps::run("cargo", fixed.into_iter().chain(rest.iter().map(String::as_str)), &[]);
        }
        Some((name, _)) if name == "mount" || name == "scale" => return both(arguments),
        _ => {}
    }
    let names_servers = arguments.iter().any(|argument| argument.contains("nfs://"));
    let wants_help = arguments.iter().any(|argument| ["-h", "--help"].contains(&argument.as_str()));
    if arguments.first().is_some_and(|name| name == "wire") && !names_servers && !wants_help {
        return compare(&arguments[1..]);
    }
    let fixed = ["run", "--release", "--package", "bench", "--bin", "bench", "--"];
    steps::run("cargo", fixed.into_iter().chain(arguments.iter().map(String::as_str)), &[])
}

/// The kernel's clients and caches in the lab, with the programs in release mode.
fn kernels(options: &[String]) -> bool {
    let build = ["build", "--release", "--package", "bench", "--package", "leasehold"];
    let fixed = ["bench", "--package", "bench", "--bench", "lab", "--"];
    steps::run("cargo", build, &[])
        && steps::run("cargo", fixed.into_iter().chain(options.iter().map(String::as_str)), &[])
}

/// A benchmark that starts `leasehold` from its own directory, with both programs in release mode.
fn both(arguments: &[String]) -> bool {
    let build = ["build", "--release", "--package", "bench", "--package", "leasehold"];
    steps::run("cargo", build, &[])
        && steps::run(&path(&release("bench")), arguments.iter().map(String::as_str), &[])
}

/// Compares counts and ratios with the baseline. Their values do not depend on speed, so the test build is
/// good enough.
pub fn quick(options: &[String]) -> bool {
    let Some(leasehold) = Programs::build().and_then(|programs| programs.leasehold) else { return false };
    let fixed = ["bench", "--quick", BASELINE];
    steps::run(&path(&leasehold), fixed.into_iter().chain(options.iter().map(String::as_str)), &[])
}

/// Compares nfs-ganesha, `serve`, and a `proxy` in front of that `serve`, over one directory.
fn compare(options: &[String]) -> bool {
    let build = ["build", "--release", "--package", "bench", "--package", "leasehold"];
    if !steps::run("cargo", build, &[]) {
        return false;
    }
    let Some(lab) = Lab::enter("bench") else { return false };
    let directory = lab.subdirectory("export");
    let ganesha = Ganesha::serve(&lab, &directory);
    let host = lab.address();
    let serve = Leasehold::start(&lab, host, "serve", &[&path(&directory), "--export", "/export", "--state"]);
    let proxy = Leasehold::start(&lab, host, "proxy", &[&serve.url(), "--cache"]);
    let targets = [
        format!("ganesha@{}={}", ganesha.pid(), ganesha.origin().url()),
        format!("serve@{}={}", serve.process.pid(), serve.url()),
        format!("proxy@{}={}", proxy.process.pid(), proxy.url()),
    ];
    let prepare = path(&directory.join(FILES_IN));
    let mut arguments = vec!["wire", "--files-in", FILES_IN, "--prepare", &prepare];
    if !options.iter().any(|option| option.starts_with("--rounds")) {
        arguments.extend(["--rounds", "5"]);
    }
    arguments.extend(options.iter().map(String::as_str));
    arguments.extend(targets.iter().map(String::as_str));
    steps::run(&path(&release("bench")), arguments, &[])
}

/// A running `leasehold`.
struct Leasehold {
    process: Process,
    address: SocketAddr,
}

impl Leasehold {
    /// Starts a command, and appends a new directory as its last argument.
    fn start(lab: &Lab, host: IpAddr, command: &str, arguments: &[&str]) -> Leasehold {
        let address = SocketAddr::new(host, free_port(host));
        let program = Program::new(release("leasehold")).arg(command).args(arguments);
        let listen = ["--listen", &address.to_string(), "--no-root-squash", "--insecure", "--no-rpcbind"];
        let process = program.arg(lab.subdirectory(command)).args(listen).start(lab);
        process.wait_for_connect(address, START_PATIENCE);
        Leasehold { process, address }
    }

    fn url(&self) -> String {
        format!("nfs://{}/export", self.address)
    }
}

/// A program of the release build, in the target directory of this program.
fn release(name: &str) -> PathBuf {
    let ours = std::env::current_exe().unwrap_or_default();
    let target =
        ours.parent().and_then(Path::parent).map_or_else(|| steps::root().join("target"), Path::to_owned);
    target.join("release").join(name)
}

/// Paths of the lab are ASCII, so nothing is lost.
fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
