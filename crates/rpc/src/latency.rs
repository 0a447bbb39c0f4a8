//! How long answers take, as a distribution over classes whose widths double.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of classes, from 1 µs to over an hour.
pub const CLASSES: usize = 32;

/// A running distribution. The atomics are relaxed, so no order between them is guaranteed.
#[derive(Debug, Default)]
pub struct Latency {
    micros: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

impl Latency {
    /// Adds an answer that took `time`.
    pub fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        let class = (micros.max(1).ilog2() as usize).min(CLASSES - 1);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
    }

    /// The distribution at this moment.
    pub fn snapshot(&self) -> Distribution {
        Distribution {
            total: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
            classes: std::array::from_fn(|class| self.classes[class].load(Ordering::Relaxed)),
        }
    }
}

/// A distribution at one moment, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The sum of all times.
    pub total: Duration,
    /// Answers that took at least 2ⁿ and less than 2ⁿ⁺¹ microseconds. The first class begins at 0.
    pub classes: [u64; CLASSES],
}

impl Distribution {
    /// Number of answers.
    pub fn answers(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The mean time.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(self.answers().try_into().unwrap_or(u32::MAX)).unwrap_or_default()
    }

    /// An upper bound, within a factor of two, on the time that this share (0 to 1) of the answers took.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.answers() as f64 * share).ceil() as u64;
        let mut so_far = 0;
        for (class, count) in self.classes.iter().enumerate() {
            so_far += count;
            if so_far >= wanted && so_far > 0 {
                return Distribution::bound(class);
            }
        }
        Duration::ZERO
    }

    /// The time at which a class ends.
    pub fn bound(class: usize) -> Duration {
        Duration::from_micros(2 << class.min(CLASSES - 1))
    }

    /// The answers of both.
    #[must_use]
    pub fn with(&self, other: &Distribution) -> Distribution {
        Distribution {
            total: self.total + other.total,
            classes: std::array::from_fn(|class| self.classes[class] + other.classes[class]),
        }
    }

    /// The answers after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Distribution) -> Distribution {
        Distribution {
            total: self.total.saturating_sub(earlier.total),
            classes: std::array::from_fn(|class| self.classes[class] - earlier.classes[class]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_classes() {
        let latency = Latency::default();
        for micros in [0, 100, 300, u64::MAX] {
            latency.add(Duration::from_micros(micros));
        }
        let all = latency.snapshot();
        assert_eq!((all.classes[0], all.classes[6], all.classes[8], all.classes[CLASSES - 1]), (1, 1, 1, 1));
        assert_eq!((all.answers(), all.quantile(0.5)), (4, Duration::from_micros(128)));
        assert_eq!(Distribution::default().quantile(0.5), Duration::ZERO);
        assert_eq!(Distribution::default().mean(), Duration::ZERO);
    }
}
