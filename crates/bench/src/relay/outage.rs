//! A network that fails periodically.

use std::sync::Arc;
use std::time::Duration;

use super::{Cut, Shared};

/// Periodic loss of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outages {
    /// How long the network works before each outage.
    pub every: Duration,
    /// How long each outage lasts.
    pub duration: Duration,
    /// How the network fails.
    pub cut: Cut,
}

impl Outages {
    /// True if the network is down at this time after the start.
    pub fn lost_at(&self, since_start: Duration) -> bool {
        let period = (self.every + self.duration).as_nanos().max(1);
        since_start.as_nanos() % period >= self.every.as_nanos()
    }
}

/// Cuts and restores until the task is aborted.
pub(super) async fn keep_losing(shared: Arc<Shared>, outages: Outages) {
    let started = tokio::time::Instant::now();
    let mut next = started;
    loop {
        next += outages.every;
        tokio::time::sleep_until(next).await;
        shared.cut(outages.cut);
        next += outages.duration;
        tokio::time::sleep_until(next).await;
        shared.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_lost_on_time() {
        let ms = Duration::from_millis;
        let outages = Outages { every: ms(90), duration: ms(10), cut: Cut::Reset };
        let lost: Vec<u64> = (0..300).filter(|&at| outages.lost_at(ms(at))).collect();
        let expected: Vec<u64> = (90..100).chain(190..200).chain(290..300).collect();
        assert_eq!(lost, expected);
    }
}
