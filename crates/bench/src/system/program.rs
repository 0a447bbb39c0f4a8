//! Server processes: start, wait until ready, measure, end.

use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rpc::SourcePort;

use super::{Address, Error};
use crate::interrupt::Interrupt;

/// How long a start may take.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long an orderly shutdown may take. A mount first writes back its delayed data, which takes at most a
/// minute.
const END_PATIENCE: Duration = Duration::from_secs(70);
/// `USER_HZ` on every Linux: ticks per second in /proc/PID/stat.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resources that a process has used.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Name of the program.
    pub name: String,
    /// CPU seconds in user and kernel mode.
    pub cpu_seconds: f64,
    /// Peak resident memory in the pass.
    pub memory_bytes: u64,
}

impl Usage {
    /// CPU time since `earlier`; memory stays the peak so far.
    pub(super) fn since(&self, earlier: &Usage) -> Usage {
        Usage { cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0), ..self.clone() }
    }

    /// The usage of a process; zeros if it has ended.
    pub(crate) fn of(name: &str, pid: u32) -> Usage {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        Usage {
            name: name.to_owned(),
            cpu_seconds: cpu_ticks(&read("stat")).unwrap_or(0) as f64 / TICKS_PER_SECOND,
            memory_bytes: kilobytes(&read("status"), "VmHWM:").unwrap_or(0) << 10,
        }
    }
}

/// Adds `utime` and `stime`, the 14th and 15th field. The second field, in parentheses, may contain any
/// character.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

/// A value of /proc/PID/status.
fn kilobytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    server: SocketAddr,
    log: PathBuf,
    interrupt: Interrupt,
}

impl Program {
    /// Starts a server that will listen at `server`, and waits until it listens. Its output goes to `log`.
    pub(crate) fn start(
        interrupt: &Interrupt,
        name: &str,
        command: Command,
        server: SocketAddr,
        log: &Path,
    ) -> Result<Program, Error> {
        let mut program = Program::spawn(interrupt, name, command, server, log)?;
        program.wait_for_answer()?;
        Ok(program)
    }

    /// Waits until the program listens.
    pub(crate) fn wait_for_answer(&mut self) -> Result<(), Error> {
        self.wait_until("answered", |program| {
            TcpStream::connect_timeout(&program.server, Duration::from_secs(1)).is_ok()
        })
    }

    /// Starts a program, and waits until `ready` returns true.
    pub(crate) fn start_until(
        interrupt: &Interrupt,
        name: &str,
        command: Command,
        log: &Path,
        ready: impl Fn() -> bool,
    ) -> Result<Program, Error> {
        let server = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut program = Program::spawn(interrupt, name, command, server, log)?;
        program.wait_until("was ready", |_| ready())?;
        Ok(program)
    }

    /// Starts a program without waiting for it.
    pub(crate) fn spawn(
        interrupt: &Interrupt,
        name: &str,
        mut command: Command,
        server: SocketAddr,
        log: &Path,
    ) -> Result<Program, Error> {
        let failed = |why: String| Error::Start { program: name.to_owned(), why };
        interrupt.check().map_err(|error| failed(error.to_string()))?;
        let output = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = output.map_err(|error| failed(format!("{}: {error}", log.display())))?;
        // Ctrl-C must reach only this process. If it ended a server, clients would wait for that server.
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        interrupt.watch(&child);
        let interrupt = interrupt.clone();
        Ok(Program { name: name.to_owned(), child, server, log: log.to_owned(), interrupt })
    }

    fn wait_until(&mut self, what: &str, ready: impl Fn(&Program) -> bool) -> Result<(), Error> {
        let started = Instant::now();
        while !ready(self) {
            let ended = self.child.try_wait().ok().flatten();
            let why = match ended {
                Some(status) => format!("it ended ({status}) before it {what}"),
                None if started.elapsed() > START_PATIENCE => format!("it never {what}"),
                None if self.interrupt.is_told() => format!("interrupted before it {what}"),
                None => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            return Err(Error::Start {
                program: self.name.clone(),
                why: format!("{why}: {}", self.last_words()),
            });
        }
        Ok(())
    }

    /// The last lines of the log, joined into one line.
    fn last_words(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|file| file.take(64 << 10).read_to_string(&mut text));
        if read.is_err() || text.trim().is_empty() {
            return "it said nothing".to_owned();
        }
        let lines: Vec<&str> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(2)..].join("; ")
    }

    /// The address of an export of this server.
    pub(super) fn address(&self, export: &str) -> Address {
        Address {
            server: self.server,
            mountport: None,
            export: export.to_owned(),
            source: SourcePort::Any,
            options: String::new(),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::of(&self.name, self.child.id())
    }

    /// Resident memory now; 0 if the program has ended.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        kilobytes(&status.unwrap_or_default(), "VmRSS:").unwrap_or(0) << 10
    }

    /// Resets the peak to the current resident memory (proc(5), `clear_refs`).
    pub(super) fn forget_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5");
    }

    /// Kills the program with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends the program in order; kills it after `END_PATIENCE`.
    pub(crate) fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let started = Instant::now();
        while started.elapsed() < END_PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        // The child has not been waited for, so its process id cannot have been reused.
        let _: io::Result<()> =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
                .map_err(Into::into);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        self.interrupt.forget(&self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_proc() {
        let line = "12 (a) b (c) S 1 12 12 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 5 0";
        assert_eq!((cpu_ticks(line), cpu_ticks("12 (a) S 1")), (Some(300), None));
        assert_eq!(kilobytes("Name:\tx\nVmHWM:\t  1234 kB\n", "VmHWM:"), Some(1234));
        let ours = Usage::of("bench", std::process::id());
        assert!(ours.memory_bytes > 1 << 20, "{ours:?}");
        assert_eq!(Usage::of("nobody", u32::MAX).memory_bytes, 0);
    }

    #[test]
    fn a_program_that_does_not_start_is_told_with_its_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        let server = super::super::free_port().unwrap();
        let log = directory.path().join("log");
        let mut program = Program::spawn(&Interrupt::default(), "sh", command, server, &log).unwrap();
        let error = program.wait_until("answered", |_| false).unwrap_err().to_string();
        assert!(error.contains("cannot start sh") && error.contains("two; three"), "{error}");
    }
}
