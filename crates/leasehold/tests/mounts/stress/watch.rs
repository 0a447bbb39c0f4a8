//! What is looked at when something hangs: each thread's state, where in the kernel it is, and what FUSE waits for.

use std::fmt::Write;
use std::fs;
use std::path::Path;

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
        let (comm, wchan, stack) = (read("comm"), read("wchan"), read("stack"));
        let state = Stat::of(&task.path()).map_or('?', |stat| stat.state);
        let _ = writeln!(
            told,
            "{name}, thread {} ({}), state {state}, in {wchan}\n{stack}",
            task.file_name().display(),
            comm.trim()
        );
    }
    told
}

/// The processes of a group that have not ended, with their states.
pub fn group(leader: Pid) -> Vec<(Pid, char)> {
    let leader = leader.as_raw_nonzero().get();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let of_group = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let stat = Stat::of(&entry.path())?;
        (stat.group == leader && !matches!(stat.state, 'Z' | 'X')).then_some((pid, stat.state))
    };
    entries.filter_map(of_group).collect()
}

/// What `proc(5)` says in `stat`.
struct Stat {
    state: char,
    group: i32,
}

impl Stat {
    fn of(directory: &Path) -> Option<Stat> {
        let stat = fs::read_to_string(directory.join("stat")).ok()?;
        // The name before it may have anything in it.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        Some(Stat { state: fields.next()?.chars().next()?, group: fields.nth(1)?.parse().ok()? })
    }
}
