//! Which of our clients holds which lease, and under which lease of the layer below.
//!
//! A pure state machine: events come in as method calls with the time, effects go out through [`Leases::effects`]. What
//! it keeps true:
//! - leases of different holders on one file never conflict: many may read, or one may write;
//! - none is out but under a lease from below that allows as much, which is given back only after them;
//! - none is granted while a change by anybody is under way, or while somebody waits for leases to be returned;
//! - a recalled lease is returned or revoked by its deadline; one with a term ([`terms`]) when that has truly ended.
//!
//! A directory is a file here: a lease for reading on it is one on its names, and whoever makes, removes or renames one
//! changes it.
//!
//! What a lease from below says may cross the answer that grants it: a recall may come first, and we may have given the
//! lease back while another open's answer that names it was under way. Both are settled when the opens that were under
//! way at that time have landed ([`grants_in_flight`]).

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
use vfs::{Handle, HolderId, LeaseId, LeaseKind, Recall};

use crate::options::{Delegations, Options};
use files::{Files, Key};
use grants_in_flight::{GrantsInFlight, Seen};
use terms::Term;

pub use grant::Wanted;
pub use grants_in_flight::GrantInFlight;
pub use terms::{Renewal, Termed, Terms};

/// What is to be done, as a consequence of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the holder for it.
    Recall(Recall),
    /// Tell the holder that it has lost it.
    Revoked(LeaseId, Handle),
    /// Ask a holder to keep no more than so many.
    RecallAny(HolderId, u32),
    /// A lease on the file is gone: whoever waits for that may look again.
    Gone(LeaseId, Handle),
    /// Give a lease back to the layer below, then say [`Leases::gave_back`].
    GiveBack(LeaseId),
}

/// What somebody does with a file, as far as leases of others care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Opens it for reading, or reads.
    Read,
    /// Opens it for writing or with a denial, or changes anything about it.
    Change,
}

impl Use {
    fn conflicts(self, kind: LeaseKind) -> bool {
        self == Use::Change || kind == LeaseKind::Write
    }
}

/// A lease that is out.
#[derive(Clone, Debug)]
struct Grant {
    holder: HolderId,
    handle: Key,
    kind: LeaseKind,
    until: Option<Instant>,
    /// The change attribute that it vouches for.
    change: u64,
    /// The change attribute that others were last told of a file that the holder modifies.
    told: u64,
    /// Orders leases by last use.
    used: u64,
    recalled: Option<Box<Recalled>>,
    /// It is on a directory.
    directory: bool,
    /// It has a term of its own, other than that of the lease below.
    term: Option<Term>,
    /// Where it is in the queue of ends.
    queued: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Recalled {
    at: Instant,
    deadline: Instant,
}

impl Grant {
    /// When it ends without anybody doing anything. The deadline of a recall does not end one with a term.
    fn ends(&self, terms: &Terms) -> Option<Instant> {
        let deadline =
            self.recalled.as_ref().map(|recalled| recalled.deadline).filter(|_| self.term.is_none());
        [deadline, self.truly_ends(terms)].into_iter().flatten().min()
    }
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Its holder returned it.
    Returned,
    /// Its time was over.
    Lapsed,
    /// It was not returned in time, or lost by the layer below.
    Revoked,
}

/// A write lease that another asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The lease.
    pub id: LeaseId,
    /// The change attribute that it vouches for.
    pub change: u64,
}

/// One lease, for a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: LeaseId,
    /// Who has it.
    pub holder: HolderId,
    /// On which file.
    pub handle: Handle,
    /// What it allows.
    pub kind: LeaseKind,
    /// It was recalled then, and has not come back.
    pub recalled: Option<Instant>,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases granted.
    pub granted: u64,
    /// Of those with a term, renewed.
    pub renewed: u64,
    /// Of those with a term, ended because nobody renewed them.
    pub expired: u64,
    /// Recalled.
    pub recalled: u64,
    /// Of the recalled ones, returned in time.
    pub returned: u64,
    /// Revoked, because they were not, or because the layer below had lost what vouched for them.
    pub revoked: u64,
    /// From recall to return or revocation: all of them together.
    pub recall_time: Duration,
    /// The longest of these.
    pub recall_time_max: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Leases {
    delegations: Delegations,
    max: usize,
    recall_deadline: Duration,
    quiet: Duration,
    terms: Terms,
    files: Files,
    grants: BTreeMap<LeaseId, Grant>,
    /// Those not recalled, by last use.
    idle: BTreeMap<u64, LeaseId>,
    /// Those that end by themselves, by when.
    ends: BTreeSet<(Instant, LeaseId)>,
    holders: HashMap<HolderId, usize>,
    /// Files on which nothing is granted for a while, by when that ends.
    quiet_files: VecDeque<(Instant, Handle)>,
    grants_in_flight: GrantsInFlight,
    /// Leases from below of which something was heard out of turn.
    seen: HashMap<LeaseId, Seen>,
    under_of: HashMap<LeaseId, Key>,
    /// Changes under way to files not known yet, because they come by name.
    nameless: usize,
    /// Changes that have ended.
    changes: u64,
    next: u64,
    writes: usize,
    directories: usize,
    /// Leases out that have a term.
    termed: usize,
    /// Changes under way.
    under_way: usize,
    asked_any: Option<Instant>,
    counts: Counts,
    effects: Vec<Effect>,
}

impl Leases {
    /// Nothing is out.
    pub fn new(options: &Options) -> Leases {
        Leases {
            delegations: options.delegations,
            max: options.leases_max,
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
            seen: HashMap::new(),
            under_of: HashMap::new(),
            nameless: 0,
            changes: 0,
            next: 1,
            writes: 0,
            directories: 0,
            termed: 0,
            under_way: 0,
            asked_any: None,
            counts: Counts::default(),
            effects: Vec::new(),
        }
    }

    /// What is to be done, in this order.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Is nothing that others hold in the way of this use? What is, is recalled.
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

    /// Somebody waits until others have returned what is in the way: nothing new is granted on the file meanwhile.
    pub fn claim(&mut self, handle: &Handle) {
        self.files.entry(handle).claims += 1;
    }

    /// Waits no more.
    pub fn unclaim(&mut self, now: Instant, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            file.claims = file.claims.saturating_sub(1);
        }
        self.forget_if_unused(now, handle);
    }

    /// A change to the file begins; it is [`Leases::clear`].
    pub fn begin_change(&mut self, handle: &Handle) {
        self.files.entry(handle).changing += 1;
        self.under_way += 1;
    }

    /// It has ended.
    pub fn end_change(&mut self, now: Instant, handle: &Handle) {
        self.changes += 1;
        if let Some(file) = self.files.get_mut(handle) {
            file.changing = file.changing.saturating_sub(1);
        }
        self.under_way = self.under_way.saturating_sub(1);
        self.wrote(now, handle);
        self.forget_if_unused(now, handle);
    }

    /// A change to a file that only the layer below will know begins. Nothing is granted meanwhile.
    pub fn begin_nameless_change(&mut self) {
        self.nameless += 1;
    }

    /// It has ended, or its file is known.
    pub fn end_nameless_change(&mut self) {
        self.changes += 1;
        self.nameless = self.nameless.saturating_sub(1);
    }

    /// The holder returns a lease, recalled or not. One that is not out is no matter.
    pub fn returned(&mut self, now: Instant, id: LeaseId) {
        self.end(now, id, Ending::Returned);
    }

    /// Time goes on: revokes what is overdue.
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

    /// When [`Leases::expire`] has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        let ends = self.ends.first().map(|(at, _)| *at);
        let quiet = self.quiet_files.front().map(|(until, _)| *until);
        [ends, quiet].into_iter().flatten().min()
    }

    /// The write lease of another holder than this one, if there is one on the file.
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

    /// May the holder be asked about its file? Not if it is to return the lease: it has better things to do.
    pub fn may_be_asked(&self, id: LeaseId) -> bool {
        // NQNFS has no way to ask.
        self.grants.get(&id).is_some_and(|grant| grant.recalled.is_none() && grant.term.is_none())
    }

    /// A change attribute for a file that the holder of this lease has modified, where the layer below says `change`.
    /// It differs from all that were told before (RFC 8881, section 10.4.3). `None` if the lease is not out.
    pub fn modified(&mut self, id: LeaseId, change: u64) -> Option<u64> {
        let grant = self.grants.get_mut(&id)?;
        grant.told = grant.told.max(change).wrapping_add(1);
        Some(grant.told)
    }

    /// Leases that are out.
    pub fn len(&self) -> usize {
        self.grants.len()
    }

    /// None is out?
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// Write leases that are out.
    pub fn writes(&self) -> usize {
        self.writes
    }

    /// Leases on directories that are out.
    pub fn directories(&self) -> usize {
        self.directories
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Leases behind this one in the order of their names, at most so many.
    pub fn list(&self, behind: Option<LeaseId>, limit: usize) -> Vec<Listed> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = self.grants.range((from, Bound::Unbounded)).map(|(id, grant)| Listed {
            id: *id,
            holder: grant.holder,
            handle: grant.handle.handle(),
            kind: grant.kind,
            recalled: grant.recalled.as_ref().map(|recalled| recalled.at),
        });
        listed.take(limit).collect()
    }

    /// Asks for a lease, or brings the deadline forward if it has been asked for.
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

    /// A lease ends at another time than before.
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

    /// A lease is out no more.
    fn end(&mut self, now: Instant, id: LeaseId, how: Ending) {
        let Some(grant) = self.grants.remove(&id) else { return };
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
                // It changes hands now.
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

    /// Grants nothing on this file for a while.
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
