//! Numbers that the kernel keeps of this process. All programs report them to Prometheus.

use std::fs;

/// Numbers of this process; `None` where /proc does not say.
#[derive(Debug, Default)]
pub struct Process {
    /// Processor time in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<f64>,
    /// When it started, in seconds since 1970.
    pub started_seconds: Option<f64>,
    /// Open descriptors.
    pub open_fds: Option<f64>,
    /// The limit of open descriptors.
    pub max_fds: Option<f64>,
}

impl Process {
    /// The numbers at this moment.
    pub fn now() -> Process {
        let status = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The second field, the command, may contain spaces; it ends with the last parenthesis.
        let fields: Vec<&str> =
            status.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<f64>().ok());
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Process {
            cpu_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
            resident_bytes: field(24).map(|pages| pages * rustix::param::page_size() as f64),
            started_seconds: field(22).zip(booted()).map(|(after, boot)| boot + after / ticks),
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64),
            max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .current
                .map(|limit| limit as f64),
        }
    }
}

/// When the system started, in seconds since 1970.
fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_measured() {
        let process = Process::now();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1e5), "{process:?}");
        assert!(process.open_fds.is_some_and(|open| open >= 3.0), "{process:?}");
        assert!(process.max_fds >= process.open_fds && process.cpu_seconds.is_some(), "{process:?}");
        let now = crate::status::seconds(std::time::SystemTime::now()) as f64;
        assert!(process.started_seconds.is_some_and(|at| (at - now).abs() < 3600.0), "{process:?} at {now}");
    }
}
