//! Leases from the layer below, and their recall: the mount first invalidates the kernel's caches, then
//! returns the lease.
//!
//! A recall may arrive before the reply to the open that grants the lease. Therefore the mount remembers a
//! recalled id that no node holds, as long as an earlier open is in flight. If no such open brings the
//! lease, the mount returns it.
//!
//! The node that the next lookup of the file gives holds the lease; a recall finds that node. A retired
//! node drops its lease without returning it, and the layer below gives the same lease to the successor's
//! open. A return could arrive after that grant. A return waits until the kernel has been told of retired
//! nodes, with the same bound as that of a recall ([`parting`]).
//!
//! The layer below grants the same lease to each open while it has the lease. So the return of a lease (the
//! kernel has forgotten the file) and the next grant may overtake each other. The layer below would then
//! take a lease for returned that a node relies on. Therefore an open that was sent before the end of a
//! return brings no lease. The layer below keeps that lease as granted, which costs at most one recall
//! later.

mod parting;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use vfs::grants::{GrantNumber, Grants, Mark};
use vfs::{Callback, Callbacks, Handle, Lease, LeaseId};

use crate::credentials;
use crate::front::Front;
use crate::inodes::Inode;

use parting::Parting;

/// Limit of remembered recalls of leases that no node holds.
const EARLY_MAX: usize = 4096;
/// Limit of leases queued for return. Beyond it the layer below revokes them when their time is over.
const RETURNS_MAX: usize = 1 << 16;

/// Opens that may bring a lease, and leases on their way back.
#[derive(Debug)]
pub struct Recalls {
    /// Held while a node gets a lease or loses it to a recall, so that neither happens in the middle of the
    /// other.
    in_flight: Mutex<OpensInFlight>,
    back: mpsc::Sender<(LeaseId, Handle)>,
    parting: Arc<Parting>,
}

#[derive(Debug, Default)]
struct OpensInFlight {
    /// The opens in flight, and the files of the leases that were recalled before their grant.
    grants: Grants<Handle, EARLY_MAX>,
    leaving: HashMap<LeaseId, Leaving>,
    /// Leases whose return has ended, with the time of that end, in this order.
    left: VecDeque<(Mark, LeaseId)>,
}

/// A lease on its way back.
#[derive(Debug, Default)]
struct Leaving {
    /// Returns in progress.
    returns: usize,
    /// When the last return ended.
    until: Mark,
}

impl OpensInFlight {
    /// May this open bring the lease? Not if a return of the lease may be processed after the grant.
    fn may_bring(&self, number: GrantNumber, id: LeaseId) -> bool {
        let leaving = self.leaving.get(&id);
        let is_gone =
            leaving.is_none_or(|leaving| leaving.returns == 0 && !number.began_before(leaving.until));
        is_gone && self.grants.news(id).is_none()
    }

    /// Forgets returned leases that no open in flight can bring.
    fn forget_left(&mut self) {
        let is_over = |(until, _): &(Mark, LeaseId)| self.grants.calls().have_ended(*until);
        while let Some((until, id)) = self.left.front().copied().filter(is_over) {
            self.left.pop_front();
            if let Entry::Occupied(leaving) = self.leaving.entry(id)
                && leaving.get().returns == 0
                && leaving.get().until == until
            {
                leaving.remove();
            }
        }
    }
}

impl Recalls {
    /// A table without leases, and the queue of leases to return.
    pub fn new() -> (Recalls, mpsc::Receiver<(LeaseId, Handle)>) {
        let (back, returns) = mpsc::channel(RETURNS_MAX);
        (Recalls { in_flight: Mutex::default(), back, parting: Arc::default() }, returns)
    }

    /// Number of opens in flight that may bring a lease.
    pub fn opens_in_flight(&self) -> usize {
        self.in_flight.lock().grants.calls().len()
    }

    /// An open that may bring a lease is about to be sent. Returns its number.
    fn begin_open(&self) -> GrantNumber {
        self.in_flight.lock().grants.begin()
    }

    /// The open has been answered. Calls `keep` to store the lease that it brought, unless that lease was
    /// recalled or returned meanwhile. Returns the recalled leases that no open can bring any more. They are
    /// leaving, and the caller must [send them back](Recalls::send_back).
    fn end_open(
        &self,
        number: GrantNumber,
        lease: Option<LeaseId>,
        keep: impl FnOnce(),
    ) -> Vec<(LeaseId, Handle)> {
        let mut in_flight = self.in_flight.lock();
        if lease.is_some_and(|id| in_flight.may_bring(number, id)) {
            keep();
        }
        let named = lease.and_then(|id| Some((id, in_flight.grants.take(id)?)));
        let mut over = in_flight.grants.end(number);
        over.extend(named);
        // In the same step, or another open in flight could still bring it.
        for (id, _) in &over {
            in_flight.leaving.entry(*id).or_default().returns += 1;
        }
        in_flight.forget_left();
        over
    }

    /// Handles a recall. `take` takes the lease from the node that holds it.
    fn recall(&self, id: LeaseId, of: &Handle, take: impl FnOnce() -> Option<Arc<Inode>>) -> Wanted {
        let mut in_flight = self.in_flight.lock();
        if let Some(inode) = take() {
            in_flight.leaving.entry(id).or_default().returns += 1;
            return Wanted::From(inode);
        }
        if in_flight.grants.hear(id, *of) {
            return Wanted::Early;
        }
        in_flight.leaving.entry(id).or_default().returns += 1;
        Wanted::FromNobody
    }

    /// Marks a lease as leaving, unless `stays` returns true.
    fn leave(&self, id: LeaseId, stays: impl FnOnce() -> bool) -> bool {
        let mut in_flight = self.in_flight.lock();
        let leaves = !stays();
        if leaves {
            in_flight.leaving.entry(id).or_default().returns += 1;
        }
        leaves
    }

    /// Records the end of a return.
    fn left(&self, id: LeaseId) {
        let mut in_flight = self.in_flight.lock();
        let until = in_flight.grants.calls().mark();
        if let Some(leaving) = in_flight.leaving.get_mut(&id) {
            debug_assert!(leaving.returns > 0, "a return of {id:?} ends that did not begin");
            leaving.returns = leaving.returns.saturating_sub(1);
            leaving.until = until;
            in_flight.left.push_back((until, id));
        }
        in_flight.forget_left();
    }

    /// Queues the return of a leaving lease. If the queue is full, the layer below revokes the lease when
    /// its time is over.
    fn send_back(&self, id: LeaseId, of: &Handle) {
        if self.back.try_send((id, *of)).is_err() {
            self.left(id);
        }
    }
}

/// The holder of a recalled lease.
#[derive(Debug)]
enum Wanted {
    /// This node held it; the kernel's caches of the node must be invalidated.
    From(Arc<Inode>),
    FromNobody,
    /// An open in flight may bring it.
    Early,
}

/// An open in flight that may bring a lease. If it is dropped, the open has failed and brought none.
#[must_use]
pub struct GrantInFlight<'a> {
    front: &'a Front,
    number: GrantNumber,
}

impl GrantInFlight<'_> {
    /// The open has been answered and brought `lease`. A lease that may be on its way back stays with the
    /// layer below and comes with a later open.
    pub fn succeeded(self, inode: &Inode, lease: Option<Lease>) {
        let (front, number) = (self.front, self.number);
        std::mem::forget(self);
        front.open_succeeded(number, inode, lease);
    }
}

impl Drop for GrantInFlight<'_> {
    fn drop(&mut self) {
        let over = self.front.recalls.end_open(self.number, None, || ());
        over.into_iter().for_each(|(id, of)| self.front.recalls.send_back(id, &of));
    }
}

impl Front {
    /// An open that may bring a lease is about to be sent.
    pub fn begin_grant(&self) -> GrantInFlight<'_> {
        GrantInFlight { front: self, number: self.recalls.begin_open() }
    }

    fn open_succeeded(&self, number: GrantNumber, inode: &Inode, lease: Option<Lease>) {
        let mut holder = None;
        let mut before = None;
        let over = self.recalls.end_open(number, lease.map(|lease| lease.id), || {
            // The node may have been retired meanwhile.
            holder = self.inodes.find(&inode.handle());
            before =
                holder.as_ref().and_then(|holder| std::mem::replace(&mut holder.state.lock().lease, lease));
        });
        over.into_iter().for_each(|(id, of)| self.recalls.send_back(id, &of));
        if let Some(before) = before.filter(|before| Some(before.id) != lease.map(|lease| lease.id)) {
            self.give_back(before.id, &inode.handle());
        }
        if let Some(holder) = holder.filter(|holder| !self.inodes.is_current(holder)) {
            self.part(&holder);
        }
    }

    /// Retires a node: the next lookup of the file gets another node. The kernel must ask again for
    /// everything that it cached under this node's lease, since no recall will reach this node.
    pub fn retire(&self, inode: &Inode) {
        self.inodes.retire(inode);
        self.part(inode);
    }

    /// Queues the return of a lease, unless the node of the file holds it.
    pub fn give_back(&self, id: LeaseId, of: &Handle) {
        let is_held = || {
            let node = self.inodes.find(of);
            node.is_some_and(|node| node.state.lock().lease.is_some_and(|lease| lease.id == id))
        };
        if self.recalls.leave(id, is_held) {
            self.recalls.send_back(id, of);
        }
    }

    /// Handles a recall: the kernel must stop trusting what it cached under the lease.
    async fn recall(&self, id: LeaseId, handle: &Handle) {
        self.counters.recalls.fetch_add(1, Ordering::Relaxed);
        let take = || {
            let inode = self.inodes.find(handle)?;
            let mine = inode.state.lock().lease.take_if(|lease| lease.id == id).is_some();
            mine.then_some(inode)
        };
        match self.recalls.recall(id, handle, take) {
            Wanted::From(inode) => self.distrust(&inode).await,
            Wanted::FromNobody => {}
            Wanted::Early => return,
        }
        self.recalls.send_back(id, handle);
    }

    /// Invalidates the kernel's attributes and names of a file.
    pub async fn distrust(&self, inode: &Inode) {
        self.notifier.attributes_of_any(inode.number).await;
        let names = inode.state.lock().names.clone();
        self.notifier.names(names.into_vec()).await;
    }
}

/// Returns leases for the lifetime of the mount. The layer below shows the new state only after the return
/// has ended; so the backing files of passthrough are checked then.
pub async fn returner(front: Weak<Front>, mut returns: mpsc::Receiver<(LeaseId, Handle)>) {
    while let Some((id, of)) = returns.recv().await {
        let Some(fs) = front.upgrade().map(|front| front.fs.clone()) else { return };
        let front = front.clone();
        tokio::spawn(async move {
            if let Some(front) = front.upgrade() {
                front.parted(&of).await;
            }
            if let Err(error) = fs.returned(&credentials::machine(), id).await {
                tracing::debug!("return of a lease: {error}");
            }
            if let Some(front) = front.upgrade() {
                front.recalls.left(id);
                front.refill_soon(&of);
            }
        });
    }
}

/// Handles callbacks of the layer below for the lifetime of the mount.
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
                inode.wake_lockers();
            }
        }
        Callback::RecallAny { keep, .. } => {
            let inodes = front.inodes.all();
            let held = inodes.iter().filter(|inode| inode.is_leased());
            for inode in held.skip(keep as usize) {
                let Some(id) = inode.state.lock().lease.map(|lease| lease.id) else { continue };
                let had_none = || inode.state.lock().lease.take_if(|lease| lease.id == id).is_none();
                if front.recalls.leave(id, had_none) {
                    front.distrust(inode).await;
                    front.recalls.send_back(id, &inode.handle());
                }
            }
        }
        // This front delays no writes: the layer below has them when they are answered.
        Callback::Getattr(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is the lease that an open brings kept, and which leases must be returned?
    fn end_open(recalls: &Recalls, number: GrantNumber, lease: Option<u64>) -> (bool, Vec<u64>) {
        let mut kept = false;
        let over = recalls.end_open(number, lease.map(LeaseId), || kept = true);
        (kept, over.into_iter().map(|(id, _)| id.0).collect())
    }

    fn file() -> Handle {
        Handle::new(b"file").unwrap()
    }

    fn is_early(recalls: &Recalls, id: u64) -> bool {
        matches!(recalls.recall(LeaseId(id), &file(), || None), Wanted::Early)
    }

    #[test]
    fn a_recall_that_overtakes_its_grant_is_kept_for_it() {
        let (recalls, _returns) = Recalls::new();
        assert!(!is_early(&recalls, 1), "no open is under way");
        let (a, b) = (recalls.begin_open(), recalls.begin_open());
        assert!(is_early(&recalls, 2));
        let c = recalls.begin_open();
        assert_eq!(end_open(&recalls, b, Some(3)), (true, vec![]));
        assert_eq!(end_open(&recalls, a, Some(2)), (false, vec![2]), "recalled on the way");
        assert_eq!(end_open(&recalls, c, Some(2)), (false, vec![]), "it is on its way back");
        recalls.left(LeaseId(2));
        let after = recalls.begin_open();
        assert_eq!(end_open(&recalls, after, Some(2)), (true, vec![]), "sent after: it is another grant");
        assert_eq!(recalls.in_flight.lock().grants.news_len(), 0);
        // No open brings it: the recall is answered nevertheless.
        let d = recalls.begin_open();
        assert!(is_early(&recalls, 4));
        assert_eq!(end_open(&recalls, d, None), (false, vec![4]));
    }

    #[test]
    fn an_open_that_was_sent_before_a_return_has_ended_brings_no_lease() {
        let (recalls, mut returns) = Recalls::new();
        let one = LeaseId(1);
        let before = recalls.begin_open();
        assert!(recalls.leave(one, || false));
        recalls.send_back(one, &file());
        let meanwhile = recalls.begin_open();
        assert_eq!(end_open(&recalls, before, Some(1)), (false, vec![]));
        assert!(recalls.leave(one, || false), "once more");
        recalls.send_back(one, &file());
        assert_eq!(returns.try_recv(), Ok((one, file())));
        recalls.left(one);
        let between = recalls.begin_open();
        assert_eq!(returns.try_recv(), Ok((one, file())));
        recalls.left(one);
        let after = recalls.begin_open();
        assert_eq!(end_open(&recalls, after, Some(1)), (true, vec![]));
        assert_eq!(end_open(&recalls, between, Some(1)), (false, vec![]));
        assert_eq!(end_open(&recalls, meanwhile, Some(1)), (false, vec![]));
        let in_flight = recalls.in_flight.lock();
        assert!(in_flight.leaving.is_empty() && in_flight.left.is_empty());
    }

    #[test]
    fn a_lease_that_stays_does_not_leave() {
        let (recalls, _returns) = Recalls::new();
        assert!(!recalls.leave(LeaseId(1), || true));
        let open = recalls.begin_open();
        assert_eq!(end_open(&recalls, open, Some(1)), (true, vec![]));
    }
}
