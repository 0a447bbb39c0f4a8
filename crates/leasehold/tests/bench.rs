//! `leasehold bench` as a user runs it, with small workloads: what it measures, what it writes, and what it
//! leaves behind.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Runs small workloads, with files in a directory whose file system has handles.
fn bench(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["bench", "--rtt", "1", "--rounds", "1", "--scale", "0.001", "--directory"]).arg(directory);
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn directory() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The measurement of a workload on a system.
fn of<'r>(report: &'r Value, workload: &str, system: &str) -> &'r Value {
    let all = report["measurements"].as_array().unwrap();
    let found = all.iter().find(|each| each["workload"] == workload && each["system"] == system);
    found.unwrap_or_else(|| panic!("no {workload} on {system}: {:?}", report["left_out"]))
}

fn calls(measurement: &Value, kind: &str) -> u64 {
    measurement["calls"]["calls"][kind].as_u64().unwrap_or(0)
}

#[test]
fn systems_are_compared_and_nothing_is_left_behind() {
    let directory = directory();
    let page = directory.path().join("report.html");
    let systems = ["--system", "local", "--system", "direct", "--system", "proxy"];
    let workloads =
        ["--workload", "reread", "--workload", "recall", "--json", "--html", page.to_str().unwrap()];
    let output = bench(directory.path(), &[&systems[..], &workloads[..]].concat());
    let report = report(&output);
    assert_eq!(report["left_out"].as_array().unwrap().len(), 0, "{}", report["left_out"]);
    let [local, direct, cold, warm] =
        ["local", "direct", "proxy cold", "proxy warm"].map(|system| of(&report, "reread", system));
    assert_eq!((local["bytes_down"].as_u64(), calls(local, "READ")), (Some(0), 0));
    assert!(calls(direct, "READ") > 10 && calls(cold, "READ") <= calls(direct, "READ"), "{direct}");
    // The proxy was restarted in between, and its cache is complete.
    assert_eq!(calls(warm, "READ"), 0, "{warm}");
    assert_eq!(local["operations"], warm["operations"]);
    let usage = warm["usage"].as_array().unwrap();
    assert!(usage.iter().all(|each| each["memory_bytes"].as_u64().unwrap() > 1 << 20), "{usage:?}");
    assert!(warm["hits"]["data"][0].as_u64().unwrap() > 10, "{warm}");
    assert!(of(&report, "recall", "proxy warm")["phases"].as_array().unwrap().len() == 3);
    assert!(std::fs::read_to_string(&page).unwrap().contains("A re-read after a restart"));
    std::fs::remove_file(page).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something is left behind");
}

/// A server in the background; dropping the value kills it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_of_the_users_is_left_as_it_was() {
    let directory = directory();
    let (export, state) = (directory.path().join("export"), directory.path().join("state"));
    std::fs::create_dir(&export).unwrap();
    std::fs::write(export.join("precious"), "mine").unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    serve.arg("serve").arg(&export).args(["--export", "/export", "--state"]).arg(state);
    serve.args(["--listen", "127.0.0.1:0", "--insecure", "--no-root-squash"]).stdin(Stdio::null());
    let mut serve = Running(serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(serve.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once(" on ").unwrap().1.split(';').next().unwrap().to_owned();
    let own = directory.path().join("bench");
    std::fs::create_dir(&own).unwrap();
    let url = format!("nfs://{address}/export");
    for vers in ["3", "4.2"] {
        let asked = ["--against", &url, "--vers", vers, "--workload", "create", "--json"];
        let output = bench(&own, &[&asked[..], &["--system", "direct", "--system", "proxy"]].concat());
        let report = report(&output);
        let made = if vers == "3" { "CREATE" } else { "OPEN" };
        assert_eq!(calls(of(&report, "create", "direct"), made), 50, "{}", report["left_out"]);
        assert!(calls(of(&report, "create", "proxy cold"), made) >= 50);
    }
    let left: Vec<_> = std::fs::read_dir(&export).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["precious"]);
}

#[test]
fn what_cannot_be_done_is_told_in_one_line() {
    let directory = directory();
    let missing = directory.path().join("nowhere/else.json");
    for arguments in [&["--quick", missing.to_str().unwrap(), "--from", "x"][..], &["--workload", "oltq"]] {
        assert_eq!(bench(directory.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = bench(directory.path(), &["--from", missing.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.trim_end().lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("else.json"), "{error}");
}

/// Waits for a condition; fails with its name after a minute.
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes with a word in their command line.
fn processes_with(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(word)).map(|line| line.replace('\0', " ")).collect()
}

fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    places.filter(|place| place.starts_with(directory)).collect()
}

/// Interrupts the benchmark within a workload. No servers, mounts or directories may be left, here or at the
/// user's server.
fn is_cleaned_up_after(signal: rustix::process::Signal, system: &str, ready: impl Fn(&Path) -> bool) {
    let directory = directory();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    // The round trip is long and the work is large, so the benchmark cannot end by itself meanwhile.
    command.args(["bench", "--rtt", "200", "--rounds", "1", "--scale", "1", "--workload", "create"]);
    command.args(["--system", system, "--directory"]).arg(directory.path()).stdin(Stdio::null());
    let mut bench = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut told = bench.0.stderr.take().unwrap();
    wait_for("the workload", || {
        assert!(bench.0.try_wait().unwrap().is_none(), "it ended by itself");
        ready(directory.path())
    });
    let word = directory.path().to_str().unwrap();
    assert!(processes_with(word).len() >= 2, "the benchmark and a server");
    rustix::process::kill_process(rustix::process::Pid::from_child(&bench.0), signal).unwrap();
    let status = bench.0.wait().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut told, &mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(processes_with(word), Vec::<String>::new());
    assert_eq!(mounts_below(directory.path()), Vec::<PathBuf>::new());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something is left behind: {said}");
}

/// Does the export of the benchmark contain files of the workload?
fn has_begun(directory: &Path) -> bool {
    let scratch = std::fs::read_dir(directory).into_iter().flatten().flatten().next();
    let exported = scratch.and_then(|scratch| std::fs::read_dir(scratch.path().join("export")).ok());
    let made =
        exported.into_iter().flatten().flatten().filter(|entry| entry.path().join("create-0").exists());
    made.count() > 0
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    is_cleaned_up_after(rustix::process::Signal::INT, "proxy", has_begun);
}

#[test]
fn a_terminated_run_leaves_no_mount_behind() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: mounting wants root");
        return;
    }
    let mounted = |directory: &Path| !mounts_below(directory).is_empty() && has_begun(directory);
    is_cleaned_up_after(rustix::process::Signal::TERM, "mount", mounted);
}

#[test]
fn any_directory_is_measured_as_it_is() {
    let (home, directory) = (directory(), directory());
    std::fs::write(directory.path().join("precious"), "mine").unwrap();
    let dir = directory.path().to_str().unwrap();
    let output = bench(home.path(), &["--dir", dir, "--workload", "rounds", "--json"]);
    let report = report(&output);
    for pass in ["dir cold", "dir warm"] {
        let latencies = &of(&report, "rounds", pass)["latencies"];
        assert_eq!(
            (latencies["lock"]["count"].as_u64(), latencies["open"]["count"].as_u64()),
            (Some(80), Some(80))
        );
    }
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["precious"]);
}
