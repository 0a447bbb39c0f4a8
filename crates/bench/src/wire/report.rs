//! What was measured, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::cpu::CpuTime;
use super::lane::Tally;
use super::{Options, Workload};
use crate::histogram::Histogram;

/// All of it: for each workload a row for each server, in the order in which they were given.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds that each measurement took.
    pub seconds: f64,
    /// Of how many rounds each row is the median one.
    pub rounds: usize,
    /// To each server.
    pub connections: usize,
    /// Calls in flight at each server, at most.
    pub in_flight: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One workload on one server.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub workload: &'static str,
    /// Its name.
    pub server: String,
    /// Calls answered.
    pub calls: u64,
    /// Calls answered in a second.
    pub calls_per_second: f64,
    /// Millions of bytes of file data, or of directory, in a second.
    pub megabytes_per_second: f64,
    /// From the call to its reply, in microseconds.
    pub latency_us: Latency,
    /// Microseconds of CPU that generating the load took for each call: low, or it is the generator that is measured.
    pub generator_cpu_us: f64,
    /// The same of the server, if its process was given.
    pub server_cpu_us: Option<f64>,
    /// Calls per second as a multiple of the first server's.
    pub ratio: Option<f64>,
    /// How far the rounds lie apart: (fastest - slowest) / median.
    pub spread: f64,
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Half of them took no longer.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// The longest.
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
    /// Takes the median round of each workload and server, and compares.
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

    /// The row of a workload and a server.
    pub fn row(&self, workload: Workload, server: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.workload == workload.name() && row.server == server)
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// The round in the middle, by its rate.
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
