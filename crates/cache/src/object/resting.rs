//! A known state at rest: what memory keeps of an object that nobody uses, so that its attributes stay
//! believed as long as if the object had stayed in memory. Everything else of the object is in the index.
//!
//! A state rests only if nothing of it is still open: it is trusted, the index has it, and no change of ours
//! is in flight. Its epoch joins the two halves. No two states of any objects have the same epoch. So a
//! record of the index with that epoch holds what belongs to the resting state, and any other record does
//! not.
//!
//! A lost resting state costs a call: the object is then known as it is after a restart.

use std::time::Duration;

use tokio::time::Instant;
use vfs::Attributes;

use super::{Known, ObjectState};
use crate::policy::Policy;
use crate::store::Kept;
use crate::trust::Sent;

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
}

impl Resting {
    /// The attributes as they were last shown. They may not be current.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The attributes, if they may be believed without a call, and if they are no older than `age_max`.
    pub fn current_within(&self, age_max: Option<Duration>) -> Option<&Attributes> {
        let timeout = self.timeout();
        let timeout = age_max.map_or(timeout, |max| max.min(timeout));
        (self.at.elapsed() < timeout).then_some(&self.attributes)
    }

    /// Until when the attributes may be believed without a call.
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
    /// The state at rest, if it may rest. The caller knows that no task uses the object, that it is not held,
    /// and that the index has its latest state.
    pub fn rest(&self) -> Option<Resting> {
        let known = self.known.as_ref().filter(|known| known.seen.is_some())?;
        let own = &self.own;
        let settled = !own.history.is_suspect() && !own.history.is_under_way() && !own.ours;
        let trusted = known.sent.sequence >= self.distrusted_before && self.held.lease.is_none();
        let stored = !self.index.changed && self.index.trash.is_empty();
        (settled && trusted && stored).then(|| Resting {
            attributes: known.attributes,
            sequence: known.sent.sequence,
            at: known.sent.at,
            timeout_milliseconds: u32::try_from(known.timeout.as_millis()).unwrap_or(u32::MAX),
            is_complete: self.is_complete(),
            epoch: self.epoch,
            doubted: self.names.doubted,
            loaded: self.names.loaded,
            negative_from: self.names.negative_from,
        })
    }

    /// Restores the state from the index and from what rested in memory. If the two do not belong together,
    /// the state is as [`ObjectState::restore`] makes it.
    pub fn wake(policy: &Policy, kept: &Kept, resting: &Resting) -> ObjectState {
        let mut state = ObjectState::restore(policy, kept, false);
        if !kept.nonracy || kept.epoch != resting.epoch {
            return state;
        }
        // Replies to calls that were sent before now may overtake each other, as they do for a new object.
        let received = policy.event();
        state.distrusted_before = 0;
        state.known = Some(Known {
            attributes: resting.attributes,
            sent: Sent { sequence: resting.sequence, at: resting.at, wall: kept.confirmed },
            received,
            // It was seen earlier. The later time can only make the state racy that was not.
            seen: Some(resting.at),
            timeout: resting.timeout(),
            timeout_from: resting.at,
        });
        state.names.doubted = resting.doubted;
        state.names.loaded = resting.loaded;
        state.names.negative_from = resting.negative_from;
        state
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
        let resting = state.rest().unwrap();
        let (shortest, _) = policy.timeouts(false);
        let step = Duration::from_millis(1);
        tokio::time::advance(shortest.saturating_sub(step)).await;
        let woken = ObjectState::wake(&policy, &kept, &resting);
        assert_eq!((woken.current(), woken.epoch()), (state.current(), state.epoch()));
        assert!(woken.current().is_some() && resting.current_within(None).is_some());
        assert!(resting.current_within(Some(step)).is_none());
        tokio::time::advance(2 * step).await;
        let woken = ObjectState::wake(&policy, &kept, &resting);
        assert!(woken.current().is_none() && state.current().is_none());
        assert!(resting.current_within(None).is_none());
        assert!(woken.attributes().is_some(), "the last known state stays known");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_doubted_does_not_rest_and_the_wrong_record_wakes_nothing() {
        let policy = policy();
        let (mut state, kept) = shown(&policy);
        let resting = state.rest().unwrap();
        let other = Kept { epoch: kept.epoch + 1, ..kept.clone() };
        assert!(ObjectState::wake(&policy, &other, &resting).current().is_none());
        let racy = Kept { nonracy: false, ..kept };
        assert!(ObjectState::wake(&policy, &racy, &resting).current().is_none());
        state.begin_change(&policy);
        assert!(state.rest().is_none(), "a change of ours is in flight");
        let (mut state, _) = shown(&policy);
        state.distrust(&policy);
        assert!(state.rest().is_none());
        let (mut state, _) = shown(&policy);
        state.index.changed = true;
        assert!(state.rest().is_none(), "the index lacks its latest state");
        assert!(ObjectState::new(&policy).rest().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_keeps_from_when_it_proves_absences() {
        let policy = policy();
        let (mut state, kept) = shown(&policy);
        state.pass_open(policy.event());
        let woken = ObjectState::wake(&policy, &kept, &state.rest().unwrap());
        assert!(state.proves_absence(&policy).is_none());
        assert!(woken.proves_absence(&policy).is_none());
    }
}
