//! A program on the host under test: start, watch, kill, restart.

use crate::log::Log;
use crate::session::{Lab, wait_for};
use rustix::process::{Pid, Signal};
use std::ffi::{OsStr, OsString};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to stop.
const FREEZE_PATIENCE: Duration = Duration::from_secs(20);

/// Stops a process with SIGSTOP, and waits until each of its threads stands still. A signal that was only
/// sent stops nothing yet: on a busy machine the process may still answer a call. SIGCONT lets it go on.
///
/// # Panics
/// If there is no such process, or it does not stop.
pub fn freeze(pid: Pid) {
    rustix::process::kill_process(pid, Signal::STOP)
        .unwrap_or_else(|error| panic!("lab: stop process {}: {error}", pid.as_raw_nonzero()));
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    wait_for("the process to stop", FREEZE_PATIENCE, || {
        let mut tasks = std::fs::read_dir(&tasks).ok()?.flatten();
        tasks
            .all(|task| is_stopped(&std::fs::read_to_string(task.path().join("stat")).unwrap_or_default()))
            .then_some(())
    });
}

/// Does `/proc/PID/task/TID/stat` show a thread that is stopped, or gone?
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_none_or(|(_, fields)| fields.starts_with(['T', 't', 'Z', 'X']))
}

/// The command to run.
#[derive(Debug, Clone)]
pub struct Program {
    path: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log_file: Option<PathBuf>,
}

impl Program {
    /// The program at `path`, or found in `PATH`. A test of `leasehold` passes
    /// `env!("CARGO_BIN_EXE_leasehold")`.
    pub fn new(path: impl Into<OsString>) -> Program {
        Program { path: path.into(), arguments: Vec::new(), environment: Vec::new(), log_file: None }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Program {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Program {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Program {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Path of the program's own log, to show together with its output.
    #[must_use]
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Program {
        self.log_file = Some(path.into());
        self
    }

    /// Starts the program.
    pub fn start(self, lab: &Lab) -> Process {
        let mut process = Process { program: self, child: None, log: Log::default(), lab: lab.clone() };
        process.restart();
        process
    }

    fn name(&self) -> String {
        let name = std::path::Path::new(&self.path).file_name().unwrap_or(OsStr::new("program"));
        name.to_string_lossy().into_owned()
    }
}

/// A program that runs or has run. Dropping it kills it, and shows the end of its output if the test is
/// failing.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Option<Child>,
    log: Log,
    lab: Lab,
}

impl Process {
    /// Its process id; panics if it does not run.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or_else(|| panic!("lab: {} does not run", self.program.name()), Child::id)
    }

    /// Its output since its first start; beyond 256 KiB the oldest part is dropped.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Waits until it prints a line that contains `words`. Panics with its log if it ends first or after
    /// `patience`. After a restart, lines of earlier runs no longer count.
    #[track_caller]
    pub fn wait_for_line(&self, words: &str, patience: Duration) -> String {
        let line = self.log.wait_for_line(words, patience);
        line.unwrap_or_else(|| {
            panic!("lab: {} did not say {words:?}\n{}", self.program.name(), self.last_words())
        })
    }

    /// Waits until `address` accepts TCP connections. Panics with its log if the program ends first or after
    /// `patience`.
    #[track_caller]
    pub fn wait_for_connect(&self, address: SocketAddr, patience: Duration) {
        let started = Instant::now();
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            let why = match self.is_running() {
                false => "ended before it",
                true if started.elapsed() > patience => "never",
                true => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            panic!("lab: {} {why} answered at {address}\n{}", self.program.name(), self.last_words());
        }
    }

    /// True if it runs.
    pub fn is_running(&self) -> bool {
        // waitid without reaping needs only `&self`. The process id cannot be reused before the child is
        // reaped.
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let Some(pid) = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) else {
            return false;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Kills it with SIGKILL and waits until it has ended. Does nothing if it does not run.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.reap();
    }

    /// Sends SIGTERM. Panics with its log if it does not end within `patience`.
    #[track_caller]
    pub fn terminate(&mut self, patience: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(patience)
    }

    /// Waits for it to end by itself. Panics with its log if it does not end within `patience`.
    #[track_caller]
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        let started = Instant::now();
        while self.is_running() {
            assert!(
                started.elapsed() < patience,
                "lab: {} does not end within {patience:?}\n{}",
                self.program.name(),
                self.last_words()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self.reap().unwrap_or_else(|| panic!("lab: {} was not running", self.program.name()))
    }

    /// Restarts it with the same arguments. Kills it first if it still runs.
    pub fn restart(&mut self) {
        self.kill();
        self.log = Log::default().after(&self.log);
        let program = &self.program;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).envs(program.environment.iter().map(|(name, value)| (name, value)));
        let (reader, writer) = std::io::pipe().unwrap_or_else(|error| panic!("lab: no pipe: {error}"));
        let errors = writer.try_clone().unwrap_or_else(|error| panic!("lab: no pipe: {error}"));
        command.stdin(Stdio::null()).stdout(writer).stderr(errors).process_group(0);
        let child = command.spawn();
        let child =
            child.unwrap_or_else(|error| panic!("lab: cannot start {}: {error}", program.path.display()));
        drop(command); // closes this process's copies of the write end
        self.lab.guard().add(&format!("group {}", child.id()));
        self.log.collect(reader);
        self.child = Some(child);
    }

    /// Changes the arguments of the next [`Process::restart`].
    pub fn set_program(&mut self, program: Program) {
        self.program = program;
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) {
            let _ = rustix::process::kill_process_group(pid, signal); // it may already have ended
        }
    }

    fn reap(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        let status = child.wait().ok();
        self.lab.guard().forget(&format!("group {}", child.id()));
        let said = status.map_or_else(|| "ended".to_owned(), |status| status.to_string());
        self.log.note(&format!("{} {}: {said}", self.program.name(), child.id()));
        status
    }

    fn last_words(&self) -> String {
        let file = self
            .program
            .log_file
            .as_ref()
            .and_then(|path| std::fs::read_to_string(path).ok())
            .unwrap_or_default();
        let text = format!("{}{file}", self.log.text());
        let lines: Vec<&str> = text.lines().collect();
        format!("log of {}:\n{}", self.program.name(), lines[lines.len().saturating_sub(80)..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.last_words());
        }
        self.kill();
    }
}
