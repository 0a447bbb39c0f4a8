//! The leases of clients, and the leases of the layer below that they depend on.
//!
//! A pure state machine: events are method calls with the time; effects are read with [`Leases::effects`].
//! Its invariants:
//! - Leases of different holders on one file never conflict: many may read, or one may write.
//! - A lease is held only under a lease from below that permits as much; the lease from below is returned
//!   last.
//! - No lease is granted on a file while a change of it is in flight or a requester waits for the return of
//!   its leases. While a change is in flight whose file is not known yet, no lease is granted at all.
//! - A recalled lease is returned or revoked by its deadline; one with a term ([`terms`]) when the term has
//!   truly ended.
//!
//! A directory is treated as a file. A read lease on it covers its names, and a request that creates,
//! removes or renames a name changes it.
//!
//! News about a lease from below may cross the reply that grants it. A recall may arrive first. Or the
//! arbiter may have returned the lease while another open's reply that names it was in flight. Both cases
//! are resolved when all opens in flight at that time have ended ([`grants_in_flight`]).

mod file;
mod files;
mod grant;
pub(crate) mod grants_in_flight;
pub mod terms;
mod under;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, HolderId, LeaseId, LeaseKind, Recall, SharedHandle as Key, Turnover};

use crate::options::{Delegations, Options};
use files::Files;
use grants_in_flight::GrantsInFlight;
use terms::Term;

pub use grant::Wanted;
pub use grants_in_flight::GrantInFlight;
pub use terms::{Renewal, Termed, Terms};
pub use under::recall_time;

/// The consequence of an event, to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Recall the lease from its holder.
    Recall(Recall),
    /// Tell the holder that its lease is revoked.
    Revoked(LeaseId, Handle),
    /// Ask a holder to keep at most this number of leases.
    RecallAny(HolderId, u32),
    /// A lease on the file has ended: wake the requesters that wait for that.
    Gone(LeaseId, Handle),
    /// Return a lease to the layer below, then call [`Leases::gave_back`].
    GiveBack(LeaseId),
}

/// The use of a file by a request, as far as leases of other holders are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// An open for reading, or a read.
    Read,
    /// An open for writing or with a denial, or any change.
    Change,
}

impl Use {
    fn conflicts(self, kind: LeaseKind) -> bool {
        self == Use::Change || kind == LeaseKind::Write
    }
}

/// A lease that is held.
#[derive(Clone, Debug)]
struct Grant {
    holder: HolderId,
    handle: Key,
    kind: LeaseKind,
    until: Option<Instant>,
    /// The change attribute that it vouches for.
    change: u64,
    /// The last change attribute reported to others for a file that the holder modifies.
    told: u64,
    /// The order of the last use.
    used: u64,
    recalled: Option<Box<Recalled>>,
    /// The lease is on a directory.
    directory: bool,
    /// The lease has its own term, besides that of the lease below.
    term: Option<Term>,
    /// Its entry in the queue of ends.
    queued: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Recalled {
    at: Instant,
    deadline: Instant,
}

impl Grant {
    /// When it ends without any further event. The deadline of a recall does not end a lease with a term.
    fn ends(&self, terms: &Terms) -> Option<Instant> {
        let deadline =
            self.recalled.as_ref().map(|recalled| recalled.deadline).filter(|_| self.term.is_none());
        [deadline, self.truly_ends(terms)].into_iter().flatten().min()
    }
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The holder returned it.
    Returned,
    /// Its term ended.
    Lapsed,
    /// The holder did not return it in time, or the layer below lost it.
    Revoked,
}

/// A write lease that another requester asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The lease.
    pub id: LeaseId,
    /// The change attribute that it vouches for.
    pub change: u64,
}

/// A lease, for a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: LeaseId,
    /// Its holder.
    pub holder: HolderId,
    /// Its file.
    pub handle: Handle,
    /// What it allows.
    pub kind: LeaseKind,
    /// Its file is a directory.
    pub directory: bool,
    /// The time of its recall, if it was recalled and not returned.
    pub recalled: Option<Instant>,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases granted.
    pub granted: u64,
    /// Renewals of leases with a term.
    pub renewed: u64,
    /// Leases with a term that ended because they were not renewed.
    pub expired: u64,
    /// Leases recalled.
    pub recalled: u64,
    /// Recalled leases that were returned in time.
    pub returned: u64,
    /// Leases revoked: not returned in time, or lost by the layer below.
    pub revoked: u64,
    /// Total time from recall to return or revocation.
    pub recall_time: Duration,
    /// The longest of these times.
    pub recall_time_max: Duration,
}

/// The state machine. See the module.
#[derive(Debug)]
pub struct Leases {
    delegations: Delegations,
    /// Decides which leases to recall when the limit is near.
    turnover: Turnover,
    recall_deadline: Duration,
    quiet: Duration,
    terms: Terms,
    files: Files,
    grants: BTreeMap<LeaseId, Grant>,
    /// Leases that are not recalled, in the order of their last use.
    idle: BTreeMap<u64, LeaseId>,
    /// Leases that end by themselves, in the order of their ends.
    ends: BTreeSet<(Instant, LeaseId)>,
    holders: HashMap<HolderId, usize>,
    /// Files in their quiet period, in the order of its end: no lease is granted on them.
    quiet_files: VecDeque<(Instant, Handle)>,
    grants_in_flight: GrantsInFlight,
    under_of: HashMap<LeaseId, Key>,
    /// Changes in flight by name, whose files are not known yet.
    nameless: usize,
    /// Number of changes that have ended.
    changes: u64,
    next: u64,
    writes: usize,
    directories: usize,
    /// Number of leases with a term.
    termed: usize,
    /// Number of changes in flight.
    under_way: usize,
    /// Number of requesters that wait for the return of leases.
    waiting: usize,
    asked_any: Option<Instant>,
    /// When leases of open files were last recalled, because opens take the capacity below.
    opens_wanted: Option<Instant>,
    counts: Counts,
    effects: Vec<Effect>,
}

impl Leases {
    /// A state machine without leases.
    pub fn new(options: &Options) -> Leases {
        Leases {
            delegations: options.delegations,
            turnover: Turnover::new(options.leases_max, options.idle_min),
            recall_deadline: options.recall_deadline,
            quiet: options.quiet,
            terms: options.terms,
            files: Files::default(),
            grants: BTreeMap::new(),
            idle: BTreeMap::new(),
            ends: BTreeSet::new(),
            holders: HashMap::new(),
            quiet_files: VecDeque::new(),
            grants_in_flight: GrantsInFlight::default(),
            under_of: HashMap::new(),
            nameless: 0,
            changes: 0,
            next: 1,
            writes: 0,
            directories: 0,
            termed: 0,
            under_way: 0,
            waiting: 0,
            asked_any: None,
            opens_wanted: None,
            counts: Counts::default(),
            effects: Vec::new(),
        }
    }

    /// The effects to carry out, in this order.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Does nothing that others hold conflict with this use? Conflicting leases are recalled.
    pub fn clear(&mut self, now: Instant, handle: &Handle, holder: Option<HolderId>, usage: Use) -> bool {
        let Some(file) = self.files.get(handle) else { return true };
        let in_way: Vec<LeaseId> = file
            .grants
            .iter()
            .filter(|id| {
                self.grants.get(id).is_some_and(|grant| {
                    Some(grant.holder) != holder && usage.conflicts(grant.kind) && !self.is_over(now, grant)
                })
            })
            .copied()
            .collect();
        for id in &in_way {
            self.recall(now, *id, now + self.recall_deadline);
        }
        if in_way.is_empty() {
            return true;
        }
        self.hush(now, handle);
        false
    }

    /// A requester waits for the return of conflicting leases. Meanwhile no lease is granted on the file.
    pub fn claim(&mut self, handle: &Handle) {
        self.files.entry(handle).claims += 1;
        self.waiting += 1;
    }

    /// The requester does not wait any more.
    pub fn unclaim(&mut self, now: Instant, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            debug_assert!(file.claims > 0, "a requester stops waiting for a file that it did not claim");
            file.claims = file.claims.saturating_sub(1);
        }
        debug_assert!(self.waiting > 0, "a requester stops waiting that did not wait");
        self.waiting = self.waiting.saturating_sub(1);
        self.forget_if_unused(now, handle);
    }

    /// A change of the file begins. The caller has checked [`Leases::clear`].
    pub fn begin_change(&mut self, handle: &Handle) {
        self.files.entry(handle).changing += 1;
        self.under_way += 1;
    }

    /// A change of the file has ended.
    pub fn end_change(&mut self, now: Instant, handle: &Handle) {
        self.changes += 1;
        if let Some(file) = self.files.get_mut(handle) {
            debug_assert!(file.changing > 0, "a change of the file ends that did not begin");
            file.changing = file.changing.saturating_sub(1);
        }
        debug_assert!(self.under_way > 0, "a change ends that did not begin");
        self.under_way = self.under_way.saturating_sub(1);
        self.wrote(now, handle);
        self.forget_if_unused(now, handle);
    }

    /// A change begins whose file only the layer below knows. Meanwhile no lease is granted at all.
    pub fn begin_nameless_change(&mut self) {
        self.nameless += 1;
    }

    /// Such a change has ended, or its file is known.
    pub fn end_nameless_change(&mut self) {
        self.changes += 1;
        debug_assert!(self.nameless > 0, "a change of an unknown file ends that did not begin");
        self.nameless = self.nameless.saturating_sub(1);
    }

    /// The holder returns a lease, recalled or not. An id that is not held is ignored.
    pub fn returned(&mut self, now: Instant, id: LeaseId) {
        self.end(now, id, Ending::Returned);
    }

    /// Ends the leases and quiet periods whose time is over, and revokes overdue leases.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.ends.first() {
            if at > now {
                break;
            }
            self.ends.pop_first();
            let Some(grant) = self.grants.get(&id) else { continue };
            if self.is_over(now, grant) {
                self.end(now, id, Ending::Lapsed);
            } else if grant.term.is_some() {
                let again = self.look_again(now, grant);
                self.requeue(id, Some(again));
            } else {
                self.end(now, id, Ending::Revoked);
            }
        }
        while let Some(&(until, handle)) = self.quiet_files.front() {
            if until > now {
                break;
            }
            self.quiet_files.pop_front();
            if let Some(file) = self.files.get_mut(&handle) {
                file.hushed = false;
                match file.quiet_until {
                    Some(later) if later > now => self.queue_quiet(later, &handle),
                    _ => self.forget_if_unused(now, &handle),
                }
            }
        }
    }

    /// When [`Leases::expire`] has work to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        let ends = self.ends.first().map(|(at, _)| *at);
        let quiet = self.quiet_files.front().map(|(until, _)| *until);
        [ends, quiet].into_iter().flatten().min()
    }

    /// The write lease of a holder other than this one, if the file has one.
    pub fn writer(&self, now: Instant, handle: &Handle, holder: Option<HolderId>) -> Option<Writer> {
        let file = self.files.get(handle)?;
        file.grants.iter().find_map(|id| {
            let grant = self.grants.get(id)?;
            let theirs = Some(grant.holder) != holder && grant.kind == LeaseKind::Write;
            (theirs && !self.is_over(now, grant)).then_some(Writer { id: *id, change: grant.change })
        })
    }

    /// Has this holder a lease on the file, recalled or not?
    pub fn has(&self, handle: &Handle, holder: HolderId) -> bool {
        let of_it = |id: &LeaseId| self.grants.get(id).is_some_and(|grant| grant.holder == holder);
        self.files.get(handle).is_some_and(|file| file.grants.iter().any(of_it))
    }

    /// May the holder be asked about its file? Not while its lease is recalled: the return will bring the
    /// data.
    pub fn may_be_asked(&self, id: LeaseId) -> bool {
        // NQNFS has no such question.
        self.grants.get(&id).is_some_and(|grant| grant.recalled.is_none() && grant.term.is_none())
    }

    /// A change attribute for a file that the holder of this lease has modified, where the layer below
    /// reports `change`. It differs from all that were reported before (RFC 8881, section 10.4.3). `None`
    /// if the lease is not held.
    pub fn modified(&mut self, id: LeaseId, change: u64) -> Option<u64> {
        let grant = self.grants.get_mut(&id)?;
        grant.told = grant.told.max(change).wrapping_add(1);
        Some(grant.told)
    }

    /// Number of leases held.
    pub fn len(&self) -> usize {
        self.grants.len()
    }

    /// Are no leases held?
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// Number of write leases held.
    pub fn writes(&self) -> usize {
        self.writes
    }

    /// Number of leases held on directories.
    pub fn directories(&self) -> usize {
        self.directories
    }

    /// Number of changes, opens and waiting requesters in flight.
    pub fn in_flight(&self) -> usize {
        self.under_way + self.nameless + self.waiting + self.grants_in_flight.calls().len()
    }

    /// The counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Leases after this one in the order of their ids, at most `limit`.
    pub fn list(&self, behind: Option<LeaseId>, limit: usize) -> Vec<Listed> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = self.grants.range((from, Bound::Unbounded)).map(|(id, grant)| Listed {
            id: *id,
            holder: grant.holder,
            handle: grant.handle.handle(),
            kind: grant.kind,
            directory: grant.directory,
            recalled: grant.recalled.as_ref().map(|recalled| recalled.at),
        });
        listed.take(limit).collect()
    }

    /// Recalls a lease, or moves the deadline of its recall forward.
    fn recall(&mut self, now: Instant, id: LeaseId, deadline: Instant) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        let deadline = if grant.term.is_some() {
            grant.until.unwrap_or(deadline) + self.terms.clock_skew + self.terms.write_slack
        } else {
            deadline
        };
        if let Some(recalled) = &mut grant.recalled {
            recalled.deadline = recalled.deadline.min(deadline);
        } else {
            grant.recalled = Some(Box::new(Recalled { at: now, deadline }));
            self.idle.remove(&grant.used);
            self.counts.recalled += 1;
            let handle = grant.handle.handle();
            self.effects.push(Effect::Recall(Recall { id, handle, keep: None, deadline }));
        }
        self.queue_end(id);
    }

    /// The end of a lease has changed.
    fn queue_end(&mut self, id: LeaseId) {
        let ends = self.grants.get(&id).and_then(|grant| grant.ends(&self.terms));
        self.requeue(id, ends);
    }

    fn requeue(&mut self, id: LeaseId, at: Option<Instant>) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut grant.queued, at) {
            self.ends.remove(&(before, id));
        }
        if let Some(at) = at {
            self.ends.insert((at, id));
        }
    }

    /// Ends a lease.
    fn end(&mut self, now: Instant, id: LeaseId, how: Ending) {
        let Some(grant) = self.grants.remove(&id) else { return };
        self.turnover.ended(id);
        if let Some(queued) = grant.queued {
            self.ends.remove(&(queued, id));
        }
        self.termed -= usize::from(grant.term.is_some());
        self.counts.expired += u64::from(grant.term.is_some() && how == Ending::Lapsed);
        self.idle.remove(&grant.used);
        self.writes -= usize::from(grant.kind == LeaseKind::Write);
        self.directories -= usize::from(grant.directory);
        if let Some(count) = self.holders.get_mut(&grant.holder) {
            *count -= 1;
            if *count == 0 {
                self.holders.remove(&grant.holder);
            }
        }
        if let Some(recalled) = grant.recalled {
            let took = now.duration_since(recalled.at);
            self.counts.recall_time += took;
            self.counts.recall_time_max = self.counts.recall_time_max.max(took);
            self.counts.returned += u64::from(how == Ending::Returned);
        }
        let handle = grant.handle.handle();
        if how == Ending::Revoked {
            self.counts.revoked += 1;
            self.effects.push(Effect::Revoked(id, handle));
        }
        self.effects.push(Effect::Gone(id, handle));
        if let Some(file) = self.files.get_mut(&handle) {
            file.grants.retain(|other| *other != id);
            if file.quiet_until.is_some_and(|until| until > now) {
                // The quiet period starts again with the end of the conflict.
                self.hush(now, &handle);
            }
        }
        self.give_back_if_recalled(&handle);
        self.forget_if_unused(now, &handle);
    }

    fn forget_if_unused(&mut self, now: Instant, handle: &Handle) {
        if self.files.get(handle).is_some_and(|file| file.is_unused(now)) {
            self.files.remove(handle);
        }
    }

    /// Starts the quiet period of a file: no lease is granted for a while.
    fn hush(&mut self, now: Instant, handle: &Handle) {
        let until = now + self.quiet;
        let Some(file) = self.files.get_mut(handle) else { return };
        file.quiet_until = Some(until);
        if !file.hushed {
            self.queue_quiet(until, handle);
        }
    }

    fn queue_quiet(&mut self, until: Instant, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            file.hushed = true;
            self.quiet_files.push_back((until, *handle));
        }
    }
}

#[cfg(test)]
mod tests;
