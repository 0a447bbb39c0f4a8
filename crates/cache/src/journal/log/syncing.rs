//! When entries are on the disk.
//!
//! A durable journal answers fsync: synced entries count after a restart of the machine, as after a kill. The
//! disk may then have lost any changes that were not synced, and kept later ones. Four rules make that safe:
//!
//! 1. Nothing is sent to the origin before its entry is synced. So an entry that came back is never older
//!    than the bytes there, unless a later entry came back too.
//! 2. A change of ours that is not an entry is sent after all earlier marks are synced. So no entry that came
//!    back undoes it.
//! 3. A segment is removed or emptied after all earlier marks are synced.
//! 4. The first entry of a file in a segment says that everything of the file before its number is over. So
//!    of several records of a file, the last one counts.
//!
//! A lease is returned, and a name removed or replaced, after all earlier marks are synced. Without that, an
//! entry that came back could not do harm, but would look like a conflict.
//!
//! The rules end when the disk refuses a sync, or takes too long for one. Bytes that the disk refuses an
//! entry are sent without one. In both cases no entry tells of a later change attribute. Entries that come
//! back then find a file that looks changed, and are kept instead of sent.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::header::SYNCED_AT;
use super::{Journal, Log};

/// How a journal syncs.
#[derive(Debug)]
pub struct Syncing {
    durable: bool,
    /// The rules apply: it is durable, or an earlier process has left segments of a durable one.
    careful: AtomicBool,
    /// A sync has failed. Nothing is known of what the disk has, then or later.
    failed: AtomicBool,
    /// Counts changes: frames, marks and new segments.
    changes: AtomicU64,
    /// All changes up to this one are on the disk.
    synced: AtomicU64,
    /// Held during a sync.
    one: Mutex<()>,
}

/// What a sync has to write out.
struct Unsynced {
    upto: u64,
    segments: Vec<(Arc<File>, u64)>,
    names: bool,
}

impl Syncing {
    pub fn new(durable: bool) -> Syncing {
        Syncing {
            durable,
            careful: AtomicBool::new(durable),
            failed: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            one: Mutex::default(),
        }
    }

    /// Can a sync answer an fsync, unless one has failed?
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Do the rules apply?
    pub fn is_careful(&self) -> bool {
        self.careful.load(Ordering::Relaxed)
    }

    /// Must a segment stay until the mark of this number is on the disk?
    pub fn holds_back(&self, marked: u64) -> bool {
        self.is_careful() && !self.has_failed() && marked > self.synced.load(Ordering::Relaxed)
    }

    /// Segments of a durable journal have been found.
    pub fn be_careful(&self) {
        self.careful.store(true, Ordering::Relaxed);
    }

    /// Do the rules apply for the sake of an earlier process only?
    pub fn is_leaving(&self) -> bool {
        self.is_careful() && !self.durable
    }

    /// Nothing is left of an earlier process.
    pub fn leave(&self) {
        self.careful.store(self.durable, Ordering::Relaxed);
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Journal {
    /// Can a sync of it answer an fsync?
    pub fn answers_fsync(&self) -> bool {
        self.syncing.durable && !self.syncing.has_failed()
    }

    /// Do the rules apply no more, because the disk failed?
    pub fn has_failed(&self) -> bool {
        self.syncing.is_careful() && self.syncing.has_failed()
    }

    /// The last change, if the rules apply and it is not on the disk. Does not wait for the disk.
    pub fn unsynced(&self) -> Option<u64> {
        if !self.syncing.is_careful() || self.syncing.has_failed() {
            return None;
        }
        let changes = self.syncing.changes.load(Ordering::Acquire);
        (!self.is_synced(changes)).then_some(changes)
    }

    /// Are all changes up to this one on the disk?
    pub fn is_synced(&self, upto: u64) -> bool {
        self.syncing.synced.load(Ordering::Acquire) >= upto
    }

    /// Waits until all changes up to this one are on the disk. One sync serves all that have come before it
    /// began. Blocks.
    ///
    /// # Errors
    /// Those of the disk. From then on the journal does not answer fsync.
    pub fn sync(&self, upto: u64) -> io::Result<()> {
        let _one = self.syncing.one.lock();
        // After an error, the system tells the next sync that all is well.
        if self.syncing.has_failed() {
            return Err(io::Error::other("an earlier sync has failed"));
        }
        let Some(unsynced) = self.collect(upto) else { return Ok(()) };
        self.write_out(&unsynced).inspect_err(|error| self.fail(&error.to_string()))?;
        let mut log = self.log.lock();
        self.syncing.synced.fetch_max(unsynced.upto, Ordering::AcqRel);
        self.tidy(&mut log);
        Ok(())
    }

    /// The disk has refused a sync, or is not done with it.
    pub fn fail(&self, why: &str) {
        if !self.syncing.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "journal of delayed writes {}: {why}; fsync waits for the origin from now on",
                self.directory.display()
            );
        }
    }

    /// Counts a change to a segment. Returns its number.
    pub(super) fn change(&self, log: &mut Log, number: u64) -> u64 {
        let now = self.syncing.changes.fetch_add(1, Ordering::AcqRel) + 1;
        log.segments.get_mut(&number).into_iter().for_each(|segment| segment.changed = now);
        now
    }

    fn collect(&self, upto: u64) -> Option<Unsynced> {
        let log = self.log.lock();
        let synced = self.syncing.synced.load(Ordering::Acquire);
        if synced >= upto {
            return None;
        }
        let changed = log.segments.values().filter(|segment| segment.changed > synced);
        let segments = changed.map(|segment| (segment.file.clone(), segment.bytes)).collect();
        let upto = self.syncing.changes.load(Ordering::Acquire);
        Some(Unsynced { upto, segments, names: log.made > synced })
    }

    fn write_out(&self, unsynced: &Unsynced) -> io::Result<()> {
        for (file, bytes) in &unsynced.segments {
            file.sync_data()?;
            file.write_all_at(&bytes.to_le_bytes(), SYNCED_AT)?;
        }
        if unsynced.names { self.sync_names() } else { Ok(()) }
    }

    /// Stores the names of the segments, and of their directory.
    pub(super) fn sync_names(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()?;
        self.directory.parent().map_or(Ok(()), |cache| File::open(cache)?.sync_all())
    }
}
