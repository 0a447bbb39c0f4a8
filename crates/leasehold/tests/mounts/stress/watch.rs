//! Information about processes that hang: the state of each thread, its place in the kernel, and what FUSE
//! waits for.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

/// The FUSE connection of a mounted directory.
pub struct Connection(u32);

impl Connection {
    /// The connection of a directory.
    pub fn of(directory: &Path) -> Connection {
        let (_, minor) = mount::mounted_at(directory).expect("it is mounted");
        Connection(minor)
    }

    /// Requests without a reply. None if the kernel does not show the number.
    pub fn waiting(&self) -> Option<u64> {
        let path = format!("/sys/fs/fuse/connections/{}/waiting", self.0);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Aborts the connection: every waiting request gets an error.
    pub fn abort(&self) {
        let _ = mount::break_connection(self.0);
    }
}

/// Describes what each thread of a process is doing.
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

/// The kernel stack of a thread. Reading it may wait for a program that is being executed, so another
/// process reads it, with a time limit.
fn stack(task: &Path) -> String {
    let looked = Command::new("timeout").args(["-s", "KILL", "1", "cat"]).arg(task.join("stack")).output();
    looked
        .map_or_else(|error| error.to_string(), |looked| String::from_utf8_lossy(&looked.stdout).into_owned())
}

/// The processes of a group that have not exited, with their states.
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

/// Fields of `status` in proc(5). Reading `stat` may block: a program that is being executed closes files of
/// a mount and may wait for its server, and a reader of its `stat` waits with it. Reading `status` does not
/// block.
struct Status {
    state: char,
    group: i32,
}

impl Status {
    fn of(directory: &Path) -> Option<Status> {
        let status = fs::read_to_string(directory.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // The first of several values is that of our own namespace.
        let group = field("NSpgid:")?.split_whitespace().next()?.parse().ok()?;
        Some(Status { state: field("State:")?.chars().next()?, group })
    }
}
