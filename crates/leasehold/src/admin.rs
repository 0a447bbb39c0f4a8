//! The admin socket of a running Leasehold. A user who may enter its directory may ask for its status and
//! may tell its cache which files to keep.
//!
//! A connection carries one request, a line of JSON. The answer consists of lines of JSON; the last line
//! ends it:
//!
//! | request | answer |
//! |---|---|
//! | `"status"` | the state, one line |
//! | `"usage"` | the state, and the clients and files that are used most, one line; see `usage` |
//! | `"depart"` | `{"departure": {"stage": …, "left": …}}` on every change; see `departure` |
//! | `{"cache": {"command": …}}` | any number of `{"entry": …}`, `{"progress": …}`, `{"failed": …}`, |
//! | | then `{"done": …}` or `{"error": "…"}` |
//! | `{"holders": {"command": …}}` | the same |
//! | `{"writeback": {"command": …}}` | the same |
//! | `{"cluster": "drain"}`, or `"resume"` | `{"done": …}` or `{"error": "…"}` |
//!
//! **Versions** may differ between the two sides. The earliest clients send no request: a client that sends
//! nothing within a second gets the state. If this side does not know a request, it answers with an error
//! that says so. A client skips fields and lines that it does not know. If the client closes the connection
//! early, its request ends.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::cachectl::{self, CacheRequest, Reply};
use crate::departure::{Departure, Left, Progress, Stage};
use crate::holders::{self, Holders, HoldersRequest};
use crate::live::Live;
use crate::membership::{ClusterRequest, Membership};
use crate::status::Source;
use crate::writeback::{self, WritebackRequest};

/// Longest line of an answer, in bytes.
const LINE_MAX_BYTES: u64 = 16 << 20;
/// Longest request, in bytes.
const REQUEST_MAX_BYTES: u64 = 4 << 20;
/// How long the socket waits for a request before it answers with the state.
const REQUEST_WAIT: Duration = Duration::from_secs(1);
/// Requests in progress at one time; further connections wait to be accepted.
const REQUESTS_MAX: usize = 16;
/// Lines of an answer that may wait to be sent; then the request waits.
const LINES_MAX: usize = 64;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The state.
    Status,
    /// The state, and who and what is used most.
    Usage,
    /// How far the shutdown of the process is, in lines of progress until it has ended.
    Depart,
    /// A request to the cache.
    Cache(CacheRequest),
    /// A request about what clients hold.
    Holders(HoldersRequest),
    /// A request about delayed writes.
    Writeback(WritebackRequest),
    /// A request to a member of a cluster.
    Cluster(ClusterRequest),
}

/// Shortest time between two lines of progress that only differ in what is left.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Answers on the socket until it is dropped.
#[derive(Debug)]
pub struct Admin {
    task: JoinHandle<()>,
    path: PathBuf,
    departure: Departure,
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The sources of the answers.
pub struct Sources {
    /// The state.
    pub status: Source,
    /// The state, and who and what is used most. It may wait for the disk.
    pub usage: Source,
    /// The cache, if there is one: it takes requests.
    pub cache: Caches,
    /// What clients hold, if there are clients.
    pub holders: Option<Holders>,
    /// The membership in a cluster, if this process is a member.
    pub cluster: Option<Membership>,
    /// Work to be done before the client of a recording is told that it runs.
    pub before_recording: Option<BeforeRecording>,
}

/// The caches of a process.
pub enum Caches {
    /// It has none.
    None,
    /// It has this one.
    One(Arc<Cache>),
    /// It has several, by directory. The one in `own` is that of this process; the others have admin sockets
    /// of their own.
    Several {
        /// The caches.
        caches: Live<(PathBuf, Arc<Cache>)>,
        /// The directory of this admin socket.
        own: PathBuf,
    },
}

impl Caches {
    /// The cache that takes requests.
    ///
    /// # Errors
    /// Says where to ask instead.
    fn one(&self) -> Result<Arc<Cache>, String> {
        match self {
            Caches::None => Err("there is no cache here; name the cache of a proxy or a mount".to_owned()),
            Caches::One(cache) => Ok(cache.clone()),
            Caches::Several { caches, own } => {
                let caches = caches.now();
                if let Some((_, cache)) = caches.iter().find(|(directory, _)| directory == own) {
                    return Ok(cache.clone());
                }
                if caches.is_empty() {
                    return Err("no origin of this proxy is served yet; leasehold status says why".to_owned());
                }
                let named: Vec<String> =
                    caches.iter().map(|(directory, _)| directory.display().to_string()).collect();
                Err(format!(
                    "each origin of this proxy has a cache of its own; name one of them: {}",
                    named.join(", ")
                ))
            }
        }
    }

    /// The data that is still to be stored.
    fn left(&self) -> Left {
        match self {
            Caches::None => Left::default(),
            Caches::One(cache) => Left::of(cache),
            Caches::Several { caches, .. } => caches.now().iter().map(|(_, cache)| Left::of(cache)).sum(),
        }
    }
}

/// Makes readers ask for what they have, so that the recording sees it.
pub type BeforeRecording = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

struct Answering {
    of: Sources,
    departure: Departure,
}

/// The work of a request. It ends with the last line of the answer.
type Work = Pin<Box<dyn Future<Output = Result<Value, String>> + Send>>;

impl Answering {
    /// Begins a request whose answer has many lines.
    ///
    /// # Errors
    /// If this process does not have what is asked about.
    fn begin(&self, request: Request, sink: mpsc::Sender<Reply>) -> Result<Work, String> {
        match request {
            Request::Cache(request) => {
                let cache = self.of.cache.one()?;
                let before = self.of.before_recording.clone();
                Ok(Box::pin(async move { cachectl::execute(&cache, request, before, sink).await }))
            }
            Request::Holders(request) => {
                let holders = self.of.holders.clone().ok_or(
                    "there are no clients here; name the state directory of a serve or the cache directory of a proxy",
                )?;
                Ok(Box::pin(async move { holders::execute(&holders, request, sink).await }))
            }
            Request::Writeback(request) => {
                let cache = self.of.cache.one()?;
                Ok(Box::pin(async move { writeback::execute(&cache, request, sink).await }))
            }
            Request::Cluster(request) => {
                let member = self.of.cluster.clone().ok_or(
                    "this process is no member of a cluster; name the directory of a proxy with a [cluster]",
                )?;
                Ok(Box::pin(async move { member.execute(request).await }))
            }
            Request::Status | Request::Usage | Request::Depart => {
                Err("the request has no such answer".to_owned())
            }
        }
    }
}

impl Admin {
    /// Listens in `directory`, which this process must have locked. A process with a cache also answers
    /// requests to the cache, and one with clients those about what they hold.
    pub fn start(directory: &Path, sources: Sources) -> Result<Admin, Failure> {
        let departure = Departure::default();
        let answering = Answering { of: sources, departure: departure.clone() };
        let path = socket(directory);
        // A process that was killed leaves its socket behind.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|error| {
            let path = path.display();
            Failure(format!(
                "cannot make the admin socket {path}: {error}; is the path longer than 100 bytes?"
            ))
        })?;
        let task = tokio::spawn(accept(listener, Arc::new(answering)));
        Ok(Admin { task, path, departure })
    }

    /// The shutdown has begun: from now on a waiter reads [`Stage::Ending`] and what is left.
    pub fn begin_end(&self) {
        self.departure.begin();
    }

    /// The process is about to exit. `loss` says which data is lost, if any. Removes the socket and notifies
    /// the waiters. Their connections stay open until the process exits.
    pub async fn end(self, loss: Option<String>) {
        let _ = std::fs::remove_file(&self.path);
        self.departure.end(loss).await;
        // The connections end with the process. By then another process may have a socket at this path, so do
        // not drop `self`.
        std::mem::forget(self);
    }
}

async fn accept(listener: UnixListener, answering: Arc<Answering>) {
    let capacity = Arc::new(Semaphore::new(REQUESTS_MAX));
    // Dropping the set aborts the requests, so they end with the socket.
    let mut tasks = tokio::task::JoinSet::new();
    while let Ok(permit) = capacity.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else { return };
        let answering = answering.clone();
        tasks.spawn(async move {
            // A client that closes the connection early loses its answer.
            let _ = answer(stream, &answering).await;
            drop(permit);
        });
        while tasks.try_join_next().is_some() {}
    }
}

async fn answer(stream: UnixStream, answering: &Answering) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(REQUEST_MAX_BYTES));
    let mut line = String::new();
    let read = tokio::time::timeout(REQUEST_WAIT, reader.read_line(&mut line)).await;
    let silent = !matches!(read, Ok(Ok(length)) if length > 0);
    let request = if silent { Ok(Request::Status) } else { serde_json::from_str(&line) };
    let request = match request {
        Ok(Request::Status) => return send(&mut writer, &(answering.of.status)()).await,
        Ok(Request::Usage) => {
            let usage = answering.of.usage.clone();
            let usage = tokio::task::spawn_blocking(move || usage()).await;
            return send(&mut writer, &usage.unwrap_or_else(|_| json!({ "error": "no usage; ask again" })))
                .await;
        }
        Ok(Request::Depart) => return see_off(reader, writer, answering).await,
        Ok(request) => request,
        Err(error) => {
            let error = format!(
                "this Leasehold ({}) does not know the request: {error}; use the same version",
                env!("CARGO_PKG_VERSION")
            );
            return send(&mut writer, &json!({ "error": error })).await;
        }
    };
    let (sender, mut lines) = mpsc::channel::<Reply>(LINES_MAX);
    let mut work = match answering.begin(request, sender) {
        Ok(work) => work,
        Err(why) => return send(&mut writer, &json!({ "error": why })).await,
    };
    let mut gone = std::pin::pin!(drained(reader));
    let mut result = None;
    loop {
        tokio::select! {
            ended = &mut work, if result.is_none() => result = Some(ended),
            () = &mut gone => return Ok(()),
            line = lines.recv() => match line {
                Some(line) => send(&mut writer, &line.to_json()).await?,
                None if result.is_some() => break,
                None => {}
            },
        }
    }
    match result {
        Some(Ok(done)) => send(&mut writer, &json!({ "done": done })).await,
        Some(Err(error)) => send(&mut writer, &json!({ "error": error })).await,
        None => Ok(()),
    }
}

/// Sends how far the shutdown of this process is, and keeps the connection open until the client closes it.
async fn see_off(
    reader: impl AsyncReadExt + Unpin,
    mut writer: impl AsyncWriteExt + Unpin,
    answering: &Answering,
) -> std::io::Result<()> {
    let mut stage = answering.departure.watch();
    let mut gone = std::pin::pin!(drained(reader));
    let mut told = None;
    loop {
        let left = answering.of.cache.left();
        let progress = Progress { stage: stage.borrow_and_update().clone(), left };
        if told.as_ref() != Some(&progress) {
            send(&mut writer, &json!({ "departure": progress })).await?;
            told = Some(progress);
        }
        if told.as_ref().is_some_and(|told| matches!(told.stage, Stage::Ended(_))) {
            break;
        }
        tokio::select! {
            () = &mut gone => return Ok(()),
            _ = stage.changed() => {}
            () = tokio::time::sleep(PROGRESS_EVERY) => {}
        }
    }
    // `Departure::end` returns when every such receiver is dropped, and then the process exits.
    drop(stage);
    gone.await;
    Ok(())
}

/// Waits until the client closes the connection.
async fn drained(mut reader: impl AsyncReadExt + Unpin) {
    let mut rest = [0; 64];
    while !matches!(reader.read(&mut rest).await, Ok(0) | Err(_)) {}
}

async fn send(writer: &mut (impl AsyncWriteExt + Unpin), line: &Value) -> std::io::Result<()> {
    let mut text = line.to_string();
    text.push('\n');
    writer.write_all(text.as_bytes()).await
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("admin.sock")
}

/// A request to a running Leasehold, and its answer line by line.
pub struct Asked {
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    /// Kept open, because the other side ends the request when the connection closes.
    _writer: tokio::net::unix::OwnedWriteHalf,
}

impl Asked {
    /// Sends a request to the Leasehold that runs on `directory`. `None` if none runs there.
    pub async fn of(directory: &Path, request: &Request) -> Result<Option<Asked>, Failure> {
        let path = socket(directory);
        let stream = match UnixStream::connect(&path).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let (path, whose) = (path.display(), directory.display());
                return Err(Failure(format!(
                    "cannot ask at {path}: {error}; run this as root or as the owner of {whose}"
                )));
            }
            Err(_) => return Ok(None),
        };
        let (reader, mut writer) = stream.into_split();
        let request =
            serde_json::to_value(request).map_err(|error| Failure(format!("cannot ask: {error}")))?;
        // An earlier version answers without reading a request and may have closed the connection already.
        let _ = send(&mut writer, &request).await;
        Ok(Some(Asked { reader: BufReader::new(reader), _writer: writer }))
    }

    /// The next line; `None` after the last.
    pub async fn line(&mut self) -> Result<Option<Value>, Failure> {
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_MAX_BYTES).read_line(&mut line).await;
        let length = read.map_err(|error| Failure(format!("the answer ended early: {error}; ask again")))?;
        if length == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| Failure(format!("the answer is not JSON: {error}; use the same version")))
    }
}

/// The status of the Leasehold that runs on `directory`.
pub async fn ask(directory: &Path) -> Result<Value, Failure> {
    ask_for(directory, &Request::Status).await
}

/// The one line with which the Leasehold that runs on `directory` answers this request.
pub async fn ask_for(directory: &Path, request: &Request) -> Result<Value, Failure> {
    let path = socket(directory);
    let asked = Asked::of(directory, request).await?;
    let mut asked = asked.ok_or_else(|| {
        let path = path.display();
        Failure(format!("nothing answers at {path}; name the cache directory of a running proxy or mount, or the state directory of a serve"))
    })?;
    asked
        .line()
        .await?
        .ok_or_else(|| Failure(format!("the answer from {} is empty; ask again", path.display())))
}
