//! The last hour of a few numbers, for the page that a browser shows.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rpc::latency::Distribution;
use serde::Serialize;

use super::Measured;

/// Time between two samples.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Samples kept: an hour and the one before it.
const SAMPLES_MAX: usize = 361;

/// The numbers at one moment. All but the gauges count from the start of the process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Seconds since 1970.
    at: u64,
    /// Requests of clients, or of the kernel.
    requests: u64,
    /// Calls to the origin.
    origin_calls: u64,
    /// Answers without the origin, of all kinds.
    hits: u64,
    /// Answers for which the origin was asked.
    misses: u64,
    /// Bytes of reads that the cache answered.
    hit_bytes: u64,
    /// Bytes that reads at the origin brought.
    fetched_bytes: u64,
    /// A time within which half of the origin's answers since the sample before came, in microseconds.
    origin_p50_us: Option<u64>,
    /// Gauge: leases of the origin, or of clients of a `serve`.
    leases: u64,
    /// Gauge: delayed writes.
    delayed_bytes: u64,
    /// Gauge: disk used by file data.
    used_bytes: u64,
    #[serde(skip)]
    latency: Distribution,
}

/// The samples, oldest first.
#[derive(Debug, Default)]
pub struct History {
    samples: Mutex<VecDeque<Sample>>,
}

impl History {
    /// Takes samples until it is dropped.
    pub async fn keep(&self, measured: &Measured) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.add(Sample::of(measured));
        }
    }

    fn add(&self, mut sample: Sample) {
        let mut samples = self.samples.lock();
        if let Some(last) = samples.back() {
            let since = sample.latency.since(&last.latency);
            sample.origin_p50_us = (since.answers() > 0).then(|| since.quantile(0.5).as_micros() as u64);
        }
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// All samples, and one of this moment.
    pub fn until_now(&self, measured: &Measured) -> Vec<Sample> {
        let mut samples: Vec<Sample> = self.samples.lock().iter().cloned().collect();
        samples.push(Sample::of(measured));
        samples
    }
}

impl Sample {
    fn of(measured: &Measured) -> Sample {
        let mut sample = Sample { at: crate::status::seconds(SystemTime::now()), ..Sample::default() };
        if let Some(serving) = &measured.serving {
            sample.requests = serving.front.counts().iter().map(|(_, _, count)| count).sum();
            let held = serving.arbiters.now().into_iter().map(|(_, arbiter)| arbiter.held());
            sample.leases = held
                .map(|held| held.read_leases + held.write_leases + held.directory_leases)
                .sum::<usize>() as u64;
        }
        if let Some(mounted) = measured.mounted.upgrade() {
            sample.requests = mounted.stats().requests;
        }
        let caches = measured.caching.now();
        if !caches.is_empty() {
            sample.leases = 0;
        }
        for caching in caches {
            let stats = caching.cache.stats();
            let kinds = [stats.attributes, stats.names, stats.listings, stats.access, stats.data];
            sample.hits += kinds.iter().map(|kind| kind.hits).sum::<u64>();
            sample.misses += kinds.iter().map(|kind| kind.misses).sum::<u64>();
            sample.hit_bytes += stats.read_hit_bytes;
            sample.fetched_bytes += stats.fetched_bytes;
            sample.leases += stats.leases_read + stats.leases_write;
            sample.delayed_bytes += stats.dirty_bytes;
            sample.used_bytes += stats.used_bytes;
            for (_, counts) in caching.origin.calls() {
                sample.origin_calls += counts.calls;
                sample.latency = sample.latency.with(&counts.latency);
            }
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use rpc::latency::Latency;

    use super::*;

    #[test]
    fn an_hour_is_kept_and_a_latency_is_that_of_its_interval() {
        let (history, latency) = (History::default(), Latency::default());
        for at in 0..500 {
            latency.add(Duration::from_micros(if at == 499 { 100_000 } else { 100 }));
            history.add(Sample { at, latency: latency.snapshot(), ..Sample::default() });
        }
        let samples = history.samples.lock();
        assert_eq!((samples.len(), samples[0].at), (SAMPLES_MAX, 500 - SAMPLES_MAX as u64));
        assert_eq!(samples[10].origin_p50_us, Some(128));
        assert_eq!(samples[SAMPLES_MAX - 1].origin_p50_us, Some(131_072));
    }
}
