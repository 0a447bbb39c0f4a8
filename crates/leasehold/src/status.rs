//! `leasehold status`: what a running Leasehold has done.

use serde_json::{Map, Value, json};
use server::Front;

use crate::cli::Status;
use crate::{Failure, admin};

/// Asks and prints.
pub async fn run(arguments: &Status) -> Result<(), Failure> {
    let mounted = crate::mount::cache_of(&arguments.directory);
    let status = admin::ask(mounted.as_ref().unwrap_or(&arguments.directory)).await?;
    if arguments.json {
        println!("{status}");
    } else {
        print(&status, 0);
    }
    Ok(())
}

/// Nested names as an indented list.
fn print(value: &Value, depth: usize) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        match value {
            Value::Object(_) => {
                println!("{:1$}{name}:", "", 2 * depth);
                print(value, depth + 1);
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(plain).collect();
                println!("{:1$}{name}: {2}", "", 2 * depth, items.join(", "));
            }
            _ => println!("{:1$}{name}: {2}", "", 2 * depth, plain(value)),
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// The paths that are exported.
pub fn exports(front: &Front) -> Vec<String> {
    front.exports().iter().map(|export| export.path.clone()).collect()
}

/// Calls of clients by procedure.
pub fn calls(front: &Front) -> Value {
    let mut calls = Map::new();
    for (version, name, count) in front.counts().iter() {
        calls.insert(format!("NFSv{version} {name}"), json!(count));
    }
    Value::Object(calls)
}

/// What clients hold, and what became of recalls.
pub fn held(held: &arbiter::Held) -> Value {
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
pub fn upstream(origin: &client::Origin) -> Value {
    let mut upstream = Map::new();
    for (name, counts) in origin.calls() {
        let micros = |share| counts.quantile(share).as_micros() as u64;
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

/// What the cache has done.
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
        "stored_bytes": stats.stored_bytes,
        "used_bytes": stats.used_bytes,
        "leases_read": stats.leases_read,
        "leases_write": stats.leases_write,
        "opens_shared": stats.opens_shared,
        "recalls": stats.recalls,
        "revoked": stats.revoked,
        "dirty_bytes": stats.dirty_bytes,
        "dirty_age_ms": stats.dirty_age.map(|age| age.as_millis() as u64),
        "flushed_bytes": stats.flushed_bytes,
        "merged_writes": stats.merged_writes,
        "writers_held": stats.writers_held,
        "evictions": stats.evictions,
        "cleaning": stats.cleaning,
        "paused": stats.paused,
        "filled_bytes": stats.filled_bytes,
        "damaged": stats.damaged,
        "away": stats.is_away,
        "offline": stats.offline,
        "atimes": stats.atimes,
        "revalidations": stats.revalidations,
        "distrusted": stats.distrusted,
        "objects_in_memory": stats.objects_in_memory,
    })
}
