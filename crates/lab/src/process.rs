//! A program of the host under test: started, watched, killed, started again.

use crate::log::Log;
use crate::session::Lab;
use rustix::process::{Pid, Signal};
use std::ffi::{OsStr, OsString};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Debug, Clone)]
pub struct Program {
    path: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log_file: Option<PathBuf>,
}

impl Program {
    /// The program at `path`, or found on the path; a test of `leasehold` passes `env!("CARGO_BIN_EXE_leasehold")`.
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

    /// Where it writes a log of its own, to be shown beside its output.
    #[must_use]
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Program {
        self.log_file = Some(path.into());
        self
    }

    /// Starts it.
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

/// A program that runs, or ran; dropping it kills it, and shows its last words if the test is failing.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Option<Child>,
    log: Log,
    lab: Lab,
}

impl Process {
    /// Its process id; panics when it does not run.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or_else(|| panic!("lab: {} does not run", self.program.name()), Child::id)
    }

    /// What it printed, from its first start on; the oldest is dropped beyond 256 KiB.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Waits for it to print a line that contains `words`; panics with its log when it ends first or `patience` is over. After a
    /// restart, lines of earlier lives count no more.
    #[track_caller]
    pub fn wait_for_line(&self, words: &str, patience: Duration) -> String {
        let line = self.log.wait_for_line(words, patience);
        line.unwrap_or_else(|| {
            panic!("lab: {} did not say {words:?}\n{}", self.program.name(), self.last_words())
        })
    }

    /// Waits until `address` accepts TCP connections; panics with its log when it ends first or `patience` is over.
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

    /// Does it run?
    pub fn is_running(&self) -> bool {
        // Looking through waitid without reaping keeps `&self`: the id stays ours until the child is waited for.
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let Some(pid) = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) else {
            return false;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Kills it with SIGKILL and waits until it is gone; what does not run is left alone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.reap();
    }

    /// Asks it to end with SIGTERM; panics with its log when it does not within `patience`.
    #[track_caller]
    pub fn terminate(&mut self, patience: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(patience)
    }

    /// Waits for it to end by itself; panics with its log when it does not within `patience`.
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

    /// Starts it again with the same arguments, killing it first if it still runs.
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
        drop(command); // closes our ends of the pipe
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
            let _ = rustix::process::kill_process_group(pid, signal); // it may have ended by itself
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
