//! What was measured: every measurement, and medians of them with their spread.

mod aims;
mod exhibits;
mod html;
mod markdown;
mod svg;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::relay::{self, Calls};
use crate::run::{Options, Passed};
use crate::system::{Hits, Observation, Usage};
use crate::workload::{Latencies, Phase, Plan, Workload};

/// One workload, once, on one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Its name.
    pub workload: String,
    /// Its name, with `cold`, `warm` or `again` behind it where there is a difference.
    pub system: String,
    /// From 0.
    pub round: usize,
    /// Round trip to the origin.
    pub rtt_ms: f64,
    /// Clients.
    pub clients: usize,
    /// How long all of it took.
    pub seconds: f64,
    /// Its parts.
    pub phases: Vec<Phase>,
    /// System calls of the workload.
    pub operations: u64,
    /// How long they took, by kind.
    pub latencies: BTreeMap<String, Latencies>,
    /// What the origin was asked.
    pub calls: Calls,
    /// Bytes to the origin.
    pub bytes_up: u64,
    /// Bytes from it.
    pub bytes_down: u64,
    /// Of the server processes.
    pub usage: Vec<Usage>,
    /// CPU time of the clients, of the relay and of the workload itself.
    pub client_cpu_seconds: f64,
    /// Of our own cache.
    pub hits: Option<Hits>,
}

/// What was measured, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'s> {
    /// The workload.
    pub workload: &'s Workload,
    /// The system.
    pub system: &'s str,
    /// `cold`, `warm` or `again`, with a space in front of it, where there is a difference.
    pub state: &'s str,
    /// From 0.
    pub round: usize,
    /// Round trip to the origin.
    pub rtt: Duration,
}

impl Measurement {
    /// What a pass was like for its clients, and what was seen of the servers meanwhile.
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

/// Something that is not in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// Where it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors.
    pub processors: usize,
    /// Bytes.
    pub memory_bytes: u64,
    /// Of the kernel.
    pub kernel: String,
}

impl Machine {
    /// The one that we are on.
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

/// The network, but for its round trips, and what is behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// The most that a round trip takes beyond its time.
    pub jitter_ms: f64,
    /// Of each direction; `None` is no bound.
    pub bytes_per_second: Option<u64>,
    /// The user's own server, as named.
    pub origin: Option<String>,
}

impl Network {
    /// That of a run.
    pub fn of(options: &Options, network: &relay::Options) -> Network {
        Network {
            jitter_ms: network.jitter.as_secs_f64() * 1e3,
            bytes_per_second: network.bytes_per_second.map(std::num::NonZeroU64::get),
            origin: options.against.as_ref().map(ToString::to_string),
        }
    }
}

/// A whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Begin, in UTC.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// That makes it again.
    pub command: String,
    /// Seed and scale.
    pub plan: Plan,
    /// Version of NFS that clients and proxies speak.
    pub vers: String,
    /// What is between clients and origin but for the round trip, and whose the origin is.
    #[serde(default)]
    pub network: Network,
    /// How often each was measured.
    pub rounds: usize,
    /// What is not in it.
    pub left_out: Vec<LeftOut>,
    /// What is.
    pub measurements: Vec<Measurement>,
}

/// A median, and how far the rounds lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Median {
    /// The one in the middle.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Median {
    /// Of some values; zero of none. Of an even number, the lower of the two in the middle.
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

    /// Seconds for people; with the lowest and the highest where they lie further apart than a tenth of the median.
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
    /// The workload's name.
    pub workload: &'r str,
    /// The system's name.
    pub system: &'r str,
    /// The distance.
    pub rtt_ms: f64,
    /// At least one.
    pub all: Vec<&'r Measurement>,
}

impl<'r> Rounds<'r> {
    /// The median of something.
    pub fn median(&self, what: impl Fn(&Measurement) -> f64) -> Median {
        Median::of(self.all.iter().map(|measurement| what(measurement)))
    }

    /// Seconds.
    pub fn seconds(&self) -> Median {
        self.median(|measurement| measurement.seconds)
    }

    /// Calls at the origin, without upkeep.
    pub fn calls(&self) -> Median {
        self.median(|measurement| measurement.calls.total_of_work() as f64)
    }

    /// Was anything there to count what the origin was asked?
    pub fn is_counted(&self) -> bool {
        !matches!(self.system.split(' ').next(), Some("local" | "dir"))
    }

    /// Operations of one kind at the origin.
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

    /// Calls at the origin in a phase. None where they were counted for the whole pass only.
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
    /// Nothing measured yet.
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

    /// Adds what another one measured: in the lab, or another day.
    ///
    /// # Errors
    /// It measured something else: another seed, scale, version, network or origin; or a round that is there already.
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

    /// Grouped, in the order in which they were first measured.
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

    /// One group.
    pub fn rounds(&self, workload: &str, system: &str, rtt_ms: f64) -> Option<Rounds<'_>> {
        let wanted = |group: &Rounds<'_>| {
            group.workload == workload && group.system == system && (group.rtt_ms - rtt_ms).abs() < 1e-6
        };
        self.groups().into_iter().find(wanted)
    }

    /// Distances that were measured, the nearest first.
    pub fn rtts(&self) -> Vec<f64> {
        sorted(self.measurements.iter())
    }

    /// Those of a workload.
    pub fn rtts_of(&self, workload: &str) -> Vec<f64> {
        sorted(self.measurements.iter().filter(|measurement| measurement.workload == workload))
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For a terminal.
    pub fn table(&self) -> String {
        table::render(self)
    }

    /// The papers' tables and figures for docs/results.md.
    pub fn markdown(&self) -> String {
        markdown::render(self)
    }

    /// A page that needs nothing but itself.
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
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil from days: the year begins in March, so that the leap day is its last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

/// In a cell of what there is not.
const NOT_COUNTED: &str = "-";

/// A size for people.
fn bytes(count: f64) -> String {
    match count {
        ..10_000.0 => format!("{count:.0} B"),
        ..10_000_000.0 => format!("{:.0} kB", count / 1e3),
        ..10_000_000_000.0 => format!("{:.1} MB", count / 1e6),
        _ => format!("{:.1} GB", count / 1e9),
    }
}

/// Seconds for people: three digits that mean something.
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
