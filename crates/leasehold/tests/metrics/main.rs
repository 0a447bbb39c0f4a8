//! `--metrics` of running programs: what Prometheus reads, and when the checks of health fail.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../program/mod.rs"]
mod program;
mod prometheus;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use client::Url;
use program::http::{Answer, PATIENCE, ask, free_port, get, wait_for};
use program::{Running, Tree};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vfs::{Caller, Name, StateidBasis};

/// The value of a metric whose name and labels are `series`.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in:\n{metrics}")).parse().unwrap()
}

/// The same, for a number of things.
fn count(metrics: &str, series: &str) -> u64 {
    value(metrics, series) as u64
}

/// All calls of clients that a status counts.
fn status_requests(status: &Value) -> u64 {
    status["calls"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// A client asks a proxy, which therefore asks its origin. Neither may get an answer.
fn ask_once(proxy: &Running) -> std::thread::JoinHandle<()> {
    let url = format!("{}&vers=3&soft&timeo=10&retrans=1", proxy.url());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let url = Url::parse(&url).unwrap();
            let _ = client::connect(&url).await;
        });
    })
}

fn signal(program: &Running, signal: Signal) {
    kill_process(Pid::from_child(&program.child), signal).unwrap();
}

/// Calls a program that nobody serves.
fn refuse_once(address: &str) {
    // The last fragment of a record, of 40 bytes.
    let (head, xid, call, rpc_version, program, version, procedure) = (0x8000_0028, 1, 0, 2, 100_999, 1, 0);
    let words: [u32; 11] = [head, xid, call, rpc_version, program, version, procedure, 0, 0, 0, 0];
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&words.map(u32::to_be_bytes).concat()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 28]).unwrap();
}

/// A server and a proxy of it, with metrics, and the ports of these.
fn measured(tree: &Tree) -> ((Running, String), (Running, String)) {
    let (at_serve, at_proxy) = (free_port(), free_port());
    let (served, state) = (tree.path("served"), tree.path("state"));
    let arguments = ["serve", &served, "--export", "/export", "--state", &state, "--metrics", &at_serve];
    let serve = Running::start(&arguments);
    let proxy = tree.proxy_with(&serve, &["--metrics", &at_proxy]);
    ((serve, at_serve), (proxy, at_proxy))
}

async fn read_a_file(at: &Running) {
    let url = Url::parse(&format!("{}&vers=3", at.url())).unwrap();
    let origin = client::connect(&url).await.unwrap();
    let (caller, name) = (Caller::unix(0, 0, &[]), Name::new(b"file").unwrap());
    let file = origin.lookup(&caller, &origin.root_handle(), &name, vfs::Want::None).await.unwrap();
    let read = origin.read(&caller, &file.node.handle, StateidBasis::Anonymous, 0, 100).await.unwrap();
    assert_eq!(read.data.to_bytes().unwrap(), "content");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_shows_its_clients_its_cache_and_its_origin() {
    let tree = Tree::new();
    let ((_serve, at_serve), (proxy, at_proxy)) = measured(&tree);
    read_a_file(&proxy).await;
    read_a_file(&proxy).await;

    let metrics = get(&at_proxy, "/metrics");
    assert_eq!(metrics.code, 200);
    assert!(metrics.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    let metrics = metrics.body;
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(metrics.contains("role=\"proxy\",export=\"/export\",origin=\"nfs://127.0.0.1"), "{metrics}");
    assert_eq!(count(&metrics, "leasehold_client_operations_total{version=\"3\",operation=\"READ\"}"), 2);
    let read = "leasehold_client_call_duration_seconds_count{version=\"3\",procedure=\"READ\"}";
    assert_eq!(count(&metrics, read), 2);
    let end = "leasehold_client_call_duration_seconds_bucket{le=\"+Inf\",version=\"3\",procedure=\"READ\"}";
    assert_eq!(count(&metrics, end), 2);
    assert!(value(&metrics, "leasehold_cache_hits_total{export=\"/export\",kind=\"data\"}") >= 1.0);
    assert!(value(&metrics, "leasehold_connections") >= 1.0);
    assert!(value(&metrics, "process_resident_memory_bytes") > 1e6);

    // The two ends of one link agree.
    let calls: f64 = metrics
        .lines()
        .filter(|line| line.starts_with("leasehold_origin_calls_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    let answered = "leasehold_client_call_duration_seconds_count{version=\"4\",procedure=\"COMPOUND\"}";
    assert!(calls > 0.0, "{metrics}");
    // A call of the proxy's own may be on its way.
    let has_answered = |answer: &Answer| value(&answer.body, answered) >= calls;
    wait_for(&at_serve, "/metrics", "the origin has answered as many", has_answered);
    let origin = get(&at_serve, "/metrics").body;
    assert!(!origin.contains("leasehold_cache_"), "serve has no cache:\n{origin}");

    // The state is that of `leasehold status`.
    let status: Value = serde_json::from_str(&get(&at_proxy, "/status").body).unwrap();
    assert_eq!((&status["role"], &status["calls"]["NFSv3 READ"]), (&"proxy".into(), &2.into()));
    assert_eq!(status["process"]["id"], u64::from(proxy.child.id()));

    // The page is one file, and may ask this server alone.
    let page = get(&at_proxy, "/");
    assert_eq!(page.code, 200);
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    assert!(page.body.starts_with("<!DOCTYPE html>") && !page.body.contains("https://"));
    refuse_once(&proxy.address);
    let metrics = get(&at_proxy, "/metrics").body;
    assert_eq!(count(&metrics, "leasehold_calls_refused_total{reason=\"program_unavailable\"}"), 1);
    assert_eq!(count(&metrics, "leasehold_calls_refused_total{reason=\"too_weak\"}"), 0);
    let overview: Value = serde_json::from_str(&get(&at_proxy, "/overview").body).unwrap();
    let samples = overview["samples"].as_array().unwrap();
    assert_eq!(samples.last().unwrap()["requests"], status_requests(&status), "{overview}");
    assert_eq!((&overview["role"], &overview["troubles"]), (&"proxy".into(), &Value::Array(Vec::new())));
    assert!(overview["summary"].as_str().unwrap().contains("trouble   none"), "{overview}");
    assert_eq!(get(&at_proxy, "/nothing").code, 404);
    assert_eq!(ask(&at_proxy, "POST /metrics").code, 405);
    assert_eq!(ask(&at_proxy, "HEAD /metrics").body, "");
    // Nothing that is no HTTP ends the listener.
    let mut odd = TcpStream::connect(format!("127.0.0.1:{at_proxy}")).unwrap();
    odd.write_all(&vec![0x80; 100_000]).ok();
    assert_eq!(get(&at_proxy, "/healthz").body, "ok\n");
}

#[test]
fn a_silent_origin_is_no_readiness_and_a_stopped_server_no_health() {
    let tree = Tree::new();
    let ((serve, at_serve), (proxy, at_proxy)) = measured(&tree);
    wait_for(&at_serve, "/readyz", "serve is ready", |answer| answer.code == 200);
    wait_for(&at_proxy, "/readyz", "the proxy is ready", |answer| answer.code == 200);
    assert_eq!(get(&at_proxy, "/healthz").body, "ok\n");

    lab::freeze(Pid::from_child(&serve.child));
    let client = ask_once(&proxy);
    wait_for(&at_proxy, "/readyz", "the origin is silent", |answer| {
        answer.code == 503 && answer.body.starts_with("origin: nfs://127.0.0.1")
    });
    // The proxy itself works.
    assert_eq!(get(&at_proxy, "/healthz").code, 200);
    assert!(
        value(&get(&at_proxy, "/metrics").body, "leasehold_origin_silence_seconds{export=\"/export\"}") > 5.0
    );
    signal(&serve, Signal::CONT);
    wait_for(&at_proxy, "/readyz", "the origin answers again", |answer| answer.code == 200);
    client.join().unwrap();
}

#[test]
fn a_port_that_is_taken_is_named() {
    let tree = Tree::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let output = program::run(&[
        "serve",
        &served,
        "--state",
        &state,
        "--listen",
        "127.0.0.1:0",
        "--insecure",
        "--metrics",
        &port,
    ]);
    program::fails_with(
        &output,
        &[&format!("127.0.0.1:{port}"), "for metrics", "pass --metrics another port"],
    );
    let output = program::run(&["serve", &served, "--metrics", "localhost"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("write a port such as 9464"), "{error}");
}
