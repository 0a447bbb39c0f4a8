//! Leases of the layer below, and what happens when it wants one back: the kernel is told first, then it is returned.
//!
//! A recall may come before the reply to the open that grants the lease. An id that nobody has is therefore kept as long
//! as an open is under way that was sent before; if none of them brings it, it goes back.
//!
//! A lease is held by the node that the next lookup of its file gives, which is the one that a recall finds. A retired node
//! leaves its lease with the layer below, which gives the same one to its successor's open. It does not return it: the
//! return might come after that.

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

    /// It has been answered. False if the lease that it brought was recalled meanwhile; and what was recalled and cannot
    /// be brought any more.
    fn land(&self, number: u64, lease: Option<LeaseId>) -> (bool, Vec<LeaseId>) {
        let mut flights = self.flights.lock();
        flights.under_way.remove(&number);
        let kept = lease.is_none_or(|id| !flights.early.contains_key(&id));
        let first = flights.under_way.first().copied().unwrap_or(flights.next);
        let over = flights.early.extract_if(|_, until| *until <= first).map(|(id, _)| id).collect();
        (kept, over)
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
        let (kept, over) = self.recalls.land(flight, lease.map(|lease| lease.id));
        over.into_iter().for_each(|id| self.give_back(id));
        let Some(lease) = lease else { return };
        if !kept {
            return self.give_back(lease.id);
        }
        // The node may have been retired meanwhile.
        let Some(holder) = self.inodes.find(&inode.handle) else { return };
        let before = holder.state.lock().lease.replace(lease);
        if let Some(before) = before.filter(|before| before.id != lease.id) {
            self.give_back(before.id);
        }
        if !self.inodes.is_current(&holder) {
            self.part(&holder);
        }
    }

    /// An open brought nothing.
    pub fn crashed(&self, flight: u64) {
        let (_, over) = self.recalls.land(flight, None);
        over.into_iter().for_each(|id| self.give_back(id));
    }

    /// The next lookup of a file gives it another node. Whatever the kernel was told of this one under a lease it has to
    /// ask for again: nobody will recall it.
    pub fn retire(&self, inode: &Inode) {
        self.inodes.retire(inode);
        self.part(inode);
    }

    /// A retired node parts with its lease.
    fn part(&self, inode: &Inode) {
        let names = {
            let mut state = inode.state.lock();
            let leased = state.lease.take().is_some();
            if leased { state.names.clone() } else { return }
        };
        self.notifier.attributes_later(inode.number);
        names.iter().for_each(|(parent, name)| self.notifier.name_later(*parent, name));
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
        self.refill_soon(&inode.handle);
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
        assert_eq!(recalls.land(b, Some(LeaseId(3))), (true, vec![]));
        assert_eq!(recalls.land(a, Some(LeaseId(2))), (false, vec![LeaseId(2)]), "recalled on the way");
        assert_eq!(recalls.land(c, Some(LeaseId(2))), (true, vec![]), "sent after: it is another grant");
        assert!(recalls.flights.lock().early.is_empty());
        // Nobody brings it: whoever wants it back gets it all the same.
        let d = recalls.take_off();
        assert!(recalls.is_early(LeaseId(4)));
        assert_eq!(recalls.land(d, None), (true, vec![LeaseId(4)]));
    }
}
