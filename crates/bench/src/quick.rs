//! Counts compared with a baseline: a few minutes show whether a change makes more calls to the origin.
//!
//! Small workloads run on our own systems, at a distance at which round trips decide. The comparison uses
//! only values that do not depend on the machine: calls at the origin by kind, exactly, and times as ratios
//! to direct. A count above the baseline is a fault, and a count below it is a note. A much worse ratio is
//! also only a note.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::report::{Report, Rounds};
use crate::run::Options;
use crate::system::Kind;
use crate::workload::{self, Plan};

/// Workloads whose calls are the same in every run, however slow the machine is. Without delegations the
/// calls of the other workloads vary: a proxy closes a file one second after its last client, unless a client
/// opens it again before.
const WORKLOADS: [&str; 9] =
    ["andrew", "lookups", "reread", "recall", "rounds", "build", "create", "random-reads", "random-appends"];
/// A ratio of times that is this many times the baseline's is noted.
const RATIO_TOLERANCE: f64 = 1.5;
/// How long clients and proxies trust attributes: longer than any run.
pub const ACTIMEO: Duration = Duration::from_secs(3600);

/// The options of the measurement.
///
/// # Errors
/// A workload of the list is not there.
pub fn options() -> Result<Options, String> {
    Ok(Options {
        workloads: WORKLOADS.iter().map(|name| workload::named(name)).collect::<Result<_, _>>()?,
        systems: vec![Kind::Direct, Kind::Proxy],
        rtts: vec![Duration::from_millis(5)],
        plan: Plan { seed: 1, scale: 0.002 },
        rounds: 1,
        together: true,
        against: None,
        command: "cargo xtask bench quick".to_owned(),
    })
}

/// The committed result of an earlier measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// By workload and system.
    pub entries: BTreeMap<String, Entry>,
}

/// The result of one workload on one system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Calls at the origin, without upkeep.
    pub calls: BTreeMap<String, u64>,
    /// Ratio of the time to that of direct.
    pub ratio: f64,
}

impl Baseline {
    /// The baseline that a report gives.
    pub fn of(report: &Report) -> Baseline {
        let entry = |group: Rounds<'_>| {
            let direct = report.rounds(group.workload, "direct", group.rtt_ms);
            let direct = direct.map_or(0.0, |direct| direct.seconds().median);
            let mut calls = BTreeMap::new();
            for each in &group.all {
                for (name, count) in each.calls.work() {
                    let most: &mut u64 = calls.entry(name.clone()).or_default();
                    *most = (*most).max(*count);
                }
            }
            // Round to two digits: a ratio is not more exact, and the file should not change for less.
            let ratio = (100.0 * group.seconds().median / direct.max(1e-9)).round() / 100.0;
            (format!("{}, {}", group.workload, group.system), Entry { calls, ratio })
        };
        Baseline { entries: report.groups().into_iter().map(entry).collect() }
    }

    /// Parses a committed baseline.
    ///
    /// # Errors
    /// The text is no baseline.
    pub fn parse(text: &str) -> Result<Baseline, String> {
        serde_json::from_str(text).map_err(|error| format!("the baseline is no JSON of ours: {error}"))
    }

    /// The text to commit.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Counts above the baseline, and entries that were not measured.
    pub faults: Vec<String>,
    /// Counts below the baseline, and worse ratios.
    pub notes: Vec<String>,
}

impl Verdict {
    /// True if there are no faults.
    pub fn passed(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "FAULT: {fault}"))?;
        writeln!(f, "{} faults, {} notes", self.faults.len(), self.notes.len())
    }
}

/// Compares a measurement with the baseline.
pub fn compare(measured: &Baseline, baseline: &Baseline) -> Verdict {
    let mut verdict = Verdict::default();
    for (name, expected) in &baseline.entries {
        let Some(entry) = measured.entries.get(name) else {
            verdict.faults.push(format!("{name}: not measured"));
            continue;
        };
        let kinds: std::collections::BTreeSet<&String> =
            entry.calls.keys().chain(expected.calls.keys()).collect();
        for kind in kinds {
            let count = |entry: &Entry| entry.calls.get(kind).copied().unwrap_or(0);
            let (now, then) = (count(entry), count(expected));
            let told = format!("{name}: {kind} {now}, in the baseline {then}");
            if now > then {
                verdict.faults.push(told);
            } else if now < then {
                verdict.notes.push(told);
            }
        }
        if entry.ratio > expected.ratio * RATIO_TOLERANCE {
            verdict.notes.push(format!(
                "{name}: {} times the time of direct, in the baseline {}",
                entry.ratio, expected.ratio
            ));
        }
    }
    for name in measured.entries.keys().filter(|name| !baseline.entries.contains_key(*name)) {
        verdict.faults.push(format!("{name}: not in the baseline: accept it"));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(calls: &[(&str, u64)], ratio: f64) -> Baseline {
        let calls = calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Baseline { entries: BTreeMap::from([("andrew, direct".to_owned(), Entry { calls, ratio })]) }
    }

    #[test]
    fn a_count_above_the_baseline_is_a_fault_and_one_below_it_is_not() {
        let expected = baseline(&[("READ", 10), ("LOOKUP", 5)], 0.5);
        let same = compare(&expected, &expected);
        assert_eq!((same.passed(), same.notes.len()), (true, 0));
        let worse = compare(&baseline(&[("READ", 11), ("LOOKUP", 4)], 0.6), &expected);
        assert_eq!(worse.faults, ["andrew, direct: READ 11, in the baseline 10"]);
        assert_eq!(worse.notes, ["andrew, direct: LOOKUP 4, in the baseline 5"]);
        let new = compare(&baseline(&[("READ", 10), ("LOOKUP", 5), ("GETATTR", 1)], 0.9), &expected);
        assert_eq!((new.faults.len(), new.notes.len()), (1, 1), "{new}");
    }

    #[test]
    fn what_is_missing_on_either_side_is_a_fault() {
        let (some, none) = (baseline(&[], 1.0), Baseline::default());
        assert_eq!(compare(&none, &some).faults, ["andrew, direct: not measured"]);
        assert!(!compare(&some, &none).passed());
        assert_eq!(Baseline::parse(&some.json()).unwrap(), some);
        assert!(Baseline::parse("{").is_err());
    }

    #[test]
    fn its_workloads_are_there() {
        assert_eq!(options().unwrap().workloads.len(), WORKLOADS.len());
    }
}
