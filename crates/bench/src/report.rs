//! Reports: all measurements, and their medians with the spread.

mod aims;
pub(crate) mod exhibits;
mod html;
mod markdown;
mod svg;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub(crate) use html::page;

use crate::relay::{self, Calls};
use crate::run::{Options, Passed};
use crate::system::{Hits, Observation, Usage};
use crate::workload::{Latencies, Phase, Plan, Workload};

/// One run of a workload on one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the workload.
    pub workload: String,
    /// Name of the system, followed by `cold`, `warm` or `again` if there are several passes.
    pub system: String,
    /// Number of the round, from 0.
    pub round: usize,
    /// Round trip to the origin.
    pub rtt_ms: f64,
    /// Number of clients.
    pub clients: usize,
    /// Seconds for the entire pass.
    pub seconds: f64,
    /// The parts of the pass.
    pub phases: Vec<Phase>,
    /// System calls of the workload.
    pub operations: u64,
    /// Durations of these system calls, by kind.
    pub latencies: BTreeMap<String, Latencies>,
    /// Calls at the origin.
    pub calls: Calls,
    /// Bytes to the origin.
    pub bytes_up: u64,
    /// Bytes from the origin.
    pub bytes_down: u64,
    /// Resources used by the server processes.
    pub usage: Vec<Usage>,
    /// CPU seconds of the clients, the relay and the workload itself.
    pub client_cpu_seconds: f64,
    /// Hits of our own cache.
    pub hits: Option<Hits>,
}

/// The subject of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'s> {
    /// The workload.
    pub workload: &'s Workload,
    /// The system.
    pub system: &'s str,
    /// `cold`, `warm` or `again`, with a leading space, if there are several passes; else empty.
    pub state: &'s str,
    /// Number of the round, from 0.
    pub round: usize,
    /// Round trip to the origin.
    pub rtt: Duration,
}

impl Measurement {
    /// Combines the clients' view of a pass with the observation of the servers during it.
    pub fn new(subject: Subject<'_>, passed: Passed, seen: Observation) -> Measurement {
        let Subject { workload, system, state, round, rtt } = subject;
        Measurement {
            workload: workload.name.to_owned(),
            system: format!("{system}{state}"),
            round,
            rtt_ms: rtt.as_secs_f64() * 1e3,
            clients: workload.clients,
            seconds: passed.seconds,
            phases: passed.phases,
            operations: passed.operations,
            latencies: passed.latencies,
            calls: seen.calls,
            bytes_up: seen.traffic.up,
            bytes_down: seen.traffic.down,
            usage: seen.usage,
            client_cpu_seconds: passed.cpu_seconds,
            hits: seen.hits,
        }
    }
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The missing part.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// The machine that measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Number of processors.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Name and release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// This machine.
    pub fn this() -> Machine {
        let name = rustix::system::uname();
        let memory = rustix::system::sysinfo();
        Machine {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.totalram as u64 * u64::from(memory.mem_unit),
            kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
        }
    }
}

/// The network apart from its round trips, and the origin behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// The longest random delay added to a round trip, in milliseconds.
    pub jitter_ms: f64,
    /// Bandwidth of each direction; `None` means unlimited.
    pub bytes_per_second: Option<u64>,
    /// URL of the user's own server, if one was used.
    pub origin: Option<String>,
}

impl Network {
    /// The network of a run.
    pub fn of(options: &Options, network: &relay::Options) -> Network {
        Network {
            jitter_ms: network.jitter.as_secs_f64() * 1e3,
            bytes_per_second: network.bytes_per_second.map(std::num::NonZeroU64::get),
            origin: options.against.as_ref().map(ToString::to_string),
        }
    }
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When it began, in UTC.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// The command that repeats it.
    pub command: String,
    /// Seed and scale.
    pub plan: Plan,
    /// NFS version that clients and proxies use.
    pub vers: String,
    /// The network apart from the round trip, and the user's own origin.
    #[serde(default)]
    pub network: Network,
    /// Number of rounds for each measurement.
    pub rounds: usize,
    /// The parts that were not measured.
    pub left_out: Vec<LeftOut>,
    /// The measurements.
    pub measurements: Vec<Measurement>,
}

/// A median, and the range of the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Median {
    /// The median.
    pub median: f64,
    /// The lowest value.
    pub low: f64,
    /// The highest value.
    pub high: f64,
}

impl Median {
    /// The median of `values`; zeros if there are none. For an even number of values, the lower of the two in
    /// the middle.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Median {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        match (values.first(), values.get(values.len().saturating_sub(1) / 2), values.last()) {
            (Some(&low), Some(&median), Some(&high)) => Median { median, low, high },
            _ => Median::default(),
        }
    }

    /// (highest - lowest) / median.
    pub fn spread(&self) -> f64 {
        if self.median > 0.0 { (self.high - self.low) / self.median } else { 0.0 }
    }

    /// Seconds as text. Adds the lowest and the highest value if they differ by more than a tenth of the
    /// median.
    fn time(&self) -> String {
        let median = seconds(self.median);
        if self.spread() <= 0.1 {
            return median;
        }
        format!("{median} ({} to {})", seconds(self.low), seconds(self.high))
    }
}

/// All rounds of one workload on one system at one distance.
#[derive(Clone, Debug)]
pub struct Rounds<'r> {
    /// Name of the workload.
    pub workload: &'r str,
    /// Name of the system.
    pub system: &'r str,
    /// Round trip to the origin.
    pub rtt_ms: f64,
    /// The measurements; at least one.
    pub all: Vec<&'r Measurement>,
}

impl<'r> Rounds<'r> {
    /// The median of a property of the measurements.
    pub fn median(&self, what: impl Fn(&Measurement) -> f64) -> Median {
        Median::of(self.all.iter().map(|measurement| what(measurement)))
    }

    /// Seconds per pass.
    pub fn seconds(&self) -> Median {
        self.median(|measurement| measurement.seconds)
    }

    /// Calls at the origin, without upkeep.
    pub fn calls(&self) -> Median {
        self.median(|measurement| measurement.calls.total_of_work() as f64)
    }

    /// True if a relay counted the calls at the origin.
    pub fn is_counted(&self) -> bool {
        !matches!(self.system.split(' ').next(), Some("local" | "dir"))
    }

    /// Number of operations of one kind at the origin.
    pub fn operations(&self, name: &str) -> Median {
        self.median(|measurement| measurement.calls.operations_of(name) as f64)
    }

    /// Seconds of a phase.
    pub fn phase(&self, name: &str) -> Option<Median> {
        let seconds = |measurement: &&Measurement| {
            measurement.phases.iter().find(|phase| phase.name == name).map(|phase| phase.seconds)
        };
        let all: Vec<f64> = self.all.iter().filter_map(seconds).collect();
        (!all.is_empty()).then(|| Median::of(all))
    }

    /// Calls at the origin in a phase. `None` if calls were counted only for the entire pass.
    pub fn phase_calls(&self, name: &str) -> Option<Median> {
        let calls = |measurement: &&Measurement| {
            measurement.phases.iter().find(|phase| phase.name == name).and_then(|phase| phase.calls)
        };
        let all: Vec<f64> = self.all.iter().filter_map(calls).map(|calls| calls as f64).collect();
        (!all.is_empty()).then(|| Median::of(all))
    }

    /// The round whose time is the median.
    pub fn middle(&self) -> &'r Measurement {
        let median = self.seconds().median;
        let distance = |measurement: &&&Measurement| ((measurement.seconds - median).abs() * 1e9) as u64;
        self.all.iter().min_by_key(distance).copied().unwrap_or(self.all[0])
    }
}

impl Report {
    /// A report without measurements.
    pub fn new(machine: Machine, options: &Options, vers: &str, network: &relay::Options) -> Report {
        Report {
            date: date(SystemTime::now()),
            machine,
            command: options.command.clone(),
            plan: options.plan,
            vers: vers.to_owned(),
            network: Network::of(options, network),
            rounds: options.rounds,
            left_out: Vec::new(),
            measurements: Vec::new(),
        }
    }

    /// Adds the measurements of another report, made in the lab or on another day.
    ///
    /// # Errors
    /// The reports differ in seed, scale, version, network or origin, or a round is in both.
    pub fn join(&mut self, other: Report) -> Result<(), String> {
        if (other.plan, &other.vers, &other.network) != (self.plan, &self.vers, &self.network) {
            let of = |report: &Report| {
                let Network { jitter_ms, bytes_per_second, origin } = &report.network;
                let bandwidth = bytes_per_second
                    .map_or_else(String::new, |bytes| format!(", {} Mbit/s", bytes / 125_000));
                let origin = origin.as_ref().map_or_else(String::new, |origin| format!(", {origin}"));
                let (Plan { seed, scale }, vers) = (report.plan, &report.vers);
                format!("NFSv{vers}, scale {scale}, seed {seed}, jitter {jitter_ms} ms{bandwidth}{origin}")
            };
            return Err(format!("{} does not go with {}", of(&other), of(self)));
        }
        let key = |each: &Measurement| {
            (each.workload.clone(), each.system.clone(), (each.rtt_ms * 1e3) as u64, each.round)
        };
        let known: BTreeSet<_> = self.measurements.iter().map(key).collect();
        if let Some(twice) = other.measurements.iter().find(|each| known.contains(&key(each))) {
            let Measurement { workload, system, rtt_ms, round, .. } = twice;
            return Err(format!("round {} of {workload}, {rtt_ms} ms, {system} is there already", round + 1));
        }
        let when = |report: &Report| format!("{} on {}", report.date, report.machine.kernel);
        let from = if when(&other) == when(self) { String::new() } else { format!("    # {}", when(&other)) };
        self.command = format!("{}\n{}{from}", self.command, other.command);
        self.rounds = self.rounds.max(other.rounds);
        self.left_out.extend(other.left_out);
        self.measurements.extend(other.measurements);
        Ok(())
    }

    /// The measurements in groups, in the order in which they were first measured.
    pub fn groups(&self) -> Vec<Rounds<'_>> {
        let mut groups: Vec<Rounds<'_>> = Vec::new();
        for each in &self.measurements {
            let same = |group: &&mut Rounds<'_>| {
                (group.workload, group.system) == (each.workload.as_str(), each.system.as_str())
                    && (group.rtt_ms - each.rtt_ms).abs() < 1e-6
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.all.push(each),
                None => groups.push(Rounds {
                    workload: &each.workload,
                    system: &each.system,
                    rtt_ms: each.rtt_ms,
                    all: vec![each],
                }),
            }
        }
        groups
    }

    /// The group of one workload on one system at one distance.
    pub fn rounds(&self, workload: &str, system: &str, rtt_ms: f64) -> Option<Rounds<'_>> {
        let wanted = |group: &Rounds<'_>| {
            group.workload == workload && group.system == system && (group.rtt_ms - rtt_ms).abs() < 1e-6
        };
        self.groups().into_iter().find(wanted)
    }

    /// The measured round trips, the shortest first.
    pub fn rtts(&self) -> Vec<f64> {
        sorted(self.measurements.iter())
    }

    /// The measured round trips of one workload.
    pub fn rtts_of(&self, workload: &str) -> Vec<f64> {
        sorted(self.measurements.iter().filter(|measurement| measurement.workload == workload))
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report for a terminal.
    pub fn table(&self) -> String {
        table::render(self)
    }

    /// The papers' tables and figures for docs/results.md.
    pub fn markdown(&self) -> String {
        markdown::render(self)
    }

    /// The report as a self-contained HTML page.
    pub fn html(&self) -> String {
        html::render(self)
    }
}

fn sorted<'m>(measurements: impl Iterator<Item = &'m Measurement>) -> Vec<f64> {
    let mut rtts: Vec<f64> = measurements.map(|measurement| measurement.rtt_ms).collect();
    rtts.sort_by(f64::total_cmp);
    rtts.dedup();
    rtts
}

/// `2026-11-21 19:05`
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let [year, month, day, hour, minute, _] = vfs::civil(seconds);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Content of a table cell without a value.
const NOT_COUNTED: &str = "-";

/// A size as text.
fn bytes(count: f64) -> String {
    match count {
        ..10_000.0 => format!("{count:.0} B"),
        ..10_000_000.0 => format!("{:.0} kB", count / 1e3),
        ..10_000_000_000.0 => format!("{:.1} MB", count / 1e6),
        _ => format!("{:.1} GB", count / 1e9),
    }
}

/// Seconds as text, with up to three significant digits.
fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} µs", seconds * 1e6),
        ..0.1 => format!("{:.1} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..100.0 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

#[cfg(test)]
mod tests;
