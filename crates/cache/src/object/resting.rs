//! A known state at rest: what memory keeps of an object that nobody uses, so that its attributes stay
//! believed as long as if the object had stayed in memory. Everything else of the object is in the index.
//!
//! A state rests only if nothing of it is still open: it is trusted, the index has it, and no change of ours
//! is in flight. Its epoch joins the two halves. No two states of any objects have the same epoch. So a
//! record of the index with that epoch holds what belongs to the resting state, and any other record does
//! not.
//!
//! A lost resting state costs a call: the object is then known as it is after a restart. A lease is not lost,
//! because the origin counts on its holder. It rests apart from the known state, and only if it vouches for
//! that state. The record of the index with its epoch is then current, even if the known state was dropped.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, LeaseId, LeaseKind, OpenId};

use super::{Known, ObjectState};
use crate::held_lease::HeldLease;
use crate::opens::{Opens, RestingOpen};
use crate::policy::Policy;
use crate::store::Kept;
use crate::trust::Sent;

/// No state has this epoch.
const NO_EPOCH: u64 = 0;

/// What memory keeps of an object at rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resting {
    attributes: Attributes,
    /// The event and the time of the latest call that showed the attributes.
    sequence: u64,
    at: Instant,
    /// How long the attributes are believed, in milliseconds.
    timeout_milliseconds: u32,
    is_complete: bool,
    epoch: u64,
    doubted: u64,
    loaded: u64,
    negative_from: u64,
    narrowed: u64,
    /// A lease vouches for the attributes. The table knows.
    leased: bool,
}

/// A lease at rest, with the open at the origin that it keeps.
#[derive(Clone, Debug)]
pub struct RestingLease {
    id: LeaseId,
    above: LeaseId,
    kind: LeaseKind,
    /// The layer above holds it.
    given: bool,
    /// It is from before this process.
    adopted: bool,
    /// The index records that the lease vouches for its entry.
    vouched: bool,
    guessed: bool,
    since: u64,
    space_limit: u64,
    /// The record of the index with this epoch is the state that the lease vouches for. [`NO_EPOCH`] if it
    /// vouches for none.
    epoch: u64,
    narrowed: u64,
    open: Option<RestingOpen>,
}

/// What memory has of an object that is not in the table.
#[derive(Clone, Debug, Default)]
pub struct AtRest {
    /// Its known state, unless that was dropped.
    pub known: Option<Resting>,
    /// Its lease, if it has one.
    pub lease: Option<RestingLease>,
    /// The number of its last use, in uses of the cache, if it has a lease.
    pub used: u64,
}

impl RestingLease {
    /// A lease that the layer below has held since before this process, and its open there. `vouched` tells
    /// that the index records it as vouching for the entry.
    pub fn adopted(
        (id, kind): (LeaseId, LeaseKind),
        above: LeaseId,
        since: u64,
        vouched: bool,
        open: Option<RestingOpen>,
    ) -> RestingLease {
        RestingLease {
            id,
            above,
            kind,
            given: false,
            adopted: true,
            vouched,
            guessed: false,
            since,
            space_limit: vfs::Lease::NO_SPACE_LIMIT,
            epoch: NO_EPOCH,
            narrowed: 0,
            open,
        }
    }

    /// Does the layer above hold it?
    pub fn is_given(&self) -> bool {
        self.given
    }

    /// Does the index record that it vouches for its entry?
    pub fn is_vouched(&self) -> bool {
        self.vouched
    }

    /// Does it keep this open at the origin?
    pub fn keeps(&self, open: OpenId) -> bool {
        self.open.as_ref().is_some_and(|kept| kept.id() == open)
    }

    /// Does it keep an open at the origin?
    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    fn held(&self, vouches_from: u64) -> HeldLease {
        let lease = vfs::Lease {
            id: self.id,
            kind: self.kind,
            until: None,
            change: 0,
            space_limit: self.space_limit,
        };
        let mut held = HeldLease::granted(&lease, self.above, self.since, vouches_from);
        (held.given, held.adopted) = (self.given, self.adopted);
        held
    }
}

impl Resting {
    /// The attributes as they were last shown. They may not be current.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The same state, under a lease or not.
    #[must_use]
    pub fn under_lease(self, leased: bool) -> Resting {
        Resting { leased, ..self }
    }

    /// The attributes, if a lease vouches for them.
    pub fn leased(&self) -> Option<&Attributes> {
        self.leased.then_some(&self.attributes)
    }

    /// The attributes, if they may be believed without a call, and if they are no older than `age_max`. Under
    /// a lease their age does not matter.
    pub fn current_within(&self, age_max: Option<Duration>) -> Option<&Attributes> {
        if self.leased {
            return Some(&self.attributes);
        }
        let timeout = self.timeout();
        let timeout = age_max.map_or(timeout, |max| max.min(timeout));
        (self.at.elapsed() < timeout).then_some(&self.attributes)
    }

    /// Until when the attributes may be believed without a call, leases aside.
    pub fn current_until(&self) -> Instant {
        self.at + self.timeout()
    }

    /// The last event that showed a change of this directory by another client, or 0.
    pub fn names_doubted(&self) -> u64 {
        self.doubted
    }

    /// Was every byte of the file cached when it came to rest?
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_milliseconds.into())
    }
}

impl ObjectState {
    /// May the object leave the table, if the index has its latest state and nobody uses it?
    pub fn may_rest(&self) -> bool {
        match &self.held.lease {
            None => !self.is_held(),
            Some(lease) => self.may_rest_under(lease),
        }
    }

    /// The same under a lease, which rests with the object.
    fn may_rest_under(&self, lease: &HeldLease) -> bool {
        let lasts = lease.until().is_none() && lease.is_free();
        let used = !self.held.opens.may_rest() || !self.held.locks.is_empty();
        let unwritten = self.delayed.writes.is_some() || self.own.name_moved;
        // The index has a listing only without our changes.
        let names = &self.names;
        let unlisted = names.gathering.is_some()
            || names.listing.as_ref().is_some_and(|listing| !listing.edits.is_empty());
        lasts && !used && !unwritten && !unlisted && !self.unlinked && !self.is_busy() && self.is_quiet()
    }

    /// Is it trusted, is no change of ours in flight, and has the index everything?
    fn is_quiet(&self) -> bool {
        let own = &self.own;
        let settled = !own.history.is_suspect() && !own.history.is_under_way() && !own.ours;
        let stored = !self.index.changed && !self.index.unvouched && self.index.trash.is_empty();
        settled && stored
    }

    /// What rests of the object. The caller knows that no task uses it and that `may_rest` holds. The index
    /// has its latest state, if it `is_indexed`.
    pub fn rest(&self, is_indexed: bool, used: u64) -> AtRest {
        let vouches = is_indexed && self.leased().is_some();
        let lease = self.held.lease.as_ref().map(|lease| self.rest_lease(lease, vouches));
        let believed = vouches || (is_indexed && lease.is_none() && self.is_quiet());
        AtRest { known: if believed { self.rest_known() } else { None }, lease, used }
    }

    fn rest_known(&self) -> Option<Resting> {
        let leased = self.held.lease.is_some();
        let known = self.known.as_ref().filter(|known| known.seen.is_some() || leased)?;
        (known.sent.sequence >= self.distrusted_before).then(|| Resting {
            attributes: known.attributes,
            sequence: known.sent.sequence,
            at: known.sent.at,
            timeout_milliseconds: u32::try_from(known.timeout.as_millis()).unwrap_or(u32::MAX),
            is_complete: self.is_complete(),
            epoch: self.epoch,
            doubted: self.names.doubted,
            loaded: self.names.loaded,
            negative_from: self.names.negative_from,
            narrowed: self.held.opens.rest().1,
            leased: false,
        })
    }

    fn rest_lease(&self, lease: &HeldLease, vouches: bool) -> RestingLease {
        let (open, narrowed) = self.held.opens.rest();
        RestingLease {
            id: lease.id,
            above: lease.above,
            kind: lease.kind,
            given: lease.given,
            adopted: lease.adopted,
            vouched: self.index.vouched && vouches,
            guessed: self.guessed,
            since: lease.since,
            space_limit: lease.space_limit,
            epoch: if vouches { self.epoch } else { NO_EPOCH },
            narrowed,
            open,
        }
    }

    /// Restores the state from the index and from what rested in memory. If the two do not belong together,
    /// the state is as [`ObjectState::restore`] makes it.
    pub fn wake(policy: &Policy, kept: &Kept, at_rest: &AtRest) -> ObjectState {
        let lease = at_rest.lease.as_ref();
        let of_epoch = |lease: &RestingLease| lease.epoch != NO_EPOCH && lease.epoch == kept.epoch;
        let vouches = lease.is_some_and(|lease| lease.vouched || of_epoch(lease));
        let mut state = ObjectState::restore(policy, kept, vouches);
        if let Some(resting) = &at_rest.known
            && (kept.nonracy || vouches)
            && kept.epoch == resting.epoch
        {
            state.wake_known(policy, kept, resting);
        }
        if let Some(lease) = lease {
            state.wake_lease(policy, lease, vouches);
        }
        state
    }

    fn wake_known(&mut self, policy: &Policy, kept: &Kept, resting: &Resting) {
        // Replies to calls that were sent before now may overtake each other, as they do for a new object.
        let received = policy.event();
        self.distrusted_before = 0;
        self.known = Some(Known {
            attributes: resting.attributes,
            sent: Sent { sequence: resting.sequence, at: resting.at, wall: kept.confirmed },
            received,
            // It was seen earlier. The later time can only make the state racy that was not.
            seen: Some(resting.at),
            timeout: resting.timeout(),
            timeout_from: resting.at,
        });
        self.names.doubted = resting.doubted;
        self.names.loaded = resting.loaded;
        self.names.negative_from = resting.negative_from;
        self.held.opens = Opens::wake(None, resting.narrowed);
    }

    /// Restores the lease that rested, with its open. It `vouches` for the known state, or for nothing that
    /// is known yet.
    pub fn wake_lease(&mut self, policy: &Policy, lease: &RestingLease, vouches: bool) {
        self.index.vouched = lease.vouched && vouches;
        self.guessed = lease.guessed;
        self.held.opens = Opens::wake(lease.open.clone(), lease.narrowed);
        self.held.lease = Some(lease.held(if vouches { 0 } else { policy.event() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Opening;
    use crate::options::Options;
    use crate::testing::attributes;

    fn policy() -> Policy {
        let mut options = Options::new("d", "nfs://origin/export");
        options.granularity_min = Duration::from_nanos(1);
        Policy::new(&options, 7)
    }

    /// A state that was just shown, and that the index has.
    fn shown(policy: &Policy) -> (ObjectState, Kept) {
        let mut state = ObjectState::new(policy);
        state.observe(policy, &attributes(9, 1), &policy.sending(), Opening::No);
        let kept = state.keep(policy).unwrap();
        assert!(kept.nonracy);
        state.index.changed = false;
        (state, kept)
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_that_rested_is_believed_as_long_as_one_that_did_not() {
        let policy = policy();
        let (state, kept) = shown(&policy);
        let resting = state.rest(true, 1);
        let (shortest, _) = policy.timeouts(false);
        let step = Duration::from_millis(1);
        tokio::time::advance(shortest.saturating_sub(step)).await;
        let woken = ObjectState::wake(&policy, &kept, &resting);
        assert_eq!((woken.current(), woken.epoch()), (state.current(), state.epoch()));
        let known = resting.known.unwrap();
        assert!(woken.current().is_some() && known.current_within(None).is_some());
        assert!(known.current_within(Some(step)).is_none());
        tokio::time::advance(2 * step).await;
        let woken = ObjectState::wake(&policy, &kept, &resting);
        assert!(woken.current().is_none() && state.current().is_none());
        assert!(known.current_within(None).is_none());
        assert!(known.under_lease(true).current_within(None).is_some());
        assert!(woken.attributes().is_some(), "the last known state stays known");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_doubted_does_not_rest_and_the_wrong_record_wakes_nothing() {
        let policy = policy();
        let nothing = |state: &ObjectState| state.rest(true, 1).known.is_none();
        let (mut state, kept) = shown(&policy);
        let resting = state.rest(true, 1);
        let other = Kept { epoch: kept.epoch + 1, ..kept.clone() };
        assert!(ObjectState::wake(&policy, &other, &resting).current().is_none());
        let racy = Kept { nonracy: false, ..kept };
        assert!(ObjectState::wake(&policy, &racy, &resting).current().is_none());
        state.begin_change(&policy);
        assert!(nothing(&state), "a change of ours is in flight");
        let (mut state, _) = shown(&policy);
        state.distrust(&policy);
        assert!(nothing(&state));
        let (mut state, _) = shown(&policy);
        state.index.changed = true;
        assert!(nothing(&state), "the index lacks its latest state");
        assert!(nothing(&ObjectState::new(&policy)));
    }

    /// A state under a lease, and the record that the index has of it.
    fn leased(policy: &Policy) -> (ObjectState, Kept) {
        let (mut state, kept) = shown(policy);
        let since = policy.event();
        let id = (LeaseId(7), LeaseKind::Read);
        state.wake_lease(policy, &RestingLease::adopted(id, LeaseId(8), since, false, None), false);
        state.observe(policy, &attributes(9, 1), &policy.sending(), Opening::No);
        state.index.changed = false;
        (state, kept)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_vouches_after_its_rest_even_if_the_known_state_was_dropped() {
        let policy = policy();
        let (state, kept) = leased(&policy);
        assert!(state.may_rest() && state.leased().is_some());
        let at_rest = state.rest(true, 1);
        let dropped = AtRest { known: None, ..at_rest.clone() };
        tokio::time::advance(Duration::from_secs(10_000)).await;
        // Under the lease, timestamps do not matter.
        for kept in [kept.clone(), Kept { nonracy: false, ..kept.clone() }] {
            for at_rest in [&at_rest, &dropped] {
                let woken = ObjectState::wake(&policy, &kept, at_rest);
                assert_eq!((woken.leased(), woken.epoch()), (state.leased(), state.epoch()));
                assert!(woken.may_rest(), "and it may rest again");
            }
            let other = Kept { epoch: kept.epoch + 1, ..kept };
            let woken = ObjectState::wake(&policy, &other, &at_rest);
            assert!(woken.held.lease.is_some() && woken.leased().is_none(), "the wrong record");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_does_not_rest_while_anything_goes_on_under_it() {
        let policy = policy();
        let not = |change: fn(&mut ObjectState, &Policy)| {
            let (mut state, _) = leased(&policy);
            change(&mut state, &policy);
            state.index.changed = false;
            assert!(!state.may_rest());
        };
        not(|state, _| state.held.lease.iter_mut().for_each(|lease| lease.recalled = true));
        not(ObjectState::begin_change);
        not(|state, _| state.unlinked = true);
        not(|state, _| state.own.name_moved = true);
        not(|state, _| state.held.opens.awaited = true);
        not(|state, _| {
            let owner = vfs::Owner(bytes::Bytes::from_static(b"owner"));
            state.held.opens.open(vfs::OpenId(1), None, &owner, vfs::Shares::NONE);
        });
        let (mut state, _) = leased(&policy);
        state.index.changed = true;
        assert!(!state.may_rest(), "the index lacks its latest state");
        let (mut state, kept) = leased(&policy);
        state.distrust(&policy);
        state.index.unvouched = false;
        let at_rest = state.rest(true, 1);
        let woken = ObjectState::wake(&policy, &kept, &at_rest);
        assert!(at_rest.known.is_none() && woken.held.lease.is_some());
        assert!(woken.leased().is_none(), "a lease that vouches for nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_keeps_from_when_it_proves_absences() {
        let policy = policy();
        let (mut state, kept) = shown(&policy);
        state.pass_open(policy.event());
        let woken = ObjectState::wake(&policy, &kept, &state.rest(true, 1));
        assert!(state.proves_absence(&policy).is_none());
        assert!(woken.proves_absence(&policy).is_none());
    }
}
