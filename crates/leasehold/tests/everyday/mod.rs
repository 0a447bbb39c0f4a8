//! Everyday programs on two clients of one export. A play checks what a user of the program relies on,
//! whatever lies between the clients and their data. The tests `programs` play on mounts of one `serve`, and
//! the lab plays with every origin.
//!
//! `LAB_COMMITS` sets the number of commits or transactions of each client in a manual run.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod copy;
pub mod git;
pub mod sqlite;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Two clients of one export.
pub struct Pair {
    /// The name of each client, and the directory in which it has the export.
    pub clients: [(&'static str, PathBuf); 2],
    /// A directory on this machine.
    pub scratch: PathBuf,
    /// A description of what lies between the clients, for messages.
    pub setting: String,
}

impl Pair {
    /// A path on the first client.
    pub fn first(&self, name: &str) -> PathBuf {
        self.clients[0].1.join(name)
    }

    /// A path on the second client.
    pub fn second(&self, name: &str) -> PathBuf {
        self.clients[1].1.join(name)
    }

    /// Runs `act` for both clients at the same time.
    pub fn each(&self, act: impl Fn(&'static str, &Path) + Sync) {
        std::thread::scope(|scope| {
            for (name, at) in &self.clients {
                let act = &act;
                scope.spawn(move || act(name, at));
            }
        });
    }
}

/// The number of commits or transactions of a client: `LAB_COMMITS`, or the given default.
pub fn commits(in_a_run: usize) -> usize {
    std::env::var("LAB_COMMITS").ok().and_then(|text| text.parse().ok()).unwrap_or(in_a_run)
}

/// Does a program exist? Reports a skip if not.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: there is no {program}");
    }
    found.is_ok()
}

/// Runs a program that must succeed.
#[track_caller]
pub fn done(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}

/// The output of a program: standard output, then standard error.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
