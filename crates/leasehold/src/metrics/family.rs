//! A family of metrics, and the text of all families.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use rpc::latency::Distribution;

use super::families::{FAMILIES, Snapshot};

/// Prefix of every name, but for those of [`Family::of_any_process`].
pub const PREFIX: &str = "leasehold_";

/// One metric, and its values by label.
#[derive(Debug)]
pub struct Family {
    /// Its name, without prefix, unit and the `_total` of a counter.
    pub name: &'static str,
    /// The base unit that is part of the name.
    pub unit: Option<Base>,
    /// What it means.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Where its values come from.
    pub read: Read,
}

/// Base units of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Bytes,
    Seconds,
}

/// Takes the values of the labels and the value.
pub type Take<'t, T> = &'t mut dyn FnMut(&[&str], T);

/// The kind of a family, and where its values come from. A family without values is left out.
#[derive(Clone, Copy, Debug)]
pub enum Read {
    /// It only grows, until the process ends.
    Counter(fn(&Snapshot, Take<'_, f64>)),
    /// The present value.
    Gauge(fn(&Snapshot, Take<'_, f64>)),
    /// Times by class.
    Histogram(fn(&Snapshot, Take<'_, Distribution>)),
}

impl Family {
    /// Does every program that follows Prometheus' conventions have this metric?
    pub fn of_any_process(&self) -> bool {
        self.name.starts_with("process_")
    }

    /// Its name as the encoder wants it: without the unit and without the `_total` of a counter.
    fn stem(&self) -> String {
        let prefix = if self.of_any_process() { "" } else { PREFIX };
        format!("{prefix}{}", self.name)
    }

    /// Its name as users see it.
    #[cfg(test)]
    pub fn full_name(&self) -> String {
        let unit = match self.unit {
            None => "",
            Some(Base::Bytes) => "_bytes",
            Some(Base::Seconds) => "_seconds",
        };
        let total = if matches!(self.read, Read::Counter(_)) { "_total" } else { "" };
        format!("{}{unit}{total}", self.stem())
    }

    fn unit(&self) -> Option<Unit> {
        self.unit.map(|unit| match unit {
            Base::Bytes => Unit::Bytes,
            Base::Seconds => Unit::Seconds,
        })
    }

    fn encode(&self, snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        match self.read {
            Read::Counter(read) => {
                let of = |value| move |encoder: MetricEncoder<'_>| ConstCounter::new(value).encode(encoder);
                self.encode_each(MetricType::Counter, gathered(snapshot, read), of, encoder)
            }
            Read::Gauge(read) => {
                let of = |value| move |encoder: MetricEncoder<'_>| ConstGauge::new(value).encode(encoder);
                self.encode_each(MetricType::Gauge, gathered(snapshot, read), of, encoder)
            }
            Read::Histogram(read) => {
                let of = |times| move |encoder: MetricEncoder<'_>| encode_times(&times, encoder);
                self.encode_each(MetricType::Histogram, gathered(snapshot, read), of, encoder)
            }
        }
    }

    /// Writes the head of the family and each of its values. `of` says how a value is written.
    fn encode_each<T, W: FnOnce(MetricEncoder<'_>) -> fmt::Result>(
        &self,
        kind: MetricType,
        values: Vec<(Vec<String>, T)>,
        of: impl Fn(T) -> W,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        if values.is_empty() {
            return Ok(());
        }
        let (stem, unit) = (self.stem(), self.unit());
        let mut head = encoder.encode_descriptor(&stem, self.help, unit.as_ref(), kind)?;
        for (labels, value) in values {
            if self.labels.is_empty() {
                return of(value)(head);
            }
            let labels: Vec<(&str, &str)> =
                self.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
            of(value)(head.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn gathered<T>(snapshot: &Snapshot, read: fn(&Snapshot, Take<'_, T>)) -> Vec<(Vec<String>, T)> {
    let mut values = Vec::new();
    read(snapshot, &mut |labels, value| {
        values.push((labels.iter().map(|label| escaped(label)).collect(), value));
    });
    values
}

/// The value of a label as the text format wants it. The library writes values as they are.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn encode_times(times: &Distribution, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(times.classes.len());
    for (class, &count) in times.classes.iter().enumerate() {
        buckets.push((Distribution::bound(class).as_secs_f64(), count));
    }
    // The last class has no end. The encoder writes this bound as `+Inf`.
    if let Some(last) = buckets.last_mut() {
        last.0 = f64::MAX;
    }
    encoder.encode_histogram::<NoLabelSet>(times.total.as_secs_f64(), times.answers(), &buckets, None)
}

/// Writes all families.
#[derive(Debug)]
struct Scrape(Snapshot);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        FAMILIES.iter().try_for_each(|family| family.encode(&self.0, &mut encoder))
    }
}

/// The OpenMetrics text of a snapshot.
pub fn text(snapshot: Snapshot) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(snapshot)));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = text::encode(&mut text, &registry);
    text
}
