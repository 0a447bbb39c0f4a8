//! `leasehold serve` and `leasehold proxy` as processes on the host, on the lab's address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Lab, Origin, Process, Program};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// A running `leasehold`.
pub struct Leasehold {
    /// The process.
    pub process: Process,
    address: SocketAddr,
    export: String,
    state: PathBuf,
}

/// The program under test. It logs at the level of `LEASEHOLD_LOG`, or else at `info`.
pub fn program() -> Program {
    let log = std::env::var("LEASEHOLD_LOG").unwrap_or_else(|_| "info".to_owned());
    Program::new(env!("CARGO_BIN_EXE_leasehold"))
        .env("LEASEHOLD_LOG", format!("{log},fjall=off,lsm_tree=off"))
}

/// Serves a directory to all clients, without root squash.
pub fn serve(lab: &Lab, directory: &Path) -> Leasehold {
    serve_with(lab, directory, &[])
}

/// The same with further options.
pub fn serve_with(lab: &Lab, directory: &Path, more: &[&str]) -> Leasehold {
    serve_at(lab, lab.free_address(), directory, "serve-state", more)
}

/// Serves a directory to the clients of the list alone, which must call from ports below 1024.
pub fn serve_listed(lab: &Lab, directory: &Path, clients: &str) -> Leasehold {
    let (address, state) = (lab.free_address(), lab.subdirectory("serve-state"));
    let program = program()
        .args(["serve", "--no-root-squash", "--no-rpcbind", "--export", "/export", "--lease-time", "10"])
        .args(["--clients", clients, "--listen"])
        .arg(address.to_string())
        .arg("--state")
        .arg(&state)
        .arg(directory);
    start(lab, program, address, "/export", state)
}

/// Serves a directory at the lab's address, with a port mapper that the kernel's lock manager asks.
pub fn serve_mapped(lab: &Lab, directory: &Path, more: &[&str]) -> Leasehold {
    let (address, state) = (lab.free_address(), lab.subdirectory("serve-state"));
    let program = program()
        .args(["serve", "--no-root-squash", "--export", "/export"])
        .arg("--listen")
        .arg(address.to_string())
        .arg("--state")
        .arg(&state)
        .args(more)
        .arg(directory);
    start(lab, program, address, "/export", state)
}

/// A proxy of an origin, likewise.
pub fn proxy_mapped(lab: &Lab, origin: &Origin, vers: &str, cache: &str, more: &[&str]) -> Leasehold {
    let (address, state) = (lab.free_address(), lab.subdirectory(cache));
    let program = program()
        .args(["proxy", "--no-root-squash", "--min-free", "0"])
        .arg("--listen")
        .arg(address.to_string())
        .arg("--cache")
        .arg(&state)
        .args(more)
        .arg(format!("{}&vers={vers}&nconnect=2&timeo=50", origin.url()));
    start(lab, program, address, &origin.export, state)
}

/// As [`serve_with`] at an address, with its state in a directory of the lab.
pub fn serve_at(lab: &Lab, address: SocketAddr, directory: &Path, state: &str, more: &[&str]) -> Leasehold {
    let state = lab.subdirectory(state);
    let program = program()
        .args(["serve", "--no-root-squash", "--insecure", "--no-rpcbind", "--export", "/export"])
        .arg("--listen")
        .arg(address.to_string())
        .arg("--state")
        .arg(&state)
        .args(more)
        .arg(directory);
    start(lab, program, address, "/export", state)
}

/// Starts a proxy of an origin over version 3, with its cache in the directory `cache` of the lab.
pub fn proxy(lab: &Lab, origin: &Origin, cache: &str, more: &[&str]) -> Leasehold {
    proxy_in(lab, origin, "3", cache, more)
}

/// The same over another version.
pub fn proxy_in(lab: &Lab, origin: &Origin, vers: &str, cache: &str, more: &[&str]) -> Leasehold {
    let state = lab.subdirectory(cache);
    let address = lab.free_address();
    let program = program()
        .args(["proxy", "--no-root-squash", "--insecure", "--no-rpcbind", "--min-free", "0"])
        .arg("--listen")
        .arg(address.to_string())
        .arg("--cache")
        .arg(&state)
        .args(more)
        .args(options_by_hand())
        .arg(format!("{}&vers={vers}&nconnect=2&timeo=50", origin.url()));
    start(lab, program, address, &origin.export, state)
}

/// Further options of proxies, for runs by hand: `LAB_PROXY='--fsync journal'`.
fn options_by_hand() -> Vec<String> {
    let options = std::env::var("LAB_PROXY").unwrap_or_default();
    options.split_whitespace().map(str::to_owned).collect()
}

/// The same with attribute timeouts of ten minutes, for counts that must not depend on the speed of the
/// machine. Leases and opens still tell the proxy about changes.
pub fn patient_proxy(lab: &Lab, origin: &Origin, vers: &str, cache: &str) -> Leasehold {
    proxy_in(lab, origin, &format!("{vers}&actimeo=600"), cache, &["--prefetch", "0"])
}

/// Starts a program that listens at `address`, and waits until it does.
pub fn start(lab: &Lab, program: Program, address: SocketAddr, export: &str, state: PathBuf) -> Leasehold {
    let process = program.start(lab);
    let started = Leasehold { process, address, export: export.to_owned(), state };
    started.wait();
    started
}

impl Leasehold {
    /// The export that clients mount; it can be the origin of another proxy.
    pub fn origin(&self) -> Origin {
        let port = self.address.port();
        Origin { host: self.address.ip(), port, mountport: port, export: self.export.clone() }
    }

    /// Waits until it accepts connections.
    pub fn wait(&self) {
        self.process.wait_for_connect(self.address, PATIENCE);
    }

    /// Kills it with `kill -9`, and starts it again on the same state.
    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process.restart();
        self.wait();
    }

    /// The output of `leasehold status --json`.
    pub fn status(&self) -> Value {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["status", "--json"])
            .arg(&self.state)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// One of the counts of `held` in the status.
    pub fn held(&self, what: &str) -> u64 {
        let held = &self.status()["held"];
        // `serve` has such counts for each export.
        let of_it = held.get(&self.export).unwrap_or(held);
        of_it[what].as_u64().unwrap()
    }

    /// Delegations that were revoked and that clients have not freed.
    pub fn revoked(&self) -> u64 {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["clients", "--json"])
            .arg(&self.state)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let entries = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.filter_map(|line| line["entry"]["revoked"].as_u64()).sum()
    }

    /// Calls of one procedure to the origin so far.
    pub fn upstream(&self, procedure: &str) -> u64 {
        self.status()["upstream"][procedure]["calls"].as_u64().unwrap_or(0)
    }

    /// READs of the origin so far, including those piggybacked on OPENs.
    pub fn reads(&self) -> u64 {
        let status = self.status();
        let of = |count: &serde_json::Value| count.as_u64().unwrap_or(0);
        of(&status["upstream"]["READ"]["calls"]) + of(&status["cache"]["piggybacked_reads"])
    }

    /// All calls to the origin so far, by procedure.
    pub fn upstream_calls(&self) -> Vec<(String, u64)> {
        let status = self.status();
        let Some(upstream) = status["upstream"].as_object() else { return Vec::new() };
        upstream.iter().map(|(name, of)| (name.clone(), of["calls"].as_u64().unwrap_or(0))).collect()
    }
}

/// The calls between two readings of [`Leasehold::upstream_calls`].
pub fn between(before: &[(String, u64)], after: &[(String, u64)]) -> Vec<(String, u64)> {
    let earlier = |name: &str| before.iter().find(|(other, _)| other == name).map_or(0, |(_, calls)| *calls);
    let grown = after.iter().map(|(name, calls)| (name.clone(), calls - earlier(name)));
    grown.filter(|(_, calls)| *calls > 0).collect()
}
