//! sqlite with a rollback journal: two clients change one database, and one of them is killed. No
//! acknowledged transaction is lost.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Pair, said};

/// The journal mode of each client. Clients may use different modes of the rollback journal on one database.
const JOURNALS: [[&str; 2]; 3] = [["delete", "delete"], ["truncate", "persist"], ["persist", "delete"]];
/// How long sqlite tries to get a lock, in milliseconds.
const BUSY_TIMEOUT: u32 = 60_000;
/// Rows of the table that the killed transaction changes: many more than its page cache holds.
const ROWS: usize = 400;

/// Runs SQL in one process, which must succeed. Returns its output.
fn sql(by: &str, database: &Path, text: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", "sqlite3", "-batch", "-bail"]).arg(database);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    write!(child.stdin.take().unwrap(), ".timeout {BUSY_TIMEOUT}\n{text}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{by}: {text}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn transaction(name: &str, number: usize) -> String {
    format!(
        "BEGIN IMMEDIATE; UPDATE counter SET n = n + 1; INSERT INTO log VALUES('{name}', {number}, hex(randomblob(600))); COMMIT;"
    )
}

/// Both clients make this many transactions at the same time: one client in one process, the other in a
/// process for each.
pub fn play(pair: &Pair, transactions: usize) {
    for (round, journals) in JOURNALS.iter().enumerate() {
        let name = format!("data{round}.db");
        let by = |client: &str| format!("{}: {client} ({})", pair.setting, journals.join(", "));
        let set_up = "CREATE TABLE counter(n); INSERT INTO counter VALUES(0);
            CREATE TABLE log(client, number, filler, PRIMARY KEY(client, number));";
        sql(&by("a"), &pair.first(&name), set_up);
        pair.each(|client, at| {
            let journal = format!("PRAGMA journal_mode={};", journals[usize::from(client == "b")]);
            let all = (0..transactions).map(|number| transaction(client, number));
            let database = at.join(&name);
            if client == "a" {
                sql(&by(client), &database, &(journal + &all.collect::<Vec<_>>().join("\n")));
            } else {
                all.for_each(|one| drop(sql(&by(client), &database, &(journal.clone() + &one))));
            }
        });
        pair.each(|client, at| {
            let counts = "PRAGMA integrity_check; SELECT n FROM counter; SELECT count(*) FROM log;";
            let found = sql(&by(client), &at.join(&name), counts);
            assert_eq!(found, format!("ok\n{0}\n{0}", 2 * transactions), "{}", by(client));
        });
    }
    play_a_kill(pair);
}

/// A process dies within a transaction that is half written to the database. The other client rolls the
/// transaction back.
fn play_a_kill(pair: &Pair) {
    let setting = &pair.setting;
    let (here, there) = (pair.first("killed.db"), pair.second("killed.db"));
    let rows = format!("WITH RECURSIVE r(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM r WHERE i < {ROWS})");
    sql(
        setting,
        &here,
        &format!("CREATE TABLE t(i, v); {rows} INSERT INTO t SELECT i, printf('%01000d', 7) FROM r;"),
    );
    let sums = "PRAGMA integrity_check; SELECT count(*), sum(v) FROM t;";
    let before = sql(setting, &there, sums);
    assert_eq!(before, format!("ok\n{ROWS}|{}", 7 * ROWS), "{setting}");
    let mut command = Command::new("sqlite3");
    command.arg("-batch").arg(&here).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let change =
        "PRAGMA cache_size = 5; BEGIN IMMEDIATE; UPDATE t SET v = printf('%01000d', 8); SELECT 'changed';\n";
    let mut to = child.stdin.take().unwrap();
    to.write_all(change.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "changed\n", "{setting}");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(to);
    for (by, database) in [("the other client", &there), ("its own", &here)] {
        assert_eq!(sql(setting, database, sums), before, "{setting}: after the kill, by {by}");
    }
    sql(setting, &there, "UPDATE t SET v = 9;");
    assert_eq!(sql(setting, &here, sums), format!("ok\n{ROWS}|{}", 9 * ROWS), "{setting}");
}
