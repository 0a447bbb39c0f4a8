//! The measurements, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::cpu::CpuTime;
use super::lane::Tally;
use super::{Options, Workload};
use crate::histogram::Histogram;

/// The report: for each workload one row per server, in the order in which the servers were given.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds that each measurement took.
    pub seconds: f64,
    /// Number of rounds; each row is the median one.
    pub rounds: usize,
    /// Connections to each server.
    pub connections: usize,
    /// The most calls in flight at each server.
    pub in_flight: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

/// The result of one workload on one server.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the workload.
    pub workload: &'static str,
    /// Name of the server.
    pub server: String,
    /// Number of replies.
    pub calls: u64,
    /// Replies per second.
    pub calls_per_second: f64,
    /// Megabytes (10^6) of file or directory data per second.
    pub megabytes_per_second: f64,
    /// Time from the call to its reply, in microseconds.
    pub latency_us: Latency,
    /// CPU microseconds of the load generator per call. A high value means that the generator is the
    /// bottleneck.
    pub generator_cpu_us: f64,
    /// CPU microseconds of the server per call, if its process was given.
    pub server_cpu_us: Option<f64>,
    /// Ratio of the calls per second to those of the first server.
    pub ratio: Option<f64>,
    /// Spread of the rounds: (fastest - slowest) / median.
    pub spread: f64,
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

impl Latency {
    fn of(histogram: &Histogram) -> Latency {
        let percentile = |percent| microseconds(histogram.percentile(percent));
        Latency {
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            max: microseconds(histogram.max()),
        }
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

impl Row {
    pub(super) fn new(
        workload: Workload,
        server: &str,
        tally: &Tally,
        window: Duration,
        cpu: CpuTime,
    ) -> Row {
        let calls = tally.latency.count();
        let seconds = window.as_secs_f64().max(1e-9);
        let each = |spent: Duration| microseconds(spent) / calls.max(1) as f64;
        Row {
            workload: workload.name(),
            server: server.to_owned(),
            calls,
            calls_per_second: calls as f64 / seconds,
            megabytes_per_second: tally.bytes as f64 / 1e6 / seconds,
            latency_us: Latency::of(&tally.latency),
            generator_cpu_us: each(cpu.ours),
            server_cpu_us: cpu.server.map(each),
            ratio: None,
            spread: 0.0,
        }
    }
}

impl Report {
    /// Takes the median round of each workload and server, and compares the servers.
    pub(super) fn new(options: &Options, all: &[Row]) -> Report {
        let mut rows: Vec<Row> = Vec::new();
        for workload in &options.workloads {
            let mut first = None;
            for target in &options.servers {
                let of = |row: &&Row| row.workload == workload.name() && row.server == target.name;
                let Some(mut row) = median(all.iter().filter(of).cloned().collect()) else { continue };
                let base = *first.get_or_insert(row.calls_per_second);
                row.ratio = (options.servers.len() > 1).then(|| row.calls_per_second / base.max(1e-9));
                rows.push(row);
            }
        }
        Report {
            seconds: options.duration.as_secs_f64(),
            rounds: options.rounds.max(1),
            connections: options.connections,
            in_flight: options.in_flight,
            rows,
        }
    }

    /// The row of one workload on one server.
    pub fn row(&self, workload: Workload, server: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.workload == workload.name() && row.server == server)
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// The median round by rate.
fn median(mut rounds: Vec<Row>) -> Option<Row> {
    rounds.sort_by(|one, two| one.calls_per_second.total_cmp(&two.calls_per_second));
    let (slowest, fastest) = (rounds.first()?.calls_per_second, rounds.last()?.calls_per_second);
    let mut row = rounds.swap_remove((rounds.len() - 1) / 2);
    row.spread = (fastest - slowest) / row.calls_per_second.max(1e-9);
    Some(row)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seconds, rounds, connections, in_flight, rows } = self;
        writeln!(
            f,
            "{connections} connections, up to {in_flight} calls in flight, {seconds} s each, median of {rounds}"
        )?;
        writeln!(
            f,
            "{:<14} {:<10} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7} {:>7} {:>7}",
            "workload",
            "server",
            "calls/s",
            "MB/s",
            "p50 us",
            "p90 us",
            "p99 us",
            "max us",
            "gen us",
            "srv us",
            "spread",
            "ratio"
        )?;
        rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { p50, p90, p99, max } = self.latency_us;
        let optional = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{value:.2}{unit}"))
        };
        let megabytes = Some(self.megabytes_per_second).filter(|rate| *rate > 0.0);
        write!(
            f,
            "{:<14} {:<10} {:>9.0} {:>8} {p50:>8.0} {p90:>8.0} {p99:>8.0} {max:>9.0} {:>7.2} {:>7} {:>6.0}% {:>7}",
            self.workload,
            self.server,
            self.calls_per_second,
            megabytes.map_or_else(String::new, |rate| format!("{rate:.0}")),
            self.generator_cpu_us,
            optional(self.server_cpu_us, ""),
            self.spread * 100.0,
            optional(self.ratio, "x"),
        )
    }
}
