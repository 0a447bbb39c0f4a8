//! The lease from below that vouches for an object, and what the index is told of it.
//!
//! While it is held, nobody else changes the object unannounced. It may outlive the process: then the index vouches for
//! what it has, if that was all there was to know.

use vfs::{LeaseId, LeaseKind};

use super::{ObjectState, Seen};
use crate::lease::HeldLease;
use crate::policy::Policy;
use crate::trust::Sent;

impl ObjectState {
    /// A lease of an earlier process is held still.
    pub fn adopt_lease(&mut self, policy: &Policy, lease: impl FnOnce(u64, u64) -> HeldLease) {
        let since = policy.event();
        self.lease = Some(lease(since, if self.vouched { 0 } else { since }));
    }

    /// Is there nothing more to know of it than what is known, for as long as the lease is held? If so, the index, which
    /// has just been told all, is to say that the lease vouches for it.
    pub fn vouch(&mut self) -> Option<LeaseId> {
        let lease = self.lease.as_ref().filter(|lease| lease.until().is_none() && lease.is_free())?.id;
        let busy = self.history.is_under_way() || self.is_busy();
        let quiet = !self.changed && !self.ours && !busy;
        let new = quiet && !self.vouched && self.leased().is_some();
        self.vouched |= new;
        new.then_some(lease)
    }

    /// Does the index say that a lease vouches for what it has?
    pub fn is_vouched(&self) -> bool {
        self.vouched
    }

    /// What the index has is not to be believed by a later process without asking: we are about to change the object, or
    /// have learnt that it changed.
    pub fn unvouch(&mut self) {
        if std::mem::take(&mut self.vouched) {
            self.unvouched = true;
            self.changed = true;
        }
    }

    /// A lease was granted with these attributes, by a call that was sent so.
    pub fn grant(
        &mut self,
        policy: &Policy,
        seen: Seen,
        sent: &Sent,
        lease: impl FnOnce(u64, u64) -> HeldLease,
    ) {
        let since = policy.event();
        let atomic = seen == Seen::Known
            && self.known.as_ref().is_some_and(|known| known.sent.sequence >= self.distrusted_before);
        // If the known attributes are not those of the grant, only later ones are vouched for.
        let lease = lease(since, if atomic { sent.sequence } else { since });
        // So that the index hears of it.
        self.changed = true;
        match &mut self.lease {
            Some(held) if held.id == lease.id => {
                held.kind = held.kind.max(lease.kind);
                held.space_limit = lease.space_limit;
            }
            held => *held = Some(lease),
        }
    }

    /// The lease ends. What it alone kept believable goes with it, and the attributes are asked for at the next use.
    pub fn end_lease(&mut self, policy: &Policy) -> Option<HeldLease> {
        let lease = self.lease.take()?;
        self.unvouch();
        self.covered = false;
        // What was learnt under the lease counts as settled; from now on only the time stamps tell.
        if std::mem::take(&mut self.ours) || !self.is_stamped(policy, &policy.sending()) {
            self.drop_all(policy);
        }
        self.distrust(policy);
        Some(lease)
    }

    /// From where on the origin has nothing of it that anybody else may have written: its end, if it is being written for
    /// the first time here, or under a lease for writing; but not under locks, which are for those who share a file.
    pub fn nothing_from(&self) -> Option<u64> {
        let writing = |lease: &HeldLease| lease.kind == LeaseKind::Write && lease.is_valid();
        let leased = self.lease.as_ref().is_some_and(writing) && self.leased().is_some();
        let known = self.known.as_ref()?;
        let trusted = known.sent.sequence >= self.distrusted_before && !self.history.is_suspect();
        let certain = leased || (self.fresh && trusted);
        let quiet = !self.history.is_under_way() && !self.ours && self.locks.is_empty();
        (certain && quiet).then_some(known.attributes.size)
    }
}
