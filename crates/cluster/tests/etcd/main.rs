//! The store in real etcd processes, and before servers that are not etcd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod not_etcd;
#[path = "../../../rpc/tests/tls/pki.rs"]
mod pki;
mod tls;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cluster::etcd::{CALL_MAX, Endpoint, Etcd};
use cluster::store::{Change, Committed, Condition, Memory, Store, StoreError, Transaction};
use rustix::process::Signal;

/// How long a cluster may take to start, or to elect a leader.
const READY_MAX: Duration = Duration::from_secs(10);
/// How long a call may take, with the delay of a busy machine.
const CALL_BOUND: Duration = Duration::from_millis(CALL_MAX.as_millis() as u64 + 500);

fn endpoints(etcd: &lab::Etcd) -> Vec<Endpoint> {
    etcd.endpoints().iter().map(|endpoint| endpoint.parse().unwrap()).collect()
}

/// Waits until a store answers, and returns how long that took. Each failure meanwhile must be `Unknown`.
async fn wait(store: &Etcd) -> Result<Duration, StoreError> {
    let start = Instant::now();
    loop {
        match timed(store, &Transaction::default()).await {
            Ok(_) => return Ok(start.elapsed()),
            Err(error @ StoreError::Refused(_)) => return Err(error),
            Err(error) if start.elapsed() > READY_MAX => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Carries out a transaction, and checks how long it takes and that a message is one line.
async fn timed(store: &Etcd, transaction: &Transaction) -> Result<Committed, StoreError> {
    let start = Instant::now();
    let result = store.transact(transaction).await;
    assert!(start.elapsed() < CALL_BOUND, "{:?}: {result:?}", start.elapsed());
    if let Err(error) = &result {
        let message = error.to_string();
        assert!(message.lines().count() == 1 && message.contains("http://127.0.0.1:"), "{message}");
    }
    result
}

/// Creates a key, if it is absent.
fn create(key: &str) -> Transaction {
    Transaction {
        conditions: vec![Condition { key: key.to_owned(), changed_at: 0 }],
        changes: vec![Change::Put { key: key.to_owned(), value: b"v".to_vec() }],
        prefix: key.to_owned(),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

#[tokio::test]
async fn etcd_does_what_memory_does() {
    const KEYS: [&str; 9] = ["\0", "a", "a/", "a/1", "a/2", "a\u{7f}", "b", "é", "\u{10ffff}"];
    const PREFIXES: [&str; 6] = ["", "a", "a/", "é", "\u{10ffff}", "none"];
    let cluster = lab::Etcd::start(1);
    let store = Etcd::new(&endpoints(&cluster));
    let mut memory = Memory::default();
    let start = timed(&store, &Transaction::default()).await.unwrap().revision;
    // A revision of the memory, and the same moment in etcd. Removing an absent key is a revision of the
    // memory and none of etcd, so the distance is not constant.
    let mut moments = BTreeMap::from([(0, start)]);
    let mut random = Random(42);
    let (mut succeeded, mut failed) = (0, 0);
    for round in 0..600 {
        let mut current = BTreeMap::new();
        for entry in memory.clone().commit(&Transaction::default()).entries {
            current.insert(entry.key, entry.changed_at);
        }
        let prefix = PREFIXES[random.below(PREFIXES.len())].to_owned();
        let mut transaction = Transaction { prefix, ..Transaction::default() };
        for _ in 0..random.below(3) {
            let key = KEYS[random.below(KEYS.len())].to_owned();
            let now = current.get(&key).copied().unwrap_or(0);
            let changed_at = if random.below(5) == 0 { now.saturating_sub(1) } else { now };
            transaction.conditions.push(Condition { key, changed_at });
        }
        let (first, step) = (random.below(KEYS.len()), 1 + random.below(2));
        for index in (first..KEYS.len()).step_by(step).take(random.below(4)) {
            let key = KEYS[index].to_owned();
            let value = vec![random.below(256) as u8; random.below(40)];
            let is_delete = random.below(3) == 0;
            let change = if is_delete { Change::Delete { key } } else { Change::Put { key, value } };
            transaction.changes.push(change);
        }
        let mut expected = memory.commit(&transaction);
        for condition in &mut transaction.conditions {
            let at = &mut condition.changed_at;
            *at = if *at == 0 { 0 } else { moments[at] };
        }
        let committed = timed(&store, &transaction).await.unwrap();
        let changes_something = |change: &Change| match change {
            Change::Put { .. } => true,
            Change::Delete { key } => current.contains_key(key),
        };
        let is_new = expected.succeeded && transaction.changes.iter().any(changes_something);
        let newest = *moments.values().next_back().unwrap();
        moments.entry(expected.revision).or_insert(newest + u64::from(is_new));
        expected.revision = moments[&expected.revision];
        for entry in &mut expected.entries {
            entry.changed_at = moments[&entry.changed_at];
        }
        assert_eq!(committed, expected, "round {round}: {transaction:?}");
        if committed.succeeded { succeeded += 1 } else { failed += 1 }
    }
    println!("{succeeded} succeeded, {failed} failed");
    assert!(succeeded > 200 && failed > 50);
    // etcd itself refuses these, and goes on.
    let mut twice = create("a");
    twice.changes.push(Change::Delete { key: "a".to_owned() });
    let mut late = create("a");
    late.conditions[0].changed_at = u64::MAX;
    let mut large = create("a");
    large.changes = vec![Change::Put { key: "a".to_owned(), value: vec![0; 1_700_000] }];
    for refused in [create(""), twice, late, large] {
        let result = timed(&store, &refused).await;
        let Err(StoreError::Refused(message)) = result else { panic!("{result:?}") };
        println!("{message}");
    }
    assert!(timed(&store, &Transaction::default()).await.is_ok());
}

#[tokio::test]
async fn calls_go_on_after_the_leader_is_killed() {
    let mut cluster = lab::Etcd::start(3);
    let leader = cluster.leader();
    // The store is connected to the leader.
    let mut endpoints = endpoints(&cluster);
    endpoints.rotate_left(leader);
    let store = Etcd::new(&endpoints);
    let mut created = Vec::new();
    let mut unknown = 0;
    let mut killed: Option<Instant> = None;
    let mut again: Option<Duration> = None;
    let mut number = 0;
    while again.is_none() || created.len() < 300 {
        if created.len() == 100 && killed.is_none() {
            cluster.kill(leader);
            killed = Some(Instant::now());
        }
        let key = format!("key/{number:05}");
        number += 1;
        match timed(&store, &create(&key)).await {
            Ok(committed) => {
                assert!(committed.succeeded);
                created.push(key);
                again = again.or_else(|| killed.map(|killed| killed.elapsed()));
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Unknown(_)), "{error}");
                println!("{:?}: {error}", killed.unwrap().elapsed());
                unknown += 1;
            }
        }
        assert!(again.is_some() || killed.is_none_or(|killed| killed.elapsed() < READY_MAX));
    }
    let all =
        timed(&store, &Transaction { prefix: "key/".to_owned(), ..Transaction::default() }).await.unwrap();
    let present = |key: &String| all.entries.iter().any(|entry| entry.key == *key);
    assert!(created.iter().all(present));
    let late = all.entries.len() - created.len();
    println!("again after {:?}; {unknown} unknown, of which {late} were carried out", again.unwrap());
}

#[tokio::test]
async fn without_a_quorum_nothing_is_known() {
    let cluster = lab::Etcd::start(3);
    let store = Etcd::new(&endpoints(&cluster));
    timed(&store, &Transaction::default()).await.unwrap();
    for index in [0, 2] {
        cluster.signal(index, Signal::STOP);
    }
    for round in 0..4 {
        let start = Instant::now();
        let error = timed(&store, &create(&format!("{round}"))).await.unwrap_err();
        println!("{:?}: {error}", start.elapsed());
        assert!(matches!(error, StoreError::Unknown(_)), "{error}");
    }
    for index in [0, 2] {
        cluster.signal(index, Signal::CONT);
    }
    println!("again after {:?}", wait(&store).await.unwrap());
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_is_made_again() {
    let mut cluster = lab::Etcd::start(1);
    let store = Etcd::new(&endpoints(&cluster));
    timed(&store, &create("a")).await.unwrap();
    cluster.restart(0);
    cluster.wait(0);
    // The runtime hears of the closed connection.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let committed = timed(&store, &create("a")).await.unwrap();
    assert!(!committed.succeeded && committed.entries.len() == 1);
}

#[tokio::test]
async fn another_cluster_is_refused() {
    let (mut ours, other) = (lab::Etcd::start(1), lab::Etcd::start(1));
    let store = Etcd::new(&[endpoints(&ours), endpoints(&other)].concat());
    timed(&store, &create("a")).await.unwrap();
    ours.kill(0);
    // Until the runtime has seen the end of the connection, a request over it is `Unknown`.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = timed(&store, &Transaction::default()).await.unwrap_err();
    println!("{error}");
    assert!(matches!(&error, StoreError::Refused(cause) if cause.contains("is another etcd cluster")));
    ours.restart(0);
    ours.wait(0);
    assert_eq!(timed(&store, &create("a")).await.unwrap().entries.len(), 1);
}
