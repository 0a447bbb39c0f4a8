//! Leases from below: their grant and their return.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, Lease, LeaseId, LeaseKind, Recall, SharedHandle as Key};

use super::file::Under;
use super::grants_in_flight::{GrantInFlight, Seen};
use super::{Effect, Ending, Leases, Writer};

/// The time until the layer below revokes a lease, divided by this, is reserved for the return.
const MARGIN_DIVISOR: u32 = 8;

/// How much of the time for the answer to a recall of the layer below the holders have.
pub fn recall_time(time: Duration) -> Duration {
    time.saturating_sub(time / MARGIN_DIVISOR)
}

impl Leases {
    /// An open is sent to the layer below, which may grant a lease with it.
    pub fn begin_open(&mut self) -> GrantInFlight {
        GrantInFlight { number: self.grants_in_flight.begin(), changes: self.changes }
    }

    /// The reply to the open has arrived, for this file, perhaps with a lease.
    pub fn granted_below(&mut self, handle: &Handle, lease: Option<Lease>) {
        let used = self.stamp();
        if let Some(under) = self.files.get_mut(handle).and_then(|file| file.under.as_mut()) {
            under.used = used;
        }
        let Some(lease) = lease.filter(|lease| lease.kind != LeaseKind::Timeout) else { return };
        match self.grants_in_flight.news(lease.id) {
            Some(Seen::GivingBack | Seen::GaveBack | Seen::Revoked) => return,
            // The lease was recalled before its grant arrived, so nothing was granted under it.
            Some(Seen::Recalled) => return self.return_below(lease.id),
            None => {}
        }
        self.files.entry(handle);
        let key = self.files.key(handle);
        let file = self.files.entry(handle);
        match &mut file.under {
            Some(under) if under.lease.id == lease.id => {
                let kind = under.lease.kind.max(lease.kind);
                under.lease = Lease { kind, ..lease };
            }
            // A late reply. The lease that it names has ended, or its recall finds it unknown and returns it.
            Some(under) if under.lease.id > lease.id => {}
            Some(under) if under.recalled => {
                // Nothing may be granted before the recall has ended.
                self.return_below(lease.id);
            }
            other => {
                // Leases of clients depend on the newer lease from now on.
                if let Some(old) = other.replace(Under { lease, recalled: false, used }) {
                    self.under_of.remove(&old.lease.id);
                }
                self.under_of.insert(lease.id, key);
            }
        }
    }

    /// An open has ended, with any result. If its reply named a lease, that has
    /// [entered](Leases::granted_below).
    pub fn end_open(&mut self, grant: GrantInFlight) {
        for (id, seen) in self.grants_in_flight.end(grant.number) {
            // No reply can name the lease any more.
            if seen == Seen::Recalled {
                self.return_below(id);
            }
        }
    }

    /// Has any change ended since the open began? Then its attributes may be older than the change.
    pub fn changed_since(&self, grant: GrantInFlight) -> bool {
        self.changes != grant.changes
    }

    /// The layer below recalls a lease.
    pub fn recalled_below(&mut self, now: Instant, recall: &Recall) {
        let Some(handle) = self.under_of.get(&recall.id).map(Key::handle) else {
            self.heard(recall.id, Seen::Recalled);
            return;
        };
        let time = recall_time(recall.deadline.saturating_duration_since(now));
        let deadline = now + time.min(self.recall_deadline);
        self.call_in(now, &handle, deadline);
    }

    /// The layer below has lost a lease, so the leases under it are revoked.
    pub fn revoked_below(&mut self, now: Instant, id: LeaseId) {
        let Some(handle) = self.under_of.remove(&id).map(|key| key.handle()) else {
            self.heard(id, Seen::Revoked);
            return;
        };
        let Some(file) = self.files.get_mut(&handle) else { return };
        file.under = None;
        for grant in file.grants.clone() {
            self.end(now, grant, Ending::Revoked);
        }
        self.forget_if_unused(now, &handle);
    }

    /// The layer below asks to keep at most `keep` of its leases: the least recently used are recalled.
    pub fn keep_below(&mut self, now: Instant, keep: usize) {
        let held = self.under_of.values().map(Key::handle).filter_map(|handle| {
            let under = self.files.get(&handle)?.under?;
            (!under.recalled).then_some((under.used, handle))
        });
        let mut held: Vec<(u64, Handle)> = held.collect();
        held.sort_unstable_by_key(|(used, _)| *used);
        let excess = held.len().saturating_sub(keep);
        for (_, handle) in held.into_iter().take(excess) {
            self.call_in(now, &handle, now + self.recall_deadline);
        }
    }

    /// The file has no opens any more. If it has no leases either, the lease from below is useless.
    pub fn closed(&mut self, now: Instant, handle: &Handle) {
        if self.files.get(handle).is_some_and(|file| file.grants.is_empty()) {
            self.give_back(handle);
            self.forget_if_unused(now, handle);
        }
    }

    /// The layer below has processed the return of a lease.
    pub fn gave_back(&mut self, id: LeaseId) {
        self.grants_in_flight.remember(id, Seen::GaveBack);
    }

    /// The write lease held under a lease from below, for a question about the file's size.
    pub fn writer_under(&self, now: Instant, id: LeaseId) -> Option<Writer> {
        let handle = self.under_of.get(&id)?.handle();
        self.writer(now, &handle, None)
    }

    pub(super) fn give_back_if_recalled(&mut self, handle: &Handle) {
        let Some(file) = self.files.get(handle) else { return };
        if file.grants.is_empty() && file.under.is_some_and(|under| under.recalled) {
            self.give_back(handle);
        }
    }

    /// A sequence number, to order uses.
    pub(super) fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn call_in(&mut self, now: Instant, handle: &Handle, deadline: Instant) {
        let Some(file) = self.files.get_mut(handle) else { return };
        if let Some(under) = &mut file.under {
            under.recalled = true;
        }
        for grant in file.grants.clone() {
            self.recall(now, grant, deadline);
        }
        self.give_back_if_recalled(handle);
        self.forget_if_unused(now, handle);
    }

    fn give_back(&mut self, handle: &Handle) {
        let Some(under) = self.files.get_mut(handle).and_then(|file| file.under.take()) else { return };
        self.under_of.remove(&under.lease.id);
        self.return_below(under.lease.id);
    }

    /// Records news about an unknown lease. If no reply in flight can name a recalled lease, returns it: the
    /// arbiter never had it, but the layer below waits.
    fn heard(&mut self, id: LeaseId, what: Seen) {
        let returned = matches!(self.grants_in_flight.news(id), Some(Seen::GivingBack | Seen::GaveBack));
        // The layer below may have granted a returned lease anew, with a reply that is still in flight.
        let is_kept = !returned && self.grants_in_flight.hear(id, what);
        if !is_kept && what == Seen::Recalled {
            self.return_below(id);
        }
    }

    /// Returns a lease to the layer below.
    fn return_below(&mut self, id: LeaseId) {
        self.grants_in_flight.keep(id, Seen::GivingBack);
        self.effects.push(Effect::GiveBack(id));
    }
}
