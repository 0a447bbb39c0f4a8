//! The granule rule: when do unchanged attributes prove unchanged data?
//!
//! A file server stamps a change with a clock that moves in granules. Two changes within one granule leave the same
//! time stamps, so what was fetched within the granule of the last change may miss the second half of it, and no
//! GETATTR will ever tell. A state is **settled** for a call if the origin's clock had moved on from the state's time
//! stamps before the call was sent: every later change then shows. What a call learnt of a state that is not settled
//! for it is *young*: good until the next open, and not believed there.
//!
//! The origin's clock is not ours. A state is settled for a call
//! - if the call was sent at least a granule after we first saw that very state: no clock is compared; or
//! - if the state's time stamps are older than our wall clock by more than the skew allowed, after taking off what
//!   the time stamps of our own operations taught us about the origin's clock.
//!
//! Promise: timestamp-granularity

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Timestamp, WccAttributes};

/// When a call was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its place among all sendings and receivings of this process.
    pub sequence: u64,
    /// For ages and timeouts.
    pub at: Instant,
    /// For comparing with time stamps of files.
    pub wall: Timestamp,
}

/// What is known about the origin's clock.
#[derive(Debug)]
pub struct OriginClock {
    /// All in nanoseconds.
    granularity: AtomicU64,
    skew: i128,
    /// The origin's clock less ours, at least; zero until learnt.
    offset: AtomicI64,
}

impl OriginClock {
    /// Nothing learnt yet.
    pub fn new(granularity_min: Duration, skew: Duration) -> OriginClock {
        OriginClock {
            granularity: AtomicU64::new(granularity_min.as_nanos() as u64),
            skew: skew.as_nanos() as i128,
            offset: AtomicI64::new(0),
        }
    }

    /// The origin says how coarse its time stamps are (FSINFO's `time_delta`). They are never finer than assumed.
    pub fn learn_granularity(&self, nanos: u64) {
        self.granularity.fetch_max(nanos.min(10_000_000_000), Ordering::Relaxed);
    }

    /// How coarse its time stamps are taken to be.
    pub fn granularity(&self) -> Duration {
        Duration::from_nanos(self.granularity.load(Ordering::Relaxed))
    }

    /// An operation of our own, answered at `received`, left this ctime: the origin's clock showed at least it then.
    pub fn learn_offset(&self, ctime: Timestamp, received: Timestamp) {
        let offset = ctime.as_nanos() - received.as_nanos();
        let offset = i64::try_from(offset).unwrap_or(0);
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// What the origin's clock showed at least when ours showed this.
    pub fn estimate(&self, wall: Timestamp) -> Timestamp {
        Timestamp::from_nanos(wall.as_nanos() + i128::from(self.offset.load(Ordering::Relaxed)))
    }

    /// Could a change of the file after `sent` carry the timestamps of `state`? `seen` is when `state` was first seen.
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
