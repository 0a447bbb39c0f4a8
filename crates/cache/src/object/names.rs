//! Names in a directory: which of them we are changing, and which of the known ones a lease on the directory
//! covers.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Name};

use super::ObjectState;
use crate::held_lease::HeldLease;
use crate::listing::{Edit, Gathering, KnownListing};
use crate::names::{Leads, NameEntry};
use crate::policy::Policy;
use crate::trust::Sent;

/// After so many questions about names in a directory, the cache asks for a lease on it. The first question
/// already does, like the ACCESS of the directory's first use.
const BACKOFF_MIN: u32 = 1;
/// Each request doubles the number of questions before the next request, up to this limit: the lease did not
/// last.
const BACKOFF_MAX: u32 = 64;
/// After this time without a request, the backoff starts anew.
const BACKOFF_MEMORY: Duration = Duration::from_secs(60);

/// How soon to ask again for a lease on a directory, counted in questions about its names that go to the
/// origin.
#[derive(Debug)]
pub struct DelegationBackoff {
    questions: u32,
    needed: u32,
    asked: Option<Instant>,
}

impl Default for DelegationBackoff {
    fn default() -> DelegationBackoff {
        DelegationBackoff { questions: 0, needed: BACKOFF_MIN, asked: None }
    }
}

impl DelegationBackoff {
    /// Another question is about to be sent. True if it should ask for a lease as well.
    pub fn question(&mut self, now: Instant) -> bool {
        if self.asked.is_some_and(|asked| now.saturating_duration_since(asked) > BACKOFF_MEMORY) {
            *self = DelegationBackoff { questions: self.questions, ..DelegationBackoff::default() };
        }
        self.questions += 1;
        let due = self.questions >= self.needed;
        if due {
            *self = DelegationBackoff {
                questions: 0,
                needed: (self.needed * 2).min(BACKOFF_MAX),
                asked: Some(now),
            };
        }
        due
    }
}

/// The number of our latest changes of names that are remembered. A forgotten change counts as one of any
/// name.
const TOUCHED_MAX: usize = 256;

/// Which names we changed, and when. An answer about a name is not stored if we changed that name while the
/// call was in flight. Answers about other names are stored.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// The generation that each change made, in order, with the name. `None` for a change that may concern
    /// any name.
    names: VecDeque<(u64, Option<Name>)>,
    /// The generation of the latest change that is no longer in `names`.
    forgotten: u64,
}

impl Touched {
    fn push(&mut self, generation: u64, name: Option<&Name>) {
        if self.names.len() >= TOUCHED_MAX
            && let Some((generation, _)) = self.names.pop_front()
        {
            self.forgotten = generation;
        }
        self.names.push_back((generation, name.cloned()));
    }

    /// Has this name been changed after this generation, as far as is known?
    fn since(&self, generation: u64, name: &Name) -> bool {
        let hit = |(at, touched): &(u64, Option<Name>)| {
            *at > generation && touched.as_ref().is_none_or(|touched| touched == name)
        };
        self.forgotten > generation || self.names.iter().rev().take_while(|(at, _)| *at > generation).any(hit)
    }
}

/// A change of a name by us that is in flight.
#[derive(Debug)]
pub(super) struct BusyName {
    ticket: u64,
    name: Name,
    contested: bool,
}

/// The names in a directory: which of them we are changing, what is known of all of them, and when to ask for
/// more.
#[derive(Debug, Default)]
pub struct DirectoryNames {
    /// When a lease on this directory was last refused.
    pub undelegated: Option<Instant>,
    /// The epoch in which the cache requested all names in this directory, because one of them was looked up.
    pub listed: Option<u64>,
    /// A name that was not known has been looked up in this directory.
    pub sought: bool,
    /// The epoch in which a LOOKUP in this directory found no such name.
    pub missed: Option<u64>,
    /// Counts our own changes of names in this directory, before and after each. An answer that was requested
    /// before the count moved is not stored.
    pub generation: u64,
    touched: Touched,
    /// The last event that showed a change of this directory by another client. A later call must confirm
    /// positive entries.
    pub(super) doubted: u64,
    /// The event at which this object came into memory. Doubts from before are not known any more, so
    /// attributes from before do not prove positive entries either.
    pub(super) loaded: u64,
    /// A negative entry holds only if it is confirmed by a call that was sent after this event.
    pub(super) negative_from: u64,
    busy: Vec<BusyName>,
    tickets: u64,
    /// How soon to ask again for a lease on this directory.
    pub backoff: DelegationBackoff,
    /// The listing of this directory, if all names are known.
    pub listing: Option<KnownListing>,
    /// The part of a listing that READDIR replies have brought so far.
    pub gathering: Option<Gathering>,
}

impl DirectoryNames {
    /// Nothing is known of the names, and what was heard of them before this event is forgotten.
    pub(super) fn loaded_at(event: u64) -> DirectoryNames {
        DirectoryNames { loaded: event, ..DirectoryNames::default() }
    }
}

impl ObjectState {
    /// The epoch whose recorded names are exactly those that exist: a lease is held, and every change since
    /// the lease began is our own.
    pub fn names_epoch(&self) -> Option<u64> {
        let ours = self.is_ours_alone() || (self.own.covered && self.own.history.is_under_way());
        (ours && self.held.lease.as_ref().is_some_and(HeldLease::is_valid)).then_some(self.epoch)
    }

    /// Is every difference between the known state and the origin's our own doing, by a lease?
    pub(super) fn is_ours_alone(&self) -> bool {
        let held = self.held.lease.as_ref().is_some_and(HeldLease::is_valid);
        held && (self.own.ours || self.leased().is_some())
    }

    /// Is it certain that the name does not exist, by a lease and a listing of all names?
    pub fn lacks(&self, name: &Name) -> bool {
        let told = |listing: &crate::listing::KnownListing| !listing.racy && listing.lacks(name);
        self.names_epoch().is_some()
            && !self.is_busy_name(name)
            && self.names.listing.as_ref().is_some_and(told)
    }

    /// The directory's attributes, if they prove a negative entry of its current epoch. See [`crate::news`].
    pub fn proves_absence(&self, policy: &Policy) -> Option<&Attributes> {
        let max = policy.negative_max();
        let from = if max.is_some() { policy.news.latest().max(self.names.negative_from) } else { 0 };
        let vouched = self.leased().or_else(|| Some(self.presumed()?.0)).or_else(|| self.told());
        let timed = || {
            let known = self.known.as_ref().filter(|known| known.sent.sequence >= from)?;
            self.current_within(max).filter(|_| known.sent.sequence >= from)
        };
        vouched.or_else(timed)
    }

    /// A client has opened a file in this directory, by a request that arrived at this event. The client may
    /// rely on earlier work of another client.
    pub fn pass_open(&mut self, arrived: u64) {
        self.names.negative_from = self.names.negative_from.max(arrived);
    }

    /// A reader is given the listing of this directory. From now on, the listing proves the absence of other
    /// names, with attributes that were requested after the guess came: at the open, or after this event.
    pub fn pass_listing(&mut self, event: u64) {
        let Some(came) = self.names.listing.as_mut().and_then(|listing| listing.guessed.take()) else {
            return;
        };
        if !self.is_known_since(came) {
            self.pass_open(event);
        }
        self.index.changed = true;
    }

    /// Has a client opened a file in this directory since the directory's attributes were requested?
    pub fn is_to_be_confirmed(&self) -> bool {
        self.names.negative_from > 0
            && self.leased().is_none()
            && !self.is_known_since(self.names.negative_from)
    }

    /// The last event that showed a change of this directory by another client, or 0.
    pub fn names_doubted(&self) -> u64 {
        self.names.doubted
    }

    /// A call after this event must confirm positive entries: what it shows is newer than everything that was
    /// heard of this directory.
    pub fn names_doubted_or_forgotten(&self) -> u64 {
        self.names.doubted.max(self.names.loaded)
    }

    /// Is the name missing in the complete listing, if there is one?
    pub fn listing_lacks(&self, name: &Name) -> bool {
        self.names.listing.as_ref().is_some_and(|listing| listing.lacks(name))
    }

    /// A lease is about to begin. It does not vouch for names that were learnt in a racy state, so they are
    /// dropped.
    pub fn settle_names(&mut self, policy: &Policy, sent: &Sent) {
        if self.held.lease.is_none() && !self.is_stamped(policy, sent) {
            self.epoch = policy.epoch();
            self.index.changed |= self.names.listing.take().is_some();
            self.names.gathering = None;
        }
    }

    /// A change of this name by us is about to be sent. Returns the ticket of the change.
    pub fn begin_name(&mut self, name: &Name) -> u64 {
        self.touch_names(Some(name));
        self.names.tickets += 1;
        let mut contested = false;
        for other in self.names.busy.iter_mut().filter(|other| other.name == *name) {
            other.contested = true;
            contested = true;
        }
        self.names.busy.push(BusyName { ticket: self.names.tickets, name: name.clone(), contested });
        self.names.tickets
    }

    /// Is this the only change of its name in flight?
    pub fn is_alone(&self, ticket: u64) -> bool {
        self.names.busy.iter().any(|busy| busy.ticket == ticket && !busy.contested)
    }

    /// The change of the name has ended. False if another change of the same name was in flight: it is not
    /// known which came last.
    pub fn end_name(&mut self, ticket: u64) -> bool {
        // The lease may vouch for the index entry again.
        self.index.changed = true;
        let Some(at) = self.names.busy.iter().position(|busy| busy.ticket == ticket) else {
            self.touch_names(None);
            return false;
        };
        let ended = self.names.busy.swap_remove(at);
        self.touch_names(Some(&ended.name));
        !ended.contested
    }

    /// A change of ours may have changed the object that any of the names leads to.
    pub fn touch_all_names(&mut self) {
        self.touch_names(None);
    }

    /// Has a change of this name by us begun or ended since this generation?
    pub fn touched_since(&self, generation: u64, name: &Name) -> bool {
        self.names.touched.since(generation, name)
    }

    /// Updates the listing with what is known of the name after a change of ours.
    pub fn edit_listing(&mut self, name: &Name, entry: Option<&NameEntry>) {
        let edit = match entry.map(|entry| entry.leads) {
            Some(Leads::To(_)) => Edit::There,
            Some(Leads::Nowhere) => Edit::Gone,
            None => Edit::Unknown,
        };
        if let Some(listing) = &mut self.names.listing {
            self.index.changed = true;
            if !listing.edit(name, edit) {
                self.names.listing = None;
            }
        }
    }

    /// Number of operations in flight: changes, uses of the open, fetches and stores.
    pub fn in_flight(&self) -> usize {
        let operations = (self.own.history.under_way() + self.held.opens.uses()) as usize;
        operations + self.names.busy.len() + self.data.in_flight()
    }

    /// Number of calls in flight whose guards borrow or own the core: changes of the object, of names in it
    /// and of its data, and fetches.
    pub fn calls_in_flight(&self) -> usize {
        self.own.history.under_way() as usize + self.names.busy.len() + self.data.calls_in_flight()
    }

    /// Are we changing any name in this directory?
    pub fn is_busy(&self) -> bool {
        !self.names.busy.is_empty()
    }

    /// Are we changing this name?
    pub fn is_busy_name(&self, name: &Name) -> bool {
        self.names.busy.iter().any(|busy| busy.name == *name)
    }

    /// A change of names is about to begin, or has ended: answers requested before are not stored. The
    /// listing survives only under a lease, which makes the outcome of the change certain.
    fn touch_names(&mut self, name: Option<&Name>) {
        self.names.generation += 1;
        self.names.touched.push(self.names.generation, name);
        self.names.gathering = None;
        if self.names_epoch().is_none() {
            self.index.changed |= self.names.listing.take().is_some();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_of_its_name_and_what_is_forgotten_of_any() {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let mut touched = Touched::default();
        touched.push(1, Some(&name("a")));
        assert!(touched.since(0, &name("a")) && !touched.since(1, &name("a")));
        assert!(!touched.since(0, &name("b")));
        touched.push(2, None);
        assert!(touched.since(1, &name("b")) && !touched.since(2, &name("b")));
        (3..).take(TOUCHED_MAX).for_each(|at| touched.push(at, Some(&name("c"))));
        assert!(touched.since(1, &name("b")) && !touched.since(2, &name("b")));
    }

    #[test]
    fn a_lease_that_does_not_last_is_wanted_less_and_less() {
        let (mut delegation_backoff, now) = (DelegationBackoff::default(), Instant::now());
        let mut until = |now| (1..1000).take_while(|_| !delegation_backoff.question(now)).count() + 1;
        assert_eq!([(); 7].map(|()| until(now)), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(until(now + BACKOFF_MEMORY * 2), 1, "it is long ago");
    }
}
