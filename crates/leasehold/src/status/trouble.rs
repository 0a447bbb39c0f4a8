//! The troubles of a running Leasehold, in words, with the way out. docs/guide/monitoring.md has the same
//! conditions as alarms.

use serde_json::Value;

use crate::units::{ago, counted, percent};

/// A limit counts as nearly reached from this share on, in percent.
const NEARLY: u64 = 90;
/// A client that has waited so long for the origin notices it.
const UNANSWERED_MS: u64 = 5000;

/// All troubles that a status tells of, the worst first.
pub fn all(status: &Value) -> Vec<String> {
    let mut troubles = Vec::new();
    troubles.extend(cluster(status));
    troubles.extend(losses(status));
    troubles.extend(silence(status));
    troubles.extend(disk(status));
    troubles.extend(revoked(status));
    troubles.extend(limits(status));
    troubles
}

fn number(status: &Value, at: &str) -> u64 {
    status.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}

fn is(status: &Value, at: &str) -> bool {
    status.pointer(at).and_then(Value::as_bool).unwrap_or(false)
}

/// A member of a cluster tells of etcd, and of virtual servers without a member.
fn cluster(status: &Value) -> Vec<String> {
    let cluster = &status["cluster"];
    let mut troubles: Vec<String> = cluster["trouble"].as_str().map(str::to_owned).into_iter().collect();
    for server in cluster["servers"].as_array().into_iter().flatten() {
        if cluster["in"] == true && server["member"].is_null() {
            let address = server["address"].as_str().unwrap_or_default();
            troubles.push(format!("no member has the virtual server {address}; start another member"));
        }
    }
    troubles
}

fn losses(status: &Value) -> Option<String> {
    let files = number(status, "/lost/files");
    let files = (files > 0).then(|| counted(files, "file", "files"))?;
    Some(format!(
        "{files} lost data after a close had succeeded; see `lost` with --all, and write them again"
    ))
}

/// A proxy of several origins tells of each by itself.
fn silence(status: &Value) -> Vec<String> {
    let Some(origins) = status["origins"].as_object() else {
        return silence_of(status).into_iter().collect();
    };
    let of = |(path, origin): (&String, &Value)| {
        let said = silence_of(origin).or_else(|| awaited(origin))?;
        Some(format!("{path} ({}): {said}", origin["origin"].as_str().unwrap_or("its origin")))
    };
    origins.iter().filter_map(of).collect()
}

fn awaited(origin: &Value) -> Option<String> {
    let since = origin["awaited_ms"].as_u64().filter(|since| *since >= UNANSWERED_MS)?;
    let why = origin["why"].as_str().map_or_else(String::new, |why| format!(": {why}"));
    Some(format!("not served yet, for {}{why}", ago(since / 1000)))
}

fn silence_of(status: &Value) -> Option<String> {
    let unanswered = number(status, "/link/unanswered_ms");
    let calls = counted(number(status, "/link/calls_in_flight"), "call waits", "calls wait");
    if is(status, "/cache/away") {
        return Some(format!(
            "the origin has not answered for {}; known data is answered as it was last known",
            ago(unanswered / 1000)
        ));
    }
    let long = unanswered >= UNANSWERED_MS;
    long.then(|| {
        format!(
            "the origin has not answered for {}; {calls}; check the server and the network",
            ago(unanswered / 1000)
        )
    })
}

fn disk(status: &Value) -> Vec<String> {
    let mut troubles = Vec::new();
    if is(status, "/cache/index_broken") {
        troubles
            .push("the index of the cache fails, and nothing is cached; free space on its disk".to_owned());
    }
    if is(status, "/cache/paused") && !is(status, "/cache/cleaning") {
        troubles.push(
            "the cache is full, and there is nothing to evict; raise --cache-size, lower --min-free, or remove pins"
                .to_owned(),
        );
    }
    let conflicts = number(status, "/cache/conflicts");
    if conflicts > 0 {
        let files = counted(conflicts, "file", "files");
        troubles.push(format!(
            "delayed writes of {files} could not be sent after a kill; they are kept: see leasehold writeback ls"
        ));
    }
    let damaged = number(status, "/cache/damaged");
    if damaged > 0 {
        let files = counted(damaged, "file was", "files were");
        troubles.push(format!("{files} found damaged in the cache, and fetched again; check its disk"));
    }
    troubles
}

fn revoked(status: &Value) -> Vec<String> {
    let mut troubles = Vec::new();
    let held = status["held"].as_object();
    let by_export: u64 = held.into_iter().flatten().filter_map(|(_, group)| group["revoked"].as_u64()).sum();
    let of_clients = number(status, "/held/revoked") + by_export;
    if of_clients > 0 {
        let leases = counted(of_clients, "lease was", "leases were");
        troubles
            .push(format!("{leases} revoked because a client did not return it in time; the log names it"));
    }
    let ours = number(status, "/cache/revoked");
    if ours > 0 {
        let leases = counted(ours, "lease", "leases");
        troubles.push(format!("the origin revoked {leases} of ours; check the network to it"));
    }
    troubles
}

fn limits(status: &Value) -> Vec<String> {
    let connections =
        "connections of clients: {} of the limit is in use; raise the limit of open files (ulimit -n)";
    let memory = "memory for requests and replies: {} of the limit is in use; raise --memory-in-flight";
    let near = |used: &str, max: &str, said: &str| {
        let (used, max) = (number(status, used), number(status, max));
        let is_near = max > 0 && u128::from(used) * 100 >= u128::from(max) * u128::from(NEARLY);
        is_near.then(|| said.replace("{}", &percent(used, max)))
    };
    let connections = near("/load/connections", "/load/connections_max", connections);
    let memory = near("/load/in_flight_bytes", "/load/in_flight_max_bytes", memory);
    connections.into_iter().chain(memory).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_trouble_is_told_and_health_is_not() {
        let table = [
            (json!({ "lost": { "files": 0 } }), None),
            (json!({ "lost": { "files": 1 } }), Some("1 file lost data")),
            (json!({ "link": { "unanswered_ms": 4000, "calls_in_flight": 1 } }), None),
            (json!({ "link": { "unanswered_ms": null, "calls_in_flight": 9 } }), None),
            (
                json!({ "link": { "unanswered_ms": 9000, "calls_in_flight": 2 } }),
                Some("for 9 s; 2 calls wait"),
            ),
            (
                json!({ "cache": { "away": true }, "link": { "unanswered_ms": 400_000 } }),
                Some("for 6 min; known data"),
            ),
            (
                json!({ "origins": { "/a": { "origin": "nfs://a/", "awaited_ms": 400_000, "why": "no such export" } } }),
                Some("/a (nfs://a/): not served yet, for 6 min: no such export"),
            ),
            (
                json!({ "link": { "unanswered_ms": 9000 }, "origins": { "/a": {}, "/b": { "link": { "unanswered_ms": 9000 } } } }),
                Some("/b (its origin): the origin has not answered for 9 s"),
            ),
            (json!({ "cache": { "index_broken": true } }), Some("nothing is cached")),
            (json!({ "cache": { "paused": true, "cleaning": true } }), None),
            (json!({ "cache": { "paused": true, "cleaning": false } }), Some("nothing to evict")),
            (json!({ "cache": { "conflicts": 2 } }), Some("delayed writes of 2 files could not be sent")),
            (json!({ "cache": { "damaged": 2 } }), Some("2 files were found damaged")),
            (json!({ "cache": { "revoked": 1 } }), Some("the origin revoked 1 lease of ours")),
            (json!({ "held": { "revoked": 1 } }), Some("1 lease was revoked")),
            (
                json!({ "held": { "/a": { "revoked": 1 }, "/b": { "revoked": 2 } } }),
                Some("3 leases were revoked"),
            ),
            (json!({ "load": { "connections": 89, "connections_max": 100 } }), None),
            (json!({ "load": { "connections": 90, "connections_max": 100 } }), Some("90 % of the limit")),
            (
                json!({ "load": { "in_flight_bytes": u64::MAX, "in_flight_max_bytes": u64::MAX } }),
                Some("100 %"),
            ),
        ];
        for (status, wanted) in table {
            let told = all(&status);
            let is_as_wanted = match wanted {
                None => told.is_empty(),
                Some(words) => told.len() == 1 && told[0].contains(words),
            };
            assert!(is_as_wanted, "{status}: {told:?}, wanted {wanted:?}");
        }
    }
}
