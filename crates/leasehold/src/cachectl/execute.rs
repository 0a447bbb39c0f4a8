//! Carries out the requests of `leasehold cache`, on a running cache or on one that was opened offline.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cache::{Cache, Completeness, FindError, Info, Keeper, Validity, Verified};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vfs::{Caller, FileType, Handle, Name};

use super::{CacheRequest, Reply, path, record, replay, warm};
use crate::admin::BeforeRecording;

/// Names read from the index at a time.
const PAGE: usize = 512;
/// Shortest time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Why a request ends early: one line for the user.
pub type Stop = String;

/// Sends the lines of an answer.
pub struct Sink {
    replies: mpsc::Sender<Reply>,
    told: Instant,
}

impl Sink {
    pub async fn entry(&self, entry: Value) -> Result<(), Stop> {
        self.send(Reply::Entry(entry)).await
    }

    pub async fn failed(&self, path: &[u8], why: impl ToString) -> Result<(), Stop> {
        self.send(Reply::Failed { path: path::show(path), why: why.to_string() }).await
    }

    /// Sends how far the request is, at most every [`PROGRESS_EVERY`].
    pub async fn progress(&mut self, progress: impl FnOnce() -> Value) -> Result<(), Stop> {
        if self.told.elapsed() < PROGRESS_EVERY {
            return Ok(());
        }
        self.told = Instant::now();
        self.send(Reply::Progress(progress())).await
    }

    async fn send(&self, reply: Reply) -> Result<(), Stop> {
        self.replies.send(reply).await.map_err(|_| "the client has closed the connection".to_owned())
    }
}

/// Carries out a request and sends its lines to `replies`. Returns the last line, or the error that takes
/// its place. `before` is work for the begin of a recording.
pub async fn execute(
    cache: &Arc<Cache>,
    request: CacheRequest,
    before: Option<BeforeRecording>,
    replies: mpsc::Sender<Reply>,
) -> Result<Value, Stop> {
    let mut sink = Sink { replies, told: Instant::now() };
    match request {
        CacheRequest::Ls { paths, recursive } => ls(cache, &paths, recursive, &sink).await,
        CacheRequest::Stat { paths } => stat(cache, &paths, &sink).await,
        CacheRequest::Du { paths } => du(cache, &paths, &sink).await,
        CacheRequest::Pin { paths } => pin(cache, &paths, &sink).await,
        CacheRequest::Unpin { paths, all } => unpin(cache, &paths, all, &sink).await,
        CacheRequest::Drop { paths, all } => drop_data(cache, &paths, all, &mut sink).await,
        CacheRequest::Verify { origin: true, .. } if cache.is_offline() => {
            Err(needs_origin("verify --origin"))
        }
        CacheRequest::Verify { paths, origin, keep } => verify(cache, &paths, origin, !keep, &mut sink).await,
        CacheRequest::Warm { .. } | CacheRequest::Replay { .. } if cache.is_offline() => {
            Err(needs_origin("warm"))
        }
        CacheRequest::Record | CacheRequest::Recorded { .. } if cache.is_offline() => {
            Err(needs_origin("record"))
        }
        CacheRequest::Record => record::begin(cache, before, &sink).await,
        CacheRequest::Recorded { id } => record::end(cache, id, &sink).await,
        CacheRequest::Replay { lines, user, planned } => {
            replay::run(cache, lines, planned, user.caller(), &mut sink).await
        }
        CacheRequest::Warm { paths, newer, pin: keep, user, groups } => {
            if keep {
                pin(cache, &paths, &sink).await?;
            }
            let (uid, gid) = user.unwrap_or((0, 0));
            warm::run(cache, &paths, newer, Caller::unix(uid, gid, &groups), &mut sink).await
        }
    }
}

fn needs_origin(what: &str) -> Stop {
    format!(
        "`{what}` needs the origin, and nothing runs on this cache: start the proxy or mount, and run this again"
    )
}

/// Finds the objects of paths, and reports each path that is not known.
pub async fn found(cache: &Cache, paths: &[String], sink: &Sink) -> Result<Vec<(Vec<u8>, Handle)>, Stop> {
    let mut found = Vec::new();
    for text in paths {
        let given = path::read(text);
        match cache.find(&given).await {
            Ok(handle) => found.push((path::tidy(&given), handle)),
            // An empty cache knows no path at all, so one message is enough.
            Err(FindError::Empty) => return Err(FindError::Empty.to_string()),
            Err(error) => sink.failed(&given, error).await?,
        }
    }
    Ok(found)
}

/// A walk over known names, parents before children.
struct Walk<'a> {
    cache: &'a Cache,
    /// To be visited.
    stack: Vec<(Vec<u8>, Handle)>,
    /// Directories visited already: remembered names may form cycles after renames.
    seen: HashSet<Handle>,
}

impl<'a> Walk<'a> {
    fn from(cache: &'a Cache, starts: Vec<(Vec<u8>, Handle)>) -> Walk<'a> {
        let mut stack = starts;
        stack.reverse();
        Walk { cache, stack, seen: HashSet::new() }
    }

    /// The next object. The entries of a directory come after it.
    async fn next(&mut self) -> Option<(Vec<u8>, Handle, Info)> {
        let (path, handle) = self.stack.pop()?;
        let info = self.cache.info(&handle);
        if is_dir(&info) && self.seen.insert(handle) {
            let mut children = children(self.cache, &path, &handle).await;
            children.reverse();
            self.stack.append(&mut children);
        }
        Some((path, handle, info))
    }
}

async fn children(cache: &Cache, directory: &[u8], handle: &Handle) -> Vec<(Vec<u8>, Handle)> {
    let mut all = Vec::new();
    let mut after: Option<Name> = None;
    loop {
        let page = cache.children(handle, after.as_ref(), PAGE);
        let Some((last, _)) = page.last() else { return all };
        after = Some(last.clone());
        all.extend(page.into_iter().map(|(name, child)| (path::join(directory, name.as_bytes()), child)));
        tokio::task::yield_now().await;
    }
}

fn is_dir(info: &Info) -> bool {
    info.attributes.is_some_and(|attributes| attributes.is_dir())
}

async fn ls(cache: &Cache, paths: &[String], recursive: bool, sink: &Sink) -> Result<Value, Stop> {
    let mut entries = 0u64;
    for (path, handle) in found(cache, paths, sink).await? {
        let info = cache.info(&handle);
        let listed = match (is_dir(&info), recursive) {
            (false, _) => vec![(path, handle)],
            (true, false) => children(cache, &path, &handle).await,
            (true, true) => {
                let mut walk = Walk::from(cache, vec![(path.clone(), handle)]);
                while let Some((below, _, info)) = walk.next().await {
                    if below != path {
                        sink.entry(entry(cache, &below, &info)).await?;
                        entries += 1;
                    }
                }
                Vec::new()
            }
        };
        for (path, handle) in listed {
            sink.entry(entry(cache, &path, &cache.info(&handle))).await?;
            entries += 1;
        }
    }
    Ok(json!({ "entries": entries }))
}

async fn stat(cache: &Cache, paths: &[String], sink: &Sink) -> Result<Value, Stop> {
    let found = found(cache, paths, sink).await?;
    for (path, handle) in &found {
        sink.entry(entry(cache, path, &cache.info(handle))).await?;
    }
    Ok(json!({ "entries": found.len() }))
}

async fn du(cache: &Cache, paths: &[String], sink: &Sink) -> Result<Value, Stop> {
    if paths.is_empty() {
        let totals = cache.totals().await;
        for (fsid, disk_bytes) in &totals.file_systems {
            let fsid = format!("{:x}:{:x}", fsid.major, fsid.minor);
            sink.entry(json!({
                "file_system": fsid, "disk_bytes": disk_bytes, "max_bytes": totals.export_max_bytes,
            }))
            .await?;
        }
        return Ok(json!({
            "origin": cache.origin(),
            "objects": totals.objects,
            "files": totals.files,
            "complete": totals.complete,
            "disk_bytes": totals.disk_bytes,
            // The limits belong to the running process; an offline cache does not know them.
            "soft_bytes": (!cache.is_offline()).then_some(totals.soft_bytes),
            "max_bytes": (!cache.is_offline()).then_some(totals.max_bytes),
            "pins": cache.pins().len(),
        }));
    }
    for (path, handle) in found(cache, paths, sink).await? {
        let (mut files, mut complete, mut disk, mut pinned, mut cached) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let mut seen = HashSet::new();
        let mut walk = Walk::from(cache, vec![(path.clone(), handle)]);
        while let Some((_, handle, info)) = walk.next().await {
            // A file with several names is counted once.
            if info.completeness == Completeness::Nothing || !seen.insert(handle) {
                continue;
            }
            files += 1;
            complete += u64::from(info.completeness == Completeness::Complete);
            disk += info.disk_bytes;
            cached += info.cached_bytes;
            pinned += if info.pinned.is_some() { info.disk_bytes } else { 0 };
        }
        sink.entry(json!({
            "path": path::show(&path), "files": files, "complete": complete, "cached_bytes": cached,
            "disk_bytes": disk, "pinned_bytes": pinned,
        }))
        .await?;
    }
    Ok(json!({}))
}

async fn pin(cache: &Cache, paths: &[String], sink: &Sink) -> Result<Value, Stop> {
    let mut pinned = 0u64;
    for (path, handle) in found(cache, paths, sink).await? {
        match cache.pin(&handle, path::show(&path)).await {
            Ok(()) => pinned += 1,
            Err(error) => sink.failed(&path, format!("cannot store the pin: {error}")).await?,
        }
    }
    if paths.is_empty() {
        for pin in cache.pins() {
            sink.entry(json!({ "path": now_at(cache, &pin), "pinned_as": pin.path, "since": pin.since }))
                .await?;
        }
    }
    Ok(json!({ "pinned": pinned }))
}

/// The present path of a pinned object, as far as the cache knows it.
fn now_at(cache: &Cache, pin: &cache::Pinned) -> String {
    cache.path_of(&pin.handle).map_or_else(|| pin.path.clone(), |names| full_path(&names))
}

fn full_path(names: &[Name]) -> String {
    path::show(&names.iter().fold(b"/".to_vec(), |path, name| path::join(&path, name.as_bytes())))
}

async fn unpin(cache: &Cache, paths: &[String], all: bool, sink: &Sink) -> Result<Value, Stop> {
    let pins = cache.pins();
    let mut unpinned = 0u64;
    let mut chosen: Vec<(String, Handle)> = Vec::new();
    if all {
        chosen.extend(pins.iter().map(|pin| (pin.path.clone(), pin.handle)));
    }
    for text in paths {
        let given = path::show(&path::tidy(&path::read(text)));
        // Look the pin up under the path at which it was set, too: the pinned object may be gone.
        let pin = pins.iter().find(|pin| now_at(cache, pin) == given || pin.path == given);
        let Some(pin) = pin else {
            let why = "it has no pin of its own; `leasehold cache pin CACHE-DIR` lists the pins";
            sink.failed(&path::read(text), why).await?;
            continue;
        };
        chosen.push((given, pin.handle));
    }
    for (path, handle) in chosen {
        match cache.unpin(&handle).await {
            Ok(was) => unpinned += u64::from(was),
            Err(error) => sink.failed(path.as_bytes(), format!("cannot store the change: {error}")).await?,
        }
    }
    Ok(json!({ "unpinned": unpinned }))
}

async fn drop_data(cache: &Cache, paths: &[String], all: bool, sink: &mut Sink) -> Result<Value, Stop> {
    let (mut files, mut bytes) = (0u64, 0u64);
    if all {
        let mut from = Vec::new();
        cache.flush().await;
        loop {
            let (page, next) = cache.with_data(&from);
            for handle in page {
                let freed = cache.drop_data(&handle).await;
                files += u64::from(freed > 0);
                bytes += freed;
            }
            sink.progress(|| json!({ "files": files, "bytes": bytes })).await?;
            let Some(next) = next else { break };
            from = next;
        }
    } else {
        let mut walk = Walk::from(cache, found(cache, paths, sink).await?);
        while let Some((_, handle, _)) = walk.next().await {
            let freed = cache.drop_data(&handle).await;
            files += u64::from(freed > 0);
            bytes += freed;
            sink.progress(|| json!({ "files": files, "bytes": bytes })).await?;
        }
    }
    cache.flush().await;
    Ok(json!({ "files": files, "bytes": bytes }))
}

/// The result of `verify` so far.
#[derive(Default)]
struct Tally {
    files: u64,
    good_bytes: u64,
    unchecked_bytes: u64,
    damaged: u64,
    changed: u64,
}

impl Tally {
    fn to_json(&self) -> Value {
        json!({
            "files": self.files,
            "good_bytes": self.good_bytes,
            "unchecked_bytes": self.unchecked_bytes,
            "damaged": self.damaged,
            "changed": self.changed,
        })
    }
}

async fn verify(
    cache: &Cache,
    paths: &[String],
    origin: bool,
    repair: bool,
    sink: &mut Sink,
) -> Result<Value, Stop> {
    let mut tally = Tally::default();
    if paths.is_empty() {
        cache.flush().await;
        let mut from = Vec::new();
        loop {
            let (page, next) = cache.with_data(&from);
            for handle in page {
                let names = cache.path_of(&handle);
                let path = names
                    .map_or_else(|| format!("(inode {})", inode(cache, &handle)), |names| full_path(&names));
                verify_one(cache, (&path::read(&path), &handle), (origin, repair), &mut tally, sink).await?;
            }
            let Some(next) = next else { break };
            from = next;
        }
    } else {
        let mut walk = Walk::from(cache, found(cache, paths, sink).await?);
        while let Some((path, handle, info)) = walk.next().await {
            if info.completeness != Completeness::Nothing {
                verify_one(cache, (&path, &handle), (origin, repair), &mut tally, sink).await?;
            }
        }
    }
    cache.flush().await;
    Ok(tally.to_json())
}

fn inode(cache: &Cache, handle: &Handle) -> u64 {
    cache.info(handle).attributes.map_or(0, |attributes| attributes.fileid)
}

async fn verify_one(
    cache: &Cache,
    (path, handle): (&[u8], &Handle),
    (origin, repair): (bool, bool),
    tally: &mut Tally,
    sink: &mut Sink,
) -> Result<(), Stop> {
    let mut found = cache.verify_disk(handle, repair).await;
    if origin && found.damaged.is_empty() {
        match cache.verify_origin(handle, repair).await {
            Ok(compared) => found = compared,
            Err(status) => return sink.failed(path, format!("the origin answered: {status}")).await,
        }
    }
    tally.files += 1;
    tally.good_bytes += found.good_bytes;
    tally.unchecked_bytes += found.unchecked_bytes;
    tally.changed += u64::from(found.changed);
    if !found.damaged.is_empty() {
        tally.damaged += 1;
        sink.failed(path, damage(&found)).await?;
    }
    sink.progress(|| tally.to_json()).await
}

fn damage(found: &Verified) -> String {
    let bytes: u64 = found.damaged.iter().map(|range| range.end - range.start).sum();
    let at = found.damaged.first().map_or(0, |range| range.start);
    let what = if found.dropped {
        "the data was dropped, and the next read fetches it again"
    } else {
        "the data was kept; drop it with `leasehold cache drop`"
    };
    format!("damaged: ranges of {bytes} bytes differ from what was stored, the first at offset {at}; {what}")
}

/// An object as JSON.
fn entry(cache: &Cache, path: &[u8], info: &Info) -> Value {
    let attributes = info.attributes.as_ref();
    let file_type = attributes.map_or("unknown", |attributes| match attributes.file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        _ => "special",
    });
    let complete = match info.completeness {
        Completeness::Complete => "complete",
        Completeness::Part => "part",
        Completeness::Nothing => "nothing",
    };
    let validity = match info.validity {
        _ if cache.stats().is_away => "offline",
        Validity::Leased => "leased",
        Validity::Current => "current",
        Validity::Unconfirmed => "unconfirmed",
        Validity::Unknown => "unknown",
    };
    let pinned = match &info.pinned {
        None => Value::Null,
        Some(Keeper::Itself) => "itself".into(),
        Some(Keeper::Above(above)) => {
            cache.path_of(above).map_or("above".into(), |names| full_path(&names).into())
        }
    };
    json!({
        "path": path::show(path),
        "type": file_type,
        "inode": attributes.map(|attributes| attributes.fileid),
        "size": attributes.map(|attributes| attributes.size),
        "modified": attributes.map(|attributes| attributes.mtime.seconds),
        "cached_bytes": info.cached_bytes,
        "disk_bytes": info.disk_bytes,
        "complete": complete,
        "validity": validity,
        "confirmed": info.confirmed.map(|at| at.seconds),
        "age_s": info.age.map(|age| age.as_secs()),
        "pinned": pinned,
        "used": info.used_at,
    })
}
