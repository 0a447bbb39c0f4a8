//! The admin socket: whoever may enter the directory may ask a running Leasehold what it does, and tell its cache what to
//! keep.
//!
//! One connection, one request: a line of JSON. What comes back are lines of JSON, the last of which ends it:
//!
//! | request | answer |
//! |---|---|
//! | `"status"` | the state, one line |
//! | `"depart"` | `{"departure": {"stage": …, "left": …}}` now and then until the process ends; see `departure` |
//! | `{"cache": {"command": …}}` | any number of `{"entry": …}`, `{"progress": …}`, `{"failed": …}`, then `{"done": …}` or `{"error": "…"}` |
//!
//! **Versions** may differ on both sides. One that says nothing within a second is of the time when there was nothing to
//! say, and gets the state. What is not known of a request is an error that says so; what is not known of an answer is
//! passed over. Whoever goes away in the middle ends what was asked for.

use std::path::{Path, PathBuf};
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

/// An answer's line is at most so long.
const LINE_MAX_BYTES: u64 = 16 << 20;
/// A request is at most so long.
const REQUEST_MAX_BYTES: u64 = 4 << 20;
/// How long a request is waited for.
const REQUEST_WAIT: Duration = Duration::from_secs(1);
/// Requests under way at a time; the next waits.
const REQUESTS_MAX: usize = 16;
/// Lines of an answer that wait to be sent.
const LINES_MAX: usize = 64;

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The state.
    Status,
    /// How far the end of the process is, until it has ended.
    Depart,
    /// Something of the cache.
    Cache(CacheRequest),
}

/// How often a waiter is told what is left.
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

/// What answers.
struct Answering {
    status: Box<dyn Fn() -> Value + Send + Sync>,
    cache: Option<Arc<Cache>>,
    departure: Departure,
}

impl Admin {
    /// Listens in `directory`, of which we hold the lock.
    pub fn start(
        directory: &Path,
        status: impl Fn() -> Value + Send + Sync + 'static,
    ) -> Result<Admin, Failure> {
        Admin::listen(directory, Box::new(status), None)
    }

    /// The same, with a cache to be asked about.
    pub fn with_cache(
        directory: &Path,
        status: impl Fn() -> Value + Send + Sync + 'static,
        cache: Arc<Cache>,
    ) -> Result<Admin, Failure> {
        Admin::listen(directory, Box::new(status), Some(cache))
    }

    /// The end has begun: from now on those who ask are told what is left.
    pub fn begin_end(&self) {
        self.departure.begin();
    }

    /// The process is about to end, with this loss. The socket goes, and the waiters are told; their connections stay until
    /// the process is gone.
    pub async fn end(self, loss: Option<String>) {
        let _ = std::fs::remove_file(&self.path);
        self.departure.end(loss).await;
        // Its connections end with the process, and another process may have a socket at the path by then.
        std::mem::forget(self);
    }

    fn listen(
        directory: &Path,
        status: Box<dyn Fn() -> Value + Send + Sync>,
        cache: Option<Arc<Cache>>,
    ) -> Result<Admin, Failure> {
        let departure = Departure::default();
        let answering = Answering { status, cache, departure: departure.clone() };
        let path = socket(directory);
        // Left by a process that was killed.
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
}

async fn accept(listener: UnixListener, answering: Arc<Answering>) {
    let capacity = Arc::new(Semaphore::new(REQUESTS_MAX));
    // Requests end with the socket.
    let mut tasks = tokio::task::JoinSet::new();
    while let Ok(permit) = capacity.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else { return };
        let answering = answering.clone();
        tasks.spawn(async move {
            // Whoever asks and does not listen loses the answer.
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
    let (cache, request) = match (request, &answering.cache) {
        (Ok(Request::Status), _) => return send(&mut writer, &(answering.status)()).await,
        (Ok(Request::Depart), _) => return see_off(reader, writer, answering).await,
        (Ok(Request::Cache(request)), Some(cache)) => (cache.clone(), request),
        (Ok(Request::Cache(_)), None) => {
            return send(
                &mut writer,
                &json!({ "error": "there is no cache here; name that of a proxy or a mount" }),
            )
            .await;
        }
        (Err(error), _) => {
            let error = format!(
                "this Leasehold ({}) does not know what was asked: {error}",
                env!("CARGO_PKG_VERSION")
            );
            return send(&mut writer, &json!({ "error": error })).await;
        }
    };
    let (sender, mut lines) = mpsc::channel::<Reply>(LINES_MAX);
    let mut work = std::pin::pin!(cachectl::execute(&cache, request, sender));
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

/// Tells how far the end of this process is, and stays until it has come.
async fn see_off(
    reader: impl AsyncReadExt + Unpin,
    mut writer: impl AsyncWriteExt + Unpin,
    answering: &Answering,
) -> std::io::Result<()> {
    let mut stage = answering.departure.watch();
    let mut gone = std::pin::pin!(drained(reader));
    let mut told = None;
    loop {
        let left = answering.cache.as_ref().map(|cache| Left::of(cache)).unwrap_or_default();
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
    // The process ends when every such receiver is gone.
    drop(stage);
    gone.await;
    Ok(())
}

/// Waits until the other side has gone.
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

/// A request to a Leasehold that runs, and its answer line by line.
pub struct Asked {
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    /// Held open: to close it is to say that nobody waits any more.
    _writer: tokio::net::unix::OwnedWriteHalf,
}

impl Asked {
    /// Asks the Leasehold that runs on `directory`. `None` if none does.
    pub async fn of(directory: &Path, request: &Request) -> Result<Option<Asked>, Failure> {
        let path = socket(directory);
        let stream = match UnixStream::connect(&path).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let (path, whose) = (path.display(), directory.display());
                return Err(Failure(format!(
                    "cannot ask at {path}: {error}; ask as root or as the owner of {whose}"
                )));
            }
            Err(_) => return Ok(None),
        };
        let (reader, mut writer) = stream.into_split();
        let request =
            serde_json::to_value(request).map_err(|error| Failure(format!("cannot ask: {error}")))?;
        // One of an earlier version may answer, and be gone, before it is asked.
        let _ = send(&mut writer, &request).await;
        Ok(Some(Asked { reader: BufReader::new(reader), _writer: writer }))
    }

    /// The next line; `None` behind the last one.
    pub async fn line(&mut self) -> Result<Option<Value>, Failure> {
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_MAX_BYTES).read_line(&mut line).await;
        let length = read.map_err(|error| Failure(format!("the answer broke off: {error}; ask again")))?;
        if length == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| Failure(format!("the answer is not JSON: {error}")))
    }
}

/// What the Leasehold that runs on `directory` says of itself.
pub async fn ask(directory: &Path) -> Result<Value, Failure> {
    let path = socket(directory);
    let asked = Asked::of(directory, &Request::Status).await?;
    let mut asked = asked.ok_or_else(|| {
        let path = path.display();
        Failure(format!("nothing answers at {path}; name the cache directory of a running proxy or mount, or the state directory of a serve"))
    })?;
    asked.line().await?.ok_or_else(|| Failure(format!("nothing came from {}; ask again", path.display())))
}
