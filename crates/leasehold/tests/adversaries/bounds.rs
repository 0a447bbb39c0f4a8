//! Peers that take as many connections and descriptors and as much memory as they can. Another client gets
//! the same service as before, and the process stays within its limits.
//!
//! In a run of all tests the attacks are short. `LAB_ATTACK=10` makes each ten times as large as the attack
//! that found the fault, and prints a row for docs/security.md. The attacker and the client share the
//! processors, so the row also has the latency of a server that somebody attacks another server beside:
//!
//!     LAB_ATTACK=10 cargo test --release -p leasehold --test adversaries bounds:: -- \
//!         --test-threads 1 --nocapture

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::program::{Running, Tree};
use crate::watch::{Watch, What};
use crate::wire::{Wire, connect, rss};

/// The client that must be served.
const LISTED: Ipv4Addr = Ipv4Addr::LOCALHOST;
const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// The client, and hosts of which one or more are greedy.
const LISTED_ALL: &str = "127.0.0.1,127.0.0.3,127.0.1.0/24";

/// The address from which connection number `at` of an attack comes. One address has fewer than 28,232
/// ports.
fn host(listed: bool, at: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, if listed { 1 } else { 2 }, 1 + (at / 20_000) as u8)
}

/// Fewer than the connections that the attackers make.
const DESCRIPTORS: &str = "700";
const DESCRIPTORS_ENOUGH: &str = "20000";
const MIB: usize = 1 << 20;
/// `--memory-in-flight` of all tests here. The process may grow by as much under attack, and by what the
/// system's allocator loses to fragmentation.
const LIMIT: &str = "48M";
const GROWTH_MAX: usize = 96 * MIB;
/// The longest that 99 of 100 calls may take under attack, unless three times their duration before is
/// longer.
const SLOW: Duration = Duration::from_millis(150);

/// An attack and its size: connections, sessions or calls.
struct Attack {
    name: &'static str,
    /// In a run of all tests.
    short: usize,
    /// Of the attack that found the fault.
    reported: usize,
}

impl Attack {
    fn size(&self) -> usize {
        by_hand().map_or(self.short, |times| times * self.reported)
    }
}

/// `LAB_ATTACK`.
fn by_hand() -> Option<usize> {
    std::env::var("LAB_ATTACK").ok().and_then(|text| text.parse().ok())
}

fn serve(tree: &Tree, clients: &str, descriptors: &str) -> Running {
    let (served, state) = (tree.path("served"), tree.path("state"));
    Running::start_limited(
        &[
            "serve",
            &served,
            "--export",
            "/export",
            "--state",
            &state,
            "--clients",
            clients,
            "--memory-in-flight",
            LIMIT,
        ],
        descriptors,
    )
}

/// Attacks while a listed client is served, and checks how far the process has grown.
async fn is_served_beside<T>(attack: &Attack, server: &Running, run: impl AsyncFn(&Running, usize) -> T) {
    let size = attack.size();
    let alone = Watch::start(server, What::Getattr).steady();
    let beside = match by_hand() {
        Some(_) => Some(beside_another(server, &run, size).await),
        None => None,
    };
    let idle = rss(server);
    let watch = Watch::start(server, What::Getattr);
    let newcomer = Watch::start(server, What::Connect);
    let attackers = run(server, size).await;
    let (beginning, during) = (watch.so_far(), watch.steady());
    let newcomer = newcomer.so_far();
    // Wait until the process does not grow any more.
    let mut most = 0;
    while rss(server) > most {
        most = rss(server);
        assert!(most <= idle + GROWTH_MAX, "{} MiB, {} before", most / MIB, idle / MIB);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if let Some((beginning_beside, during_beside)) = beside {
        eprintln!(
            "| {} | {size} | {alone:.1?} | {beginning_beside:.1?} | {beginning:.1?} | {during_beside:.1?} | {during:.1?} | {newcomer:.1?} | {} MiB |",
            attack.name,
            most.saturating_sub(idle) / MIB
        );
    }
    assert!(during <= (3 * alone).max(SLOW), "{during:?} under attack, {alone:?} before");
    assert!(newcomer <= Duration::from_millis(900), "{newcomer:?} to connect: a SYN was lost");
    // A new client can connect, and all its calls succeed.
    let mut late = Wire::connect(LISTED, &server.address).await;
    let root = late.mount("/export").await;
    assert_eq!(late.getattr(&root).await, 0);
    let file = late.lookup(&root, "file").await.unwrap();
    assert_eq!(late.read(&file, 0, 7).await.unwrap(), b"content");
    drop(attackers);
}

/// The latency of a server while the attack is on another: as it begins, and later.
async fn beside_another<T>(
    server: &Running,
    run: &impl AsyncFn(&Running, usize) -> T,
    size: usize,
) -> (Duration, Duration) {
    let tree = Tree::new();
    std::fs::write(tree.path("served/large"), vec![7; MIB]).unwrap();
    let another = serve(&tree, LISTED_ALL, DESCRIPTORS_ENOUGH);
    let watch = Watch::start(server, What::Getattr);
    let attackers = run(&another, size).await;
    let latencies = (watch.so_far(), watch.steady());
    drop(attackers);
    latencies
}

/// Connections that never say anything.
async fn silent(server: &Running, listed: bool, size: usize) -> VecDeque<TcpStream> {
    /// A process may have 20,000 descriptors. The server has ended the oldest connections long before.
    const HELD_MAX: usize = 15_000;
    let mut held = VecDeque::new();
    for at in 0..size {
        held.push_back(connect(host(listed, at), &server.address, None).await.unwrap());
        if held.len() > HELD_MAX {
            held.pop_front();
        }
    }
    held
}

#[tokio::test]
async fn silent_connections_of_a_stranger_lock_nobody_out() {
    let attack = Attack { name: "silent connections of an unlisted host", short: 750, reported: 4_200 };
    let tree = Tree::new();
    let server = serve(&tree, "127.0.0.1", DESCRIPTORS);
    is_served_beside(&attack, &server, async |server, size| silent(server, false, size).await).await;
}

#[tokio::test]
async fn silent_connections_of_a_listed_host_take_no_descriptor_that_work_needs() {
    let attack = Attack { name: "silent connections of a listed host", short: 750, reported: 4_200 };
    let tree = Tree::new();
    for number in 0..30 {
        std::fs::write(tree.path(&format!("served/{number}")), b"content").unwrap();
    }
    let server = serve(&tree, LISTED_ALL, DESCRIPTORS);
    let mut established = Wire::connect(LISTED, &server.address).await;
    let root = established.mount("/export").await;
    is_served_beside(&attack, &server, async |server, size| silent(server, true, size).await).await;
    for number in 0..30 {
        let file = established.lookup(&root, &number.to_string()).await.unwrap();
        assert_eq!(established.read(&file, 0, 7).await.unwrap(), b"content");
    }
    assert_eq!(established.create(&root, "new").await, 0);
}

#[tokio::test]
async fn records_that_are_never_finished_take_no_more_than_the_limit() {
    let attack = Attack { name: "unfinished records of 2 MiB", short: 80, reported: 1_000 };
    let tree = Tree::new();
    let server = serve(&tree, LISTED_ALL, DESCRIPTORS_ENOUGH);
    is_served_beside(&attack, &server, async |server, size| {
        let mut held = Vec::new();
        let record = vec![b'x'; 2 * MIB];
        for at in 0..size {
            let mut stream = connect(host(true, at), &server.address, None).await.unwrap();
            stream.write_u32(((2 * MIB) as u32 + 4) | (1 << 31)).await.unwrap();
            // Bytes that the server does not read stay in the socket buffers, as far as they fit.
            let _ = tokio::time::timeout(Duration::from_millis(10), stream.write_all(&record)).await;
            held.push(stream);
        }
        held
    })
    .await;
}

/// Connections that take no replies, each with these calls.
async fn unread(server: &Running, size: usize, calls_of: impl Fn(&mut Wire) -> Vec<u8>) -> Vec<Wire> {
    let mut held = Vec::new();
    for at in 0..size {
        let mut wire = Wire::of(connect(host(true, at), &server.address, Some(4096)).await.unwrap());
        let calls = calls_of(&mut wire);
        let _ = tokio::time::timeout(Duration::from_millis(20), wire.stream.write_all(&calls)).await;
        held.push(wire);
    }
    held
}

#[tokio::test]
async fn replies_that_nobody_takes_take_no_more_than_the_limit_and_are_given_back() {
    let attack = Attack { name: "connections that take no replies", short: 30, reported: 100 };
    let tree = Tree::new();
    std::fs::write(tree.path("served/large"), vec![7; MIB]).unwrap();
    let server = serve(&tree, LISTED_ALL, DESCRIPTORS_ENOUGH);
    let idle = rss(&server);
    is_served_beside(&attack, &server, async |server, size| {
        let mut client = Wire::connect(GREEDY, &server.address).await;
        let root = client.mount("/export").await;
        let large = client.lookup(&root, "large").await.unwrap();
        unread(server, size, |wire| (0..200).flat_map(|_| wire.read_call(&large, 0, 63 << 10)).collect())
            .await
    })
    .await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while rss(&server) > idle + 40 * MIB {
        assert!(Instant::now() < deadline, "{} MiB are kept, {} before", rss(&server) / MIB, idle / MIB);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn compounds_with_large_replies_take_no_more_than_the_limit() {
    let attack = Attack { name: "connections with compounds of 31 READs", short: 8, reported: 4 };
    let tree = Tree::new();
    std::fs::write(tree.path("served/large"), vec![7; MIB]).unwrap();
    let server = serve(&tree, LISTED_ALL, DESCRIPTORS_ENOUGH);
    is_served_beside(&attack, &server, async |server, size| {
        unread(server, size, |wire| {
            (0..150).flat_map(|_| wire.gulp(&["export", "large"], 31, 64_000)).collect()
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn sessions_with_full_slots_take_no_more_than_the_limit() {
    const OF_A_CLIENT: usize = 64;
    let attack = Attack { name: "sessions with full slots", short: 64, reported: 256 };
    let tree = Tree::new();
    let server = serve(&tree, LISTED_ALL, DESCRIPTORS_ENOUGH);
    is_served_beside(&attack, &server, async |server, size| {
        let mut wire = Wire::connect(GREEDY, &server.address).await;
        for number in 0..size.div_ceil(OF_A_CLIENT) {
            let (client, first) = wire.exchange_id(format!("greedy {number}").as_bytes()).await.unwrap();
            for sequence in first..first + OF_A_CLIENT as u32 {
                let (session, slots) = wire.create_session(client, sequence, 128).await.unwrap();
                wire.fill(&session, slots).await;
            }
        }
        wire
    })
    .await;
}

#[tokio::test]
async fn clients_that_nobody_confirms_shut_nobody_out() {
    let attack = Attack { name: "EXCHANGE_IDs of one host", short: 2_000, reported: 20_000 };
    let tree = Tree::new();
    let server = serve(&tree, LISTED_ALL, DESCRIPTORS_ENOUGH);
    is_served_beside(&attack, &server, async |server, size| {
        let mut wire = Wire::connect(GREEDY, &server.address).await;
        for number in 0..size {
            let owner = format!("{number:.<900}");
            wire.exchange_id(owner.as_bytes()).await.unwrap();
        }
        wire
    })
    .await;
    let mut late = Wire::connect(LISTED, &server.address).await;
    let (client, sequence) = late.exchange_id(b"honest").await.unwrap();
    assert!(late.create_session(client, sequence, 8).await.is_ok());
}

#[tokio::test]
async fn writes_that_wait_for_the_origin_take_no_more_than_the_limit_and_all_are_done() {
    use rustix::process::{Pid, Signal, kill_process};
    let attack = Attack { name: "WRITEs while the origin is away", short: 3, reported: 3 };
    let writers = attack.size();
    let tree = Tree::new();
    let origin = tree.serve();
    let more = ["--clients", LISTED_ALL, "--memory-in-flight", LIMIT, "--delegations", "never"];
    let proxy = tree.proxy_with(&origin, &more);
    let mut greedy = Wire::connect(GREEDY, &proxy.address).await;
    let root = greedy.mount("/export").await;
    let file = greedy.lookup(&root, "file").await.unwrap();
    let alone = Watch::start(&proxy, What::Null).steady();
    let idle = rss(&proxy);
    let pid = Pid::from_child(&origin.child);
    lab::freeze(pid);
    let mut held = Vec::new();
    for _ in 0..writers {
        let wire = Wire::connect(GREEDY, &proxy.address).await;
        held.push(wire.write_all_of(file.clone(), 40, MIB));
    }
    let writing = tokio::spawn(futures_util::future::join_all(held));
    let watch = Watch::start(&proxy, What::Null);
    let mut most = idle;
    for _ in 0..20 {
        most = most.max(rss(&proxy));
        assert!(most <= idle + GROWTH_MAX, "{} MiB, {} before", most / MIB, idle / MIB);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let during = watch.so_far();
    if by_hand().is_some() {
        eprintln!(
            "| {} | {writers} | {alone:.1?} | | {during:.1?} | | | | {} MiB |",
            attack.name,
            (most - idle) / MIB
        );
    }
    assert!(during <= (3 * alone).max(SLOW), "{during:?} under attack, {alone:?} before");
    kill_process(pid, Signal::CONT).unwrap();
    let done = tokio::time::timeout(Duration::from_secs(60), writing).await.unwrap().unwrap();
    assert_eq!(done, vec![40; writers], "each WRITE is answered");
    assert_eq!(std::fs::metadata(tree.path("served/file")).unwrap().len(), 40 * MIB as u64);
}
