//! The table of names: finds files for processes that may not open kernel handles, and on file systems
//! without handles.
//!
//! For each file with such a handle the table knows the directories and names under which it was last seen.
//! To use a handle after its descriptor was closed, the server walks from the root by these names. At each
//! step it checks the inode and its birth time; if the walk fails, the handle is stale. So the table
//! follows renames and removals through this server. After one by another process of the machine, the
//! handles below are stale until a client lists the directories again.
//!
//! Each change is appended to `handles.log` with one `write` before the reply that contains the handle, so
//! it survives the process. It reaches the disk within seconds; a machine that loses power may lose the
//! most recent handles. The log is rewritten when more than half of it is outdated. Beyond a bound, the
//! least recently used entries are dropped.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use siphasher::sip::SipHasher13;
use vfs::{Handle, Name};

use super::Key;

const MAGIC: &[u8] = b"leasehold handles 1\n";
/// Limit of names kept for one file.
const PLACES_MAX: usize = 16;
/// Below this size a log is not rewritten.
const COMPACT_MIN_BYTES: u64 = 1 << 20;
/// Size of kind, length and checksum around the body of a record.
const FRAME_BYTES: usize = 1 + 2 + 4;
/// The longest body: key, parent and name with their lengths.
const BODY_MAX: usize = Key::LENGTH + 1 + Handle::MAX + Name::MAX;

/// A directory and a name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Handle of the directory.
    pub(crate) directory: Handle,
    /// Name in it.
    pub(crate) name: Name,
}

/// The table. All methods may block on the disk.
pub(crate) struct Table {
    inner: Mutex<Inner>,
    /// Held as long as the table is in use.
    _lock: File,
}

struct Inner {
    entries: HashMap<Key, Entry>,
    entries_max: usize,
    /// Counts uses, to find the oldest entries.
    clock: u64,
    live_bytes: u64,
    log: File,
    log_bytes: u64,
    synced: bool,
    path: PathBuf,
}

#[derive(Default)]
struct Entry {
    /// The packed places, the last seen first.
    places: Vec<Box<[u8]>>,
    used: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Change {
    Seen = 1,
    Gone = 2,
}

impl Table {
    /// Opens the table in the directory `state`, which is created if missing.
    ///
    /// # Errors
    /// `WouldBlock` if another process uses it.
    pub(crate) fn open(state: &Path, entries_max: usize) -> io::Result<Table> {
        std::fs::create_dir_all(state)?;
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(state.join("handles.lock"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let path = state.join("handles.log");
        let mut log = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        let entries = HashMap::new();
        let mut inner =
            Inner { entries, entries_max, clock: 0, live_bytes: 0, log, log_bytes: 0, synced: true, path };
        inner.replay(&bytes)?;
        Ok(Table { inner: Mutex::new(inner), _lock: lock })
    }

    /// Records that the file was seen under this name. On return the record survives the process.
    pub(crate) fn seen(&self, file: Key, place: &Place) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if let Some(directory) = table_key(&place.directory) {
            inner.touch(directory);
        }
        if inner
            .touch(file)
            .is_some_and(|entry| entry.places.first().is_some_and(|first| **first == *pack(place)))
        {
            return Ok(());
        }
        inner.append(Change::Seen, file, &pack(place))
    }

    /// Records that this name no longer leads to the file.
    pub(crate) fn gone(&self, file: Key, place: &Place) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let packed = pack(place);
        if inner.entries.get(&file).is_none_or(|entry| !entry.places.iter().any(|known| **known == *packed)) {
            return Ok(());
        }
        inner.append(Change::Gone, file, &packed)
    }

    /// The places where the file was seen, the last first.
    pub(crate) fn places(&self, file: Key) -> Vec<Place> {
        let mut inner = self.inner.lock();
        inner
            .touch(file)
            .map_or_else(Vec::new, |entry| entry.places.iter().filter_map(|place| unpack(place)).collect())
    }

    /// Writes the log to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if inner.synced {
            return Ok(());
        }
        inner.synced = true;
        let log = inner.log.try_clone()?;
        drop(inner);
        log.sync_data()
    }
}

impl Inner {
    fn touch(&mut self, key: Key) -> Option<&Entry> {
        self.clock += 1;
        let clock = self.clock;
        self.entries.get_mut(&key).map(|entry| {
            entry.used = clock;
            &*entry
        })
    }

    fn append(&mut self, change: Change, file: Key, place: &[u8]) -> io::Result<()> {
        let record = record(change, file, place);
        self.log.write_all(&record)?;
        self.log_bytes += record.len() as u64;
        self.synced = false;
        self.apply(change, file, place);
        if self.entries.len() > self.entries_max {
            self.drop_oldest();
        }
        if self.log_bytes > COMPACT_MIN_BYTES + 2 * self.live_bytes {
            self.compact()?;
        }
        Ok(())
    }

    fn apply(&mut self, change: Change, file: Key, place: &[u8]) {
        self.clock += 1;
        let entry = self.entries.entry(file).or_default();
        entry.used = self.clock;
        let before = entry.bytes();
        entry.places.retain(|known| **known != *place);
        if change == Change::Seen {
            entry.places.insert(0, place.into());
            entry.places.truncate(PLACES_MAX);
        }
        self.live_bytes = self.live_bytes + entry.bytes() - before;
        if entry.places.is_empty() {
            self.entries.remove(&file);
        }
    }

    /// Drops the least recently used eighth of the entries.
    fn drop_oldest(&mut self) {
        let mut uses: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
        let (_, &mut limit, _) = uses.select_nth_unstable(self.entries.len() / 8);
        self.entries.retain(|_, entry| entry.used > limit);
        self.live_bytes = self.entries.values().map(Entry::bytes).sum();
    }

    /// Writes a log with the current entries only, and replaces the old one.
    fn compact(&mut self) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut log = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&fresh)?;
        let mut writer = io::BufWriter::new(&mut log);
        writer.write_all(MAGIC)?;
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(_, entry)| entry.used);
        for (key, entry) in entries {
            for place in entry.places.iter().rev() {
                writer.write_all(&record(Change::Seen, *key, place))?;
            }
        }
        writer.flush()?;
        drop(writer);
        log.sync_data()?;
        std::fs::rename(&fresh, &self.path)?;
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        self.log_bytes = log.stream_position()?;
        self.log = log;
        Ok(())
    }

    /// Reads a log. Cuts off an incomplete record at its end, which a crash may leave.
    fn replay(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_default();
        while let Some((change, file, place, tail)) = next_record(rest) {
            self.apply(change, file, place);
            rest = tail;
        }
        let good = bytes.len() - rest.len();
        let unreadable = if bytes.starts_with(MAGIC) { rest.len() } else { bytes.len() };
        if unreadable > FRAME_BYTES + BODY_MAX {
            let aside = self.path.with_extension("damaged");
            std::fs::write(&aside, bytes)?;
            tracing::warn!(
                "{}: {unreadable} bytes are not readable, the handles they kept are stale; a copy is in {}",
                self.path.display(),
                aside.display()
            );
        }
        if good == 0 || unreadable == bytes.len() {
            self.log.set_len(0)?;
            self.log.rewind()?;
            self.log.write_all(MAGIC)?;
        } else {
            self.log.set_len(good as u64)?;
            self.log.seek(SeekFrom::Start(good as u64))?;
        }
        self.log_bytes = self.log.stream_position()?;
        Ok(())
    }
}

impl Entry {
    /// Its size in a log.
    fn bytes(&self) -> u64 {
        self.places.iter().map(|place| (FRAME_BYTES + Key::LENGTH + place.len()) as u64).sum()
    }
}

fn table_key(handle: &Handle) -> Option<Key> {
    match super::Parsed::parse(handle) {
        Some(super::Parsed::Table(key)) => Some(key),
        _ => None,
    }
}

fn pack(place: &Place) -> Vec<u8> {
    let directory = place.directory.as_bytes();
    let mut packed = vec![directory.len() as u8];
    packed.extend(directory);
    packed.extend(place.name.as_bytes());
    packed
}

fn unpack(packed: &[u8]) -> Option<Place> {
    let (&length, rest) = packed.split_first()?;
    let (directory, name) = rest.split_at_checked(length.into())?;
    Some(Place { directory: Handle::new(directory)?, name: Name::new(name).ok()? })
}

/// A record: the kind of change, the length of the body, the body, and a checksum of these.
fn record(change: Change, file: Key, place: &[u8]) -> Vec<u8> {
    let mut record = vec![change as u8];
    record.extend(((Key::LENGTH + place.len()) as u16).to_be_bytes());
    record.extend(file.to_bytes());
    record.extend(place);
    record.extend(checksum(&record));
    record
}

fn next_record(bytes: &[u8]) -> Option<(Change, Key, &[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(3)?;
    let length = usize::from(u16::from_be_bytes([header[1], header[2]]));
    let (body, rest) = rest.split_at_checked(length)?;
    let (check, rest) = rest.split_first_chunk::<4>()?;
    let (key, place) = body.split_at_checked(Key::LENGTH)?;
    let change = match header[0] {
        1 => Change::Seen,
        2 => Change::Gone,
        _ => return None,
    };
    (*check == checksum(&bytes[..3 + length])).then_some((change, Key::parse(key)?, place, rest))
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    (hasher.finish() as u32).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(inode: u64) -> Key {
        Key { tag: 0, inode, birth: 7 }
    }

    fn place(directory: u64, name: &str) -> Place {
        let directory = super::super::Parsed::Table(key(directory)).handle().unwrap();
        Place { directory, name: Name::new(name.as_bytes()).unwrap() }
    }

    #[test]
    fn places_survive_a_restart_and_a_torn_end() {
        let state = tempfile::tempdir().unwrap();
        let table = Table::open(state.path(), 100).unwrap();
        table.seen(key(1), &place(0, "a")).unwrap();
        table.seen(key(1), &place(0, "b")).unwrap();
        table.seen(key(2), &place(1, "c")).unwrap();
        table.gone(key(2), &place(1, "c")).unwrap();
        assert!(Table::open(state.path(), 100).is_err(), "one user at a time");
        drop(table);
        let path = state.path().join("handles.log");
        let complete = std::fs::read(&path).unwrap();
        std::fs::write(&path, &complete[..complete.len() - 3]).unwrap();
        let table = Table::open(state.path(), 100).unwrap();
        assert_eq!(table.places(key(1)), [place(0, "b"), place(0, "a")]);
        assert_eq!(table.places(key(2)), [place(1, "c")], "its removal was torn off");
        table.seen(key(3), &place(1, "d")).unwrap();
        drop(table);
        assert_eq!(Table::open(state.path(), 100).unwrap().places(key(3)), [place(1, "d")]);
    }

    #[test]
    fn a_damaged_log_is_kept_aside() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("handles.log"), [0x55; 5000]).unwrap();
        let table = Table::open(state.path(), 100).unwrap();
        table.seen(key(1), &place(0, "a")).unwrap();
        drop(table);
        assert_eq!(std::fs::read(state.path().join("handles.damaged")).unwrap(), [0x55; 5000]);
        assert_eq!(Table::open(state.path(), 100).unwrap().places(key(1)), [place(0, "a")]);
    }

    #[test]
    fn log_and_table_stay_bounded() {
        let state = tempfile::tempdir().unwrap();
        let table = Table::open(state.path(), 64).unwrap();
        for round in 0..60_000 {
            table.seen(key(round % 100), &place(0, &format!("name-{round}"))).unwrap();
        }
        let bytes = std::fs::metadata(state.path().join("handles.log")).unwrap().len();
        assert!(bytes < 2 * COMPACT_MIN_BYTES, "{bytes}");
        assert!(table.inner.lock().entries.len() <= 64);
        assert!(!table.places(key(59_999 % 100)).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_log(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0..60usize) {
            let mut log = MAGIC.to_vec();
            log.extend(record(Change::Seen, key(1), &pack(&place(0, "a"))));
            log.truncate(log.len().saturating_sub(cut));
            log.extend(bytes);
            let state = tempfile::tempdir().unwrap();
            std::fs::write(state.path().join("handles.log"), log).unwrap();
            let table = Table::open(state.path(), 100).unwrap();
            table.seen(key(9), &place(0, "z")).unwrap();
            drop(table);
            prop_assert_eq!(Table::open(state.path(), 100).unwrap().places(key(9)), [place(0, "z")]);
        }
    }
}
