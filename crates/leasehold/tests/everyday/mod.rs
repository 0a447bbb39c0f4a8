//! Everyday programs at two clients of one export. A play says what a user of the program relies on, whatever is between the
//! clients and their data: the tests `programs` play on mounts of one `serve`, those of the lab before every origin.
//!
//! `LAB_COMMITS` says how many commits or transactions each client makes by hand.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod copy;
pub mod git;
pub mod sqlite;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Two clients of one export.
pub struct Pair {
    /// Their names and where each has the export.
    pub clients: [(&'static str, PathBuf); 2],
    /// A directory of this machine.
    pub scratch: PathBuf,
    /// What is between the clients, for messages.
    pub setting: String,
}

impl Pair {
    /// Something on the first client.
    pub fn first(&self, name: &str) -> PathBuf {
        self.clients[0].1.join(name)
    }

    /// Something on the second client.
    pub fn second(&self, name: &str) -> PathBuf {
        self.clients[1].1.join(name)
    }

    /// Runs what each client does, both at the same time.
    pub fn each(&self, act: impl Fn(&'static str, &Path) + Sync) {
        std::thread::scope(|scope| {
            for (name, at) in &self.clients {
                let act = &act;
                scope.spawn(move || act(name, at));
            }
        });
    }
}

/// Commits or transactions of a client in a test run, or by hand.
pub fn commits(in_a_run: usize) -> usize {
    std::env::var("LAB_COMMITS").ok().and_then(|text| text.parse().ok()).unwrap_or(in_a_run)
}

/// Whether a program is there. Says so if not.
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

/// What a program said, standard error behind standard output.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
