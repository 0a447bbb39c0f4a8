//! The audit log: who did what to which file, from where, and what came of it.
//!
//! [`Audited`] is a layer over a file system of a server. It passes each operation on and, when that has
//! ended, makes a record of it. A thread of its own finds the path and writes a line of JSON, so an operation
//! waits for the log only if [`RECORDS_MAX`] records wait already. No record is left out then.
//!
//! A path is that under which the file is known when the line is written. If another client has renamed a
//! directory meanwhile, it is the new path. If the file is gone, it is the last path that was found.

mod layer;
mod line;
mod writer;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use vfs::{Caller, Handle, Name, Principal, Status};

pub use layer::Audited;

/// Records that may wait to be written. Then operations wait.
pub const RECORDS_MAX: usize = 1 << 16;
/// Under [`Scope::Changes`], WRITEs of one user to one file are recorded again after this time.
const WRITES_EVERY: Duration = Duration::from_secs(60);
/// Files whose last recorded WRITE is remembered.
const WRITTEN_MAX: usize = 4096;

/// The operations that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those that change something, and opens for writing. WRITEs without an open are recorded once a minute
    /// for each user and file.
    Changes,
    /// All on files, but for locks, closes and leases.
    All,
}

/// Where the lines go.
pub enum Destination {
    /// To the end of this file, which is made with mode 0600.
    File(Box<Path>),
    /// To this function.
    Lines(Box<dyn Fn(&str) + Send>),
}

/// Finds the path of a file below its export. It may wait for the disk.
pub type Find = dyn Fn(&Handle) -> Option<Vec<u8>> + Send + Sync;

/// An export, as its records name it.
pub struct Export {
    /// Its path.
    pub path: String,
    /// Finds the paths of its files.
    pub find: Arc<Find>,
}

/// The log. All exports of a process share it.
#[derive(Debug)]
pub struct Audit {
    scope: Scope,
    records: mpsc::Sender<Message>,
    /// The file is to be opened again, because it was renamed.
    reopen: Arc<AtomicBool>,
    written: Mutex<HashMap<Writing, Instant>>,
}

/// A file, and the client and user who write to it.
type Writing = (Handle, Option<IpAddr>, u32);

/// A message to the thread.
enum Message {
    Record(Box<Record>),
    /// Everything before is to be in the file; then answer.
    Flush(oneshot::Sender<()>),
}

/// One operation.
struct Record {
    at: SystemTime,
    client: Option<IpAddr>,
    user: Option<(u32, u32)>,
    operation: &'static str,
    export: Arc<Export>,
    subject: Subject,
    result: Result<(), Status>,
}

/// The files that an operation is about.
#[derive(Debug, Default)]
struct Subject {
    /// The file, or the directory of `name`.
    at: Option<Handle>,
    name: Option<Name>,
    /// The second file of a rename, a link, or a copy.
    to: Option<(Handle, Option<Name>)>,
    /// Further fields of the line: the attributes that are set, the bytes that are read or written.
    more: Vec<(&'static str, serde_json::Value)>,
}

impl Audit {
    /// Opens the log.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(destination: Destination, scope: Scope) -> io::Result<Arc<Audit>> {
        let (records, waiting) = mpsc::channel(RECORDS_MAX);
        let reopen = Arc::new(AtomicBool::new(false));
        let writer = writer::Writer::open(destination, reopen.clone())?;
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(waiting))?;
        Ok(Arc::new(Audit { scope, records, reopen, written: Mutex::default() }))
    }

    /// The file has been renamed, as logrotate(8) does: opens it anew before the next line.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Waits until all records so far are written.
    pub async fn flush(&self) {
        let (answer, answered) = oneshot::channel();
        if self.records.send(Message::Flush(answer)).await.is_ok() {
            let _ = answered.await;
        }
    }

    fn records_all(&self) -> bool {
        self.scope == Scope::All
    }

    /// Is a WRITE of this user to this file due to be recorded?
    fn write_is_due(&self, caller: &Caller, handle: &Handle) -> bool {
        let key = (*handle, caller.client, user(caller).map_or(u32::MAX, |(uid, _)| uid));
        let (now, mut written) = (Instant::now(), self.written.lock());
        if written.get(&key).is_some_and(|at| now.duration_since(*at) < WRITES_EVERY) {
            return false;
        }
        if written.len() >= WRITTEN_MAX {
            written.clear();
        }
        written.insert(key, now);
        true
    }

    async fn record(
        &self,
        export: &Arc<Export>,
        caller: &Caller,
        operation: &'static str,
        subject: Subject,
        result: Result<(), Status>,
    ) {
        let record = Record {
            at: SystemTime::now(),
            client: caller.client,
            user: user(caller),
            operation,
            export: export.clone(),
            subject,
            result,
        };
        // It fails only if the thread has ended, which it does at the end of the process.
        let _ = self.records.send(Message::Record(Box::new(record))).await;
    }
}

fn user(caller: &Caller) -> Option<(u32, u32)> {
    match &caller.principal {
        Principal::Unix(credential) => Some((credential.uid, credential.gid)),
        Principal::Machine => None,
    }
}

impl Subject {
    fn of(handle: &Handle) -> Subject {
        Subject { at: Some(*handle), ..Subject::default() }
    }

    fn named(directory: &Handle, name: &Name) -> Subject {
        Subject { at: Some(*directory), name: Some(name.clone()), ..Subject::default() }
    }

    fn to(self, handle: &Handle, name: Option<&Name>) -> Subject {
        Subject { to: Some((*handle, name.cloned())), ..self }
    }

    fn with(mut self, field: &'static str, value: impl Into<serde_json::Value>) -> Subject {
        self.more.push((field, value.into()));
        self
    }
}
