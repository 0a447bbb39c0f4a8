//! `leasehold cache`: shows what a cache holds, keeps files in it, fetches and drops files, and checks their
//! data.
//!
//! If a Leasehold runs on the directory, the command sends the request over its admin socket. Otherwise the
//! command carries the request out itself ([`Cache::open_offline`] takes the lock of the directory). A
//! request that needs the origin fails unless a Leasehold runs, and the message says so.

mod execute;
pub mod path;
mod profile;
mod record;
mod replay;
mod show;
pub mod time;
mod warm;

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use cache::Cache;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vfs::Caller;

use crate::Failure;
use crate::admin::{Asked, Request};
use crate::cli::cache::{CacheArguments, CacheCommand, Warm};
pub use execute::execute;
use profile::Line;
use show::Show;

/// Paths in one request; a longer list becomes several requests.
const PATHS_MAX: usize = 1000;
/// Bytes of the lines of a profile in one request.
const LINES_BYTES_MAX: usize = 2 << 20;
/// The most supplementary groups of a user. A request holds so many; AUTH_SYS takes 16 of them to the origin.
pub const GROUPS_MAX: usize = 1024;

/// A request to a cache. Paths are written as [`path::show`] writes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum CacheRequest {
    /// List the known entries of paths.
    Ls {
        /// The paths.
        paths: Vec<String>,
        /// Descend into directories.
        #[serde(default)]
        recursive: bool,
    },
    /// Show everything known about files.
    Stat {
        /// The paths.
        paths: Vec<String>,
    },
    /// Show disk usage.
    Du {
        /// The paths; the whole cache, if there are none.
        paths: Vec<String>,
    },
    /// Pin paths; if there are none, list the pins.
    Pin {
        /// The paths.
        paths: Vec<String>,
    },
    /// Remove pins.
    Unpin {
        /// The paths.
        paths: Vec<String>,
        /// Remove every pin.
        #[serde(default)]
        all: bool,
    },
    /// Fetch files.
    Warm {
        /// The paths.
        paths: Vec<String>,
        /// Only files that have changed since then, in seconds since 1970.
        #[serde(default)]
        newer: Option<i64>,
        /// Pin the paths first.
        #[serde(default)]
        pin: bool,
        /// User and group id to read as.
        #[serde(default)]
        user: Option<(u32, u32)>,
        /// Its supplementary groups.
        #[serde(default)]
        groups: Vec<u32>,
    },
    /// Record what readers use, until the client closes the connection.
    Record,
    /// End a recording, and return it.
    Recorded {
        /// Its number, which the answer to its begin told.
        id: u64,
    },
    /// Bring what a profile names.
    Replay {
        /// Lines of a profile.
        lines: Vec<Line>,
        /// The user to read as.
        user: User,
        /// Bytes that earlier parts of the profile name.
        #[serde(default)]
        planned: u64,
    },
    /// Delete cached data from the disk.
    Drop {
        /// The paths.
        paths: Vec<String>,
        /// Delete all of it.
        #[serde(default)]
        all: bool,
    },
    /// Check cached data against its checksums.
    Verify {
        /// The paths; everything, if there are none.
        paths: Vec<String>,
        /// Compare with the origin, too.
        #[serde(default)]
        origin: bool,
        /// Report damaged data, and do not drop it.
        #[serde(default)]
        keep: bool,
    },
}

/// A user of the origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    #[serde(default)]
    pub groups: Vec<u32>,
}

impl User {
    /// The user of this process, as a mount sees it.
    fn of_this_process() -> User {
        let gid = rustix::process::getegid().as_raw();
        let groups = rustix::process::getgroups().unwrap_or_default();
        let groups = groups.into_iter().map(rustix::process::Gid::as_raw).filter(|group| *group != gid);
        User { uid: rustix::process::geteuid().as_raw(), gid, groups: groups.take(GROUPS_MAX).collect() }
    }

    /// As the caller of an operation.
    fn caller(&self) -> Caller {
        Caller::unix(self.uid, self.gid, &self.groups)
    }
}

/// A line of an answer, except the last.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A result.
    Entry(Value),
    /// How far the request is.
    Progress(Value),
    /// A path for which the request failed; the request goes on with the other paths.
    Failed {
        /// The path.
        path: String,
        /// The cause, and the way out.
        why: String,
    },
}

impl Reply {
    /// The line, as the admin socket sends it.
    pub fn to_json(&self) -> Value {
        match self {
            Reply::Entry(entry) => json!({ "entry": entry }),
            Reply::Progress(progress) => json!({ "progress": progress }),
            Reply::Failed { path, why } => json!({ "failed": { "path": path, "why": why } }),
        }
    }
}

/// Sends the requests of a command, and prints the answers. Returns the exit code.
pub async fn run(arguments: CacheArguments) -> Result<ExitCode, Failure> {
    let given = arguments.command.directory();
    // For a mount the mount point may be given, as for `status`.
    let directory = crate::mount::cache_of(given).unwrap_or_else(|| given.to_owned());
    if let CacheCommand::Record(record) = &arguments.command {
        return record::run(&directory, record, arguments.json).await;
    }
    let progress = std::io::stderr().is_terminal() && !arguments.json;
    let mut show = Show::new(arguments.json, progress, &arguments.command);
    let mut planned_before = 0;
    for mut request in requests(arguments.command)? {
        if let CacheRequest::Replay { planned, .. } = &mut request {
            *planned = planned_before;
        }
        let done = match Asked::of(&directory, &Request::Cache(request.clone())).await? {
            Some(asked) => listen(asked, |line| show.line(line)).await?,
            None => offline(&directory, request, &mut show).await?,
        };
        planned_before += done["planned"].as_u64().unwrap_or_default();
        show.done(&done);
    }
    show.finish().map(|()| ExitCode::SUCCESS)
}

/// The requests of a command: several, if there are more than [`PATHS_MAX`] paths.
fn requests(command: CacheCommand) -> Result<Vec<CacheRequest>, Failure> {
    let texts = |paths: Vec<std::ffi::OsString>| -> Vec<String> {
        // Escaped as `ls` prints them, so that a printed path can be given back.
        paths.iter().map(|given| path::show(&path::read(given.as_bytes()))).collect()
    };
    Ok(match command {
        CacheCommand::Ls(ls) => {
            let paths = if ls.paths.is_empty() { vec!["/".into()] } else { texts(ls.paths) };
            vec![CacheRequest::Ls { paths, recursive: ls.recursive }]
        }
        CacheCommand::Stat(paths) => vec![CacheRequest::Stat { paths: texts(paths.paths) }],
        CacheCommand::Du(paths) => vec![CacheRequest::Du { paths: texts(paths.paths) }],
        CacheCommand::Pin(paths) => vec![CacheRequest::Pin { paths: texts(paths.paths) }],
        CacheCommand::Unpin(unpin) => {
            vec![CacheRequest::Unpin { paths: texts(unpin.paths), all: unpin.all }]
        }
        CacheCommand::Drop(drop) => vec![CacheRequest::Drop { paths: texts(drop.paths), all: drop.all }],
        CacheCommand::Verify(verify) => {
            let (origin, keep) = (verify.origin, verify.keep);
            vec![CacheRequest::Verify { paths: texts(verify.paths), origin, keep }]
        }
        CacheCommand::Record(_) => Vec::new(),
        CacheCommand::Warm(Warm { profile: Some(file), user, .. }) => {
            let user = user.unwrap_or_else(User::of_this_process);
            let of = |lines: Vec<Line>| CacheRequest::Replay { lines, user: user.clone(), planned: 0 };
            in_requests(profile::read(&file)?).into_iter().map(of).collect()
        }
        CacheCommand::Warm(warm) => {
            let mut paths = texts(warm.paths);
            if let Some(file) = &warm.from {
                paths.extend(listed(file)?);
            } else if paths.is_empty() {
                paths.push("/".into());
            }
            let newer = warm.newer.map(|moment| moment.0);
            let of = |paths: &[String]| CacheRequest::Warm {
                paths: paths.to_vec(),
                newer,
                pin: warm.pin,
                user: warm.user.as_ref().map(|user| (user.uid, user.gid)),
                groups: warm.user.as_ref().map(|user| user.groups.clone()).unwrap_or_default(),
            };
            paths.chunks(PATHS_MAX).map(of).collect()
        }
    })
}

/// The lines of a profile, in as many parts as there are requests.
fn in_requests(lines: Vec<Line>) -> Vec<Vec<Line>> {
    let (mut requests, mut bytes) = (vec![Vec::new()], 0);
    for line in lines {
        bytes += serde_json::to_string(&line).map_or(0, |text| text.len() + 1);
        if bytes > LINES_BYTES_MAX {
            requests.push(Vec::new());
            bytes = 0;
        }
        if let Some(last) = requests.last_mut() {
            last.push(line);
        }
    }
    requests
}

/// The paths that a file or standard input lists, one per line. A program has written them, so nothing is
/// unescaped.
fn listed(file: &Path) -> Result<Vec<String>, Failure> {
    let read = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    let bytes = read.map_err(|error| {
        Failure(format!("cannot read paths from {}: {error}; name a file, or `-`", file.display()))
    })?;
    Ok(bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(path::show).collect())
}

/// Hands on the answer of a running Leasehold line by line, and returns its last line.
pub async fn listen(mut asked: Asked, mut each: impl FnMut(&Value)) -> Result<Value, Failure> {
    while let Some(line) = asked.line().await? {
        if let Some(done) = line.get("done") {
            return Ok(done.clone());
        }
        if let Some(error) = line.get("error") {
            return Err(Failure(
                error
                    .as_str()
                    .unwrap_or("the request failed without a cause; look at the log of the proxy or mount")
                    .to_owned(),
            ));
        }
        if line.get("role").is_some() {
            return Err(Failure(
                "the running Leasehold is an earlier version that does not know this request: restart it"
                    .into(),
            ));
        }
        each(&line);
    }
    Err(Failure("the answer ended early: check that the proxy or mount runs, and ask again".into()))
}

/// Carries a request out in this process, on a cache that no Leasehold runs on.
async fn offline(directory: &Path, request: CacheRequest, show: &mut Show) -> Result<Value, Failure> {
    if directory.join("format").is_file() {
        crate::state::private::secure(directory)?;
    }
    let cache = Cache::open_offline(directory).await.map_err(|error| Failure(error.to_string()))?;
    let (sender, mut lines) = mpsc::channel(64);
    let mut work = std::pin::pin!(execute(&cache, request, None, sender));
    let mut result = None;
    loop {
        tokio::select! {
            ended = &mut work, if result.is_none() => result = Some(ended),
            line = lines.recv() => match (line, result.take()) {
                (Some(line), ended) => {
                    result = ended;
                    show.line(&line.to_json());
                }
                (None, Some(ended)) => {
                    cache.close_offline().await;
                    return ended.map_err(Failure);
                }
                (None, None) => {}
            },
        }
    }
}
