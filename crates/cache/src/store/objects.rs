//! One sparse data file on the local disk per cached remote file: `objects/xx/<id>`.
//!
//! An id is never used twice, so a record of the index refers to the file that it meant, or to none. A data
//! file is written in place only where no reader has pinned it ([`ObjectFile::is_pinned`]). It is never
//! truncated, and removed only as a whole.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use vfs::Fsid;

use super::sparse;
use crate::ranges::overlap;

/// The largest number of files that are kept open without a reader.
const OPEN_MAX: usize = 256;

/// Up to this many bytes are written to, or read from, the page cache on the async worker itself.
pub const INLINE_BYTES: usize = 64 << 10;

/// Identifies a file of the store: sixty-four random bits of the process that made it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u128);

impl FileId {
    /// Was it made by the process with this nonce?
    pub fn is_of(self, nonce: u64) -> bool {
        (self.0 >> 64) as u64 == nonce
    }

    /// Its number in its process.
    pub fn number(self) -> u64 {
        self.0 as u64
    }

    /// The id in a file name, if the name is one.
    pub fn parse(name: &str) -> Option<FileId> {
        (name.len() == 32).then(|| u128::from_str_radix(name, 16).ok().map(FileId))?
    }

    fn path(self, root: &Path) -> PathBuf {
        root.join(format!("{:02x}", self.0 as u8)).join(format!("{:032x}", self.0))
    }
}

/// All files of the store.
#[derive(Debug)]
pub struct Objects {
    root: PathBuf,
    nonce: u64,
    next: AtomicU64,
    /// Bytes of disk in use by files of the store.
    used_bytes: AtomicU64,
    /// The same for each file system of the origin.
    shares: Mutex<HashMap<Fsid, Arc<AtomicU64>>>,
    open: Mutex<std::collections::VecDeque<Weak<ObjectFile>>>,
}

impl Objects {
    /// The store in this directory, with the bytes that it is believed to use. `nonce` must be new in every
    /// process.
    pub fn new(root: PathBuf, nonce: u64, used_bytes: u64) -> Arc<Objects> {
        let (next, used_bytes) = (AtomicU64::new(0), AtomicU64::new(used_bytes));
        let (shares, open) = (Mutex::default(), Mutex::default());
        Arc::new(Objects { root, nonce, next, used_bytes, shares, open })
    }

    /// A file with a new id, for data of this file system. Nothing is on disk before the first write.
    pub fn create(self: &Arc<Objects>, fsid: Fsid) -> Arc<ObjectFile> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.file(FileId(u128::from(self.nonce) << 64 | u128::from(number)), 0, fsid)
    }

    /// A file that the index knows.
    pub fn file(self: &Arc<Objects>, id: FileId, allocated_bytes: u64, fsid: Fsid) -> Arc<ObjectFile> {
        Arc::new(ObjectFile {
            id,
            store: self.clone(),
            file: Mutex::new(Opened { file: None, made: !id.is_of(self.nonce), removed: false }),
            pins: Mutex::default(),
            growth: RwLock::new(()),
            allocated_bytes: AtomicU64::new(allocated_bytes),
            share: self.share(fsid),
        })
    }

    fn share(&self, fsid: Fsid) -> Arc<AtomicU64> {
        self.shares.lock().entry(fsid).or_default().clone()
    }

    /// Bytes of disk in use by data of each file system of the origin.
    pub fn shares(&self) -> Vec<(Fsid, u64)> {
        self.shares.lock().iter().map(|(fsid, used)| (*fsid, used.load(Ordering::Relaxed))).collect()
    }

    /// Bytes of disk in use by data of one file system.
    pub fn share_bytes(&self, fsid: Fsid) -> u64 {
        self.shares.lock().get(&fsid).map_or(0, |used| used.load(Ordering::Relaxed))
    }

    /// Sets the bytes in use of one file system, as the index has them or as a sweep found them.
    pub fn set_share(&self, fsid: Fsid, used_bytes: u64) {
        self.share(fsid).store(used_bytes, Ordering::Relaxed);
    }

    /// Bytes of disk in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Corrects the bytes in use by the drift that a sweep has found.
    pub fn correct_used_bytes(&self, by: i64) {
        if by < 0 {
            self.begin(by.unsigned_abs());
        } else {
            self.used_bytes.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    /// The number of the next file. The files of this process with a lower number have been made.
    pub fn next_number(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The directory of the files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The first half of the ids of this process.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    fn begin(&self, bytes: u64) {
        let _ = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }

    /// Remembers that a file is open. If too many are, closes the one that was opened longest ago.
    fn opened(&self, file: &Arc<ObjectFile>) {
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(file));
        let oldest = if open.len() > OPEN_MAX { open.pop_front() } else { None };
        drop(open);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade())
            && !Arc::ptr_eq(&oldest, file)
        {
            oldest.file.lock().file = None;
        }
    }
}

#[derive(Debug)]
struct Opened {
    file: Option<Arc<File>>,
    /// The file has been on disk. If it is missing now, its data is lost.
    made: bool,
    removed: bool,
}

/// One file of the store.
#[derive(Debug)]
pub struct ObjectFile {
    /// Its id.
    pub id: FileId,
    store: Arc<Objects>,
    file: Mutex<Opened>,
    pins: Mutex<Vec<Range<u64>>>,
    /// Held for writing by a task that sets the length, and for reading by a task that writes: see
    /// [`sparse`].
    growth: RwLock<()>,
    allocated_bytes: AtomicU64,
    /// Bytes in use by data of its file system.
    share: Arc<AtomicU64>,
}

impl ObjectFile {
    /// The open file. Made if it does not exist and has not been on disk before.
    fn open(self: &Arc<ObjectFile>) -> io::Result<Arc<File>> {
        let mut opened = self.file.lock();
        if let Some(file) = &opened.file {
            return Ok(file.clone());
        }
        if opened.removed {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.id.path(&self.store.root);
        let file = Arc::new(open_at(&path, !opened.made)?);
        opened.made = true;
        opened.file = Some(file.clone());
        drop(opened);
        self.store.opened(self);
        Ok(file)
    }

    /// Pins a range for reading: until the pin is dropped, no task writes there.
    pub fn pin(self: &Arc<ObjectFile>, range: Range<u64>) -> Pin {
        self.pins.lock().push(range.clone());
        Pin { file: self.clone(), range }
    }

    /// Does this error tell that the cache removed the file itself, in this process or an earlier one? If a
    /// process was killed, the index may not know of its last removals.
    pub fn is_taken_away(&self, error: &io::Error) -> bool {
        let ours = self.file.lock().removed || !self.id.is_of(self.store.nonce);
        ours && error.kind() == io::ErrorKind::NotFound
    }

    /// Is a reader using any of this range?
    pub fn is_pinned(&self, range: &Range<u64>) -> bool {
        self.pins.lock().iter().any(|pinned| overlap(pinned, range))
    }

    /// Writes bytes. Runs off the async worker if there are many.
    pub async fn write(self: &Arc<ObjectFile>, offset: u64, bytes: Bytes) -> io::Result<()> {
        if bytes.len() <= INLINE_BYTES {
            return self.write_now(offset, &bytes);
        }
        let this = self.clone();
        blocking(move || this.write_now(offset, &bytes)).await
    }

    fn write_now(self: &Arc<ObjectFile>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.open()?;
        let written = sparse::write_all_at(&file, &self.growth, bytes, offset);
        let allocated = file.metadata()?.blocks() * 512;
        self.account(allocated);
        if self.file.lock().removed {
            // The file was removed meanwhile: its space is no longer counted.
            self.account(0);
        }
        written
    }

    /// Records how many bytes of disk the file uses now.
    fn account(&self, allocated: u64) {
        let before = self.allocated_bytes.swap(allocated, Ordering::Relaxed);
        for counter in [&self.store.used_bytes, &*self.share] {
            let count = |used: u64| {
                Some(used.saturating_sub(before.saturating_sub(allocated)) + allocated.saturating_sub(before))
            };
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        }
    }

    /// Makes what was written durable. Blocks.
    pub fn sync(self: &Arc<ObjectFile>) -> io::Result<()> {
        self.open()?.sync_data()
    }

    /// Bytes of disk that it uses.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// Removes the file from the disk. A reader that has it open continues. Blocks while the disk frees the
    /// space.
    pub fn remove(&self) {
        let mut opened = self.file.lock();
        if opened.removed {
            return;
        }
        opened.removed = true;
        opened.file = None;
        drop(opened);
        let _ = std::fs::remove_file(self.id.path(&self.store.root));
        self.account(0);
    }

    /// Opens the file again, to read it from start to end. Blocks.
    pub fn open_again(&self) -> io::Result<File> {
        File::open(self.id.path(&self.store.root))
    }
}

fn open_at(path: &Path, make: bool) -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).create(make).truncate(false).open(path);
    match open() {
        Err(error) if make && error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            open()
        }
        other => other,
    }
}

/// A range that is being read.
#[derive(Debug)]
pub struct Pin {
    file: Arc<ObjectFile>,
    range: Range<u64>,
}

impl Pin {
    /// The range.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The file that is being read.
    pub fn file(&self) -> &Arc<ObjectFile> {
        &self.file
    }

    /// The open file, if it contains all of the range. A file that somebody has truncated counts as missing.
    pub fn open(&self) -> io::Result<Arc<File>> {
        let file = self.file.open()?;
        if file.metadata()?.len() < self.range.end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(file)
    }

    /// The bytes of the range. Runs off the async worker unless the page cache has them.
    pub async fn read(&self) -> io::Result<Vec<u8>> {
        use rustix::io::{ReadWriteFlags, preadv2};
        let file = self.file.open()?;
        let length = (self.range.end - self.range.start) as usize;
        let mut buffer = vec![0; length];
        let at_once = preadv2(
            &*file,
            &mut [io::IoSliceMut::new(&mut buffer)],
            self.range.start,
            ReadWriteFlags::NOWAIT,
        );
        match at_once {
            Ok(read) if read == length => return Ok(buffer),
            // A file system in memory does not know the flag, and does not need it.
            Err(rustix::io::Errno::OPNOTSUPP) => {
                file.read_exact_at(&mut buffer, self.range.start)?;
                return Ok(buffer);
            }
            _ => {}
        }
        let start = self.range.start;
        blocking(move || {
            file.read_exact_at(&mut buffer, start)?;
            Ok(buffer)
        })
        .await
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.file.pins.lock();
        if let Some(at) = pins.iter().position(|pinned| *pinned == self.range) {
            pins.swap_remove(at);
        }
    }
}

/// Runs work that may block, on a thread for blocking work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(nonce: u64) -> (tempfile::TempDir, Arc<Objects>) {
        let directory = tempfile::tempdir().unwrap();
        let store = Objects::new(directory.path().into(), nonce, 0);
        (directory, store)
    }

    #[tokio::test]
    async fn bytes_come_back_and_are_counted_until_removed() {
        let (_directory, store) = store(7);
        let file = store.create(Fsid::default());
        file.write(100_000, Bytes::from_static(b"abc")).await.unwrap();
        assert!(store.used_bytes() >= 4096 && store.used_bytes() < 100_000, "sparse: {}", store.used_bytes());
        let pin = file.pin(100_000..100_003);
        assert!(file.is_pinned(&(100_002..200_000)) && !file.is_pinned(&(0..100_000)));
        assert_eq!(pin.read().await.unwrap(), b"abc");
        file.remove();
        assert_eq!(store.used_bytes(), 0);
        assert_eq!(store.shares(), [(Fsid::default(), 0)]);
        drop(pin);
        assert!(!file.is_pinned(&(0..u64::MAX)));
        assert!(file.write(0, Bytes::from_static(b"x")).await.is_err(), "removed for good");
    }

    #[tokio::test]
    async fn files_of_older_processes_are_not_made_anew() {
        let (directory, store) = store(7);
        let old = store.file(FileId(5), 0, Fsid::default());
        let gone = old.pin(0..1).read().await.unwrap_err();
        assert!(old.is_taken_away(&gone));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_file_that_somebody_deleted_does_not_come_back_empty() {
        let (directory, store) = store(7);
        let file = store.create(Fsid::default());
        file.write(0, Bytes::from_static(b"abc")).await.unwrap();
        file.file.lock().file = None;
        std::fs::remove_dir_all(directory.path().join("00")).unwrap();
        assert!(file.write(4096, Bytes::from_static(b"abc")).await.is_err());
        let gone = file.pin(0..3).read().await.unwrap_err();
        assert!(!file.is_taken_away(&gone), "that is worth a word");
    }

    #[tokio::test]
    async fn what_we_removed_is_missing_and_no_failure_of_the_disk() {
        let (_directory, store) = store(7);
        let file = store.create(Fsid::default());
        file.write(0, Bytes::from_static(b"abc")).await.unwrap();
        let pin = file.pin(0..3);
        file.remove();
        assert!(file.is_taken_away(&pin.read().await.unwrap_err()));
        assert!(file.is_taken_away(&pin.open().unwrap_err()));
        assert!(file.is_taken_away(&file.write(3, Bytes::from_static(b"d")).await.unwrap_err()));
        assert!(!file.is_taken_away(&io::ErrorKind::StorageFull.into()));
    }

    #[tokio::test]
    async fn the_number_of_open_files_is_bounded() {
        let (_directory, store) = store(7);
        let files: Vec<_> = (0..OPEN_MAX + 50).map(|_| store.create(Fsid::default())).collect();
        for file in &files {
            file.write(0, Bytes::from_static(b"x")).await.unwrap();
        }
        let open = files.iter().filter(|file| file.file.lock().file.is_some()).count();
        assert!(open <= OPEN_MAX, "{open}");
        assert_eq!(files[0].pin(0..1).read().await.unwrap(), b"x", "opened again");
    }

    #[test]
    fn ids_are_their_names() {
        let id = FileId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let path = id.path(Path::new("/o"));
        assert_eq!(path, Path::new("/o/77/0123456789abcdef0011223344556677"));
        assert_eq!(FileId::parse("0123456789abcdef0011223344556677"), Some(id));
        assert_eq!(FileId::parse("xyz"), None);
        assert!(id.is_of(0x0123_4567_89ab_cdef));
    }
}
