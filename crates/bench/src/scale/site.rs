//! The processes: an origin with a computed tree, and a cache in front of it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::Value;
use synthetic::Shape;
use tokio::runtime::Handle as Runtime;

use super::walk::Walker;
use super::{Error, Options, System};
use crate::interrupt::Interrupt;
use crate::system::{self, Program, free_port};

/// Path of the export.
pub(super) const EXPORT: &str = "/export";
/// The file of a served directory, and its size in bytes.
pub(super) const FILE: &str = "file";
const FILE_BYTES: usize = 1 << 20;

/// A new directory for one measurement.
pub(super) fn directory(options: &Options) -> Result<PathBuf, Error> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let path = options.directory.join(format!("scale-{number}"));
    make(&path)?;
    Ok(path)
}

fn make(path: &Path) -> Result<(), Error> {
    let failed = system::Error::io(format!("cannot make {}", path.display()));
    Ok(std::fs::create_dir_all(path).map_err(failed)?)
}

/// Removes the directory of a measurement. A failure is no reason to lose the measurement: the directory
/// above is removed at the end.
pub(super) fn remove(scratch: &Path) {
    let _ = std::fs::remove_dir_all(scratch);
}

/// The cache directory of a measurement.
pub(super) fn cache_directory(scratch: &Path) -> PathBuf {
    scratch.join("cache")
}

/// The disk space of all files below a directory.
pub(super) fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

fn serving(process: &mut Command, listen: std::net::SocketAddr) {
    process.args(["--listen", &listen.to_string(), "--insecure", "--no-root-squash"]);
    process.args(["--no-udp", "--no-rpcbind"]);
}

/// The calls at the origin, by procedure or operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Calls(pub BTreeMap<String, u64>);

impl Calls {
    fn parse(status: &Value) -> Calls {
        let calls = status.get("calls").and_then(Value::as_object).into_iter().flatten();
        Calls(calls.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect())
    }

    /// The calls after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Calls) -> Calls {
        let new = self.0.iter().map(|(name, count)| {
            let then = earlier.0.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(then))
        });
        Calls(new.filter(|(_, count)| *count > 0).collect())
    }

    /// The calls about files. A compound of version 4 names its file with PUTFH or PUTROOTFH; one that only
    /// keeps the session does neither.
    pub fn of_files(&self) -> u64 {
        let counts = self.0.iter().filter_map(|(name, count)| match name.split_once(' ')? {
            ("NFSv4", "PUTFH" | "PUTROOTFH") => Some(*count),
            ("NFSv4", _) | (_, "NULL") => None,
            _ => Some(*count),
        });
        counts.sum()
    }
}

/// A running origin.
pub(super) struct Serving {
    program: Program,
    listen: std::net::SocketAddr,
    state: PathBuf,
}

impl Serving {
    pub(super) fn start(
        options: &Options,
        scratch: &Path,
        tree: Shape,
        more: &[&str],
    ) -> Result<Serving, Error> {
        let (listen, state) = (free_port()?, scratch.join("state"));
        make(&state)?;
        let mut process = Command::new(&options.leasehold);
        process.args(["serve", "--synthetic", &tree.to_string(), "--export", EXPORT, "--state"]).arg(&state);
        serving(&mut process, listen);
        process.args(more);
        let log = scratch.join("serve.log");
        let program = Program::start(&Interrupt::default(), "serve", process, listen, &log)?;
        Ok(Serving { program, listen, state })
    }

    /// Serves a directory of this machine with one file.
    pub(super) fn start_directory(options: &Options, scratch: &Path) -> Result<Serving, Error> {
        let (listen, state, served) = (free_port()?, scratch.join("state"), scratch.join("served"));
        make(&state)?;
        make(&served)?;
        let failed = system::Error::io(format!("cannot write to {}", served.display()));
        std::fs::write(served.join(FILE), vec![7; FILE_BYTES]).map_err(failed)?;
        let mut process = Command::new(&options.leasehold);
        process.arg("serve").arg(&served).args(["--export", EXPORT, "--async", "--state"]).arg(&state);
        serving(&mut process, listen);
        let log = scratch.join("serve.log");
        let program = Program::start(&Interrupt::default(), "serve", process, listen, &log)?;
        Ok(Serving { program, listen, state })
    }

    /// Its address.
    pub(super) fn address(&self) -> std::net::SocketAddr {
        self.listen
    }

    pub(super) fn url(&self, options: &Options) -> String {
        let (listen, vers, actimeo) = (self.listen, &options.vers, options.actimeo.as_secs());
        let mountport = if vers == "3" { format!("&mountport={}", listen.port()) } else { String::new() };
        format!("nfs://{listen}{EXPORT}?vers={vers}&noresvport&actimeo={actimeo}{mountport}")
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.program.resident_bytes()
    }

    pub(super) fn calls(&self) -> Calls {
        system::status(&self.state).map(|status| Calls::parse(&status)).unwrap_or_default()
    }

    /// How many leases, or how many clients, the origin knows.
    pub(super) fn held(&self, series: &str) -> u64 {
        let Some(status) = system::status(&self.state) else { return 0 };
        let number = |value: Option<&Value>| value.and_then(Value::as_u64);
        let found = if series == "clients" {
            number(status.get("clients").and_then(|clients| clients.get("known")))
        } else {
            let held = status.get("held").and_then(|held| held.get(EXPORT));
            let of_kind = |kind| number(held.and_then(|held| held.get(kind)));
            of_kind("read_leases").zip(of_kind("write_leases")).map(|(read, write)| read + write)
        };
        found.unwrap_or(0)
    }

    pub(super) fn end(self) {
        self.program.end();
    }
}

/// A running cache in front of an origin.
pub(super) struct Cache {
    leasehold: PathBuf,
    system: System,
    scratch: PathBuf,
    origin: String,
    program: Option<Program>,
    listen: std::net::SocketAddr,
}

impl Cache {
    pub(super) fn start(
        options: &Options,
        scratch: &Path,
        system: System,
        serving: &Serving,
    ) -> Result<Cache, Error> {
        let mut cache = Cache {
            leasehold: options.leasehold.clone(),
            system,
            scratch: scratch.to_owned(),
            origin: serving.url(options),
            program: None,
            listen: free_port()?,
        };
        make(&cache.mounted())?;
        cache.begin()?;
        Ok(cache)
    }

    fn mounted(&self) -> PathBuf {
        self.scratch.join("mounted")
    }

    fn begin(&mut self) -> Result<(), Error> {
        let (interrupt, log) = (Interrupt::default(), self.scratch.join("cache.log"));
        let directory = cache_directory(&self.scratch);
        let mut process = Command::new(&self.leasehold);
        process.arg(self.system.name()).arg(&self.origin);
        let program = match self.system {
            System::Mount => {
                let mounted = self.mounted();
                process.arg(&mounted).arg("--foreground").arg("-o");
                process.arg(format!("cache={},minfree=0,nofill,prefetch=0", directory.display()));
                let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
                let is_mounted =
                    || device(&mounted).is_some_and(|inside| Some(inside) != device(&self.scratch));
                Program::start_until(&interrupt, "mount", process, &log, is_mounted)?
            }
            System::Proxy => {
                process.arg("--cache").arg(&directory);
                process.args(["--min-free", "0", "--no-fill", "--prefetch", "0"]);
                serving(&mut process, self.listen);
                Program::start(&interrupt, "proxy", process, self.listen, &log)?
            }
        };
        self.program = Some(program);
        Ok(())
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.program.as_ref().map_or(0, Program::resident_bytes)
    }

    /// A reader of the tree.
    pub(super) fn walker(&self, runtime: &Runtime) -> Result<Walker, Error> {
        match self.system {
            System::Mount => Ok(Walker::Mounted(self.mounted())),
            System::Proxy => {
                let url = format!("nfs://{}{EXPORT}?vers=4.2&noresvport", self.listen);
                Walker::connect(runtime, &url)
            }
        }
    }

    /// Ends the cache in order, and starts it on what is in its directory. Returns the seconds until it is
    /// ready.
    pub(super) fn restart(&mut self) -> Result<f64, Error> {
        self.stop();
        let begun = Instant::now();
        self.begin()?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn stop(&mut self) {
        let Some(program) = self.program.take() else { return };
        program.end();
        if self.system == System::Mount {
            // This fails if the program has already unmounted.
            let mut command = Command::new("umount");
            let _ = command.arg("-l").arg(self.mounted()).stderr(Stdio::null()).status();
        }
    }

    pub(super) fn end(mut self) {
        self.stop();
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(counts: &[(&str, u64)]) -> Calls {
        Calls(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }

    #[test]
    fn calls_are_read_from_the_status() {
        let status = serde_json::json!({ "calls": { "NFSv3 READ": 3, "NFSv4 LOOKUP": 4 } });
        let now = Calls::parse(&status);
        assert_eq!(now, calls(&[("NFSv3 READ", 3), ("NFSv4 LOOKUP", 4)]));
        let earlier = calls(&[("NFSv3 READ", 3), ("NFSv4 LOOKUP", 1)]);
        assert_eq!(now.since(&earlier), calls(&[("NFSv4 LOOKUP", 3)]));
        assert_eq!(Calls::parse(&Value::Null), Calls::default());
    }

    #[test]
    fn a_compound_is_one_call() {
        let walk = [("NFSv4 SEQUENCE", 9), ("NFSv4 PUTFH", 5), ("NFSv4 READDIR", 5), ("NFSv4 GETATTR", 5)];
        assert_eq!(calls(&walk).of_files(), 5);
        let walk = [("NFSv3 READDIRPLUS", 4), ("NFSv3 ACCESS", 1), ("NFSv3 NULL", 2)];
        assert_eq!(calls(&walk).of_files(), 5);
    }
}
