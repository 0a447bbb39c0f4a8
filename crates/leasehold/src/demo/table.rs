//! The table that the demo prints.

use serde_json::{Map, Value, json};

/// One reading of the tree.
#[derive(Debug)]
pub struct Row {
    /// Which way the tree was read.
    pub name: &'static str,
    /// How long the reading took.
    pub seconds: f64,
    /// Calls that the origin answered meanwhile.
    pub origin_calls: u64,
    /// Bytes to and from the origin.
    pub origin_bytes: u64,
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Over all names and contents.
    pub checksum: u64,
    /// The origin's calls by procedure.
    pub calls: Vec<(&'static str, u64)>,
}

/// Prints the rows.
pub fn print(rows: &[Row], rtt_ms: u64, json: bool) {
    if json {
        crate::output::line(format_args!("{}", as_json(rows, rtt_ms)));
        return;
    }
    if let Some(first) = rows.first() {
        crate::output::line(format_args!(
            "{} files, {} read, origin {rtt_ms} ms away\n",
            first.files,
            size(first.bytes)
        ));
    }
    crate::output::line(format_args!(
        "{:<13} {:>8} {:>13} {:>13}  by procedure",
        "", "seconds", "origin calls", "origin bytes"
    ));
    for row in rows {
        let calls: Vec<String> = row.calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        crate::output::line(format_args!(
            "{:<13} {:>8.2} {:>13} {:>13}  {}",
            row.name,
            row.seconds,
            row.origin_calls,
            size(row.origin_bytes),
            if calls.is_empty() { "none".to_owned() } else { calls.join(", ") }
        ));
    }
    crate::output::line("");
}

fn as_json(rows: &[Row], rtt_ms: u64) -> Value {
    let row = |row: &Row| {
        let calls: Map<String, Value> =
            row.calls.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
        json!({
            "name": row.name,
            "seconds": row.seconds,
            "origin_calls": row.origin_calls,
            "origin_bytes": row.origin_bytes,
            "files": row.files,
            "bytes": row.bytes,
            "calls": calls,
        })
    };
    json!({ "rtt_ms": rtt_ms, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
