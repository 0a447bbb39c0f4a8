//! The places to compare, and their programs: one `leasehold serve`, relays, mounts.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Handle as Runtime;

use super::{Error, Options, Task, task};
use crate::relay::{self, Relay};
use crate::system;

/// How long a start or an orderly shutdown may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Path of the export.
const EXPORT: &str = "/export";
/// Longest reply of the admin socket.
const STATUS_MAX_BYTES: u64 = 1 << 20;

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A directory of this machine.
    Native,
    /// A mount of a server on loopback.
    Mount,
    /// A mount of the same server behind a round trip.
    Far,
    /// As `Far`, but every write reaches the server before it returns.
    Sync,
}

impl Kind {
    /// Its name in reports, and the name of its directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Native => "native",
            Kind::Mount => "mount",
            Kind::Far => "far",
            Kind::Sync => "sync",
        }
    }

    /// True if calls pay a round trip.
    pub(super) fn is_far(self) -> bool {
        matches!(self, Kind::Far | Kind::Sync)
    }
}

/// Counters of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Calls to the origin.
    pub origin: u64,
    /// Requests of the kernel.
    pub kernel: u64,
    /// Opens whose reads the kernel does itself (FUSE passthrough).
    pub passed: u64,
}

impl Counters {
    pub(super) fn since(self, earlier: Counters) -> Counters {
        Counters {
            origin: self.origin - earlier.origin,
            kernel: self.kernel - earlier.kernel,
            passed: self.passed - earlier.passed,
        }
    }

    fn of(status: &Value) -> Option<Counters> {
        let kernel = status.get("kernel")?;
        let calls = status.get("upstream")?.as_object()?.values();
        Some(Counters {
            origin: calls.filter_map(|of| of.get("calls")?.as_u64()).sum(),
            kernel: kernel.get("requests")?.as_u64()?,
            passed: kernel.get("opens_passthrough")?.as_u64()?,
        })
    }
}

/// A child process. Dropping it ends it in order, or kills it after `PATIENCE`.
#[derive(Debug)]
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let started = Instant::now();
        while started.elapsed() < PATIENCE && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount. Dropping it unmounts.
#[derive(Debug)]
struct Mount {
    kind: Kind,
    _program: Program,
    cache: PathBuf,
}

/// All places. Fields are dropped in order: mounts, then relays, then the server, then the files.
#[derive(Debug)]
pub(super) struct Stand {
    mounts: Vec<Mount>,
    _relay: Option<Relay>,
    _serve: Program,
    scratch: Scratch,
}

/// A directory that is removed when the value is dropped.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Stand {
    /// Makes the files, starts the server, and mounts.
    pub(super) fn build(runtime: &Runtime, options: &Options) -> Result<Stand, Error> {
        let path = options.directory.join(format!("leasehold-bench-mount-{}", std::process::id()));
        let failed = |what: &Path| system::Error::io(format!("cannot make {}", what.display()));
        std::fs::create_dir_all(&path).map_err(failed(&path))?;
        let scratch = Scratch(path);
        for place in [Kind::Native.name(), "export"] {
            let directory = scratch.0.join(place);
            task::prepare(&directory, &options.size).map_err(failed(&directory))?;
        }
        let archives = scratch.0.join("archives");
        task::archives(&archives, &options.size).map_err(failed(&archives))?;
        let listen = system::free_port()?;
        let serve = serve(options, &scratch.0, listen)?;
        let mut mounts = vec![mount(options, &scratch.0, Kind::Mount, listen)?];
        let mut relay = None;
        if let Some(rtt) = options.far {
            let _entered = runtime.enter();
            let far = Relay::start(listen, relay::Options { udp: false, ..relay::Options::rtt(rtt) });
            let far = far.map_err(system::Error::io("cannot start the relay"))?;
            for kind in [Kind::Far, Kind::Sync] {
                mounts.push(mount(options, &scratch.0, kind, far.local_addr())?);
            }
            relay = Some(far);
        }
        Ok(Stand { mounts, _relay: relay, _serve: serve, scratch })
    }

    /// The kinds of places that exist.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        std::iter::once(Kind::Native).chain(self.mounts.iter().map(|mount| mount.kind))
    }

    /// The directory of a place.
    pub(super) fn directory(&self, kind: Kind) -> PathBuf {
        self.scratch.0.join(kind.name())
    }

    /// The directory of the archives for all places.
    pub(super) fn archives(&self) -> PathBuf {
        self.scratch.0.join("archives")
    }

    /// The counters of a place; zero if the place has none.
    pub(super) fn counters(&self, kind: Kind) -> Counters {
        let mount = self.mounts.iter().find(|mount| mount.kind == kind);
        mount.and_then(|mount| Counters::of(&status(&mount.cache)?)).unwrap_or_default()
    }

    /// A remark on the measurement of a task, if there is one.
    pub(super) fn note(&self, task: Task) -> Option<String> {
        let reads = matches!(task, Task::Sequential | Task::Random);
        let passed = || self.counters(Kind::Mount).passed > 0;
        (reads && !passed()).then(|| format!("{}: without passthrough", task.about()))
    }
}

fn mount(options: &Options, scratch: &Path, kind: Kind, server: SocketAddr) -> Result<Mount, Error> {
    let directory = scratch.join(kind.name());
    let cache = scratch.join(format!("cache-{}", kind.name()));
    std::fs::create_dir_all(&directory)
        .map_err(system::Error::io(format!("cannot make {}", directory.display())))?;
    let mut words = vec![format!("cache={},minfree=0,noresvport,vers={}", cache.display(), options.vers)];
    words.extend(options.mount.iter().cloned());
    words.extend((kind == Kind::Sync).then(|| "sync".to_owned()));
    let mut command = Command::new(&options.leasehold);
    command.arg("mount").arg("--foreground").arg("-o").arg(words.join(","));
    command.arg(format!("nfs://{server}{EXPORT}")).arg(&directory);
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    let outside = device(scratch);
    let mounted = || device(&directory).is_some_and(|inside| Some(inside) != outside);
    let program = start("mount", command, mounted)?;
    Ok(Mount { kind, _program: program, cache })
}

fn serve(options: &Options, scratch: &Path, listen: SocketAddr) -> Result<Program, Error> {
    let mut command = Command::new(&options.leasehold);
    command.arg("serve").arg(scratch.join("export")).args(["--export", EXPORT, "--state"]);
    command.arg(scratch.join("serve")).args(["--listen", &listen.to_string()]);
    command.args(["--insecure", "--no-udp", "--no-rpcbind", "--no-root-squash"]).args(&options.serve);
    start("serve", command, || std::net::TcpStream::connect_timeout(&listen, PATIENCE).is_ok())
}

fn start(name: &str, mut command: Command, ready: impl Fn() -> bool) -> Result<Program, Error> {
    let failed = |why: String| system::Error::Start { program: name.to_owned(), why };
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut program = Program(child.map_err(|error| failed(error.to_string()))?);
    let started = Instant::now();
    while !ready() {
        if !matches!(program.0.try_wait(), Ok(None)) || started.elapsed() > PATIENCE {
            return Err(failed("it ended, or was never ready".to_owned()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(program)
}

fn status(cache: &Path) -> Option<Value> {
    let stream = UnixStream::connect(cache.join("admin.sock")).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut answer = String::new();
    stream.take(STATUS_MAX_BYTES).read_to_string(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_the_status() {
        let status = serde_json::json!({
            "kernel": { "requests": 9, "opens_passthrough": 2 },
            "upstream": { "OPEN": { "calls": 3 }, "GETATTR": { "calls": 4 } },
        });
        let counters = Counters::of(&status).unwrap();
        assert_eq!(counters, Counters { origin: 7, kernel: 9, passed: 2 });
        assert_eq!(Counters::of(&serde_json::json!({})), None);
    }
}
