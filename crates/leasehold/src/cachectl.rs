//! `leasehold cache`: what is cached, what is to stay, and whether it is sound.
//!
//! The same requests are carried out by a running Leasehold, which is asked over its admin socket, and by this command on
//! the directory itself when none runs ([`Cache::open_offline`] takes its lock). What needs the origin needs a running
//! one, and says so.

mod execute;
pub mod path;
mod show;
pub mod time;
mod warm;

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cache::Cache;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::Failure;
use crate::admin::{Asked, Request};
use crate::cli::cache::{CacheArguments, CacheCommand};
pub use execute::execute;
use show::Show;

/// Paths in one request; more go in several.
const PATHS_MAX: usize = 1000;

/// What can be asked of a cache. Paths are as [`path::show`] writes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum CacheRequest {
    /// What is known below paths.
    Ls {
        /// Which.
        paths: Vec<String>,
        /// Also what is below directories.
        #[serde(default)]
        recursive: bool,
    },
    /// All that is known of files.
    Stat {
        /// Which.
        paths: Vec<String>,
    },
    /// How much of the disk is used.
    Du {
        /// Below which; of all, if there are none.
        paths: Vec<String>,
    },
    /// Keep these; without any, what is kept.
    Pin {
        /// Which.
        paths: Vec<String>,
    },
    /// Keep these no more.
    Unpin {
        /// Which.
        paths: Vec<String>,
        /// All.
        #[serde(default)]
        all: bool,
    },
    /// Fetch.
    Warm {
        /// Which.
        paths: Vec<String>,
        /// Only what has changed since, in seconds since 1970.
        #[serde(default)]
        newer: Option<i64>,
        /// Pin them first.
        #[serde(default)]
        pin: bool,
        /// As which user and group.
        #[serde(default)]
        user: Option<(u32, u32)>,
    },
    /// Take off the disk.
    Drop {
        /// Which.
        paths: Vec<String>,
        /// All.
        #[serde(default)]
        all: bool,
    },
    /// Check.
    Verify {
        /// Which; all, if there are none.
        paths: Vec<String>,
        /// Against the origin, too.
        #[serde(default)]
        origin: bool,
        /// Only tell.
        #[serde(default)]
        keep: bool,
    },
}

/// A line of an answer, before the last.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Something that was asked for.
    Entry(Value),
    /// How far it is.
    Progress(Value),
    /// This went wrong; the rest goes on.
    Failed {
        /// With what.
        path: String,
        /// Why, and the way out.
        why: String,
    },
}

impl Reply {
    /// As it is sent.
    pub fn to_json(&self) -> Value {
        match self {
            Reply::Entry(entry) => json!({ "entry": entry }),
            Reply::Progress(progress) => json!({ "progress": progress }),
            Reply::Failed { path, why } => json!({ "failed": { "path": path, "why": why } }),
        }
    }
}

/// Asks, and shows what comes.
pub async fn run(arguments: CacheArguments) -> Result<(), Failure> {
    let given = arguments.command.directory();
    // Of a mount, the directory that is mounted on will do, as for `status`.
    let directory = crate::mount::cache_of(given).unwrap_or_else(|| given.to_owned());
    let progress = std::io::stderr().is_terminal() && !arguments.json;
    let mut show = Show::new(arguments.json, progress, &arguments.command);
    for request in requests(arguments.command)? {
        let done = match Asked::of(&directory, &Request::Cache(request.clone())).await? {
            Some(asked) => listen(asked, &mut show).await?,
            None => offline(&directory, request, &mut show).await?,
        };
        show.done(&done);
    }
    show.finish()
}

/// What a command asks for, in pieces that are not too long.
fn requests(command: CacheCommand) -> Result<Vec<CacheRequest>, Failure> {
    let texts = |paths: Vec<std::ffi::OsString>| -> Vec<String> {
        // As `ls` shows them, so that what is shown can be given.
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
                user: warm.user,
            };
            paths.chunks(PATHS_MAX).map(of).collect()
        }
    })
}

/// The paths that a file lists, or standard input, one a line, as they are: a program has made them.
fn listed(file: &Path) -> Result<Vec<String>, Failure> {
    let read = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    let bytes = read.map_err(|error| {
        Failure(format!("cannot read paths from {}: {error}; give a file, or `-`", file.display()))
    })?;
    Ok(bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(path::show).collect())
}

/// Shows what a running Leasehold answers. The last line.
async fn listen(mut asked: Asked, show: &mut Show) -> Result<Value, Failure> {
    while let Some(line) = asked.line().await? {
        if let Some(done) = line.get("done") {
            return Ok(done.clone());
        }
        if let Some(error) = line.get("error") {
            return Err(Failure(error.as_str().unwrap_or("it failed and does not say why").to_owned()));
        }
        if line.get("role").is_some() {
            return Err(Failure(
                "the Leasehold that runs is of an earlier version, which cannot be asked this: restart it"
                    .into(),
            ));
        }
        show.line(&line);
    }
    Err(Failure("the answer broke off: has the proxy or mount ended? ask again".into()))
}

/// Does it here.
async fn offline(directory: &Path, request: CacheRequest, show: &mut Show) -> Result<Value, Failure> {
    if directory.join("format").is_file() {
        crate::state::private::secure(directory)?;
    }
    let cache = Cache::open_offline(directory).await.map_err(|error| Failure(error.to_string()))?;
    let (sender, mut lines) = mpsc::channel(64);
    let mut work = std::pin::pin!(execute(&cache, request, sender));
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
