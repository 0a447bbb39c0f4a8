//! Timestamps of files, and the clock.
//!
//! Waiting and measuring use `tokio::time`, which a simulator can pause and drive. Wall-clock time, which is
//! compared with timestamps of files, comes from [`Clock`] alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A timestamp of a file: seconds since 1970 (negative: before 1970) and nanoseconds below one thousand
/// million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// A timestamp from seconds and nanoseconds.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    /// Nanoseconds since 1970.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds)
    }

    /// The timestamp so many nanoseconds after 1970, or the nearest one that fits.
    pub fn from_nanos(nanos: i128) -> Timestamp {
        let seconds = nanos.div_euclid(1_000_000_000).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Timestamp { seconds, nanoseconds: nanos.rem_euclid(1_000_000_000) as u32 }
    }

    /// The timestamp `duration` later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Timestamp {
        Timestamp::from_nanos(self.as_nanos() + duration.as_nanos() as i128)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp::new(after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => Timestamp::from_nanos(-(before.duration().as_nanos() as i128)),
        }
    }
}

/// Where wall-clock time comes from.
pub trait Clock: Send + Sync + 'static {
    /// The time of day, as this machine believes it to be.
    fn wall(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_come_back() {
        for stamp in [Timestamp::new(0, 0), Timestamp::new(-1, 999_999_999), Timestamp::new(1 << 40, 5)] {
            assert_eq!(Timestamp::from_nanos(stamp.as_nanos()), stamp);
        }
        assert_eq!(
            Timestamp::new(1, 900_000_000).plus(Duration::from_millis(200)),
            Timestamp::new(2, 100_000_000)
        );
    }
}
