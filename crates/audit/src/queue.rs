//! The records on their way from the operations to the thread that writes.
//!
//! A record is put into a list, and the thread takes the whole list. The record of a change wakes the thread,
//! which finds the path before it can be gone. Records that may be counted up gather for [`PAUSE`], so that
//! those of a busy server cost no system call.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use super::RECORDS_MAX;
use super::record::{Record, Repeatable};

/// How long the thread lets records gather.
const PAUSE: Duration = Duration::from_millis(10);
/// Records that may be counted up. It is a power of two.
const RECENT: usize = 1024;
/// The list keeps memory for this many records when it is empty.
const KEPT: usize = 1024;

#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Wakes the thread.
    put: Condvar,
    /// The thread has taken the list, so operations that waited may go on.
    taken: Notify,
    hasher: foldhash::fast::RandomState,
}

#[derive(Default)]
struct Waiting {
    records: Vec<Record>,
    /// Lists so far.
    lists: u64,
    /// By their hash, the lists and places of records that may be counted up.
    recent: Vec<(u64, usize)>,
    /// They wait until everything so far is written.
    flushes: Vec<oneshot::Sender<()>>,
    /// The thread waits for a record without an end.
    is_idle: bool,
    /// The list has the record of a change.
    hurries: bool,
    is_closed: bool,
}

/// A list that the thread has taken.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) records: Vec<Record>,
    pub(super) flushes: Vec<oneshot::Sender<()>>,
}

impl Queue {
    /// Puts a record at the end of the list.
    ///
    /// # Errors
    /// Hands the record back if [`RECORDS_MAX`] records wait.
    pub(super) fn put(&self, record: Record) -> Result<(), Box<Record>> {
        let mut waiting = self.waiting.lock();
        waiting.hurries = true;
        self.push(&mut waiting, record)
    }

    /// Counts up the record of this operation, or puts a new one at the end of the list.
    ///
    /// # Errors
    /// As for [`Queue::put`].
    pub(super) fn repeat(&self, operation: &Repeatable<'_>) -> Result<(), Box<Record>> {
        let slot = operation.hash(&self.hasher) as usize % RECENT;
        let mut locked = self.waiting.lock();
        let waiting = &mut *locked;
        if let Some((list, place)) = waiting.recent.get(slot)
            && *list == waiting.lists
            && let Some(record) = waiting.records.get_mut(*place)
            && operation.repeats(record)
        {
            return Ok(());
        }
        waiting.recent.resize(RECENT, (u64::MAX, 0));
        waiting.recent[slot] = (waiting.lists, waiting.records.len());
        self.push(waiting, operation.record())
    }

    fn push(&self, waiting: &mut Waiting, record: Record) -> Result<(), Box<Record>> {
        if waiting.is_closed {
            return Ok(());
        }
        if waiting.records.len() >= RECORDS_MAX {
            return Err(Box::new(record));
        }
        waiting.records.push(record);
        // A list that fills before the pause is over is taken now.
        if waiting.is_idle || waiting.hurries || waiting.records.len() == RECORDS_MAX / 2 {
            self.put.notify_one();
        }
        Ok(())
    }

    /// Puts a record that was handed back, when there is capacity.
    pub(super) async fn put_later(&self, mut record: Box<Record>) {
        loop {
            // It hears of each list that is taken from here on.
            let taken = self.taken.notified();
            match self.put(*record) {
                Ok(()) => return,
                Err(again) => record = again,
            }
            taken.await;
        }
    }

    /// Waits until everything so far is written.
    pub(super) async fn flush(&self) {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.is_closed {
                return;
            }
            waiting.flushes.push(answer);
            self.put.notify_one();
        }
        let _ = answered.await;
    }

    /// No record follows. The thread ends when it has written those that wait.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.put.notify_one();
    }

    /// Takes the list, and leaves the memory of `taken` in its place; `false` at the end. Waits while it is
    /// empty.
    pub(super) fn take(&self, taken: &mut Taken) -> bool {
        taken.records.clear();
        taken.records.shrink_to(KEPT);
        let mut waiting = self.waiting.lock();
        while waiting.records.is_empty() && waiting.flushes.is_empty() {
            if waiting.is_closed {
                return false;
            }
            waiting.is_idle = true;
            self.put.wait(&mut waiting);
        }
        waiting.is_idle = false;
        std::mem::swap(&mut taken.records, &mut waiting.records);
        waiting.lists += 1;
        waiting.hurries = false;
        taken.flushes = std::mem::take(&mut waiting.flushes);
        drop(waiting);
        if taken.records.len() >= RECORDS_MAX {
            self.taken.notify_waiters();
        }
        true
    }

    /// The thread ends, or has failed: nobody waits for it from now on.
    pub(super) fn leave(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        waiting.flushes.clear();
        waiting.records.clear();
        drop(waiting);
        self.taken.notify_waiters();
    }

    /// Lets records gather for [`PAUSE`], or until half the list is full, a change comes, or somebody waits.
    pub(super) fn pause(&self) {
        let until = Instant::now() + PAUSE;
        let mut waiting = self.waiting.lock();
        let hurries = |waiting: &mut Waiting| {
            waiting.records.len() >= RECORDS_MAX / 2
                || waiting.hurries
                || waiting.is_closed
                || !waiting.flushes.is_empty()
        };
        while !hurries(&mut waiting) && !self.put.wait_until(&mut waiting, until).timed_out() {}
    }
}
