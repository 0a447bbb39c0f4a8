//! How many bytes may be delayed and for how long, and which writers wait: the accounts of all files, and
//! the background writer.
//!
//! Files with delayed bytes queue by the age of their oldest byte. The background writer sends the file at
//! the front when it has reached the age limit, or when more than half of the bytes allowed for all files
//! are waiting. A writer waits while its file or all files together are at their limit. It goes on as soon
//! as there is capacity again.

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use vfs::Handle;

use super::cover::Spaces;
use super::file::{Version, Writes};
use super::flush::Level;
use super::losses::Losses;
use super::restoring::Waiting;
use super::verifier::WriteVerifier;
use crate::core::Core;
use crate::journal::Journal;
use crate::options::WriteBehind;
use crate::table::Object;

/// Slots for WRITEs before the bandwidth of the link is known.
const SLOTS_AT_FIRST: usize = 16;
/// Most files that the background writer sends at a time.
const FLUSHES_MAX: usize = 32;
/// A file that takes longer no longer counts among those: the origin may put it off for any length of time.
const FLUSH_COUNTS_FOR: Duration = Duration::from_secs(10);

/// What all files of a cache with delayed writes share.
#[derive(Debug)]
pub struct Delayed {
    /// The limits.
    pub options: WriteBehind,
    /// Slots for WRITEs in flight, over all files.
    pub slots: Arc<Semaphore>,
    /// How many slots there are.
    slot_count: Mutex<usize>,
    /// The verifier in our replies to WRITE and COMMIT.
    pub verifier: WriteVerifier,
    /// Makes change attributes, if several clients read here.
    keys: Option<RandomState>,
    /// Accounts of what may stay unsent after a close, by file system.
    pub spaces: Spaces,
    /// Bytes that were lost after a close.
    pub losses: Losses,
    /// Where delayed writes outlast the process.
    pub journal: Arc<Journal>,
    /// Files of the journal that the origin must be asked about.
    pub waiting: Waiting,
    /// Held during a sync of the journal.
    pub syncing: tokio::sync::Mutex<()>,
    /// Tells the WRITEs on their way that a file was suspended.
    pub suspensions: Notify,
    /// How long the machine had slept since its start when the origin last answered a WRITE, in
    /// milliseconds.
    slept_ms: AtomicU64,
    /// The contents of some removed file were dropped.
    pub has_dropped: AtomicBool,
    /// A sync of the journal is about to begin.
    sync_is_due: AtomicBool,
    /// Counts the records of delayed writes that were made.
    begun: AtomicU64,
    /// Bytes with the overhead of their runs, and reserved capacity.
    cost: AtomicU64,
    bytes: AtomicU64,
    /// Files with anything delayed.
    files: AtomicU64,
    queue: Mutex<Queue>,
    flushes: Arc<Semaphore>,
    /// Wakes the background writer.
    wake: Arc<Notify>,
    /// Wakes writers when there is capacity again.
    space: Notify,
}

/// The shortest sleep that is noticed.
const SLEEP_MIN_MS: u64 = 500;

/// How long the machine has slept since its start, in milliseconds.
fn slept_ms() -> u64 {
    let now = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    };
    (now(ClockId::Boottime) - now(ClockId::Monotonic)).max(0) as u64
}

/// By age, then in order of arrival.
type Queue = (BTreeMap<(Instant, u64), Arc<Object>>, u64);

impl Delayed {
    /// Nothing is delayed yet.
    pub fn new(options: WriteBehind, verifier: WriteVerifier, journal: Journal) -> Delayed {
        let slots = options.in_flight_max.clamp(1, SLOTS_AT_FIRST);
        Delayed {
            slots: Arc::new(Semaphore::new(slots)),
            slot_count: Mutex::new(slots),
            verifier,
            keys: options.shared.then(RandomState::new),
            spaces: Spaces::default(),
            losses: Losses::default(),
            journal: Arc::new(journal),
            waiting: Waiting::default(),
            syncing: tokio::sync::Mutex::default(),
            suspensions: Notify::new(),
            slept_ms: AtomicU64::new(slept_ms()),
            has_dropped: AtomicBool::new(false),
            sync_is_due: AtomicBool::new(false),
            begun: AtomicU64::new(1),
            cost: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            queue: Mutex::default(),
            flushes: Arc::new(Semaphore::new(FLUSHES_MAX)),
            wake: Arc::default(),
            space: Notify::new(),
            options,
        }
    }

    /// A new record of the delayed writes of a file, for WRITEs of at most `chunk` bytes. Its numbers are
    /// beyond those of all earlier records.
    pub fn new_record(&self, chunk: u64) -> Box<Writes> {
        let first = self.begun.fetch_add(1, Ordering::Relaxed) << 32;
        Box::new(Writes::new(chunk, first, Version::new(self.keys.clone(), first)))
    }

    /// The origin has answered a WRITE.
    pub fn heard(&self) {
        self.slept_ms.store(slept_ms(), Ordering::Relaxed);
    }

    /// Has the machine slept since the origin last answered a WRITE?
    pub fn has_slept(&self) -> bool {
        slept_ms() > self.slept_ms.load(Ordering::Relaxed) + SLEEP_MIN_MS
    }

    /// Someone is about to sync the journal soon. Returns true if that was so already.
    pub fn begin_sync_soon(&self) -> bool {
        self.sync_is_due.swap(true, Ordering::Relaxed)
    }

    /// That sync begins.
    pub fn end_sync_soon(&self) {
        self.sync_is_due.store(false, Ordering::Relaxed);
    }

    /// Most WRITEs of one file in flight. It leaves slots to other files.
    pub fn file_in_flight_max(&self) -> usize {
        let slots = *self.slot_count.lock();
        (slots - slots / 4).max(1)
    }

    /// Makes as many slots as one file alone needs to bring so many bytes in flight, in WRITEs of `chunk`
    /// bytes. Slots in use do not go before their WRITE ends.
    pub fn resize(&self, window_bytes: u64, chunk: u64) {
        let file = usize::try_from(window_bytes / chunk.max(1)).unwrap_or(usize::MAX);
        let most = self.options.in_flight_max.max(1);
        let wanted = file.saturating_add(file / 3).clamp(SLOTS_AT_FIRST.min(most), most);
        let mut count = self.slot_count.lock();
        if wanted > *count {
            self.slots.add_permits(wanted - *count);
            *count = wanted;
        } else if wanted < *count {
            *count -= self.slots.forget_permits(*count - wanted);
        }
    }

    /// Bytes that are not durable at the origin.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Files with bytes or attributes that are not durable at the origin.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Is nothing delayed at all?
    pub fn is_clean(&self) -> bool {
        self.cost.load(Ordering::Relaxed) == 0
    }

    /// Since when the oldest delayed byte has been waiting.
    pub fn oldest(&self) -> Option<Instant> {
        let queue = self.queue.lock();
        let since = |object: &Arc<Object>| object.state.lock().delayed.writes.as_ref()?.oldest();
        queue.0.values().find_map(since)
    }

    /// A file's account has changed: (cost, data bytes) before and after.
    pub fn account(&self, before: (u64, u64), after: (u64, u64)) {
        add(&self.cost, before.0, after.0);
        add(&self.bytes, before.1, after.1);
        add(&self.files, u64::from(before.0 > 0), u64::from(after.0 > 0));
        if after.0 < before.0 {
            self.space.notify_waiters();
        }
    }

    /// Queues a file whose oldest byte has been waiting since then.
    pub fn enqueue(&self, since: Instant, object: Arc<Object>) {
        let mut queue = self.queue.lock();
        queue.1 += 1;
        let key = (since, queue.1);
        let front = queue.0.keys().next().is_none_or(|(front, _)| since < *front);
        queue.0.insert(key, object);
        drop(queue);
        if front {
            self.wake.notify_one();
        }
    }

    /// Must files be sent before they reach the age limit?
    fn is_pressed(&self) -> bool {
        self.cost.load(Ordering::Relaxed) > self.options.dirty_max_bytes / 2
    }

    /// The file at the front if it is due; otherwise the time when it will be, if there is one.
    fn due(&self) -> Result<Arc<Object>, Option<Instant>> {
        let pressed = self.is_pressed();
        let mut queue = self.queue.lock();
        let Some(front) = queue.0.first_entry() else { return Err(None) };
        let at = front.key().0 + self.options.age;
        if pressed || at <= Instant::now() { Ok(front.remove()) } else { Err(Some(at)) }
    }

    /// Reserves capacity of `cost` bytes. False if there is not enough.
    fn reserve(&self, cost: u64) -> bool {
        let max = self.options.dirty_max_bytes;
        let fits = |there: u64| (there == 0 || there + cost <= max).then_some(there + cost);
        self.cost.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }
}

fn add(to: &AtomicU64, before: u64, after: u64) {
    if after >= before {
        to.fetch_add(after - before, Ordering::AcqRel);
    } else {
        to.fetch_sub(before - after, Ordering::AcqRel);
    }
}

/// Reserved capacity, until the bytes are taken in and counted themselves.
pub struct Capacity<'a> {
    delayed: &'a Delayed,
    cost: u64,
}

impl Drop for Capacity<'_> {
    fn drop(&mut self) {
        self.delayed.cost.fetch_sub(self.cost, Ordering::AcqRel);
        self.delayed.space.notify_waiters();
    }
}

/// The background writer: sends files that are old, or too many bytes, until the cache is dropped.
pub async fn writer(core: Weak<Core>) {
    loop {
        let Some(core) = core.upgrade() else { return };
        let Some(delayed) = &core.delayed else { return };
        let wake = delayed.wake.clone();
        let Ok(permit) = delayed.flushes.clone().acquire_owned().await else { return };
        let next = match delayed.due() {
            Ok(object) => {
                core.send_old(object, permit);
                continue;
            }
            Err(next) => next,
        };
        drop(permit);
        drop(core);
        match next {
            Some(at) => drop(tokio::time::timeout_at(at, wake.notified()).await),
            None => wake.notified().await,
        }
    }
}

impl Core {
    /// Waits until `length` more bytes of a file may be delayed, and reserves them.
    pub async fn capacity<'a>(
        &self,
        delayed: &'a Delayed,
        object: &Arc<Object>,
        length: u64,
    ) -> Capacity<'a> {
        // The overhead of a few runs.
        let cost = length + 1024;
        loop {
            let space = delayed.space.notified();
            tokio::pin!(space);
            space.as_mut().enable();
            let here =
                self.with(object, |state| state.delayed.writes.as_ref().map_or(0, |writes| writes.cost()));
            let fits = here == 0 || here + cost <= delayed.options.file_max_bytes;
            if fits && delayed.reserve(cost) {
                return Capacity { delayed, cost };
            }
            self.press(object);
            delayed.wake.notify_one();
            self.counters.writers_held.bump();
            space.await;
        }
    }

    /// If much of a file is delayed, sends it. If much of all files is delayed, wakes the background
    /// writer.
    pub fn press_if_much(&self, delayed: &Delayed, object: &Arc<Object>) {
        let (here, kept) = self.with(object, |state| {
            let writes = state.delayed.writes.as_ref();
            (writes.map_or(0, |writes| writes.cost()), writes.and_then(|writes| writes.kept_on()))
        });
        if here > delayed.options.file_max_bytes / 2 {
            self.press(object);
        }
        if let Some(fsid) = kept {
            self.drain_if_short(fsid);
        }
        if delayed.is_pressed() {
            delayed.wake.notify_one();
        }
    }

    /// Starts a task that flushes a file, unless one is running.
    pub fn press(&self, object: &Arc<Object>) {
        let begin = self.with(object, |state| {
            let writes = state.delayed.writes.as_mut()?;
            let begin = !writes.is_clean() && !std::mem::replace(&mut writes.pressed, true);
            begin.then_some(())
        });
        if let (Some(()), Some(core)) = (begin, self.share()) {
            let object = object.clone();
            tokio::spawn(async move {
                core.flush_writes(&object, Level::Stable).await;
                core.with(&object, |state| {
                    state.delayed.writes.iter_mut().for_each(|writes| writes.pressed = false);
                });
                core.forget_writes(&object);
                // A writer that came while the flush ran started none: wake it, so that it looks again.
                core.delayed.iter().for_each(|delayed| delayed.space.notify_waiters());
            });
        }
    }

    /// Sends a file that was at the front of the queue.
    fn send_old(&self, object: Arc<Object>, permit: OwnedSemaphorePermit) {
        let (Some(core), Some(delayed)) = (self.share(), &self.delayed) else { return };
        // It may have been sent and written again since it was queued.
        let oldest =
            self.with(&object, |state| state.delayed.writes.as_ref().and_then(|writes| writes.oldest()));
        let recent =
            |oldest: &Instant| !delayed.is_pressed() && *oldest + delayed.options.age > Instant::now();
        match oldest {
            Some(oldest) if recent(&oldest) => delayed.enqueue(oldest, object),
            Some(_) => {
                tokio::spawn(async move {
                    let mut flush = std::pin::pin!(core.flush_writes(&object, Level::Stable));
                    if tokio::time::timeout(FLUSH_COUNTS_FOR, &mut flush).await.is_err() {
                        drop(permit);
                        flush.await;
                    }
                    core.requeue(object.clone());
                });
            }
            None => self.requeue(object),
        }
    }

    /// Queues a file again if anything of it is delayed.
    fn requeue(&self, object: Arc<Object>) {
        let oldest = self.with(&object, |state| {
            let writes = state.delayed.writes.as_mut()?;
            let oldest = writes.oldest();
            writes.queued = oldest.is_some();
            oldest
        });
        match (oldest, &self.delayed) {
            (Some(oldest), Some(delayed)) => delayed.enqueue(oldest, object),
            _ => self.forget_writes(&object),
        }
    }

    /// Drops the record of a file's delayed writes if it holds nothing.
    pub fn forget_writes(&self, object: &Arc<Object>) {
        self.with(object, |state| {
            state.delayed.writes.take_if(|writes| writes.is_idle());
        });
    }

    /// All files with anything delayed.
    pub fn delayed_files(&self) -> Vec<(Handle, Arc<Object>)> {
        let files = self
            .memory
            .table()
            .all()
            .filter(|object| self.with(object, |state| state.delayed.writes.is_some()));
        files.map(|object| (object.handle, object)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn with(options: WriteBehind) -> Delayed {
        Delayed::new(options, WriteVerifier::default(), Journal::new("unused".into(), 1, 0, false, false))
    }

    #[test]
    fn slots_follow_the_window_and_those_in_use_stay() {
        let delayed = with(WriteBehind::default());
        assert_eq!(delayed.file_in_flight_max(), 12);
        delayed.resize(90 * MIB, MIB);
        assert_eq!((delayed.file_in_flight_max(), delayed.slots.available_permits()), (90, 120));
        let used = delayed.slots.clone().try_acquire_many_owned(100).unwrap();
        delayed.resize(0, MIB);
        assert_eq!((delayed.file_in_flight_max(), delayed.slots.available_permits()), (75, 0));
        drop(used);
        delayed.resize(0, MIB);
        assert_eq!((delayed.file_in_flight_max(), delayed.slots.available_permits()), (12, 16));
        delayed.resize(u64::MAX, MIB);
        assert_eq!(delayed.slots.available_permits(), 512);
        let few = with(WriteBehind { in_flight_max: 2, ..WriteBehind::default() });
        few.resize(90 * MIB, MIB);
        assert_eq!(few.slots.available_permits(), 2);
    }
}
