//! The measurements, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::noise::Beside;
use super::site::Calls;
use super::{Options, page};
use crate::report::Machine;

/// One walk.
#[derive(Clone, Debug, Serialize)]
pub struct Walked {
    /// Seconds.
    pub seconds: f64,
    /// Calls at the origin.
    pub calls: Calls,
}

/// Resident memory at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Bytes of the origin.
    pub origin: u64,
    /// Bytes of the cache.
    pub cache: u64,
}

/// One tree, walked twice through one cache.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What grows.
    pub series: &'static str,
    /// The cache.
    pub system: &'static str,
    /// Files of the tree.
    pub files: u32,
    /// Its directories.
    pub directories: u64,
    /// The changes between the second and the third walk.
    pub changes: u32,
    /// The first and the second walk, and the third one if there were changes.
    pub walks: Vec<Walked>,
    /// Before the first walk, after it, and after the second one.
    pub memories: Vec<Memory>,
    /// Seconds until the restarted cache was ready.
    pub restart_seconds: f64,
    /// Resident memory of the restarted cache.
    pub after_restart_bytes: u64,
    /// Disk space of the cache directory.
    pub cache_bytes: u64,
}

/// Things that clients hold at the origin.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Held {
    /// What grows.
    pub series: &'static str,
    /// How many the clients asked for.
    pub count: u32,
    /// How many the origin knew.
    pub held: u64,
    /// Seconds until the clients had them.
    pub seconds: f64,
    /// Resident memory of the origin for them.
    pub bytes: u64,
}

impl Row {
    /// Files and directories.
    pub fn objects(&self) -> u64 {
        u64::from(self.files) + self.directories
    }

    fn each(&self, total: f64) -> f64 {
        total / self.objects().max(1) as f64
    }

    /// The growth of the cache's memory from before the first walk to after the second, for each object.
    pub fn memory_each(&self) -> f64 {
        let bytes = |at: Option<&Memory>| at.map_or(0, |memory| memory.cache);
        let grown = bytes(self.memories.last()).saturating_sub(bytes(self.memories.first()));
        self.each(grown as f64)
    }

    /// The same growth of the origin's memory.
    pub fn origin_memory_each(&self) -> f64 {
        let bytes = |at: Option<&Memory>| at.map_or(0, |memory| memory.origin);
        let grown = bytes(self.memories.last()).saturating_sub(bytes(self.memories.first()));
        self.each(grown as f64)
    }

    /// Microseconds for each object in a walk.
    pub fn micros_each(&self, walk: usize) -> f64 {
        self.walks.get(walk).map_or(0.0, |walked| self.each(walked.seconds * 1e6))
    }

    /// Calls at the origin in a walk.
    pub fn calls(&self, walk: usize) -> u64 {
        self.walks.get(walk).map_or(0, |walked| walked.calls.of_files())
    }

    /// Bytes on the disk for each object.
    pub fn disk_each(&self) -> f64 {
        self.each(self.cache_bytes as f64)
    }
}

impl Held {
    /// Bytes of the origin for each.
    pub fn bytes_each(&self) -> f64 {
        self.bytes as f64 / f64::from(self.count.max(1))
    }

    /// Microseconds for each.
    pub fn micros_each(&self) -> f64 {
        self.seconds * 1e6 / f64::from(self.count.max(1))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>9} {:<22} {:<6} calls {:>7} then {:>6}; {:>7.1} and {:>6.1} µs each; {:>6.0} B memory and {:>6.0} B disk each; origin {:>4.0} B; restart {:.2} s",
            self.files,
            self.series,
            self.system,
            self.calls(0),
            self.calls(1),
            self.micros_each(0),
            self.micros_each(1),
            self.memory_each(),
            self.disk_each(),
            self.origin_memory_each(),
            self.restart_seconds
        )
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { series, count, held, .. } = self;
        let (bytes, micros) = (self.bytes_each(), self.micros_each());
        write!(f, "{count:>9} {series:<22} origin {bytes:>6.0} B and {micros:>7.1} µs each; it knows {held}")
    }
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine that measured.
    pub machine: Machine,
    /// NFS version.
    pub vers: String,
    /// The trees, by series, size and cache.
    pub rows: Vec<Row>,
    /// What clients held.
    pub held: Vec<Held>,
    /// Quiet clients beside a noisy one.
    pub beside: Vec<Beside>,
}

/// A quantity that should not grow with the size.
pub(super) struct Quantity {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) of: fn(&Row) -> f64,
}

/// The quantities of a walk.
pub(super) const QUANTITIES: [Quantity; 9] = [
    Quantity {
        title: "calls of the first walk for each object",
        unit: "",
        of: |row| row.each(row.calls(0) as f64),
    },
    Quantity {
        title: "calls of the second walk for each object",
        unit: "",
        of: |row| row.each(row.calls(1) as f64),
    },
    Quantity {
        title: "calls of a walk after changes, for each change",
        unit: "",
        of: |row| row.calls(2) as f64 / f64::from(row.changes.max(1)),
    },
    Quantity { title: "first walk for each object", unit: "µs", of: |row| row.micros_each(0) },
    Quantity { title: "second walk for each object", unit: "µs", of: |row| row.micros_each(1) },
    Quantity { title: "memory of the cache for each object", unit: "B", of: Row::memory_each },
    Quantity { title: "memory of the origin for each object", unit: "B", of: Row::origin_memory_each },
    Quantity { title: "disk for each object", unit: "B", of: Row::disk_each },
    Quantity { title: "restart", unit: "ms", of: |row| row.restart_seconds * 1e3 },
];

impl Report {
    pub(super) fn new(options: &Options) -> Report {
        let (rows, held, beside) = (Vec::new(), Vec::new(), Vec::new());
        Report { machine: Machine::this(), vers: options.vers.clone(), rows, held, beside }
    }

    /// The rows that differ only in their size, by series and cache.
    pub(super) fn groups(&self) -> Vec<Vec<&Row>> {
        let mut groups: Vec<Vec<&Row>> = Vec::new();
        for row in &self.rows {
            let of_same = |group: &&mut Vec<&Row>| {
                group.first().is_some_and(|first| (first.series, first.system) == (row.series, row.system))
            };
            match groups.iter_mut().find(of_same) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report as an HTML page with charts.
    pub fn html(&self) -> String {
        page::render(self)
    }
}

/// The ratio to the value before; nothing if one of them is too small to compare.
pub(super) fn growth(before: Option<f64>, now: f64) -> String {
    match before {
        Some(before) if before > 0.0 && now > 0.0 => format!("×{:.2}", now / before),
        _ => String::new(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processors, kernel, .. } = &self.machine;
        writeln!(f, "{processors} processors, {kernel}; NFSv{}", self.vers)?;
        for group in self.groups() {
            let Some(first) = group.first() else { continue };
            write!(f, "\n{:<44}", format!("{}, {}", first.series, first.system))?;
            for row in &group {
                write!(f, "{:>12} {:>7}", row.files, "")?;
            }
            writeln!(f)?;
            for Quantity { title, unit, of } in &QUANTITIES {
                let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
                write!(f, "{:<44}", format!("{title}{unit}"))?;
                let mut before = None;
                for row in &group {
                    let value = of(row);
                    write!(f, "{:>12} {:>7}", number(value), growth(before, value))?;
                    before = Some(value);
                }
                writeln!(f)?;
            }
        }
        if !self.held.is_empty() {
            writeln!(
                f,
                "\n{:<22}{:>9}{:>11}{:>12}{:>12}",
                "at the origin", "asked", "known", "bytes each", "µs each"
            )?;
        }
        for held in &self.held {
            let (bytes, micros) = (number(held.bytes_each()), number(held.micros_each()));
            let Held { series, count, held, .. } = held;
            writeln!(f, "{series:<22}{count:>9}{held:>11}{bytes:>12}{micros:>12}")?;
        }
        if !self.beside.is_empty() {
            writeln!(f, "\nlatency of quiet clients")?;
        }
        self.beside.iter().try_for_each(|beside| writeln!(f, "{beside}"))
    }
}

/// A number with about three significant digits.
pub(super) fn number(value: f64) -> String {
    match value {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        ..0.1 => format!("{value:.4}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(files: u32, calls: u64, cache: u64) -> Row {
        let walked =
            |count| Walked { seconds: 1.0, calls: Calls([("NFSv4 PUTFH".to_owned(), count)].into()) };
        Row {
            series: "files",
            system: "mount",
            files,
            directories: 10,
            changes: 0,
            walks: vec![walked(calls), walked(0)],
            memories: [1000, cache, cache].map(|cache| Memory { origin: 1, cache }).to_vec(),
            restart_seconds: 0.5,
            after_restart_bytes: 0,
            cache_bytes: 0,
        }
    }

    #[test]
    fn a_row_has_its_values_for_each_object() {
        let row = row(990, 20, 501_000);
        assert_eq!((row.objects(), row.calls(0), row.calls(1)), (1000, 20, 0));
        assert!((row.memory_each() - 500.0).abs() < 1e-9 && (row.micros_each(0) - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn a_report_shows_each_size_and_its_growth() {
        let held = Held { series: "leases", count: 10, held: 10, seconds: 1.0, bytes: 5000 };
        let rows = vec![row(990, 20, 501_000), row(9990, 200, 15_001_000)];
        let report = Report {
            machine: Machine::this(),
            vers: "4.2".to_owned(),
            rows,
            held: vec![held],
            beside: Vec::new(),
        };
        let text = report.to_string();
        assert!(text.contains("memory of the cache for each object, B"), "{text}");
        assert!(text.contains("×3.00") && text.contains("leases"), "{text}");
        let page = report.html();
        assert!(page.contains("<svg") && page.contains("files, mount: restart"), "{page}");
        assert!(report.json().contains("\"files\": 9990"));
    }

    #[test]
    fn growth_is_the_ratio_to_the_size_before() {
        assert_eq!((growth(None, 3.0), growth(Some(2.0), 3.0)), (String::new(), "×1.50".to_owned()));
        assert_eq!(growth(Some(0.0), 3.0), "");
    }
}
