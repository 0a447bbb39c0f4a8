//! All metrics, in the order in which they are shown. docs/reference/metrics.md has the same table.
//!
//! Names have one prefix, base units, and `_total` if they only grow. What a process does not have (a cache,
//! clients, a mount) is left out. Labels have bounded numbers of values: procedures, kinds, exports.

use std::net::IpAddr;
use std::time::Duration;

use rpc::latency::Distribution;

use super::family::{Base, Family, Read, Take};
use super::process::Process;
use super::{Awaited, Caching, Measured, Serving};
use crate::membership::status::Numbers;
use crate::usage;

/// Clients with metrics of their own.
const CLIENTS_MAX: usize = 20;

/// What a scrape reads, at one moment.
#[derive(Debug)]
pub struct Snapshot {
    process: Process,
    serving: Option<Served>,
    caching: Vec<Cached>,
    awaited: Vec<Awaited>,
    cluster: Option<Numbers>,
    kernel: Option<mount::Stats>,
    info: Vec<[String; 5]>,
}

#[derive(Debug)]
struct Served {
    operations: Vec<(String, &'static str, u64)>,
    times: Vec<(String, &'static str, Distribution)>,
    clients: server::KnownClients,
    footprint: server::Footprint,
    connections: (usize, usize),
    in_flight: (usize, usize),
    kerberos_contexts: usize,
    in_grace: bool,
    held: Vec<(String, arbiter::Holdings)>,
    used: Vec<(String, vfs::Used)>,
    calls_waited: u64,
    refused: Vec<(&'static str, u64)>,
    waits: Vec<(String, vfs::Used)>,
}

#[derive(Debug)]
struct Cached {
    export: String,
    calls: Vec<(&'static str, client::ProcedureCounts)>,
    stats: cache::Stats,
    lost: u64,
    calls_in_flight: usize,
    silence: Duration,
    nonsense: u64,
}

impl Snapshot {
    /// Reads everything.
    pub fn of(measured: &Measured) -> Snapshot {
        let mounted = measured.mounted.upgrade();
        let caching = measured.caching.now();
        let info = |export: String, origin: String, version: String| {
            [env!("CARGO_PKG_VERSION").to_owned(), measured.role.to_owned(), export, origin, version]
        };
        let of_origin = |caching: &Caching| {
            let origin = &caching.origin;
            info(caching.export.clone(), origin.url().to_string(), origin.version().to_owned())
        };
        let mut infos: Vec<_> = caching.iter().map(of_origin).collect();
        if infos.is_empty() {
            infos.push(info(String::new(), String::new(), String::new()));
        }
        Snapshot {
            process: Process::now(),
            serving: measured.serving.as_ref().map(Served::of),
            caching: caching.iter().map(Cached::of).collect(),
            awaited: measured.awaited.now(),
            cluster: measured.cluster.as_ref().map(|numbers| numbers()),
            kernel: mounted.map(|mounted| mounted.stats()),
            info: infos,
        }
    }
}

impl Served {
    fn of(serving: &Serving) -> Served {
        let version = |number: u32| if number == 1 { "nqnfs".to_owned() } else { number.to_string() };
        let counts = serving.front.counts();
        Served {
            operations: counts.iter().map(|(number, name, count)| (version(number), name, count)).collect(),
            times: counts.times().map(|(number, name, times)| (version(number), name, times)).collect(),
            clients: serving.front.clients(),
            footprint: serving.front.footprint(),
            connections: serving.load.connections(),
            in_flight: serving.load.in_flight(),
            kerberos_contexts: serving.load.contexts(),
            in_grace: serving.front.in_grace(),
            used: most(serving.front.usage().clients()),
            calls_waited: serving.load.waited(),
            refused: rpc::refused().collect(),
            waits: most(serving.front.usage().waits()),
            held: serving.arbiters.now().into_iter().map(|(path, arbiter)| (path, arbiter.held())).collect(),
        }
    }
}

fn most(clients: Vec<(IpAddr, vfs::Used)>) -> Vec<(String, vfs::Used)> {
    let most = usage::most(clients, CLIENTS_MAX);
    most.into_iter().map(|(client, used)| (client.to_string(), used)).collect()
}

impl Cached {
    fn of(caching: &Caching) -> Cached {
        let silent = caching.origin.unanswered_since().and_then(|since| *since.borrow());
        Cached {
            export: caching.export.clone(),
            calls: caching.origin.calls(),
            stats: caching.cache.stats(),
            lost: caching.cache.lost().1,
            calls_in_flight: caching.origin.held().calls_in_flight,
            silence: silent.map(|since| since.elapsed()).unwrap_or_default(),
            nonsense: caching.origin.nonsense_heard(),
        }
    }
}

/// A number that may be a flag.
trait Number {
    fn number(self) -> f64;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(impl Number for $type { fn number(self) -> f64 { self as f64 } })* };
}
numbers!(u64, usize);

impl Number for bool {
    fn number(self) -> f64 {
        f64::from(u8::from(self))
    }
}

impl Number for Duration {
    fn number(self) -> f64 {
        self.as_secs_f64()
    }
}

/// One value of the clients' side.
fn served<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&Served) -> N) {
    if let Some(served) = &of.serving {
        take(&[], read(served).number());
    }
}

/// One value for each of the clients that use the server most.
fn used(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&vfs::Used) -> u64) {
    for (client, used) in of.serving.iter().flat_map(|served| &served.used) {
        take(&[client], read(used).number());
    }
}

/// One value for each export.
fn held<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&arbiter::Holdings) -> N) {
    for (export, held) in of.serving.iter().flat_map(|served| &served.held) {
        take(&[export], read(held).number());
    }
}

/// One value of each cache.
fn cached<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&cache::Stats) -> N) {
    linked(of, take, |cached| read(&cached.stats));
}

/// One value of the link to each origin.
fn linked<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&Cached) -> N) {
    for cached in &of.caching {
        take(&[&cached.export], read(cached).number());
    }
}

/// One value for each operation at the origin.
fn asked(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&client::ProcedureCounts) -> u64) {
    for cached in &of.caching {
        for (operation, counts) in &cached.calls {
            take(&[&cached.export, operation], read(counts).number());
        }
    }
}

/// Hits or misses by kind of question.
fn found(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(cache::HitsMisses) -> u64) {
    for Cached { export, stats, .. } in &of.caching {
        let kinds = [
            ("attributes", stats.attributes),
            ("names", stats.names),
            ("listings", stats.listings),
            ("access", stats.access),
            ("data", stats.data),
        ];
        for (kind, counts) in kinds {
            take(&[export, kind], read(counts).number());
        }
    }
}

/// One value of a member of a cluster.
fn clustered<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&Numbers) -> N) {
    if let Some(numbers) = &of.cluster {
        take(&[], read(numbers).number());
    }
}

/// One value for each member of a cluster.
fn members<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&(String, u64, bool)) -> N) {
    for member in of.cluster.iter().flat_map(|cluster| &cluster.members) {
        take(&[&member.0], read(member).number());
    }
}

/// One value for each virtual server of a cluster.
fn servers<N: Number>(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&(String, bool, u64)) -> N) {
    for server in of.cluster.iter().flat_map(|cluster| &cluster.servers) {
        take(&[&server.0], read(server).number());
    }
}

/// One value of the kernel's requests.
fn kernel(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&mount::Stats) -> u64) {
    if let Some(stats) = &of.kernel {
        take(&[], read(stats).number());
    }
}

/// One value of the process.
fn process(of: &Snapshot, take: Take<'_, f64>, read: impl Fn(&Process) -> Option<f64>) {
    if let Some(value) = read(&of.process) {
        take(&[], value);
    }
}

const NONE: &[&str] = &[];
const EXPORT: &[&str] = &["export"];
const CLIENT: &[&str] = &["client"];
const OPERATION: &[&str] = &["export", "operation"];
const KIND: &[&str] = &["export", "kind"];

/// Shortens the table below: name, unit, labels, kind of value, help.
macro_rules! families {
    ($($kind:ident $name:literal $unit:expr, $labels:expr, $read:expr, $help:literal;)*) => {
        &[$(Family { name: $name, unit: $unit, help: $help, labels: $labels, read: Read::$kind($read) }),*]
    };
}

const B: Option<Base> = Some(Base::Bytes);
const S: Option<Base> = Some(Base::Seconds);

/// All of them.
pub const FAMILIES: &[Family] = families! {
    Gauge "info" None, &["version", "role", "export", "origin", "origin_version"],
        |of, take| for info in &of.info { take(&info.each_ref().map(String::as_str), 1.0); },
        "1; its labels say which Leasehold this is, and its origins";

    Counter "client_operations" None, &["version", "operation"],
        |of, take| for (version, name, count) in of.serving.iter().flat_map(|it| &it.operations) { take(&[version, name], count.number()); },
        "calls of clients by procedure; of NFSv4, operations";
    Histogram "client_call_duration" S, &["version", "procedure"],
        |of, take| for (version, name, times) in of.serving.iter().flat_map(|it| &it.times) { take(&[version, name], *times); },
        "time from a client's call to its answer, without the time that the bytes need";
    Gauge "connections" None, NONE, |of, take| served(of, take, |it| it.connections.0), "connections of clients";
    Gauge "connections_limit" None, NONE, |of, take| served(of, take, |it| it.connections.1), "the most connections of clients";
    Gauge "in_flight" B, NONE, |of, take| served(of, take, |it| it.in_flight.0), "memory of requests and replies in progress";
    Gauge "in_flight_limit" B, NONE, |of, take| served(of, take, |it| it.in_flight.1), "the most memory of requests and replies in progress";
    Gauge "kerberos_contexts" None, NONE, |of, take| served(of, take, |it| it.kerberos_contexts), "contexts of users who have proven who they are; those of a user are counted for each client";
    Gauge "clients" None, NONE, |of, take| served(of, take, |it| it.clients.known), "clients of version 4 with a confirmed record";
    Gauge "clients_courtesy" None, NONE, |of, take| served(of, take, |it| it.clients.courtesy), "those of them whose lease has expired";
    Gauge "client_state" B, &["table"], |of, take| for (table, bytes) in of.serving.iter().flat_map(|it| it.footprint.by_table()) { take(&[table], bytes.number()); },
        "memory of the records of clients, of their sessions, of replies that are kept for retries, of opens, locks and leases, and of owners of version 4.0";
    Counter "client_uses" None, CLIENT, |of, take| used(of, take, |it| it.calls), "calls of the clients that use the server most, by address";
    Counter "client_read" B, CLIENT, |of, take| used(of, take, |it| it.read_bytes), "bytes that READs of these clients brought";
    Counter "client_written" B, CLIENT, |of, take| used(of, take, |it| it.written_bytes), "bytes that WRITEs of these clients wrote";
    Counter "calls_waited" None, NONE, |of, take| served(of, take, |it| it.calls_waited), "calls that waited because their client had its part in progress, or was at a limit of its rates";
    Counter "client_waits" None, CLIENT, |of, take| for (client, used) in of.serving.iter().flat_map(|it| &it.waits) { take(&[client], used.calls.number()); },
        "those of them of the clients whose calls waited most, by address";
    Counter "calls_refused" None, &["reason"], |of, take| for (reason, count) in of.serving.iter().flat_map(|it| &it.refused) { take(&[reason], count.number()); },
        "calls that were not carried out, by reason: the `accept_stat` or `auth_stat` of the answer";
    Gauge "in_grace" None, NONE, |of, take| served(of, take, |it| it.in_grace), "1 in the grace period after a start";

    Gauge "opens" None, EXPORT, |of, take| held(of, take, |it| it.opens), "opens of clients";
    Gauge "locks" None, EXPORT, |of, take| held(of, take, |it| it.locks), "locked ranges of clients";
    Gauge "lock_waiters" None, EXPORT, |of, take| held(of, take, |it| it.lock_waiters), "denied locks with a waiter";
    Gauge "leases" None, &["export", "kind"], |of, take| for (export, held) in of.serving.iter().flat_map(|it| &it.held) {
            for (kind, count) in [("read", held.read_leases), ("write", held.write_leases), ("directory", held.directory_leases)] { take(&[export, kind], count.number()); }
        }, "leases (delegations) that clients hold";
    Counter "leases_granted" None, EXPORT, |of, take| held(of, take, |it| it.granted), "leases granted to clients";
    Counter "leases_recalled" None, EXPORT, |of, take| held(of, take, |it| it.recalls), "leases recalled from clients";
    Counter "leases_returned" None, EXPORT, |of, take| held(of, take, |it| it.returned), "recalled leases that were returned in time";
    Counter "leases_revoked" None, EXPORT, |of, take| held(of, take, |it| it.revoked), "leases revoked from clients";
    Counter "lease_recall_duration" S, EXPORT, |of, take| held(of, take, |it| it.recall_time), "time from recalls to returns or revocations, in sum";

    Counter "origin_calls" None, OPERATION, |of, take| asked(of, take, |it| it.calls), "calls to the origin; of NFSv4, compounds by their main operation";
    Counter "origin_retransmissions" None, OPERATION, |of, take| asked(of, take, |it| it.retransmitted), "calls that were sent more than once before their answer came";
    Counter "origin_failures" None, OPERATION, |of, take| asked(of, take, |it| it.failed), "calls without results";
    Counter "origin_sent" B, OPERATION, |of, take| asked(of, take, |it| it.bytes_sent), "bytes of arguments, without RPC headers";
    Counter "origin_received" B, OPERATION, |of, take| asked(of, take, |it| it.bytes_received), "bytes of results, without RPC headers";
    Histogram "origin_call_duration" S, OPERATION,
        |of, take| for it in &of.caching { for (operation, counts) in &it.calls { take(&[&it.export, operation], counts.latency); } },
        "time from a call to the origin to its answer";
    Gauge "origin_calls_in_flight" None, EXPORT, |of, take| linked(of, take, |it| it.calls_in_flight), "calls that wait for the origin";
    Gauge "origin_silence" S, EXPORT, |of, take| linked(of, take, |it| it.silence), "for how long nothing has come from the origin although calls wait; 0 if it answers";
    Gauge "origin_awaited" None, EXPORT, |of, take| {
            of.caching.iter().for_each(|it| take(&[&it.export], 0.0));
            of.awaited.iter().for_each(|it| take(&[&it.export], 1.0));
        }, "1 for one of several origins that has not been reached since the start of the proxy";
    Gauge "origin_away" None, EXPORT, |of, take| cached(of, take, |it| it.is_away), "1 while clients are answered from the last known state";
    Counter "origin_nonsense" None, EXPORT, |of, take| linked(of, take, |it| it.nonsense), "answers of the origin that made no sense";
    Gauge "origin_leases" None, KIND, |of, take| for it in &of.caching {
            take(&[&it.export, "read"], it.stats.leases_read.number());
            take(&[&it.export, "write"], it.stats.leases_write.number());
        }, "leases of the origin that the cache holds";
    Counter "origin_leases_recalled" None, EXPORT, |of, take| cached(of, take, |it| it.recalls), "leases that the origin recalled";
    Counter "origin_leases_revoked" None, EXPORT, |of, take| cached(of, take, |it| it.revoked), "leases that the origin revoked";

    Counter "cache_hits" None, KIND, |of, take| found(of, take, |it| it.hits), "questions answered without the origin. Reads that the kernel does itself are not among them";
    Counter "cache_misses" None, KIND, |of, take| found(of, take, |it| it.misses), "questions for which the origin was asked for more than a revalidation";
    Counter "cache_hit" B, EXPORT, |of, take| cached(of, take, |it| it.read_hit_bytes), "bytes of reads answered from the cache";
    Counter "cache_fetched" B, EXPORT, |of, take| cached(of, take, |it| it.fetched_bytes), "bytes that reads at the origin brought";
    Counter "cache_filled" B, EXPORT, |of, take| cached(of, take, |it| it.filled_bytes), "bytes fetched to complete files in the background";
    Counter "cache_stored" B, EXPORT, |of, take| cached(of, take, |it| it.stored_bytes), "bytes stored in the cache";
    Counter "cache_guesses" None, EXPORT, |of, take| cached(of, take, |it| it.guesses), "listings and files that were asked for ahead of readers";
    Counter "cache_guesses_used" None, EXPORT, |of, take| cached(of, take, |it| it.guesses_used), "those of them that a reader has used";
    Counter "cache_guessed" B, EXPORT, |of, take| cached(of, take, |it| it.guessed_bytes), "bytes of files that came ahead of readers";
    Counter "cache_revalidations" None, EXPORT, |of, take| cached(of, take, |it| it.revalidations), "questions whether something had changed";
    Counter "cache_distrusted" None, EXPORT, |of, take| cached(of, take, |it| it.distrusted), "objects that were dropped because another client changed them, or may have";
    Counter "cache_opens_shared" None, EXPORT, |of, take| cached(of, take, |it| it.opens_shared), "opens answered without an OPEN at the origin";
    Counter "cache_offline_answers" None, EXPORT, |of, take| cached(of, take, |it| it.offline), "answers from the last known state while the origin was away";
    Gauge "cache_used" B, EXPORT, |of, take| cached(of, take, |it| it.used_bytes), "disk used by file data";
    Gauge "cache_limit" B, EXPORT, |of, take| cached(of, take, |it| it.used_max_bytes), "the most disk for file data";
    Gauge "cache_objects_in_memory" None, EXPORT, |of, take| cached(of, take, |it| it.objects_in_memory), "objects whose state is in memory";
    Gauge "cache_objects_at_rest" None, EXPORT, |of, take| cached(of, take, |it| it.objects_at_rest), "objects of which memory has the known attributes alone";
    Gauge "cache_memory" B, &["export", "table"], |of, take| for it in &of.caching {
            take(&[&it.export, "at_rest"], it.stats.at_rest_bytes.number());
            take(&[&it.export, "listings"], it.stats.listings_bytes.number());
        }, "memory of the known attributes at rest, and of complete listings";
    Counter "cache_evictions" None, EXPORT, |of, take| cached(of, take, |it| it.evictions), "objects whose data was evicted to free space";
    Gauge "cache_cleaning" None, EXPORT, |of, take| cached(of, take, |it| it.cleaning), "1 while the cleaner runs";
    Gauge "cache_paused" None, EXPORT, |of, take| cached(of, take, |it| it.paused), "1 while a limit is reached and nothing is stored";
    Gauge "cache_index_broken" None, EXPORT, |of, take| cached(of, take, |it| it.index_broken), "1 while the index on disk fails and nothing is cached";
    Counter "cache_damaged" None, EXPORT, |of, take| cached(of, take, |it| it.damaged), "files whose data was found damaged, and dropped";

    Gauge "delayed" B, EXPORT, |of, take| cached(of, take, |it| it.dirty_bytes), "delayed writes that are not durable at the origin";
    Gauge "delayed_files" None, EXPORT, |of, take| cached(of, take, |it| it.dirty_files), "files with such writes or attributes";
    Gauge "delayed_age" S, EXPORT, |of, take| cached(of, take, |it| it.dirty_age.unwrap_or_default()), "how long the oldest of them has waited; 0 if there is none";
    Gauge "journal" B, EXPORT, |of, take| cached(of, take, |it| it.journal_bytes), "size of the journal of delayed writes";
    Gauge "conflicts" None, EXPORT, |of, take| cached(of, take, |it| it.conflicts), "files with delayed writes of an earlier mount that could not be sent";
    Counter "delayed_flushed" B, EXPORT, |of, take| cached(of, take, |it| it.flushed_bytes), "delayed writes that the origin has taken";
    Counter "delayed_local_fsyncs" None, EXPORT, |of, take| cached(of, take, |it| it.local_fsyncs), "fsyncs that the journal of delayed writes answered";
    Counter "delayed_merged" None, EXPORT, |of, take| cached(of, take, |it| it.merged_writes), "writes that were merged with others that waited";
    Counter "delayed_held" None, EXPORT, |of, take| cached(of, take, |it| it.writers_held), "writes that had to wait because too much was delayed";
    Counter "lost_files" None, EXPORT, |of, take| linked(of, take, |it| it.lost), "files that lost data after a close had succeeded";

    Gauge "cluster_in" None, &["cluster", "member"], |of, take| if let Some(it) = &of.cluster { take(&[&it.cluster, &it.member], it.term_left.is_some().number()); },
        "1 if this member is in its cluster";
    Gauge "cluster_term_left" S, NONE, |of, take| clustered(of, take, |it| it.term_left.unwrap_or_default()),
        "time until the end of this member's term; 0 if it is not in";
    Gauge "cluster_trouble" None, NONE, |of, take| clustered(of, take, |it| it.is_in_trouble),
        "1 while etcd does not answer, or does not take this member";
    Gauge "cluster_member_servers" None, &["member"], |of, take| members(of, take, |it| it.1), "virtual servers of each member";
    Gauge "cluster_member_draining" None, &["member"], |of, take| members(of, take, |it| it.2), "1 for a member that gives its virtual servers away";
    Gauge "cluster_server_held" None, &["server"], |of, take| servers(of, take, |it| it.1), "1 for a virtual server that a member has";
    Counter "cluster_server_takeovers" None, &["server"], |of, take| servers(of, take, |it| it.2), "how often a member has taken this virtual server: its epoch";

    Counter "kernel_requests" None, NONE, |of, take| kernel(of, take, |it| it.requests), "requests of the kernel to a mount";
    Gauge "kernel_waiting" None, NONE, |of, take| kernel(of, take, |it| it.waiting), "requests of the kernel that wait for an answer";
    Gauge "kernel_files_known" None, NONE, |of, take| kernel(of, take, |it| it.nodes), "files that the kernel knows";
    Gauge "kernel_files_open" None, NONE, |of, take| kernel(of, take, |it| it.open), "files that the kernel has open";
    Counter "kernel_opens" None, &["read_by"], |of, take| if let Some(it) = &of.kernel {
            take(&["kernel"], it.opens_passed.number());
            take(&["process"], it.opens_ordinary.number());
        }, "opens, by who reads the file: the kernel itself from the cache file, or this process";
    Counter "kernel_given_up" None, NONE, |of, take| kernel(of, take, |it| it.abandoned), "requests given up because the requesting process was killed";

    Counter "process_cpu" S, NONE, |of, take| process(of, take, |it| it.cpu_seconds), "processor time";
    Gauge "process_resident_memory" B, NONE, |of, take| process(of, take, |it| it.resident_bytes), "resident memory";
    Gauge "process_start_time" S, NONE, |of, take| process(of, take, |it| it.started_seconds), "start, in seconds since 1970";
    Gauge "process_open_fds" None, NONE, |of, take| process(of, take, |it| it.open_fds), "open descriptors";
    Gauge "process_max_fds" None, NONE, |of, take| process(of, take, |it| it.max_fds), "the most open descriptors";
};

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../../../../docs/reference/metrics.md");

    fn row(family: &Family) -> String {
        let kind = match family.read {
            Read::Counter(_) => "counter",
            Read::Gauge(_) => "gauge",
            Read::Histogram(_) => "histogram",
        };
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {kind} | {} | {} |", family.full_name(), labels.join(", "), family.help)
    }

    #[test]
    fn the_reference_is_this_table() {
        let wanted: Vec<String> = FAMILIES.iter().map(row).collect();
        let rows = REFERENCE
            .lines()
            .filter(|line| line.starts_with("| `leasehold_") || line.starts_with("| `process_"));
        let found: Vec<&str> = rows.collect();
        assert!(found == wanted, "docs/reference/metrics.md must have these rows:\n{}", wanted.join("\n"));
    }

    const RULES: &str = include_str!("../../../../contrib/prometheus/leasehold.rules.yml");
    const DASHBOARD: &str = include_str!("../../../../contrib/grafana/leasehold.json");

    /// The alarms and the dashboard ask for metrics that there are.
    #[test]
    fn what_contrib_asks_for_is_measured() {
        let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        serde_json::from_str::<serde_json::Value>(DASHBOARD).unwrap();
        let mut known: Vec<String> = FAMILIES.iter().map(Family::full_name).collect();
        for family in FAMILIES.iter().filter(|family| matches!(family.read, Read::Histogram(_))) {
            known.extend(["bucket", "sum", "count"].map(|part| format!("{}_{part}", family.full_name())));
        }
        for text in [RULES, DASHBOARD] {
            let words = text.split(|c| !is_of_a_name(c)).filter(|word| word.starts_with("leasehold_"));
            let words: Vec<&str> = words.collect();
            assert!(!words.is_empty());
            let unknown: Vec<&&str> =
                words.iter().filter(|word| !known.iter().any(|name| name == **word)).collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
    }

    #[test]
    fn names_follow_the_conventions() {
        for family in FAMILIES {
            assert!(!family.name.ends_with("_total") && !family.name.ends_with("_bytes"), "{}", family.name);
            assert!(
                family.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{}",
                family.name
            );
            assert_eq!(FAMILIES.iter().filter(|other| other.full_name() == family.full_name()).count(), 1);
        }
    }

    #[test]
    fn what_a_process_does_not_have_is_left_out() {
        let snapshot = Snapshot {
            process: Process::default(),
            serving: None,
            caching: Vec::new(),
            cluster: None,
            awaited: Vec::new(),
            kernel: None,
            info: vec![["0.1.0".into(), "mount".into(), String::new(), "nfs://a\"b/".into(), "3".into()]],
        };
        let text = super::super::family::text(snapshot);
        let wanted = "# HELP leasehold_info 1; its labels say which Leasehold this is, and its origins\n\
            # TYPE leasehold_info gauge\n\
            leasehold_info{version=\"0.1.0\",role=\"mount\",export=\"\",origin=\"nfs://a\\\"b/\",origin_version=\"3\"} 1.0\n\
            # EOF\n";
        assert_eq!(text, wanted);
    }
}
