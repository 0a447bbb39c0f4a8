//! The status in at most ten lines: what runs and since when, who uses it, what it saves, and the troubles.
//!
//! It is made from the JSON of the process that was asked, which may be of another version. A line whose
//! values are not there is left out. Numbers of a trouble are those since the start of the process.

use serde_json::Value;

use super::trouble;
use crate::units::{ago, counted, grouped, human, percent};

/// The width of the column of labels.
const LABEL: usize = 10;
/// The procedures that the line on the origin names.
const PROCEDURES: usize = 4;

/// The summary. `now` is in seconds since 1970.
pub fn text(status: &Value, now: u64) -> String {
    let of = Of(status);
    let lines = [
        ("exports", exports(of)),
        ("clients", clients(of)),
        ("held", held(of)),
        ("kernel", kernel(of)),
        ("hits", hits(of)),
        ("origin", origin(of)),
        ("leases", leases(of)),
        ("disk", disk(of)),
        ("delayed", delayed(of)),
    ];
    let mut out = vec![head(of, now)];
    let line = |label: &str, said: &str| format!("{label:LABEL$}{said}");
    out.extend(lines.iter().filter_map(|(label, said)| said.as_ref().map(|said| line(label, said))));
    let troubles = trouble::all(status);
    if troubles.is_empty() {
        out.push(line("trouble", "none"));
    }
    out.extend(troubles.iter().map(|trouble| line("trouble", trouble)));
    out.join("\n")
}

/// The status, with its values by JSON pointer (RFC 6901).
#[derive(Clone, Copy)]
struct Of<'a>(&'a Value);

impl<'a> Of<'a> {
    fn number(self, at: &str) -> Option<u64> {
        self.0.pointer(at)?.as_u64()
    }

    fn text(self, at: &str) -> Option<&'a str> {
        self.0.pointer(at)?.as_str()
    }

    /// The sum of a number over all groups in the group `at`.
    fn sum(self, at: &str, name: &str) -> u64 {
        let groups = self.0.pointer(at).and_then(Value::as_object);
        groups.into_iter().flatten().filter_map(|(_, group)| group[name].as_u64()).sum()
    }
}

/// `proxy of nfs://filer/export, vers=4.2; up 3 h, process 4711`
fn head(of: Of, now: u64) -> String {
    let text = |at: &str, before: &str| of.text(at).map(|said| format!("{before}{said}"));
    let role = of.text("/role").unwrap_or("Leasehold").to_owned();
    let up =
        of.number("/process/started").map(|started| format!("; up {}", ago(now.saturating_sub(started))));
    let id = of.number("/process/id").map(|id| format!(", process {id}"));
    let parts = [
        text("/origin", " of "),
        text("/mounted_on", " on "),
        text("/origin_version", ", vers="),
        up,
        id,
        text("/process/version", ", Leasehold "),
    ];
    std::iter::once(role).chain(parts.into_iter().flatten()).collect()
}

fn exports(of: Of) -> Option<String> {
    let exports = of.0["exports"].as_array()?;
    let named: Vec<&str> = exports.iter().take(PROCEDURES).filter_map(Value::as_str).collect();
    let more = exports.len() - named.len();
    let more =
        if more > 0 { format!(" and {}", counted(more as u64, "other", "others")) } else { String::new() };
    Some(format!("{}{more}", named.join(", ")))
}

fn clients(of: Of) -> Option<String> {
    let known = of.number("/clients/known")?;
    let calls: u64 = of.0["calls"].as_object()?.values().filter_map(Value::as_u64).sum();
    let connections = of.number("/load/connections").unwrap_or(0);
    Some(format!(
        "{} of version 4; {}; {} so far",
        grouped(known),
        counted(connections, "connection", "connections"),
        counted(calls, "call", "calls")
    ))
}

/// What clients hold: one group, or one for each export.
fn held(of: Of) -> Option<String> {
    let held = of.0["held"].as_object()?;
    let sum = |name: &str| match held.get(name).and_then(Value::as_u64) {
        Some(number) => number,
        None => of.sum("/held", name),
    };
    let leases = sum("read_leases") + sum("write_leases") + sum("directory_leases");
    Some(format!(
        "by clients: {}, {}, {} ({} to write, {} on directories); {}",
        counted(sum("opens"), "open", "opens"),
        counted(sum("locks"), "lock", "locks"),
        counted(leases, "lease", "leases"),
        grouped(sum("write_leases")),
        grouped(sum("directory_leases")),
        counted(sum("recalls"), "recall", "recalls")
    ))
}

fn kernel(of: Of) -> Option<String> {
    let number = |name: &str| of.number(&format!("/kernel/{name}"));
    let passed = number("opens_passthrough")?;
    let opens = passed + number("opens_ordinary")?;
    Some(format!(
        "{}; {} ({} read by the kernel itself); locks {}",
        counted(number("requests")?, "request", "requests"),
        counted(opens, "open", "opens"),
        percent(passed, opens),
        of.text("/locks").unwrap_or("-")
    ))
}

fn hits(of: Of) -> Option<String> {
    let share = |kind: &str| {
        let hits = of.number(&format!("/cache/{kind}/hits"))?;
        let misses = of.number(&format!("/cache/{kind}/misses"))?;
        Some(format!("{kind} {}", percent(hits, hits + misses)))
    };
    let shares: Option<Vec<String>> =
        ["attributes", "names", "listings", "access", "data"].into_iter().map(share).collect();
    Some(format!(
        "{}; {} from the cache, {} from the origin",
        shares?.join(", "),
        human(of.number("/cache/read_hit_bytes")?),
        human(of.number("/cache/fetched_bytes")?)
    ))
}

fn origin(of: Of) -> Option<String> {
    let upstream = of.0["upstream"].as_object()?;
    let mut calls: Vec<(&String, u64)> =
        upstream.iter().map(|(name, group)| (name, group["calls"].as_u64().unwrap_or(0))).collect();
    calls.sort_by_key(|(name, calls)| (u64::MAX - calls, *name));
    let all = counted(calls.iter().map(|(_, calls)| calls).sum(), "call", "calls");
    let Some((first, _)) = calls.first() else { return Some(all) };
    let named: Vec<String> =
        calls.iter().take(PROCEDURES).map(|(name, calls)| format!("{name} {}", grouped(*calls))).collect();
    // The most frequent procedure says best how far away the origin is.
    let half = upstream[*first]["p50_us"].as_u64();
    let half = half.map_or_else(String::new, |micros| format!("; half of {first} within {}", millis(micros)));
    Some(format!("{all} ({}){half}", named.join(", ")))
}

/// A time in milliseconds, short.
fn millis(micros: u64) -> String {
    let millis = micros as f64 / 1000.0;
    if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

fn leases(of: Of) -> Option<String> {
    let (read, write) = (of.number("/cache/leases_read")?, of.number("/cache/leases_write")?);
    Some(format!(
        "of the origin: {} to read, {} to write; {}",
        grouped(read),
        grouped(write),
        counted(of.number("/cache/recalls")?, "recall", "recalls")
    ))
}

fn disk(of: Of) -> Option<String> {
    let used = human(of.number("/cache/used_bytes")?);
    let limit =
        of.number("/cache/used_max_bytes").map_or_else(String::new, |max| format!(" of {}", human(max)));
    let evictions = counted(of.number("/cache/evictions")?, "file evicted", "files evicted");
    Some(format!("{used}{limit}; {evictions}"))
}

fn delayed(of: Of) -> Option<String> {
    let (bytes, files) = (of.number("/cache/dirty_bytes")?, of.number("/cache/dirty_files")?);
    if bytes == 0 && files == 0 {
        return Some("nothing is waiting to be written".to_owned());
    }
    let age = of.number("/cache/dirty_age_ms").unwrap_or(0);
    let files = counted(files, "file", "files");
    let bytes = if bytes < 1000 { counted(bytes, "byte", "bytes") } else { human(bytes) };
    Some(format!("{bytes} in {files} to be written, the oldest for {}", ago(age / 1000)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn proxy() -> Value {
        json!({
            "role": "proxy", "origin": "nfs://filer/export", "origin_version": "4.2",
            "process": { "id": 4711, "started": 1000, "version": "0.1.0" },
            "exports": ["/export"],
            "calls": { "NFSv3 GETATTR": 1200, "NFSv4 READ": 34 },
            "clients": { "known": 2, "courtesy": 0 },
            "load": { "connections": 1, "connections_max": 100, "in_flight_bytes": 0, "in_flight_max_bytes": 10 },
            "held": { "opens": 3, "locks": 1, "read_leases": 4, "write_leases": 1, "directory_leases": 0, "recalls": 0 },
            "upstream": {
                "READ": { "calls": 2000, "p50_us": 16384 }, "OPEN": { "calls": 7, "p50_us": 9 },
                "LOOKUP": { "calls": 7 }, "ACCESS": { "calls": 6 }, "CLOSE": { "calls": 5 },
            },
            "cache": {
                "attributes": { "hits": 999, "misses": 1 }, "names": { "hits": 0, "misses": 0 },
                "listings": { "hits": 1, "misses": 1 }, "access": { "hits": 1, "misses": 0 },
                "data": { "hits": 3, "misses": 1 },
                "read_hit_bytes": 4096, "fetched_bytes": 2048, "leases_read": 5, "leases_write": 0, "recalls": 1,
                "used_bytes": 1 << 30, "used_max_bytes": 10_u64 << 30, "evictions": 0,
                "dirty_bytes": 0, "dirty_files": 0, "dirty_age_ms": null,
            },
        })
    }

    #[test]
    fn a_proxy_is_told_in_ten_lines() {
        let wanted = "\
            proxy of nfs://filer/export, vers=4.2; up 2 h, process 4711, Leasehold 0.1.0\n\
            exports   /export\n\
            clients   2 of version 4; 1 connection; 1,234 calls so far\n\
            held      by clients: 3 opens, 1 lock, 5 leases (1 to write, 0 on directories); 0 recalls\n\
            hits      attributes 99 %, names -, listings 50 %, access 100 %, data 75 %; 4.0K from the cache, 2.0K from the origin\n\
            origin    2,025 calls (READ 2,000, LOOKUP 7, OPEN 7, ACCESS 6); half of READ within 16 ms\n\
            leases    of the origin: 5 to read, 0 to write; 1 recall\n\
            disk      1.0G of 10.0G; 0 files evicted\n\
            delayed   nothing is waiting to be written\n\
            trouble   none";
        assert_eq!(text(&proxy(), 8200), wanted);
    }

    #[test]
    fn delayed_writes_are_told_with_their_age() {
        let told = |bytes: u64, files: u64| {
            let status =
                json!({ "cache": { "dirty_bytes": bytes, "dirty_files": files, "dirty_age_ms": 9900 } });
            text(&status, 0).lines().nth(1).map(str::to_owned)
        };
        assert_eq!(told(3, 1).unwrap(), "delayed   3 bytes in 1 file to be written, the oldest for 9 s");
        assert_eq!(told(5 << 20, 2).unwrap(), "delayed   5.0M in 2 files to be written, the oldest for 9 s");
        // Attributes alone can be delayed, too.
        assert_eq!(told(0, 1).unwrap(), "delayed   0 bytes in 1 file to be written, the oldest for 9 s");
    }

    #[test]
    fn what_is_held_is_summed_over_exports() {
        let group = json!({ "opens": 1, "locks": 0, "read_leases": 2, "write_leases": 0, "directory_leases": 1, "recalls": 3 });
        let status = json!({ "role": "serve", "held": { "/a": group, "/b": group } });
        let wanted =
            "held      by clients: 2 opens, 0 locks, 6 leases (0 to write, 2 on directories); 6 recalls";
        assert!(text(&status, 0).lines().any(|line| line == wanted), "{}", text(&status, 0));
    }

    #[test]
    fn lines_of_another_version_are_left_out() {
        assert_eq!(text(&json!({}), 0), "Leasehold\ntrouble   none");
        let odd = json!({ "role": 3, "exports": "/a", "calls": [], "held": null, "cache": { "data": 1 }, "upstream": { "READ": 2 } });
        assert!(text(&odd, 0).starts_with("Leasehold\n"));
    }
}
