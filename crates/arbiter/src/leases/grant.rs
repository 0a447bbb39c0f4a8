//! Grants of leases, and recalls that free capacity.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, HolderId, Lease, LeaseId, LeaseKind, Share, Want};

use super::{Delegations, Effect, Grant, Leases, Term, Termed};
use crate::shares::Others;

/// Limit of recalls when the layer below has no capacity.
const RECALLS_AT_ONCE_MAX: usize = 16;
/// The same, if what takes the capacity are opens, which end some time after the lease.
const RECALLS_FOR_OPENS: usize = 256;
/// The shortest time between two such batches. Our caches close an open one second after the lease has ended:
/// a request that these ends wake, and that still finds no capacity, may ask for the next batch.
const OPENS_END: Duration = Duration::from_millis(500);
/// Number of recalls beyond the number of waiters, when the layer below has no capacity.
const RECALLED_BEYOND_ASKERS: usize = 3;
/// Interval of CB_RECALL_ANY.
const ASK_ANY_INTERVAL: Duration = Duration::from_secs(10);

/// An open that may get a lease.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The holder that would get it.
    pub holder: Option<HolderId>,
    /// The access of the open.
    pub access: Share,
    /// The kind of lease that the client wants.
    pub want: Want,
    /// The opens of other holders.
    pub others: Others,
    /// The change attribute that came with the open.
    pub change: u64,
    /// The file is a directory.
    pub directory: bool,
    /// If given, the lease ends by itself after this time: see [`super::terms`].
    pub term: Option<Duration>,
}

impl Leases {
    /// Grants a lease with an open that was entered, if the rules permit and recommend it. The caller has
    /// checked [`Leases::clear`]; the lease that the layer below gave with the open has
    /// [entered](Leases::granted_below).
    pub fn grant(&mut self, now: Instant, handle: &Handle, wanted: &Wanted) -> Option<Lease> {
        let holder = wanted.holder?;
        if let Some(term) = wanted.term
            && let Some(mine) = self.termed_lease_of(handle, holder)
        {
            let kind = if wanted.access.contains(Share::WRITE) { LeaseKind::Write } else { LeaseKind::Read };
            let asked = Termed { holder, kind, term, others: wanted.others };
            return self.may_extend(now, mine, &asked).then(|| self.extend(now, mine, term, kind)).flatten();
        }
        let (kind, until) = self.allowed(now, handle, holder, wanted)?;
        let term = wanted.term.map(|_| Term::default());
        if term.is_some() {
            self.expire(now);
        } else {
            self.free_capacity(now);
        }
        let full = term.is_some() && self.termed >= self.terms.leases_max;
        if full || self.turnover.is_full(self.grants.len()) {
            return None;
        }
        let used = self.stamp();
        self.turnover.used(now, used);
        let id = LeaseId(self.stamp());
        let change = wanted.change;
        let under = self.files.get(handle).and_then(|file| file.under);
        // The layer below has reserved space for one writer, and there is only one.
        let space_limit = under.map_or(Lease::NO_SPACE_LIMIT, |under| under.lease.space_limit);
        let lease = Lease { id, kind, until, change, space_limit };
        let grant = Grant {
            holder,
            handle: self.files.key(handle),
            kind,
            until,
            change,
            told: change,
            used,
            recalled: None,
            directory: wanted.directory,
            term,
            queued: None,
        };
        let grants = &mut self.files.get_mut(handle)?.grants;
        // Most files have one holder.
        grants.reserve_exact(usize::from(grants.is_empty()));
        grants.push(id);
        self.grants.insert(id, grant);
        self.queue_end(id);
        if term.is_none() {
            // A lease with a term is not recalled to free capacity: it ends soon enough.
            self.idle.insert(used, id);
        }
        self.termed += usize::from(term.is_some());
        *self.holders.entry(holder).or_default() += 1;
        self.writes += usize::from(kind == LeaseKind::Write);
        self.directories += usize::from(wanted.directory);
        self.counts.granted += 1;
        Some(lease)
    }

    /// Records the change attribute of attributes that were read again after the grant.
    pub fn vouch(&mut self, id: LeaseId, change: u64) {
        if let Some(grant) = self.grants.get_mut(&id) {
            (grant.change, grant.told) = (change, change);
        }
    }

    /// The holder uses the file, so its lease on it is useful.
    pub fn touch(&mut self, now: Instant, handle: &Handle, holder: Option<HolderId>) {
        let used = self.stamp();
        self.turnover.used(now, used);
        let Some(file) = self.files.get(handle) else { return };
        for id in &file.grants {
            if let Some(grant) = self.grants.get_mut(id)
                && Some(grant.holder) == holder
                && grant.recalled.is_none()
                && grant.term.is_none()
            {
                self.idle.remove(&grant.used);
                grant.used = used;
                self.idle.insert(used, *id);
            }
        }
    }

    fn allowed(
        &self,
        now: Instant,
        handle: &Handle,
        holder: HolderId,
        wanted: &Wanted,
    ) -> Option<(LeaseKind, Option<Instant>)> {
        if self.delegations == Delegations::Never || wanted.want == Want::None || self.nameless > 0 {
            return None;
        }
        let file = self.files.get(handle)?;
        let under = file.under.filter(|under| !under.recalled)?;
        let quiet =
            file.quiet_until.is_some_and(|until| until > now) && self.delegations == Delegations::Auto;
        let lapsed = under.lease.until.is_some_and(|until| until <= now);
        if quiet || lapsed || file.changing > 0 || file.claims > 0 {
            return None;
        }
        let mut grants = file.grants.iter().filter_map(|id| self.grants.get(id));
        if grants.clone().any(|grant| grant.holder == holder || grant.kind == LeaseKind::Write) {
            return None;
        }
        let kind = match wanted.access.contains(Share::WRITE) {
            true if wanted.want == Want::Read || wanted.others.open || grants.next().is_some() => {
                return None;
            }
            true => LeaseKind::Write,
            false if wanted.others.write => return None,
            false => LeaseKind::Read,
        };
        let term = wanted.term.map(|term| now + term.min(self.terms.longest));
        let until = [under.lease.until, term].into_iter().flatten().min();
        (under.lease.kind >= kind).then_some((kind, until))
    }

    /// The layer below has no capacity for `waiters` requests. Recalls the least recently used leases,
    /// unless enough are on their way back.
    pub fn free_up(&mut self, now: Instant, waiters: usize) {
        let missing = (waiters + RECALLED_BEYOND_ASKERS).saturating_sub(self.on_their_way());
        let oldest: Vec<LeaseId> =
            self.idle.values().take(missing.min(RECALLS_AT_ONCE_MAX)).copied().collect();
        self.recall_all(now, &oldest);
    }

    /// The same, if a lease takes no capacity there and an open does: recalls leases on these files, which
    /// are open. A client may keep an open as long as it has the lease, and closes it some time after that:
    /// so many are recalled at once.
    pub fn free_up_open<'h>(&mut self, now: Instant, open: impl Iterator<Item = &'h Handle>) {
        if self.opens_wanted.is_some_and(|at| now.saturating_duration_since(at) < OPENS_END) {
            return;
        }
        self.opens_wanted = Some(now);
        let grants = open.filter_map(|handle| self.files.get(handle)).flat_map(|file| &file.grants);
        let idle = grants.filter_map(|id| Some((self.grants.get(id)?.used, *id)));
        let mut idle: Vec<(u64, LeaseId)> = idle.filter(|(used, _)| self.idle.contains_key(used)).collect();
        idle.sort_unstable();
        let oldest: Vec<LeaseId> = idle.into_iter().take(RECALLS_FOR_OPENS).map(|(_, id)| id).collect();
        self.recall_all(now, &oldest);
    }

    /// Leases that have been recalled. Those with a term end soon enough.
    fn on_their_way(&self) -> usize {
        self.grants.len() - self.termed - self.idle.len()
    }

    fn recall_all(&mut self, now: Instant, leases: &[LeaseId]) {
        leases.iter().for_each(|id| self.recall(now, *id, now + self.recall_deadline));
    }

    /// Recalls a batch of unused leases when the limit is near.
    fn free_capacity(&mut self, now: Instant) {
        let held = self.grants.len();
        if !self.turnover.is_nearly_full(held) {
            return;
        }
        let by_use = self.idle.iter().map(|(used, id)| (*used, *id));
        for id in self.turnover.batch(now, held, by_use) {
            self.recall(now, id, now + self.recall_deadline);
        }
        if self.asked_any.is_none_or(|at| now.duration_since(at) >= ASK_ANY_INTERVAL)
            && let Some((holder, count)) =
                self.holders.iter().max_by_key(|(holder, count)| (**count, **holder))
        {
            self.asked_any = Some(now);
            // As many as the reserve: recalling more would be useless.
            let keep = count.saturating_sub(self.turnover.reserve()) as u32;
            self.effects.push(Effect::RecallAny(*holder, keep));
        }
    }
}
