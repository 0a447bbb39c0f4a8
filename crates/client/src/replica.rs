//! A copy of the record of what is held at an origin, in a place that other machines can read.
//!
//! The record ([`crate::Origin::keep_record`]) lets the next process on this machine take over what this one
//! holds. With a copy, a process on another machine can. So what is recorded before a call must be in the
//! copy before the call is sent, and what the answer brought must be in the copy before a caller relies on
//! it. The record itself is written without waiting, with a lock held. [`Mirror`] queues the changes, stores
//! those that have gathered together, and lets calls wait for it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::journal::{self, Entries, Journal};
use crate::nfs4::durable::record;

/// The pause after the place of the copy did not take changes.
const AGAIN: Duration = Duration::from_millis(100);

/// Changes of the copy: keys, each with its new value, or none if it is removed. If only a part of them is
/// stored, it is one from the beginning.
pub type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The place of the copy.
pub trait Replica: Debug + Send + Sync {
    /// Makes these the only entries.
    ///
    /// # Errors
    /// If the place cannot be reached. It is tried again.
    fn begin(&self, entries: BTreeMap<Vec<u8>, Vec<u8>>) -> Stored<'_>;

    /// Stores changes. Returns when no failure of this machine can lose them.
    ///
    /// # Errors
    /// As [`Replica::begin`].
    fn store(&self, changes: Changes) -> Stored<'_>;
}

/// The end of a store.
pub type Stored<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// Writes the copy of a record, taken from its place, as the record of this machine. Without entries, there
/// is no record.
///
/// # Errors
/// If the file cannot be written; `InvalidData` if the entries are not a record. Then there is no file.
pub fn import(path: &Path, mut entries: BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let key = record::incarnation_key();
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let value = entries.get(&key).ok_or_else(invalid)?;
    let boot = journal::boot().unwrap_or_default();
    entries.insert(key.clone(), record::in_boot(value, &boot).ok_or_else(invalid)?);
    Journal::begin(path, &entries).map(drop)
}

/// Keeps the copy. See the module.
#[derive(Debug)]
pub(crate) struct Mirror {
    queue: Mutex<Queue>,
    wake: Notify,
    stored: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The copy begins anew with these entries, before the changes.
    begin: Option<Entries>,
    /// The last change of each key.
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Changes so far.
    count: u64,
}

impl Mirror {
    /// Begins to keep a copy there.
    pub(crate) fn start(replica: Arc<dyn Replica>) -> Arc<Mirror> {
        let mirror =
            Arc::new(Mirror { queue: Mutex::default(), wake: Notify::new(), stored: watch::Sender::new(0) });
        // It is there as long as the process.
        let storing = mirror.clone();
        tokio::spawn(async move {
            loop {
                storing.wake.notified().await;
                storing.store_all(&*replica).await;
            }
        });
        mirror
    }

    /// The copy begins anew with these entries.
    pub(crate) fn begin(&self, entries: Entries) {
        let mut queue = self.queue.lock();
        queue.begin = Some(entries.into_iter().filter(|(key, _)| is_copied(key)).collect());
        queue.changes.clear();
        queue.count += 1;
        drop(queue);
        self.wake.notify_one();
    }

    /// A key has a new value, or is gone.
    pub(crate) fn change(&self, key: &[u8], value: Option<&[u8]>) {
        if !is_copied(key) {
            return;
        }
        let mut queue = self.queue.lock();
        queue.changes.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        queue.count += 1;
        drop(queue);
        self.wake.notify_one();
    }

    /// Waits until all changes so far are in the copy.
    pub(crate) async fn stored(&self) {
        let count = self.queue.lock().count;
        if *self.stored.borrow() >= count {
            return;
        }
        // The sender lives as long as this.
        let _ = self.stored.subscribe().wait_for(|stored| *stored >= count).await;
    }

    async fn store_all(&self, replica: &dyn Replica) {
        loop {
            let (begin, changes, count) = {
                let mut queue = self.queue.lock();
                (queue.begin.take(), std::mem::take(&mut queue.changes), queue.count)
            };
            if begin.is_none() && changes.is_empty() {
                return;
            }
            if let Some(entries) = begin {
                while let Err(error) = replica.begin(entries.clone()).await {
                    failed(&error).await;
                }
            }
            // An open comes before its locks, and goes after them.
            let (gone, new): (Changes, Changes) = changes.into_iter().partition(|(_, value)| value.is_none());
            let changes: Changes = new.into_iter().chain(gone.into_iter().rev()).collect();
            while !changes.is_empty()
                && let Err(error) = replica.store(changes.clone()).await
            {
                failed(&error).await;
            }
            self.stored.send_replace(count);
        }
    }
}

/// The time of the last renewal changes often, and is that of a clock of this machine.
fn is_copied(key: &[u8]) -> bool {
    *key != record::renewed_key()
}

async fn failed(error: &io::Error) {
    tracing::debug!(%error, "the copy of what is held at the origin is not stored yet");
    tokio::time::sleep(AGAIN).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Copy {
        entries: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
        stores: AtomicUsize,
        failures: AtomicUsize,
    }

    impl Copy {
        fn fails(&self) -> bool {
            self.failures
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
        }
    }

    impl Replica for Copy {
        fn begin(&self, entries: BTreeMap<Vec<u8>, Vec<u8>>) -> Stored<'_> {
            *self.entries.lock() = entries;
            Box::pin(async { Ok(()) })
        }

        fn store(&self, changes: Changes) -> Stored<'_> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if self.fails() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.stores.fetch_add(1, Ordering::Relaxed);
                for (key, value) in changes {
                    match value {
                        Some(value) => drop(self.entries.lock().insert(key, value)),
                        None => drop(self.entries.lock().remove(&key)),
                    }
                }
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn what_is_waited_for_is_in_the_copy() {
        let copy = Arc::new(Copy::default());
        let mirror = Mirror::start(copy.clone());
        mirror.stored().await;
        mirror.begin(Entries::from([(b"a".to_vec(), b"1".to_vec()), (record::renewed_key(), b"9".to_vec())]));
        mirror.change(b"b", Some(b"2"));
        mirror.stored().await;
        let entries = |copy: &Copy| copy.entries.lock().keys().cloned().collect::<Vec<_>>();
        assert_eq!(entries(&copy), [b"a", b"b"]);
        copy.failures.store(2, Ordering::Relaxed);
        let before = copy.stores.load(Ordering::Relaxed);
        for number in 0..100_u8 {
            mirror.change(&[b'c', number], Some(&[number]));
            mirror.change(b"b", None);
        }
        mirror.stored().await;
        assert_eq!(copy.entries.lock().len(), 101);
        assert!(copy.stores.load(Ordering::Relaxed) - before <= 2, "they are stored together");
    }
}
