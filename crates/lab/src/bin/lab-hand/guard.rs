//! The guard: undoes on the host everything that a test set up, even if the test was killed.
//!
//! It reads the existing things from standard input, one `+ KIND VALUE` or `- KIND VALUE` per line. When the
//! other end closes, it removes the things that are left, newest first. Kinds: `group` (a process group to
//! kill), `link` (a network device), `address` (`CIDR DEVICE`), `directory`.

use std::io::{self, BufRead};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a killed process group may take to disappear.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Maintains the list until standard input ends, then cleans up.
pub fn watch() -> io::Result<()> {
    let mut things: Vec<String> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("+", thing)) => things.push(thing.to_owned()),
            Some(("-", thing)) => things.retain(|known| known != thing),
            _ => eprintln!("lab-hand guard: cannot read {line:?}"),
        }
    }
    for thing in things.iter().rev() {
        remove(thing);
    }
    Ok(())
}

fn remove(thing: &str) {
    let (kind, value) = thing.split_once(' ').unwrap_or((thing, ""));
    match kind {
        "group" => end_group(value),
        "link" => quietly("ip", &["link", "del", value]),
        "address" => {
            let (cidr, device) = value.split_once(' ').unwrap_or((value, "lo"));
            quietly("ip", &["addr", "del", cidr, "dev", device]);
        }
        "directory" if Path::new(value).components().count() > 2 => {
            let _ = std::fs::remove_dir_all(value);
        }
        _ => eprintln!("lab-hand guard: cannot remove {thing:?}"),
    }
}

/// Kills a process group and waits until the kernel has released it. Only then are its tap device and files
/// free.
fn end_group(group: &str) {
    let target = format!("-{group}");
    let started = Instant::now();
    quietly("kill", &["-KILL", "--", &target]);
    while started.elapsed() < KILL_PATIENCE && any_alive(group) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// True if a process of the group may still hold resources. A zombie holds none.
fn any_alive(group: &str) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    processes.flatten().any(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name may contain any character. After it come state, parent and process group:
        // proc_pid_stat(5).
        let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = words.next();
        words.nth(1) == Some(group) && state != Some("Z")
    })
}

fn quietly(program: &str, arguments: &[&str]) {
    succeeds(program, arguments);
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
