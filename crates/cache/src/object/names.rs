//! Names in a directory: which of them we are changing, and what a lease on it makes of those that are known.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Name};

use super::ObjectState;
use crate::lease::HeldLease;
use crate::listing::Edit;
use crate::names::{Leads, NameEntry};
use crate::policy::Policy;
use crate::trust::Sent;

/// A lease on a directory is asked for at the first question about names in it, as with the ACCESS of its first use, ...
const BACKOFF_MIN: u32 = 1;
/// ... after twice as many each time that it does not last, and at most so many.
const BACKOFF_MAX: u32 = 64;
/// After so long it is as if it had not been asked for.
const BACKOFF_MEMORY: Duration = Duration::from_secs(60);

/// How much a lease on a directory is wanted, by the questions about names in it that were asked of the origin.
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
    /// One more question is about to be asked. Is it to bring a lease along?
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

/// Names that we changed last. More are forgotten: then any may have been.
const TOUCHED_MAX: usize = 256;

/// Which names we changed, and when: what was asked meanwhile of one of them is not stored, and what was asked of others is.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// By the generation that their change made, in order; no name for a change that may have been of any.
    names: VecDeque<(u64, Option<Name>)>,
    /// Of what is in there no more.
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

/// A change of a name of ours that is under way.
#[derive(Debug)]
pub(super) struct BusyName {
    ticket: u64,
    name: Name,
    contested: bool,
}

impl ObjectState {
    /// The epoch whose names are those that there are: a lease is held, and all that has happened since it began is our
    /// own doing.
    pub fn names_epoch(&self) -> Option<u64> {
        let ours = self.is_ours_alone() || (self.covered && self.history.is_under_way());
        (ours && self.lease.as_ref().is_some_and(HeldLease::is_valid)).then_some(self.epoch)
    }

    /// Is every difference between what is known and what the origin has of our own making?
    pub(super) fn is_ours_alone(&self) -> bool {
        let held = self.lease.as_ref().is_some_and(HeldLease::is_valid);
        held && (self.ours || self.leased().is_some())
    }

    /// Does a name lead nowhere for certain, by a lease and what is known of all names?
    pub fn lacks(&self, name: &Name) -> bool {
        let told = |listing: &crate::listing::KnownListing| !listing.racy && listing.lacks(name);
        self.names_epoch().is_some() && !self.is_busy_name(name) && self.listing.as_ref().is_some_and(told)
    }

    /// Attributes of the directory that prove a negative entry of its epoch, if they do. See [`crate::news`].
    pub fn proves_absence(&self, policy: &Policy) -> Option<&Attributes> {
        let max = policy.negative_max();
        let from = if max.is_some() { policy.news.latest().max(self.negative_from) } else { 0 };
        let vouched = self.leased().or_else(|| Some(self.presumed()?.0)).or_else(|| self.told());
        let timed = || {
            let known = self.known.as_ref().filter(|known| known.sent.sequence >= from)?;
            self.current_within(max).filter(|_| known.sent.sequence >= from)
        };
        vouched.or_else(timed)
    }

    /// A client has opened a file in this directory, by a request that arrived at this event: it may go on from what
    /// another client did before.
    pub fn pass_open(&mut self, arrived: u64) {
        self.negative_from = self.negative_from.max(arrived);
    }

    /// Has a client opened a file in this directory since its attributes were asked for?
    pub fn is_to_be_confirmed(&self) -> bool {
        self.negative_from > 0 && self.leased().is_none() && !self.is_known_since(self.negative_from)
    }

    /// The last event that showed a change of this directory by another client, or 0.
    pub fn names_doubted(&self) -> u64 {
        self.names_doubted
    }

    /// Is the name missing in the complete listing, if there is one?
    pub fn listing_lacks(&self, name: &Name) -> bool {
        self.listing.as_ref().is_some_and(|listing| listing.lacks(name))
    }

    /// A lease is about to begin. What was learnt of names in a state of which not every change would show is not what
    /// it vouches for.
    pub fn settle_names(&mut self, policy: &Policy, sent: &Sent) {
        if self.lease.is_none() && !self.is_stamped(policy, sent) {
            self.epoch = policy.epoch();
            self.changed |= self.listing.take().is_some();
            self.gathering = None;
        }
    }

    /// We are about to change this name in it.
    pub fn begin_name(&mut self, name: &Name) -> u64 {
        self.touch_names(Some(name));
        self.tickets += 1;
        let mut contested = false;
        for other in self.busy_names.iter_mut().filter(|other| other.name == *name) {
            other.contested = true;
            contested = true;
        }
        self.busy_names.push(BusyName { ticket: self.tickets, name: name.clone(), contested });
        self.tickets
    }

    /// Is the change of the name the only one that is under way?
    pub fn is_alone(&self, ticket: u64) -> bool {
        self.busy_names.iter().any(|busy| busy.ticket == ticket && !busy.contested)
    }

    /// The change of the name is over. False if another one was under way with it: which came last is not known.
    pub fn end_name(&mut self, ticket: u64) -> bool {
        // A lease may vouch for it again.
        self.changed = true;
        let Some(at) = self.busy_names.iter().position(|busy| busy.ticket == ticket) else {
            self.touch_names(None);
            return false;
        };
        let ended = self.busy_names.swap_remove(at);
        self.touch_names(Some(&ended.name));
        !ended.contested
    }

    /// A change of ours may have been of what any name leads to.
    pub fn touch_all_names(&mut self) {
        self.touch_names(None);
    }

    /// Have we begun or ended a change of this name since then?
    pub fn touched_since(&self, generation: u64, name: &Name) -> bool {
        self.names_touched.since(generation, name)
    }

    /// After a change of ours this is what is known of the name.
    pub fn edit_listing(&mut self, name: &Name, entry: Option<&NameEntry>) {
        let edit = match entry.map(|entry| entry.leads) {
            Some(Leads::To(_)) => Edit::There,
            Some(Leads::Nowhere) => Edit::Gone,
            None => Edit::Unknown,
        };
        if let Some(listing) = &mut self.listing {
            self.changed = true;
            if !listing.edit(name, edit) {
                self.listing = None;
            }
        }
    }

    /// Are we changing any name?
    pub fn is_busy(&self) -> bool {
        !self.busy_names.is_empty()
    }

    /// Are we changing this name?
    pub fn is_busy_name(&self, name: &Name) -> bool {
        self.busy_names.iter().any(|busy| busy.name == *name)
    }

    /// Names in it are changed, or about to be: nothing that was asked before is stored. A whole listing is worth keeping
    /// where it is known for certain what becomes of it.
    fn touch_names(&mut self, name: Option<&Name>) {
        self.names_generation += 1;
        self.names_touched.push(self.names_generation, name);
        self.gathering = None;
        if self.names_epoch().is_none() {
            self.changed |= self.listing.take().is_some();
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
