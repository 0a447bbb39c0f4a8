//! Leases from below: how they come, and how they go back.

use tokio::time::Instant;
use vfs::{Handle, Lease, LeaseId, LeaseKind, Recall};

use super::file::Under;
use super::files::Key;
use super::grants_in_flight::{GrantInFlight, Seen};
use super::{Effect, Ending, Leases, Writer};

/// Of the time until the layer below revokes a lease, this part is kept for giving it back.
const MARGIN_DIVISOR: u32 = 8;

impl Leases {
    /// An open goes to the layer below, which may grant a lease with it.
    pub fn begin_open(&mut self) -> GrantInFlight {
        GrantInFlight { number: self.grants_in_flight.begin(), changes: self.changes }
    }

    /// Its answer came: of this file, perhaps with a lease.
    pub fn land(&mut self, handle: &Handle, lease: Option<Lease>) {
        let used = self.stamp();
        if let Some(under) = self.files.get_mut(handle).and_then(|file| file.under.as_mut()) {
            under.used = used;
        }
        let Some(lease) = lease.filter(|lease| lease.kind != LeaseKind::Timeout) else { return };
        match self.seen.get(&lease.id) {
            Some(Seen::GivingBack | Seen::GaveBack(_) | Seen::Revoked(_)) => return,
            Some(Seen::Recalled(_)) => {
                // It was recalled before we knew it, and nothing was granted under it.
                self.seen.insert(lease.id, Seen::GivingBack);
                self.effects.push(Effect::GiveBack(lease.id));
                return;
            }
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
            Some(under) if under.recalled => {
                // Nothing may be granted before that is over.
                self.seen.insert(lease.id, Seen::GivingBack);
                self.effects.push(Effect::GiveBack(lease.id));
            }
            other => {
                // Ours that are out stand under the newer one from now on.
                if let Some(old) = other.replace(Under { lease, recalled: false, used }) {
                    self.under_of.remove(&old.lease.id);
                }
                self.under_of.insert(lease.id, key);
            }
        }
    }

    /// An open is over, however it went; what its answer named has [landed](Leases::land).
    pub fn end_open(&mut self, grant: GrantInFlight) {
        self.grants_in_flight.end(grant.number);
        self.settle();
    }

    /// Has anything been changed since the open began? Then its attributes may be from before.
    pub fn changed_since(&self, grant: GrantInFlight) -> bool {
        self.changes != grant.changes
    }

    /// The layer below asks for a lease.
    pub fn recalled_below(&mut self, now: Instant, recall: &Recall) {
        let Some(handle) = self.under_of.get(&recall.id).map(Key::handle) else {
            self.heard(recall.id, Seen::Recalled(self.grants_in_flight.mark()));
            return;
        };
        let margin = recall.deadline.saturating_duration_since(now) / MARGIN_DIVISOR;
        let deadline = (recall.deadline - margin).min(now + self.recall_deadline);
        self.call_in(now, &handle, deadline);
    }

    /// The layer below has lost a lease: so have our clients.
    pub fn revoked_below(&mut self, now: Instant, id: LeaseId) {
        let Some(handle) = self.under_of.remove(&id).map(|key| key.handle()) else {
            self.heard(id, Seen::Revoked(self.grants_in_flight.mark()));
            return;
        };
        let Some(file) = self.files.get_mut(&handle) else { return };
        file.under = None;
        for grant in file.grants.clone() {
            self.end(now, grant, Ending::Revoked);
        }
        self.forget_if_unused(now, &handle);
    }

    /// The layer below asks to keep no more than so many of its leases: the least useful go.
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

    /// Nobody has the file open: if nobody has a lease on it either, that from below is of no use.
    pub fn closed(&mut self, now: Instant, handle: &Handle) {
        if self.files.get(handle).is_some_and(|file| file.grants.is_empty()) {
            self.give_back(handle);
            self.forget_if_unused(now, handle);
        }
    }

    /// The layer below has it back.
    pub fn gave_back(&mut self, id: LeaseId) {
        self.seen.insert(id, Seen::GaveBack(self.grants_in_flight.mark()));
        self.settle();
    }

    /// The lease of ours that may write under a lease from below, for a question to whoever knows the file's size.
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

    /// Orders uses.
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
        self.seen.insert(under.lease.id, Seen::GivingBack);
        self.effects.push(Effect::GiveBack(under.lease.id));
    }

    /// Something about a lease that we do not know. There are no more of these than the layer below has leases.
    fn heard(&mut self, id: LeaseId, what: Seen) {
        if !matches!(self.seen.get(&id), Some(Seen::GivingBack | Seen::GaveBack(_))) {
            self.seen.insert(id, what);
            self.settle();
        }
    }

    /// Forgets what no answer under way can name any more.
    fn settle(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let (grants_in_flight, effects) = (&self.grants_in_flight, &mut self.effects);
        let mut unknown = Vec::new();
        self.seen.retain(|id, seen| match *seen {
            Seen::GaveBack(mark) | Seen::Revoked(mark) => !grants_in_flight.have_ended(mark),
            Seen::Recalled(mark) if grants_in_flight.have_ended(mark) => {
                // We never had it, but the layer below waits for it.
                unknown.push(*id);
                false
            }
            Seen::GivingBack | Seen::Recalled(_) => true,
        });
        for id in unknown {
            self.seen.insert(id, Seen::GivingBack);
            effects.push(Effect::GiveBack(id));
        }
    }
}
