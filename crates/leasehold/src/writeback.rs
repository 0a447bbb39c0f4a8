//! `leasehold writeback`: lists, sends, exports and discards delayed writes.
//!
//! If a mount runs on the directory, the command asks it over its admin socket. Otherwise the command opens
//! the cache itself and reads the journal. The lock of the cache directory then keeps a mount from starting
//! meanwhile.

mod show;
mod wait;

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use cache::{Cache, DelayedFile, Exported, Kept, OpenError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::Failure;
use crate::admin::{Asked, Request};
use crate::cachectl::{Reply, listen, path};
use crate::cli::writeback::{Discard, WritebackArguments, WritebackCommand};
use show::Show;

/// A request. Paths are written as [`path::show`] writes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum WritebackRequest {
    /// List delayed writes and kept conflicts.
    Ls,
    /// How much is delayed.
    Left,
    /// Begin to send all that is delayed.
    Push,
    /// Discard.
    Discard {
        /// The choice.
        what: Choice,
        /// Without it, the answer is an error that says what would be discarded.
        yes: bool,
    },
}

/// The delayed writes and conflicts to discard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// A kept conflict, or a file with delayed writes.
    Path(String),
    /// All kept conflicts.
    Conflicts,
    /// Those, and all delayed writes.
    All,
}

const OF_A_RUNNING_MOUNT: &str = "a mount runs on it, and of its writes only kept conflicts can be discarded: name one, or give --conflicts";

/// Answers a request. Sends the entries to `sink`.
///
/// # Errors
/// One line for the user.
pub async fn execute(
    cache: &Arc<Cache>,
    request: WritebackRequest,
    sink: mpsc::Sender<Reply>,
) -> Result<Value, String> {
    let cache = cache.clone();
    // All of it may wait for the disk.
    let answer = tokio::task::spawn_blocking(move || match request {
        WritebackRequest::Ls => list(&cache),
        WritebackRequest::Left => left(&cache).map(|left| (Vec::new(), left)),
        WritebackRequest::Push => {
            let before = left(&cache)?;
            cache.push_delayed();
            Ok((Vec::new(), before))
        }
        WritebackRequest::Discard { what, yes } => discard(&cache, &what, yes),
    });
    let answer = answer.await.map_err(|_| "the request has failed; look at the log, and ask again")?;
    let (entries, done) = answer?;
    for entry in entries {
        if sink.send(Reply::Entry(entry)).await.is_err() {
            break;
        }
    }
    Ok(done)
}

/// The entries and the last line of an answer.
type Answer = Result<(Vec<Value>, Value), String>;

fn list(cache: &Cache) -> Answer {
    let (files, outdated) = cache.delayed_writes().map_err(|error| error.to_string())?;
    let conflicts = cache.conflicts().map_err(|error| error.to_string())?;
    let entries = files.iter().map(delayed_entry).chain(conflicts.iter().map(conflict_entry));
    let mut done = sums(&files, &conflicts);
    done["oldest_s"] = json!(files.first().and_then(|file| file.age).map(|age| age.as_secs()));
    done["running"] = json!(!cache.is_offline());
    done["outdated"] = json!(outdated);
    Ok((entries.collect(), done))
}

fn left(cache: &Cache) -> Result<Value, String> {
    if cache.is_offline() {
        let (files, _) = cache.delayed_writes().map_err(|error| error.to_string())?;
        return Ok(sums(&files, &[]));
    }
    let stats = cache.stats();
    Ok(json!({ "files": stats.dirty_files, "bytes": stats.dirty_bytes }))
}

fn sums(files: &[DelayedFile], conflicts: &[Kept]) -> Value {
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let kept_bytes: u64 = conflicts.iter().map(|kept| kept.bytes).sum();
    json!({
        "files": files.len(),
        "bytes": bytes,
        "conflicts": conflicts.len(),
        "conflict_bytes": kept_bytes,
    })
}

fn delayed_entry(file: &DelayedFile) -> Value {
    json!({
        "state": "waiting",
        "path": shown(file),
        "bytes": file.bytes,
        "age_s": file.age.map(|age| age.as_secs()),
    })
}

fn conflict_entry(kept: &Kept) -> Value {
    let since = kept.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "state": "conflict",
        "file": path::show(kept.path.as_os_str().as_bytes()),
        "bytes": kept.bytes,
        "kept": since.as_secs(),
    })
}

/// The last known path of a file from the root of the export. If only its name is known, the name.
fn shown(file: &DelayedFile) -> String {
    let joined = |names: &Vec<vfs::Name>| {
        names.iter().fold(Vec::new(), |path, name| path::join(&path, name.as_bytes()))
    };
    match (&file.path, &file.name) {
        (Some(names), _) => path::show(&joined(names)),
        (None, Some(name)) => path::show(name.as_bytes()),
        (None, None) => format!("the file {}", file.handle),
    }
}

fn discard(cache: &Cache, what: &Choice, yes: bool) -> Answer {
    let Chosen { conflicts, files, outdated } = chosen(cache, what)?;
    let entries = files.iter().map(delayed_entry).chain(conflicts.iter().map(conflict_entry)).collect();
    let mut done = sums(&files, &conflicts);
    done["outdated"] = json!(outdated);
    if conflicts.is_empty() && files.is_empty() && !outdated {
        return Ok((entries, done));
    }
    if !yes {
        return Err(format!(
            "this deletes {}, which may be nowhere else; to do it, give --yes",
            show::amount(&done)
        ));
    }
    for kept in &conflicts {
        std::fs::remove_file(&kept.path)
            .map_err(|error| format!("cannot delete {}: {error}; delete it by hand", kept.path.display()))?;
    }
    match what {
        Choice::All => cache.discard_all_delayed().map_err(|error| error.to_string())?,
        _ if files.is_empty() => {}
        _ => {
            let handles: HashSet<vfs::Handle> = files.iter().map(|file| file.handle).collect();
            cache.discard_delayed(&handles).map_err(|error| error.to_string())?;
        }
    }
    Ok((entries, done))
}

/// The conflicts and the files that a choice names.
#[derive(Default)]
struct Chosen {
    conflicts: Vec<Kept>,
    files: Vec<DelayedFile>,
    /// And writes of before the machine started.
    outdated: bool,
}

fn chosen(cache: &Cache, what: &Choice) -> Result<Chosen, String> {
    let conflicts = cache.conflicts().map_err(|error| error.to_string())?;
    let delayed = || cache.delayed_writes().map_err(|error| error.to_string());
    match what {
        Choice::Conflicts => Ok(Chosen { conflicts, ..Chosen::default() }),
        Choice::All if cache.is_offline() => {
            let (files, outdated) = delayed()?;
            Ok(Chosen { conflicts, files, outdated })
        }
        Choice::All => Err(OF_A_RUNNING_MOUNT.to_owned()),
        Choice::Path(wanted) => {
            let is_it = |file: &[u8]| path::show(file) == *wanted;
            let named = |kept: &Kept| {
                let name = kept.path.file_name().unwrap_or_default();
                is_it(name.as_bytes()) || is_it(kept.path.as_os_str().as_bytes())
            };
            let conflicts: Vec<Kept> = conflicts.into_iter().filter(named).collect();
            if !conflicts.is_empty() {
                return Ok(Chosen { conflicts, ..Chosen::default() });
            }
            let files: Vec<DelayedFile> =
                delayed()?.0.into_iter().filter(|file| shown(file) == *wanted).collect();
            match files.is_empty() {
                true => Err(format!(
                    "{wanted} is neither a kept conflict nor a file with delayed writes; see: leasehold writeback ls"
                )),
                false if cache.is_offline() => Ok(Chosen { files, ..Chosen::default() }),
                false => Err(OF_A_RUNNING_MOUNT.to_owned()),
            }
        }
    }
}

/// Carries out a command.
pub async fn run(arguments: &WritebackArguments) -> Result<(), Failure> {
    let show = Show { json: arguments.json };
    // For a mount the mount point may be given, as for `status`.
    let cache_of = |given: &Path| crate::mount::cache_of(given).unwrap_or_else(|| given.to_owned());
    match &arguments.command {
        WritebackCommand::Ls(of) => {
            let directory = cache_of(&of.directory);
            let done = ask(&directory, &WritebackRequest::Ls, |line| show.line(line)).await?;
            show.listed(&done, &directory);
        }
        WritebackCommand::Push(push) => {
            let directory = cache_of(&push.of.directory);
            let request = Request::Writeback(WritebackRequest::Push);
            let asked = Asked::of(&directory, &request).await?.ok_or_else(|| not_running(&directory))?;
            let done = listen(asked, |_| ()).await?;
            if push.wait {
                wait::until_sent(&directory, push.timeout).await?;
                show.sent();
            } else {
                show.pushed(&done);
            }
        }
        WritebackCommand::Wait(wait) => {
            wait::until_sent(&cache_of(&wait.of.directory), wait.timeout).await?;
            show.sent();
        }
        WritebackCommand::Export(export) => {
            let to = std::path::absolute(&export.to).unwrap_or_else(|_| export.to.clone());
            copy_out(&cache_of(&export.of.directory), to, show).await?;
        }
        WritebackCommand::Discard(discard) => {
            let request = WritebackRequest::Discard { what: choice(discard), yes: discard.yes };
            let done = ask(&cache_of(&discard.of.directory), &request, |line| show.line(line)).await?;
            show.discarded(&done);
        }
    }
    Ok(())
}

fn choice(discard: &Discard) -> Choice {
    match &discard.path {
        // Escaped as `ls` prints it, so that a printed path can be given back.
        Some(given) => Choice::Path(path::show(&path::read(given.as_bytes()))),
        None if discard.conflicts => Choice::Conflicts,
        None => Choice::All,
    }
}

fn not_running(directory: &Path) -> Failure {
    Failure(format!(
        "nothing runs on {}: mount it again, which sends what is left; see: leasehold writeback ls",
        directory.display()
    ))
}

/// Sends a request to the mount on a cache directory, or carries it out if there is none. Returns the last
/// line of the answer.
async fn ask(
    directory: &Path,
    request: &WritebackRequest,
    mut each: impl FnMut(&Value),
) -> Result<Value, Failure> {
    if let Some(asked) = Asked::of(directory, &Request::Writeback(request.clone())).await? {
        return listen(asked, each).await;
    }
    let cache = unused(directory).await?.map_err(|busy| busy.failure())?;
    let (sender, mut lines) = mpsc::channel::<Reply>(64);
    let executed = execute(&cache, request.clone(), sender);
    let print = async {
        while let Some(line) = lines.recv().await {
            each(&line.to_json());
        }
    };
    let (done, ()) = tokio::join!(executed, print);
    done.map_err(Failure)
}

/// A process uses the cache directory, and its admin socket does not answer.
struct Busy {
    directory: PathBuf,
    process: String,
}

impl Busy {
    fn failure(&self) -> Failure {
        Failure(format!(
            "{} is in use by process {}, which does not answer; wait until it runs or has ended",
            self.directory.display(),
            self.process
        ))
    }
}

/// Takes a cache that no process uses.
async fn unused(directory: &Path) -> Result<Result<Arc<Cache>, Busy>, Failure> {
    if directory.join("format").is_file() {
        crate::state::private::secure(directory)?;
    }
    match Cache::open_offline(directory).await {
        Ok(cache) => Ok(Ok(cache)),
        Err(OpenError::InUse { path: directory, process }) => Ok(Err(Busy { directory, process })),
        Err(error) => Err(Failure(error.to_string())),
    }
}

/// `leasehold writeback export`
async fn copy_out(directory: &Path, to: PathBuf, show: Show) -> Result<(), Failure> {
    let cache = unused(directory).await?.map_err(|Busy { directory, process }| {
        let directory = directory.display();
        Failure(format!(
            "{directory} is in use by process {process}: copy the files from its mount, or send them with `leasehold writeback push`; kept conflicts are the files in {directory}/conflicts"
        ))
    })?;
    let copied = tokio::task::spawn_blocking(move || {
        let (mut files, mut conflicts) = (Vec::new(), Vec::new());
        let made = |made| {
            let (mut entry, copy) = match made {
                Exported::Delayed(file, copy) => {
                    let entry = delayed_entry(&file);
                    files.push(file);
                    (entry, copy)
                }
                Exported::Conflict(kept, copy) => {
                    let entry = conflict_entry(&kept);
                    conflicts.push(kept);
                    (entry, copy)
                }
            };
            entry["copy"] = json!(path::show(copy.as_os_str().as_bytes()));
            show.line(&json!({ "entry": entry }));
        };
        let copied = cache.export_delayed(&to, shown, made);
        copied.map(|()| sums(&files, &conflicts)).map_err(|error| Failure(error.to_string()))
    });
    let done = copied.await.map_err(|_| Failure("the export has failed; report this".to_owned()))??;
    show.exported(&done);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vfs::{Handle, Name};

    use super::*;

    #[test]
    fn a_file_is_shown_by_what_is_known_of_it() {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let mut file = DelayedFile {
            handle: Handle::new(&[1, 2]).unwrap(),
            path: Some(vec![name("d"), name("new\nline")]),
            name: Some(name("new\nline")),
            bytes: 7,
            age: Some(Duration::from_secs(3)),
        };
        assert_eq!(shown(&file), "/d/new\\x0aline");
        let entry = json!({ "state": "waiting", "path": "/d/new\\x0aline", "bytes": 7, "age_s": 3 });
        assert_eq!(delayed_entry(&file), entry);
        file.path = None;
        assert_eq!(shown(&file), "new\\x0aline");
        file.name = None;
        assert!(shown(&file).starts_with("the file "), "{}", shown(&file));
    }

    #[test]
    fn requests_come_back() {
        let request = WritebackRequest::Discard { what: Choice::Path("/a".into()), yes: true };
        let text = serde_json::to_string(&Request::Writeback(request)).unwrap();
        assert_eq!(text, r#"{"writeback":{"command":"discard","what":{"path":"/a"},"yes":true}}"#);
        let Ok(Request::Writeback(WritebackRequest::Discard { what, yes: false })) =
            serde_json::from_str(r#"{"writeback":{"command":"discard","what":"all","yes":false}}"#)
        else {
            panic!("it is not read");
        };
        assert_eq!(what, Choice::All);
    }
}
