//! `leasehold status`: shows the state and counters of a running Leasehold.

pub mod summary;
pub mod total;
pub mod trouble;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use server::Front;

use crate::cli::Status;
use crate::{Failure, admin};

/// Asks a running Leasehold, and prints the answer.
pub async fn run(arguments: &Status) -> Result<(), Failure> {
    let mounted = crate::mount::cache_of(&arguments.directory);
    let status = admin::ask(mounted.as_ref().unwrap_or(&arguments.directory)).await?;
    if arguments.json {
        crate::output::line(format_args!("{status}"));
    } else if arguments.all {
        crate::output::line(format_args!("{}", text(&status)));
    } else if status.get("cluster").is_some() {
        crate::output::line(crate::membership::command::text(&status["cluster"]));
    } else {
        crate::output::line(summary::text(&status, seconds(SystemTime::now())));
    }
    Ok(())
}

/// Reads the state.
pub type Source = Arc<dyn Fn() -> Value + Send + Sync>;

/// The state that `read` gives, with what is said of each process.
pub fn source(read: impl Fn() -> Value + Send + Sync + 'static) -> Source {
    let started = SystemTime::now();
    Arc::new(move || {
        let mut status = read();
        status["process"] = json!({
            "id": std::process::id(),
            "started": seconds(started),
            "version": env!("CARGO_PKG_VERSION"),
        });
        status
    })
}

/// Seconds since 1970.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// All of the status as text: plain values first, then the groups with one line for each entry.
fn text(status: &Value) -> String {
    let mut lines = Vec::new();
    if let Value::Object(fields) = status {
        list(fields, 0, &mut lines);
    }
    lines.join("\n")
}

fn list(fields: &Map<String, Value>, depth: usize, lines: &mut Vec<String>) {
    let (groups, words): (Vec<_>, Vec<_>) = fields.iter().partition(|(_, value)| value.is_object());
    let indent = "  ".repeat(depth);
    lines.extend(words.iter().map(|(name, value)| format!("{indent}{name}: {}", plain(value))));
    for (name, group) in groups {
        let Value::Object(group) = group else { continue };
        if depth > 0 && !group.values().any(Value::is_object) {
            let words: Vec<String> =
                group.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
            lines.push(format!("{indent}{name}: {}", words.join(", ")));
        } else {
            lines.push(format!("{indent}{name}:"));
            list(group, depth + 1, lines);
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The exported paths.
pub fn exports(front: &Front) -> Vec<String> {
    front.exports().iter().map(|export| export.path.clone()).collect()
}

/// Calls of clients, by procedure.
pub fn calls(front: &Front) -> Value {
    let mut calls = Map::new();
    for (version, name, count) in front.counts().iter() {
        calls.insert(format!("NFSv{version} {name}"), json!(count));
    }
    Value::Object(calls)
}

/// NFSv4 clients.
pub fn clients(front: &Front) -> Value {
    let clients = front.clients();
    json!({ "known": clients.known, "courtesy": clients.courtesy })
}

/// Hosts that lock through NLM.
pub fn lock_manager(front: &Front) -> Value {
    let held = front.lock_manager();
    json!({ "hosts": held.hosts, "files": held.files, "waiting": held.waiting })
}

/// Users whose groups are looked up; null without `--manage-gids`.
pub fn groups(front: &Front) -> Value {
    let known = front.groups_known();
    known.map_or(Value::Null, |(users, look_ups)| json!({ "users": users, "look_ups": look_ups }))
}

/// How much of the limits for all clients is in use.
pub fn load(load: &rpc::Load) -> Value {
    let ((connections, connections_max), (bytes, bytes_max)) = (load.connections(), load.in_flight());
    json!({
        "connections": connections,
        "connections_max": connections_max,
        "in_flight_bytes": bytes,
        "in_flight_max_bytes": bytes_max,
        "calls_waited": load.waited(),
        "kerberos_contexts": load.contexts(),
    })
}

/// What clients hold, and the results of recalls.
pub fn held(held: &arbiter::Holdings) -> Value {
    json!({
        "opens": held.opens,
        "locks": held.locks,
        "lock_waiters": held.lock_waiters,
        "read_leases": held.read_leases,
        "write_leases": held.write_leases,
        "directory_leases": held.directory_leases,
        "granted": held.granted,
        "recalls": held.recalls,
        "returned": held.returned,
        "revoked": held.revoked,
        "recall_time_ms": held.recall_time.as_millis() as u64,
        "recall_time_max_ms": held.recall_time_max.as_millis() as u64,
    })
}

/// Calls to the origin, by name.
pub fn upstream(origin: &dyn client::Origin) -> Value {
    let mut upstream = Map::new();
    for (name, counts) in origin.calls() {
        let micros = |share| counts.latency.quantile(share).as_micros() as u64;
        let of = json!({
            "calls": counts.calls,
            "retransmitted": counts.retransmitted,
            "bytes": counts.bytes_sent + counts.bytes_received,
            "p50_us": micros(0.5),
            "p99_us": micros(0.99),
        });
        upstream.insert(name.to_owned(), of);
    }
    Value::Object(upstream)
}

/// The calls that wait for the origin, and for how long it has not answered.
pub fn link(origin: &dyn client::Origin) -> Value {
    let silent = origin.unanswered_since().and_then(|since| *since.borrow());
    json!({
        "calls_in_flight": origin.held().calls_in_flight,
        "unanswered_ms": silent.map(|since| since.elapsed().as_millis() as u64),
    })
}

/// Files that lost data after their close had succeeded, by path, and the number of such losses.
pub fn lost(cache: &cache::Cache) -> Value {
    let (losses, count) = cache.lost();
    let of = |lost: cache::Lost| {
        let what = json!({ "error": lost.status.to_string(), "bytes": lost.bytes, "at": lost.at.seconds });
        (lost.path, what)
    };
    let paths: Map<String, Value> = losses.into_iter().map(of).collect();
    json!({ "files": count, "paths": paths })
}

/// The counters of the cache.
pub fn cache(stats: &cache::Stats) -> Value {
    let of = |counts: cache::HitsMisses| json!({ "hits": counts.hits, "misses": counts.misses });
    json!({
        "attributes": of(stats.attributes),
        "names": of(stats.names),
        "listings": of(stats.listings),
        "access": of(stats.access),
        "data": of(stats.data),
        "read_hit_bytes": stats.read_hit_bytes,
        "fetched_bytes": stats.fetched_bytes,
        "piggybacked_reads": stats.piggybacked_reads,
        "guesses": stats.guesses,
        "guesses_used": stats.guesses_used,
        "guessed_bytes": stats.guessed_bytes,
        "stored_bytes": stats.stored_bytes,
        "used_bytes": stats.used_bytes,
        "used_max_bytes": stats.used_max_bytes,
        "leases_read": stats.leases_read,
        "leases_write": stats.leases_write,
        "opens_shared": stats.opens_shared,
        "recalls": stats.recalls,
        "revoked": stats.revoked,
        "dirty_bytes": stats.dirty_bytes,
        "dirty_files": stats.dirty_files,
        "dirty_age_ms": stats.dirty_age.map(|age| age.as_millis() as u64),
        "journal_bytes": stats.journal_bytes,
        "conflicts": stats.conflicts,
        "flushed_bytes": stats.flushed_bytes,
        "merged_writes": stats.merged_writes,
        "local_fsyncs": stats.local_fsyncs,
        "writers_held": stats.writers_held,
        "evictions": stats.evictions,
        "cleaning": stats.cleaning,
        "paused": stats.paused,
        "index_broken": stats.index_broken,
        "filled_bytes": stats.filled_bytes,
        "damaged": stats.damaged,
        "away": stats.is_away,
        "offline": stats.offline,
        "atimes": stats.atimes,
        "revalidations": stats.revalidations,
        "distrusted": stats.distrusted,
        "objects_in_memory": stats.objects_in_memory,
        "objects_at_rest": stats.objects_at_rest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_is_comes_first_and_a_procedure_is_a_line() {
        let status = json!({
            "cache": { "data": { "hits": 3, "misses": 1 }, "away": false, "dirty_age_ms": null },
            "exports": ["/a", "/b"],
            "role": "proxy",
            "upstream": { "READ": { "calls": 2, "bytes": 70 } },
        });
        let wanted = "\
            exports: /a, /b\n\
            role: proxy\n\
            cache:\n  away: false\n  dirty_age_ms: -\n  data: hits 3, misses 1\n\
            upstream:\n  READ: bytes 70, calls 2";
        assert_eq!(text(&status), wanted);
    }
}
