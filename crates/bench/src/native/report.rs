//! The measurements, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::place::{Counters, Kind};
use super::{Options, Size, Task};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) task: Task,
    pub(super) kind: Kind,
    pub(super) round: usize,
    pub(super) seconds: f64,
    pub(super) units: u64,
    pub(super) calls: Counters,
}

impl Sample {
    fn each_us(&self) -> f64 {
        self.seconds * 1e6 / self.units.max(1) as f64
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sample { task, kind, round, seconds, calls, .. } = self;
        write!(f, "{:<26} {:<7} round {}: {:8.1} ms", task.about(), kind.name(), round + 1, seconds * 1e3)?;
        if *kind != Kind::Native {
            write!(f, ", {} requests, {} calls", calls.kernel, calls.origin)?;
        }
        Ok(())
    }
}

/// One task in one place.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name of the task.
    pub task: &'static str,
    /// The name of the place.
    pub place: &'static str,
    /// Microseconds per read, file, append or write: the median, fastest and slowest round.
    pub each_us: [f64; 3],
    /// Ratio to the native time of the same round: median, least and greatest.
    pub times_native: Option<[f64; 3]>,
    /// The highest ratio to the native time that the project aims for.
    pub aim: Option<f64>,
    /// Requests of the kernel per unit.
    pub requests_each: f64,
    /// Calls to the origin per unit.
    pub calls_each: f64,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// NFS version.
    pub vers: String,
    /// Arguments of `serve`.
    pub serve: Vec<String>,
    /// Options of the mount.
    pub mount: Vec<String>,
    /// Rounds in the near places.
    pub rounds: usize,
    /// Round trip to the far places, in milliseconds.
    pub far_ms: Option<u64>,
    /// How much work each task did.
    pub size: Size,
    /// The rows.
    pub rows: Vec<Row>,
    /// For each task that runs in the far places: how many times faster it is than with synchronous writes.
    /// The aim is 20.
    pub times_faster_than_sync: Vec<(&'static str, f64)>,
    /// Remarks on the measurements.
    pub notes: Vec<String>,
}

impl Report {
    pub(super) fn new(options: &Options, samples: &[Sample], notes: Vec<String>) -> Report {
        let mut rows = Vec::new();
        let mut faster = Vec::new();
        for &task in &options.tasks {
            let of = |kind: Kind| -> Vec<Sample> {
                samples.iter().filter(|sample| sample.task == task && sample.kind == kind).copied().collect()
            };
            let native = of(Kind::Native);
            for kind in [Kind::Native, Kind::Mount, Kind::Far, Kind::Sync] {
                rows.extend(row(task, kind, &of(kind), &native));
            }
            let each = |kind| middle(of(kind).iter().map(Sample::each_us).collect());
            if let (Some(far), Some(sync)) = (each(Kind::Far), each(Kind::Sync)) {
                faster.push((task.name(), sync[0] / far[0].max(1e-9)));
            }
        }
        Report {
            vers: options.vers.clone(),
            serve: options.serve.clone(),
            mount: options.mount.clone(),
            rounds: options.rounds,
            far_ms: options.far.map(|rtt| rtt.as_millis() as u64),
            size: options.size,
            rows,
            times_faster_than_sync: faster,
            notes,
        }
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn row(task: Task, kind: Kind, samples: &[Sample], native: &[Sample]) -> Option<Row> {
    let each_us = middle(samples.iter().map(Sample::each_us).collect())?;
    let ratios = samples.iter().filter_map(|sample| {
        let beside = native.iter().find(|native| native.round == sample.round)?;
        Some(sample.each_us() / beside.each_us().max(1e-9))
    });
    let times_native = (kind == Kind::Mount).then(|| middle(ratios.collect())).flatten();
    let units = samples.iter().map(|sample| sample.units).sum::<u64>().max(1) as f64;
    let sum = |of: fn(&Counters) -> u64| samples.iter().map(|sample| of(&sample.calls)).sum::<u64>() as f64;
    Some(Row {
        task: task.name(),
        place: kind.name(),
        each_us,
        times_native,
        aim: (kind == Kind::Mount).then(|| task.aim()),
        requests_each: sum(|calls| calls.kernel) / units,
        calls_each: sum(|calls| calls.origin) / units,
    })
}

/// Median, least and greatest.
fn middle(mut numbers: Vec<f64>) -> Option<[f64; 3]> {
    numbers.sort_by(f64::total_cmp);
    let (least, greatest) = (*numbers.first()?, *numbers.last()?);
    let upper = numbers.len() / 2;
    let median = if numbers.len() % 2 == 1 {
        numbers[upper]
    } else {
        f64::midpoint(numbers[upper - 1], numbers[upper])
    };
    Some([median, least, greatest])
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| task | place | µs each (least to most) | times native (least to most) | aim | requests | calls |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for row in &self.rows {
            let [median, least, most] = row.each_us;
            let times = row.times_native.map_or_else(String::new, |[median, least, most]| {
                format!("{median:.2} ({least:.2} to {most:.2})")
            });
            let aim = row.aim.zip(row.times_native).map_or_else(String::new, |(aim, times)| {
                format!("{aim:.2}: {}", if times[0] <= aim { "met" } else { "missed" })
            });
            let (requests, calls) = (row.requests_each, row.calls_each);
            writeln!(
                f,
                "| {} | {} | {median:.2} ({least:.2} to {most:.2}) | {times} | {aim} | {requests:.2} | {calls:.2} |",
                row.task, row.place
            )?;
        }
        for (task, times) in &self.times_faster_than_sync {
            let verdict = if *times >= 20.0 { "met" } else { "missed" };
            let far = self.far_ms.unwrap_or_default();
            writeln!(
                f,
                "\n{task} at {far} ms: {times:.1} times faster than with synchronous writes (20: {verdict})"
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "\n{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let sample = |kind, round, seconds| Sample {
            task: Task::Appends,
            kind,
            round,
            seconds,
            units: 10,
            calls: Counters { origin: 5, kernel: 30, passed: 0 },
        };
        let native =
            [sample(Kind::Native, 0, 1.0), sample(Kind::Native, 1, 4.0), sample(Kind::Native, 2, 1.0)];
        let mount = [sample(Kind::Mount, 0, 2.0), sample(Kind::Mount, 1, 8.0), sample(Kind::Mount, 2, 3.0)];
        let row = row(Task::Appends, Kind::Mount, &mount, &native).unwrap();
        assert_eq!(row.times_native, Some([2.0, 2.0, 3.0]));
        assert_eq!(row.each_us.map(f64::round).map(|us| us as u64), [300_000, 200_000, 800_000]);
        assert!((row.requests_each - 3.0).abs() < 1e-9 && (row.calls_each - 0.5).abs() < 1e-9);
        assert_eq!(middle(vec![4.0, 1.0]), Some([2.5, 1.0, 4.0]));
        assert_eq!(middle(Vec::new()), None);
    }
}
