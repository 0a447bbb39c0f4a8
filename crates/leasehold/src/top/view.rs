//! The differences between two looks at a process, as lines and tables.
//!
//! The answers are JSON of a process that may be of another version. What it does not say is left out.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value, json};

use crate::status::{self, summary, trouble};
use crate::units::{grouped, human, percent};
use crate::usage;

/// What a process answered, and when.
#[derive(Debug)]
pub struct Sample {
    /// When it answered.
    pub at: Instant,
    /// The answer to `usage`.
    pub usage: Value,
}

/// What happened between two looks.
#[derive(Debug)]
pub struct View {
    /// Which process this is, and a line for each subject.
    pub head: Vec<String>,
    /// Troubles in words.
    pub troubles: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
    seconds: f64,
}

/// A table. The first column has names.
#[derive(Debug)]
pub struct Table {
    /// What it is about.
    pub title: &'static str,
    /// The titles of its columns.
    pub columns: &'static [&'static str],
    /// Its rows.
    pub rows: Vec<Row>,
}

/// A row: its name, and its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The name.
    pub name: String,
    /// The numbers, by column.
    pub numbers: Vec<Number>,
}

/// A number of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// So many each second.
    Rate(f64),
    /// So many bytes each second.
    Bytes(f64),
    /// So many since the start.
    Count(u64),
    /// So many bytes since the start.
    Size(u64),
    /// A time in microseconds.
    Micros(u64),
}

const USED: [&str; 5] = ["calls/s", "read/s", "written/s", "calls", "bytes"];
const CLIENTS: [&str; 6] = ["client", USED[0], USED[1], USED[2], USED[3], USED[4]];
const FILES: [&str; 6] = ["file", USED[0], USED[1], USED[2], USED[3], USED[4]];
const ORIGIN: [&str; 6] = ["call to the origin", "calls/s", "bytes/s", "half within", "99 % within", "calls"];
const REQUESTS: [&str; 3] = ["request of clients", "calls/s", "calls"];

impl View {
    /// What happened between two looks.
    pub fn between(before: &Sample, now: &Sample) -> View {
        let seconds = (now.at - before.at).as_secs_f64().max(0.001);
        let of = Difference { before: &before.usage, now: &now.usage, seconds };
        let status = &now.usage["status"];
        let head = summary::text(status, status::seconds(SystemTime::now()));
        let head = head.lines().next().unwrap_or_default().to_owned();
        let lines = [of.requests(), of.hits(), of.origin(), of.leases(), of.disk()];
        View {
            head: std::iter::once(head).chain(lines.into_iter().flatten()).collect(),
            troubles: trouble::all(status),
            tables: vec![
                Table { title: "clients", columns: &CLIENTS, rows: of.used("clients", client_name) },
                Table { title: "files", columns: &FILES, rows: of.used("files", file_name) },
                Table { title: "origin", columns: &ORIGIN, rows: of.origin_calls() },
                Table { title: "requests", columns: &REQUESTS, rows: of.request_calls() },
            ],
            seconds,
        }
    }

    /// As text, with so many rows of each table at most.
    pub fn to_text(&self, rows_max: usize) -> String {
        let mut lines = self.head.clone();
        lines.extend(self.troubles.iter().map(|trouble| format!("trouble   {trouble}")));
        for table in self.tables.iter().filter(|table| !table.rows.is_empty()) {
            lines.push(String::new());
            let cells =
                |row: &Row| row.numbers.iter().fold(String::new(), |line, it| format!("{line}{it:>12}"));
            let title = table.columns[1..].iter().fold(String::new(), |line, it| format!("{line}{it:>12}"));
            lines.push(format!("{title}  {}", table.columns[0]));
            let rows = sorted(&table.rows, Order::default(), "");
            lines.extend(rows.iter().take(rows_max).map(|row| format!("{}  {}", cells(row), row.name)));
        }
        lines.join("\n")
    }

    /// As JSON, with all rows.
    pub fn to_json(&self) -> Value {
        let row = |table: &Table, row: &Row| {
            let mut fields = Map::new();
            fields.insert("name".to_owned(), json!(row.name));
            for (column, number) in table.columns[1..].iter().zip(&row.numbers) {
                fields.insert((*column).to_owned(), number.to_json());
            }
            Value::Object(fields)
        };
        let mut all = json!({ "seconds": self.seconds, "head": self.head, "troubles": self.troubles });
        for table in &self.tables {
            let rows = sorted(&table.rows, Order::default(), "");
            all[table.title] = rows.iter().map(|it| row(table, it)).collect();
        }
        all
    }
}

/// How the rows of a table are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The column, from 0.
    pub column: usize,
    /// The smallest first.
    pub is_reverse: bool,
}

impl Default for Order {
    /// By the first number, the largest first.
    fn default() -> Order {
        Order { column: 1, is_reverse: false }
    }
}

/// The rows whose names contain a text, in this order.
pub fn sorted<'r>(rows: &'r [Row], order: Order, filter: &str) -> Vec<&'r Row> {
    let mut rows: Vec<&Row> = rows.iter().filter(|row| row.name.contains(filter)).collect();
    let number = |row: &Row| row.numbers.get(order.column.wrapping_sub(1)).map(|number| number.value());
    rows.sort_by(|a, b| {
        let order = match (number(a), number(b)) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            _ => Ordering::Equal,
        };
        order.then_with(|| a.name.cmp(&b.name))
    });
    if order.is_reverse {
        rows.reverse();
    }
    rows
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Number::Rate(rate) | Number::Bytes(rate) => rate,
            Number::Count(count) | Number::Size(count) | Number::Micros(count) => count as f64,
        }
    }

    fn to_json(self) -> Value {
        match self {
            Number::Rate(rate) | Number::Bytes(rate) => json!(rate),
            Number::Count(count) | Number::Size(count) | Number::Micros(count) => json!(count),
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match *self {
            Number::Rate(rate) => per_second(rate),
            Number::Bytes(rate) => human(rate as u64),
            Number::Count(count) => grouped(count),
            Number::Size(bytes) => human(bytes),
            Number::Micros(micros) => format!("{:.1} ms", micros as f64 / 1000.0),
        };
        f.pad(&text)
    }
}

/// A rate, with a decimal where it is small.
fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 100.0 { format!("{rate:.1}") } else { grouped(rate as u64) }
}

fn client_name(entry: &Value) -> Option<String> {
    entry["address"].as_str().map(str::to_owned)
}

fn file_name(entry: &Value) -> Option<String> {
    let entry = entry.as_object()?;
    let word = |field: &str| entry.get(field).and_then(Value::as_str);
    let path = word("path").unwrap_or("(a file whose name is not known)");
    Some(word("export").map_or_else(|| path.to_owned(), |export| format!("{export}: {path}")))
}

/// Two answers, and the time between them.
#[derive(Clone, Copy)]
struct Difference<'a> {
    before: &'a Value,
    now: &'a Value,
    seconds: f64,
}

impl Difference<'_> {
    fn number(self, at: &str) -> Option<u64> {
        self.now.pointer(at)?.as_u64()
    }

    /// How much a counter has grown. It starts at zero in a process that was started meanwhile.
    fn growth(self, at: &str) -> Option<u64> {
        let before = self.before.pointer(at).and_then(Value::as_u64).unwrap_or(0);
        self.number(at).map(|now| now.saturating_sub(before))
    }

    fn rate(self, growth: u64) -> f64 {
        growth as f64 / self.seconds
    }

    /// The numbers of a group of the status, by name: those of `field`, or the values themselves.
    fn counts(answer: &Value, group: &str, field: Option<&str>) -> HashMap<String, u64> {
        let group = answer["status"][group].as_object();
        let number = |value: &Value| field.map_or(value.as_u64(), |field| value[field].as_u64());
        let pairs = group.into_iter().flatten();
        pairs.filter_map(|(name, value)| Some((name.clone(), number(value)?))).collect()
    }

    /// How much each of these numbers has grown.
    fn growths(self, group: &str, field: Option<&str>) -> Vec<(String, u64, u64)> {
        let before = Difference::counts(self.before, group, field);
        let now = Difference::counts(self.now, group, field);
        let grown = |(name, now): (String, u64)| {
            let growth = now.saturating_sub(before.get(&name).copied().unwrap_or(0));
            (name, growth, now)
        };
        now.into_iter().map(grown).collect()
    }

    fn requests(self) -> Option<String> {
        if let Some(requests) = self.growth("/status/kernel/requests") {
            let open = self.number("/status/kernel/files_open").unwrap_or(0);
            return Some(format!(
                "kernel    {}/s requests; {} files open",
                per_second(self.rate(requests)),
                grouped(open)
            ));
        }
        let calls: u64 = self.growths("calls", None).iter().map(|(_, growth, _)| growth).sum();
        let connections = self.number("/status/load/connections")?;
        Some(format!(
            "clients   {}/s operations; {} connections, {} clients of version 4",
            per_second(self.rate(calls)),
            grouped(connections),
            grouped(self.number("/status/clients/known").unwrap_or(0))
        ))
    }

    fn hits(self) -> Option<String> {
        let kinds = ["attributes", "names", "listings", "access", "data"];
        let sum = |what: &str| -> Option<u64> {
            kinds.iter().map(|kind| self.growth(&format!("/status/cache/{kind}/{what}"))).sum()
        };
        let (hits, misses) = (sum("hits")?, sum("misses")?);
        let bytes = |at: &str| human(self.rate(self.growth(at).unwrap_or(0)) as u64);
        Some(format!(
            "hits      {} of {}/s answers; {}/s from the cache, {}/s from the origin",
            percent(hits, hits + misses),
            per_second(self.rate(hits + misses)),
            bytes("/status/cache/read_hit_bytes"),
            bytes("/status/cache/fetched_bytes")
        ))
    }

    fn origin(self) -> Option<String> {
        self.now["status"]["upstream"].as_object()?;
        let calls: u64 = self.growths("upstream", Some("calls")).iter().map(|(_, growth, _)| growth).sum();
        let bytes: u64 = self.growths("upstream", Some("bytes")).iter().map(|(_, growth, _)| growth).sum();
        let waiting = self.number("/status/link/calls_in_flight").unwrap_or(0);
        let silent = self.number("/status/link/unanswered_ms").filter(|silent| *silent > 1000);
        let silent = silent.map_or_else(String::new, |silent| format!("; no answer for {} s", silent / 1000));
        Some(format!(
            "origin    {}/s calls, {}/s; {} in flight{silent}",
            per_second(self.rate(calls)),
            human(self.rate(bytes) as u64),
            grouped(waiting)
        ))
    }

    fn leases(self) -> Option<String> {
        let (read, write) =
            (self.number("/status/cache/leases_read")?, self.number("/status/cache/leases_write")?);
        let recalls = self.growth("/status/cache/recalls").unwrap_or(0);
        Some(format!(
            "leases    {} to read, {} to write; {}/s recalls",
            grouped(read),
            grouped(write),
            per_second(self.rate(recalls))
        ))
    }

    fn disk(self) -> Option<String> {
        let evictions = self.growth("/status/cache/evictions")?;
        Some(format!(
            "disk      {} of {}, {}/s evictions; {} in {} files wait to be written",
            human(self.number("/status/cache/used_bytes")?),
            human(self.number("/status/cache/used_max_bytes")?),
            per_second(self.rate(evictions)),
            human(self.number("/status/cache/dirty_bytes").unwrap_or(0)),
            grouped(self.number("/status/cache/dirty_files").unwrap_or(0))
        ))
    }

    /// The rows of clients or files.
    fn used(self, group: &str, name: fn(&Value) -> Option<String>) -> Vec<Row> {
        let number = |entry: &Value, field: &str| entry[field].as_u64().unwrap_or(0);
        let entries =
            |answer: &Value| -> Vec<Value> { answer[group].as_array().cloned().unwrap_or_default() };
        let before: HashMap<String, Value> =
            entries(self.before).into_iter().filter_map(|entry| Some((name(&entry)?, entry))).collect();
        let row = |entry: Value| {
            let name = name(&entry)?;
            let then = before.get(&name);
            let growth = |field: &str| {
                let now = number(&entry, field);
                // If an answer is full, a file that it lacks may have been used before.
                let new = if before.len() < usage::ENTRIES_MAX { 0 } else { now };
                let then = then.map_or(new, |then| number(then, field));
                self.rate(now.saturating_sub(then))
            };
            let numbers = vec![
                Number::Rate(growth("calls")),
                Number::Bytes(growth("read_bytes")),
                Number::Bytes(growth("written_bytes")),
                Number::Count(number(&entry, "calls")),
                Number::Size(number(&entry, "read_bytes") + number(&entry, "written_bytes")),
            ];
            Some(Row { name, numbers })
        };
        entries(self.now).into_iter().filter_map(row).collect()
    }

    fn origin_calls(self) -> Vec<Row> {
        let bytes: HashMap<String, u64> = self
            .growths("upstream", Some("bytes"))
            .into_iter()
            .map(|(name, growth, _)| (name, growth))
            .collect();
        let time =
            |name: &str, field: &str| self.now["status"]["upstream"][name][field].as_u64().unwrap_or(0);
        let row = |(name, growth, calls): (String, u64, u64)| {
            let numbers = vec![
                Number::Rate(self.rate(growth)),
                Number::Bytes(self.rate(bytes.get(&name).copied().unwrap_or(0))),
                Number::Micros(time(&name, "p50_us")),
                Number::Micros(time(&name, "p99_us")),
                Number::Count(calls),
            ];
            Row { name, numbers }
        };
        self.growths("upstream", Some("calls")).into_iter().map(row).collect()
    }

    fn request_calls(self) -> Vec<Row> {
        let row = |(name, growth, calls): (String, u64, u64)| Row {
            name,
            numbers: vec![Number::Rate(self.rate(growth)), Number::Count(calls)],
        };
        self.growths("calls", None).into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: Instant, calls: u64, bytes: u64) -> Sample {
        let usage = json!({
            "status": {
                "role": "proxy", "origin": "nfs://filer/export", "origin_version": "4.2",
                "calls": { "NFSv3 READ": calls, "NFSv3 NULL": 1 },
                "clients": { "known": 2 }, "load": { "connections": 3 },
                "link": { "calls_in_flight": 1, "unanswered_ms": null },
                "upstream": { "READ": { "calls": calls / 10, "bytes": bytes / 10, "p50_us": 500, "p99_us": 4000 } },
                "cache": {
                    "attributes": { "hits": calls, "misses": 0 }, "names": { "hits": 0, "misses": 0 },
                    "listings": { "hits": 0, "misses": 0 }, "access": { "hits": 0, "misses": 0 },
                    "data": { "hits": calls, "misses": calls / 10 },
                    "read_hit_bytes": bytes, "fetched_bytes": bytes / 10, "leases_read": 5, "leases_write": 1,
                    "recalls": 0, "used_bytes": 1 << 30, "used_max_bytes": 10_u64 << 30, "evictions": 0,
                    "dirty_bytes": 0, "dirty_files": 0,
                },
            },
            "clients": [
                { "address": "10.0.0.5", "calls": calls, "read_bytes": bytes, "written_bytes": 0 },
                { "address": "10.0.0.6", "calls": 7, "read_bytes": 0, "written_bytes": 0 },
            ],
            "files": [{ "export": "/export", "path": "/a b", "calls": calls, "read_bytes": bytes, "written_bytes": 0 }],
        });
        Sample { at, usage }
    }

    #[test]
    fn the_difference_of_two_looks_is_what_happens_each_second() {
        let at = Instant::now();
        let view =
            View::between(&sample(at, 100, 10 << 20), &sample(at + Duration::from_secs(2), 300, 30 << 20));
        assert!(view.head[0].starts_with("proxy of nfs://filer/export, vers=4.2"), "{:?}", view.head);
        let wanted = [
            "clients   100/s operations; 3 connections, 2 clients of version 4",
            "hits      95 % of 210/s answers; 10.0M/s from the cache, 1.0M/s from the origin",
            "origin    10.0/s calls, 1.0M/s; 1 in flight",
            "leases    5 to read, 1 to write; 0/s recalls",
            "disk      1.0G of 10.0G, 0/s evictions; 0 in 0 files wait to be written",
        ];
        assert_eq!(view.head[1..], wanted);
        let clients = &view.tables[0].rows;
        assert_eq!(clients[0].numbers[..2], [Number::Rate(100.0), Number::Bytes((10 << 20) as f64)]);
        assert_eq!((clients[1].name.as_str(), clients[1].numbers[0]), ("10.0.0.6", Number::Rate(0.0)));
        assert_eq!(view.tables[1].rows[0].name, "/export: /a b");
        assert_eq!(view.to_json()["files"][0]["calls/s"], 100.0);
        assert_eq!(view.to_json()["origin"][0]["99 % within"], 4000);
        let text = view.to_text(1);
        assert!(text.contains("10.0.0.5") && !text.contains("10.0.0.6"), "{text}");
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let row = |name: &str, number: u64| Row { name: name.into(), numbers: vec![Number::Count(number)] };
        let rows = [row("a", 1), row("b", 3), row("ab", 2)];
        let names = |column, is_reverse, filter: &str| -> Vec<String> {
            sorted(&rows, Order { column, is_reverse }, filter).iter().map(|row| row.name.clone()).collect()
        };
        assert_eq!(names(1, false, ""), ["b", "ab", "a"]);
        assert_eq!(names(1, true, "b"), ["ab", "b"]);
        assert_eq!(names(0, false, ""), ["a", "ab", "b"]);
    }

    #[test]
    fn an_answer_of_another_version_is_shown_as_far_as_it_goes() {
        let (at, nothing) = (Instant::now(), || json!({ "status": { "role": 3 }, "files": [3, {}] }));
        let view = View::between(&Sample { at, usage: nothing() }, &Sample { at, usage: nothing() });
        assert_eq!(view.head, ["Leasehold"]);
        assert!(view.tables[0].rows.is_empty());
    }
}
