//! The part of the local disk that belongs to the cache: its directory, index, data files and pins.
//!
//! The disk decides nothing. It stores, counts, and says how much space there is; [`crate::limits`] and the
//! cleaner decide what stays.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::store::index::FULL_BYTES;
use crate::store::{Directory, Index, ObjectFile, Objects, Pins, directory};
use crate::table::Object;

/// How old the figure of the free disk space may be.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// The largest number of large WRITEs of ours that are being stored on the local disk.
const STORING_MAX: usize = 32;
/// The least time between two warnings about a failing disk.
const WARNED_FOR: Duration = Duration::from_secs(60);

/// The cache's files.
pub struct LocalDisk {
    index: Index,
    objects: Arc<Objects>,
    pins: Pins,
    watch: DiskWatch,
    /// Data files to be removed.
    trash: Mutex<Vec<Arc<ObjectFile>>>,
    /// Objects whose data may not be durable, and since when they are queued.
    unsynced: Mutex<VecDeque<(Instant, Weak<Object>)>>,
    storing: Arc<Semaphore>,
    /// Identifies this run of the machine.
    boot: u64,
    warned: Mutex<Option<Instant>>,
    /// The last field: the directory's lock is released only after every file in the directory is closed.
    directory: Directory,
}

impl LocalDisk {
    /// The files in `directory`.
    pub fn new(directory: Directory, index: Index, objects: Arc<Objects>, pins: Pins) -> LocalDisk {
        LocalDisk {
            index,
            watch: DiskWatch::new(directory.objects()),
            objects,
            pins,
            trash: Mutex::default(),
            unsynced: Mutex::default(),
            storing: Arc::new(Semaphore::new(STORING_MAX)),
            boot: directory::boot_id(),
            warned: Mutex::new(None),
            directory,
        }
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The data files.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// The objects that an administrator has pinned.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Bytes free on the disk, as of half a second ago at most.
    pub fn free_bytes(&self) -> u64 {
        self.watch.free_bytes()
    }

    /// Looks at the free space now.
    pub fn look(&self) {
        self.watch.look();
    }

    /// Whether data can be recorded in the index. The last of the disk space is left to the index.
    pub fn can_record(&self) -> bool {
        !self.index.is_broken() && self.free_bytes() >= 2 * FULL_BYTES
    }

    /// Identifies this run of the machine. Data that was not synced in another run is lost.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Has these files removed soon.
    pub fn discard(&self, files: &mut Vec<Arc<ObjectFile>>) {
        self.trash.lock().append(files);
    }

    /// The files to be removed.
    pub fn take_trash(&self) -> Vec<Arc<ObjectFile>> {
        std::mem::take(&mut *self.trash.lock())
    }

    /// The object has data that may not be durable.
    pub fn note_unsynced(&self, object: &Arc<Object>) {
        self.unsynced.lock().push_back((Instant::now(), Arc::downgrade(object)));
    }

    /// The next object that has been queued for at least `age`. It may be gone meanwhile.
    pub fn next_unsynced(&self, age: Duration) -> Option<Weak<Object>> {
        let mut unsynced = self.unsynced.lock();
        match unsynced.front() {
            Some((since, _)) if since.elapsed() >= age => unsynced.pop_front().map(|(_, object)| object),
            _ => None,
        }
    }

    /// Waits until few enough large WRITEs of ours are being stored. `None` at the end of the process.
    pub async fn permit_storing(&self) -> Option<OwnedSemaphorePermit> {
        self.storing.clone().acquire_owned().await.ok()
    }

    /// Whether a warning about the disk is due. If it is, the caller logs one.
    pub fn may_warn(&self) -> bool {
        let mut warned = self.warned.lock();
        let due = warned.is_none_or(|at| at.elapsed() > WARNED_FOR);
        if due {
            *warned = Some(Instant::now());
        }
        due
    }
}

/// The free space of the disk.
#[derive(Debug)]
struct DiskWatch {
    path: PathBuf,
    free_bytes: AtomicU64,
    looked: Mutex<Option<Instant>>,
}

impl DiskWatch {
    fn new(path: PathBuf) -> DiskWatch {
        DiskWatch { path, free_bytes: AtomicU64::new(u64::MAX), looked: Mutex::new(None) }
    }

    fn free_bytes(&self) -> u64 {
        if let Some(mut looked) = self.looked.try_lock()
            && looked.is_none_or(|at| at.elapsed() >= WATCH_INTERVAL)
        {
            *looked = Some(Instant::now());
            self.look();
        }
        self.free_bytes.load(Ordering::Relaxed)
    }

    fn look(&self) {
        if let Ok(stat) = rustix::fs::statvfs(&self.path) {
            self.free_bytes.store(stat.f_bavail.saturating_mul(stat.f_frsize), Ordering::Relaxed);
        }
    }
}
