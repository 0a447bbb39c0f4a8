//! `leasehold serve`, `proxy` and `mount` as processes.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::program::Program;
use super::{Address, Error, TestBed, free_port};

/// Path of the export of `serve`.
pub(super) const EXPORT: &str = "/export";
/// Longest reply of the admin socket.
const STATUS_MAX_BYTES: u64 = 1 << 20;

/// Hits and misses of a cache, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Hits {
    /// Hits and misses for attributes.
    pub attributes: (u64, u64),
    /// For names.
    pub names: (u64, u64),
    /// For data.
    pub data: (u64, u64),
}

impl Hits {
    /// The difference to `earlier`. A restarted cache counts from zero again.
    #[must_use]
    pub fn since(&self, earlier: Hits) -> Hits {
        let subtract = |now: (u64, u64), then: (u64, u64)| {
            if now.0 < then.0 || now.1 < then.1 { now } else { (now.0 - then.0, now.1 - then.1) }
        };
        Hits {
            attributes: subtract(self.attributes, earlier.attributes),
            names: subtract(self.names, earlier.names),
            data: subtract(self.data, earlier.data),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Hits) -> Hits {
        let add = |one: (u64, u64), more: (u64, u64)| (one.0 + more.0, one.1 + more.1);
        Hits {
            attributes: add(self.attributes, other.attributes),
            names: add(self.names, other.names),
            data: add(self.data, other.data),
        }
    }

    /// Parses the output of `status`.
    fn parse(status: &Value) -> Option<Hits> {
        let of = |kind: &str| {
            let kind = status.get("cache")?.get(kind)?;
            Some((kind.get("hits")?.as_u64()?, kind.get("misses")?.as_u64()?))
        };
        Some(Hits { attributes: of("attributes")?, names: of("names")?, data: of("data")? })
    }
}

fn command(test_bed: &TestBed, command: &str) -> Command {
    let mut process = Command::new(&test_bed.leasehold);
    process.arg(command);
    process
}

fn serving(process: &mut Command, listen: std::net::SocketAddr) {
    process.args(["--listen", &listen.to_string(), "--insecure", "--no-udp", "--no-rpcbind"]);
    if rustix::process::geteuid().is_root() {
        process.arg("--no-root-squash");
    } else {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let gid = rustix::process::getegid().as_raw().to_string();
        process.args(["--all-squash", "--anonuid", &uid, "--anongid", &gid]);
    }
}

/// A server that exports a directory.
pub(super) fn serve(test_bed: &TestBed, directory: &Path) -> Result<Program, Error> {
    let (listen, state) = (free_port()?, test_bed.subdirectory("serve")?);
    let mut process = command(test_bed, "serve");
    process.arg(directory).args(["--export", EXPORT, "--state"]).arg(&state);
    serving(&mut process, listen);
    Program::start(&test_bed.interrupt, "serve", process, listen, &test_bed.directory.join("serve.log"))
}

/// The cache directory of a client, in the directory of its system.
pub(super) fn cache_directory(directory: &Path, client: usize) -> PathBuf {
    directory.join(format!("cache{client}"))
}

/// A proxy of an origin.
pub(super) fn proxy(
    test_bed: &TestBed,
    origin: &Address,
    directory: &Path,
    guesses: bool,
) -> Result<Program, Error> {
    let listen = free_port()?;
    let mut process = command(test_bed, "proxy");
    process
        .arg(origin.url(&test_bed.vers, test_bed.actimeo))
        .arg("--cache")
        .arg(cache_directory(directory, 0));
    // Background fetches and guesses depend on the clock and are not calls of the workload.
    process.args(["--min-free", "0", "--no-fill"]);
    if !guesses {
        process.args(["--prefetch", "0"]);
    }
    serving(&mut process, listen);
    Program::start(&test_bed.interrupt, "proxy", process, listen, &directory.join("proxy.log"))
}

/// True if this build has `mount`.
pub(super) fn has_mount(program: &Path) -> bool {
    let mut process = Command::new(program);
    process.args(["mount", "--help"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    process.status().is_ok_and(|status| status.success())
}

/// A FUSE mount of an origin for one client. Returns the process and the mount point.
pub(super) fn mount(
    test_bed: &TestBed,
    origin: &Address,
    (directory, client): (&Path, usize),
    guesses: bool,
) -> Result<(Program, PathBuf), Error> {
    let mounted = directory.join(format!("mounted{client}"));
    std::fs::create_dir_all(&mounted).map_err(Error::io(format!("cannot make {}", mounted.display())))?;
    let mut process = command(test_bed, "mount");
    process.arg(origin.url(&test_bed.vers, test_bed.actimeo)).arg(&mounted).arg("--foreground");
    let cache = cache_directory(directory, client);
    let prefetch = if guesses { "" } else { ",prefetch=0" };
    process.arg("-o").arg(format!("cache={},minfree=0,nofill{prefetch}", cache.display()));
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    let is_mounted = || device(&mounted).is_some_and(|inside| Some(inside) != device(directory));
    let name = if client == 0 { "mount".to_owned() } else { format!("mount {}", client + 1) };
    let log = directory.join(format!("mount{client}.log"));
    let program = Program::start_until(&test_bed.interrupt, &name, process, &log, is_mounted)?;
    Ok((program, mounted))
}

/// Hits and misses of the cache in this directory.
pub(super) fn hits(cache: &Path) -> Option<Hits> {
    Hits::parse(&status(cache)?)
}

/// The status of the program whose cache or state is in this directory.
pub(crate) fn status(directory: &Path) -> Option<Value> {
    let stream = UnixStream::connect(directory.join("admin.sock")).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut answer = String::new();
    stream.take(STATUS_MAX_BYTES).read_to_string(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_read_from_the_status() {
        let of = |hits, misses| serde_json::json!({ "hits": hits, "misses": misses });
        let status =
            serde_json::json!({ "cache": { "attributes": of(5, 1), "names": of(6, 2), "data": of(7, 3) } });
        let hits = Hits::parse(&status).unwrap();
        assert_eq!(hits, Hits { attributes: (5, 1), names: (6, 2), data: (7, 3) });
        let later = Hits { attributes: (8, 2), names: (6, 3), data: (1, 0) };
        assert_eq!(later.since(hits), Hits { attributes: (3, 1), names: (0, 1), data: (1, 0) });
        assert_eq!(hits.and(later).names, (12, 5));
        assert_eq!(Hits::parse(&serde_json::json!({})), None);
    }
}
