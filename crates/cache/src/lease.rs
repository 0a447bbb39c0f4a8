//! Leases from the layer below: what they vouch for, and who holds which.
//!
//! While a lease is held, nobody else changes the file without the lease being recalled first. It therefore vouches for
//! the attributes and the data that are known of the file, and for the names that lead to it, since whoever removes or
//! renames a name of the file changes the file too. It does not vouch for anything that was asked before it was granted
//! and answered after, nor for what anybody may do: that is the origin's to say, of each credential. One on a directory
//! vouches for all names in it ([`ObjectState::names_epoch`](crate::object::ObjectState::names_epoch)).

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Lease, LeaseId, LeaseKind, Recall};

use crate::table::Object;

/// Recalls of leases that are not known yet. More than these are answered as unknown.
const EARLY_MAX: usize = 1024;

/// A lease that is held on one file.
#[derive(Clone, Debug)]
pub struct HeldLease {
    /// Its name below.
    pub id: LeaseId,
    /// What it allows.
    pub kind: LeaseKind,
    /// Its name above.
    pub above: LeaseId,
    /// The layer above has it.
    pub given: bool,
    /// It was recalled: it still vouches, but nothing new is built on it.
    pub recalled: bool,
    /// It has been held since before this process.
    pub adopted: bool,
    /// Calls sent from this event on were answered under it.
    pub since: u64,
    /// Attributes asked for from this event on are vouched for: those of the grant itself, if they are the known ones.
    pub vouches_from: u64,
    /// Up to which size of the file the layer below has set space aside.
    pub space_limit: u64,
    until: Option<Instant>,
    /// Woken when the layer above has returned it.
    pub returned: Arc<Notify>,
}

impl HeldLease {
    /// One that was just granted, at the event `since`.
    pub fn granted(lease: &Lease, above: LeaseId, since: u64, vouches_from: u64) -> HeldLease {
        HeldLease {
            id: lease.id,
            kind: lease.kind,
            above,
            given: false,
            recalled: false,
            adopted: false,
            since,
            vouches_from,
            space_limit: lease.space_limit,
            until: lease.until,
            returned: Arc::default(),
        }
    }

    /// The same, held since before this process.
    #[must_use]
    pub fn since_before(mut self) -> HeldLease {
        self.adopted = true;
        self
    }

    /// When its term ends, if it has one.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Has its term not ended?
    pub fn is_valid(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    /// May something new be built on it?
    pub fn is_free(&self) -> bool {
        self.is_valid() && !self.recalled
    }

    /// Are locks the holder's own business?
    pub fn keeps_locks(&self) -> bool {
        self.kind == LeaseKind::Write && self.is_free()
    }
}

/// What became of a lease before the reply that grants it came.
#[derive(Clone, Copy, Debug)]
pub enum Early {
    /// It was recalled.
    Recall(Recall),
    /// It was revoked.
    Revoked,
    /// It is being returned, or was: a reply that was made before may tell of it as of one that is held.
    Returned,
}

/// Who holds which lease. The state of an object is never locked while this is.
#[derive(Debug, Default)]
pub struct Leases {
    inner: Mutex<HeldLeases>,
    names: AtomicU64,
}

#[derive(Debug, Default)]
struct HeldLeases {
    below: HashMap<LeaseId, (Arc<Object>, LeaseKind)>,
    above: HashMap<LeaseId, Arc<Object>>,
    /// In the order in which they came, with a second chance for those used since.
    order: VecDeque<(LeaseId, u64)>,
    /// Chosen to be returned.
    leaving: HashSet<LeaseId>,
    /// Opens that may bring a lease, by number.
    grants_in_flight: BTreeSet<u64>,
    next_grant: u64,
    early: HashMap<LeaseId, (Early, u64)>,
}

/// An open that may bring a lease.
#[derive(Debug)]
pub struct GrantInFlight(u64);

impl Leases {
    /// An open that may bring a lease is about to be sent.
    pub fn begin_grant(&self) -> GrantInFlight {
        let mut inner = self.inner.lock();
        let number = inner.next_grant;
        inner.next_grant += 1;
        inner.grants_in_flight.insert(number);
        GrantInFlight(number)
    }

    /// It has been answered, and what it brought is known. Leases that were recalled meanwhile and that nobody has.
    pub fn end_grant(&self, grant: &GrantInFlight) -> Vec<LeaseId> {
        let mut inner = self.inner.lock();
        inner.grants_in_flight.remove(&grant.0);
        let first = inner.grants_in_flight.first().copied().unwrap_or(inner.next_grant);
        let mut lost = Vec::new();
        inner.early.retain(|id, (early, until)| {
            let waits = first < *until;
            if !waits && matches!(early, Early::Recall(_)) {
                lost.push(*id);
            }
            waits
        });
        lost
    }

    /// A lease was granted. What has become of it already, if anything.
    pub fn put(&self, id: LeaseId, above: LeaseId, kind: LeaseKind, object: &Arc<Object>) -> Option<Early> {
        let mut inner = self.inner.lock();
        if let Some((early @ (Early::Revoked | Early::Returned), _)) = inner.early.get(&id) {
            return Some(*early);
        }
        if inner.below.insert(id, (object.clone(), kind)).is_none() {
            inner.order.push_back((id, object.used.load(Ordering::Relaxed)));
        }
        inner.above.insert(above, object.clone());
        inner.early.remove(&id).map(|(early, _)| early)
    }

    /// The layer below knows that a lease is held no more: opens sent from now on do not tell of it.
    pub fn forget(&self, id: LeaseId) {
        let mut inner = self.inner.lock();
        if inner.grants_in_flight.is_empty() {
            inner.early.remove(&id);
        } else {
            let until = inner.next_grant;
            inner.early.insert(id, (Early::Returned, until));
        }
    }

    /// A lease is held no more. `forget` has to follow.
    pub fn take(&self, id: LeaseId, above: LeaseId) {
        let mut inner = self.inner.lock();
        inner.below.remove(&id);
        inner.leaving.remove(&id);
        inner.above.remove(&above);
        inner.early.insert(id, (Early::Returned, u64::MAX));
        if inner.order.len() > 64 && inner.order.len() > inner.below.len() * 2 {
            let HeldLeases { order, below, .. } = &mut *inner;
            order.retain(|(id, _)| below.contains_key(id));
        }
    }

    /// Whose lease the layer below speaks of. If it is not known but may be on its way, what became of it is kept for
    /// when it comes: `Ok(None)`. `Err` if it is not on its way either.
    pub fn find(&self, id: LeaseId, early: Early) -> Result<Option<Arc<Object>>, ()> {
        let mut inner = self.inner.lock();
        if let Some((object, _)) = inner.below.get(&id) {
            return Ok(Some(object.clone()));
        }
        if inner.grants_in_flight.is_empty() || inner.early.len() >= EARLY_MAX {
            return Err(());
        }
        let until = inner.next_grant;
        // One that was returned stays that, whatever else is said of it.
        inner.early.entry(id).or_insert((early, until));
        Ok(None)
    }

    /// Whose lease this is, if it is held.
    pub fn holder(&self, id: LeaseId) -> Option<Arc<Object>> {
        self.inner.lock().below.get(&id).map(|(object, _)| object.clone())
    }

    /// All files with one.
    pub fn all(&self) -> Vec<Arc<Object>> {
        self.inner.lock().below.values().map(|(object, _)| object.clone()).collect()
    }

    /// Whose lease the layer above speaks of.
    pub fn find_above(&self, id: LeaseId) -> Option<Arc<Object>> {
        self.inner.lock().above.get(&id).cloned()
    }

    /// The least recently used beyond so many, about.
    pub fn beyond(&self, keep: usize) -> Vec<Arc<Object>> {
        let mut inner = self.inner.lock();
        let mut surplus = inner.below.len().saturating_sub(keep + inner.leaving.len());
        let mut chosen = Vec::new();
        let mut looks = inner.order.len() * 2;
        while surplus > 0 && looks > 0 {
            looks -= 1;
            let Some((id, seen)) = inner.order.pop_front() else { break };
            let Some((object, _)) = inner.below.get(&id) else { continue };
            let used = object.used.load(Ordering::Relaxed);
            if used > seen {
                inner.order.push_back((id, used));
                continue;
            }
            chosen.push(object.clone());
            inner.leaving.insert(id);
            surplus -= 1;
        }
        chosen
    }

    /// Is any held, or on its way?
    pub fn may_be_held(&self) -> bool {
        let inner = self.inner.lock();
        !inner.below.is_empty() || !inner.grants_in_flight.is_empty()
    }

    /// How many, for reading and for writing.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let write = inner.below.values().filter(|(_, kind)| *kind == LeaseKind::Write).count() as u64;
        (inner.below.len() as u64 - write, write)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.inner.lock().below.len()
    }

    /// A name for the layer above.
    pub fn name(&self) -> LeaseId {
        LeaseId(self.names.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
