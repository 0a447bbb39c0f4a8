//! The guard: undoes on the host what a test set up, even when the test was killed and could not.
//!
//! It reads what exists from standard input, one `+ KIND VALUE` or `- KIND VALUE` a line, and cleans up what is left when the other end
//! closes, newest first. Kinds: `group` (a process group to kill), `link` (a network device), `address` (`CIDR DEVICE`), `directory`.

use std::io::{self, BufRead};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a killed process group may take to vanish.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Keeps the list until standard input ends, then cleans up.
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

/// Kills a process group and waits until the kernel has let go of it: its tap device and files are free only then.
fn end_group(group: &str) {
    let target = format!("-{group}");
    let started = Instant::now();
    quietly("kill", &["-KILL", "--", &target]);
    while started.elapsed() < KILL_PATIENCE && succeeds("kill", &["-0", "--", &target]) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn quietly(program: &str, arguments: &[&str]) {
    succeeds(program, arguments);
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
