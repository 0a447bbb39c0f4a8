//! The times that members agree on, and a clock that goes on while the machine sleeps.

use std::time::Duration;

/// A reading of this machine's clock since it was started (`CLOCK_BOOTTIME`).
pub type Moment = Duration;

/// The times of a cluster. All members must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Times {
    /// How long a member may run its servers after a beat.
    pub term: Duration,
    /// How much faster or slower than real time a clock may run, in millionths.
    pub drift_ppm: u32,
    /// How long after the end of its term a server may still be about to stop.
    pub margin: Duration,
    /// A member that has just joined gets no server of another one for this long.
    pub settle: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            term: Duration::from_secs(6),
            drift_ppm: 1000,
            margin: Duration::from_millis(500),
            settle: Duration::from_secs(30),
        }
    }
}

impl Times {
    /// The time between two beats.
    pub fn period(&self) -> Duration {
        self.term / 4
    }

    /// How long a member waits for a beat of another one before it fences that one.
    ///
    /// A term and the margin by the slowest clock, measured by the fastest: `(1 + drift) / (1 - drift)` of
    /// them.
    pub fn patience(&self) -> Duration {
        const MILLION: u32 = 1_000_000;
        let drift = self.drift_ppm.min(MILLION / 2);
        (self.term + self.margin) * (MILLION + drift) / (MILLION - drift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_outlasts_a_term_of_a_slow_clock() {
        let times = Times { drift_ppm: 10_000, margin: Duration::ZERO, ..Times::default() };
        // A slow clock shows a term after term / (1 - drift); a fast one shows (1 + drift) of that.
        let longest = times.term.as_secs_f64() / 0.99 * 1.01;
        assert!(times.patience().as_secs_f64() >= longest - 1e-6);
        assert!(Times::default().patience() > Times::default().term + Times::default().margin);
    }
}
