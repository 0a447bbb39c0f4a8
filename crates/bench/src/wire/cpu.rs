//! CPU time of this process, which generates the load, and of a server on the same machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// `USER_HZ` on every Linux: the unit of /proc/PID/stat.
const TICK: Duration = Duration::from_millis(10);

/// CPU time so far, or between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTime {
    /// Of this process.
    pub(super) ours: Duration,
    /// Of the server, if its process is known and still runs.
    pub(super) server: Option<Duration>,
}

impl CpuTime {
    pub(super) fn now(server: Option<u32>) -> CpuTime {
        let ours = clock_gettime(ClockId::ProcessCPUTime);
        CpuTime {
            ours: Duration::new(ours.tv_sec as u64, ours.tv_nsec as u32),
            server: server.and_then(|pid| parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)),
        }
    }

    pub(super) fn since(self, before: CpuTime) -> CpuTime {
        let server = self.server.zip(before.server).map(|(now, then)| now.saturating_sub(then));
        CpuTime { ours: self.ours.saturating_sub(before.ours), server }
    }
}

/// Adds `utime` and `stime`, the 14th and 15th field. The second field, in parentheses, may contain any
/// character.
fn parse(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11).map(str::parse::<u32>);
    Some(TICK * (fields.next()?.ok()? + fields.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let line = "12 (a) b (c) S 1 12 12 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 5 0";
        assert_eq!(parse(line), Some(Duration::from_secs(3)));
        assert_eq!(parse("12 (a) S 1"), None);
    }
}
