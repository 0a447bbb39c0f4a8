//! A histogram of call durations in fixed buckets: exact to 3 %, of constant size, cheap to add to.

use std::time::Duration;

/// Buckets per doubling of the duration.
const STEPS: usize = 32;
/// log2 of `STEPS`.
const STEP_BITS: u32 = STEPS.ilog2();
/// Number of doublings. The last bucket takes every duration from 2^36 ns (69 seconds).
const DOUBLINGS: usize = 36 - STEP_BITS as usize + 1;

/// Counts of calls by duration.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
    sum: Duration,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; STEPS * DOUBLINGS], count: 0, max: Duration::ZERO, sum: Duration::ZERO }
    }
}

/// Returns the bucket of a duration. The first `STEPS` buckets are one nanosecond each. Each further group of
/// `STEPS` buckets is as wide as all groups before it together.
fn bucket(nanoseconds: u64) -> usize {
    let doubling = (nanoseconds | 1).ilog2().saturating_sub(STEP_BITS - 1);
    let step = (nanoseconds >> doubling.saturating_sub(1)) as usize;
    let first = if doubling == 0 { 0 } else { (doubling as usize) * STEPS - STEPS };
    (first + step).min(STEPS * DOUBLINGS - 1)
}

/// The first nanosecond after a bucket.
fn bound(bucket: usize) -> u64 {
    let doubling = (bucket / STEPS).saturating_sub(1);
    ((bucket - doubling * STEPS) as u64 + 1) << doubling
}

impl Histogram {
    pub(crate) fn add(&mut self, took: Duration) {
        self.buckets[bucket(took.as_nanos() as u64)] += 1;
        self.count += 1;
        self.max = self.max.max(took);
        self.sum += took;
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(ours, theirs)| *ours += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// Number of durations added.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The mean.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.sum.as_secs_f64() / self.count.max(1) as f64)
    }

    /// The longest duration.
    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// The duration that `percent` % of the added ones do not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        let wanted = ((self.count as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(bound(index)).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for bucket_index in 0..STEPS * DOUBLINGS - 1 {
            assert!(bound(bucket_index) > last, "bucket {bucket_index}");
            assert_eq!((bucket(last), bucket(bound(bucket_index) - 1)), (bucket_index, bucket_index));
            last = bound(bucket_index);
        }
        assert_eq!(bucket(u64::MAX), STEPS * DOUBLINGS - 1);
    }

    proptest! {
        #[test]
        fn percentiles_are_close_to_the_truth(
            mut nanoseconds in proptest::collection::vec(1u64..5_000_000_000, 1..300),
            percent in 1.0..100.0f64,
        ) {
            let mut halves = [Histogram::default(), Histogram::default()];
            for (index, each) in nanoseconds.iter().enumerate() {
                halves[index % 2].add(Duration::from_nanos(*each));
            }
            let [mut all, other] = halves;
            all.merge(&other);
            nanoseconds.sort_unstable();
            let rank = ((nanoseconds.len() as f64 * percent / 100.0).ceil() as usize).max(1);
            let (truth, told) = (nanoseconds[rank - 1] as f64, all.percentile(percent).as_nanos() as f64);
            prop_assert!(told >= truth && told <= truth * (1.0 + 1.0 / 16.0) + 1.0, "{told} for {truth}");
            prop_assert_eq!(all.max().as_nanos() as u64, nanoseconds[nanoseconds.len() - 1]);
            prop_assert_eq!(all.count(), nanoseconds.len() as u64);
        }
    }
}
