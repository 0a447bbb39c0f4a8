//! The timestamp granularity rule: when do unchanged attributes prove unchanged data?
//!
//! A file server stamps a change with a clock of limited granularity. Two changes within one granularity
//! leave the same timestamps. Data that was fetched within the granularity of the last change may lack the
//! second one, and no GETATTR will ever tell. A state is **nonracy** for a call if the origin's clock had
//! moved beyond the state's timestamps before the call was sent: every later change then shows. The results
//! of a call on a **racy** state are valid only until the next open.
//!
//! The origin's clock is not ours. A state is nonracy for a call in two cases:
//! - The call was sent at least one granularity after we first saw that very state. No clocks are compared.
//! - The state's timestamps are older than our wall clock by more than the granularity and the allowed skew.
//!   Our clock is first corrected by what the timestamps of our own operations taught us about the origin's
//!   clock.
//!
//! Promise: timestamp-granularity

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Timestamp, WccAttributes};

/// When a call was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its place in the order of all events of this process: calls sent and replies received.
    pub sequence: u64,
    /// For ages and timeouts.
    pub at: Instant,
    /// For comparison with the timestamps of files.
    pub wall: Timestamp,
}

/// Knowledge of the origin's clock.
#[derive(Debug)]
pub struct OriginClock {
    /// The timestamp granularity; all fields are in nanoseconds.
    granularity: AtomicU64,
    skew: i128,
    /// A lower bound of the origin's clock minus ours; zero until it is learnt.
    offset: AtomicI64,
}

impl OriginClock {
    /// A clock of which nothing has been learnt. `skew` is the largest difference to our clock that is
    /// assumed.
    pub fn new(granularity_min: Duration, skew: Duration) -> OriginClock {
        OriginClock {
            granularity: AtomicU64::new(granularity_min.as_nanos() as u64),
            skew: skew.as_nanos() as i128,
            offset: AtomicI64::new(0),
        }
    }

    /// The origin has reported its timestamp granularity (FSINFO's `time_delta`). A finer one than assumed is
    /// ignored, and one above ten seconds counts as ten seconds.
    pub fn learn_granularity(&self, nanos: u64) {
        self.granularity.fetch_max(nanos.min(10_000_000_000), Ordering::Relaxed);
    }

    /// The timestamp granularity that is assumed.
    pub fn granularity(&self) -> Duration {
        Duration::from_nanos(self.granularity.load(Ordering::Relaxed))
    }

    /// An operation of ours left this ctime, and its reply arrived at `received`. The origin's clock had then
    /// reached at least `ctime`.
    pub fn learn_offset(&self, ctime: Timestamp, received: Timestamp) {
        let offset = ctime.as_nanos() - received.as_nanos();
        let offset = i64::try_from(offset).unwrap_or(0);
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// A lower bound of what the origin's clock showed when ours showed `wall`.
    pub fn estimate(&self, wall: Timestamp) -> Timestamp {
        Timestamp::from_nanos(wall.as_nanos() + i128::from(self.offset.load(Ordering::Relaxed)))
    }

    /// The same, if the clocks differ as much as is assumed.
    pub fn earliest(&self, wall: Timestamp) -> Timestamp {
        Timestamp::from_nanos(self.estimate(wall).as_nanos() - self.skew)
    }

    /// Could a change of the file after `sent` carry the timestamps of `state`? `seen` is when `state` was
    /// first seen.
    pub fn is_racy(&self, state: &WccAttributes, seen: Option<Instant>, sent: &Sent) -> bool {
        let granularity = self.granularity.load(Ordering::Relaxed);
        if seen
            .is_some_and(|seen| sent.at.saturating_duration_since(seen) >= Duration::from_nanos(granularity))
        {
            return false;
        }
        let stamped = state.mtime.max(state.ctime).as_nanos() + i128::from(granularity);
        let offset = i128::from(self.offset.load(Ordering::Relaxed));
        stamped >= sent.wall.as_nanos() + offset - self.skew
    }
}

/// The time between two timestamps, or zero if the clocks disagree.
pub fn since(then: Timestamp, now: Timestamp) -> Duration {
    let nanos = (now.as_nanos() - then.as_nanos()).clamp(0, i128::from(u64::MAX));
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(seconds: i64) -> WccAttributes {
        let time = Timestamp::new(seconds, 0);
        WccAttributes { size: 1, mtime: time, ctime: time, change: 0 }
    }

    fn sent(wall_seconds: i64, at: Instant) -> Sent {
        Sent { sequence: 1, at, wall: Timestamp::new(wall_seconds, 0) }
    }

    fn clock() -> OriginClock {
        OriginClock::new(Duration::from_millis(10), Duration::from_secs(3))
    }

    #[test]
    fn new_stamps_are_racy_and_old_ones_are_not() {
        let now = Instant::now();
        assert!(!clock().is_racy(&state(1000), None, &sent(1004, now)));
        assert!(clock().is_racy(&state(1000), None, &sent(1003, now)), "within the skew");
        assert!(clock().is_racy(&state(1000), None, &sent(900, now)), "from the future");
    }

    #[test]
    fn a_state_seen_one_granularity_before_is_not_racy_whatever_the_clocks_say() {
        let seen = Instant::now();
        let early = sent(0, seen + Duration::from_millis(9));
        let late = sent(0, seen + Duration::from_millis(10));
        assert!(clock().is_racy(&state(1000), Some(seen), &early));
        assert!(!clock().is_racy(&state(1000), Some(seen), &late));
    }

    #[test]
    fn a_coarse_origin_needs_its_granularity() {
        let clock = clock();
        clock.learn_granularity(2_000_000_000);
        let seen = Instant::now();
        assert!(clock.is_racy(&state(1000), Some(seen), &sent(1004, seen + Duration::from_secs(1))));
        assert!(!clock.is_racy(&state(1000), Some(seen), &sent(1004, seen + Duration::from_secs(2))));
    }

    #[test]
    fn an_origin_that_is_an_hour_behind_is_found_out() {
        let clock = clock();
        let now = Instant::now();
        assert!(!clock.is_racy(&state(10_000), None, &sent(13_600, now)), "looks an hour old");
        clock.learn_offset(Timestamp::new(10_000, 0), Timestamp::new(13_600, 0));
        assert!(clock.is_racy(&state(10_000), None, &sent(13_600, now)), "was made this second");
        assert!(!clock.is_racy(&state(10_000), None, &sent(13_604, now)));
    }
}
