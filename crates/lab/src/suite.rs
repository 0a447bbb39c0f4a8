//! The suite: typical user operations on a file system, as scripts that a guest runs on a mount of any
//! server.
//!
//! Each step is a shell script in this module's directory. It runs as root in a new directory of the mount,
//! after `prelude.sh`, and fails at the first failing command. Its reference data comes from the host (the
//! source tree and its checksums), or is made before the script drops the guest's caches.

pub mod tree;

use crate::guest::Guest;
use crate::log::say;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const PRELUDE: &str = include_str!("suite/prelude.sh");

/// How long one step may take: on a slow server some steps take minutes.
const STEP_PATIENCE: Duration = Duration::from_secs(300);

/// One step of the suite.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its name, and the name of its directory.
    pub name: &'static str,
    script: &'static str,
}

/// All steps, the quick ones first.
pub const STEPS: [Step; 15] = [
    Step { name: "files", script: include_str!("suite/files.sh") },
    Step { name: "append-truncate", script: include_str!("suite/append-truncate.sh") },
    Step { name: "rename", script: include_str!("suite/rename.sh") },
    Step { name: "links", script: include_str!("suite/links.sh") },
    Step { name: "special", script: include_str!("suite/special.sh") },
    Step { name: "names", script: include_str!("suite/names.sh") },
    Step { name: "users", script: include_str!("suite/users.sh") },
    Step { name: "unlink-open", script: include_str!("suite/unlink-open.sh") },
    Step { name: "sparse", script: include_str!("suite/sparse.sh") },
    Step { name: "random", script: include_str!("suite/random.sh") },
    Step { name: "source-tree", script: include_str!("suite/source-tree.sh") },
    Step { name: "git", script: include_str!("suite/git.sh") },
    Step { name: "make", script: include_str!("suite/make.sh") },
    Step { name: "many-files", script: include_str!("suite/many-files.sh") },
    Step { name: "big-file", script: include_str!("suite/big-file.sh") },
];

/// Steps that together take seconds. They are enough if the other steps run against another server in the
/// same test run.
pub const QUICK_STEPS: [&str; 11] = [
    "files",
    "append-truncate",
    "rename",
    "links",
    "special",
    "names",
    "users",
    "unlink-open",
    "sparse",
    "random",
    "source-tree",
];

/// Steps that version 2 can support: no wide holes, and no special files that it has no type for.
pub const V2_STEPS: [&str; 6] = ["files", "append-truncate", "rename", "links", "names", "source-tree"];

/// Runs every step in the mount of `guest` at `mountpoint`. Panics at the end with the output of all failed
/// steps.
#[track_caller]
pub fn run(guest: &Guest, mountpoint: &str) {
    let names = STEPS.map(|step| step.name);
    run_only(guest, mountpoint, &names);
}

/// Runs the named steps.
#[track_caller]
pub fn run_only(guest: &Guest, mountpoint: &str, names: &[&str]) {
    tree::provide(guest.lab(), tree::Size::Small);
    let mut failures = String::new();
    for name in names {
        let started = Instant::now();
        let outcome = run_step(guest, mountpoint, name);
        let seconds = started.elapsed().as_secs_f64();
        match outcome {
            Ok(remark) => say(&format!("{} {name}: {seconds:.1} s {remark}", guest.lab().name())),
            Err(failure) => {
                say(&format!("{} {name}: FAILED after {seconds:.1} s", guest.lab().name()));
                let _ = write!(failures, "\n--- {name}\n{failure}");
            }
        }
    }
    assert!(failures.is_empty(), "lab: the suite failed on {mountpoint}:{failures}");
}

/// Runs one step. Returns its last line if that is a remark (`# …`), or the tail of its output if it failed.
pub fn run_step(guest: &Guest, mountpoint: &str, name: &str) -> Result<String, String> {
    let step =
        STEPS.iter().find(|step| step.name == name).ok_or_else(|| format!("there is no step {name}"))?;
    let script = format!("MOUNT={mountpoint}\nSTEP={name}\n{PRELUDE}\n{}", step.script);
    let output = guest.run_for(STEP_PATIENCE, &script);
    if output.ok() {
        let remark = output.text.lines().last().filter(|line| line.starts_with('#'));
        return Ok(remark.unwrap_or("").to_owned());
    }
    Err(output.tail())
}
