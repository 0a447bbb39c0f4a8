//! The time after a restart in which clients may hold leases with a term that the server has forgotten
//! (Macklem 1994, section 4.1).
//!
//! A server that keeps no record of its leases waits until all of them have ended: for the longest term, by
//! the clock of the slowest holder. Holders may still send what they wrote under these leases. Until no write
//! has come for `write_slack`, the server serves only writes. All fronts and arbiters of a server share one
//! `Recovery`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// See the module. The default is a recovery that is over.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Every operation reads this. The lock is taken only during recovery.
    on: AtomicBool,
    recovering: Mutex<Option<Recovering>>,
}

#[derive(Clone, Copy, Debug)]
struct Recovering {
    /// When the last lease ends at its holder.
    terms_end: Instant,
    /// When the last write came.
    wrote: Option<Instant>,
    write_slack: Duration,
}

impl Recovering {
    fn ends(&self) -> Instant {
        self.wrote.map_or(self.terms_end, |wrote| wrote.max(self.terms_end)) + self.write_slack
    }
}

impl Recovery {
    /// A recovery that begins now. `terms` is the longest term plus the clock skew.
    pub fn begin(now: Instant, terms: Duration, write_slack: Duration) -> Recovery {
        let recovering = Recovering { terms_end: now + terms, wrote: None, write_slack };
        Recovery { on: AtomicBool::new(true), recovering: Mutex::new(Some(recovering)) }
    }

    /// Whether the recovery goes on.
    pub fn is_on(&self, now: Instant) -> bool {
        if !self.on.load(Ordering::Acquire) {
            return false;
        }
        let mut recovering = self.recovering.lock();
        if recovering.is_some_and(|recovering| recovering.ends() <= now) {
            *recovering = None;
            self.on.store(false, Ordering::Release);
        }
        recovering.is_some()
    }

    /// Notes that a write came.
    pub fn wrote(&self, now: Instant) {
        if let Some(recovering) = &mut *self.recovering.lock() {
            recovering.wrote = Some(now);
        }
    }

    /// When the recovery ends if no further write comes; `None` if it is over.
    pub fn ends(&self) -> Option<Instant> {
        self.recovering.lock().map(|recovering| recovering.ends())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_for_the_longest_lease_and_until_writes_subside() {
        let seconds = Duration::from_secs;
        let start = Instant::now();
        assert!(!Recovery::default().is_on(start));
        let recovery = Recovery::begin(start, seconds(63), seconds(5));
        recovery.wrote(start + seconds(2));
        assert_eq!(recovery.ends(), Some(start + seconds(68)));
        assert!(recovery.is_on(start + seconds(67)));
        recovery.wrote(start + seconds(67));
        assert!(recovery.is_on(start + seconds(71)));
        assert!(!recovery.is_on(start + seconds(72)));
        // Once over it does not come back.
        recovery.wrote(start + seconds(73));
        assert!(!recovery.is_on(start + seconds(73)));
        assert_eq!(recovery.ends(), None);
    }
}
