//! The lease from the layer below that vouches for an object, and the record of it in the index.
//!
//! While the lease is held, no other client changes the object unannounced. The lease may outlive the
//! process. The index entry is then believed too, if it held everything there was to know.

use vfs::{LeaseId, LeaseKind};

use super::{ObjectState, Seen};
use crate::held_lease::HeldLease;
use crate::policy::Policy;
use crate::trust::Sent;

impl ObjectState {
    /// Is everything there is to know in the index, for as long as the lease is held? Then returns the lease
    /// that the index must record as vouching for the entry. The caller has just written the entry.
    pub fn vouch(&mut self) -> Option<LeaseId> {
        let lease = self.held.lease.as_ref().filter(|lease| lease.until().is_none() && lease.is_free())?.id;
        let busy = self.own.history.is_under_way() || self.is_busy();
        let quiet = !self.index.changed && !self.own.ours && !busy;
        let new = quiet && !self.index.vouched && self.leased().is_some();
        self.index.vouched |= new;
        new.then_some(lease)
    }

    /// From now on, a later process must not believe the index entry without a call: we are about to change
    /// the object, or have learnt that it changed.
    pub fn unvouch(&mut self) {
        if std::mem::take(&mut self.index.vouched) {
            self.index.unvouched = true;
            self.index.changed = true;
        }
    }

    /// Does the cache keep the file's locks alone?
    pub fn keeps_locks(&self) -> bool {
        self.held.locks.under_way == 0 && self.held.lease.as_ref().is_some_and(HeldLease::keeps_locks)
    }

    /// A lease was granted by the call `sent`, together with attributes that turned out to be `seen`.
    pub fn grant(
        &mut self,
        policy: &Policy,
        seen: Seen,
        sent: &Sent,
        lease: impl FnOnce(u64, u64) -> HeldLease,
    ) {
        let since = policy.event();
        let atomic = matches!(seen, Seen::Known { .. })
            && self.known.as_ref().is_some_and(|known| known.sent.sequence >= self.distrusted_before);
        // If the known attributes are not those of the grant, the lease vouches only for later ones.
        let lease = lease(since, if atomic { sent.sequence } else { since });
        // The next flush can then record in the index that the lease vouches.
        self.index.changed = true;
        match &mut self.held.lease {
            Some(held) if held.id == lease.id => {
                held.kind = held.kind.max(lease.kind);
                held.space_limit = lease.space_limit;
            }
            held => *held = Some(lease),
        }
    }

    /// Ends the lease. Drops everything that only the lease kept valid. The next use requests the attributes.
    pub fn end_lease(&mut self, policy: &Policy) -> Option<HeldLease> {
        let lease = self.held.lease.take()?;
        self.unvouch();
        self.own.covered = false;
        // Everything learnt under the lease counted as nonracy. From now on only the timestamps count.
        if std::mem::take(&mut self.own.ours) || !self.is_stamped(policy, &policy.sending()) {
            self.drop_all(policy);
        }
        self.distrust(policy);
        Some(lease)
    }

    /// The offset from which on the origin has no bytes that another client may have written: the end of the
    /// file. `None` unless the file is being written for the first time here, or a write lease is held. Also
    /// `None` while locks are held, because locks are for files that clients share.
    pub fn nothing_from(&self) -> Option<u64> {
        let writing = |lease: &HeldLease| lease.kind == LeaseKind::Write && lease.is_valid();
        let leased = self.held.lease.as_ref().is_some_and(writing) && self.leased().is_some();
        let known = self.known.as_ref()?;
        let trusted = known.sent.sequence >= self.distrusted_before && !self.own.history.is_suspect();
        let certain = leased || (self.fresh && trusted);
        let quiet = !self.own.history.is_under_way() && !self.own.ours && self.held.locks.is_empty();
        (certain && quiet).then_some(known.attributes.size)
    }
}
