//! Leases of the layer below, and what happens when it wants one back: the kernel is told first, then it is returned.
//!
//! A recall may come before the reply to the open that grants the lease. An id that nobody has is therefore kept as long
//! as an open is under way that was sent before.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use vfs::{Callback, Callbacks, Handle, Lease, LeaseId};

use crate::credentials;
use crate::front::Front;
use crate::inodes::Inode;

/// Recalls of leases that nobody has yet, at most.
const EARLY_MAX: usize = 4096;
/// Leases on their way back, at most; beyond it the layer below revokes them in its own time.
const RETURNS_MAX: usize = 1 << 16;

/// What is known of leases on their way.
#[derive(Debug)]
pub struct Recalls {
    flights: Mutex<Flights>,
    back: mpsc::Sender<LeaseId>,
}

#[derive(Debug, Default)]
struct Flights {
    under_way: BTreeSet<u64>,
    next: u64,
    /// Recalled before they came, and the first open that cannot bring them any more.
    early: HashMap<LeaseId, u64>,
}

impl Recalls {
    /// None, and where those go that are returned.
    pub fn new() -> (Recalls, mpsc::Receiver<LeaseId>) {
        let (back, returns) = mpsc::channel(RETURNS_MAX);
        (Recalls { flights: Mutex::default(), back }, returns)
    }

    /// An open that may bring a lease is about to be sent.
    pub fn take_off(&self) -> u64 {
        let mut flights = self.flights.lock();
        let number = flights.next;
        flights.next += 1;
        flights.under_way.insert(number);
        number
    }

    /// It has been answered. False if the lease that it brought was recalled meanwhile.
    fn land(&self, number: u64, lease: Option<LeaseId>) -> bool {
        let mut flights = self.flights.lock();
        flights.under_way.remove(&number);
        let kept = lease.is_none_or(|id| !flights.early.contains_key(&id));
        let first = flights.under_way.first().copied().unwrap_or(flights.next);
        flights.early.retain(|_, until| first < *until);
        kept
    }

    fn is_early(&self, id: LeaseId) -> bool {
        let mut flights = self.flights.lock();
        if flights.under_way.is_empty() || flights.early.len() >= EARLY_MAX {
            return false;
        }
        let until = flights.next;
        flights.early.insert(id, until);
        true
    }
}

impl Front {
    /// An open has been answered, and this is the lease that it brought.
    pub fn landed(&self, flight: u64, inode: &Inode, lease: Option<Lease>) {
        let kept = self.recalls.land(flight, lease.map(|lease| lease.id));
        let Some(lease) = lease else { return };
        if !kept {
            return self.give_back(lease.id);
        }
        let before = inode.state.lock().lease.replace(lease);
        if let Some(before) = before.filter(|before| before.id != lease.id) {
            self.give_back(before.id);
        }
    }

    /// An open brought nothing.
    pub fn crashed(&self, flight: u64) {
        self.recalls.land(flight, None);
    }

    /// Returns a lease, soon.
    pub fn give_back(&self, id: LeaseId) {
        // One that does not fit is revoked by the layer below when its time is over.
        let _ = self.recalls.back.try_send(id);
    }

    /// The kernel must not believe any longer what a lease vouched for.
    async fn recall(&self, id: LeaseId, handle: &Handle) {
        self.counters.recalls.fetch_add(1, Ordering::Relaxed);
        let inode = self.inodes.find(handle);
        let mine = inode.filter(|inode| inode.state.lock().lease.take_if(|lease| lease.id == id).is_some());
        let Some(inode) = mine else {
            if !self.recalls.is_early(id) {
                self.give_back(id);
            }
            return;
        };
        self.distrust(&inode).await;
        self.give_back(id);
    }

    /// Attributes and names of a file are to be asked for again.
    pub async fn distrust(&self, inode: &Inode) {
        self.notifier.attributes_of_any(inode.number).await;
        let names = inode.state.lock().names.clone();
        self.notifier.names(names).await;
    }
}

/// Returns leases, for as long as the mount lives.
pub async fn returner(front: Weak<Front>, mut returns: mpsc::Receiver<LeaseId>) {
    while let Some(id) = returns.recv().await {
        let Some(fs) = front.upgrade().map(|front| front.fs.clone()) else { return };
        tokio::spawn(async move {
            if let Err(error) = fs.returned(&credentials::machine(), id).await {
                tracing::debug!("return of a lease: {error}");
            }
        });
    }
}

/// Listens to the layer below, for as long as the mount lives.
pub async fn listener(front: Weak<Front>, mut callbacks: Callbacks) {
    while let Some(callback) = callbacks.recv().await {
        let Some(front) = front.upgrade() else { return };
        tokio::spawn(async move { on_callback(front, callback).await });
    }
}

async fn on_callback(front: Arc<Front>, callback: Callback) {
    match callback {
        Callback::Recall(recall) => front.recall(recall.id, &recall.handle).await,
        Callback::Revoked { id, handle } => front.recall(id, &handle).await,
        Callback::NotifyLock { handle, .. } => {
            if let Some(inode) = front.inodes.find(&handle) {
                inode.unlocked.notify_waiters();
            }
        }
        Callback::RecallAny { keep, .. } => {
            let inodes = front.inodes.all();
            let held = inodes.iter().filter(|inode| inode.is_leased());
            for inode in held.skip(keep as usize) {
                let lease = inode.state.lock().lease.take();
                if let Some(lease) = lease {
                    front.distrust(inode).await;
                    front.give_back(lease.id);
                }
            }
        }
        // Writes are below by the time they are answered: nothing is known here alone.
        Callback::Getattr(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recall_that_overtakes_its_grant_is_kept_for_it() {
        let (recalls, _returns) = Recalls::new();
        assert!(!recalls.is_early(LeaseId(1)), "no open is under way");
        let (a, b) = (recalls.take_off(), recalls.take_off());
        assert!(recalls.is_early(LeaseId(2)));
        let c = recalls.take_off();
        assert!(recalls.land(b, Some(LeaseId(3))));
        assert!(!recalls.land(a, Some(LeaseId(2))), "recalled on the way");
        assert!(recalls.land(c, Some(LeaseId(2))), "sent after: it is another grant");
        assert!(recalls.flights.lock().early.is_empty());
    }
}
