//! `--audit`: what a running server records of its clients.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use client::Url;
use program::{Running, Tree, fails_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vfs::{Caller, CreateHow, Name, SetAttributes, Status, Want};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Makes a directory with a file in it, renames both, and fails to remove the directory.
async fn change(server: &Running, version: &str) {
    let url = Url::parse(&format!("{}&vers={version}", server.url())).unwrap();
    let client = client::connect(&url).await.unwrap();
    let (who, set) = (Caller::unix(0, 0, &[]), SetAttributes::default());
    let root = client.root_handle();
    let directory = client.mkdir(&who, &root, &name("d"), &set, Want::None).await.unwrap().node.handle;
    client.create(&who, &directory, &name("f"), CreateHow::Guarded, &set).await.unwrap();
    client.rename(&who, &directory, &name("f"), &directory, &name("g")).await.unwrap();
    let refused = client.rmdir(&who, &root, &name("d")).await.unwrap_err();
    assert_eq!(refused.status, Status::NotEmpty);
    client.remove(&who, &directory, &name("g")).await.unwrap();
    client.rmdir(&who, &root, &name("d")).await.unwrap();
}

/// The operations, paths and results in a log.
fn told(lines: &[Value]) -> Vec<[String; 3]> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    lines.iter().map(|line| [&line["operation"], &line["path"], &line["result"]].map(text)).collect()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn wanted(making: &str) -> Vec<[String; 3]> {
    let wanted = [
        ["mkdir", "/d", "OK"],
        [making, "/d/f", "OK"],
        ["rename", "/d/f", "OK"],
        ["rmdir", "/d", "NOTEMPTY"],
        ["remove", "/d/g", "OK"],
        ["rmdir", "/d", "OK"],
    ];
    wanted.map(|line| line.map(str::to_owned)).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_clients_are_recorded_with_their_paths() {
    let tree = Tree::new();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let (log, old) = (tree.directory.path().join("audit"), tree.directory.path().join("audit.1"));
    let at = program::path(&log).to_owned();
    let arguments = ["serve", &served, "--export", "/export", "--state", &state, "--audit", &at];
    let serve = Running::start(&arguments);
    change(&serve, "3").await;
    let proxy = tree.proxy_with(&serve, &["--audit", &format!("{at}.proxy")]);
    change(&proxy, "4.2").await;

    // A thread writes the lines: both changes end with one of these.
    let began = Instant::now();
    let is_last = |line: &&str| line.contains("\"rmdir\"") && line.contains("\"OK\"");
    while std::fs::read_to_string(&log).unwrap().lines().filter(is_last).count() < 2 {
        assert!(began.elapsed() < Duration::from_secs(30), "the lines are not written");
    }
    // logrotate(8) renames the file, and then sends SIGHUP.
    std::fs::rename(&log, &old).unwrap();
    kill_process(Pid::from_child(&serve.child), Signal::HUP).unwrap();
    let began = Instant::now();
    let mut made = 0;
    while !log.exists() {
        assert!(began.elapsed() < Duration::from_secs(30), "the log is not opened again");
        std::fs::create_dir_all(tree.path("served")).unwrap();
        change(&serve, "3").await;
        made += 1;
    }
    // The end waits for the log.
    proxy.terminate();
    serve.terminate();
    let (old, new) = (lines(&old), lines(&log));
    assert_eq!(told(&old[..6]), wanted("create"));
    assert_eq!(
        (&old[0]["client"], &old[0]["uid"], &old[0]["export"]),
        (&"127.0.0.1".into(), &0.into(), &"/export".into())
    );
    assert_eq!(old[2]["to"], "/d/g");
    assert!(new.len() >= 6 && new.len() <= 6 * made, "{new:?}");
    let of_proxy = lines(Path::new(&format!("{at}.proxy")));
    let changes: Vec<Value> = of_proxy.into_iter().filter(|line| line["operation"] != "setattr").collect();
    assert_eq!(told(&changes), wanted("open"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_can_have_the_records() {
    let tree = Tree::new();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let arguments = ["serve", &served, "--export", "/export", "--state", &state, "--audit", "journal"];
    let mut serve = Running::start(&arguments);
    change(&serve, "3").await;
    let mut line = String::new();
    BufReader::new(serve.child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("leasehold: audit {") && line.contains("\"operation\":\"mkdir\""), "{line}");
}

#[test]
fn a_log_that_cannot_be_written_is_named_at_the_start() {
    let tree = Tree::new();
    let (served, state, none) = (tree.path("served"), tree.path("state"), tree.path("none/audit"));
    let output =
        program::run(&["serve", &served, "--state", &state, "--listen", "127.0.0.1:0", "--audit", &none]);
    fails_with(&output, &["cannot write the audit log", "none/audit"]);
}
