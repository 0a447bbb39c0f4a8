//! Peers that take as many connections and descriptors and as much memory as they can. Another client gets
//! the same service as before, and the process stays within its limits.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use crate::program::{Running, Tree};
use crate::wire::{Wire, connect, rss};

/// The client that must be served.
const LISTED: Ipv4Addr = Ipv4Addr::LOCALHOST;
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const LISTED_BOTH: &str = "127.0.0.1,127.0.0.3";

/// Fewer than the connections that the attackers make.
const DESCRIPTORS: &str = "700";
const MIB: usize = 1 << 20;
/// `--memory-in-flight` of all tests here. The process may grow by as much under attack, and by what the
/// system's allocator loses to fragmentation.
const LIMIT: &str = "48M";
const GROWTH_MAX: usize = 96 * MIB;
/// The longest a call may take under attack, unless three times its duration before is longer.
const SLOW: Duration = Duration::from_millis(150);

fn serve(tree: &Tree, clients: &str) -> Vec<String> {
    let (served, state) = (tree.path("served"), tree.path("state"));
    [
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
    ]
    .map(str::to_owned)
    .to_vec()
}

fn start(arguments: &[String]) -> Running {
    Running::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start_with(arguments: &[String], descriptors: &str) -> Running {
    Running::start_limited(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), descriptors)
}

/// The second slowest of a hundred calls.
async fn p99(client: &mut Wire, root: &[u8]) -> Duration {
    let mut taken = Vec::new();
    for _ in 0..100 {
        let started = Instant::now();
        assert_eq!(client.getattr(root).await, 0);
        taken.push(started.elapsed());
    }
    taken.sort_unstable();
    taken[98]
}

/// Attacks while a listed client is served, and checks how far the process has grown.
async fn is_served_beside<T>(server: &Running, attack: impl AsyncFnOnce() -> T) {
    let mut client = Wire::connect(LISTED, &server.address).await;
    let root = client.mount("/export").await;
    let (before, idle) = (p99(&mut client, &root).await, rss(server));
    let attackers = attack().await;
    let during = p99(&mut client, &root).await;
    assert!(during <= (3 * before).max(SLOW), "{during:?} under attack, {before:?} before");
    // Wait until the process does not grow any more.
    let mut most = 0;
    while rss(server) > most {
        most = rss(server);
        assert!(most <= idle + GROWTH_MAX, "{} MiB, {} before", most / MIB, idle / MIB);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A new client can connect, and all its calls succeed.
    let mut late = Wire::connect(LISTED, &server.address).await;
    assert_eq!(late.getattr(&root).await, 0);
    let file = late.lookup(&root, "file").await.unwrap();
    assert_eq!(late.read(&file, 0, 7).await.unwrap(), b"content");
    drop(attackers);
}

#[tokio::test]
async fn silent_connections_of_a_stranger_lock_nobody_out() {
    let tree = Tree::new();
    let server = start_with(&serve(&tree, "127.0.0.1"), DESCRIPTORS);
    is_served_beside(&server, async || {
        let mut held = Vec::new();
        for _ in 0..750 {
            held.push(connect(STRANGER, &server.address, None).await.unwrap());
        }
        held
    })
    .await;
}

#[tokio::test]
async fn silent_connections_of_a_listed_host_take_no_descriptor_that_work_needs() {
    let tree = Tree::new();
    for number in 0..30 {
        std::fs::write(tree.path(&format!("served/{number}")), b"content").unwrap();
    }
    let server = start_with(&serve(&tree, LISTED_BOTH), DESCRIPTORS);
    let mut established = Wire::connect(LISTED, &server.address).await;
    let root = established.mount("/export").await;
    is_served_beside(&server, async || {
        let mut held = Vec::new();
        for _ in 0..750 {
            held.push(connect(GREEDY, &server.address, None).await.unwrap());
        }
        held
    })
    .await;
    for number in 0..30 {
        let file = established.lookup(&root, &number.to_string()).await.unwrap();
        assert_eq!(established.read(&file, 0, 7).await.unwrap(), b"content");
    }
    assert_eq!(established.create(&root, "new").await, 0);
}

#[tokio::test]
async fn records_that_are_never_finished_take_no_more_than_the_limit() {
    let tree = Tree::new();
    let server = start(&serve(&tree, LISTED_BOTH));
    is_served_beside(&server, async || {
        let mut held = Vec::new();
        for _ in 0..80 {
            let mut stream = connect(GREEDY, &server.address, None).await.unwrap();
            let record = vec![b'x'; 2 * MIB];
            stream.write_u32(((2 * MIB) as u32 + 4) | (1 << 31)).await.unwrap();
            // Bytes that the server does not read stay in the socket buffers, as far as they fit.
            let _ = tokio::time::timeout(Duration::from_millis(10), stream.write_all(&record)).await;
            held.push(stream);
        }
        held
    })
    .await;
}

#[tokio::test]
async fn replies_that_nobody_takes_take_no_more_than_the_limit_and_are_given_back() {
    let tree = Tree::new();
    std::fs::write(tree.path("served/large"), vec![7; MIB]).unwrap();
    let server = start(&serve(&tree, LISTED_BOTH));
    let mut client = Wire::connect(GREEDY, &server.address).await;
    let root = client.mount("/export").await;
    let large = client.lookup(&root, "large").await.unwrap();
    let idle = rss(&server);
    is_served_beside(&server, async || {
        let mut held = Vec::new();
        for _ in 0..30 {
            let mut wire = Wire::of(connect(GREEDY, &server.address, Some(4096)).await.unwrap());
            let mut calls = Vec::new();
            for _ in 0..200 {
                calls.extend(wire.read_call(&large, 0, 63 << 10));
            }
            let _ = tokio::time::timeout(Duration::from_millis(20), wire.stream.write_all(&calls)).await;
            held.push(wire);
        }
        held
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
    let tree = Tree::new();
    std::fs::write(tree.path("served/large"), vec![7; MIB]).unwrap();
    let server = start(&serve(&tree, LISTED_BOTH));
    is_served_beside(&server, async || {
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut wire = Wire::of(connect(GREEDY, &server.address, Some(4096)).await.unwrap());
            let mut calls = Vec::new();
            for _ in 0..150 {
                calls.extend(wire.gulp(&["export", "large"], 31, 64_000));
            }
            let _ = tokio::time::timeout(Duration::from_millis(100), wire.stream.write_all(&calls)).await;
            held.push(wire);
        }
        held
    })
    .await;
}

#[tokio::test]
async fn writes_that_wait_for_the_origin_take_no_more_than_the_limit_and_all_are_done() {
    use rustix::process::{Pid, Signal, kill_process};
    let tree = Tree::new();
    let origin = tree.serve();
    let more = ["--clients", LISTED_BOTH, "--memory-in-flight", LIMIT, "--delegations", "never"];
    let proxy = tree.proxy_with(&origin, &more);
    let mut listed = Wire::connect(LISTED, &proxy.address).await;
    let mut greedy = Wire::connect(GREEDY, &proxy.address).await;
    let root = greedy.mount("/export").await;
    let file = greedy.lookup(&root, "file").await.unwrap();
    let idle = rss(&proxy);
    let pid = Pid::from_child(&origin.child);
    kill_process(pid, Signal::STOP).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        let wire = Wire::connect(GREEDY, &proxy.address).await;
        held.push(wire.write_all_of(file.clone(), 40, MIB));
    }
    let writing = tokio::spawn(futures_util::future::join_all(held));
    for _ in 0..20 {
        listed.null().await;
        assert!(rss(&proxy) <= idle + GROWTH_MAX, "{} MiB, {} before", rss(&proxy) / MIB, idle / MIB);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    kill_process(pid, Signal::CONT).unwrap();
    let done = tokio::time::timeout(Duration::from_secs(60), writing).await.unwrap().unwrap();
    assert_eq!(done, vec![40; 3], "each WRITE is answered");
    assert_eq!(std::fs::metadata(tree.path("served/file")).unwrap().len(), 40 * MIB as u64);
}
