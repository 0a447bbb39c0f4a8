//! Runs a test again, in a process that has the environment of a realm.
//!
//! The Kerberos library reads KRB5_CONFIG from the environment of its process, and a test cannot set that:
//! its process has other threads. The test's program is therefore started a second time, for this test alone.

use super::{Realm, create_directory, set_environment, start_guard};
use crate::log::say;
use crate::require::kerberos_missing;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Has the directory of the realm in the process that runs the test.
const MARKER: &str = "LEASEHOLD_LAB_REALM";
/// A file that says that the test has passed. A wrong name of the test would run none, and succeed.
const PASSED: &str = "passed";
/// How long a test may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `body` with a new realm, in a process of its own whose environment leads Kerberos to that realm.
/// `name` is the full name of the calling test, such as `context::both_ways` or, in a file of `tests/`, the
/// name of the function. If the programs of Kerberos are missing and the environment sets
/// `LEASEHOLD_LAB=skip`, it says so and returns.
///
/// # Panics
/// If the test fails, with its output; or if the programs are missing, with the packages to install.
pub fn with_realm(name: &str, body: impl FnOnce(&Realm)) {
    if let Some(directory) = std::env::var_os(MARKER) {
        let directory = PathBuf::from(directory);
        body(&Realm::create(directory.clone(), Ipv4Addr::LOCALHOST, start_guard()));
        fs::write(directory.join(PASSED), "").unwrap_or_else(|error| panic!("lab: {name}: {error}"));
        return;
    }
    let missing = kerberos_missing();
    if !missing.is_none() && std::env::var_os("LEASEHOLD_LAB").is_some_and(|value| value == "skip") {
        say(&format!("{name}: SKIPPED (LEASEHOLD_LAB=skip; {missing})"));
        return;
    }
    assert!(missing.is_none(), "lab: {name} cannot run here: {missing} (LEASEHOLD_LAB=skip leaves it out)");
    let directory = create_directory();
    let guard = start_guard();
    guard.add(&format!("directory {}", directory.display()));
    run_again(name, &directory);
}

fn run_again(name: &str, directory: &Path) {
    let failed = |error: std::io::Error| -> ! { panic!("lab: cannot run {name} again: {error}") };
    let output = directory.join("output");
    let file = File::create(&output).unwrap_or_else(|error| failed(error));
    let errors = file.try_clone().unwrap_or_else(|error| failed(error));
    let program = std::env::current_exe().unwrap_or_else(|error| failed(error));
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture"]).env(MARKER, directory);
    set_environment(&mut command, directory);
    command.stdin(Stdio::null()).stdout(file).stderr(errors);
    let mut child = command.spawn().unwrap_or_else(|error| failed(error));
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.to_string(),
            Ok(None) if started.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break format!("not done after {PATIENCE:?}");
            }
        }
    };
    let passed = directory.join(PASSED).exists();
    let output = fs::read(&output).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    assert!(passed, "lab: {name} with a realm: {status}\n{output}");
}
