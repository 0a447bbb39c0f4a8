//! What is looked at when something hangs: each thread's state, where in the kernel it is, and what FUSE waits for.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

/// A connection of the kernel's to whoever answers for a mounted directory.
pub struct Connection(u32);

impl Connection {
    /// That of a directory.
    pub fn of(directory: &Path) -> Connection {
        let (_, minor) = mount::mounted_at(directory).expect("it is mounted");
        Connection(minor)
    }

    /// Requests that nobody has answered; none are known where the kernel does not show it.
    pub fn waiting(&self) -> Option<u64> {
        let path = format!("/sys/fs/fuse/connections/{}/waiting", self.0);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Breaks it: whoever waits gets an error.
    pub fn abort(&self) {
        let _ = mount::break_connection(self.0);
    }
}

/// All that is known of what the threads of a process are at.
pub fn tell(name: &str, pid: Pid) -> String {
    let mut told = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return told };
    for task in tasks.flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (comm, wchan) = (read("comm"), read("wchan"));
        let state = Status::of(&task.path()).map_or('?', |status| status.state);
        let thread = task.file_name();
        let stack = stack(&task.path());
        let _ = writeln!(
            told,
            "{name}, thread {} ({}), state {state}, in {wchan}\n{stack}",
            thread.display(),
            comm.trim()
        );
    }
    told
}

/// Where in the kernel a thread is. That waits for a program which is being started, so another process looks, not for long.
fn stack(task: &Path) -> String {
    let looked = Command::new("timeout").args(["-s", "KILL", "1", "cat"]).arg(task.join("stack")).output();
    looked
        .map_or_else(|error| error.to_string(), |looked| String::from_utf8_lossy(&looked.stdout).into_owned())
}

/// The processes of a group that have not ended, with their states.
pub fn group(leader: Pid) -> Vec<(Pid, char)> {
    let leader = leader.as_raw_nonzero().get();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let of_group = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let status = Status::of(&entry.path())?;
        (status.group == leader && !matches!(status.state, 'Z' | 'X')).then_some((pid, status.state))
    };
    entries.filter_map(of_group).collect()
}

/// What `proc(5)` says in `status`, which waits for nobody, unlike `stat`: a program that is being started and closes files
/// of a mount may be waiting for its server, and then who reads its `stat` waits as well.
struct Status {
    state: char,
    group: i32,
}

impl Status {
    fn of(directory: &Path) -> Option<Status> {
        let status = fs::read_to_string(directory.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // Of several name spaces the first is that of who looks.
        let group = field("NSpgid:")?.split_whitespace().next()?.parse().ok()?;
        Some(Status { state: field("State:")?.chars().next()?, group })
    }
}
