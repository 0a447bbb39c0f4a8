//! The page at the port of the metrics, in headless Chromium: narrow and wide windows, light and dark, the
//! keyboard, and the names that it shows to whom.
//!
//! Without Chromium the tests in a browser say so and pass. Debian's package is 80 MB. With
//! `LEASEHOLD_SCREENSHOTS=DIRECTORY`, pictures for the guide are left there.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../program/mod.rs"]
mod program;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use client::Url;
use program::{Running, Tree};
use serde::Deserialize;
use serde_json::Value;
use vfs::{Caller, Name, StateidBasis, Want};

const PATIENCE: Duration = Duration::from_secs(30);
/// Shows the page in a frame of the given width, and writes what it finds into the document.
const PROBE: &str = include_str!("probe.html");

/// The findings of the probe.
#[derive(Debug, Deserialize)]
struct Seen {
    width: u32,
    scroll: u32,
    charts: usize,
    beyond: Vec<String>,
    tables: Vec<String>,
    dark: String,
    moved: bool,
}

/// The body of an answer to a GET by a browser that calls this machine `host`.
fn get(port: u16, host: &str, path: &str) -> String {
    let began = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(began.elapsed() < PATIENCE, "port {port}: {error}"),
        }
    };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// A proxy with metrics, of which a client has read a file, and their port.
async fn measured(tree: &Tree) -> (Running, Running, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let origin = tree.serve();
    let proxy = tree.proxy_with(&origin, &["--metrics", &port.to_string()]);
    let client = client::connect(&Url::parse(&proxy.url()).unwrap()).await.unwrap();
    let (caller, root) = (Caller::machine(), client.root_handle());
    let file = client.lookup(&caller, &root, &Name::new(b"file").unwrap(), Want::None).await.unwrap().node;
    client.read(&caller, &file.handle, StateidBasis::Anonymous, 0, 100).await.unwrap();
    (origin, proxy, port)
}

/// Chromium in this window, without its profile. `None` if it is not installed.
fn chromium(directory: &Path, dark: bool, arguments: &[String]) -> Option<String> {
    let mut command = Command::new("timeout");
    command.args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.arg(format!("--user-data-dir={}", directory.join("profile").display()));
    let scheme = if dark { "0" } else { "1" };
    command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    let output = command.args(arguments).output().unwrap();
    if output.status.code() == Some(127) {
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The findings of the probe in a window of this width.
fn look(page: &str, width: u32, dark: bool) -> Option<Seen> {
    let directory = tempfile::tempdir().unwrap();
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    let probe = PROBE.replace("@WIDTH@", &width.to_string()).replace("@PAGE@", &escaped);
    let file = directory.path().join("probe.html");
    std::fs::write(&file, probe).unwrap();
    let arguments = ["--dump-dom", "--window-size=1600,1000", "--virtual-time-budget=20000"];
    let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
    arguments.push(format!("file://{}", file.display()));
    let text = chromium(directory.path(), dark, &arguments)?;
    let (_, seen) = text.split_once("<pre id=\"seen\">").unwrap_or_else(|| panic!("{text}"));
    let seen = seen.split("</pre>").next().unwrap().replace("&lt;", "<").replace("&gt;", ">");
    Some(serde_json::from_str(&seen.replace("&amp;", "&")).unwrap_or_else(|error| panic!("{error}: {seen}")))
}

/// The page with the answer that it would ask for, and the samples of an hour.
fn with_an_hour(port: u16) -> String {
    let mut overview: Value = serde_json::from_str(&get(port, "localhost", "/overview")).unwrap();
    let last = overview["samples"].as_array().unwrap().last().unwrap().clone();
    let at = last["at"].as_u64().unwrap();
    let (mut busy, mut misses) = (0, 0);
    let hour = (0..360_u64).map(|number| {
        let mut sample = last.clone();
        let load = 2000 + (number * 37 % 360).abs_diff(180) * 20;
        (busy, misses) = (busy + load, misses + load * (4 + 1440 / (number + 16)) / 100);
        sample["at"] = (at - (360 - number) * 10).into();
        sample["requests"] = busy.into();
        sample["hits"] = (busy - misses).into();
        sample["misses"] = misses.into();
        sample["origin_calls"] = misses.into();
        sample["hit_bytes"] = (busy * 60_000).into();
        sample["fetched_bytes"] = (misses * 60_000).into();
        sample["origin_p50_us"] = (38_000 + number % 11 * 900).into();
        sample["delayed_bytes"] = (number % 40 * 300_000).into();
        sample["leases"] = (number * 30).into();
        sample["used_bytes"] = (number * 50_000_000).into();
        sample
    });
    overview["samples"] = hour.collect();
    let answer =
        format!("<script>window.fetch = async () => ({{ json: async () => ({overview}) }});</script>");
    get(port, "localhost", "/").replacen("<script>", &format!("{answer}<script>"), 1)
}

/// Leaves a picture for the guide, if one is wanted.
fn photograph(page: &str, width: u32, dark: bool, name: &str) {
    let Some(to) = std::env::var_os("LEASEHOLD_SCREENSHOTS") else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    std::fs::write(&file, page).unwrap();
    let picture = Path::new(&to).join(name);
    let arguments = [
        format!("--screenshot={}", picture.display()),
        format!("--window-size={width},1330"),
        "--virtual-time-budget=5000".to_owned(),
        format!("file://{}", file.display()),
    ];
    chromium(directory.path(), dark, &arguments);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_fits_any_window_and_is_moved_by_keys() {
    let tree = Tree::new();
    let (_origin, _proxy, port) = measured(&tree).await;
    let page = with_an_hour(port);
    let mut backgrounds = Vec::new();
    for (width, dark) in [(320, false), (360, true), (1280, false), (1280, true)] {
        let Some(seen) = look(&page, width, dark) else {
            eprintln!("SKIPPED: no chromium: apt-get install chromium");
            return;
        };
        assert!(seen.charts >= 7 && seen.width <= width && seen.moved, "{seen:?}");
        assert!(seen.scroll <= seen.width && seen.beyond.is_empty(), "{width}: {seen:?}");
        assert!(seen.tables.iter().any(|table| table.contains("127.0.0.1")), "{seen:?}");
        assert!(seen.tables.iter().any(|table| table.contains("/export/file")), "{seen:?}");
        backgrounds.push(seen.dark);
    }
    assert_eq!(backgrounds[0], backgrounds[2]);
    assert_eq!(backgrounds[1], backgrounds[3]);
    assert_ne!(backgrounds[0], backgrounds[1], "light and dark");
    photograph(&page, 1200, false, "dashboard-light.png");
    photograph(&page, 1200, true, "dashboard-dark.png");
}

/// A page of another site, whose name resolves to this machine, is not shown the names of files.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_files_are_for_browsers_on_this_machine_alone() {
    let tree = Tree::new();
    let (_origin, _proxy, port) = measured(&tree).await;
    let overview = |host: &str| serde_json::from_str::<Value>(&get(port, host, "/overview")).unwrap();
    for host in ["localhost", "localhost:9464", "127.0.0.1", "127.0.0.1:9464", "[::1]:9464", "[::1]"] {
        let seen = overview(host);
        assert_eq!(seen["files"][0]["path"], "/file", "{host}: {seen}");
        assert_eq!(seen["clients"][0]["address"], "127.0.0.1");
    }
    for host in [
        "evil.example",
        "evil.example:9464",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "localhost\r\nVia: 1.1 there",
    ] {
        let seen = overview(host);
        assert!(seen["files"].is_null() && !seen["clients"].is_null(), "{host}: {seen}");
    }
}
