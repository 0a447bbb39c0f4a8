//! Tests that measure our own server with every workload.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bench::relay::{self, Relay};
use bench::wire::{self, Error, Options, Report, Target, Workload};
use local::LocalFs;
use rpc::{ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;

/// A server on loopback. Dropping it removes the directories.
struct Served {
    tree: TempDir,
    front: Arc<Front>,
    server: Server,
    _state: TempDir,
}

async fn serve(read_only: bool) -> Served {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = LocalFs::open(tree.path(), local::Options { sync: false, ..local::Options::new(state.path()) });
    let options =
        ExportOptions { secure: false, squash: Squash::None, read_only, ..ExportOptions::default() };
    let fs = Arc::new(fs.unwrap());
    let export = Export::new(ExportId(1), "/export".into(), fs, options);
    let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
    let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let replies = ReplyCache::open(state.path()).unwrap();
    let server = Server::start(options, front.clone(), replies).await.unwrap();
    Served { tree, front, server, _state: state }
}

fn target(name: &str, address: SocketAddr) -> Target {
    format!("{name}@{}=nfs://{address}/export?noresvport", std::process::id()).parse().unwrap()
}

/// All workloads, at the smallest scale.
fn options(servers: Vec<Target>) -> Options {
    let mut options = Options::new(servers);
    (options.duration, options.warm_up) = (Duration::from_millis(50), Duration::from_millis(10));
    (options.tree.files, options.tree.large_bytes) = (8, 4 << 20);
    options
}

/// Checks that every workload got replies of the right size and measured their latency.
fn plausible(report: &Report, servers: &[&str]) {
    assert_eq!(report.rows.len(), Workload::ALL.len() * servers.len());
    for &workload in Workload::ALL {
        for server in servers {
            let row = report.row(workload, server).unwrap();
            assert!(row.calls > 0, "{row}");
            let latency = row.latency_us;
            assert!(latency.p50 > 0.0 && latency.p50 <= latency.p99 && latency.p99 <= latency.max, "{row}");
            let bytes = row.megabytes_per_second / row.calls_per_second * 1e6;
            match workload {
                Workload::Read4k | Workload::Read64k | Workload::Read1m => {
                    assert!((bytes - f64::from(workload.transfer_bytes())).abs() < 1.0, "{row}");
                }
                Workload::Write64k | Workload::Readdirplus => assert!(bytes > 500.0, "{row}"),
                _ => assert!(bytes.abs() < f64::EPSILON, "{row}"),
            }
            assert!(row.server_cpu_us.is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_is_measured_and_nothing_left_behind() {
    let served = serve(false).await;
    let mut heard = 0;
    let options = options(vec![target("ours", served.server.local_addr())]);
    let report = wire::run(&options, |_| heard += 1).await.unwrap();
    plausible(&report, &["ours"]);
    assert_eq!(heard, Workload::ALL.len());
    assert_eq!(std::fs::read_dir(served.tree.path()).unwrap().count(), 0);
    let counts = served.front.counts();
    assert!(counts.nfs3(protocol::nfs3::Procedure::Commit) > 0);
    // The table has one line per row, and the JSON is valid.
    assert_eq!(report.to_string().lines().count(), 2 + report.rows.len());
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["rows"][0]["workload"], "null");
    assert!(json["rows"][0]["ratio"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_compared_over_files_that_were_prepared() {
    let served = serve(false).await;
    let address = served.server.local_addr();
    let slow = Relay::start(address, relay::Options::rtt(Duration::from_millis(2))).unwrap();
    let mut options = options(vec![target("near", address), target("far", slow.local_addr())]);
    options.rounds = 2;
    options.tree.prepared_in = Some("some/where".into());
    let prepared = served.tree.path().join("some/where");
    wire::prepare(&prepared, &options.tree).unwrap();
    wire::prepare(&prepared, &options.tree).unwrap(); // a second call changes nothing
    let report = wire::run(&options, |_| ()).await.unwrap();
    plausible(&report, &["near", "far"]);
    // A busy machine can make the near server the slower one: the ratio is held against the rates.
    for workload in Workload::ALL {
        let [near, far] = ["near", "far"].map(|server| report.row(*workload, server).unwrap());
        assert_eq!(near.ratio, Some(1.0), "{near}");
        assert_eq!(far.ratio, Some(far.calls_per_second / near.calls_per_second), "{far}");
    }
    let far = report.row(Workload::Null, "far").unwrap();
    assert!(far.latency_us.p50 >= 1900.0, "{far}");
    let mut left: Vec<_> =
        std::fs::read_dir(&prepared).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["files", "large"]);
}

#[tokio::test]
async fn what_cannot_be_measured_is_told_in_one_line() {
    let served = serve(true).await;
    let address = served.server.local_addr();
    let error = wire::run(&options(vec![target("ro", address)]), |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::Status { procedure: "MKDIR", .. }), "{error}");
    let elsewhere = format!("nfs://{address}/elsewhere?noresvport").parse().unwrap();
    let error = wire::run(&options(vec![elsewhere]), |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::Mount { .. }), "{error}");
    let mut unprepared = options(vec![target("ro", address)]);
    unprepared.tree.prepared_in = Some("nowhere".into());
    let error = wire::run(&unprepared, |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::Status { procedure: "LOOKUP", .. }), "{error}");
    let udp = format!("nfs://{address}/export?udp").parse().unwrap();
    assert!(matches!(wire::run(&options(vec![udp]), |_| ()).await, Err(Error::Udp { .. })));
}

#[tokio::test]
async fn a_tree_of_somebody_else_is_left_alone() {
    let served = serve(false).await;
    let theirs = served.tree.path().join("leasehold-bench");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("precious"), "x").unwrap();
    let options = options(vec![target("ours", served.server.local_addr())]);
    let error = wire::run(&options, |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert!(theirs.join("precious").exists());
}
