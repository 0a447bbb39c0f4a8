//! A database in a kernel client, far from its origin, before a proxy whose journal answers COMMIT.
//!
//! Promise: delayed-writes-of-a-proxy

use std::time::Duration;

use lab::{Guest, Lab, Link, Origin, V4_2};

use crate::stack;

/// Half of a round trip to the origin: a transaction that waits for the origin takes 40 ms at least.
const ONE_WAY: Duration = Duration::from_millis(20);
/// Transactions of one row. `LAB_STEPS` asks for another number.
const ROWS: usize = 60;

fn rows() -> usize {
    std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROWS)
}

/// Adds rows one after the other, each in a transaction that is synced. Returns the seconds that it took.
fn add(guest: &Guest, file: &str, rows: usize) -> f64 {
    let script = format!(
        "set -e; rm -f {file}*; sqlite3 {file} 'pragma journal_mode=persist; create table t(x)' >/dev/null
         (echo 'pragma locking_mode=exclusive; pragma synchronous=full;'
          for n in $(seq {rows}); do echo \"insert into t values($n);\"; done) >/tmp/rows
         begun=$(date +%s.%N); sqlite3 {file} </tmp/rows >/dev/null
         echo $begun $(date +%s.%N) | awk '{{ print $2 - $1 }}'"
    );
    guest.sh(&script).trim().parse().unwrap()
}

fn count(guest: &Guest, file: &str) -> usize {
    guest
        .sh(&format!("sqlite3 {file} 'pragma integrity_check; select count(*) from t'"))
        .lines()
        .fold(0, |found, line| if line == "ok" { found } else { line.parse().unwrap() })
}

/// Returns how many transactions a second there are, and how many fsyncs the proxy has answered.
fn transactions(lab: &Lab, origin: &Origin, cache: &str, fsync: &str, rows: usize) -> (f64, u64) {
    let way = Link::to(lab, origin);
    way.set_delay(ONE_WAY);
    let proxy = stack::proxy_in(lab, &way.origin(), "4.2", cache, &["--fsync", fsync]);
    let near = lab.guest(&format!("near-{fsync}"));
    near.mount_nfs(&proxy.origin(), "/mnt/nfs", V4_2);
    let seconds = add(&near, &format!("/mnt/nfs/{fsync}.db"), rows);
    let answered = proxy.status()["cache"]["local_fsyncs"].as_u64().unwrap();
    // The origin recalls the delegation of the proxy, which then sends what waits.
    let far = lab.guest(&format!("far-{fsync}"));
    far.mount_nfs(origin, "/mnt/nfs", V4_2);
    assert_eq!(count(&far, &format!("/mnt/nfs/{fsync}.db")), rows);
    (rows as f64 / seconds, answered)
}

#[test]
fn the_journal_answers_the_commits_of_a_database() {
    let Some(lab) = Lab::enter("journal") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let (here, answered) = transactions(&lab, &serve.origin(), "cache", "journal", rows());
    assert!(answered >= rows() as u64, "{answered} fsyncs");
    if std::env::var_os("LAB_STEPS").is_some() {
        let (there, _) = transactions(&lab, &serve.origin(), "cache-too", "origin", rows());
        let guest = lab.guest("alone");
        let memory = rows() as f64 / add(&guest, "/tmp/alone.db", rows());
        eprintln!(
            "lab: journal: {here:.0} transactions a second, {there:.1} with fsync=origin, {memory:.0} in the \
             guest's memory"
        );
    }
}
