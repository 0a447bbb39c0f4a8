//! A virtual server moves from one member to another, and its clients keep what they have locked.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::Origin;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use vfs::Locked;

use crate::program::{self, path};
use crate::site::{LONGEST, Site, lock, open, write};

/// A client with a lock, and a rival at the same virtual server that must never get it.
struct Pair {
    holder: Arc<dyn Origin>,
    opened: vfs::Opened,
    rival: Arc<dyn Origin>,
}

impl Pair {
    async fn new(site: &Site, server: usize) -> Pair {
        let (holder, rival) = (site.client(server).await, site.client(server).await);
        let opened = open(&holder, "holder").await;
        assert_eq!(lock(&holder, &opened, "holder").await, Locked::Granted);
        Pair { holder, opened, rival }
    }

    /// The holder writes under its lock, and the rival does not get it. Returns how long the write took.
    async fn check(&self, byte: u8) -> Duration {
        let begun = Instant::now();
        write(&self.holder, &self.opened, byte).await;
        let took = begun.elapsed();
        let other = open(&self.rival, "rival").await;
        assert!(matches!(lock(&self.rival, &other, "rival").await, Locked::Denied(_)));
        took
    }
}

// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_killed_and_another_one_goes_on() {
    let mut site = Site::new(&["m1", "m2", "m3"]);
    let pairs = [Pair::new(&site, 0).await, Pair::new(&site, 1).await];
    for round in 0..3 {
        let victim = site.holder(0);
        site.kill(victim);
        for (server, pair) in pairs.iter().enumerate() {
            let took = pair.check(b'a' + round).await;
            eprintln!("round {round}, server {server}: the write took {took:?}");
            assert_eq!(site.content(server), [b'a' + round; 7]);
        }
        site.moved(0, victim);
        site.start(victim);
    }
}

// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_and_an_end_in_order_stop_nobody_for_long() {
    let mut site = Site::new(&["m1", "m2"]);
    let pair = Arc::new(Pair::new(&site, 0).await);
    let ends = Arc::new(AtomicBool::new(false));
    let (writer, until) = (pair.clone(), ends.clone());
    let runtime = tokio::runtime::Handle::current();
    let writing = async move || {
        let mut longest = Duration::ZERO;
        while !until.load(Ordering::Relaxed) {
            let begun = Instant::now();
            write(&writer.holder, &writer.opened, b'w').await;
            longest = longest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        longest
    };
    let writing = std::thread::spawn(move || runtime.block_on(writing()));
    for _ in 0..3 {
        let from = site.holder(0);
        let drained = program::run(&["cluster", "drain", path(&site.directory(from))]);
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
        site.moved(0, from);
        assert!(program::run(&["cluster", "resume", path(&site.directory(from))]).status.success());
    }
    let from = site.holder(0);
    site.terminate(from);
    site.moved(0, from);
    tokio::time::sleep(Duration::from_secs(1)).await;
    ends.store(true, Ordering::Relaxed);
    let longest = writing.join().unwrap();
    eprintln!("four moves in order: the longest write took {longest:?}");
    // Less than a term: nobody was waited for.
    assert!(longest < Duration::from_secs(4), "{longest:?}");
    pair.check(b'z').await;
}

/// Waits until these processes have ended.
async fn ended(processes: &[Pid], within: Duration) {
    let begun = Instant::now();
    while processes.iter().any(|pid| test_kill_process(*pid).is_ok()) {
        assert!(begun.elapsed() < within, "a server goes on whose term is over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A member that hangs tells its servers no new terms. They end by themselves.
// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_a_member_that_hangs_end_with_the_term() {
    let site = Site::new(&["m1", "m2"]);
    let pair = Pair::new(&site, 0).await;
    let hangs = site.holder(0);
    let processes = site.processes(hangs);
    kill_process(processes[0], Signal::STOP).unwrap();
    let other = if hangs == "m1" { "m2" } else { "m1" };
    assert_eq!(site.holder_by(0, &[other]), other);
    pair.check(b'x').await;
    assert_eq!(site.content(0), [b'x'; 7]);
    kill_process(processes[0], Signal::CONT).unwrap();
    pair.check(b'y').await;
    assert_eq!(site.content(0), [b'y'; 7]);
    site.joined(hangs).await;
}

/// A machine that is stopped for longer than a term, with all its processes. When it goes on, its servers end
/// before they answer anything. Here the address is free only then, because all members are on one machine.
// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_were_stopped_for_longer_than_a_term_answer_nothing() {
    let site = Site::new(&["m1", "m2"]);
    let pair = Pair::new(&site, 0).await;
    let stopped = site.holder(0);
    let servers: Vec<_> = site.processes(stopped).into_iter().skip(1).collect();
    site.signal(stopped, Signal::STOP);
    let writing = async {
        // The kernel takes it, and the server reads it when it goes on.
        write(&pair.holder, &pair.opened, b'z').await;
    };
    let going_on = async {
        // On a busy machine the write may be carried out before the processes stop.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = site.changed(0);
        // The term of 4 s is over, and the other member has not tried often yet to take the address.
        tokio::time::sleep(Duration::from_millis(3300)).await;
        site.signal(stopped, Signal::CONT);
        ended(&servers, Duration::from_secs(2)).await;
        assert_eq!(site.changed(0), before, "nothing is written before the servers have ended");
    };
    tokio::join!(writing, going_on);
    pair.check(b'y').await;
    assert_eq!(site.content(0), [b'y'; 7]);
    site.joined(stopped).await;
}

// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_servers_end_with_the_term_and_come_back() {
    let site = Site::new(&["m1", "m2"]);
    let pairs = [Pair::new(&site, 0).await, Pair::new(&site, 1).await];
    let members = ["m1", "m2"];
    site.etcd.signal_all(Signal::STOP);
    // The servers go on while the term lasts.
    write(&pairs[0].holder, &pairs[0].opened, b'e').await;
    let begun = Instant::now();
    while members.iter().any(|member| site.processes(member).len() > 1) {
        assert!(begun.elapsed() < Duration::from_secs(8), "a server outlives its term");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    site.etcd.signal_all(Signal::CONT);
    for (server, pair) in pairs.iter().enumerate() {
        let took = pair.check(b'f').await;
        eprintln!("server {server}: the write after the outage took {took:?}");
        assert_eq!(site.content(server), [b'f'; 7]);
    }
}

/// A process of a server that is killed is started again by its member, in the same epoch.
// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_is_started_again() {
    let site = Site::new(&["m1", "m2"]);
    let pair = Pair::new(&site, 0).await;
    let holder = site.holder(0);
    let epoch = |site: &Site| site.status(holder)["servers"][0]["epoch"].as_u64().unwrap();
    let before = epoch(&site);
    for pid in site.processes(holder).into_iter().skip(1) {
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    pair.check(b'k').await;
    assert_eq!((epoch(&site), site.holder(0)), (before, holder));
}

/// The hook is called before a server starts and after it has ended, and once when a member starts: one that
/// was killed has left its addresses.
// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hook_moves_addresses() {
    let mut site = Site::new(&["m1"]);
    let (script, log) = (site.home.path().join("hook"), site.home.path().join("hook.log"));
    std::fs::write(&script, format!("#!/bin/sh\necho $1 $2 >>{}\n", log.display())).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    site.kill("m1");
    let config = site.config("m1", "");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("term = 4\n", &format!("term = 4\nhook = '{}'\n", script.display()));
    std::fs::write(&config, text).unwrap();
    site.start_with("m1", &config);
    let pair = Pair::new(&site, 0).await;
    pair.check(b'h').await;
    let calls = |address: &str| {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.strip_suffix(address))
            .map(|what| what.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(calls("127.0.0.5"), ["remove", "add"]);
    site.terminate("m1");
    assert_eq!(calls("127.0.0.5"), ["remove", "add", "remove"]);
    assert_eq!(calls("127.0.0.6").last().unwrap(), "remove");
}

/// The answer to a GET at a port of the metrics.
fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The metrics of a member show the cluster as it sees it, and its page says what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_of_a_member_show_the_cluster() {
    let mut site = Site::new(&["m2"]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = site.config("m1", &format!("metrics = {port}"));
    site.start_with("m1", &config);
    let began = Instant::now();
    let has = |lines: &[String]| {
        let metrics = get(port, "/metrics");
        lines.iter().all(|line| metrics.contains(&format!("\nleasehold_cluster_{line}\n")))
    };
    // One that has just joined gets no server yet.
    let joined = [
        "in{cluster=\"site\",member=\"m1\"} 1.0".to_owned(),
        "member_servers{member=\"m1\"} 0.0".to_owned(),
        "member_servers{member=\"m2\"} 2.0".to_owned(),
        format!("server_held{{server=\"{}\"}} 1.0", site.servers[0]),
        "trouble 0.0".to_owned(),
    ];
    while !has(&joined) {
        assert!(began.elapsed() < LONGEST, "{}", get(port, "/metrics"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(get(port, "/readyz").contains("200 OK"));
    let overview = get(port, "/overview");
    assert!(
        overview.contains("member m1 of cluster site") && overview.contains("\"troubles\":[]"),
        "{overview}"
    );
    // Without etcd the member says so at once, and is out when its term is over.
    site.etcd.kill(0);
    let silent = || {
        let troubles =
            get(port, "/overview").contains("\"troubles\":[\"") && has(&["trouble 1.0".to_owned()]);
        troubles && get(port, "/readyz").contains("503")
    };
    while !silent() {
        assert!(began.elapsed() < LONGEST * 2, "{}", get(port, "/overview"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
