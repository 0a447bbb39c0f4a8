//! The retransmission timer for datagrams: Jacobson's estimate of the round trip, with exponential backoff.
//!
//! Macklem (1994, section 3) found that NFS over UDP fails on long and lossy paths because its timers are
//! fixed.

use std::time::Duration;

/// Smoothed round-trip time and its deviation.
#[derive(Clone, Copy, Debug)]
pub struct Estimator {
    smoothed: Option<Duration>,
    deviation: Duration,
    initial: Duration,
}

/// The shortest timer.
const TIMER_MIN: Duration = Duration::from_millis(50);
/// The longest timer.
const TIMER_MAX: Duration = Duration::from_secs(60);

impl Estimator {
    /// An estimator that waits `initial` until the first sample.
    pub fn new(initial: Duration) -> Estimator {
        Estimator { smoothed: None, deviation: Duration::ZERO, initial }
    }

    /// Adds a sample: a call that was sent once was answered after `measured`. A call that was sent twice
    /// gives no sample, because the answer may belong to either copy (Karn's rule).
    pub fn sample(&mut self, measured: Duration) {
        match self.smoothed {
            None => {
                self.smoothed = Some(measured);
                self.deviation = measured / 2;
            }
            Some(smoothed) => {
                self.deviation = (self.deviation * 3 + smoothed.abs_diff(measured)) / 4;
                self.smoothed = Some((smoothed * 7 + measured) / 8);
            }
        }
    }

    /// How long to wait after the call was sent for the `sends`-th time.
    pub fn timer(&self, sends: u32) -> Duration {
        let first = self.smoothed.map_or(self.initial, |smoothed| smoothed + self.deviation * 4);
        (first.max(TIMER_MIN) * 2u32.saturating_pow(sends.saturating_sub(1).min(10))).min(TIMER_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_follows_the_path() {
        let mut estimator = Estimator::new(Duration::from_millis(700));
        assert_eq!(estimator.timer(1), Duration::from_millis(700));
        (0..50).for_each(|_| estimator.sample(Duration::from_millis(100)));
        assert!(estimator.timer(1) < Duration::from_millis(120), "{:?}", estimator.timer(1));
        assert_eq!(estimator.timer(3), estimator.timer(1) * 4);
        (0..20).for_each(|n| estimator.sample(Duration::from_millis(if n % 2 == 0 { 300 } else { 100 })));
        assert!(estimator.timer(1) > Duration::from_millis(400));
        assert_eq!(estimator.timer(30), TIMER_MAX);
    }
}
