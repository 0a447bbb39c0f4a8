//! `record`: runs a command, and writes what it uses of the tree as a profile.
//!
//! The running proxy or mount records ([`cache::Cache::record`]). The recording lasts as long as the
//! connection over which it was asked for, so it ends with this process. The uses of all clients and programs
//! are recorded, not only those of the command: the cache does not know which process a request is from.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::timeout;

use super::CacheRequest;
use super::execute::{Sink, Stop};
use super::profile::{self, Line};
use crate::Failure;
use crate::admin::{Asked, BeforeRecording, Request};
use crate::cli::cache::Record;
use crate::units::counted;

/// The permissions of a profile.
const PROFILE_MODE: u32 = 0o600;
/// A signal to the command and to this process reaches both within this time.
const SAME_SIGNAL: Duration = Duration::from_millis(20);

/// Records until the client closes the connection. `first` is done when the recording runs and the client
/// does not know it yet: so no use between the two is lost, and a refused recording does no work.
pub async fn begin(cache: &Arc<Cache>, first: Option<BeforeRecording>, sink: &Sink) -> Result<Value, Stop> {
    let recording = cache.record();
    let recording = recording.ok_or("another recording is running on this cache; wait for its end")?;
    if let Some(first) = first {
        first().await;
    }
    sink.entry(json!({ "recording": recording.id() })).await?;
    std::future::pending().await
}

/// Ends this recording, and sends its lines.
pub async fn end(cache: &Arc<Cache>, id: u64, sink: &Sink) -> Result<Value, Stop> {
    let of = cache.clone();
    let recorded = tokio::task::spawn_blocking(move || of.recorded(id)).await.ok().flatten();
    let recorded = recorded
        .ok_or("the recording was lost because the proxy or mount was started again; record again")?;
    let (mut uses, mut unnamed) = (0u64, recorded.unnamed);
    for used in recorded.uses {
        // A profile with a path that is too long would be refused as a whole.
        if profile::is_path(&used.path) {
            sink.entry(json!({ "line": Line(used) })).await?;
            uses += 1;
        } else {
            unnamed += 1;
        }
    }
    Ok(json!({
        "origin": cache.origin(),
        "uses": uses,
        "surplus": recorded.surplus,
        "unnamed": unnamed,
    }))
}

/// Runs the command, and writes the profile. Returns the exit code of the command, or 1 if it succeeded and
/// the profile could not be written.
///
/// # Errors
/// If nothing runs on the cache, the file cannot be made, or the command cannot be started.
pub async fn run(directory: &Path, record: &Record, as_json: bool) -> Result<ExitCode, Failure> {
    let mut recording = ask(directory, CacheRequest::Record).await?;
    let begun = next(&mut recording).await?;
    let id = begun["entry"]["recording"]
        .as_u64()
        .ok_or_else(|| Failure("the recording did not begin; use the same version of leasehold".into()))?;
    let mut signals = Signals::listen()?;
    // An error after the command has run would waste the run.
    let output = Output::make(&record.output)?;
    let status = run_command(&record.command, &mut signals).await?;
    let fetched = tokio::select! {
        fetched = fetch(directory, id) => fetched,
        _ = signals.next() => Err(Failure("interrupted; the profile was not written".into())),
    };
    drop(recording);
    match fetched.and_then(|fetched| output.write(&fetched).map(|()| fetched.done)) {
        Ok(done) => {
            tell(&done, &record.output, as_json);
            Ok(code_of(status))
        }
        Err(failure) if status.success() => Err(failure),
        Err(failure) => {
            crate::output::tell(format_args!("{failure}"));
            Ok(code_of(status))
        }
    }
}

/// The file that becomes the profile. It stands beside the profile of an earlier run, and takes its place
/// when all of it is written.
struct Output {
    file: File,
    /// Where the file is until then.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl Output {
    fn make(path: &Path) -> Result<Output, Failure> {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        // A rename would replace a device or pipe.
        let in_place = std::fs::metadata(&path).is_ok_and(|found| !found.is_file());
        let temporary = path.file_name().filter(|_| !in_place).map(|name| {
            let mut beside = OsString::from(".");
            beside.push(name);
            beside.push(format!(".{}", std::process::id()));
            path.with_file_name(beside)
        });
        let opened = match &temporary {
            // The names in a tree are for its users alone.
            Some(temporary) => {
                // A process that was killed may have left it.
                let _ = std::fs::remove_file(temporary);
                File::options().write(true).create_new(true).mode(PROFILE_MODE).open(temporary)
            }
            None => File::options().write(true).open(&path),
        };
        match opened {
            Ok(file) => Ok(Output { file, temporary, path }),
            Err(error) => Err(cannot_write(&path, &error)),
        }
    }

    fn write(mut self, fetched: &Fetched) -> Result<(), Failure> {
        let mut text = profile::head(fetched.done["origin"].as_str().unwrap_or_default());
        for line in &fetched.lines {
            text.push_str(line);
            text.push('\n');
        }
        self.file.write_all(text.as_bytes()).map_err(|error| cannot_write(&self.path, &error))?;
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        std::fs::rename(&temporary, &self.path).map_err(|error| {
            let (path, left) = (self.path.display(), temporary.display());
            Failure(format!("cannot replace {path}: {error}; the profile is in {left}"))
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure(format!("cannot write the profile {}: {error}; name another file with --output", path.display()))
}

async fn ask(directory: &Path, request: CacheRequest) -> Result<Asked, Failure> {
    let asked = Asked::of(directory, &Request::Cache(request)).await?;
    asked.ok_or_else(|| {
        Failure(format!(
            "nothing runs on {}: start the proxy or mount, and name its cache directory or mount point",
            directory.display()
        ))
    })
}

/// The next line of an answer.
async fn next(asked: &mut Asked) -> Result<Value, Failure> {
    let line = asked.line().await?;
    let line = line.ok_or_else(|| Failure("the answer ended early: check that the mount runs".into()))?;
    match line["error"].as_str() {
        Some(error) => Err(Failure(error.to_owned())),
        None => Ok(line),
    }
}

/// The lines of a profile, and the end of the answer.
struct Fetched {
    lines: Vec<String>,
    done: Value,
}

async fn fetch(directory: &Path, id: u64) -> Result<Fetched, Failure> {
    let mut answer = ask(directory, CacheRequest::Recorded { id }).await?;
    let mut lines = Vec::new();
    loop {
        let line = next(&mut answer).await?;
        if let Some(done) = line.get("done") {
            return Ok(Fetched { lines, done: done.clone() });
        }
        if let Some(text) = line["entry"]["line"].as_str() {
            lines.push(text.to_owned());
        }
    }
}

/// The signals that would end this process.
struct Signals {
    interrupt: Listener,
    quit: Listener,
    terminate: Listener,
    /// `None` if it is ignored, as under nohup(1).
    hang_up: Option<Listener>,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let of = |kind| signal(kind).map_err(|error| Failure(format!("cannot listen for signals: {error}")));
        Ok(Signals {
            interrupt: of(SignalKind::interrupt())?,
            quit: of(SignalKind::quit())?,
            terminate: of(SignalKind::terminate())?,
            hang_up: if ignores(Signal::HUP) { None } else { Some(of(SignalKind::hangup())?) },
        })
    }

    /// Waits for a signal. Returns it if it is to be passed on: an interrupt of the terminal reaches the
    /// command too.
    async fn next(&mut self) -> Option<Signal> {
        tokio::select! {
            _ = self.interrupt.recv() => None,
            _ = self.quit.recv() => None,
            _ = self.terminate.recv() => Some(Signal::TERM),
            () = received(self.hang_up.as_mut()) => Some(Signal::HUP),
        }
    }
}

async fn received(listener: Option<&mut Listener>) {
    match listener {
        Some(listener) => drop(listener.recv().await),
        None => std::future::pending().await,
    }
}

/// Does this process ignore a signal? See proc_pid_status(5), `SigIgn`.
fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// Runs the command to its end. It decides about interrupts of the terminal. SIGTERM and SIGHUP are passed on
/// to it.
async fn run_command(command: &[OsString], signals: &mut Signals) -> Result<ExitStatus, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure("there is no command to run; write it behind `--`".into()));
    };
    let program_name = Path::new(program).display();
    let mut child = Command::new(program).args(arguments).spawn().map_err(|error| {
        Failure(format!("cannot run {program_name}: {error}; name a program that this user may run"))
    })?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            passed_on = signals.next() => {
                let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
                if let Some((pid, signal)) = pid.zip(passed_on) {
                    // It may have ended just now.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    };
    // A signal that has ended the command does not end the recording too.
    while timeout(SAME_SIGNAL, signals.next()).await.is_ok() {}
    status.map_err(|error| Failure(format!("cannot wait for {program_name}: {error}")))
}

/// The exit code that a shell would report.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn tell(done: &Value, path: &Path, as_json: bool) {
    let number = |field: &str| done[field].as_u64().unwrap_or_default();
    if as_json {
        crate::output::line(format_args!("{}", json!({ "done": done })));
    } else {
        let uses = counted(number("uses"), "use", "uses");
        crate::output::tell(format_args!("{uses} recorded in {}", path.display()));
    }
    if number("surplus") > 0 {
        let surplus = counted(number("surplus"), "further use", "further uses");
        crate::output::tell(format_args!("a recording is full with 131072 uses: {surplus} left out"));
    }
    if number("unnamed") > 0 {
        let unnamed = counted(number("unnamed"), "object", "objects");
        crate::output::tell(format_args!("{unnamed} left out, whose path is not known or too long"));
    }
}
