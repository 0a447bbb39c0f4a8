//! The state that all objects of one cache share: the promises, the clocks, and the order of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Clock, Freshness, Timestamp};

use crate::news::{NEGATIVE_MAX, News};
use crate::options::{Consistency, LookupCache, Options, Timeouts};
use crate::preemption;
use crate::trust::{OriginClock, Sent, since};

/// The state that all objects of one cache share.
pub struct Policy {
    consistency: Consistency,
    /// Which remembered names are used.
    pub lookup_cache: LookupCache,
    timeouts: Timeouts,
    /// Knowledge of the origin's clock.
    pub origin: OriginClock,
    /// The latest observed work of other clients.
    pub news: News,
    clock: Arc<dyn Clock>,
    events: AtomicU64,
    epochs: AtomicU64,
}

impl Policy {
    /// The policy of these options. `first_epoch` must be far from the epochs of earlier processes.
    pub fn new(options: &Options, first_epoch: u64) -> Policy {
        Policy {
            consistency: options.consistency,
            lookup_cache: options.lookup_cache,
            timeouts: options.timeouts,
            origin: OriginClock::new(options.granularity_min, options.clock_skew),
            news: News::default(),
            clock: options.clock.clone(),
            events: AtomicU64::new(1),
            epochs: AtomicU64::new(first_epoch),
        }
    }

    /// A call is about to be sent: its event and its time.
    pub fn sending(&self) -> Sent {
        Sent { sequence: self.event(), at: Instant::now(), wall: self.wall() }
    }

    /// The next event: a place in the order of everything that happens.
    pub fn event(&self) -> u64 {
        preemption::point();
        self.events.fetch_add(1, Ordering::AcqRel)
    }

    /// A new epoch. No other one in this process or an earlier one has its number.
    pub fn epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed)
    }

    /// The time of day on this machine.
    pub fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    /// The time of day at the origin, or slightly earlier, as far as is known.
    pub fn origin_wall(&self) -> Timestamp {
        self.origin.estimate(self.wall())
    }

    /// How old this timestamp of the origin is at least, or zero.
    pub fn age_of(&self, timestamp: Timestamp) -> Duration {
        since(timestamp, self.origin.earliest(self.wall()))
    }

    /// The shortest and the longest time that attributes are believed.
    pub fn timeouts(&self, is_dir: bool) -> (Duration, Duration) {
        self.timeouts.bounds(is_dir)
    }

    /// The longest time that a negative entry is believed. `None` with `nocto`: attribute timeouts alone
    /// decide.
    pub fn negative_max(&self) -> Option<Duration> {
        (self.consistency == Consistency::CloseToOpen).then_some(NEGATIVE_MAX)
    }

    /// Must the answer for this caller be requested from the origin after the caller's request arrived?
    pub fn is_open(&self, caller: &Caller) -> bool {
        self.consistency == Consistency::CloseToOpen && caller.freshness == Freshness::Open
    }
}
