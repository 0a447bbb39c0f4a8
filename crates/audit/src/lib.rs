//! The audit log: who did what to which file, from where, and what came of it.
//!
//! [`Audited`] is a layer over a file system of a server. It passes each operation on and, when that has
//! ended, makes a record of it. A thread of its own finds the path and writes a line of JSON, so an operation
//! waits for the log only if [`RECORDS_MAX`] records wait already. No record is left out then.
//!
//! The thread writes records of changes at once. With [`Scope::All`], the others follow within a hundredth
//! of a second, which a process that is killed leaves out. Those that one user repeats on a file in that time
//! are one record with their number: operations that change nothing, and READs and WRITEs.
//!
//! A path is that under which the file is known when the line is written. If another client has renamed a
//! directory meanwhile, it is the new path. If the file is gone, it is the last path that was found, or none.

mod layer;
mod line;
mod paths;
mod queue;
mod record;
mod writer;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Caller, Handle, Principal, Status};

pub use layer::Audited;
use queue::Queue;
use record::{Record, Subject};

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

/// An export that is served. One that is served later has another number.
struct Exported {
    number: u64,
    of: Export,
}

/// The log. All exports of a process share it.
pub struct Audit {
    scope: Scope,
    queue: Arc<Queue>,
    /// Exports so far.
    exports: AtomicU64,
    /// The file is to be opened again, because it was renamed.
    reopen: Arc<AtomicBool>,
    written: Mutex<HashMap<Writing, Instant>>,
}

/// It is over when a record is in the queue.
type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A file, and the client and user who write to it.
type Writing = (Handle, Option<IpAddr>, u32);

impl Audit {
    /// Opens the log.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(destination: Destination, scope: Scope) -> io::Result<Arc<Audit>> {
        let (queue, reopen) = (Arc::new(Queue::default()), Arc::new(AtomicBool::new(false)));
        let writer = writer::Writer::open(destination, reopen.clone())?;
        let waiting = queue.clone();
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Arc::new(Audit { scope, queue, exports: AtomicU64::new(0), reopen, written: Mutex::default() }))
    }

    /// The file has been renamed, as logrotate(8) does: opens it anew before the next line.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Waits until all records so far are written.
    pub async fn flush(&self) {
        self.queue.flush().await;
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

    /// Records an operation. If the queue is full, the answer is what waits for it.
    fn record(
        self: &Arc<Audit>,
        export: &Arc<Exported>,
        caller: &Caller,
        operation: &'static str,
        subject: Subject,
        result: Result<(), Status>,
    ) -> Option<Wait> {
        self.wait(self.queue.put(Record {
            at: SystemTime::now(),
            client: caller.client,
            user: user(caller),
            operation,
            export: export.clone(),
            subject,
            result,
            times: 1,
        }))
    }

    /// What waits for the capacity for a record that the queue did not take.
    fn wait(self: &Arc<Audit>, put: Result<(), Box<Record>>) -> Option<Wait> {
        let refused = put.err()?;
        let audit = self.clone();
        Some(Box::pin(async move { audit.queue.put_later(refused).await }))
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn user(caller: &Caller) -> Option<(u32, u32)> {
    match &caller.principal {
        Principal::Unix(credential) => Some((credential.uid, credential.gid)),
        Principal::Machine => None,
    }
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("scope", &self.scope).finish_non_exhaustive()
    }
}
