//! Backing files of remote files that change while they are open: rewritten in place.
//!
//! The kernel cannot exchange the backing file of an open, and its reads never reach this process. A
//! program that keeps a file open (`tail -f`, a database that is opened for reading) would read the old
//! bytes for as long as it runs. So the backing file gets the bytes of the changed file. This happens on
//! four occasions:
//! - A lock on the file is about to be granted through such an open.
//! - This mount has written the file, or its lease has ended.
//! - A reply to the kernel contains changed attributes.
//! - A check of the attributes shows a change. Checks are [`PAUSE`] apart; one is made when the attribute
//!   timeout ends, if that is sooner. Only that check costs a call.
//!
//! Before the first byte is written, the cache gives up the file (`vfs::Pinned::part`). Bytes are written
//! from the beginning, so that a file that has only grown never shows anything but its bytes. A reader of
//! an overwritten file may see old and new bytes side by side until the end of the refill.
//!
//! A large file may change all the time. Therefore the watcher rests after each refill: long enough for an
//! average of [`BYTES_PER_SECOND`], but at most [`REST_MAX`]. A refill always runs to completion: a part
//! that is written late would replace newer bytes.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Attributes, CompleteFile, Handle, WccAttributes};

use crate::device::Backing;
use crate::errno;
use crate::files::File as OpenFile;
use crate::front::Front;
use crate::inodes::Inode;

/// Time between two checks: at first, and at most while nothing changes.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// The longest rest after a refill.
const REST_MAX: Duration = Duration::from_secs(30);
/// Limit of bytes read per second, on average, of a file that changes all the time.
const BYTES_PER_SECOND: u64 = 16 << 20;
/// Bytes of one READ.
const PART_BYTES: u32 = 1 << 20;
/// How often a file that changed during the refill is read again at once.
const ROUNDS_MAX: usize = 3;
/// How long a GETATTR waits until the backing file has the bytes of the new attributes.
const PATIENCE: Duration = Duration::from_millis(300);

/// A backing file that the kernel reads, and the pin that keeps it in the cache.
pub struct Passed {
    /// Its registration with the kernel.
    pub backing: Backing,
    /// The state of the remote file whose bytes it has; none while it is rewritten.
    state: Mutex<Option<WccAttributes>>,
    /// Held by the refill in progress.
    turn: tokio::sync::Mutex<()>,
    /// Wakes the watcher.
    poked: Arc<Notify>,
    /// Woken by the end of each refill.
    refilled: Notify,
    /// The last refill has failed: waiting for the next one is pointless.
    failing: AtomicBool,
    /// Dropped last.
    complete: CompleteFile,
}

impl std::fmt::Debug for Passed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Passed")
            .field("backing", &self.backing)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        // Wakes the watcher, which then ends.
        self.poked.notify_one();
    }
}

impl Passed {
    /// A backing file with the bytes of `complete`.
    pub fn new(backing: Backing, complete: CompleteFile) -> Passed {
        let state = Mutex::new(Some(complete.attributes.wcc()));
        let (turn, poked, refilled, failing) = <_>::default();
        Passed { backing, state, turn, poked, refilled, failing, complete }
    }

    /// Does it have the bytes of this state?
    pub fn is_of(&self, state: WccAttributes) -> bool {
        *self.state.lock() == Some(state)
    }

    /// The remote file may have changed: wakes the watcher to check.
    pub fn poke(&self) {
        self.poked.notify_one();
    }

    /// Replaces the bytes from `offset` on, if they differ.
    async fn put(&self, offset: u64, bytes: Bytes) -> Result<(), Errno> {
        let file = self.complete.file.clone();
        blocking(move || {
            let mut old = vec![0; bytes.len()];
            if file.read_exact_at(&mut old, offset).is_ok() && old == bytes {
                return Ok(());
            }
            file.write_all_at(&bytes, offset)
        })
        .await
    }

    /// Takes the file away from the cache, and truncates it to `size` bytes at most.
    async fn take_over(&self, size: u64) -> Result<(), Errno> {
        let (pin, file) = (self.complete.pin.clone(), self.complete.file.clone());
        blocking(move || {
            pin.part();
            cut(&file, size)
        })
        .await
    }
}

/// Truncates a file that is longer than `size` bytes.
fn cut(file: &File, size: u64) -> std::io::Result<()> {
    if file.metadata()?.len() > size { file.set_len(size) } else { Ok(()) }
}

async fn blocking(work: impl FnOnce() -> std::io::Result<()> + Send + 'static) -> Result<(), Errno> {
    let done =
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    done.map_err(|error| {
        tracing::warn!("cannot write a cache file anew that the kernel reads: {error}");
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// The backing files in use, by remote file. A file whose node was retired has several. There are never
/// more than open files.
#[derive(Debug, Default)]
pub struct PassedFiles {
    table: Mutex<HashMap<Handle, Vec<Entry>>>,
}

/// A node, and its backing file.
type Entry = (u64, Weak<Passed>);

impl PassedFiles {
    fn enter(&self, inode: &Inode, passed: &Arc<Passed>) {
        let entry = (inode.number, Arc::downgrade(passed));
        self.table.lock().entry(inode.handle()).or_default().push(entry);
    }

    /// Removes the backing file of a node.
    pub fn leave(&self, inode: &Inode) {
        let mut table = self.table.lock();
        if let Some(entries) = table.get_mut(&inode.handle()) {
            entries.retain(|(node, _)| *node != inode.number);
            if entries.is_empty() {
                table.remove(&inode.handle());
            }
        }
    }

    /// The nodes of a file that have backing files, with these files.
    fn of(&self, handle: &Handle) -> Vec<(u64, Arc<Passed>)> {
        let table = self.table.lock();
        if table.is_empty() {
            return Vec::new();
        }
        let entries = table.get(handle).into_iter().flatten();
        entries.filter_map(|(node, passed)| Some((*node, passed.upgrade()?))).collect()
    }
}

impl Front {
    /// Gives a node a backing file and watches it until the node loses it.
    pub fn watch(&self, inode: &Arc<Inode>, passed: Passed) -> Arc<Passed> {
        let passed = Arc::new(passed);
        self.passed.enter(inode, &passed);
        let poked = passed.poked.clone();
        tokio::spawn(watch(self.this.clone(), inode.clone(), Arc::downgrade(&passed), poked));
        passed
    }

    /// A file has changed, or may have: the watchers check its backing files. Also invalidates the kernel's
    /// attributes of those nodes; otherwise a retired node would keep them.
    pub fn refill_soon(&self, handle: &Handle) {
        for (node, passed) in self.passed.of(handle) {
            passed.poke();
            self.notifier.attributes_later(node);
        }
    }

    /// Waits at most `PATIENCE` until the backing file of a node has the bytes of these attributes.
    pub async fn wait_for_refill(&self, inode: &Inode, now: &Attributes) {
        let Some(passed) = inode.state.lock().opened.backing.clone() else { return };
        let wait = async {
            loop {
                let refilled = passed.refilled.notified();
                tokio::pin!(refilled);
                refilled.as_mut().enable();
                if passed.is_of(now.wcc()) {
                    return;
                }
                passed.poke();
                if passed.failing.load(Ordering::Acquire) {
                    return;
                }
                refilled.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, wait).await;
    }

    /// Brings the backing file of an open to the current state.
    ///
    /// # Errors
    /// Those of the origin or of the local disk. Then the backing file may have old bytes.
    pub async fn refill_now(&self, file: &OpenFile) -> Result<(), Errno> {
        let Some(passed) = file.inode.state.lock().opened.backing.clone() else { return Ok(()) };
        self.refill(&file.inode, &passed).await.map(drop)
    }

    /// Rewrites a backing file if the remote file has another state. Returns the number of bytes read, or 1
    /// for an empty file.
    ///
    /// The bytes are read under one of the node's opens. A READ without an open might bring a lease that no
    /// open here has; then no recall of it would reach the kernel's caches.
    async fn refill(&self, inode: &Arc<Inode>, passed: &Passed) -> Result<u64, Errno> {
        let _turn = passed.turn.lock().await;
        let outcome = self.refill_in_turn(inode, passed).await;
        passed.failing.store(outcome.is_err(), Ordering::Release);
        passed.refilled.notify_waiters();
        outcome
    }

    async fn refill_in_turn(&self, inode: &Arc<Inode>, passed: &Passed) -> Result<u64, Errno> {
        let Some(open) = self.files.passed_of(inode) else { return Ok(0) };
        let mut bytes = 0;
        for _ in 0..ROUNDS_MAX {
            let now = self.fs.getattr(&open.caller, &inode.handle()).await.map_err(errno::of)?;
            if passed.is_of(now.wcc()) {
                break;
            }
            bytes += now.size.max(1);
            *passed.state.lock() = None;
            self.write_anew(&open, passed, now.size).await?;
            *passed.state.lock() = Some(now.wcc());
        }
        Ok(bytes)
    }

    async fn write_anew(&self, open: &OpenFile, passed: &Passed, size: u64) -> Result<(), Errno> {
        passed.take_over(size).await?;
        let mut offset = 0;
        while offset < size {
            let count = PART_BYTES.min(u32::try_from(size - offset).unwrap_or(PART_BYTES));
            let read = self.fs.read(&open.caller, &open.inode.handle(), open.by(), offset, count).await;
            let bytes = read.map_err(errno::of)?.data.to_bytes().map_err(|_| Errno::IO)?;
            if bytes.is_empty() {
                break;
            }
            let length = bytes.len() as u64;
            passed.put(offset, bytes).await?;
            offset += length;
        }
        // The file may have been truncated while it was read.
        let file = passed.complete.file.clone();
        blocking(move || cut(&file, offset)).await
    }
}

/// Time until the next check after one without a change: twice the last, but not beyond the end of the
/// attribute timeout.
fn next_pause(last: Duration, believed_until: Option<Instant>) -> Duration {
    let longer = (last * 2).min(PAUSE.1);
    let left = believed_until.map(|until| until.saturating_duration_since(Instant::now()));
    left.filter(|left| !left.is_zero()).map_or(longer, |left| left.clamp(PAUSE.0, longer))
}

/// Watches a file while it has this backing file.
async fn watch(front: Weak<Front>, inode: Arc<Inode>, passed: Weak<Passed>, poked: Arc<Notify>) {
    let mut pause = PAUSE.0;
    loop {
        let _ = tokio::time::timeout(pause, poked.notified()).await;
        let (Some(front), Some(passed)) = (front.upgrade(), passed.upgrade()) else { return };
        let outcome = front.refill(&inode, &passed).await;
        let believed = front.fs.believed_until(&inode.handle());
        drop((front, passed));
        pause = next_pause(pause, believed);
        match outcome {
            Ok(0) => {}
            Ok(bytes) => {
                pause = PAUSE.0;
                let rest = Duration::from_millis(bytes.saturating_mul(1000) / BYTES_PER_SECOND);
                tokio::time::sleep(rest.min(REST_MAX)).await;
            }
            // The file is gone, or a right was withdrawn: its opens keep the bytes that they have.
            Err(errno) => {
                tracing::debug!("{} stays as it was for the opens that it has: {errno}", inode.handle());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: passthrough
    #[tokio::test(start_paused = true)]
    async fn looks_are_further_apart_each_time_but_none_is_later_than_the_end_of_the_attribute_timeout() {
        let seconds = Duration::from_secs;
        let in_seconds = |number| Some(Instant::now() + seconds(number));
        assert_eq!(next_pause(seconds(1), None), seconds(2));
        assert_eq!(next_pause(seconds(4), None), seconds(5));
        assert_eq!(next_pause(seconds(5), in_seconds(3)), seconds(3));
        assert_eq!(next_pause(seconds(1), in_seconds(3)), seconds(2));
        assert_eq!(next_pause(seconds(2), in_seconds(0)), seconds(4), "a lease, or nothing is known");
    }
}
