//! What all objects of one cache share: the promises made, the clocks, and the order of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Clock, Freshness, Timestamp};

use crate::news::{NEGATIVE_MAX, News};
use crate::options::{Consistency, LookupCache, Options, Timeouts};
use crate::trust::{OriginClock, Sent};

/// What all objects of one cache share.
pub struct Policy {
    consistency: Consistency,
    /// Which names are used.
    pub lookup_cache: LookupCache,
    timeouts: Timeouts,
    /// What is known about the origin's clock.
    pub origin: OriginClock,
    /// What other clients were last seen to have done.
    pub news: News,
    clock: Arc<dyn Clock>,
    events: AtomicU64,
    epochs: AtomicU64,
}

impl Policy {
    /// That of these options. `first_epoch` must be far from those of earlier processes.
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

    /// A call is about to be sent.
    pub fn sending(&self) -> Sent {
        Sent { sequence: self.event(), at: Instant::now(), wall: self.wall() }
    }

    /// Something happened: its place in the order of all that happens.
    pub fn event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::AcqRel)
    }

    /// A number that no other epoch has, in this process or an earlier one.
    pub fn epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed)
    }

    /// The time of day here.
    pub fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    /// The time of day at the origin, or a little earlier, as far as is known.
    pub fn origin_wall(&self) -> Timestamp {
        self.origin.estimate(self.wall())
    }

    /// Shortest and longest time that attributes are believed.
    pub fn timeouts(&self, is_dir: bool) -> (Duration, Duration) {
        self.timeouts.bounds(is_dir)
    }

    /// How long a negative entry is believed at most. With `nocto` attribute timeouts alone decide.
    pub fn negative_max(&self) -> Option<Duration> {
        (self.consistency == Consistency::CloseToOpen).then_some(NEGATIVE_MAX)
    }

    /// Must this caller's answer be asked of the origin after it came?
    pub fn is_open(&self, caller: &Caller) -> bool {
        self.consistency == Consistency::CloseToOpen && caller.freshness == Freshness::Open
    }
}
